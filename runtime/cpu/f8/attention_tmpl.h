/* Attention over KV pages, 8 lanes wide: all of f16, what comes after the scores of q8_0, combining. Included once per instruction set,
 * with its attention_internal.h and
 *   ROW      suffix of the function names: avx2, neon_dotprod
 * The bits are those of plain/attention.c. The plan: attention_score_tmpl.h. Thread: any; pure. */
#include "runtime/cpu/fetch_internal.h"
#include "runtime/tensor/quant.h"

#define NAME(name) RN_ROW_NAME(name, ROW)

#define BLOCK_V 3 /* queries per pass over V: 12 sums, 3 weights, 1 register of values of 256 bits; twice the sums and values of 128 bits */
#define SLICE 4   /* times 8 of V's dimensions held at once: a group of q8_0 */

/* ---- Weights ------------------------------------------------------------------------------------------------------------------ */

/* Turns the scores of query i into weights, in place; sets m and l. Unseen tokens of the first and last tile have the weight exp(-inf) = 0,
 * which leaves a lane's sum as it is. */
static void softmax(const struct rn_attn_args *args, uint32_t i, struct f8 max)
{
    float *p = args->scratch + i * RN_CHUNK_TOKENS;
    const float m = f8_top(max) + 0.0f; // -0 becomes +0, as in plain C
    const struct f8 minus_m = f8_all(-m);
    struct f8 lanes0 = f8_all(0.0f), lanes8 = lanes0;
    for (uint32_t j = args->lo[i] / TILE * TILE; j < args->hi[i]; j += TILE) {
        const struct f8 a = f8_exp(f8_add(f8_load(p + j), minus_m)), b = f8_exp(f8_add(f8_load(p + j + 8), minus_m));
        lanes0 = f8_add(lanes0, a);
        lanes8 = f8_add(lanes8, b);
        f8_store(p + j, a);
        f8_store(p + j + 8, b);
    }
    args->m[i] = m;
    args->l[i] = f8_lane_sum(lanes0, lanes8);
}

/* ---- Values ------------------------------------------------------------------------------------------------------------------- */

/* One page of values: v at the first token and dimension; q8: scale at the first token and group. */
struct values {
    const uint8_t *v, *ahead;  /* ahead: a line to fetch, moves as v does */
    const float *scale;
    size_t v_step, scale_step; /* from token to token */
};

/* o[x][0 .. 8 nz - 1] += weight * value over n_tok tokens, ascending. p[x * 256]: weights of query x. */
INLINE void add_values(const bool q8, float *o, const float *p, struct values s, uint32_t head_dim, uint32_t n_tok, const uint32_t nz,
                       const uint32_t n)
{
    struct f8 acc[BLOCK_V][SLICE];
#pragma GCC unroll 3
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            acc[x][z] = f8_load(o + (size_t)x * head_dim + 8 * z);
        }
    }
    for (uint32_t j = 0; j < n_tok; j++, p++, s.v += s.v_step, s.ahead += s.v_step, s.scale += s.scale_step) {
        RN_FETCH_LINE(s.ahead);
        float w[BLOCK_V];
#pragma GCC unroll 3
        for (uint32_t x = 0; x < n; x++) {
            w[x] = q8 ? p[x * RN_CHUNK_TOKENS] * *s.scale : p[x * RN_CHUNK_TOKENS];
        }
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            const struct f8 v = q8 ? f8_load_s8(s.v + 8 * z) : f8_load_f16(s.v + 16 * z);
#pragma GCC unroll 3
            for (uint32_t x = 0; x < n; x++) {
                acc[x][z] = f8_fma_n(acc[x][z], v, w[x]);
            }
        }
    }
#pragma GCC unroll 3
    for (uint32_t x = 0; x < n; x++) {
#pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            f8_store(o + (size_t)x * head_dim + 8 * z, acc[x][z]);
        }
    }
}

