/* Attention over q8_0 pages with NEON: the bits of plain/attention.c. The plan and its invariants: attention_internal.h. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/fetch_internal.h"
#include "runtime/cpu/neon_dotprod/attention_internal.h"
#include "runtime/cpu/neon_dotprod/quant_internal.h"

/* Parts of the scratch after the scores; 4.5 of 32 head_dim floats. */
struct scratch {
    int8_t *q;     /* [16][head_dim] quantised queries */
    float *d;      /* [16][n_groups] their scales */
    float *scales; /* [64 tokens * n_groups] of a page's values */
};

static struct scratch scratch_parts(const struct rn_attn_args *args)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    struct scratch s;
    s.q = (int8_t *)(args->scratch + (size_t)RN_ATTN_MAX_Q * RN_CHUNK_TOKENS);
    s.d = (float *)(void *)(s.q + (size_t)RN_ATTN_MAX_Q * args->head_dim);
    s.scales = s.d + (size_t)RN_ATTN_MAX_Q * n_groups;
    return s;
}

static void quantise_queries(const struct rn_attn_args *args, const struct scratch *s)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    for (uint32_t i = 0; i < args->n_q; i++) {
        for (uint32_t g = 0; args->lo[i] < args->hi[i] && g < n_groups; g++) {
            struct rn_act_sum sum;
            uint32_t at = i * n_groups + g;
            s->d[at] = rn_v_quant_act(args->q[i] + (size_t)g * RN_GROUP, s->q + (size_t)at * RN_GROUP, &sum);
        }
    }
}

/* 4 dimensions of 4 keys, without their offset. */
INLINE int8x16_t load_keys(const uint8_t *k)
{
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(k), vdupq_n_u8(0x80)));
}

/* Adds group g of 8 keys to the scores of n queries. k: the group's first quad of the first key, dk: the keys' scales; q and dq are
 * those of the first query's group. */
INLINE void dot_group_q8(const uint8_t *k, struct f8 dk, const int8_t *q, const float *dq, uint32_t head_dim, struct f8 *acc,
                         const uint32_t n)
{
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
    const uint32_t n_groups = head_dim / RN_GROUP;
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        acc[x].lo = vfmaq_f32(acc[x].lo, vcvtq_f32_s32(sum[x][0]), vmulq_n_f32(dk.lo, dq[x * n_groups]));
        acc[x].hi = vfmaq_f32(acc[x].hi, vcvtq_f32_s32(sum[x][1]), vmulq_n_f32(dk.hi, dq[x * n_groups]));
    }
}

INLINE void score_q8(const struct rn_attn_args *args, const struct rn_attn_block *blk, const struct scratch *s, float32x4_t *max,
                     const uint32_t n)
{
    const uint32_t head_dim = args->head_dim, n_groups = head_dim / RN_GROUP;
    const int8_t *q = s->q + (size_t)blk->i0 * head_dim;
    const float *dq = s->d + (size_t)blk->i0 * n_groups;
    const size_t tile_bytes = (size_t)TILE * (head_dim + n_groups * sizeof(uint16_t));
    for (uint32_t j = blk->lo / TILE * TILE; j < blk->hi; j += TILE) {
        if (!rn_attn_tile_seen_neon(args, blk, j)) {
            continue; // keeps I2
        }
        const uint8_t *tile = args->k[j / RN_PAGE_TOKENS] + j % RN_PAGE_TOKENS / TILE * tile_bytes;
        const uint8_t *scales = tile + (size_t)TILE * head_dim;
        if (blk->fetches) {
            rn_fetch_quarter(args->v[j / RN_PAGE_TOKENS], 4 * tile_bytes, j % RN_PAGE_TOKENS / TILE);
        }
        for (uint32_t h = 0; h < TILE; h += 8) {
            struct f8 acc[BLOCK_K];
#pragma GCC unroll 4
            for (uint32_t x = 0; x < n; x++) {
                acc[x] = f8_all(0.0f);
            }
            for (uint32_t g = 0; g < n_groups; g++) {
                const struct f8 dk = f8_load_f16(scales + ((size_t)g * TILE + h) * sizeof(uint16_t));
                dot_group_q8(tile + (size_t)g * RN_GROUP * TILE + 4 * h, dk, q + g * RN_GROUP, dq + g, head_dim, acc, n);
            }
#pragma GCC unroll 4
            for (uint32_t x = 0; x < n; x++) {
                rn_attn_keep(args, blk->i0 + x, j + h, acc[x], max);
            }
        }
    }
}

void rn_attn_q8_0_neon_dotprod(const struct rn_attn_args *args)
{
    const struct scratch s = scratch_parts(args);
    float32x4_t max[RN_ATTN_MAX_Q];
    rn_attn_start(args, max);
    quantise_queries(args, &s);
    for (struct rn_attn_block b = rn_attn_block_neon(args, 0, BLOCK_K); b.n > 0; b = rn_attn_block_neon(args, b.i0 + b.n, BLOCK_K)) {
        FOR_N(b.n, score_q8, args, &b, &s, max);
    }
    rn_attn_finish_neon(args, max, s.scales);
}
