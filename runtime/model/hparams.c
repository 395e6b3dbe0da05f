/* Hyper-parameters: keys under "{arch}." with their ranges.
 *
 * The ranges keep every later product (heads times dimensions, rows times columns) far inside 32 bits, so the layers above need no
 * overflow checks of their own. A key that changes what a model computes and has no place in struct rn_hparams must be at its neutral
 * value: a model that would be run wrongly is refused by name. */
#include "runtime/model/hparams.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/model/gguf_internal.h"

#define MAX_LAYERS 1024u
#define MAX_D_MODEL 65536u
#define MAX_D_FF (1u << 20)
#define MAX_HEADS 1024u
#define MAX_HEAD_DIM 1024u
#define MAX_CTX (1u << 30)
#define MAX_VOCAB (1u << 24)

struct source { // the file and its key prefix
    const struct rn_gguf *g;
    const char *arch;
    char key[96]; // the key looked up last
};

static const char *key_of(struct source *s, const char *suffix)
{
    snprintf(s->key, sizeof s->key, "%s.%s", s->arch, suffix);
    return s->key;
}

static int bad(const struct source *s, uint32_t value, uint32_t min, uint32_t max, struct rn_err *err)
{
    return rn_err_set(err, -EINVAL, "%s: %s: %u, expected %u to %u", rn_gguf_name(s->g), s->key, value, min, max);
}

static int missing(const struct source *s, struct rn_err *err)
{
    return rn_err_set(err, -EINVAL, "%s: %s: missing", rn_gguf_name(s->g), s->key);
}

// An array with one value per layer stands for that value when all are equal.
static int read_equal_array(const struct source *s, uint32_t *ret, struct rn_err *err)
{
    struct rn_gguf_array a;
    int e = rn_gguf_get_array(s->g, s->key, RN_GGUF_U32, &a, /*err=*/NULL);
    e = e == -EINVAL ? rn_gguf_get_array(s->g, s->key, RN_GGUF_I32, &a, err) : e;
    if (e < 0) {
        return e;
    }
    if (a.n == 0) {
        return rn_err_set(err, -EINVAL, "%s: %s: an empty array", rn_gguf_name(s->g), s->key);
    }
    uint32_t first = rn_gguf_array_u32(&a, 0);
    for (uint64_t i = 1; i < a.n; i++) {
        uint32_t v = rn_gguf_array_u32(&a, i);
        if (v != first) {
            return rn_err_set(err, -ENOTSUP, "%s: %s: %u and %u, layers that differ cannot be run yet", rn_gguf_name(s->g), s->key, first,
                              v);
        }
    }
    *ret = first;
    return 1;
}

// 1 found and in range, 0 absent; the value may be a number or an array of equal ones.
static int optional(struct source *s, const char *suffix, uint32_t min, uint32_t max, uint32_t *ret, struct rn_err *err)
{
    const struct rn_gguf_kv *kv = rn_gguf_find(s->g, key_of(s, suffix));
    uint32_t v;
    if (!kv) {
        return 0;
    }
    int e = kv->type == RN_GGUF_ARR ? read_equal_array(s, &v, err) : rn_gguf_get_u32(s->g, s->key, &v, err);
    if (e < 0) {
        return e;
    }
    if (v < min || v > max) {
        return bad(s, v, min, max, err);
    }
    *ret = v;
    return 1;
}

static int required(struct source *s, const char *suffix, uint32_t min, uint32_t max, uint32_t *ret, struct rn_err *err)
{
    int e = optional(s, suffix, min, max, ret, err);
    return e == 0 ? missing(s, err) : e < 0 ? e : 0;
}

// A positive finite float, at most max.
static int optional_float(struct source *s, const char *suffix, float max, float *ret, struct rn_err *err)
{
    float v;
    int e = rn_gguf_get_f32(s->g, key_of(s, suffix), &v, err);
    if (e <= 0) {
        return e;
    }
    if (!(v > 0.0f && v <= max)) {
        return rn_err_set(err, -EINVAL, "%s: %s: %g, expected above 0 and at most %g", rn_gguf_name(s->g), s->key, (double)v, (double)max);
    }
    *ret = v;
    return 1;
}

