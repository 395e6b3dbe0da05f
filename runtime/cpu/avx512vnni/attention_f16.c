/* Attention over f16 pages with AVX-512. The plan and its invariants: attention_internal.h. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx512vnni/attention_internal.h"
#include "runtime/cpu/fetch_internal.h"

#define BLOCK_K 4 /* queries per pass over K: two lanes of two tiles and up to three partial sums of each; a few of them are spilled */

/* ---- Scores ------------------------------------------------------------------------------------------------------------------- */

/* Virtual lanes i and i + 8 of the keys of nt tiles, added. A broadcast element of a query serves both tiles. */
INLINE void lane_pair(const float *const *q, const struct rn_attn_tiles *tiles, uint32_t head_dim, uint32_t i, __m512 (*sum)[2],
                      const uint32_t nt, const uint32_t n)
{
    __m512 a[BLOCK_K][2], b[BLOCK_K][2];
    const size_t lines = head_dim / 16; // of a tile's head_dim / 2, this much for each of the 8 pairs
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        a[x][0] = a[x][1] = b[x][0] = b[x][1] = _mm512_setzero_ps();
    }
    for (uint32_t d = i; d < head_dim; d += 16) {
        __m512 ka[2], kb[2];
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            ka[h] = rn_v_load_f16(tiles->k[h] + (size_t)d * TILE * 2);
            RN_FETCH_LINE(tiles->ahead[h] + (i * lines + d / 16) * RN_LINE);
        }
#pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            __m512 qa = _mm512_set1_ps(q[x][d]);
#pragma GCC unroll 2
            for (uint32_t h = 0; h < nt; h++) {
                a[x][h] = _mm512_fmadd_ps(ka[h], qa, a[x][h]);
            }
        }
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            kb[h] = rn_v_load_f16(tiles->k[h] + (size_t)(d + 8) * TILE * 2);
        }
#pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            __m512 qb = _mm512_set1_ps(q[x][d + 8]);
#pragma GCC unroll 2
            for (uint32_t h = 0; h < nt; h++) {
                b[x][h] = _mm512_fmadd_ps(kb[h], qb, b[x][h]);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            sum[x][h] = _mm512_add_ps(a[x][h], b[x][h]);
        }
    }
}

/* Lanes i, i + 4, i + 2, i + 6 and their partners 8 above: half of the tree 8-4-2-1. */
INLINE void lane_half(const float *const *q, const struct rn_attn_tiles *tiles, uint32_t head_dim, uint32_t i, __m512 (*sum)[2],
                      const uint32_t nt, const uint32_t n)
{
    __m512 s[BLOCK_K][2], t[BLOCK_K][2];
    lane_pair(q, tiles, head_dim, i, s, nt, n);
    lane_pair(q, tiles, head_dim, i + 4, t, nt, n);
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            sum[x][h] = _mm512_add_ps(s[x][h], t[x][h]);
        }
    }
    lane_pair(q, tiles, head_dim, i + 2, s, nt, n);
    lane_pair(q, tiles, head_dim, i + 6, t, nt, n);
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            sum[x][h] = _mm512_add_ps(sum[x][h], _mm512_add_ps(s[x][h], t[x][h]));
        }
    }
}

/* Scores of the nt tiles at j, all seen by the block, for its n queries. */
INLINE void score_tiles_f16(const struct rn_attn_args *args, const struct rn_attn_block *blk, uint32_t j, __m512 *max, const uint32_t nt,
                            const uint32_t n)
{
    uint32_t head_dim = args->head_dim;
    const float *const *q = args->q + blk->i0;
    const struct rn_attn_tiles tiles = rn_attn_tiles_at(args, blk, j, (size_t)TILE * head_dim * 2, nt);
    __m512 even[BLOCK_K][2], odd[BLOCK_K][2];
    lane_half(q, &tiles, head_dim, 0, even, nt, n);
    lane_half(q, &tiles, head_dim, 1, odd, nt, n);
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            rn_attn_keep(args, blk, blk->i0 + x, j + h * TILE, _mm512_add_ps(even[x][h], odd[x][h]), max);
        }
    }
}

