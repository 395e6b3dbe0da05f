/* Elements, items, attributes and slices of values. */
#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_eval.h"
#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

static int characters(struct rn_jinja_run *run, const struct rn_jinja_value *s, struct rn_jinja_items *ret)
{
    int r = 0;
    for (size_t pos = 0; r == 0 && pos < s->u.s.len;) {
        size_t n = rn_jinja_char_len(s->u.s.data + pos, s->u.s.len - pos);
        struct rn_jinja_value part = rn_jinja_part(s, pos, pos + n);
        r = rn_jinja_items_add(run, ret, &part);
        pos += n;
    }
    return r < 0 ? r : rn_jinja_step(run, ret->n / 8);
}

int rn_jinja_elements(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_items *ret)
{
    *ret = (struct rn_jinja_items){0};
    switch ((enum rn_jinja_kind)v->kind) {
    case RN_JINJA_LIST:
        if (v->u.list->consumed) {
            return 0;
        }
        v->u.list->consumed = v->u.list->flavour == RN_JINJA_F_GENERATOR;
        ret->data = v->u.list->items;
        ret->n = ret->cap = v->u.list->n;
        return 0;
    case RN_JINJA_STRING: return characters(run, v, ret);
    case RN_JINJA_DICT: {
        int r = 0;
        for (size_t i = 0; r == 0 && i < v->u.dict->n; i++) {
            r = rn_jinja_items_add(run, ret, &v->u.dict->pairs[i].key);
        }
        return r < 0 ? r : rn_jinja_step(run, ret->n / 8);
    }
    case RN_JINJA_UNDEFINED:
        return v->unsafe ? rn_jinja_refuse_undefined(run, v) : 0;
    default: return rn_jinja_fail(run, -EINVAL, "'%s' cannot be iterated over", rn_jinja_type_name(v));
    }
}

int rn_jinja_length(struct rn_jinja_run *run, const struct rn_jinja_value *v, int64_t *ret)
{
    switch ((enum rn_jinja_kind)v->kind) {
    case RN_JINJA_UNDEFINED: *ret = 0; return 0;
    case RN_JINJA_STRING: *ret = (int64_t)rn_jinja_n_chars(v->u.s.data, v->u.s.len); return rn_jinja_step(run, v->u.s.len / 64);
    case RN_JINJA_DICT: *ret = (int64_t)v->u.dict->n; return 0;
    case RN_JINJA_LIST:
        if (v->u.list->flavour != RN_JINJA_F_GENERATOR) {
            *ret = (int64_t)v->u.list->n;
            return 0;
        }
        break;
    default: break;
    }
    return rn_jinja_fail(run, -EINVAL, "a '%s' has no length", rn_jinja_type_name(v));
}

/* What the type itself calls `name`: a method, or something that the sandbox or we refuse. False: nothing. */
static bool own_attribute(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_text name, struct rn_jinja_value *ret,
                          int *ret_code)
{
    static const char *const numbers[] = {"real", "imag", "numerator", "denominator", "conjugate", "bit_length", "bit_count", "to_bytes",
                                          "from_bytes", "as_integer_ratio", "is_integer", "hex", "fromhex"};
    bool refused = false;
    *ret_code = 0;
    if (name.len > 1 && name.data[0] == '_' && name.data[1] == '_') {
        refused = true;
    }
    const struct rn_jinja_function *row = rn_jinja_find_method(v, name, &refused);
    if (refused) {
        *ret = rn_jinja_undefined(rn_jinja_type_name(v), name.data, name.len);
        ret->unsafe = true;
        return true;
    }
    if (row) {
        struct rn_jinja_value *self = rn_jinja_alloc(run, 1, sizeof(*self));
        if (!self) {
            *ret_code = rn_jinja_alloc_code(run);
            return true;
        }
        *self = *v;
        *ret = (struct rn_jinja_value){.kind = RN_JINJA_FUNCTION, .u.fn = {row, self}};
        return true;
    }
    bool number = v->kind == RN_JINJA_INT || v->kind == RN_JINJA_FLOAT || v->kind == RN_JINJA_BOOL;
    for (size_t i = 0; number && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strlen(numbers[i]) == name.len && memcmp(numbers[i], name.data, name.len) == 0) {
            *ret_code = rn_jinja_fail(run, -EINVAL, "attributes of numbers are not supported");
            return true;
        }
    }
    return false;
}

