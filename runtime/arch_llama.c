/* Family llama: Llama 2 and 3, TinyLlama, Mistral 7B, SmolLM and SmolLM2, and what was distilled into their shape.
 *
 * RMS norm, attention with grouped queries and interleaved RoPE (the converter permuted q and k), SwiGLU; optional biases on every
 * projection, optional frequency divisors (rope_freqs.weight), output tied to the embedding when there is no output.weight. */
#include <math.h>
#include <string.h>

#include "runtime/arch.h"
#include "runtime/base/err.h"
#include "runtime/model/gguf.h"
#include "runtime/model/hparams.h"
#include "runtime/model/weights.h"
#include "runtime/rope.h"
#include "runtime/tensor/program.h"

/* One projection: weight cols x rows and its optional bias. `name` is the part of the tensor's name between layer and ".weight". */
static int bind(struct rn_part *part, const struct rn_gguf *g, uint32_t layer, const char *name, uint32_t cols, uint32_t rows, enum rn_value out,
                struct rn_err *err)
{
    part->out = out;
    int r = rn_weights_need(&part->weight, g, cols, rows, err, "blk.%u.%s.weight", layer, name);
    return r < 0 ? r : rn_weights_want(&part->bias, g, rows, 1, err, "blk.%u.%s.bias", layer, name);
}

static int add_norm(struct rn_program *p, const struct rn_hparams *hp, const struct rn_tensor *weight, struct rn_err *err)
{
    struct rn_op op = {.kind = RN_OP_NORM, .in = RN_VAL_X, .out = RN_VAL_H, .n_parts = 1, .parts = {{.weight = weight}}, .eps = hp->norm_eps};
    return rn_program_add(p, &op, err);
}

static int add_attention(struct rn_program *p, const struct rn_gguf *g, const struct rn_hparams *hp, uint32_t layer, struct rn_err *err)
{
    uint32_t d = hp->d_model, q = hp->n_heads * hp->head_dim, kv = hp->n_kv_heads * hp->head_dim;
    const struct rn_tensor *norm;
    struct rn_op qkv = {.kind = RN_OP_MATMUL, .in = RN_VAL_H, .n_parts = 3};
    struct rn_op rope = {.kind = RN_OP_ROPE_KV, .layer = layer};
    struct rn_op attention = {.kind = RN_OP_ATTENTION, .layer = layer, .in = RN_VAL_Q, .out = RN_VAL_A};
    struct rn_op output = {.kind = RN_OP_MATMUL, .in = RN_VAL_A, .n_parts = 1, .accumulate = true};
    int r = rn_weights_need(&norm, g, d, 1, err, "blk.%u.attn_norm.weight", layer);
    r = r < 0 ? r : bind(&qkv.parts[0], g, layer, "attn_q", d, q, RN_VAL_Q, err);
    r = r < 0 ? r : bind(&qkv.parts[1], g, layer, "attn_k", d, kv, RN_VAL_K, err);
    r = r < 0 ? r : bind(&qkv.parts[2], g, layer, "attn_v", d, kv, RN_VAL_V, err);
    r = r < 0 ? r : bind(&output.parts[0], g, layer, "attn_output", q, d, RN_VAL_X, err);
    r = r < 0 ? r : add_norm(p, hp, norm, err);
    r = r < 0 ? r : rn_program_add(p, &qkv, err);
    r = r < 0 ? r : rn_program_add(p, &rope, err);
    r = r < 0 ? r : rn_program_add(p, &attention, err);
    return r < 0 ? r : rn_program_add(p, &output, err);
}

