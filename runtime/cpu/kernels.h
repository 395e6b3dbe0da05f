/* The kernels of the CPU backend and the table of their rows.
 *
 * A kernel is a row: { operation, name, CPU features needed, function }, best first, plain C last. The plain C row is the
 * specification: every other row gives the same bits for the same arguments (tests/kernels walks the table). Kernels are pure
 * functions of their arguments: no allocation, no logging, no globals; pointers are 64-byte aligned unless said otherwise and do
 * not overlap. All run with flush-to-zero set.
 *
 * Quantised weights are repacked losslessly at load (tensor/repack.h) into blocks of 16 rows; activations are int8 in groups of 32.
 * Order of summation per output, for one row of tokens or many (numerics contract):
 *   acc = 0; for g ascending: acc = fma((float)isum_g, d_w * d_x, acc), and for types with a minimum acc = fma(sd_g, m_w, acc)
 * with isum_g = sum of q_w * q_x (q_w with its offset removed: Q4_0 0..15 minus 8) and sd_g = (float)(sum of q_x) * d_x. d_w and m_w
 * are the group's whole scale and minimum (Q4_K: d * sc, -dmin * mn). Only Q6_K has scales within a group, one per 16 columns, and they
 * multiply inside the sum: isum_g = sc_0 * (sum of the first 16) + sc_1 * (sum of the others), below 2^24, so floats may form it.
 * Float weights: rn_lane_dot order of (weight as f32, activation). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/dtype.h"

struct rn_err;

enum rn_cpu_feature { /* bits */
    RN_CPU_F16C = 1,
    RN_CPU_AVX2_FMA = 2,
    RN_CPU_AVX512 = 4,       /* F, BW, VL, DQ */
    RN_CPU_AVX512_VNNI = 8,
    RN_CPU_AVX_VNNI = 16,
    RN_CPU_NEON_DOTPROD = 32,
    RN_CPU_NEON_I8MM = 64,
};

/* Weight types, each once: those whose products run on int8 activations, and those that multiply floats. X(TYPE, name). */
#define RN_CPU_QUANT_TYPES(X)                                                                                                              \
    X(Q4_0, q4_0) X(Q4_1, q4_1) X(Q5_0, q5_0) X(Q5_1, q5_1) X(Q8_0, q8_0) X(IQ4_NL, iq4_nl) X(MXFP4, mxfp4)                                \
    X(Q4_K, q4_k) X(Q5_K, q5_k) X(Q6_K, q6_k)
#define RN_CPU_FLOAT_TYPES(X) X(F16, f16) X(BF16, bf16) X(F32, f32)

#define RN_CPU_OPS_QUANT(TYPE, name) RN_CPU_MM1_##TYPE, RN_CPU_MMF_##TYPE, RN_CPU_MMN_##TYPE,
#define RN_CPU_OPS_FLOAT(TYPE, name) RN_CPU_MM_##TYPE,

enum rn_cpu_op {
    /* struct rn_mm_args; blocks [block0, block1) of 16 weight rows. For each type, in this order:
     *   MM1: 1 row of tokens; MMF: few, 2..16; MMN: any number, in blocks of 16 */
    RN_CPU_QUANT_TYPES(RN_CPU_OPS_QUANT)
    /* struct rn_mmf_args; rows [row0, row1) */
    RN_CPU_FLOAT_TYPES(RN_CPU_OPS_FLOAT)
    RN_CPU_QUANT_ACT, RN_CPU_NORM, RN_CPU_ADD, RN_CPU_SILU_MUL, RN_CPU_GELU_MUL, RN_CPU_ROPE,
    RN_CPU_KV_WRITE_F16, RN_CPU_KV_WRITE_Q8_0,
    RN_CPU_ATTN_F16, RN_CPU_ATTN_Q8_0, RN_CPU_ATTN_COMBINE,
    RN_CPU_OP_COUNT
};

typedef void (*rn_cpu_fn)(void); /* cast to the operation's type below */

struct rn_cpu_row {
    enum rn_cpu_op op;
    const char *name;      /* "avx512vnni", "avxvnni", "avx2", "neon_i8mm", "neon_dotprod", "c" */
    uint32_t features;     /* all must be there */
    rn_cpu_fn fn;
};

