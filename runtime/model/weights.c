/* Binding weights by name and shape, and the model's fingerprint. */
#include "runtime/model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/err.h"
#include "runtime/model/gguf_internal.h"

#define SAMPLE_BYTES (1u << 20) // of each tensor, in three pieces when it is larger

static int bind(const struct rn_tensor **ret, const struct rn_gguf *g, uint32_t cols, uint32_t rows, bool is_required, struct rn_err *err,
                const char *format, va_list args)
{
    char name[sizeof(struct rn_gguf_name)];
    int len = vsnprintf(name, sizeof name, format, args);
    // A longer name is in no file.
    const struct rn_tensor *t = len >= 0 && (size_t)len < sizeof name ? rn_gguf_tensor(g, name) : NULL;
    if (!t && is_required) {
        return rn_err_set(err, -ENOENT, "%s: tensor '%s': missing", rn_gguf_name(g), name);
    }
    if (t && (t->cols != cols || t->rows != rows)) {
        return rn_err_set(err, -EINVAL, "%s: tensor '%s': shape %u x %u, expected %u x %u", rn_gguf_name(g), name, t->cols, t->rows, cols,
                          rows);
    }
    const struct rn_dtype_info *info = t ? rn_dtype_find(t->type) : NULL;
    if (t && !(info && info->dequant)) {
        return rn_err_set(err, -EINVAL, "%s: type %s of tensor '%s' cannot be loaded", rn_gguf_name(g), info ? info->name : "?", name);
    }
    *ret = t;
    return 0;
}

int rn_weights_need(const struct rn_tensor **ret, const struct rn_gguf *g, uint32_t cols, uint32_t rows, struct rn_err *err,
                    const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int e = bind(ret, g, cols, rows, /*is_required=*/true, err, format, args);
    va_end(args);
    return e;
}

int rn_weights_want(const struct rn_tensor **ret, const struct rn_gguf *g, uint32_t cols, uint32_t rows, struct rn_err *err,
                    const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int e = bind(ret, g, cols, rows, /*is_required=*/false, err, format, args);
    va_end(args);
    return e;
}

// Chained by the seed: each piece is hashed with the hash of what came before, its length included.
static uint64_t add(uint64_t h, const void *data, size_t len)
{
    h = XXH3_64bits_withSeed(data, len, h);
    return h ^ len * UINT64_C(0x9e3779b97f4a7c15); // pieces cannot trade bytes across their border
}

static uint64_t add_u32(uint64_t h, uint32_t v)
{
    return add(h, &v, sizeof v);
}

static uint64_t add_kv(uint64_t h, const struct rn_gguf_kv *kv)
{
    h = add(h, kv->key.data, kv->key.len);
    h = add_u32(h, (uint32_t)kv->type << 8 | (kv->type == RN_GGUF_ARR ? (uint32_t)kv->elem : 0));
    return add(h, kv->value, kv->bytes);
}

static uint64_t add_tensor(uint64_t h, const struct rn_tensor *t)
{
    h = add(h, t->name, strlen(t->name));
    h = add_u32(add_u32(add_u32(h, (uint32_t)t->type), t->cols), t->rows);
    if (t->bytes <= SAMPLE_BYTES) {
        return add(h, t->data, t->bytes);
    }
    const uint8_t *data = t->data;
    size_t piece = SAMPLE_BYTES / 3;
    h = add(h, data, piece);
    h = add(h, data + (t->bytes - piece) / 2, piece);
    return add(h, data + t->bytes - piece, piece);
}

uint64_t rn_weights_fingerprint(const struct rn_gguf *g)
{
    // What changes the computation: the architecture and the keys under its prefix. In key order, so that a rewritten header with the
    // same content is the same model.
    struct rn_gguf_str arch = {"", 0};
    (void)rn_gguf_get_str(g, "general.architecture", &arch, /*err=*/NULL); // of another type: no prefix to look for
    uint64_t h = add(0, arch.data, arch.len);
    for (size_t i = 0; i < g->n_kvs; i++) {
        const struct rn_gguf_kv *kv = g->kv_index[i];
        if (kv->key.len > arch.len && memcmp(kv->key.data, arch.data, arch.len) == 0 && kv->key.data[arch.len] == '.') {
            h = add_kv(h, kv);
        }
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        h = add_tensor(h, &g->tensors[i]);
    }
    return h;
}
