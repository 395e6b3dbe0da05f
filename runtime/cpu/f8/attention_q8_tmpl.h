/* Attention over q8_0 pages, 8 lanes wide; included once per row, with the attention_internal.h and quant_internal.h of its instruction
 * set and
 *   ROW          suffix of the function's name: avx2, avxvnni, neon_dotprod
 *   KEY_OFFSET   what dot_keys has too much, times the sum of the query's group; 0: nothing
 *   dot_keys     the integer dot products, see score_q8
 * The bits are those of plain/attention.c. The plan: attention_score_tmpl.h. Thread: any; pure. */
#include "runtime/cpu/fetch_internal.h"

#define NAME(name) RN_ROW_NAME(name, ROW)

/* Parts of the scratch after the scores; 5 of 32 head_dim floats, then VALUE_SCALES. */
struct scratch {
    int8_t *q;     /* [16][head_dim] quantised queries */
    float *d;      /* [16][n_groups] their scales */
    int32_t *bias; /* [16][n_groups] undoes KEY_OFFSET */
};

static struct scratch scratch_parts(const struct rn_attn_args *args)
{
    struct scratch s;
    s.q = (int8_t *)(args->scratch + (size_t)RN_ATTN_MAX_Q * RN_CHUNK_TOKENS);
    s.d = (float *)(void *)(s.q + (size_t)RN_ATTN_MAX_Q * args->head_dim);
    s.bias = (int32_t *)(void *)(s.d + (size_t)RN_ATTN_MAX_Q * (args->head_dim / RN_GROUP));
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
            s->bias[at] = -KEY_OFFSET * (sum.half[0] + sum.half[1]);
        }
    }
}

/* Adds group g of 8 keys to the scores of n queries. k: the group's first quad of the first key, dk: the keys' scales; q, dq and bias
 * are those of the first query's group. */
INLINE void add_group(const uint8_t *k, struct f8 dk, const int8_t *q, const float *dq, const int32_t *bias, uint32_t head_dim,
                      struct f8 *acc, const uint32_t n)
{
    struct f8 sum[BLOCK_K]; // of query times key
    dot_keys(k, q, bias, head_dim, sum, n);
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        acc[x] = f8_fma(acc[x], sum[x], f8_mul_n(dk, dq[x * (head_dim / RN_GROUP)]));
    }
}

INLINE void score_q8(const struct rn_attn_args *args, const struct rn_attn_block *blk, const struct scratch *s, struct f8 *max,
                     const uint32_t n)
{
    const uint32_t head_dim = args->head_dim, n_groups = head_dim / RN_GROUP;
    const int8_t *q = s->q + (size_t)blk->i0 * head_dim;
    const float *dq = s->d + (size_t)blk->i0 * n_groups;
    const int32_t *bias = s->bias + (size_t)blk->i0 * n_groups;
    const size_t tile_bytes = (size_t)TILE * (head_dim + n_groups * sizeof(uint16_t));
    for (uint32_t j = blk->lo / TILE * TILE; j < blk->hi; j += TILE) {
        if (!rn_attn_tile_seen(args, blk, j)) {
            continue; // keeps I2
        }
        const size_t at = j % RN_PAGE_TOKENS / TILE * tile_bytes;
        const uint8_t *tile = args->k[j / RN_PAGE_TOKENS] + at, *scales = tile + (size_t)TILE * head_dim;
        if (blk->fetches) {
            rn_fetch(args->v[j / RN_PAGE_TOKENS] + at, tile_bytes); // at once: what integers leave to spread it over is little
        }
        for (uint32_t h = 0; h < TILE; h += 8) {
            struct f8 acc[BLOCK_K];
#pragma GCC unroll 4
            for (uint32_t x = 0; x < n; x++) {
                acc[x] = f8_all(0.0f);
            }
            for (uint32_t g = 0; g < n_groups; g++) {
                const struct f8 dk = f8_load_f16(scales + ((size_t)g * TILE + h) * sizeof(uint16_t));
                add_group(tile + (size_t)g * RN_GROUP * TILE + 4 * h, dk, q + g * RN_GROUP, dq + g, bias + g, head_dim, acc, n);
            }
#pragma GCC unroll 4
            for (uint32_t x = 0; x < n; x++) {
                rn_attn_keep(args, blk->i0 + x, j + h, acc[x], max);
            }
        }
    }
}

void NAME(rn_attn_q8_0)(const struct rn_attn_args *args)
{
    const struct scratch s = scratch_parts(args);
    struct f8 max[RN_ATTN_MAX_Q];
    rn_attn_start(args, max);
    quantise_queries(args, &s);
    for (struct rn_attn_block b = rn_attn_block(args, 0, BLOCK_K); b.n > 0; b = rn_attn_block(args, b.i0 + b.n, BLOCK_K)) {
        FOR_4(b.n, score_q8, args, &b, &s, max);
    }
    FINISH(args, max, /*q8=*/true);
}
