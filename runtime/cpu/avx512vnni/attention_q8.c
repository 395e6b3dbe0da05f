/* Attention over q8_0 pages with AVX-512 VNNI. The plan and its invariants: attention_internal.h. */
#include "runtime/cpu/rows_internal.h"

#include <string.h>

#include "runtime/cpu/avx512vnni/attention_internal.h"
#include "runtime/cpu/avx512vnni/quant_internal.h"
#include "runtime/cpu/fetch_internal.h"
#include "runtime/tensor/quant.h"

#define BLOCK_K 6 /* queries per pass over K: an integer sum and a score each, of two tiles: 24 of 32 registers */

INLINE __m512 load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

INLINE __m512i broadcast4(const int8_t *q)
{
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
}

/* ---- Scores ------------------------------------------------------------------------------------------------------------------- */

/* Parts of the scratch after the scores; 17.5 of 32 head_dim floats. */
struct q8_scratch {
    int8_t *q;        /* [16][head_dim] quantised queries */
    float *d;         /* [16][n_groups] their scales */
    int32_t *bias;    /* [16][n_groups] -128 * sum of q, undoes the offset of the keys */
    int32_t *token;   /* [n_groups][16] token of a tile that scale 16 s + lane of V belongs to */
    float *pd;        /* [BLOCK_V][64 tokens * n_groups] weight * scale of one page */
};

static struct q8_scratch q8_scratch(const struct rn_attn_args *args)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    struct q8_scratch s;
    s.q = (int8_t *)(args->scratch + (size_t)RN_ATTN_MAX_Q * RN_CHUNK_TOKENS);
    s.d = (float *)(void *)(s.q + (size_t)RN_ATTN_MAX_Q * args->head_dim);
    s.bias = (int32_t *)(void *)(s.d + (size_t)RN_ATTN_MAX_Q * n_groups);
    s.token = s.bias + (size_t)RN_ATTN_MAX_Q * n_groups;
    s.pd = (float *)(void *)(s.token + (size_t)TILE * n_groups);
    return s;
}

static void prepare_q8(const struct rn_attn_args *args, const struct q8_scratch *s)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    for (uint32_t i = 0; i < args->n_q; i++) {
        if (args->lo[i] >= args->hi[i]) {
            continue;
        }
        for (uint32_t g = 0; g < n_groups; g++) {
            struct rn_act_sum sum;
            uint32_t at = i * n_groups + g;
            s->d[at] = rn_v_quant_act(args->q[i] + (size_t)g * RN_GROUP, s->q + (size_t)at * RN_GROUP, &sum);
            s->bias[at] = -128 * (sum.half[0] + sum.half[1]);
        }
    }
    for (uint32_t t = 0; t < TILE; t++) {
        for (uint32_t g = 0; g < n_groups; g++) {
            s->token[t * n_groups + g] = (int32_t)t;
        }
    }
}

/* Scores of nt tiles at j, all seen by the block, for its n queries. A broadcast part of a query serves both tiles. */
INLINE void score_tiles_q8(const struct rn_attn_args *args, const struct rn_attn_block *blk, const struct q8_scratch *s, uint32_t j,
                           __m512 *max, const uint32_t nt, const uint32_t n)
{
    uint32_t head_dim = args->head_dim, n_groups = head_dim / RN_GROUP;
    const int8_t *q = s->q + (size_t)blk->i0 * head_dim;
    const float *dq = s->d + (size_t)blk->i0 * n_groups;
    const int32_t *bias = s->bias + (size_t)blk->i0 * n_groups;
    size_t tile_bytes = (size_t)TILE * (head_dim + n_groups * sizeof(uint16_t)), scales = (size_t)TILE * head_dim;
    const struct rn_attn_tiles tiles = rn_attn_tiles_at(args, blk, j, tile_bytes, nt);
    __m512 acc[BLOCK_K][2];
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        acc[x][0] = acc[x][1] = _mm512_setzero_ps();
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        __m512i sum[BLOCK_K][2];
#pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            sum[x][0] = sum[x][1] = _mm512_set1_epi32(bias[x * n_groups + g]);
        }
#pragma GCC unroll 8
        for (uint32_t t = 0; t < 8; t++) {
            size_t at = ((size_t)g * 8 + t) * TILE * 4;
            __m512i k0 = _mm512_loadu_si512(tiles.k[0] + at), k1 = _mm512_loadu_si512(tiles.k[nt - 1] + at);
            RN_FETCH_LINE(tiles.ahead[0] + at);
            RN_FETCH_LINE(tiles.ahead[nt - 1] + at);
#pragma GCC unroll 8
            for (uint32_t x = 0; x < n; x++) {
                __m512i four = broadcast4(q + (size_t)x * head_dim + g * RN_GROUP + 4 * t);
                sum[x][0] = _mm512_dpbusd_epi32(sum[x][0], k0, four);
                if (nt > 1) {
                    sum[x][1] = _mm512_dpbusd_epi32(sum[x][1], k1, four);
                }
            }
        }
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            size_t at = scales + (size_t)g * TILE * sizeof(uint16_t);
            __m512 dk = rn_v_load_f16(tiles.k[h] + at);
            RN_FETCH_LINE(tiles.ahead[h] + at);
#pragma GCC unroll 8
            for (uint32_t x = 0; x < n; x++) {
                __m512 d = _mm512_mul_ps(_mm512_set1_ps(dq[x * n_groups + g]), dk);
                acc[x][h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[x][h]), d, acc[x][h]);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 2
        for (uint32_t h = 0; h < nt; h++) {
            rn_attn_keep(args, blk, blk->i0 + x, j + h * TILE, acc[x][h], max);
        }
    }
}

