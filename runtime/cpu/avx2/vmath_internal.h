/* Building blocks of the 256-bit rows: the scalar sequences of runtime/tensor/fmath.h, 8 values at a time, bit for bit. 16 virtual
 * lanes are two registers: lanes 0..7 and 8..15. Thread: any; pure. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "runtime/tensor/fmath.h"

#define INLINE static inline __attribute__((always_inline))

/* All ones in the first n of 8 lanes; n may be larger than 8. */
static inline __m256i rn_v_first(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > 8 ? 8 : (int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m256 rn_v_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* rn_expf of every lane. */
static inline __m256 rn_v_exp(__m256 x)
{
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(RN_EXP_MIN), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(RN_EXP_MAX), x); // in this order a NaN stays a NaN
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(RN_EXP_LOG2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-RN_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-RN_EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(RN_EXP_C6), r, _mm256_set1_ps(RN_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RN_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RN_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(RN_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    // 2^n as a number, n in -126..127; where x is tiny or NaN it is whatever it is.
    __m256i scale = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, _mm256_castsi256_ps(scale)));
}

/* rn_lane_sum. */
static inline float rn_v_lane_sum(__m256 lanes0, __m256 lanes8)
{
    __m256 s8 = _mm256_add_ps(lanes0, lanes8);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

static inline float rn_v_max(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
