/* Values of the template language: making, naming and collecting them, and what JSON means as values. Dicts: jinja_dict.c; text under
 * construction: jinja_sink.c. */
#include "runtime/text/jinja_value.h"

#include <string.h>

#include "runtime/base/err.h"

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