// The architecture's name becomes part of keys and messages: plain words only.
static int read_arch(struct rn_hparams *h, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_gguf_str arch;
    char quoted[RN_GGUF_QUOTE];
    int e = rn_gguf_get_str(g, "general.architecture", &arch, err);
    if (e <= 0) {
        return e < 0 ? e : rn_err_set(err, -EINVAL, "%s: general.architecture: missing", rn_gguf_name(g));
    }
    bool is_plain = arch.len > 0 && arch.len < sizeof h->arch;
    for (size_t i = 0; i < arch.len && is_plain; i++) {
        char c = arch.data[i];
        is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    }
    if (!is_plain) {
        return rn_err_set(err, -EINVAL, "%s: general.architecture: '%s', expected 1 to %zu letters, digits, '-', '_' or '.'",
                          rn_gguf_name(g), rn_gguf_quote(arch, quoted), sizeof h->arch - 1);
    }
    memcpy(h->arch, arch.data, arch.len);
    return 0;
}

// general.name, or the file's name without folder, ".gguf" and the number of a part. Clients and logs see it, so anything but printable ASCII becomes '?'.
static int read_name(struct rn_hparams *h, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_gguf_str name = {NULL, 0};
    int e = rn_gguf_get_str(g, "general.name", &name, err);
    if (e < 0) {
        return e;
    }
    if (!name.len) {
        const char *path = rn_gguf_name(g), *slash = strrchr(path, '/');
        name.data = slash ? slash + 1 : path;
        name.len = strlen(name.data);
        if (name.len > 5 && memcmp(name.data + name.len - 5, ".gguf", 5) == 0) {
            name.len -= 5;
        }
        if (rn_gguf_n_parts(g) > 1) { // whichever part was named, it is the same model
            name.len -= strlen("-00001-of-00003");
        }
    }
    size_t n = name.len < sizeof h->name ? name.len : sizeof h->name - 1;
    for (size_t i = 0; i < n; i++) {
        h->name[i] = name.data[i] >= ' ' && name.data[i] <= '~' ? name.data[i] : '?';
    }
    return 0;
}

static int read_sizes(struct rn_hparams *h, struct source *s, struct rn_err *err)
{
    int e = required(s, "block_count", 1, MAX_LAYERS, &h->n_layers, err);
    e = e ? e : required(s, "context_length", 1, MAX_CTX, &h->n_ctx_train, err);
    e = e ? e : required(s, "feed_forward_length", 1, MAX_D_FF, &h->d_ff, err);
    e = e ? e : required(s, "embedding_length", 1, MAX_D_MODEL, &h->d_model, err);
    if (!e && h->d_model % 32) {
        return rn_err_set(err, -EINVAL, "%s: %s: %u, expected a multiple of 32", rn_gguf_name(s->g), s->key, h->d_model);
    }
    return e;
}

