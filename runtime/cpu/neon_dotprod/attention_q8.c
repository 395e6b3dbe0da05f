/* Attention over q8_0 pages with NEON. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/neon_dotprod/attention_internal.h"
#include "runtime/cpu/neon_dotprod/quant_internal.h"

/* 4 dimensions of 4 keys, without their offset. */
INLINE int8x16_t load_keys(const uint8_t *k)
{
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(k), vdupq_n_u8(0x80)));
}

/* The dot products of 8 keys with n queries in one group of 32 dimensions. k: the group's first quad of the first key; q: the first
 * query's group. */
INLINE void dot_keys(const uint8_t *k, const int8_t *q, const int32_t *bias, uint32_t head_dim, struct f8 *ret, const uint32_t n)
{
    (void)bias; // the keys lose their offset when they are loaded
    int32x4_t sum[BLOCK_K][2];
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        sum[x][0] = sum[x][1] = vdupq_n_s32(0);
    }
#pragma GCC unroll 2
    for (uint32_t half = 0; half < 2; half++, k += 4 * TILE * 4, q += 16) {
        int8x16_t query[BLOCK_K];
#pragma GCC unroll 4
        for (uint32_t x = 0; x < n; x++) {
            query[x] = vld1q_s8(q + (size_t)x * head_dim);
        }
#define QUAD(t)                                                                                                                            \
    do {                                                                                                                                   \
        const int8x16_t a = load_keys(k + (t) * TILE * 4), b = load_keys(k + (t) * TILE * 4 + 16);                                         \
        _Pragma("GCC unroll 4") for (uint32_t x = 0; x < n; x++)                                                                           \
        {                                                                                                                                  \
            sum[x][0] = vdotq_laneq_s32(sum[x][0], a, query[x], t);                                                                        \
            sum[x][1] = vdotq_laneq_s32(sum[x][1], b, query[x], t);                                                                        \
        }                                                                                                                                  \
    } while (0)
        QUAD(0); // the lane is part of the instruction
        QUAD(1);
        QUAD(2);
        QUAD(3);
#undef QUAD
    }
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        ret[x] = (struct f8){vcvtq_f32_s32(sum[x][0]), vcvtq_f32_s32(sum[x][1])};
    }
}

#define ROW neon_dotprod
#define KEY_OFFSET 0
#include "runtime/cpu/f8/attention_q8_tmpl.h"
