/* A model is a short program: a list of operations over named values, emitted once at load by runtime/arch_<family>.c and
 * interpreted by a backend. Values are matrices [rows of the step, width] of float32; widths are in the program.
 *
 * Immutable once built. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/tensor.h"

struct rn_err;

enum rn_op_kind {
    RN_OP_EMBED,     /* out = row `id` of parts[0].weight, dequantised, times `scale` */
    RN_OP_NORM,      /* out (=, or += if `accumulate`) in / sqrt(mean(in^2) + eps) * parts[0].weight */
    RN_OP_MATMUL,    /* for each part: part.out (=, or += if `accumulate`) part.weight . in + part.bias */
    RN_OP_GATED,     /* out = act(parts[0].weight . in + bias) * (parts[1].weight . in + bias) */
    RN_OP_ROPE_KV,   /* norms each head of q and k by parts[0], parts[1] (weights of head_dim; n_parts 0 = none), rotates q (once per
                        zone) and k by the step's angles, stores k and v in the row's page */
    RN_OP_ATTENTION, /* out = softmax over visible(t) */
    RN_OP_LOGITS,    /* parts[0].weight . in, for the rows that want logits, into each row's memory */
    RN_OP_COUNT
};

enum rn_value { /* what the operations read and write; a slot is reused from layer to layer */
    RN_VAL_X,    /* residual stream, d_model */
    RN_VAL_H,    /* normed input of a block, d_model */
    RN_VAL_Q,    /* [n_heads, head_dim] before RoPE */
    RN_VAL_K,    /* [n_kv_heads, head_dim] before RoPE */
    RN_VAL_V,    /* [n_kv_heads, head_dim] */
    RN_VAL_A,    /* attention output, [n_heads, head_dim] */
    RN_VAL_F,    /* gated feed-forward, d_ff */
    RN_VAL_Y,    /* a block's output before its post-norm, d_model; width 0 where a family has none */
    RN_VAL_COUNT
};

enum rn_act { RN_ACT_SILU, RN_ACT_GELU_TANH, RN_ACT_COUNT };

struct rn_part {
    const struct rn_tensor *weight;
    const struct rn_tensor *bias; /* f32 vector or NULL */
    enum rn_value out;
};

struct rn_op {
    enum rn_op_kind kind;
    enum rn_value in, out;
    uint32_t layer;          /* for ROPE_KV and ATTENTION */
    uint32_t n_parts;
    struct rn_part parts[3];
    bool accumulate;         /* MATMUL, NORM: add to `out` instead of replacing it */
    enum rn_act act;         /* GATED */
    float scale;             /* EMBED; 1 = none */
    float eps;               /* NORM, ROPE_KV */
};

/* Layers with one visibility rule (design: layer group). Pages hold the keys and values of all its layers. */
struct rn_layer_group {
    uint32_t n_layers;
    uint32_t window;         /* trained sliding window; 0 = global: pinned zone and rolling window */
};

struct rn_rope {
    uint32_t n_rot;          /* rotated dimensions of a head, even, <= head_dim; 0 = no RoPE */
    bool interleaved;        /* pairs (0,1)(2,3)…; else (i, i + n_rot/2) */
    float mscale;            /* factor on cos and sin; 1 = none */
    uint64_t *freq;          /* [n_rot/2] 64-bit fixed-point frequency in turns: round(2^64 * theta_i / 2 pi); owned by the program */
};

struct rn_program {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, d_model, d_ff, n_vocab;
    float attn_scale;                    /* 1/sqrt(head_dim) unless the family says otherwise */
    uint32_t width[RN_VAL_COUNT];        /* floats per row of each value */
    uint32_t n_groups;
    struct rn_layer_group *groups;       /* owned */
    uint32_t *layer_group;               /* [n_layers] group of each layer; owned */
    uint32_t *layer_slot;                /* [n_layers] index of each layer in its group; owned */
    uint32_t n_ropes;
    struct rn_rope *ropes;               /* owned */
    uint32_t *layer_rope;                /* [n_layers] index into ropes; owned */
    uint32_t n_ops, cap_ops;
    struct rn_op *ops;                   /* owned */
};

/* "matmul", "attention" … */
const char *rn_op_kind_name(enum rn_op_kind kind);

/* Zeroed program of n_layers layers in one global group with one RoPE table of n_rot/2 zero frequencies. 0 or -ENOMEM. */
int rn_program_create(struct rn_program **ret, uint32_t n_layers, uint32_t n_rot, struct rn_err *err);
void rn_program_destroy(struct rn_program *p);

/* Puts the layers il with il % period < period - 1 into a second group with a trained sliding window of `window` tokens and a RoPE table
 * of their own (ropes[1], of the same size as ropes[0]). Before any operation is added. window >= 1, period >= 2. 0 or -ENOMEM. */
int rn_program_add_windows(struct rn_program *p, uint32_t window, uint32_t period, struct rn_err *err);

/* Appends a copy of `op`. 0 or -ENOMEM. */
int rn_program_add(struct rn_program *p, const struct rn_op *op, struct rn_err *err);

/* Checks that every operation's shapes agree (weights against widths, heads against widths). Returns 0 or -EINVAL naming the
 * tensor, its shape and the expected one. */
int rn_program_check(const struct rn_program *p, struct rn_err *err);

/* Are the weights of its parts matrices (else vectors)? */
bool rn_op_has_matrices(enum rn_op_kind kind);
/* Can operation i, a norm, be folded into the product behind it? Then only that one reads its result before it is written again. */
bool rn_program_norm_folds(const struct rn_program *p, uint32_t i);
