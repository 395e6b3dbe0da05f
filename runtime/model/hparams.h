/* Hyper-parameters of a model file, checked for sense (a value out of its range is one sentence: file, key, value, bound). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct rn_err;
struct rn_gguf;

struct rn_hparams {
    char arch[32];            /* general.architecture */
    char name[128];           /* general.name, or the file's stem */
    uint32_t n_layers;        /* 1..1024 */
    uint32_t d_model;         /* 1..65536, a multiple of 32 */
    uint32_t d_ff;
    uint32_t n_heads, n_kv_heads; /* n_heads % n_kv_heads == 0 */
    uint32_t head_dim;        /* key_length, or d_model / n_heads; value_length must be equal */
    uint32_t n_vocab;         /* rows of token_embd */
    uint32_t n_ctx_train;
    float norm_eps;
    uint32_t n_rot;           /* even, <= head_dim */
    float rope_base;          /* default 10000 */
    float rope_base_window;   /* for layers with a sliding window; default 10000 */
    char rope_scaling[16];    /* "", "linear", "yarn", "longrope" */
    float rope_factor;        /* 1 = none */
    uint32_t rope_ctx_original; /* yarn: trained length before scaling; default n_ctx_train */
    float yarn_beta_fast, yarn_beta_slow; /* default 32, 1 */
    float yarn_attn_factor;   /* factor on cos and sin beside 1 + 0.1 ln(rope_factor); default 1 */
    uint32_t window;          /* sliding window of some layers; 0 = none */
};

/* Returns 0; -EINVAL a bad value; -ENOTSUP an architecture's feature we do not know (named). */
int rn_hparams_read(struct rn_hparams *ret, const struct rn_gguf *g, struct rn_err *err);