static const char *owner_name(const struct rn_jinja_value *v)
{
    static const char *const lists[] = {"list object", "tuple object", "range object", "dict view", "generator object"};
    switch ((enum rn_jinja_kind)v->kind) {
    case RN_JINJA_STRING: return "str object";
    case RN_JINJA_DICT: return "dict object";
    case RN_JINJA_LIST: return lists[v->u.list->flavour];
    case RN_JINJA_NAMESPACE: return "namespace object";
    default: return rn_jinja_type_name(v);
    }
}

int rn_jinja_attribute(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_text name, struct rn_jinja_value *ret)
{
    int r = rn_jinja_refuse_undefined(run, v);
    if (r < 0 || own_attribute(run, v, name, ret, &r)) {
        return r;
    }
    if (v->kind == RN_JINJA_LOOP) {
        return rn_jinja_loop_attribute(run, v->u.loop, name, ret);
    }
    if (v->kind == RN_JINJA_MACRO || v->kind == RN_JINJA_FUNCTION) {
        return rn_jinja_fail(run, -EINVAL, "attributes of a %s are not supported", rn_jinja_type_name(v));
    }
    if (v->kind == RN_JINJA_DICT || v->kind == RN_JINJA_NAMESPACE) {
        struct rn_jinja_value key = rn_jinja_string(name.data, name.len, RN_JINJA_OWN);
        const struct rn_jinja_value *found = rn_jinja_dict_find(v->u.dict, &key);
        if (found) {
            *ret = *found;
            return 0;
        }
    }
    *ret = rn_jinja_undefined(owner_name(v), name.data, name.len);
    return 0;
}

/* An element by number; undefined when there is none. */
static void item_by_number(const struct rn_jinja_value *v, int64_t i, struct rn_jinja_value *ret)
{
    *ret = rn_jinja_undefined(owner_name(v), "this element", 12);
    if (v->kind == RN_JINJA_LIST && v->u.list->flavour <= RN_JINJA_F_RANGE) {
        int64_t n = (int64_t)v->u.list->n;
        i += i < 0 ? n : 0;
        if (i >= 0 && i < n) {
            *ret = v->u.list->items[i];
        }
    } else if (v->kind == RN_JINJA_STRING) {
        int64_t n = (int64_t)rn_jinja_n_chars(v->u.s.data, v->u.s.len);
        i += i < 0 ? n : 0;
        if (i >= 0 && i < n) {
            size_t pos = rn_jinja_char_at(v->u.s.data, v->u.s.len, (size_t)i);
            *ret = rn_jinja_part(v, pos, pos + rn_jinja_char_len(v->u.s.data + pos, v->u.s.len - pos));
        }
    }
}

int rn_jinja_item(struct rn_jinja_run *run, const struct rn_jinja_value *v, const struct rn_jinja_value *key, struct rn_jinja_value *ret)
{
    int64_t i;
    int r = rn_jinja_refuse_undefined(run, v);
    r = r < 0 || key->kind != RN_JINJA_STRING ? r : rn_jinja_step(run, key->u.s.len / 16);
    if (r < 0) {
        return r;
    }
    if (v->kind == RN_JINJA_DICT) {
        const struct rn_jinja_value *found = rn_jinja_dict_find(v->u.dict, key);
        if (found) {
            *ret = *found;
            return 0;
        }
    } else if (rn_jinja_as_int(key, &i)) {
        item_by_number(v, i, ret);
        return v->kind == RN_JINJA_STRING ? rn_jinja_step(run, v->u.s.len / 64) : 0;
    }
    if (key->kind == RN_JINJA_STRING) {
        struct rn_jinja_text name = {key->u.s.data, key->u.s.len};
        return rn_jinja_attribute(run, v, name, ret);
    }
    *ret = rn_jinja_undefined(owner_name(v), "this element", 12);
    return 0;
}