/* The whole table: for each op its rows, best first. Entry i of op: see rn_cpu_rows. */
const struct rn_cpu_row *rn_cpu_rows(enum rn_cpu_op op, size_t *ret_n);
const char *rn_cpu_op_name(enum rn_cpu_op op); /* "mm1_q4_0" */

/* How products with weights of a type run. */
struct rn_cpu_product {
    enum rn_dtype type;
    enum rn_cpu_op op;     /* float: MM; else MM1, and MMF and MMN follow */
    bool is_float;
};
/* NULL: products with this type are not known. */
const struct rn_cpu_product *rn_cpu_product_find(enum rn_dtype type);
const struct rn_cpu_product *rn_cpu_products(size_t *ret_n);

/* Features of this machine (cpuid; on ARM what the system says). */
uint32_t rn_cpu_features(void);

struct rn_cpu_kernels {
    const struct rn_cpu_row *row[RN_CPU_OP_COUNT];
};

/* Picks the first row of each op that the machine can run and whose name is not in `mask` (comma-separated, NULL = none). "c" cannot
 * be hidden. -EINVAL: the mask names no known row. */
int rn_cpu_kernels_choose(struct rn_cpu_kernels *ret, const char *mask, struct rn_err *err);

/* ---- Activations -------------------------------------------------------------------------------------------------------------- */

/* Quantised activations of n_tok tokens, in blocks of `mb` tokens: token m is token m % mb of block m / mb. mb = 1 for one token,
 * n_tok for 2..16, 16 above (the last block is padded with zeros).
 *   q    int8  [n_blocks][n_groups][mb][32]
 *   d    float [n_blocks][n_groups][mb]   scale of the group
 *   sd   float [n_blocks][n_groups][mb]   (float)sum(q) * d
 *   sum  [n_blocks][n_groups][mb]         sums of q over columns 0..15 and 16..31 */
struct rn_act_sum {
    int16_t half[2]; /* |sum| <= 16 * 127; both at once are one operand of a pairwise 16-bit multiply-add */
};

struct rn_acts {
    uint32_t n_tok, mb, n_groups;
    int8_t *q;
    float *d, *sd;
    struct rn_act_sum *sum;
};

/* Quantises one token: x [32 * n_groups] into place m of a. (rn_quant_act per group.) x any alignment. */
typedef void (*rn_quant_act_fn)(const float *x, const struct rn_acts *a, uint32_t m);

/* ---- Matrix products ---------------------------------------------------------------------------------------------------------- */

struct rn_mm_args {
    const uint8_t *w;      /* repacked weights, see repack.h */
    uint32_t n_groups;     /* columns / 32 */
    const struct rn_acts *a;
    float *y;              /* y[m * ldy + row], rows padded to a multiple of 16; 4-byte aligned */
    size_t ldy;
};
typedef void (*rn_mm_fn)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1);

struct rn_mmf_args {
    const void *w;         /* row-major, f16, bf16 or f32, each row padded with zeros to ldw elements (a multiple of 16) */
    uint32_t n_cols;       /* real columns; x beyond n_cols is never read */
    size_t ldw;
    const float *x;        /* x[m * ldx + col] */
    size_t ldx;
    uint32_t n_tok;
    float *y;              /* y[m * ldy + row] */
    size_t ldy;
};
typedef void (*rn_mmf_fn)(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1);

/* ---- Vectors (any alignment, any n >= 1) -------------------------------------------------------------------------------------------- */

/* out[i] = x[i] * r * w[i], r = 1 / sqrtf(rn_lane_dot(x, x, n) / n + eps); evaluated as (x * r) * w. */
typedef void (*rn_norm_fn)(const float *x, const float *w, float eps, uint32_t n, float *out);
/* x[i] += y[i] */
typedef void (*rn_add_fn)(float *x, const float *y, uint32_t n);
/* out[i] = rn_siluf(gate[i]) * up[i], or rn_gelu_tanhf; out may alias gate or up. */
typedef void (*rn_gate_fn)(const float *gate, const float *up, float *out, uint32_t n);
/* One head. cs: cos, sin pairs [n_rot/2][2]. Pair (a, b): a' = fma(a, cos, -(b * sin)), b' = fma(a, sin, b * cos). Dimensions from
 * n_rot on are copied. out must not alias x. */