static int read_heads(struct rn_hparams *h, struct source *s, struct rn_err *err)
{
    int e = required(s, "attention.head_count", 1, MAX_HEADS, &h->n_heads, err);
    h->n_kv_heads = h->n_heads;
    e = e ? e : optional(s, "attention.head_count_kv", 1, MAX_HEADS, &h->n_kv_heads, err);
    if (e >= 0 && h->n_heads % h->n_kv_heads) {
        return rn_err_set(err, -EINVAL, "%s: %s: %u, expected a divisor of the %u heads", rn_gguf_name(s->g), s->key, h->n_kv_heads,
                          h->n_heads);
    }
    e = e < 0 ? e : optional(s, "attention.key_length", 1, MAX_HEAD_DIM, &h->head_dim, err);
    if (e < 0) {
        return e;
    }
    if (e == 0) {
        h->head_dim = h->d_model / h->n_heads;
        if (h->d_model % h->n_heads || h->head_dim > MAX_HEAD_DIM) {
            return rn_err_set(err, -EINVAL, "%s: %s: missing, and %u dimensions do not divide into %u heads of at most %u",
                              rn_gguf_name(s->g), s->key, h->d_model, h->n_heads, MAX_HEAD_DIM);
        }
    }
    uint32_t value_dim = h->head_dim;
    e = optional(s, "attention.value_length", 1, MAX_HEAD_DIM, &value_dim, err);
    if (e >= 0 && value_dim != h->head_dim) {
        return rn_err_set(err, -ENOTSUP, "%s: %s: %u, expected %u as the keys", rn_gguf_name(s->g), s->key, value_dim, h->head_dim);
    }
    e = e < 0 ? e : optional(s, "attention.sliding_window", 0, MAX_CTX, &h->window, err);
    return e < 0 ? e : 0;
}

// The declared kind of scaling; files older than the key give only a factor, which means linear.
static int read_rope_scaling(struct rn_hparams *h, struct source *s, struct rn_err *err)
{
    static const char *const kinds[] = {"none", "linear", "yarn", "longrope"};
    struct rn_gguf_str kind = {"", 0};
    char quoted[RN_GGUF_QUOTE];
    h->rope_factor = 1.0f;
    int e = optional_float(s, "rope.scaling.factor", 65536.0f, &h->rope_factor, err);
    e = e ? e : optional_float(s, "rope.scale_linear", 65536.0f, &h->rope_factor, err);
    if (e < 0) {
        return e;
    }
    e = rn_gguf_get_str(s->g, key_of(s, "rope.scaling.type"), &kind, err);
    if (e < 0) {
        return e;
    }
    if (e == 0) {
        strcpy(h->rope_scaling, h->rope_factor == 1.0f ? "" : "linear");
        return 0;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kind.len == strlen(kinds[i]) && memcmp(kind.data, kinds[i], kind.len) == 0) {
            strcpy(h->rope_scaling, i == 0 ? "" : kinds[i]);
            h->rope_factor = i == 0 ? 1.0f : h->rope_factor;
            return 0;
        }
    }
    return rn_err_set(err, -ENOTSUP, "%s: %s: '%s', expected none, linear, yarn or longrope", rn_gguf_name(s->g), s->key,
                      rn_gguf_quote(kind, quoted));
}

static int read_rope(struct rn_hparams *h, struct source *s, struct rn_err *err)
{
    h->n_rot = h->head_dim;
    int e = optional(s, "rope.dimension_count", 0, h->head_dim, &h->n_rot, err);
    if (e >= 0 && h->n_rot % 2) {
        return rn_err_set(err, -EINVAL, "%s: %s: %u, expected an even number", rn_gguf_name(s->g), key_of(s, "rope.dimension_count"),
                          h->n_rot);
    }
    h->rope_base = 10000.0f;
    h->rope_base_window = 10000.0f;
    h->rope_ctx_original = h->n_ctx_train;
    h->yarn_beta_fast = 32.0f;
    h->yarn_beta_slow = 1.0f;
    h->yarn_attn_factor = 1.0f;
    e = e < 0 ? e : optional_float(s, "rope.freq_base", 1e12f, &h->rope_base, err);
    e = e < 0 ? e : optional_float(s, "rope.freq_base_swa", 1e12f, &h->rope_base_window, err);
    e = e < 0 ? e : optional(s, "rope.scaling.original_context_length", 1, MAX_CTX, &h->rope_ctx_original, err);
    e = e < 0 ? e : optional_float(s, "rope.scaling.yarn_beta_fast", 65536.0f, &h->yarn_beta_fast, err);
    e = e < 0 ? e : optional_float(s, "rope.scaling.yarn_beta_slow", 65536.0f, &h->yarn_beta_slow, err);
    e = e < 0 ? e : optional_float(s, "rope.scaling.attn_factor", 65536.0f, &h->yarn_attn_factor, err);
    e = e < 0 ? e : optional_float(s, "rope.scaling.yarn_attn_factor", 65536.0f, &h->yarn_attn_factor, err);
    return e < 0 ? e : read_rope_scaling(h, s, err);
}

