/* Building blocks of the 256-bit rows: the scalar sequences of runtime/tensor/fmath.h, 8 values at a time, bit for bit. 16 virtual
 * lanes are two registers: lanes 0..7 and 8..15. f8_*: the words of the templates in runtime/cpu/f8. Thread: any; pure. */
#pragma once

#include <immintrin.h>
#include <math.h>
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

/* ---- 8 floats ----------------------------------------------------------------------------------------------------------------- */

struct f8 {
    __m256 v;
};

INLINE struct f8 f8_all(float x)
{
    return (struct f8){_mm256_set1_ps(x)};
}

INLINE struct f8 f8_load(const float *p)
{
    return (struct f8){_mm256_loadu_ps(p)};
}

INLINE struct f8 f8_load_f16(const void *p)
{
    return (struct f8){rn_v_load_f16(p)};
}

/* 8 int8. */
INLINE struct f8 f8_load_s8(const uint8_t *p)
{
    return (struct f8){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)))};
}

INLINE void f8_store(float *p, struct f8 a)
{
    _mm256_storeu_ps(p, a.v);
}

/* The first n values at p, zeros behind them; n may be larger than 8. */
INLINE struct f8 f8_load_first(const float *p, uint32_t n)
{
    return (struct f8){_mm256_maskload_ps(p, rn_v_first(n))};
}

INLINE void f8_store_first(float *p, struct f8 a, uint32_t n)
{
    _mm256_maskstore_ps(p, rn_v_first(n), a.v);
}

INLINE float f8_first(struct f8 a)
{
    return _mm256_cvtss_f32(a.v);
}

INLINE struct f8 f8_add(struct f8 a, struct f8 b)
{
    return (struct f8){_mm256_add_ps(a.v, b.v)};
}

INLINE struct f8 f8_mul(struct f8 a, struct f8 b)
{
    return (struct f8){_mm256_mul_ps(a.v, b.v)};
}

INLINE struct f8 f8_div(struct f8 a, struct f8 b)
{
    return (struct f8){_mm256_div_ps(a.v, b.v)};
}

INLINE struct f8 f8_neg(struct f8 a)
{
    return (struct f8){_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))};
}

INLINE struct f8 f8_mul_n(struct f8 a, float b)
{
    return (struct f8){_mm256_mul_ps(a.v, _mm256_set1_ps(b))};
}

/* fma(a, b, acc) */
INLINE struct f8 f8_fma(struct f8 acc, struct f8 a, struct f8 b)
{
    return (struct f8){_mm256_fmadd_ps(a.v, b.v, acc.v)};
}

INLINE struct f8 f8_fma_n(struct f8 acc, struct f8 a, float b)
{
    return (struct f8){_mm256_fmadd_ps(a.v, _mm256_set1_ps(b), acc.v)};
}

INLINE struct f8 f8_max(struct f8 a, struct f8 b)
{
    return (struct f8){_mm256_max_ps(a.v, b.v)};
}

/* The greatest lane. */
INLINE float f8_top(struct f8 a)
{
    return rn_v_max(a.v);
}

/* Lane i is token j + i: those of tokens below lo and from hi on become -inf. */
INLINE struct f8 f8_in_range(struct f8 a, uint32_t j, uint32_t lo, uint32_t hi)
{
    const __m256i seen = _mm256_andnot_si256(rn_v_first(lo > j ? lo - j : 0), rn_v_first(hi > j ? hi - j : 0));
    return (struct f8){_mm256_blendv_ps(_mm256_set1_ps(-INFINITY), a.v, _mm256_castsi256_ps(seen))};
}

INLINE struct f8 f8_exp(struct f8 a)
{
    return (struct f8){rn_v_exp(a.v)};
}

INLINE float f8_lane_sum(struct f8 lanes0, struct f8 lanes8)
{
    return rn_v_lane_sum(lanes0.v, lanes8.v);
}