INLINE void score_q8(const struct rn_attn_args *args, const struct rn_attn_block *blk, const struct q8_scratch *s, __m512 *max,
                     const uint32_t n)
{
    for (uint32_t j = blk->lo / TILE * TILE, nt; j < blk->hi; j += nt * TILE) {
        nt = rn_attn_tiles_seen(args, blk, j);
        if (nt == 2) {
            score_tiles_q8(args, blk, s, j, max, 2, n);
        } else if (nt == 1) {
            score_tiles_q8(args, blk, s, j, max, 1, n);
        } else {
            nt = 1; // keeps I2
        }
    }
}

/* ---- Values ------------------------------------------------------------------------------------------------------------------- */

/* o[x][0 .. 16 nz - 1] += weight * scale * value over the n_tok tokens at v, ascending; nz is even. Weight times scale:
 * pd[x * pd_stride + token * n_groups + group]. */
INLINE void add_values_q8(float *o, const float *pd, const int8_t *v, const uint8_t *ahead, uint32_t head_dim, uint32_t n_tok,
                          const uint32_t nz, const uint32_t n)
{
    uint32_t n_groups = head_dim / RN_GROUP;
    size_t pd_stride = (size_t)RN_PAGE_TOKENS * n_groups;
    __m512 acc[BLOCK_V][SLICE];
#pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            acc[x][z] = _mm512_loadu_ps(o + (size_t)x * head_dim + 16 * z);
        }
    }
    for (uint32_t j = 0; j < n_tok; j++, v += head_dim, ahead += head_dim, pd += n_groups) {
        __m512 val[SLICE];
        RN_FETCH_LINE(ahead);
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            val[z] = load_i8(v + 16 * z);
        }
#pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 4
            for (uint32_t z = 0; z < nz; z++) {
                acc[x][z] = _mm512_fmadd_ps(_mm512_set1_ps(pd[x * pd_stride + z / 2]), val[z], acc[x][z]);
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

/* weight * scale for the tiles of tokens [j0, j1) of one page. Tokens beyond the range give numbers that nobody reads. */
INLINE void page_weights(const struct rn_attn_args *args, const uint8_t *next, const struct q8_scratch *s, uint32_t i, uint32_t j0,
                         uint32_t j1, const uint32_t n)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    size_t at_scales = (size_t)RN_PAGE_TOKENS * args->head_dim;
    const uint8_t *scales = args->v[j0 / RN_PAGE_TOKENS] + at_scales, *ahead = next ? next + at_scales : scales;
    for (uint32_t j = j0 / TILE * TILE; j < j1; j += TILE) {
        size_t at = (size_t)(j % RN_PAGE_TOKENS) * n_groups;
        for (uint32_t t = 0; t < n_groups; t++, at += 16) {
            __m512 d = rn_v_load_f16(scales + at * sizeof(uint16_t));
            RN_FETCH_LINE(ahead + at * sizeof(uint16_t));
            __m512i token = _mm512_loadu_si512(s->token + t * 16);
#pragma GCC unroll 8
            for (uint32_t x = 0; x < n; x++) {
                __m512 p = _mm512_loadu_ps(args->scratch + (i + x) * RN_CHUNK_TOKENS + j);
                float *pd = s->pd + (size_t)x * RN_PAGE_TOKENS * n_groups + at;
                _mm512_storeu_ps(pd, _mm512_mul_ps(_mm512_permutexvar_ps(token, p), d));
            }
        }
    }
}

INLINE void page_q8(const struct rn_attn_args *args, const uint8_t *next, uint32_t i, uint32_t j0, uint32_t j1, const uint32_t n)
{
    struct q8_scratch s = q8_scratch(args);
    uint32_t head_dim = args->head_dim, d = 0;
    page_weights(args, next, &s, i, j0, j1, n);
    float *o = args->o + (size_t)i * head_dim;
    const float *pd = s.pd + (size_t)(j0 % RN_PAGE_TOKENS) * (head_dim / RN_GROUP);
    size_t at = (size_t)(j0 % RN_PAGE_TOKENS) * head_dim;
    const uint8_t *bytes = args->v[j0 / RN_PAGE_TOKENS] + at, *ahead = next ? next + at : bytes;
    const int8_t *v = (const int8_t *)bytes;
    if (head_dim == 64) { // strides as constants
        add_values_q8(o, pd, v, ahead, 64, j1 - j0, 4, n);
        return;
    }
    for (; d + 64 <= head_dim; d += 64) {
        add_values_q8(o + d, pd + d / RN_GROUP, v + d, ahead + d, head_dim, j1 - j0, 4, n);
    }
    if (d < head_dim) {
        add_values_q8(o + d, pd + d / RN_GROUP, v + d, ahead + d, head_dim, j1 - j0, 2, n);
    }
}

static void values_q8(const struct rn_attn_args *args, const uint8_t *next, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n)
{
    FOR_6(n, page_q8, args, next, i, j0, j1);
}

void rn_attn_q8_0_avx512vnni(const struct rn_attn_args *args)
{
    struct q8_scratch s = q8_scratch(args);
    __m512 max[RN_ATTN_MAX_Q];
    for (uint32_t i = 0; i < args->n_q; i++) {
        max[i] = _mm512_set1_ps(-INFINITY);
    }
    prepare_q8(args, &s);
    for (struct rn_attn_block b = rn_attn_block(args, 0, BLOCK_K); b.n > 0; b = rn_attn_block(args, b.i0 + b.n, BLOCK_K)) {
        FOR_6(b.n, score_q8, args, &b, &s, max);
    }
    rn_attn_finish_avx512(args, max, values_q8);
}