/* A border of a slice, as Python's slice.indices does it. */
static int border(struct rn_jinja_run *run, const struct rn_jinja_value *v, int64_t n, int64_t step, bool is_start, int64_t *ret)
{
    if (v->kind == RN_JINJA_MISSING || v->kind == RN_JINJA_NONE) {
        *ret = is_start ? (step > 0 ? 0 : n - 1) : (step > 0 ? n : -1);
        return 0;
    }
    int64_t i;
    if (!rn_jinja_as_int(v, &i)) {
        int r = rn_jinja_refuse_undefined(run, v);
        return r < 0 ? r : rn_jinja_fail(run, -EINVAL, "a slice needs numbers, not '%s'", rn_jinja_type_name(v));
    }
    int64_t low = step > 0 ? 0 : -1;
    int64_t high = step > 0 ? n : n - 1;
    if (i < 0) {
        i = i < -n ? low : i + n;
    }
    *ret = i < low ? low : i > high ? high : i;
    return 0;
}

static int slice_string(struct rn_jinja_run *run, const struct rn_jinja_value *v, int64_t from, int64_t to, int64_t step,
                        struct rn_jinja_value *ret)
{
    if (step == 1) {
        size_t a = rn_jinja_char_at(v->u.s.data, v->u.s.len, (size_t)from);
        size_t b = to > from ? a + rn_jinja_char_at(v->u.s.data + a, v->u.s.len - a, (size_t)(to - from)) : a;
        *ret = rn_jinja_part(v, a, b);
        return rn_jinja_step(run, v->u.s.len / 64);
    }
    struct rn_jinja_items items;
    struct rn_jinja_sink k = {0};
    int r = rn_jinja_elements(run, v, &items);
    for (int64_t i = from; r == 0 && (step > 0 ? i < to : i > to); i += step) {
        r = rn_jinja_put_value(run, &k, &items.data[i]);
    }
    *ret = rn_jinja_sink_value(&k);
    ret->markup = v->markup;
    return r;
}

static int slice_list(struct rn_jinja_run *run, const struct rn_jinja_list *l, int64_t from, int64_t to, int64_t step,
                      struct rn_jinja_value *ret)
{
    enum rn_jinja_flavour flavour = l->flavour == RN_JINJA_F_TUPLE ? RN_JINJA_F_TUPLE : RN_JINJA_F_LIST;
    if (step == 1) {
        int r = rn_jinja_list_new(run, 0, flavour, ret);
        if (r == 0 && to > from) {
            ret->u.list->items = l->items + from;
            ret->u.list->n = (size_t)(to - from);
        }
        return r;
    }
    struct rn_jinja_items items = {0};
    int r = 0;
    for (int64_t i = from; r == 0 && (step > 0 ? i < to : i > to); i += step) {
        r = rn_jinja_items_add(run, &items, &l->items[i]);
    }
    r = r < 0 ? r : rn_jinja_step(run, items.n / 8);
    return r < 0 ? r : rn_jinja_items_list(run, &items, flavour, ret);
}

int rn_jinja_slice(struct rn_jinja_run *run, const struct rn_jinja_value *v, const struct rn_jinja_value part[3], struct rn_jinja_value *ret)
{
    int r = rn_jinja_refuse_undefined(run, v);
    if (r < 0) {
        return r;
    }
    bool list = v->kind == RN_JINJA_LIST && v->u.list->flavour <= RN_JINJA_F_TUPLE;
    if (!list && v->kind != RN_JINJA_STRING) {
        return rn_jinja_fail(run, -EINVAL, "a '%s' cannot be sliced", rn_jinja_type_name(v));
    }
    int64_t n, step = 1, from, to;
    r = rn_jinja_length(run, v, &n);
    if (r == 0 && part[2].kind != RN_JINJA_MISSING && part[2].kind != RN_JINJA_NONE && (!rn_jinja_as_int(&part[2], &step) || step == 0)) {
        r = rn_jinja_fail(run, -EINVAL, "the step of a slice must be a number other than zero");
    }
    /* Far steps mean the same as one past the end, and cannot overflow. */
    step = step > n + 1 ? n + 1 : step < -n - 1 ? -n - 1 : step;
    r = r < 0 ? r : border(run, &part[0], n, step, /*is_start=*/true, &from);
    r = r < 0 ? r : border(run, &part[1], n, step, /*is_start=*/false, &to);
    if (r < 0) {
        return r;
    }
    return list ? slice_list(run, v->u.list, from, to, step, ret) : slice_string(run, v, from, to, step, ret);
}