INLINE void score_f16(const struct rn_attn_args *args, const struct rn_attn_block *blk, __m512 *max, const uint32_t n)
{
    for (uint32_t j = blk->lo / TILE * TILE, nt; j < blk->hi; j += nt * TILE) {
        nt = rn_attn_tiles_seen(args, blk, j);
        if (nt == 2) {
            score_tiles_f16(args, blk, j, max, 2, n);
        } else if (nt == 1) {
            score_tiles_f16(args, blk, j, max, 1, n);
        } else {
            nt = 1; // keeps I2
        }
    }
}

/* ---- Values ------------------------------------------------------------------------------------------------------------------- */

/* o[x][0 .. 16 nz - 1] += weight * value over the n_tok tokens at v, ascending. p[x * 256]: weights of query x. */
INLINE void add_values_f16(float *o, const float *p, const uint8_t *v, const uint8_t *ahead, uint32_t head_dim, uint32_t n_tok,
                           const uint32_t nz, const uint32_t n)
{
    __m512 acc[BLOCK_V][SLICE];
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            acc[x][z] = _mm512_loadu_ps(o + (size_t)x * head_dim + 16 * z);
        }
    }
    for (uint32_t j = 0; j < n_tok; j++, v += (size_t)head_dim * 2, ahead += (size_t)head_dim * 2) {
        __m512 val[SLICE];
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            val[z] = rn_v_load_f16(v + 32 * z);
            if (z % 2 == 0) {
                RN_FETCH_LINE(ahead + 32 * z);
            }
        }
#pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            __m512 w = _mm512_set1_ps(p[x * RN_CHUNK_TOKENS + j]);
#pragma GCC unroll 4
            for (uint32_t z = 0; z < nz; z++) {
                acc[x][z] = _mm512_fmadd_ps(w, val[z], acc[x][z]);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            _mm512_storeu_ps(o + (size_t)x * head_dim + 16 * z, acc[x][z]);
        }
    }
}

/* Tokens [j0, j1) of one page for n queries from i on, all dimensions. */
INLINE void page_f16(const struct rn_attn_args *args, const uint8_t *next, uint32_t i, uint32_t j0, uint32_t j1, const uint32_t n)
{
    uint32_t head_dim = args->head_dim, d = 0;
    float *o = args->o + (size_t)i * head_dim;
    const float *p = args->scratch + i * RN_CHUNK_TOKENS + j0;
    size_t at = (size_t)(j0 % RN_PAGE_TOKENS) * head_dim * 2;
    const uint8_t *v = args->v[j0 / RN_PAGE_TOKENS] + at, *ahead = next ? next + at : v;
    for (; d + 64 <= head_dim; d += 64) {
        add_values_f16(o + d, p, v + (size_t)d * 2, ahead + (size_t)d * 2, head_dim, j1 - j0, 4, n);
    }
    if (d + 32 <= head_dim) {
        add_values_f16(o + d, p, v + (size_t)d * 2, ahead + (size_t)d * 2, head_dim, j1 - j0, 2, n);
        d += 32;
    }
    if (d < head_dim) {
        add_values_f16(o + d, p, v + (size_t)d * 2, ahead + (size_t)d * 2, head_dim, j1 - j0, 1, n);
    }
}

static void values_f16(const struct rn_attn_args *args, const uint8_t *next, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n)
{
    FOR_6(n, page_f16, args, next, i, j0, j1);
}

void rn_attn_f16_avx512vnni(const struct rn_attn_args *args)
{
    __m512 max[RN_ATTN_MAX_Q];
    for (uint32_t i = 0; i < args->n_q; i++) {
        max[i] = _mm512_set1_ps(-INFINITY);
    }
    for (struct rn_attn_block b = rn_attn_block(args, 0, BLOCK_K); b.n > 0; b = rn_attn_block(args, b.i0 + b.n, BLOCK_K)) {
        FOR_4(b.n, score_f16, args, &b, max);
    }
    rn_attn_finish_avx512(args, max, values_f16);
}
