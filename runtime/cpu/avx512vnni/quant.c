/* Activations to int8, one group of 32 per step (rn_quant_act has the definition). The greatest magnitude and the integer sum do not
 * depend on order, so every lane may go its own way. */
#include <immintrin.h>

#include "runtime/cpu/rows_internal.h"

#define AMAX_MIN 0x1p-100f // below: the group is zero

void rn_quant_act_avx512vnni(const float *x, const struct rn_acts *a, uint32_t m)
{
    const size_t mb = a->mb;
    size_t at = (size_t)(m / a->mb) * a->n_groups * mb + m % a->mb;
    for (uint32_t g = 0; g < a->n_groups; g++, x += 32, at += mb) {
        const __m512 lo = _mm512_loadu_ps(x), hi = _mm512_loadu_ps(x + 16);
        const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(lo), _mm512_abs_ps(hi)));
        int8_t *q = a->q + at * 32;
        if (!(amax >= AMAX_MIN)) {
            _mm256_storeu_si256((__m256i *)q, _mm256_setzero_si256());
            a->d[at] = a->sd[at] = 0;
            a->sum[at] = (struct rn_act_sum){{0, 0}};
            continue;
        }
        const __m512 scale = _mm512_set1_ps(127.0f / amax);
        const __m512i qlo = _mm512_cvtps_epi32(_mm512_mul_ps(lo, scale)), qhi = _mm512_cvtps_epi32(_mm512_mul_ps(hi, scale));
        const int32_t first = _mm512_reduce_add_epi32(qlo), second = _mm512_reduce_add_epi32(qhi);
        _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(qlo));
        _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(qhi));
        a->d[at] = amax / 127.0f;
        a->sum[at] = (struct rn_act_sum){{(int16_t)first, (int16_t)second}};
        a->sd[at] = (float)(first + second) * a->d[at];
    }
}