static int add_feed_forward(struct rn_program *p, const struct rn_gguf *g, const struct rn_hparams *hp, uint32_t layer, struct rn_err *err)
{
    uint32_t d = hp->d_model;
    const struct rn_tensor *norm;
    struct rn_op gated = {.kind = RN_OP_GATED, .in = RN_VAL_H, .out = RN_VAL_F, .n_parts = 2, .act = RN_ACT_SILU};
    struct rn_op down = {.kind = RN_OP_MATMUL, .in = RN_VAL_F, .n_parts = 1, .accumulate = true};
    int r = rn_weights_need(&norm, g, d, 1, err, "blk.%u.ffn_norm.weight", layer);
    r = r < 0 ? r : bind(&gated.parts[0], g, layer, "ffn_gate", d, hp->d_ff, RN_VAL_F, err);
    r = r < 0 ? r : bind(&gated.parts[1], g, layer, "ffn_up", d, hp->d_ff, RN_VAL_F, err);
    r = r < 0 ? r : bind(&down.parts[0], g, layer, "ffn_down", hp->d_ff, d, RN_VAL_X, err);
    r = r < 0 ? r : add_norm(p, hp, norm, err);
    r = r < 0 ? r : rn_program_add(p, &gated, err);
    return r < 0 ? r : rn_program_add(p, &down, err);
}

static int add_all(struct rn_program *p, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    struct rn_op embed = {.kind = RN_OP_EMBED, .out = RN_VAL_X, .n_parts = 1, .scale = 1};
    struct rn_op logits = {.kind = RN_OP_LOGITS, .in = RN_VAL_H, .n_parts = 1};
    const struct rn_tensor *norm;
    int r = rn_weights_need(&embed.parts[0].weight, g, hp->d_model, hp->n_vocab, err, "token_embd.weight");
    r = r < 0 ? r : rn_weights_need(&norm, g, hp->d_model, 1, err, "output_norm.weight");
    r = r < 0 ? r : rn_weights_want(&logits.parts[0].weight, g, hp->d_model, hp->n_vocab, err, "output.weight");
    if (r == 0 && !logits.parts[0].weight) {
        logits.parts[0].weight = embed.parts[0].weight; // tied
    }
    r = r < 0 ? r : rn_program_add(p, &embed, err);
    for (uint32_t layer = 0; layer < hp->n_layers && r == 0; layer++) {
        r = add_attention(p, g, hp, layer, err);
        r = r < 0 ? r : add_feed_forward(p, g, hp, layer, err);
    }
    r = r < 0 ? r : add_norm(p, hp, norm, err);
    return r < 0 ? r : rn_program_add(p, &logits, err);
}

int rn_arch_llama_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    uint32_t n_experts = 0;
    int r = rn_gguf_get_u32(g, "llama.expert_count", &n_experts, err);
    if (r < 0) {
        return r;
    }
    if (n_experts) {
        return rn_err_set(err, -ENOTSUP, "llama.expert_count is %u, mixtures of experts cannot be loaded yet", n_experts);
    }
    struct rn_program *p;
    r = rn_program_create(&p, hp->n_layers, hp->n_rot, err);
    if (r < 0) {
        return r;
    }
    p->n_heads = hp->n_heads;
    p->n_kv_heads = hp->n_kv_heads;
    p->head_dim = hp->head_dim;
    p->d_model = hp->d_model;
    p->d_ff = hp->d_ff;
    p->n_vocab = hp->n_vocab;
    p->attn_scale = 1 / sqrtf((float)hp->head_dim);
    p->ropes[0].interleaved = true;
    p->ropes[0].mscale = 1;
    const uint32_t width[RN_VAL_COUNT] = {
        [RN_VAL_X] = hp->d_model, [RN_VAL_H] = hp->d_model, [RN_VAL_F] = hp->d_ff,
        [RN_VAL_Q] = hp->n_heads * hp->head_dim, [RN_VAL_A] = hp->n_heads * hp->head_dim,
        [RN_VAL_K] = hp->n_kv_heads * hp->head_dim, [RN_VAL_V] = hp->n_kv_heads * hp->head_dim,
    };
    memcpy(p->width, width, sizeof width);
    const struct rn_tensor *divisors = NULL;
    r = hp->n_rot ? rn_weights_want(&divisors, g, hp->n_rot / 2, 1, err, "rope_freqs.weight") : 0;
    r = r < 0 ? r : rn_rope_setup(&p->ropes[0], hp, divisors, err);
    r = r < 0 ? r : add_all(p, g, hp, err);
    r = r < 0 ? r : rn_program_check(p, err);
    if (r < 0) {
        rn_program_destroy(p);
        return r;
    }
    *ret = p;
    return 0;
}
