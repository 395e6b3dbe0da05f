/* The header of a GGUF file: counts, key-value pairs, tensor table, and where each tensor's data lies.
 *
 *   "GGUF" | u32 version | u64 n_tensors | u64 n_kv | n_kv pairs | n_tensors entries | padding | data
 *
 * I1  Nothing is read before the reader has checked that so many bytes remain (need()).
 * I2  No count is used for an allocation before it was bounded by the bytes that remain, each entry taking its smallest size, and by
 *     a named limit; so memory stays within a small multiple of the file.
 * I3  Duplicates are found by sorting, so a million keys cost n log n comparisons.
 * I4  Tensors follow each other without gaps or overlaps: each offset is the running sum of the padded sizes before it.
 * Values stay where they are in the file; only tensor names are copied, because their readers want a NUL. */
#include "runtime/model/gguf_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define MAX_KVS (1u << 20)       // real files have about 50
#define MAX_TENSORS (1u << 20)   // real files have at most some thousands
#define MAX_KEY 65535u           // the specification's limit
#define MAX_STRING (1u << 30)    // the format's other readers stop here too
#define MAX_ARRAY (1u << 30)
#define MAX_ALIGNMENT 65536u     // the largest page size; anything above is no alignment
#define DEFAULT_ALIGNMENT 32u
#define MIN_KV_BYTES 13u         // empty key (8), type (4), one byte
#define MIN_TENSOR_BYTES 32u     // empty name (8), n_dims (4), one dimension (8), type (4), offset (8)

struct reader {
    const uint8_t *data;
    size_t len, pos;             // pos <= len
};

static const struct {
    const char *name;
    uint8_t bytes;               // 0: of variable length
} types[] = {
    [RN_GGUF_U8] = {"u8", 1},   [RN_GGUF_I8] = {"i8", 1},   [RN_GGUF_U16] = {"u16", 2},      [RN_GGUF_I16] = {"i16", 2},
    [RN_GGUF_U32] = {"u32", 4}, [RN_GGUF_I32] = {"i32", 4}, [RN_GGUF_F32] = {"f32", 4},      [RN_GGUF_BOOL] = {"bool", 1},
    [RN_GGUF_STR] = {"string", 0}, [RN_GGUF_ARR] = {"array", 0}, [RN_GGUF_U64] = {"u64", 8}, [RN_GGUF_I64] = {"i64", 8},
    [RN_GGUF_F64] = {"f64", 8},
};
#define N_TYPES (sizeof types / sizeof *types)

const char *rn_gguf_type_name(enum rn_gguf_type type)
{
    return (size_t)type < N_TYPES ? types[type].name : "?";
}

const char *rn_gguf_quote(struct rn_gguf_str s, char buf[RN_GGUF_QUOTE])
{
    size_t n = s.len < RN_GGUF_QUOTE ? s.len : RN_GGUF_QUOTE - 4;
    for (size_t i = 0; i < n; i++) {
        buf[i] = s.data[i] >= ' ' && s.data[i] <= '~' ? s.data[i] : '?';
    }
    memcpy(buf + n, s.len > n ? "..." : "", s.len > n ? 4 : 1);
    return buf;
}

int rn_gguf_str_compare(struct rn_gguf_str a, struct rn_gguf_str b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.data, b.data, n) : 0;
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static int need(const struct reader *r, uint64_t bytes, const char *what, struct rn_err *err)
{
    if (bytes <= r->len - r->pos) {
        return 0;
    }
    return rn_err_set(err, -EINVAL, "%s needs %" PRIu64 " bytes at offset %zu, but the file ends at %zu", what, bytes, r->pos, r->len);
}

static int read_u32(struct reader *r, uint32_t *ret, const char *what, struct rn_err *err)
{
    int e = need(r, sizeof *ret, what, err);
    if (!e) {
        memcpy(ret, r->data + r->pos, sizeof *ret);
        r->pos += sizeof *ret;
    }
    return e;
}

