/* Scales of repacked weights with AVX2: scales_tmpl.h. Thread: any; pure. */
#pragma once

#include "runtime/cpu/avx2/vmath_internal.h"
#include "runtime/cpu/matmul_block_internal.h"

typedef __m256 vec, sub_vec;
#define LANES 8

INLINE vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

INLINE __m256i u8_to_u32(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}

INLINE vec load_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(u8_to_u32(p));
}

INLINE sub_vec load_s8(const uint8_t *p)
{
    return f8_load_s8(p).v;
}

INLINE vec load_e8m0(const uint8_t *p)
{
    const __m256i e = u8_to_u32(p), bits = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

#include "runtime/cpu/scales_tmpl.h"
