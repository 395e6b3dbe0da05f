/* Steps of quantising a group of 32 values, two registers of them. Thread: any; pure. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

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