static int read_u64(struct reader *r, uint64_t *ret, const char *what, struct rn_err *err)
{
    int e = need(r, sizeof *ret, what, err);
    if (!e) {
        memcpy(ret, r->data + r->pos, sizeof *ret);
        r->pos += sizeof *ret;
    }
    return e;
}

static int read_str(struct reader *r, struct rn_gguf_str *ret, uint64_t max, const char *what, struct rn_err *err)
{
    uint64_t len;
    int e = read_u64(r, &len, what, err);
    if (e) {
        return e;
    }
    if (len > max) {
        return rn_err_set(err, -EINVAL, "%s is %" PRIu64 " bytes long, at most %" PRIu64 " are allowed", what, len, max);
    }
    e = need(r, len, what, err);
    if (!e) {
        *ret = (struct rn_gguf_str){(const char *)r->data + r->pos, (size_t)len};
        r->pos += (size_t)len;
    }
    return e;
}

static int check_bools(const uint8_t *p, size_t n, struct rn_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] > 1) {
            return rn_err_set(err, -EINVAL, "a bool is %u, expected 0 or 1", p[i]);
        }
    }
    return 0;
}

static int read_array(struct reader *r, struct rn_gguf_kv *kv, struct rn_err *err)
{
    uint32_t elem;
    int e = read_u32(r, &elem, "an array's type", err);
    e = e ? e : read_u64(r, &kv->n, "an array's length", err);
    if (e) {
        return e;
    }
    if (elem == RN_GGUF_ARR) {
        return rn_err_set(err, -EINVAL, "an array of arrays, nested arrays are not allowed");
    }
    if (elem >= N_TYPES) {
        return rn_err_set(err, -EINVAL, "array of type %u, the largest type is %zu", elem, N_TYPES - 1);
    }
    if (kv->n > MAX_ARRAY) {
        return rn_err_set(err, -EINVAL, "array of %" PRIu64 " elements, at most %u are allowed", kv->n, MAX_ARRAY);
    }
    kv->elem = (enum rn_gguf_type)elem;
    kv->value = r->data + r->pos;
    size_t start = r->pos;
    if (elem == RN_GGUF_STR) {
        e = need(r, kv->n * 8, "an array of strings", err);
        for (uint64_t i = 0; i < kv->n && !e; i++) {
            struct rn_gguf_str s;
            e = read_str(r, &s, MAX_STRING, "a string in an array", err);
        }
    } else {
        uint64_t bytes = kv->n * types[elem].bytes;
        e = need(r, bytes, "an array", err);
        r->pos += e ? 0 : (size_t)bytes;
    }
    kv->bytes = r->pos - start;
    return e || elem != RN_GGUF_BOOL ? e : check_bools(kv->value, kv->bytes, err);
}

static int read_value(struct reader *r, struct rn_gguf_kv *kv, struct rn_err *err)
{
    uint32_t type;
    int e = read_u32(r, &type, "the value's type", err);
    if (e) {
        return e;
    }
    if (type >= N_TYPES) {
        return rn_err_set(err, -EINVAL, "value of type %u, the largest type is %zu", type, N_TYPES - 1);
    }
    kv->type = (enum rn_gguf_type)type;
    if (type == RN_GGUF_ARR) {
        return read_array(r, kv, err);
    }
    if (type == RN_GGUF_STR) {
        struct rn_gguf_str s;
        e = read_str(r, &s, MAX_STRING, "the string", err);
        if (!e) {
            kv->value = (const uint8_t *)s.data;
            kv->bytes = s.len;
        }
        return e;
    }
    kv->bytes = types[type].bytes;
    kv->value = r->data + r->pos;
    e = need(r, kv->bytes, "the value", err);
    r->pos += e ? 0 : kv->bytes;
    return e || type != RN_GGUF_BOOL ? e : check_bools(kv->value, 1, err);
}

static int compare_kvs(const void *a, const void *b)
{
    const struct rn_gguf_kv *const *x = a, *const *y = b;
    return rn_gguf_str_compare((*x)->key, (*y)->key);
}

