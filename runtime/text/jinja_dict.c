/* Dicts of the template language: which keys are the same key, and how they are found. */
#include "runtime/text/jinja_value.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define INDEX_FROM 9 /* below, comparing a few hashes is faster than an index */

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
