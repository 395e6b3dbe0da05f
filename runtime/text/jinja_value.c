/* Arena, values, dicts and text of the template language; see the header for the invariants. */
#include "runtime/text/jinja_value.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/text/template.h"

#define CHUNK_BYTES ((size_t)16 << 10)
#define CHUNK_MAX_BYTES ((size_t)4 << 20)
#define APPEND_FROM 256 /* bytes; shorter texts are cheaper to copy */
#define INDEX_FROM 9 /* below, comparing a few hashes is faster than an index */

struct rn_jinja_chunk {
    struct rn_jinja_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

void rn_jinja_arena_finish(struct rn_jinja_arena *a)
{
    while (a->head) {
        struct rn_jinja_chunk *next = a->head->next;
        rn_mem_free(a->head);
        a->head = next;
    }
    a->used = 0;
}

void *rn_jinja_arena_alloc(struct rn_jinja_arena *a, size_t n, size_t size)
{
    size_t bytes;
    if (!rn_mem_array(n, size, &bytes) || bytes > a->limit - a->used) {
        return NULL;
    }
    bytes = (bytes + 15) & ~(size_t)15;
    struct rn_jinja_chunk *c = a->head;
    if (!c || c->cap - c->used < bytes) {
        /* Chunks grow with the arena, so that a small rendering is one small allocation and a large one few. */
        size_t cap = a->used < CHUNK_BYTES ? CHUNK_BYTES : a->used < CHUNK_MAX_BYTES ? a->used : CHUNK_MAX_BYTES;
        cap = bytes > cap ? bytes : cap;
        c = rn_mem_alloc(sizeof(*c) + cap, 1);
        if (!c) {
            return NULL;
        }
        c->cap = cap;
        c->next = a->head;
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    a->used = bytes > a->limit - a->used ? a->limit : a->used + bytes;
    return p;
}

/* Line and column (in characters) of an offset, both from 1. */
static void position(const struct rn_jinja_run *run, size_t *ret_line, size_t *ret_column)
{
    *ret_line = 1;
    *ret_column = 1;
    for (size_t i = 0; i < run->at && i < run->source_len; i++) {
        if (run->source[i] == '\n') {
            (*ret_line)++;
            *ret_column = 1;
        } else if (((unsigned char)run->source[i] & 0xc0) != 0x80) {
            (*ret_column)++;
        }
    }
}

int rn_jinja_fail(struct rn_jinja_run *run, int code, const char *format, ...)
{
    if (!run->err) {
        return code;
    }
    char text[RN_ERR_TEXT];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    size_t line, column;
    position(run, &line, &column);
    return rn_err_set(run->err, code, "line %zu, column %zu: %s", line, column, text);
}

void *rn_jinja_alloc(struct rn_jinja_run *run, size_t n, size_t size)
{
    void *p = rn_jinja_arena_alloc(&run->arena, n, size);
    if (!p) {
        size_t bytes;
        if (!rn_mem_array(n, size, &bytes) || bytes > run->arena.limit - run->arena.used) {
            run->arena.used = run->arena.limit; /* so that rn_jinja_alloc_code knows which of the two it was */
            rn_jinja_fail(run, -E2BIG, "the template needs more than %zu MiB of memory", run->arena.limit >> 20);
        } else {
            rn_err_nomem(run->err, bytes, "a chat template");
        }
    }
    return p;
}

int rn_jinja_alloc_code(const struct rn_jinja_run *run)
{
    return run->arena.used >= run->arena.limit ? -E2BIG : -ENOMEM;
}

int rn_jinja_step(struct rn_jinja_run *run, uint64_t n)
{
    run->steps += n;
    if (run->steps > RN_JINJA_MAX_STEPS) {
        return rn_jinja_fail(run, -E2BIG, "the template takes more than %llu steps", (unsigned long long)RN_JINJA_MAX_STEPS);
    }
    return 0;
}

int rn_jinja_enter(struct rn_jinja_run *run)
{
    if (run->depth >= RN_JINJA_MAX_EVAL_DEPTH) {
        return rn_jinja_fail(run, -E2BIG, "nested more than %d levels deep", RN_JINJA_MAX_EVAL_DEPTH);
    }
    run->depth++;
    return rn_jinja_step(run, 1);
}

void rn_jinja_leave(struct rn_jinja_run *run)
{
    run->depth--;
}

struct rn_jinja_value rn_jinja_none(void)
{
    return (struct rn_jinja_value){.kind = RN_JINJA_NONE, .own = RN_JINJA_OWN};
}

struct rn_jinja_value rn_jinja_bool(bool b)
{
    return (struct rn_jinja_value){.kind = RN_JINJA_BOOL, .own = RN_JINJA_OWN, .u.b = b};
}

struct rn_jinja_value rn_jinja_int(int64_t i)
{
    return (struct rn_jinja_value){.kind = RN_JINJA_INT, .own = RN_JINJA_OWN, .u.i = i};
}

struct rn_jinja_value rn_jinja_float(double f)
{
    return (struct rn_jinja_value){.kind = RN_JINJA_FLOAT, .own = RN_JINJA_OWN, .u.f = f};
}

struct rn_jinja_value rn_jinja_undefined(const char *owner, const char *name, size_t len)
{
    return (struct rn_jinja_value){.kind = RN_JINJA_UNDEFINED, .u.undef = {.name = name, .owner = owner, .len = len}};
}

struct rn_jinja_value rn_jinja_string(const char *data, size_t len, enum rn_jinja_own own)
{
    return (struct rn_jinja_value){.kind = RN_JINJA_STRING, .own = (uint8_t)own, .u.s = {.data = data, .len = len}};
}

struct rn_jinja_value rn_jinja_own_str(const char *s)
{
    return rn_jinja_string(s, strlen(s), RN_JINJA_OWN);
}

bool rn_jinja_is_undefined(const struct rn_jinja_value *v)
{
    return v->kind == RN_JINJA_UNDEFINED;
}

bool rn_jinja_is_text(const struct rn_jinja_value *v, const char *s)
{
    size_t len = strlen(s);
    return v->kind == RN_JINJA_STRING && v->u.s.len == len && memcmp(v->u.s.data, s, len) == 0;
}

const char *rn_jinja_type_name(const struct rn_jinja_value *v)
{
    static const char *const flavours[] = {"list", "tuple", "range", "dict_items", "generator"};
    switch ((enum rn_jinja_kind)v->kind) {
    case RN_JINJA_MISSING:
    case RN_JINJA_UNDEFINED: return "Undefined";
    case RN_JINJA_NONE: return "None";
    case RN_JINJA_BOOL: return "bool";
    case RN_JINJA_INT: return "int";
    case RN_JINJA_FLOAT: return "float";
    case RN_JINJA_STRING: return "str";
    case RN_JINJA_LIST: return flavours[v->u.list->flavour];
    case RN_JINJA_DICT: return "dict";
    case RN_JINJA_NAMESPACE: return "namespace";
    case RN_JINJA_MACRO: return "macro";
    case RN_JINJA_FUNCTION: return "function";
    case RN_JINJA_LOOP: return "loop";
    }
    return "?";
}

struct rn_jinja_value rn_jinja_part(const struct rn_jinja_value *s, size_t from, size_t to)
{
    struct rn_jinja_value v = *s;
    v.u.s.data += from;
    v.u.s.len = to - from;
    if (v.own == RN_JINJA_MIXED) {
        v.u.s.mask += from;
    }
    return v;
}

int rn_jinja_list_new(struct rn_jinja_run *run, size_t n, enum rn_jinja_flavour flavour, struct rn_jinja_value *ret)
{
    struct rn_jinja_list *l = rn_jinja_alloc(run, 1, sizeof(*l));
    struct rn_jinja_value *items = l ? rn_jinja_alloc(run, n, sizeof(*items)) : NULL;
    if (!items) {
        return rn_jinja_alloc_code(run);
    }
    *l = (struct rn_jinja_list){.items = items, .n = n, .flavour = flavour};
    *ret = (struct rn_jinja_value){.kind = RN_JINJA_LIST, .u.list = l};
    return 0;
}

int rn_jinja_pair_new(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, struct rn_jinja_value *ret)
{
    struct rn_jinja_value pair;
    int r = rn_jinja_list_new(run, 2, RN_JINJA_F_TUPLE, &pair);
    if (r == 0) {
        pair.u.list->items[0] = *a;
        pair.u.list->items[1] = *b;
        *ret = pair;
    }
    return r;
}

int rn_jinja_dict_new(struct rn_jinja_run *run, enum rn_jinja_kind kind, struct rn_jinja_value *ret)
{
    struct rn_jinja_dict *d = rn_jinja_alloc(run, 1, sizeof(*d));
    if (!d) {
        return rn_jinja_alloc_code(run);
    }
    *ret = (struct rn_jinja_value){.kind = (uint8_t)kind, .u.dict = d};
    return 0;
}

/* A number as a key: bool, int and whole floats that are equal are the same key. */
static bool key_number(const struct rn_jinja_value *v, int64_t *ret)
{
    if (v->kind == RN_JINJA_FLOAT) {
        if (!(fabs(v->u.f) < 9007199254740992.0) || v->u.f != floor(v->u.f)) {
            return false;
        }
        *ret = (int64_t)v->u.f;
        return true;
    }
    *ret = v->kind == RN_JINJA_BOOL ? (int64_t)v->u.b : v->u.i;
    return v->kind == RN_JINJA_BOOL || v->kind == RN_JINJA_INT;
}

static uint64_t hash_bytes(const char *p, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ len;
    while (len >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
        p += 8;
        len -= 8;
    }
    for (; len > 0; len--) {
        h = (h ^ (unsigned char)*p++) * 0x100000001b3u;
    }
    h = (h ^ (h >> 29)) * 0xc4ceb9fe1a85ec53u;
    return h ^ (h >> 32);
}

/* False: not a possible key (a list, dict, macro, undefined …). Tuples are not supported as keys either. */
static bool key_hash(const struct rn_jinja_value *key, uint64_t *ret)
{
    int64_t i;
    if (key->kind == RN_JINJA_STRING) {
        *ret = hash_bytes(key->u.s.data, key->u.s.len);
    } else if (key_number(key, &i)) {
        *ret = hash_bytes((const char *)&i, sizeof(i));
    } else if (key->kind == RN_JINJA_FLOAT) {
        *ret = hash_bytes((const char *)&key->u.f, sizeof(key->u.f));
    } else if (key->kind == RN_JINJA_NONE) {
        *ret = 1;
    } else {
        return false;
    }
    return true;
}

static bool key_equal(const struct rn_jinja_value *a, const struct rn_jinja_value *b)
{
    if (a->kind == RN_JINJA_STRING || b->kind == RN_JINJA_STRING) {
        return a->kind == b->kind && a->u.s.len == b->u.s.len && memcmp(a->u.s.data, b->u.s.data, a->u.s.len) == 0;
    }
    int64_t i = 0, j = 0;
    bool whole_a = key_number(a, &i);
    bool whole_b = key_number(b, &j);
    if (whole_a || whole_b) {
        return whole_a && whole_b && i == j;
    }
    return a->kind == b->kind && (a->kind == RN_JINJA_NONE || a->u.f == b->u.f);
}

static struct rn_jinja_pair *find_pair(const struct rn_jinja_dict *d, const struct rn_jinja_value *key, uint64_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->pairs[i].hash == hash && key_equal(&d->pairs[i].key, key)) {
                return &d->pairs[i];
            }
        }
        return NULL;
    }
    for (size_t slot = hash & (d->n_index - 1); d->index[slot]; slot = (slot + 1) & (d->n_index - 1)) {
        struct rn_jinja_pair *p = &d->pairs[d->index[slot] - 1];
        if (p->hash == hash && key_equal(&p->key, key)) {
            return p;
        }
    }
    return NULL;
}

