/* Building blocks of the AVX-512 rows: the scalar sequences of runtime/tensor/fmath.h and quant.h, 16 values at a time, bit for bit.
 * Thread: any; pure. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "runtime/tensor/fmath.h"

#define INLINE static inline __attribute__((always_inline))

/* Mask of the first n of 16 lanes; n may be larger than 16. */
static inline __mmask16 rn_v_first(uint32_t n)
{
    uint32_t mask = n >= 16 ? 0xffff : (1u << n) - 1;
    return (__mmask16)mask;
}

static inline __m512 rn_v_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* rn_expf of every lane. */
static inline __m512 rn_v_exp(__m512 x)
{
    __mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(RN_EXP_MIN), _CMP_LT_OQ);
    x = _mm512_min_ps(_mm512_set1_ps(RN_EXP_MAX), x); // in this order a NaN stays a NaN
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(RN_EXP_LOG2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-RN_EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-RN_EXP_LN2_LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(RN_EXP_C6), r, _mm512_set1_ps(RN_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RN_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RN_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(RN_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    // n is in -126..127 and p * 2^n a normal number, so scaling is exact, as the multiplication of the scalar sequence is.
    return _mm512_maskz_scalef_ps((__mmask16)~tiny, p, n);
}

/* rn_lane_sum. */
static inline float rn_v_lane_sum(__m512 lanes)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