/* Tokens [j0, j1) of one page for n queries from i on, all dimensions. */
INLINE void page(const bool q8, const struct rn_attn_args *args, const uint8_t *next, const float *scales, uint32_t i, uint32_t j0,
                 uint32_t j1, const uint32_t n)
{
    uint32_t head_dim = args->head_dim, d = 0;
    float *o = args->o + (size_t)i * head_dim;
    const float *p = args->scratch + i * RN_CHUNK_TOKENS + j0;
    struct values s = {.scale = scales, .v_step = q8 ? head_dim : 2 * (size_t)head_dim, .scale_step = q8 ? head_dim / RN_GROUP : 0};
    const size_t at = j0 % RN_PAGE_TOKENS * s.v_step, slice_bytes = q8 ? RN_GROUP : 2 * RN_GROUP;
    s.v = args->v[j0 / RN_PAGE_TOKENS] + at;
    s.ahead = next ? next + at : s.v;
    for (; d + RN_GROUP <= head_dim; d += RN_GROUP) {
        add_values(q8, o + d, p, s, head_dim, j1 - j0, 4, n);
        s.v += slice_bytes;
        s.ahead += slice_bytes;
        s.scale += q8;
    }
    if (!q8 && d < head_dim) {
        add_values(q8, o + d, p, s, head_dim, j1 - j0, 2, n);
    }
}

static void values_f16(const struct rn_attn_args *args, const uint8_t *next, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n)
{
    FOR_3(n, page, false, args, next, NULL, i, j0, j1);
}

/* The scales of the values of tokens [j0, j1) of one page as floats; returns where those of j0 begin. Scales beside the range give
 * numbers that nobody reads. */
static const float *value_scales(const struct rn_attn_args *args, const uint8_t *next, uint32_t j0, uint32_t j1)
{
    uint32_t n_groups = args->head_dim / RN_GROUP, from = j0 % RN_PAGE_TOKENS * n_groups, to = from + (j1 - j0) * n_groups;
    const size_t stored_at = (size_t)RN_PAGE_TOKENS * args->head_dim;
    const uint8_t *stored = args->v[j0 / RN_PAGE_TOKENS] + stored_at, *ahead = next ? next + stored_at : stored;
    float *scales = args->scratch + VALUE_SCALES(args->head_dim);
    for (uint32_t at = from / 8 * 8; at < to; at += 8) {
        f8_store(scales + at, f8_load_f16(stored + at * sizeof(uint16_t)));
    }
    rn_fetch(ahead + from * sizeof(uint16_t), (to - from) * sizeof(uint16_t));
    return scales + from;
}

static void values_q8(const struct rn_attn_args *args, const uint8_t *next, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n)
{
    const float *scales = value_scales(args, next, j0, j1);
    FOR_3(n, page, true, args, next, scales, i, j0, j1);
}

void FINISH(const struct rn_attn_args *args, const struct f8 *max, bool q8)
{
    for (uint32_t i = 0; i < args->n_q; i++) {
        if (args->lo[i] < args->hi[i]) {
            softmax(args, i, max[i]);
        }
    }
    rn_attn_sum_values(args, q8 ? values_q8 : values_f16, BLOCK_V);
}

/* ---- f16 ---------------------------------------------------------------------------------------------------------------------- */

