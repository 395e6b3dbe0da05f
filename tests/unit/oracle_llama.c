#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/model/gguf.h"
#include "tests/unit/oracle_llama.h"

struct slot { // one visible token
    uint64_t index;
    double *kv; // [n_layers][keys, then values][n_kv_heads * head_dim], keys before RoPE
};

struct oracle {
    struct oracle_params params;
    struct rn_gguf *g;
    uint32_t n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    double eps, rope_base;
    uint64_t head, first; // next index; base
    uint64_t *turns;
    size_t n_turns;
    struct slot *slots;
    size_t n_slots;
    double *x, *h, *q, *a, *gate, *up; // one token's values
};

static double *doubles(size_t n)
{
    double *p = rn_mem_alloc(n, sizeof *p);
    assert_non_null(p);
    return p;
}

static uint32_t number(const struct rn_gguf *g, const char *key)
{
    uint32_t v = 0;
    assert_int_equal(rn_gguf_get_u32(g, key, &v, NULL), 1);
    return v;
}

struct oracle *oracle_create(const struct oracle_params *params)
{
    struct oracle *o = rn_mem_alloc(1, sizeof *o);
    assert_non_null(o);
    o->params = *params;
    assert_int_equal(rn_gguf_open(&o->g, params->model, NULL), 0);
    float eps = 0, base = 0;
    assert_int_equal(rn_gguf_get_f32(o->g, "llama.attention.layer_norm_rms_epsilon", &eps, NULL), 1);
    assert_int_equal(rn_gguf_get_f32(o->g, "llama.rope.freq_base", &base, NULL), 1);
    o->eps = (double)eps;
    o->rope_base = (double)base;
    o->n_layers = number(o->g, "llama.block_count");
    o->d_model = number(o->g, "llama.embedding_length");
    o->d_ff = number(o->g, "llama.feed_forward_length");
    o->n_heads = number(o->g, "llama.attention.head_count");
    o->n_kv_heads = number(o->g, "llama.attention.head_count_kv");
    o->head_dim = number(o->g, "llama.attention.key_length");
    o->n_vocab = rn_gguf_tensor(o->g, "token_embd.weight")->rows;
    o->x = doubles(o->d_model);
    o->h = doubles(o->d_model);
    o->q = doubles((size_t)o->n_heads * o->head_dim);
    o->a = doubles((size_t)o->n_heads * o->head_dim);
    o->gate = doubles(o->d_ff);
    o->up = doubles(o->d_ff);
    o->slots = rn_mem_alloc(params->n + 2, sizeof *o->slots);
    o->turns = rn_mem_alloc(1 << 16, sizeof *o->turns);
    assert_true(o->slots && o->turns);
    o->first = params->origin ? params->origin : params->sinks;
    o->head = params->sinks ? 0 : o->first;
    return o;
}

void oracle_destroy(struct oracle *o)
{
    for (size_t i = 0; i < o->n_slots; i++) {
        rn_mem_free(o->slots[i].kv);
    }
    double *values[] = {o->x, o->h, o->q, o->a, o->gate, o->up};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        rn_mem_free(values[i]);
    }
    rn_mem_free(o->slots);
    rn_mem_free(o->turns);
    rn_gguf_close(o->g);
    rn_mem_free(o);
}

static const float *tensor(const struct oracle *o, const char *name, size_t n)
{
    const struct rn_tensor *t = rn_gguf_tensor(o->g, name);
    if (!t) {
        return NULL;
    }
    assert_int_equal(t->type, RN_DTYPE_F32);
    assert_int_equal((size_t)t->cols * t->rows, n);
    return (const float *)t->data;
}

static const float *layer_tensor(const struct oracle *o, uint32_t layer, const char *what, size_t n)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%u.%s", layer, what);
    return tensor(o, name, n);
}

/* out [rows] = W x + bias */
static void product(const struct oracle *o, uint32_t layer, const char *what, const double *x, uint32_t cols, uint32_t rows, double *out)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", what);
    const float *w = layer_tensor(o, layer, name, (size_t)cols * rows);
    snprintf(name, sizeof name, "%s.bias", what);
    const float *bias = layer_tensor(o, layer, name, rows);
    for (uint32_t r = 0; r < rows; r++) {
        double sum = bias ? (double)bias[r] : 0;
        for (uint32_t i = 0; i < cols; i++) {
            sum += (double)w[(size_t)r * cols + i] * x[i];
        }
        out[r] = sum;
    }
}

static void norm(const struct oracle *o, const float *w, const double *x, double *out)
{
    double mean = 0;
    for (uint32_t i = 0; i < o->d_model; i++) {
        mean += x[i] * x[i] / o->d_model;
    }
    for (uint32_t i = 0; i < o->d_model; i++) {
        out[i] = x[i] / sqrt(mean + o->eps) * (double)w[i];
    }
}

/* Pairs (0,1), (2,3), … turned by pos * theta_i, theta_i = base^(-2i/head_dim) over the file's divisors. */
static void rotate(const struct oracle *o, const double *in, double pos, double *out)
{
    const float *divisors = tensor(o, "rope_freqs.weight", o->head_dim / 2);
    for (uint32_t i = 0; i < o->head_dim / 2; i++) {
        double theta = pow(o->rope_base, -2.0 * i / o->head_dim) / (divisors ? (double)divisors[i] : 1);
        double c = cos(pos * theta), s = sin(pos * theta), a = in[2 * i], b = in[2 * i + 1];
        out[2 * i] = a * c - b * s;
        out[2 * i + 1] = a * s + b * c;
    }
}