static int compare_tensors(const void *a, const void *b)
{
    const struct rn_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

// Bounds a count by what can still follow in the file (I2).
static int check_count(const struct reader *r, uint64_t n, uint64_t each, uint64_t max, const char *what, struct rn_err *err)
{
    if (n > max) {
        return rn_err_set(err, -EINVAL, "%" PRIu64 " %s, at most %" PRIu64 " are allowed", n, what, max);
    }
    if (n > (r->len - r->pos) / each) {
        return rn_err_set(err, -EINVAL, "%" PRIu64 " %s do not fit in a file of %zu bytes", n, what, r->len);
    }
    return 0;
}

static int read_kvs(struct rn_gguf *g, struct reader *r, uint64_t n, struct rn_err *err)
{
    char quoted[RN_GGUF_QUOTE];
    int e = check_count(r, n, MIN_KV_BYTES, MAX_KVS, "keys", err);
    if (e) {
        return e;
    }
    g->kvs = rn_mem_alloc((size_t)n, sizeof *g->kvs);
    g->kv_index = rn_mem_alloc((size_t)n, sizeof *g->kv_index);
    if (!g->kvs || !g->kv_index) {
        return rn_err_nomem(err, (size_t)n * sizeof *g->kvs, "keys");
    }
    for (size_t i = 0; i < n; i++) {
        struct rn_gguf_kv *kv = &g->kvs[i];
        e = read_str(r, &kv->key, MAX_KEY, "a key", err);
        if (e) {
            return rn_err_prefix(err, "key %zu", i);
        }
        e = read_value(r, kv, err);
        if (e) {
            return rn_err_prefix(err, "key '%s'", rn_gguf_quote(kv->key, quoted));
        }
        g->kv_index[i] = kv;
    }
    g->n_kvs = (size_t)n;
    qsort(g->kv_index, g->n_kvs, sizeof *g->kv_index, compare_kvs);
    for (size_t i = 1; i < n; i++) {
        if (rn_gguf_str_compare(g->kv_index[i - 1]->key, g->kv_index[i]->key) == 0) {
            return rn_err_set(err, -EINVAL, "key '%s' appears twice", rn_gguf_quote(g->kv_index[i]->key, quoted));
        }
    }
    return 0;
}

// The shape: cols = ne[0], rows = the product of the others; both fit 32 bits.
static int read_shape(struct reader *r, struct rn_tensor *t, struct rn_err *err)
{
    uint32_t n_dims;
    int e = read_u32(r, &n_dims, "the number of dimensions", err);
    if (e) {
        return e;
    }
    if (n_dims < 1 || n_dims > 4) {
        return rn_err_set(err, -EINVAL, "%u dimensions, expected 1 to 4", n_dims);
    }
    uint64_t cols = 0, rows = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t ne;
        e = read_u64(r, &ne, "a dimension", err);
        if (e) {
            return e;
        }
        if (ne < 1 || ne > UINT32_MAX) {
            return rn_err_set(err, -EINVAL, "dimension %u is %" PRId64 ", expected 1 to %u", i, (int64_t)ne, UINT32_MAX);
        }
        cols = i == 0 ? ne : cols;
        rows = i == 0 ? 1 : rows * ne; // both factors are below 2^32
        if (rows > UINT32_MAX) {
            return rn_err_set(err, -EINVAL, "%" PRIu64 " rows, at most %u are allowed", rows, UINT32_MAX);
        }
    }
    t->cols = (uint32_t)cols;
    t->rows = (uint32_t)rows;
    return 0;
}