/* Virtual lanes i and i + 8 of 8 keys, added. tile: the first of the 8 keys; ahead: as many bytes as a tile has, to fetch. */
INLINE void lane_pair(const float *const *q, const uint8_t *tile, const uint8_t *ahead, uint32_t head_dim, uint32_t i, struct f8 *sum,
                      const uint32_t n)
{
    struct f8 a[BLOCK_K], b[BLOCK_K];
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        a[x] = b[x] = f8_all(0.0f);
    }
    ahead += (size_t)i * (head_dim / 16) * RN_LINE; // its head_dim / 2 lines are shared out among the 8 pairs
    for (uint32_t d = i; d < head_dim; d += 16, ahead += RN_LINE) {
        RN_FETCH_LINE(ahead);
        const struct f8 ka = f8_load_f16(tile + (size_t)d * TILE * 2), kb = f8_load_f16(tile + (size_t)(d + 8) * TILE * 2);
#pragma GCC unroll 4
        for (uint32_t x = 0; x < n; x++) {
            a[x] = f8_fma_n(a[x], ka, q[x][d]);
            b[x] = f8_fma_n(b[x], kb, q[x][d + 8]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t x = 0; x < n; x++) {
        sum[x] = f8_add(a[x], b[x]);
    }
}

/* The scores of 8 keys: the tree 8-4-2-1 over the virtual lanes, its leaves in an order that keeps few sums alive. */
INLINE void dot_f16(const float *const *q, const uint8_t *tile, const uint8_t *ahead, uint32_t head_dim, struct f8 *dot, const uint32_t n)
{
    struct f8 half[2][BLOCK_K], pair[2][BLOCK_K];
    for (uint32_t i = 0; i < 2; i++) { // even lanes, odd lanes
        for (uint32_t k = 0; k < 2; k++) {
            struct f8 s[BLOCK_K], t[BLOCK_K];
            lane_pair(q, tile, ahead, head_dim, i + 2 * k, s, n);
            lane_pair(q, tile, ahead, head_dim, i + 2 * k + 4, t, n);
            for (uint32_t x = 0; x < n; x++) {
                pair[k][x] = f8_add(s[x], t[x]);
            }
        }
        for (uint32_t x = 0; x < n; x++) {
            half[i][x] = f8_add(pair[0][x], pair[1][x]);
        }
    }
    for (uint32_t x = 0; x < n; x++) {
        dot[x] = f8_add(half[0][x], half[1][x]);
    }
}

INLINE void score_f16(const struct rn_attn_args *args, const struct rn_attn_block *blk, struct f8 *max, const uint32_t n)
{
    uint32_t head_dim = args->head_dim;
    const float *const *q = args->q + blk->i0;
    for (uint32_t j = blk->lo / TILE * TILE; j < blk->hi; j += TILE) {
        if (!rn_attn_tile_seen(args, blk, j)) {
            continue; // keeps I2
        }
        const size_t at = (size_t)(j % RN_PAGE_TOKENS) * head_dim * 2;
        const uint8_t *tile = args->k[j / RN_PAGE_TOKENS] + at, *ahead = blk->fetches ? args->v[j / RN_PAGE_TOKENS] + at : tile;
        for (uint32_t h = 0; h < TILE; h += 8) {
            struct f8 dot[BLOCK_K];
            dot_f16(q, tile + 2 * (size_t)h, ahead, head_dim, dot, n);
#pragma GCC unroll 4
            for (uint32_t x = 0; x < n; x++) {
                rn_attn_keep(args, blk->i0 + x, j + h, dot[x], max);
            }
        }
    }
}

void NAME(rn_attn_f16)(const struct rn_attn_args *args)
{
    struct f8 max[RN_ATTN_MAX_Q];
    rn_attn_start(args, max);
    for (struct rn_attn_block b = rn_attn_block(args, 0, BLOCK_K); b.n > 0; b = rn_attn_block(args, b.i0 + b.n, BLOCK_K)) {
        FOR_4(b.n, score_f16, args, &b, max);
    }
    FINISH(args, max, /*q8=*/false);
}

/* ---- Combining ---------------------------------------------------------------------------------------------------------------- */

void NAME(rn_attn_combine)(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim)
{
    if (rn_attn_combine_trivial(m, l, o, m1, l1, o1, head_dim)) {
        return;
    }
    const float top = m1 > *m ? m1 : *m;
    const float a = f8_first(f8_exp(f8_all(*m - top))), b = f8_first(f8_exp(f8_all(m1 - top)));
    for (uint32_t d = 0; d < head_dim; d += 8) {
        f8_store(o + d, f8_fma_n(f8_mul_n(f8_load(o1 + d), b), f8_load(o + d), a));
    }
    *l = fmaf(*l, a, l1 * b);
    *m = top;
}
