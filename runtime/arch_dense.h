/* What the dense decoder families share: one program for all, told apart by a few traits. Private to runtime/.
 *
 *   x = embed(id) * embed_scale
 *   per layer:  h = norm(x); q, k, v = W h + b; [head norms]; rope; attention; y = W_o a + b; x += [post-norm] y
 *               h = norm(x); f = act(W_gate h + b) * (W_up h + b);             y = W_down f + b; x += [post-norm] y
 *   logits = W_out norm(x)                                    W_out: output.weight, or the embedding when there is none (tied) */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/tensor/program.h"

struct rn_gguf;
struct rn_hparams;

struct rn_dense {
    bool interleaved;       /* RoPE pairs (0,1)(2,3)… instead of (i, i + n_rot/2) */
    bool head_norms;        /* blk.N.attn_q_norm.weight, attn_k_norm.weight */
    bool post_norms;        /* blk.N.post_attention_norm.weight, post_ffw_norm.weight */
    enum rn_act act;
    float embed_scale;      /* 1 = none */
    float attn_scale;       /* 0 = 1 / sqrt(head_dim) */
    uint32_t window_period; /* > 0: layers il with il % period < period - 1 see hparams.window tokens and use rope_base_window unscaled */
};

/* -ENOENT: a tensor is missing; -EINVAL: a shape or value does not fit; -ENOTSUP: a feature that no family here has. */
int rn_dense_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, const struct rn_dense *traits, struct rn_err *err);