// What a file may ask for and this struct cannot express yet: {key, the value that asks for nothing}.
static int check_features(struct source *s, struct rn_err *err)
{
    static const struct {
        const char *suffix;
        enum rn_gguf_type type; // U32: any integer, F32: any float, BOOL
        float neutral;
    } features[] = {
        {"expert_count", RN_GGUF_U32, 0},        {"rope.scaling.yarn_ext_factor", RN_GGUF_F32, 1},
        {"attention.causal", RN_GGUF_BOOL, 1},   {"attention.clamp_kqv", RN_GGUF_F32, 0},
        {"attention.scale", RN_GGUF_F32, 0},     {"attn_logit_softcapping", RN_GGUF_F32, 0},
        {"embedding_scale", RN_GGUF_F32, 1},     {"final_logit_softcapping", RN_GGUF_F32, 0},
        {"logit_scale", RN_GGUF_F32, 1},         {"residual_scale", RN_GGUF_F32, 1},
    };
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const char *key = key_of(s, features[i].suffix);
        float v = features[i].neutral;
        uint32_t u = 0;
        bool b = false;
        int e = 0;
        if (features[i].type == RN_GGUF_U32) {
            e = rn_gguf_get_u32(s->g, key, &u, err);
            v = e > 0 ? (float)u : v;
        } else if (features[i].type == RN_GGUF_BOOL) {
            e = rn_gguf_get_bool(s->g, key, &b, err);
            v = e > 0 ? (float)b : v;
        } else {
            e = rn_gguf_get_f32(s->g, key, &v, err);
        }
        if (e < 0) {
            return e;
        }
        if (v != features[i].neutral) {
            return rn_err_set(err, -ENOTSUP, "%s: %s: %g, models with this cannot be run yet", rn_gguf_name(s->g), key, (double)v);
        }
    }
    return 0;
}

// The vocabulary is what the embedding has rows for.
static int read_vocab(struct rn_hparams *h, const struct rn_gguf *g, struct rn_err *err)
{
    const struct rn_tensor *t = rn_gguf_tensor(g, "token_embd.weight");
    if (!t) {
        return rn_err_set(err, -EINVAL, "%s: tensor 'token_embd.weight': missing", rn_gguf_name(g));
    }
    if (t->cols != h->d_model) {
        return rn_err_set(err, -EINVAL, "%s: tensor 'token_embd.weight': rows of %u elements, expected %u (embedding_length)",
                          rn_gguf_name(g), t->cols, h->d_model);
    }
    if (t->rows > MAX_VOCAB) {
        return rn_err_set(err, -EINVAL, "%s: tensor 'token_embd.weight': %u rows, at most %u are allowed", rn_gguf_name(g), t->rows,
                          MAX_VOCAB);
    }
    h->n_vocab = t->rows;
    return 0;
}

int rn_hparams_read(struct rn_hparams *ret, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_hparams h = {0};
    struct source s = {.g = g, .arch = h.arch};
    int e = read_arch(&h, g, err);
    e = e ? e : read_name(&h, g, err);
    e = e ? e : read_sizes(&h, &s, err);
    e = e ? e : read_heads(&h, &s, err);
    e = e ? e : read_rope(&h, &s, err);
    e = e ? e : check_features(&s, err);
    e = e ? e : read_vocab(&h, g, err);
    if (e) {
        return e;
    }
    e = optional_float(&s, "attention.layer_norm_rms_epsilon", 1.0f, &h.norm_eps, err);
    if (e <= 0) {
        return e ? e : missing(&s, err);
    }
    *ret = h;
    return 0;
}
