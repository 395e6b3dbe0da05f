/* GGUF files: opening, closing and looking things up. The header itself is read in gguf_parse.c.
 *
 * The file is mapped and read in place. A file that another program cuts short while it is mapped cannot be defended against here:
 * reading past its new end raises SIGBUS, as with every mapped file. */
#include "runtime/model/gguf.h"

#include <assert.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/model/gguf_internal.h"

static int create(struct rn_gguf **ret, const char *name, struct rn_err *err)
{
    struct rn_gguf *g = rn_mem_alloc(1, sizeof *g);
    if (!g || !(g->name = rn_mem_strdup(name))) {
        rn_mem_free(g);
        return rn_err_nomem(err, sizeof *g, "a model file");
    }
    *ret = g;
    return 0;
}

static int system_error(struct rn_err *err, const char *path, const char *doing, int code)
{
    char text[128];
    if (strerror_r(code, text, sizeof text)) {
        snprintf(text, sizeof text, "error %d", code);
    }
    return rn_err_set(err, -code, "%s: %s: %s", path, doing, text);
}

// Maps the open file; g->map stays NULL for files too short to be mapped, and the parser refuses those.
static int map_file(struct rn_gguf *g, int fd, struct rn_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0) {
        return system_error(err, g->name, "cannot be examined", errno);
    }
    if (!S_ISREG(st.st_mode)) {
        return rn_err_set(err, -EINVAL, "%s: not a regular file", g->name);
    }
    if ((uint64_t)st.st_size > SIZE_MAX) {
        return rn_err_set(err, -EFBIG, "%s: %" PRIu64 " bytes are more than this machine can address", g->name, (uint64_t)st.st_size);
    }
    if (st.st_size == 0) {
        return rn_err_set(err, -EINVAL, "%s: the file is empty", g->name);
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        return system_error(err, g->name, "cannot be mapped", errno);
    }
    g->map = p;
    g->data = p;
    g->len = (size_t)st.st_size;
    return 0;
}

static int finish_parse(struct rn_gguf **ret, struct rn_gguf *g, struct rn_err *err)
{
    int e = rn_gguf_parse_header(g, err);
    if (e) {
        rn_err_prefix(err, "%s", g->name);
        rn_gguf_close(g);
        return e;
    }
    *ret = g;
    return 0;
}

int rn_gguf_open_one(struct rn_gguf **ret, const char *path, struct rn_err *err)
{
    struct rn_gguf *g = NULL;
    // O_NONBLOCK: opening a named pipe must not wait for a writer; regular files ignore it.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return system_error(err, path, "cannot be opened", errno);
    }
    int e = create(&g, path, err);
    if (!e) {
        e = map_file(g, fd, err);
        if (e) {
            rn_gguf_close(g);
        }
    }
    close(fd);
    return e ? e : finish_parse(ret, g, err);
}

int rn_gguf_open(struct rn_gguf **ret, const char *path, struct rn_err *err)
{
    struct rn_err own = {0};
    struct rn_gguf *g = NULL;
    err = err ? err : &own;
    int e = rn_gguf_open_one(&g, path, err);
    if (e) {
        return e;
    }
    e = rn_gguf_join(&g, err);
    if (e) {
        rn_gguf_close(g);
        return e;
    }
    *ret = g;
    return 0;
}

int rn_gguf_parse(struct rn_gguf **ret, const void *data, size_t len, const char *name, struct rn_err *err)
{
    struct rn_err own = {0};
    struct rn_gguf *g = NULL;
    err = err ? err : &own;
    int e = create(&g, name, err);
    if (e) {
        return e;
    }
    g->data = data;
    g->len = len;
    bool is_split = false;
    e = finish_parse(&g, g, err);
    if (e) {
        return e;
    }
    e = rn_gguf_is_split(g, &is_split, err);
    if (e == 0 && is_split) {
        e = rn_err_set(err, -EINVAL, "%s: one of several parts, which are opened by the path of a file", name);
    }
    if (e) {
        rn_gguf_close(g);
        return e;
    }
    *ret = g;
    return 0;
}