typedef void (*rn_rope_fn)(const float *x, const float *cs, uint32_t head_dim, uint32_t n_rot, bool interleaved, float *out);

/* ---- KV pages ----------------------------------------------------------------------------------------------------------------- */

/* A page holds 64 tokens of one layer group. Within it, for each layer slot l and KV head h (in that order), a K part, then a V part:
 *   K, f16:  4 tiles of 16 tokens; tile: uint16 [head_dim][16 tokens]
 *   K, q8_0: 4 tiles of 16 tokens; tile: for each group of 32 dimensions uint8 [8 quads][16 tokens][4], value q + 128; then for
 *            each group uint16 f16 scale [16 tokens]
 *   V, f16:  uint16 [64 tokens][head_dim]
 *   V, q8_0: int8 [64 tokens][head_dim], then uint16 f16 scale [64 tokens][head_dim / 32]
 * Every part (rn_kv_part_bytes) is a multiple of 64 bytes for head_dim a multiple of 32 (f16: of 16). */

/* Stores one token's key and value of one KV head. k, v [head_dim] f32; kpart, vpart: the parts; slot 0..63: token in the page. */
typedef void (*rn_kv_write_fn)(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot);

#define RN_ATTN_MAX_Q 16 /* queries per call */

/* One KV head, one chunk of 256 tokens (4 pages), up to RN_ATTN_MAX_Q queries. Query i sees the tokens lo[i] <= j < hi[i] of the chunk.
 *   score_j = dot(q, k_j) * scale      f16: rn_lane_dot order. q8_0: q quantised by rn_quant_act per group of 32;
 *                                      acc = fma((float)isum_g, d_q * d_k, acc), groups ascending
 *   m = max score (a zero is +0); p_j = rn_expf(score_j - m); l = sum of p_j in 16 virtual lanes (token j of the chunk goes to
 *   lane j % 16, ascending, by addition; unseen tokens are left out), rn_lane_sum
 *   o[d] = sum over seen j ascending: fma(p_j, v_j[d], o[d]); q8_0: fma(p_j * d_v, (float)q_v, o[d])
 * lo >= hi: m = -inf, l = 0, o = 0. Unseen cells are never used, whatever bits they hold (NaN included). */
struct rn_attn_args {
    const uint8_t *k[4], *v[4];  /* parts of the chunk's pages; NULL where no query sees a token of that page */
    uint32_t head_dim;
    uint32_t n_q;
    const float *q[RN_ATTN_MAX_Q];  /* rotated queries [head_dim] */
    uint16_t lo[RN_ATTN_MAX_Q], hi[RN_ATTN_MAX_Q];
    float scale;
    float *m, *l;                /* [n_q] */
    float *o;                    /* [n_q, head_dim] */
    float *scratch;              /* RN_ATTN_SCRATCH(head_dim) floats of the calling thread */
    /* Hints, which change no bit. cold: the chunk is probably in no cache, so V is worth fetching while the scores are formed.
     * next_k: K parts that the thread will probably read next, worth fetching while values are added; may be NULL. */
    bool cold;
    const uint8_t *next_k[4];
};
#define RN_ATTN_SCRATCH(head_dim) ((size_t)RN_ATTN_MAX_Q * (256 + 2 * (size_t)(head_dim)))
typedef void (*rn_attn_fn)(const struct rn_attn_args *args);

/* Adds chunk (m1, l1, o1) to the running (m, l, o), in place; chunks come in order. l1 == 0: nothing. l == 0 (start): copy. Else
 *   M = max(*m, m1); a = rn_expf(*m - M); b = rn_expf(m1 - M); *l = fma(*l, a, l1 * b); o[d] = fma(o[d], a, o1[d] * b); *m = M. */
typedef void (*rn_attn_combine_fn)(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim);