// The type, and with it the size in bytes, which must not be larger than the file.
static int read_type(const struct rn_gguf *g, struct reader *r, struct rn_tensor *t, struct rn_err *err)
{
    uint32_t id;
    int e = read_u32(r, &id, "the type", err);
    if (e) {
        return e;
    }
    const struct rn_dtype_info *info = rn_dtype_find(id);
    if (!info) {
        return rn_err_set(err, -EINVAL, "type number %u is not known", id);
    }
    if (!info->block_len) {
        return rn_err_set(err, -EINVAL, "type %s cannot be loaded", info->name);
    }
    if (t->cols % info->block_len) {
        return rn_err_set(err, -EINVAL, "rows of %u elements, but type %s comes in blocks of %u", t->cols, info->name, info->block_len);
    }
    uint64_t row_bytes = (uint64_t)(t->cols / info->block_len) * info->block_bytes;
    if (row_bytes > g->len / t->rows) {
        return rn_err_set(err, -EINVAL, "%u x %u elements of type %s do not fit in a file of %zu bytes", t->cols, t->rows, info->name,
                          g->len);
    }
    t->type = (enum rn_dtype)id;
    t->bytes = (size_t)row_bytes * t->rows;
    return 0;
}

static int read_tensor_name(struct reader *r, struct rn_gguf_name *name, struct rn_err *err)
{
    struct rn_gguf_str s;
    char quoted[RN_GGUF_QUOTE];
    int e = read_str(r, &s, sizeof name->text - 1, "its name", err);
    if (e) {
        return e;
    }
    if (memchr(s.data, 0, s.len)) {
        return rn_err_set(err, -EINVAL, "its name '%s' contains a NUL byte", rn_gguf_quote(s, quoted));
    }
    memcpy(name->text, s.data, s.len);
    return 0;
}

// One entry. *sum: padded bytes of the tensors before it; the offset stays in t->data until the data section's start is known.
static int read_tensor(const struct rn_gguf *g, struct reader *r, struct rn_tensor *t, uint32_t alignment, uint64_t *sum,
                       struct rn_err *err)
{
    uint64_t offset;
    int e = read_shape(r, t, err);
    e = e ? e : read_type(g, r, t, err);
    e = e ? e : read_u64(r, &offset, "the offset", err);
    if (e) {
        return e;
    }
    if (offset != *sum) {
        return rn_err_set(err, -EINVAL, "offset %" PRIu64 ", expected %" PRIu64 " (the padded sizes of the tensors before it)", offset,
                          *sum);
    }
    // Both terms are bounded: a sum beyond the file is refused at once, and a tensor is not larger than the file.
    if (*sum > g->len || t->bytes > g->len - *sum) {
        return rn_err_set(err, -EINVAL, "%zu bytes at offset %" PRIu64 " of the data do not fit in a file of %zu bytes", t->bytes, offset,
                          g->len);
    }
    *sum += (t->bytes + (uint64_t)alignment - 1) / alignment * alignment;
    return 0;
}

// Points each tensor into the data section and checks that its bytes are there.
static int place_tensors(struct rn_gguf *g, size_t header_end, uint32_t alignment, struct rn_err *err)
{
    uint64_t at = (header_end + (uint64_t)alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct rn_tensor *t = &g->tensors[i];
        char quoted[RN_GGUF_QUOTE];
        if (at > g->len || t->bytes > g->len - at) {
            return rn_err_set(err, -EINVAL, "tensor '%s': its data is %zu bytes at offset %" PRIu64 ", but the file ends at %zu",
                              rn_gguf_quote((struct rn_gguf_str){t->name, strlen(t->name)}, quoted), t->bytes, at, g->len);
        }
        t->data = g->data + at;
        at += (t->bytes + (uint64_t)alignment - 1) / alignment * alignment;
    }
    return 0;
}

const struct rn_tensor *rn_gguf_sort_tensors(struct rn_gguf *g)
{
    qsort(g->tensor_index, g->n_tensors, sizeof *g->tensor_index, compare_tensors);
    for (size_t i = 1; i < g->n_tensors; i++) {
        if (strcmp(g->tensor_index[i - 1]->name, g->tensor_index[i]->name) == 0) {
            return g->tensor_index[i];
        }
    }
    return NULL;
}