void rn_gguf_close(struct rn_gguf *g)
{
    if (!g) {
        return;
    }
    for (uint32_t i = 0; i < g->n_parts; i++) {
        rn_gguf_close(g->parts[i]); // parts have none of their own
    }
    rn_mem_free(g->parts);
    rn_mem_free(g->tensor_index);
    rn_mem_free(g->names);
    rn_mem_free(g->tensors);
    rn_mem_free(g->kv_index);
    rn_mem_free(g->kvs);
    if (g->map) {
        munmap(g->map, g->len);
    }
    rn_mem_free(g->name);
    rn_mem_free(g);
}

const char *rn_gguf_name(const struct rn_gguf *g)
{
    return g->name;
}

uint32_t rn_gguf_n_parts(const struct rn_gguf *g)
{
    return g->parts ? g->n_parts : 1;
}

uint64_t rn_gguf_bytes(const struct rn_gguf *g)
{
    uint64_t bytes = g->len;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        bytes += g->parts[i]->len;
    }
    return bytes;
}

const struct rn_gguf_kv *rn_gguf_find(const struct rn_gguf *g, const char *key)
{
    struct rn_gguf_str want = {key, strlen(key)};
    size_t lo = 0, hi = g->n_kvs;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = rn_gguf_str_compare(g->kv_index[mid]->key, want);
        if (c == 0) {
            return g->kv_index[mid];
        }
        lo = c < 0 ? mid + 1 : lo;
        hi = c < 0 ? hi : mid;
    }
    return NULL;
}

static int wrong_type(const struct rn_gguf_kv *kv, const char *expected, struct rn_err *err)
{
    char quoted[RN_GGUF_QUOTE];
    return rn_err_set(err, -EINVAL, "key '%s': of type %s%s%s, expected %s", rn_gguf_quote(kv->key, quoted), rn_gguf_type_name(kv->type),
                      kv->type == RN_GGUF_ARR ? " of " : "", kv->type == RN_GGUF_ARR ? rn_gguf_type_name(kv->elem) : "", expected);
}

// Puts the file's name before the error of a look-up.
static int named(const struct rn_gguf *g, int e, struct rn_err *err)
{
    if (e < 0 && err) {
        (void)rn_err_prefix(err, "%s", g->name); // the code is e already
    }
    return e;
}

// A little-endian integer of any of the types, as sign and magnitude bits. Returns false for other types.
static bool load_integer(const struct rn_gguf_kv *kv, uint64_t *ret, bool *ret_negative)
{
    uint64_t u = 0;
    bool is_signed = false;
    switch (kv->type) {
    case RN_GGUF_I8:
    case RN_GGUF_I16:
    case RN_GGUF_I32:
    case RN_GGUF_I64:
        is_signed = true;
        break;
    case RN_GGUF_U8:
    case RN_GGUF_U16:
    case RN_GGUF_U32:
    case RN_GGUF_U64:
        break;
    default:
        return false;
    }
    memcpy(&u, kv->value, kv->bytes);
    *ret_negative = is_signed && u >> (8 * kv->bytes - 1);
    if (*ret_negative && kv->bytes < 8) {
        u |= ~UINT64_C(0) << (8 * kv->bytes);
    }
    *ret = u;
    return true;
}

int rn_gguf_kv_u32(const struct rn_gguf_kv *kv, uint32_t *ret, struct rn_err *err)
{
    uint64_t v;
    bool negative;
    if (!load_integer(kv, &v, &negative)) {
        return wrong_type(kv, "an integer", err);
    }
    if (negative || v > UINT32_MAX) {
        char quoted[RN_GGUF_QUOTE];
        return rn_err_set(err, -EINVAL, "key '%s': %s%" PRIu64 ", expected 0 to %u", rn_gguf_quote(kv->key, quoted),
                          negative ? "-" : "", negative ? 0 - v : v, UINT32_MAX);
    }
    *ret = (uint32_t)v;
    return 1;
}

int rn_gguf_get_u32(const struct rn_gguf *g, const char *key, uint32_t *ret, struct rn_err *err)
{
    const struct rn_gguf_kv *kv = rn_gguf_find(g, key);
    return kv ? named(g, rn_gguf_kv_u32(kv, ret, err), err) : 0;
}

