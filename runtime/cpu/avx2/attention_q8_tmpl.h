/* Attention over q8_0 pages in 256-bit registers; included once per row, which sets RN_DOT_VNNI (dot_tmpl.h) and ATTN_Q8, the
 * name of the function. The plan and its invariants: attention_internal.h. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx2/attention_internal.h"
#include "runtime/cpu/avx2/dot_tmpl.h"
#include "runtime/cpu/avx2/quant_internal.h"
#include "runtime/cpu/fetch_internal.h"

/* Parts of the scratch after the scores; 7 of 32 head_dim floats. */
struct scratch {
    int8_t *q;     /* [16][head_dim] quantised queries */
    float *d;      /* [16][n_groups] their scales */
    int32_t *bias; /* [16][n_groups] undoes the offset of the keys */
    float *scales; /* [64 tokens * n_groups] of a page's values */
};

static struct scratch scratch_parts(const struct rn_attn_args *args)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    struct scratch s;
    s.q = (int8_t *)(args->scratch + (size_t)RN_ATTN_MAX_Q * RN_CHUNK_TOKENS);
    s.d = (float *)(void *)(s.q + (size_t)RN_ATTN_MAX_Q * args->head_dim);
    s.bias = (int32_t *)(void *)(s.d + (size_t)RN_ATTN_MAX_Q * n_groups);
    s.scales = (float *)(void *)(s.bias + (size_t)RN_ATTN_MAX_Q * n_groups);
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
            s->bias[at] = -BYTE_OFFSET * (sum.half[0] + sum.half[1]);
        }
    }
}

/* Adds group g of 8 keys to the scores of n queries. k: the group's first quad of the first key, dk: the keys' scales; q, dq and bias
 * are those of the first query's group. */
INLINE void dot_group_q8(const uint8_t *k, __m256 dk, const int8_t *q, const float *dq, const int32_t *bias, uint32_t head_dim, __m256 *acc,
                         const uint32_t n)
{
    const uint32_t n_groups = head_dim / RN_GROUP;
    __m256i sum[BLOCK_K];
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        sum[x] = _mm256_set1_epi32(bias[x * n_groups]);
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
        acc[x] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[x]), _mm256_mul_ps(_mm256_set1_ps(dq[x * n_groups]), dk), acc[x]);
    }
}

INLINE void score_q8(const struct rn_attn_args *args, const struct rn_attn_block *blk, const struct scratch *s, __m256 *max,
                     const uint32_t n)
{
    const uint32_t head_dim = args->head_dim, n_groups = head_dim / RN_GROUP;
    const int8_t *q = s->q + (size_t)blk->i0 * head_dim;
    const float *dq = s->d + (size_t)blk->i0 * n_groups;
    const int32_t *bias = s->bias + (size_t)blk->i0 * n_groups;
    const size_t tile_bytes = (size_t)TILE * (head_dim + n_groups * sizeof(uint16_t));
    for (uint32_t j = blk->lo / TILE * TILE; j < blk->hi; j += TILE) {
        if (!rn_attn_tile_seen_avx2(args, blk, j)) {
            continue; // keeps I2
        }
        const uint8_t *tile = args->k[j / RN_PAGE_TOKENS] + j % RN_PAGE_TOKENS / TILE * tile_bytes;
        const uint8_t *scales = tile + (size_t)TILE * head_dim;
        if (blk->fetches) {
            rn_fetch_quarter(args->v[j / RN_PAGE_TOKENS], 4 * tile_bytes, j % RN_PAGE_TOKENS / TILE);
        }
        for (uint32_t h = 0; h < TILE; h += 8) {
            __m256 acc[BLOCK_K];
#pragma GCC unroll 4
            for (uint32_t x = 0; x < n; x++) {
                acc[x] = _mm256_setzero_ps();
            }
            for (uint32_t g = 0; g < n_groups; g++) {
                const __m256 dk = rn_v_load_f16(scales + ((size_t)g * TILE + h) * sizeof(uint16_t));
                dot_group_q8(tile + (size_t)g * RN_GROUP * TILE + 4 * h, dk, q + g * RN_GROUP, dq + g, bias + g, head_dim, acc, n);
            }
#pragma GCC unroll 4
            for (uint32_t x = 0; x < n; x++) {
                rn_attn_keep(args, blk->i0 + x, j + h, acc[x], max);
            }
        }
    }
}

void ATTN_Q8(const struct rn_attn_args *args)
{
    const struct scratch s = scratch_parts(args);
    __m256 max[RN_ATTN_MAX_Q];
    for (uint32_t i = 0; i < args->n_q; i++) {
        max[i] = _mm256_set1_ps(-INFINITY);
    }
    quantise_queries(args, &s);
    for (struct rn_attn_block b = rn_attn_block_avx2(args, 0, BLOCK_K); b.n > 0; b = rn_attn_block_avx2(args, b.i0 + b.n, BLOCK_K)) {
        FOR_N(b.n, score_q8, args, &b, &s, max);
    }
    rn_attn_finish_avx2(args, max, s.scales);
}