struct rn_jinja_value *rn_jinja_dict_find(const struct rn_jinja_dict *d, const struct rn_jinja_value *key)
{
    uint64_t hash;
    struct rn_jinja_pair *p = key_hash(key, &hash) ? find_pair(d, key, hash) : NULL;
    return p ? &p->value : NULL;
}

static void index_pair(struct rn_jinja_dict *d, size_t i)
{
    size_t slot = d->pairs[i].hash & (d->n_index - 1);
    while (d->index[slot]) {
        slot = (slot + 1) & (d->n_index - 1);
    }
    d->index[slot] = (uint32_t)i + 1;
}

/* Room for one more pair; the index stays at most half full. */
static int dict_grow(struct rn_jinja_run *run, struct rn_jinja_dict *d)
{
    if (d->n < d->cap) {
        return 0;
    }
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct rn_jinja_pair *pairs = rn_jinja_alloc(run, cap, sizeof(*pairs));
    uint32_t *index = NULL;
    if (pairs && cap >= INDEX_FROM) {
        index = rn_jinja_alloc(run, cap * 2, sizeof(*index));
    }
    if (!pairs || (cap >= INDEX_FROM && !index)) {
        return rn_jinja_alloc_code(run);
    }
    if (d->n) {
        memcpy(pairs, d->pairs, d->n * sizeof(*pairs));
    }
    d->pairs = pairs;
    d->cap = cap;
    d->index = index;
    d->n_index = index ? cap * 2 : 0;
    for (size_t i = 0; index && i < d->n; i++) {
        index_pair(d, i);
    }
    return 0;
}

