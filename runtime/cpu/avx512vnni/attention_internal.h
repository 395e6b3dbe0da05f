/* What the AVX-512 attention kernels share: scores, and the passes after the scores (attention.c). Blocks of queries, I1 and I2:
 * attend_block_internal.h.
 *
 * Scores: K lies in tiles of 16 tokens, so one register holds one dimension (f16) or four dimensions (q8_0) of 16 keys, and the sum of
 * each key is formed in its own SIMD lane. Two tiles are scored together: what is loaded of K serves several queries, and what is
 * broadcast of a query serves both tiles. Values: one query's output lies in registers over the tokens, and a converted V register serves
 * several queries. What is fetched meanwhile: fetch_internal.h. Thread: any; pure. */
#pragma once

#include <immintrin.h>
#include <math.h>

#include "runtime/cpu/attend_block_internal.h"
#include "runtime/cpu/avx512vnni/vmath_internal.h"

#define SLICE 4   /* registers of V's dimensions held at once, 64 dimensions */
#define BLOCK_V 6 /* queries per pass over V: 24 sums, 4 V registers, 1 weight */

/* Everything after the scores: turns them into weights, sets m and l, and sums the values into o. max: greatest score per SIMD lane of
 * each query that sees something. */
void rn_attn_finish_avx512(const struct rn_attn_args *args, const __m512 *max, rn_attn_values_fn values);

/* Tiles of K that are scored together. */
struct rn_attn_tiles {
    const uint8_t *k[2], *ahead[2];
};

/* The nt tiles at j. tile_bytes: of one of them. */
INLINE struct rn_attn_tiles rn_attn_tiles_at(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t j, size_t tile_bytes,
                                             const uint32_t nt)
{
    struct rn_attn_tiles t;
#pragma GCC unroll 2
    for (uint32_t h = 0; h < nt; h++, j += TILE) {
        size_t at = j % RN_PAGE_TOKENS / TILE * tile_bytes;
        t.k[h] = args->k[j / RN_PAGE_TOKENS] + at;
        t.ahead[h] = b->fetches ? args->v[j / RN_PAGE_TOKENS] + at : t.k[h];
    }
    return t;
}

/* The tokens of the tile at j that query i sees. */
INLINE __mmask16 seen(const struct rn_attn_args *args, uint32_t i, uint32_t j)
{
    uint32_t lo = args->lo[i], hi = args->hi[i];
    return (__mmask16)(rn_v_first(hi > j ? hi - j : 0) & ~rn_v_first(lo > j ? lo - j : 0));
}

/* Keeps the scores of one tile and the maximum per SIMD lane; tokens that the query does not see count as -inf (I1). */
INLINE void rn_attn_keep(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t i, uint32_t j, __m512 dot, __m512 *max)
{
    __m512 s = _mm512_mul_ps(dot, _mm512_set1_ps(args->scale));
    if (j < b->all_lo || j + TILE > b->all_hi) {
        s = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen(args, i, j), s);
    }
    _mm512_storeu_ps(args->scratch + i * RN_CHUNK_TOKENS + j, s);
    max[i] = _mm512_max_ps(max[i], s);
}
