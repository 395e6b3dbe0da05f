/* What the NEON attention rows share: blocks of queries, scores, and the passes after the scores (attention.c).
 *
 * Scores: K lies in tiles of 16 tokens, read 8 keys at a time, and the sum of each key is formed in its own SIMD lane; what is loaded of K
 * serves several queries. Values: outputs of a few queries lie in registers over the tokens, and a load of V serves them all. Queries are
 * taken in blocks for that; a block holds only queries that see something.
 *
 * I1. A score of an unseen token is replaced by -inf before it is used; a value of an unseen token is never loaded into a sum.
 * I2. Only tiles with a token that some query of the block sees are read, so pages that nobody sees may be NULL.
 * Thread: any; pure. */
#pragma once

#include <math.h>
#include <stdbool.h>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/neon_dotprod/vmath_internal.h"
#include "runtime/tensor/backend.h"
#include "runtime/tensor/quant.h"

#define TILE 16   /* tokens per tile of K */
#define BLOCK_K 4 /* queries per pass over K */

/* Calls f(__VA_ARGS__, n) with the number of queries, 1..4, as a constant. */
#define FOR_N(n, f, ...)                                                                                                                   \
    switch (n) {                                                                                                                           \
    case 1:                                                                                                                                \
        f(__VA_ARGS__, 1);                                                                                                                 \
        break;                                                                                                                             \
    case 2:                                                                                                                                \
        f(__VA_ARGS__, 2);                                                                                                                 \
        break;                                                                                                                             \
    case 3:                                                                                                                                \
        f(__VA_ARGS__, 3);                                                                                                                 \
        break;                                                                                                                             \
    default:                                                                                                                               \
        f(__VA_ARGS__, 4);                                                                                                                 \
        break;                                                                                                                             \
    }

/* Adjacent queries that all see something. */
struct rn_attn_block {
    uint32_t i0, n;          /* queries i0 .. i0 + n - 1; n = 0: no block left */
    uint32_t lo, hi;         /* every seen token is in lo .. hi - 1 */
    uint32_t all_lo, all_hi; /* what every query sees; may be empty */
    bool fetches;            /* does the fetching that the call asks for */
};

/* The first block at or after query i, of at most max_n queries; a long run of queries is cut into blocks of equal size. */
struct rn_attn_block rn_attn_block_neon(const struct rn_attn_args *args, uint32_t i, uint32_t max_n);

/* True when a query of the block sees a token of the tile at j. */
bool rn_attn_tile_seen_neon(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t j);

/* Everything after the scores: turns them into weights, sets m and l, and sums the values into o. max: greatest score per SIMD lane of
 * each query that sees something. The scores [16][256] are the start of the scratch. scales: room for the scales of one page of values,
 * [64 * groups]; NULL: the values are f16. */
void rn_attn_finish_neon(const struct rn_attn_args *args, const float32x4_t *max, float *scales);

INLINE void rn_attn_start(const struct rn_attn_args *args, float32x4_t *max)
{
    for (uint32_t i = 0; i < args->n_q; i++) {
        max[i] = vdupq_n_f32(-INFINITY);
    }
}

/* Keeps the scores of 4 tokens at j, and the maximum per SIMD lane; tokens that the query does not see count as -inf (I1). */
INLINE void rn_attn_keep_4(const struct rn_attn_args *args, uint32_t i, uint32_t j, float32x4_t dot, float32x4_t *max)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    const uint32x4_t token = vaddq_u32(vld1q_u32(lane), vdupq_n_u32(j));
    const uint32x4_t seen = vandq_u32(vcgeq_u32(token, vdupq_n_u32(args->lo[i])), vcltq_u32(token, vdupq_n_u32(args->hi[i])));
    const float32x4_t s = vbslq_f32(seen, vmulq_n_f32(dot, args->scale), vdupq_n_f32(-INFINITY));
    vst1q_f32(args->scratch + i * RN_CHUNK_TOKENS + j, s);
    *max = vmaxq_f32(*max, s);
}

INLINE void rn_attn_keep(const struct rn_attn_args *args, uint32_t i, uint32_t j, struct f8 dot, float32x4_t *max)
{
    rn_attn_keep_4(args, i, j, dot.lo, max + i);
    rn_attn_keep_4(args, i, j + 4, dot.hi, max + i);
}