int rn_jinja_dict_set(struct rn_jinja_run *run, struct rn_jinja_dict *d, const struct rn_jinja_value *key, const struct rn_jinja_value *value)
{
    uint64_t hash;
    if (!key_hash(key, &hash)) {
        return rn_jinja_fail(run, -EINVAL, "a %s cannot be a key", rn_jinja_type_name(key));
    }
    struct rn_jinja_pair *p = find_pair(d, key, hash);
    if (p) {
        p->value = *value;
        return 0;
    }
    int r = dict_grow(run, d);
    if (r < 0) {
        return r;
    }
    d->pairs[d->n] = (struct rn_jinja_pair){.key = *key, .value = *value, .hash = hash};
    d->n++;
    if (d->index) {
        index_pair(d, d->n - 1);
    }
    return 0;
}

static int from_json(struct rn_jinja_run *run, const json_t *j, unsigned depth, struct rn_jinja_value *ret);

static int array_from_json(struct rn_jinja_run *run, const json_t *j, unsigned depth, struct rn_jinja_value *ret)
{
    int r = rn_jinja_list_new(run, json_array_size(j), RN_JINJA_F_LIST, ret);
    for (size_t i = 0; r == 0 && i < ret->u.list->n; i++) {
        r = from_json(run, json_array_get(j, i), depth + 1, &ret->u.list->items[i]);
    }
    return r;
}

