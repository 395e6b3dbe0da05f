/* Scales of repacked weights with AVX-512: scales_tmpl.h. Thread: any; pure. */
#pragma once

#include "runtime/cpu/avx512vnni/vmath_internal.h"
#include "runtime/cpu/matmul_block_internal.h"

typedef __m512 vec, sub_vec;
#define LANES 16

INLINE vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

INLINE __m512i u8_to_u32(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}

INLINE vec load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(u8_to_u32(p));
}

INLINE sub_vec load_s8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

INLINE vec load_e8m0(const uint8_t *p)
{
    const __m512i e = u8_to_u32(p), bits = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), small));
}

#include "runtime/cpu/scales_tmpl.h"
