/* Attention over q8_0 pages in 256-bit registers; included once per row, which sets ROW and RN_DOT_VNNI (dot_tmpl.h). Thread: any;
 * pure. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx2/attention_internal.h"
#include "runtime/cpu/avx2/dot_tmpl.h"
#include "runtime/cpu/avx2/quant_internal.h"

/* The dot products of 8 keys with n queries in one group of 32 dimensions. k: the group's first quad of the first key; q and bias: those
 * of the first query's group. */
INLINE void dot_keys(const uint8_t *k, const int8_t *q, const int32_t *bias, uint32_t head_dim, struct f8 *ret, const uint32_t n)
{
    __m256i sum[BLOCK_K];
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        sum[x] = _mm256_set1_epi32(bias[x * (head_dim / RN_GROUP)]);
    }
#pragma GCC unroll 8
    for (uint32_t t = 0; t < 8; t++) {
        const __m256i keys = load_bytes(k + t * TILE * 4);
#pragma GCC unroll 4
        for (uint32_t x = 0; x < n; x++) {
            sum[x] = dot_byte(sum[x], keys, four(q + (size_t)x * head_dim + 4 * t));
        }
    }
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        ret[x].v = _mm256_cvtepi32_ps(sum[x]);
    }
}

#define KEY_OFFSET BYTE_OFFSET
#include "runtime/cpu/f8/attention_q8_tmpl.h"
