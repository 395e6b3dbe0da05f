/* One group of 32 to int8 with AVX2: rn_quant_act and rn_quant_kv of runtime/tensor/quant.h, bit for bit. The greatest magnitude and
 * the integer sum do not depend on order, so every lane may go its own way. Thread: any; pure. */
#pragma once

#include <string.h>

#include "runtime/cpu/avx2/vmath_internal.h"
#include "runtime/cpu/kernels.h"
#include "runtime/tensor/quant.h"

/* Greatest magnitude of 32 values; a NaN does not count. */
static inline float rn_v_group_max(const float *x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 max = _mm256_setzero_ps();
    for (int i = 0; i < RN_GROUP; i += 8) {
        max = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), max); // of a NaN and max, max
    }
    return rn_v_max(max);
}

/* 32 integers of magnitude 127 at most, as int8. */
static inline void rn_v_store_group(int8_t *q, const __m256i v[4])
{
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); // packing goes within 128-bit halves
    _mm256_storeu_si256((void *)q, bytes);
}

/* *ret_sum: the sums of both halves. */
static inline float rn_v_quant_act(const float *x, int8_t *q, struct rn_act_sum *ret_sum)
{
    const float amax = rn_v_group_max(x);
    if (amax < RN_AMAX_MIN) {
        memset(q, 0, RN_GROUP);
        *ret_sum = (struct rn_act_sum){{0, 0}};
        return 0.0f;
    }
    const __m256 inverse = _mm256_set1_ps(127.0f / amax);
    __m256i v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
    }
    rn_v_store_group(q, v);
    // Sums of pairs of the first and the second half, then of quads, then of all.
    __m256i pairs = _mm256_packs_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
    __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
    both = _mm_hadd_epi32(both, both);
    *ret_sum = (struct rn_act_sum){{(int16_t)_mm_cvtsi128_si32(both), (int16_t)_mm_extract_epi32(both, 1)}};
    return amax / 127.0f;
}

static inline uint16_t rn_v_quant_kv(const float *x, int8_t *q)
{
    const uint16_t d16 = _cvtss_sh(rn_v_group_max(x) / 127.0f, _MM_FROUND_TO_NEAREST_INT);
    if (d16 == 0) {
        memset(q, 0, RN_GROUP);
        return 0;
    }
    const __m256 d = _mm256_set1_ps(_cvtsh_ss(d16)), lo = _mm256_set1_ps(-127.0f), hi = _mm256_set1_ps(127.0f);
    __m256i v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(_mm256_div_ps(_mm256_loadu_ps(x + 8 * i), d), lo), hi));
    }
    rn_v_store_group(q, v);
    return d16;
}
