/* One group of 32 to int8 with AVX-512, two registers: rn_quant_act and rn_quant_kv of runtime/tensor/quant.h, bit for bit. The greatest
 * magnitude and the integer sum do not depend on order, so every lane may go its own way. Thread: any; pure. */
#pragma once

#include <string.h>

#include "runtime/cpu/avx512vnni/vmath_internal.h"
#include "runtime/cpu/kernels.h"
#include "runtime/tensor/quant.h"

/* Their greatest magnitude. */
static inline float rn_v_group_max(__m512 x0, __m512 x1)
{
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
}

/* Stores them as bytes; they fit. */
static inline void rn_v_store_i8(int8_t *q, __m512i q0, __m512i q1)
{
    _mm_storeu_si128((void *)q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((void *)(q + 16), _mm512_cvtepi32_epi8(q1));
}

/* *ret_sum: the sums of both halves. */
static inline float rn_v_quant_act(const float *x, int8_t *q, struct rn_act_sum *ret_sum)
{
    const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    const float amax = rn_v_group_max(x0, x1);
    if (amax < RN_AMAX_MIN) {
        memset(q, 0, RN_GROUP);
        *ret_sum = (struct rn_act_sum){{0, 0}};
        return 0.0f;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / amax);
    const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse)), q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
    rn_v_store_i8(q, q0, q1);
    *ret_sum = (struct rn_act_sum){{(int16_t)_mm512_reduce_add_epi32(q0), (int16_t)_mm512_reduce_add_epi32(q1)}};
    return amax / 127.0f;
}

static inline uint16_t rn_v_quant_kv(const float *x, int8_t *q)
{
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    const uint16_t d16 = _cvtss_sh(rn_v_group_max(x0, x1) / 127.0f, _MM_FROUND_TO_NEAREST_INT);
    if (d16 == 0) {
        memset(q, 0, RN_GROUP);
        return 0;
    }
    const __m512 d = _mm512_set1_ps(_cvtsh_ss(d16)), lo = _mm512_set1_ps(-127.0f), hi = _mm512_set1_ps(127.0f);
    x0 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x0, d), lo), hi);
    x1 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x1, d), lo), hi);
    rn_v_store_i8(q, _mm512_cvtps_epi32(x0), _mm512_cvtps_epi32(x1));
    return d16;
}
