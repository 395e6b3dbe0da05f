#include "runtime/arch_dense.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/model/hparams.h"
#include "runtime/model/weights.h"
#include "runtime/rope.h"

struct builder {
    struct rn_program *p;
    const struct rn_gguf *g;
    const struct rn_hparams *hp;
    const struct rn_dense *traits;
};

/* One projection: weight cols x rows and its optional bias. `name` is the part of the tensor's name between layer and ".weight". */
static int bind(const struct builder *b, struct rn_part *part, uint32_t layer, const char *name, uint32_t cols, uint32_t rows, enum rn_value out,
                struct rn_err *err)
{
    part->out = out;
    int r = rn_weights_need(&part->weight, b->g, cols, rows, err, "blk.%u.%s.weight", layer, name);
    return r < 0 ? r : rn_weights_want(&part->bias, b->g, rows, 1, err, "blk.%u.%s.bias", layer, name);
}

/* h = norm(x) by blk.N.`name`.weight. */
static int add_norm(const struct builder *b, uint32_t layer, const char *name, struct rn_err *err)
{
    struct rn_op op = {.kind = RN_OP_NORM, .in = RN_VAL_X, .out = RN_VAL_H, .n_parts = 1, .eps = b->hp->norm_eps};
    int r = rn_weights_need(&op.parts[0].weight, b->g, b->hp->d_model, 1, err, "blk.%u.%s.weight", layer, name);
    return r < 0 ? r : rn_program_add(b->p, &op, err);
}

/* x += W in, or x += post-norm(W in). */
static int add_output(const struct builder *b, uint32_t layer, const char *name, const char *post, enum rn_value in, struct rn_err *err)
{
    uint32_t d = b->hp->d_model;
    bool normed = b->traits->post_norms;
    struct rn_op op = {.kind = RN_OP_MATMUL, .in = in, .n_parts = 1, .accumulate = !normed};
    struct rn_op norm = {.kind = RN_OP_NORM, .in = RN_VAL_Y, .out = RN_VAL_X, .n_parts = 1, .eps = b->hp->norm_eps, .accumulate = true};
    int r = bind(b, &op.parts[0], layer, name, b->p->width[in], d, normed ? RN_VAL_Y : RN_VAL_X, err);
    r = r < 0 ? r : rn_program_add(b->p, &op, err);
    if (r < 0 || !normed) {
        return r;
    }
    r = rn_weights_need(&norm.parts[0].weight, b->g, d, 1, err, "blk.%u.%s.weight", layer, post);
    return r < 0 ? r : rn_program_add(b->p, &norm, err);
}

static int add_rope(const struct builder *b, uint32_t layer, struct rn_err *err)
{
    struct rn_op op = {.kind = RN_OP_ROPE_KV, .layer = layer, .eps = b->hp->norm_eps};
    if (b->traits->head_norms) {
        static const char *const names[] = {"attn_q_norm", "attn_k_norm"};
        op.n_parts = 2;
        for (int i = 0; i < 2; i++) {
            int r = rn_weights_need(&op.parts[i].weight, b->g, b->hp->head_dim, 1, err, "blk.%u.%s.weight", layer, names[i]);
            if (r < 0) {
                return r;
            }
        }
    }
    return rn_program_add(b->p, &op, err);
}

static int add_attention(const struct builder *b, uint32_t layer, struct rn_err *err)
{
    const struct rn_hparams *hp = b->hp;
    uint32_t q = hp->n_heads * hp->head_dim, kv = hp->n_kv_heads * hp->head_dim;
    struct rn_op qkv = {.kind = RN_OP_MATMUL, .in = RN_VAL_H, .n_parts = 3};
    struct rn_op attention = {.kind = RN_OP_ATTENTION, .layer = layer, .in = RN_VAL_Q, .out = RN_VAL_A};
    int r = add_norm(b, layer, "attn_norm", err);
    r = r < 0 ? r : bind(b, &qkv.parts[0], layer, "attn_q", hp->d_model, q, RN_VAL_Q, err);
    r = r < 0 ? r : bind(b, &qkv.parts[1], layer, "attn_k", hp->d_model, kv, RN_VAL_K, err);
    r = r < 0 ? r : bind(b, &qkv.parts[2], layer, "attn_v", hp->d_model, kv, RN_VAL_V, err);
    r = r < 0 ? r : rn_program_add(b->p, &qkv, err);
    r = r < 0 ? r : add_rope(b, layer, err);
    r = r < 0 ? r : rn_program_add(b->p, &attention, err);
    return r < 0 ? r : add_output(b, layer, "attn_output", "post_attention_norm", RN_VAL_A, err);
}