/* Moves base for token t and drops the slots that leave. */
static void evict(struct oracle *o, uint64_t t)
{
    uint64_t s = o->params.sinks, n = o->params.n + (o->params.mutation == ORACLE_KEEPS_ONE ? 1 : 0), first = o->first;
    if (t < s || s + t + 1 - first <= n) {
        return;
    }
    o->first = s + t + 1 - n;
    for (size_t i = 0; i < o->n_turns && o->params.by_turn; i++) {
        uint64_t p = o->turns[i];
        if (p > first && p <= t && t + 1 - p >= (n - s) / 4 && s + t + 1 - p <= n - n / 8) {
            o->first = p;
            break;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        if (o->slots[i].index < s || o->slots[i].index >= o->first) {
            o->slots[kept++] = o->slots[i];
        } else {
            rn_mem_free(o->slots[i].kv);
        }
    }
    o->n_slots = kept;
}

/* One head over all slots; the query's own token is in the last one. */
static void attend(const struct oracle *o, uint32_t layer, uint32_t head)
{
    uint32_t hd = o->head_dim, width = o->n_kv_heads * hd, kv_head = head / (o->n_heads / o->n_kv_heads);
    double q[512], k[512], p[1024], top = -INFINITY, sum = 0, *out = o->a + (size_t)head * hd;
    assert_true(o->n_slots <= 1024 && hd <= 512);
    uint64_t own = o->n_slots - 1;
    for (size_t i = 0; i < o->n_slots; i++) {
        bool pinned = o->slots[i].index < o->params.sinks;
        double at = (double)own;
        if (pinned && o->params.mutation == ORACLE_ONE_ROTATION) {
            at = (double)o->slots[own].index;
        } else if (pinned && o->params.mutation == ORACLE_ONE_LATE && o->first > o->params.sinks) {
            at += 1;
        }
        rotate(o, o->q + (size_t)head * hd, at, q);
        rotate(o, o->slots[i].kv + (size_t)layer * 2 * width + kv_head * hd, (double)i, k);
        p[i] = 0;
        for (uint32_t d = 0; d < hd; d++) {
            p[i] += q[d] * k[d] / sqrt((double)hd);
        }
        top = fmax(top, p[i]);
    }
    memset(out, 0, hd * sizeof *out);
    for (size_t i = 0; i < o->n_slots; i++) {
        sum += p[i] = exp(p[i] - top);
    }
    for (size_t i = 0; i < o->n_slots; i++) {
        const double *v = o->slots[i].kv + (size_t)layer * 2 * width + width + kv_head * hd;
        for (uint32_t d = 0; d < hd; d++) {
            out[d] += p[i] / sum * v[d];
        }
    }
}

static void run_layer(struct oracle *o, uint32_t layer)
{
    uint32_t d = o->d_model, kv_width = o->n_kv_heads * o->head_dim, q_width = o->n_heads * o->head_dim;
    double *kv = o->slots[o->n_slots - 1].kv + (size_t)layer * 2 * kv_width;
    norm(o, layer_tensor(o, layer, "attn_norm.weight", d), o->x, o->h);
    product(o, layer, "attn_q", o->h, d, q_width, o->q);
    product(o, layer, "attn_k", o->h, d, kv_width, kv);
    product(o, layer, "attn_v", o->h, d, kv_width, kv + kv_width);
    for (uint32_t head = 0; head < o->n_heads; head++) {
        attend(o, layer, head);
    }
    product(o, layer, "attn_output", o->a, q_width, d, o->h);
    for (uint32_t i = 0; i < d; i++) {
        o->x[i] += o->h[i];
    }
    norm(o, layer_tensor(o, layer, "ffn_norm.weight", d), o->x, o->h);
    product(o, layer, "ffn_gate", o->h, d, o->d_ff, o->gate);
    product(o, layer, "ffn_up", o->h, d, o->d_ff, o->up);
    for (uint32_t i = 0; i < o->d_ff; i++) {
        o->gate[i] = o->gate[i] / (1 + exp(-o->gate[i])) * o->up[i];
    }
    product(o, layer, "ffn_down", o->gate, o->d_ff, d, o->h);
    for (uint32_t i = 0; i < d; i++) {
        o->x[i] += o->h[i];
    }
}

uint64_t oracle_step(struct oracle *o, uint32_t id, bool is_turn, double *logits)
{
    uint64_t t = o->head;
    if (is_turn) {
        assert_true(o->n_turns < 1 << 16);
        o->turns[o->n_turns++] = t;
    }
    evict(o, t);
    o->slots[o->n_slots++] = (struct slot){.index = t, .kv = doubles((size_t)o->n_layers * 2 * o->n_kv_heads * o->head_dim)};
    const float *embed = tensor(o, "token_embd.weight", (size_t)o->d_model * o->n_vocab);
    const float *out = tensor(o, "output.weight", (size_t)o->d_model * o->n_vocab);
    for (uint32_t i = 0; i < o->d_model; i++) {
        o->x[i] = (double)embed[(size_t)id * o->d_model + i];
    }
    for (uint32_t layer = 0; layer < o->n_layers; layer++) {
        run_layer(o, layer);
    }
    norm(o, tensor(o, "output_norm.weight", o->d_model), o->x, o->h);
    for (uint32_t v = 0; v < o->n_vocab; v++) {
        logits[v] = 0;
        for (uint32_t i = 0; i < o->d_model; i++) {
            logits[v] += (double)(out ? out : embed)[(size_t)v * o->d_model + i] * o->h[i];
        }
    }
    o->head = t + 1 == o->params.sinks && o->first > t ? o->first : t + 1;
    return o->first;
}
