/* Scales of repacked weights (repack.h), 8 rows at a time. Thread: any; pure. */
#pragma once

#include "runtime/cpu/avx2/vmath_internal.h"
#include "runtime/cpu/matmul_block_internal.h"

/* Scales of 8 rows; what a format does not have is not read. */
struct scales {
    __m256 d, min; // of the whole group; the minimum of SCALES_K is subtracted
    __m256 sub[2]; // SCALES_K6: of each half of the group
};

INLINE __m256i load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}

INLINE __m256 load_s8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

/* 2^(e - 128): the exponent's bits, or a subnormal for e < 2. */
INLINE __m256 load_e8m0(const uint8_t *p)
{
    const __m256i e = load_u8(p), bits = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

/* Side `side` (rows 0..7 or 8..15) of a group. s: behind the group's codes; super: the common scales of its 8 groups. */
INLINE struct scales load_scales(const int kind, const uint8_t *s, const uint8_t *super, const int side)
{
    struct scales ret;
    ret.d = ret.min = ret.sub[0] = ret.sub[1] = _mm256_setzero_ps();
    switch (kind) {
    case SCALES_F16:
        ret.d = rn_v_load_f16(s + 16 * side);
        break;
    case SCALES_F16_MIN:
        ret.d = rn_v_load_f16(s + 16 * side);
        ret.min = rn_v_load_f16(s + 32 + 16 * side);
        break;
    case SCALES_E8M0:
        ret.d = load_e8m0(s + 8 * side);
        break;
    case SCALES_K:
        ret.d = _mm256_mul_ps(rn_v_load_f16(super + 16 * side), _mm256_cvtepi32_ps(load_u8(s + 8 * side)));
        ret.min = _mm256_mul_ps(rn_v_load_f16(super + 32 + 16 * side), _mm256_cvtepi32_ps(load_u8(s + 16 + 8 * side)));
        break;
    default:
        ret.d = rn_v_load_f16(super + 16 * side);
        ret.sub[0] = load_s8(s + 8 * side);
        ret.sub[1] = load_s8(s + 16 + 8 * side);
        break;
    }
    return ret;
}