int rn_gguf_get_f32(const struct rn_gguf *g, const char *key, float *ret, struct rn_err *err)
{
    const struct rn_gguf_kv *kv = rn_gguf_find(g, key);
    if (!kv) {
        return 0;
    }
    if (kv->type == RN_GGUF_F32) {
        memcpy(ret, kv->value, sizeof *ret);
        return 1;
    }
    if (kv->type != RN_GGUF_F64) {
        return named(g, wrong_type(kv, "f32 or f64", err), err);
    }
    double d;
    memcpy(&d, kv->value, sizeof d);
    if (isfinite(d) && fabs(d) > (double)FLT_MAX) {
        return rn_err_set(err, -EINVAL, "%s: key '%s': %g, expected a value that fits in 32 bits", g->name, key, d);
    }
    *ret = (float)d;
    return 1;
}

int rn_gguf_get_bool(const struct rn_gguf *g, const char *key, bool *ret, struct rn_err *err)
{
    const struct rn_gguf_kv *kv = rn_gguf_find(g, key);
    if (!kv) {
        return 0;
    }
    if (kv->type != RN_GGUF_BOOL) {
        return named(g, wrong_type(kv, "bool", err), err);
    }
    *ret = kv->value[0] != 0;
    return 1;
}

int rn_gguf_get_str(const struct rn_gguf *g, const char *key, struct rn_gguf_str *ret, struct rn_err *err)
{
    const struct rn_gguf_kv *kv = rn_gguf_find(g, key);
    if (!kv) {
        return 0;
    }
    if (kv->type != RN_GGUF_STR) {
        return named(g, wrong_type(kv, "string", err), err);
    }
    *ret = (struct rn_gguf_str){(const char *)kv->value, kv->bytes};
    return 1;
}

int rn_gguf_get_array(const struct rn_gguf *g, const char *key, enum rn_gguf_type type, struct rn_gguf_array *ret, struct rn_err *err)
{
    const struct rn_gguf_kv *kv = rn_gguf_find(g, key);
    if (!kv) {
        return 0;
    }
    if (kv->type != RN_GGUF_ARR || kv->elem != type) {
        char expected[32];
        snprintf(expected, sizeof expected, "array of %s", rn_gguf_type_name(type));
        return named(g, wrong_type(kv, expected, err), err);
    }
    *ret = (struct rn_gguf_array){.type = type, .n = kv->n, .data = kv->value, .bytes = kv->bytes};
    return 1;
}

struct rn_gguf_str rn_gguf_array_next_str(const struct rn_gguf_array *a, size_t *cursor)
{
    uint64_t len;
    assert(a->type == RN_GGUF_STR && *cursor < a->bytes);
    memcpy(&len, a->data + *cursor, sizeof len); // checked by the parser
    struct rn_gguf_str s = {(const char *)a->data + *cursor + sizeof len, (size_t)len};
    *cursor += sizeof len + (size_t)len;
    return s;
}

uint32_t rn_gguf_array_u32(const struct rn_gguf_array *a, uint64_t i)
{
    uint32_t v;
    assert((a->type == RN_GGUF_U32 || a->type == RN_GGUF_I32) && i < a->n);
    memcpy(&v, a->data + i * sizeof v, sizeof v);
    return v;
}

float rn_gguf_array_f32(const struct rn_gguf_array *a, uint64_t i)
{
    float v;
    assert(a->type == RN_GGUF_F32 && i < a->n);
    memcpy(&v, a->data + i * sizeof v, sizeof v);
    return v;
}

const struct rn_tensor *rn_gguf_tensor(const struct rn_gguf *g, const char *name)
{
    size_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(g->tensor_index[mid]->name, name);
        if (c == 0) {
            return g->tensor_index[mid];
        }
        lo = c < 0 ? mid + 1 : lo;
        hi = c < 0 ? hi : mid;
    }
    return NULL;
}

size_t rn_gguf_n_tensors(const struct rn_gguf *g)
{
    return g->n_tensors;
}

const struct rn_tensor *rn_gguf_tensor_at(const struct rn_gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}
