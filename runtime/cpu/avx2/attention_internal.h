/* What the 256-bit attention rows share: blocks of queries, scores, and the passes after the scores (attention.c). Thread: any; pure.
 *
 * Scores: K lies in tiles of 16 tokens, two registers of 8 keys each, and the sum of each key is formed in its own SIMD lane; a K register
 * serves several queries. Values: outputs of a few queries lie in registers over the tokens, and a V register serves them all. Queries are
 * taken in blocks for that; a block holds only queries that see something.
 *
 * I1. A score of an unseen token is replaced by mask before it is used; a value of an unseen token is never loaded into a sum.
 * I2. Only tiles with a token that some query of the block sees are read, so pages that nobody sees may be NULL. */
#pragma once

#include <math.h>

#include "runtime/cpu/avx2/vmath_internal.h"
#include "runtime/cpu/kernels.h"
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
struct rn_attn_block rn_attn_block_avx2(const struct rn_attn_args *args, uint32_t i, uint32_t max_n);

/* True when a query of the block sees a token of the tile at j. */
bool rn_attn_tile_seen_avx2(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t j);

/* Everything after the scores: turns them into weights, sets m and l, and sums the values into o. max: greatest score per SIMD lane of
 * each query that sees something. The scores [16][256] are the start of the scratch. scales: room for the scales of one page of values,
 * [64 * groups]; NULL: the values are f16. */
void rn_attn_finish_avx2(const struct rn_attn_args *args, const __m256 *max, float *scales);

/* Keeps the scores of 8 tokens at j, and the maximum per SIMD lane; tokens that the query does not see count as -inf (I1). */
static inline void rn_attn_keep(const struct rn_attn_args *args, uint32_t i, uint32_t j, __m256 dot, __m256 *max)
{
    uint32_t lo = args->lo[i], hi = args->hi[i];
    __m256i seen = _mm256_andnot_si256(rn_v_first(lo > j ? lo - j : 0), rn_v_first(hi > j ? hi - j : 0));
    __m256 s = _mm256_mul_ps(dot, _mm256_set1_ps(args->scale));
    s = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), s, _mm256_castsi256_ps(seen));
    _mm256_storeu_ps(args->scratch + i * RN_CHUNK_TOKENS + j, s);
    max[i] = _mm256_max_ps(max[i], s);
}