static int read_tensors(struct rn_gguf *g, struct reader *r, uint64_t n, uint32_t alignment, struct rn_err *err)
{
    int e = check_count(r, n, MIN_TENSOR_BYTES, MAX_TENSORS, "tensors", err);
    if (e) {
        return e;
    }
    g->tensors = rn_mem_alloc((size_t)n, sizeof *g->tensors);
    g->names = rn_mem_alloc((size_t)n, sizeof *g->names);
    g->tensor_index = rn_mem_alloc((size_t)n, sizeof *g->tensor_index);
    if (!g->tensors || !g->names || !g->tensor_index) {
        return rn_err_nomem(err, (size_t)n * sizeof *g->names, "tensors");
    }
    uint64_t sum = 0;
    char quoted[RN_GGUF_QUOTE];
    for (size_t i = 0; i < n; i++) {
        struct rn_tensor *t = &g->tensors[i];
        e = read_tensor_name(r, &g->names[i], err);
        if (e) {
            return rn_err_prefix(err, "tensor %zu", i);
        }
        t->name = g->names[i].text;
        e = read_tensor(g, r, t, alignment, &sum, err);
        if (e) {
            return rn_err_prefix(err, "tensor '%s'", rn_gguf_quote((struct rn_gguf_str){t->name, strlen(t->name)}, quoted));
        }
        g->tensor_index[i] = t;
    }
    g->n_tensors = (size_t)n;
    const struct rn_tensor *twin = rn_gguf_sort_tensors(g);
    if (twin) {
        return rn_err_set(err, -EINVAL, "tensor '%s' appears twice",
                          rn_gguf_quote((struct rn_gguf_str){twin->name, strlen(twin->name)}, quoted));
    }
    return place_tensors(g, r->pos, alignment, err);
}

static int optional_u32(const struct rn_gguf *g, const char *key, uint32_t *ret, struct rn_err *err)
{
    const struct rn_gguf_kv *kv = rn_gguf_find(g, key);
    return kv ? rn_gguf_kv_u32(kv, ret, err) : 0;
}

static int read_alignment(const struct rn_gguf *g, uint32_t *ret, struct rn_err *err)
{
    *ret = DEFAULT_ALIGNMENT;
    int e = optional_u32(g, "general.alignment", ret, err);
    if (e < 0) {
        return e;
    }
    if (!*ret || *ret & (*ret - 1) || *ret > MAX_ALIGNMENT) {
        return rn_err_set(err, -EINVAL, "key 'general.alignment': %u, expected a power of two up to %u", *ret, MAX_ALIGNMENT);
    }
    return 0;
}

static int check_version(struct reader *r, struct rn_err *err)
{
    uint32_t version;
    int e = need(r, 4, "the magic number", err);
    if (e) {
        return e;
    }
    if (memcmp(r->data, "GGUF", 4)) {
        char quoted[RN_GGUF_QUOTE];
        return rn_err_set(err, -EINVAL, "not a GGUF file: it starts with '%s', expected 'GGUF'",
                          rn_gguf_quote((struct rn_gguf_str){(const char *)r->data, 4}, quoted));
    }
    r->pos = 4;
    e = read_u32(r, &version, "the version", err);
    if (e) {
        return e;
    }
    if (version && !(version & 0xffff)) {
        return rn_err_set(err, -EINVAL, "a big-endian file, only little-endian ones can be loaded");
    }
    if (version < 2 || version > 3) {
        return rn_err_set(err, -EINVAL, "GGUF version %u, expected 2 or 3%s", version,
                          version < 2 ? " (convert the model again with today's tools)" : "");
    }
    return 0;
}

int rn_gguf_parse_header(struct rn_gguf *g, struct rn_err *err)
{
    struct reader r = {.data = g->data, .len = g->len};
    uint64_t n_tensors, n_kvs;
    uint32_t alignment;
    int e = check_version(&r, err);
    e = e ? e : read_u64(&r, &n_tensors, "the number of tensors", err);
    e = e ? e : read_u64(&r, &n_kvs, "the number of keys", err);
    e = e ? e : read_kvs(g, &r, n_kvs, err);
    e = e ? e : read_alignment(g, &alignment, err);
    return e ? e : read_tensors(g, &r, n_tensors, alignment, err);
}