static int add_feed_forward(const struct builder *b, uint32_t layer, struct rn_err *err)
{
    const struct rn_hparams *hp = b->hp;
    struct rn_op gated = {.kind = RN_OP_GATED, .in = RN_VAL_H, .out = RN_VAL_F, .n_parts = 2, .act = b->traits->act};
    int r = add_norm(b, layer, "ffn_norm", err);
    r = r < 0 ? r : bind(b, &gated.parts[0], layer, "ffn_gate", hp->d_model, hp->d_ff, RN_VAL_F, err);
    r = r < 0 ? r : bind(b, &gated.parts[1], layer, "ffn_up", hp->d_model, hp->d_ff, RN_VAL_F, err);
    r = r < 0 ? r : rn_program_add(b->p, &gated, err);
    return r < 0 ? r : add_output(b, layer, "ffn_down", "post_ffw_norm", RN_VAL_F, err);
}

static int add_all(const struct builder *b, struct rn_err *err)
{
    const struct rn_hparams *hp = b->hp;
    struct rn_op embed = {.kind = RN_OP_EMBED, .out = RN_VAL_X, .n_parts = 1, .scale = b->traits->embed_scale};
    struct rn_op norm = {.kind = RN_OP_NORM, .in = RN_VAL_X, .out = RN_VAL_H, .n_parts = 1, .eps = hp->norm_eps};
    struct rn_op logits = {.kind = RN_OP_LOGITS, .in = RN_VAL_H, .n_parts = 1};
    int r = rn_weights_need(&embed.parts[0].weight, b->g, hp->d_model, hp->n_vocab, err, "token_embd.weight");
    r = r < 0 ? r : rn_weights_need(&norm.parts[0].weight, b->g, hp->d_model, 1, err, "output_norm.weight");
    r = r < 0 ? r : rn_weights_want(&logits.parts[0].weight, b->g, hp->d_model, hp->n_vocab, err, "output.weight");
    if (r == 0 && !logits.parts[0].weight) {
        logits.parts[0].weight = embed.parts[0].weight; // tied
    }
    r = r < 0 ? r : rn_program_add(b->p, &embed, err);
    for (uint32_t layer = 0; layer < hp->n_layers && r == 0; layer++) {
        r = add_attention(b, layer, err);
        r = r < 0 ? r : add_feed_forward(b, layer, err);
    }
    r = r < 0 ? r : rn_program_add(b->p, &norm, err);
    return r < 0 ? r : rn_program_add(b->p, &logits, err);
}

static void set_sizes(struct rn_program *p, const struct rn_hparams *hp, const struct rn_dense *traits)
{
    const uint32_t width[RN_VAL_COUNT] = {
        [RN_VAL_X] = hp->d_model, [RN_VAL_H] = hp->d_model, [RN_VAL_F] = hp->d_ff, [RN_VAL_Y] = traits->post_norms ? hp->d_model : 0,
        [RN_VAL_Q] = hp->n_heads * hp->head_dim, [RN_VAL_A] = hp->n_heads * hp->head_dim,
        [RN_VAL_K] = hp->n_kv_heads * hp->head_dim, [RN_VAL_V] = hp->n_kv_heads * hp->head_dim,
    };
    memcpy(p->width, width, sizeof width);
    p->n_heads = hp->n_heads;
    p->n_kv_heads = hp->n_kv_heads;
    p->head_dim = hp->head_dim;
    p->d_model = hp->d_model;
    p->d_ff = hp->d_ff;
    p->n_vocab = hp->n_vocab;
    p->attn_scale = traits->attn_scale > 0 ? traits->attn_scale : 1 / sqrtf((float)hp->head_dim);
}

static int set_ropes(const struct builder *b, struct rn_err *err)
{
    struct rn_program *p = b->p;
    const struct rn_tensor *divisors = NULL;
    p->ropes[0].interleaved = b->traits->interleaved;
    int r = b->hp->n_rot ? rn_weights_want(&divisors, b->g, b->hp->n_rot / 2, 1, err, "rope_freqs.weight") : 0;
    r = r < 0 ? r : rn_rope_setup(&p->ropes[0], b->hp, divisors, err);
    if (r < 0 || !b->traits->window_period || !b->hp->window) {
        return r;
    }
    struct rn_hparams plain = *b->hp; // windowed layers: their own base, no scaling
    plain.rope_base = b->hp->rope_base_window;
    plain.rope_scaling[0] = 0;
    r = rn_program_add_windows(p, b->hp->window, b->traits->window_period, err);
    return r < 0 ? r : rn_rope_setup(&p->ropes[1], &plain, /*divisors=*/NULL, err);
}

int rn_dense_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, const struct rn_dense *traits, struct rn_err *err)
{
    struct builder b = {.g = g, .hp = hp, .traits = traits};
    if (hp->window && !traits->window_period) {
        return rn_err_set(err, -ENOTSUP, "%s.attention.sliding_window is %u, this family is not known to have one", hp->arch, hp->window);
    }
    int r = rn_program_create(&b.p, hp->n_layers, hp->n_rot, err);
    if (r < 0) {
        return r;
    }
    set_sizes(b.p, hp, traits);
    r = set_ropes(&b, err);
    r = r < 0 ? r : add_all(&b, err);
    r = r < 0 ? r : rn_program_check(b.p, err);
    if (r < 0) {
        rn_program_destroy(b.p);
        return r;
    }
    *ret = b.p;
    return 0;
}