static int object_from_json(struct rn_jinja_run *run, const json_t *j, unsigned depth, struct rn_jinja_value *ret)
{
    int r = rn_jinja_dict_new(run, RN_JINJA_DICT, ret);
    json_t *object = (json_t *)j; /* jansson's iterators take no const; they only read */
    for (void *it = json_object_iter(object); r == 0 && it; it = json_object_iter_next(object, it)) {
        const char *name = json_object_iter_key(it);
        struct rn_jinja_value key = rn_jinja_string(name, strlen(name), RN_JINJA_DATA);
        struct rn_jinja_value value;
        r = from_json(run, json_object_iter_value(it), depth + 1, &value);
        if (r == 0) {
            r = rn_jinja_dict_set(run, ret->u.dict, &key, &value);
        }
    }
    return r;
}

static int from_json(struct rn_jinja_run *run, const json_t *j, unsigned depth, struct rn_jinja_value *ret)
{
    if (depth > RN_JINJA_MAX_VALUE_DEPTH) {
        return rn_err_set(run->err, -E2BIG, "the variables are nested more than %d levels deep", RN_JINJA_MAX_VALUE_DEPTH);
    }
    switch (json_typeof(j)) {
    case JSON_OBJECT: return object_from_json(run, j, depth, ret);
    case JSON_ARRAY: return array_from_json(run, j, depth, ret);
    case JSON_STRING: *ret = rn_jinja_string(json_string_value(j), json_string_length(j), RN_JINJA_DATA); return 0;
    case JSON_INTEGER: *ret = rn_jinja_int(json_integer_value(j)); break;
    case JSON_REAL: *ret = rn_jinja_float(json_real_value(j)); break;
    case JSON_TRUE: *ret = rn_jinja_bool(true); break;
    case JSON_FALSE: *ret = rn_jinja_bool(false); break;
    case JSON_NULL: *ret = rn_jinja_none(); break;
    }
    ret->own = RN_JINJA_DATA;
    return 0;
}

int rn_jinja_from_json(struct rn_jinja_run *run, const json_t *j, struct rn_jinja_value *ret)
{
    return from_json(run, j, 0, ret);
}

struct rn_jinja_value *rn_jinja_items_grow(struct rn_jinja_run *run, struct rn_jinja_items *items)
{
    if (items->n == items->cap) {
        size_t cap = items->cap ? items->cap * 2 : 8;
        struct rn_jinja_value *data = rn_jinja_alloc(run, cap, sizeof(*data));
        if (!data) {
            return NULL;
        }
        if (items->n) {
            memcpy(data, items->data, items->n * sizeof(*data));
        }
        items->data = data;
        items->cap = cap;
    }
    return &items->data[items->n++];
}

int rn_jinja_items_add(struct rn_jinja_run *run, struct rn_jinja_items *items, const struct rn_jinja_value *v)
{
    struct rn_jinja_value *slot = rn_jinja_items_grow(run, items);
    if (!slot) {
        return rn_jinja_alloc_code(run);
    }
    *slot = *v;
    return 0;
}

int rn_jinja_items_list(struct rn_jinja_run *run, const struct rn_jinja_items *items, enum rn_jinja_flavour flavour,
                        struct rn_jinja_value *ret)
{
    int r = rn_jinja_list_new(run, 0, flavour, ret);
    if (r == 0) {
        ret->u.list->items = items->data;
        ret->u.list->n = items->n;
    }
    return r;
}

static int sink_reserve(struct rn_jinja_run *run, struct rn_jinja_sink *k, size_t extra)
{
    if (extra <= k->cap - k->len) {
        return 0;
    }
    if (extra > RN_TEMPLATE_MAX_OUTPUT - k->len) {
        return rn_jinja_fail(run, -E2BIG, "a text of more than %u MiB", RN_TEMPLATE_MAX_OUTPUT >> 20);
    }
    size_t cap = k->cap ? k->cap * 2 : 64;
    cap = cap < k->len + extra ? k->len + extra : cap;
    char *data = rn_jinja_alloc(run, cap, 2);
    if (!data) {
        return rn_jinja_alloc_code(run);
    }
    if (k->len) {
        memcpy(data, k->data, k->len);
        memcpy(data + cap, k->mask, k->len);
    }
    k->data = data;
    k->mask = data + cap;
    k->cap = cap;
    return 0;
}

int rn_jinja_put(struct rn_jinja_run *run, struct rn_jinja_sink *k, const char *data, size_t len, bool own)
{
    int r = sink_reserve(run, k, len);
    if (r < 0 || len == 0) {
        return r;
    }
    memcpy(k->data + k->len, data, len);
    memset(k->mask + k->len, own, len);
    k->len += len;
    return rn_jinja_step(run, len / 64);
}

int rn_jinja_put_str(struct rn_jinja_run *run, struct rn_jinja_sink *k, const char *s, bool own)
{
    return rn_jinja_put(run, k, s, strlen(s), own);
}

int rn_jinja_put_value(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *s)
{
    size_t at = k->len;
    int r = rn_jinja_put(run, k, s->u.s.data, s->u.s.len, s->own == RN_JINJA_OWN);
    if (r == 0 && s->own == RN_JINJA_MIXED) {
        memcpy(k->mask + at, s->u.s.mask, s->u.s.len);
    }
    return r;
}

/* The sink that a can be continued in: its own, or a new one with a copy. NULL: failed. */
static struct rn_jinja_sink *sink_behind(struct rn_jinja_run *run, const struct rn_jinja_value *a)
{
    struct rn_jinja_sink *k = a->u.s.sink;
    if (k && k->data == a->u.s.data && k->len == a->u.s.len) {
        return k;
    }
    k = rn_jinja_alloc(run, 1, sizeof(*k));
    return k && rn_jinja_put_value(run, k, a) == 0 ? k : NULL;
}

int rn_jinja_append(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, struct rn_jinja_value *ret)
{
    struct rn_jinja_sink small = {0}, *k = &small;
    bool keep = a->u.s.len >= APPEND_FROM;
    if (keep) {
        k = sink_behind(run, a);
    }
    int r = !k ? rn_jinja_alloc_code(run) : keep ? 0 : rn_jinja_put_value(run, k, a);
    r = r < 0 ? r : rn_jinja_put_value(run, k, b);
    if (r < 0) {
        return r;
    }
    uint8_t own = b->u.s.len == 0 ? a->own : a->u.s.len == 0 || a->own == b->own ? b->own : (uint8_t)RN_JINJA_MIXED;
    *ret = rn_jinja_string(k->data ? k->data : "", k->len, (enum rn_jinja_own)own);
    ret->u.s.mask = k->mask;
    ret->u.s.sink = keep ? k : NULL;
    return 0;
}

struct rn_jinja_value rn_jinja_sink_value(const struct rn_jinja_sink *k)
{
    struct rn_jinja_value v = rn_jinja_string(k->data ? k->data : "", k->len, RN_JINJA_OWN);
    v.u.s.mask = k->mask;
    if (k->len && memchr(k->mask, 0, k->len)) {
        v.own = memchr(k->mask, 1, k->len) ? RN_JINJA_MIXED : RN_JINJA_DATA;
    }
    return v;
}
