/* Operators with Python's meaning. What Python refuses (adding a number to a string, ordering a dict) is refused here too; integers
 * have 64 bits, and leaving them is an error rather than another number. */
#include "runtime/text/jinja_ops.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_text.h"

bool rn_jinja_truth(const struct rn_jinja_value *v)
{
    switch ((enum rn_jinja_kind)v->kind) {
    case RN_JINJA_MISSING:
    case RN_JINJA_UNDEFINED:
    case RN_JINJA_NONE: return false;
    case RN_JINJA_BOOL: return v->u.b;
    case RN_JINJA_INT: return v->u.i != 0;
    case RN_JINJA_FLOAT: return v->u.f != 0;
    case RN_JINJA_STRING: return v->u.s.len > 0;
    case RN_JINJA_LIST: return v->u.list->n > 0 || v->u.list->flavour == RN_JINJA_F_GENERATOR;
    case RN_JINJA_DICT: return v->u.dict->n > 0;
    case RN_JINJA_NAMESPACE:
    case RN_JINJA_MACRO:
    case RN_JINJA_FUNCTION:
    case RN_JINJA_LOOP: return true;
    }
    return false;
}

int rn_jinja_refuse_undefined(struct rn_jinja_run *run, const struct rn_jinja_value *v)
{
    if (v->kind != RN_JINJA_UNDEFINED) {
        return 0;
    }
    int len = v->u.undef.len > 60 ? 60 : (int)v->u.undef.len;
    if (v->unsafe) {
        return rn_jinja_fail(run, -EINVAL, "access to attribute '%.*s' of '%s' is unsafe", len, v->u.undef.name, v->u.undef.owner);
    }
    if (v->u.undef.owner) {
        return rn_jinja_fail(run, -EINVAL, "'%s' has no attribute '%.*s'", v->u.undef.owner, len, v->u.undef.name);
    }
    return rn_jinja_fail(run, -EINVAL, "'%.*s' is undefined", len, v->u.undef.name);
}

bool rn_jinja_as_int(const struct rn_jinja_value *v, int64_t *ret)
{
    if (v->kind == RN_JINJA_BOOL || v->kind == RN_JINJA_INT) {
        *ret = v->kind == RN_JINJA_BOOL ? (int64_t)v->u.b : v->u.i;
        return true;
    }
    return false;
}

bool rn_jinja_as_float(const struct rn_jinja_value *v, double *ret)
{
    int64_t i;
    if (rn_jinja_as_int(v, &i)) {
        *ret = (double)i;
        return true;
    }
    if (v->kind == RN_JINJA_FLOAT) {
        *ret = v->u.f;
        return true;
    }
    return false;
}

/* ---- comparison ---- */

static int lists_equal(struct rn_jinja_run *run, const struct rn_jinja_list *a, const struct rn_jinja_list *b, bool *ret)
{
    *ret = a == b;
    if (a == b || a->n != b->n || a->flavour != b->flavour || a->flavour > RN_JINJA_F_RANGE) {
        return 0;
    }
    *ret = true;
    int r = 0;
    for (size_t i = 0; r == 0 && *ret && i < a->n; i++) {
        r = rn_jinja_equal(run, &a->items[i], &b->items[i], ret);
    }
    return r;
}

static int dicts_equal(struct rn_jinja_run *run, const struct rn_jinja_dict *a, const struct rn_jinja_dict *b, bool *ret)
{
    *ret = a->n == b->n;
    int r = 0;
    for (size_t i = 0; r == 0 && *ret && i < a->n; i++) {
        const struct rn_jinja_value *other = rn_jinja_dict_find(b, &a->pairs[i].key);
        *ret = other != NULL;
        r = other ? rn_jinja_equal(run, &a->pairs[i].value, other, ret) : 0;
    }
    return r;
}

int rn_jinja_equal(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, bool *ret)
{
    double x, y;
    if (rn_jinja_as_float(a, &x) && rn_jinja_as_float(b, &y)) {
        int64_t i, j;
        *ret = rn_jinja_as_int(a, &i) && rn_jinja_as_int(b, &j) ? i == j : x == y;
        return 0;
    }
    *ret = false;
    if (a->kind != b->kind) {
        return 0;
    }
    int r = rn_jinja_enter(run);
    if (r < 0) {
        return r;
    }
    switch ((enum rn_jinja_kind)a->kind) {
    case RN_JINJA_STRING:
        *ret = a->u.s.len == b->u.s.len && memcmp(a->u.s.data, b->u.s.data, a->u.s.len) == 0;
        r = a->u.s.len == b->u.s.len ? rn_jinja_step(run, a->u.s.len / 64) : 0;
        break;
    case RN_JINJA_LIST: r = lists_equal(run, a->u.list, b->u.list, ret); break;
    case RN_JINJA_DICT: r = dicts_equal(run, a->u.dict, b->u.dict, ret); break;
    case RN_JINJA_NAMESPACE: *ret = a->u.dict == b->u.dict; break;
    case RN_JINJA_MACRO: *ret = a->u.macro == b->u.macro; break;
    case RN_JINJA_LOOP: *ret = a->u.loop == b->u.loop; break;
    case RN_JINJA_FUNCTION: *ret = a->u.fn.row == b->u.fn.row && a->u.fn.self == b->u.fn.self; break;
    default: *ret = true; break; /* none, undefined; numbers are done */
    }
    rn_jinja_leave(run);
    return r;
}

static int no_order(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b)
{
    int r = rn_jinja_refuse_undefined(run, a);
    r = r < 0 ? r : rn_jinja_refuse_undefined(run, b);
    return r < 0 ? r : rn_jinja_fail(run, -EINVAL, "'%s' and '%s' have no order", rn_jinja_type_name(a), rn_jinja_type_name(b));
}

static int order_lists(struct rn_jinja_run *run, const struct rn_jinja_list *a, const struct rn_jinja_list *b, int *ret)
{
    int r = rn_jinja_enter(run);
    *ret = 0;
    for (size_t i = 0; r == 0 && *ret == 0 && i < a->n && i < b->n; i++) {
        bool equal;
        r = rn_jinja_equal(run, &a->items[i], &b->items[i], &equal);
        if (r == 0 && !equal) {
            r = rn_jinja_order(run, &a->items[i], &b->items[i], ret);
            break;
        }
    }
    if (r == 0 && *ret == 0) {
        *ret = (a->n > b->n) - (a->n < b->n);
    }
    rn_jinja_leave(run);
    return r;
}

int rn_jinja_order(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, int *ret)
{
    double x, y;
    int64_t i, j;
    if (rn_jinja_as_int(a, &i) && rn_jinja_as_int(b, &j)) {
        *ret = (i > j) - (i < j);
        return 0;
    }
    if (rn_jinja_as_float(a, &x) && rn_jinja_as_float(b, &y)) {
        if (isnan(x) || isnan(y)) {
            return rn_jinja_fail(run, -EINVAL, "a number that is none has no order");
        }
        *ret = (x > y) - (x < y);
        return 0;
    }
    if (a->kind == RN_JINJA_STRING && b->kind == RN_JINJA_STRING) {
        size_t n = a->u.s.len < b->u.s.len ? a->u.s.len : b->u.s.len;
        *ret = n ? memcmp(a->u.s.data, b->u.s.data, n) : 0; /* bytes of UTF-8 order as characters do */
        if (*ret == 0) {
            *ret = (a->u.s.len > b->u.s.len) - (a->u.s.len < b->u.s.len);
        }
        return rn_jinja_step(run, n / 64);
    }
    if (a->kind == RN_JINJA_LIST && b->kind == RN_JINJA_LIST && a->u.list->flavour == b->u.list->flavour &&
        a->u.list->flavour <= RN_JINJA_F_TUPLE) {
        return order_lists(run, a->u.list, b->u.list, ret);
    }
    return no_order(run, a, b);
}

int rn_jinja_contains(struct rn_jinja_run *run, const struct rn_jinja_value *container, const struct rn_jinja_value *item, bool *ret)
{
    *ret = false;
    switch ((enum rn_jinja_kind)container->kind) {
    case RN_JINJA_STRING: {
        int r = rn_jinja_refuse_undefined(run, item);
        if (r == 0 && item->kind != RN_JINJA_STRING) {
            r = rn_jinja_fail(run, -EINVAL, "'in' a string needs a string, not '%s'", rn_jinja_type_name(item));
        }
        *ret = r == 0 && rn_jinja_find_text(container, item, 0) >= 0;
        return r < 0 ? r : rn_jinja_step(run, container->u.s.len / 64);
    }
    case RN_JINJA_DICT:
        if (item->kind == RN_JINJA_LIST && item->u.list->flavour == RN_JINJA_F_TUPLE) {
            return 0;
        }
        if (item->kind == RN_JINJA_LIST || item->kind == RN_JINJA_DICT) {
            return rn_jinja_fail(run, -EINVAL, "a %s cannot be a key", rn_jinja_type_name(item));
        }
        *ret = rn_jinja_dict_find(container->u.dict, item) != NULL;
        return 0;
    case RN_JINJA_LIST:
    case RN_JINJA_UNDEFINED: {
        struct rn_jinja_items items;
        int r = rn_jinja_elements(run, container, &items);
        for (size_t i = 0; r == 0 && !*ret && i < items.n; i++) {
            r = rn_jinja_equal(run, item, &items.data[i], ret);
            r = r < 0 ? r : rn_jinja_step(run, 1);
        }
        return r;
    }
    default: return rn_jinja_fail(run, -EINVAL, "'in' does not work on '%s'", rn_jinja_type_name(container));
    }
}

int rn_jinja_compare(struct rn_jinja_run *run, enum rn_jinja_op op, const struct rn_jinja_value *a, const struct rn_jinja_value *b,
                     bool *ret)
{
    int r, order = 0;
    switch (op) {
    case RN_JINJA_OP_EQ: return rn_jinja_equal(run, a, b, ret);
    case RN_JINJA_OP_NE:
        r = rn_jinja_equal(run, a, b, ret);
        *ret = !*ret;
        return r;
    case RN_JINJA_OP_IN: return rn_jinja_contains(run, b, a, ret);
    case RN_JINJA_OP_NOT_IN:
        r = rn_jinja_contains(run, b, a, ret);
        *ret = !*ret;
        return r;
    default: break;
    }
    r = rn_jinja_order(run, a, b, &order);
    *ret = op == RN_JINJA_OP_LT ? order < 0 : op == RN_JINJA_OP_LE ? order <= 0 : op == RN_JINJA_OP_GT ? order > 0 : order >= 0;
    return r;
}

/* ---- arithmetic ---- */

static int overflow(struct rn_jinja_run *run)
{
    return rn_jinja_fail(run, -EINVAL, "a number of more than 64 bits");
}

static int power_int(struct rn_jinja_run *run, int64_t base, int64_t exponent, struct rn_jinja_value *ret)
{
    int64_t v = 1;
    if (exponent > 64 && (base > 1 || base < -1)) {
        return overflow(run);
    }
    exponent = exponent > 64 ? 64 + (exponent & 1) : exponent; /* 0, 1 and -1 know only even and odd */
    for (; exponent > 0; exponent--) {
        if (__builtin_mul_overflow(v, base, &v)) {
            return overflow(run);
        }
    }
    *ret = rn_jinja_int(v);
    return 0;
}

static int arithmetic_int(struct rn_jinja_run *run, enum rn_jinja_op op, int64_t a, int64_t b, struct rn_jinja_value *ret)
{
    int64_t v = 0;
    bool bad = false;
    switch (op) {
    case RN_JINJA_OP_ADD: bad = __builtin_add_overflow(a, b, &v); break;
    case RN_JINJA_OP_SUB: bad = __builtin_sub_overflow(a, b, &v); break;
    case RN_JINJA_OP_MUL: bad = __builtin_mul_overflow(a, b, &v); break;
    case RN_JINJA_OP_POW: return power_int(run, a, b, ret);
    case RN_JINJA_OP_FLOORDIV:
    case RN_JINJA_OP_MOD:
        if (a == INT64_MIN && b == -1) {
            bad = op == RN_JINJA_OP_FLOORDIV;
            break;
        }
        v = op == RN_JINJA_OP_MOD ? a % b : a / b;
        if (a % b != 0 && (a < 0) != (b < 0)) { /* Python rounds down */
            v += op == RN_JINJA_OP_MOD ? b : -1;
        }
        break;
    default: break;
    }
    *ret = rn_jinja_int(v);
    return bad ? overflow(run) : 0;
}

static int arithmetic_float(struct rn_jinja_run *run, enum rn_jinja_op op, double a, double b, struct rn_jinja_value *ret)
{
    double v = 0;
    switch (op) {
    case RN_JINJA_OP_ADD: v = a + b; break;
    case RN_JINJA_OP_SUB: v = a - b; break;
    case RN_JINJA_OP_MUL: v = a * b; break;
    case RN_JINJA_OP_DIV: v = a / b; break;
    case RN_JINJA_OP_FLOORDIV: v = floor(a / b); break;
    case RN_JINJA_OP_MOD:
        v = fmod(a, b);
        v += v != 0 && (v < 0) != (b < 0) ? b : 0;
        break;
    case RN_JINJA_OP_POW: v = pow(a, b); break;
    default: break;
    }
    if (op == RN_JINJA_OP_POW && (isnan(v) || isinf(v))) {
        return rn_jinja_fail(run, -EINVAL, "a power that is no number");
    }
    *ret = rn_jinja_float(v);
    return 0;
}

static int arithmetic_numbers(struct rn_jinja_run *run, enum rn_jinja_op op, const struct rn_jinja_value *a, const struct rn_jinja_value *b,
                              struct rn_jinja_value *ret)
{
    int64_t i = 0, j = 0;
    double x = 0, y = 0;
    bool whole = rn_jinja_as_int(a, &i) && rn_jinja_as_int(b, &j);
    rn_jinja_as_float(a, &x);
    rn_jinja_as_float(b, &y);
    if (y == 0 && (op == RN_JINJA_OP_DIV || op == RN_JINJA_OP_FLOORDIV || op == RN_JINJA_OP_MOD)) {
        return rn_jinja_fail(run, -EINVAL, "division by zero");
    }
    int r;
    if (whole && op != RN_JINJA_OP_DIV && !(op == RN_JINJA_OP_POW && j < 0)) {
        r = arithmetic_int(run, op, i, j, ret);
    } else {
        r = arithmetic_float(run, op, x, y, ret);
    }
    ret->own = a->own == RN_JINJA_OWN && b->own == RN_JINJA_OWN ? RN_JINJA_OWN : RN_JINJA_DATA;
    return r;
}

static int add_strings(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, struct rn_jinja_value *ret)
{
    struct rn_jinja_sink k = {0};
    if (!a->markup && !b->markup) {
        return rn_jinja_append(run, a, b, ret);
    }
    /* `safe` text escapes what is added to it. */
    int r = !a->markup ? rn_jinja_put_escaped(run, &k, a) : rn_jinja_put_value(run, &k, a);
    if (r == 0) {
        r = !b->markup ? rn_jinja_put_escaped(run, &k, b) : rn_jinja_put_value(run, &k, b);
    }
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
        ret->markup = true;
    }
    return r;
}

static int add_lists(struct rn_jinja_run *run, const struct rn_jinja_list *a, const struct rn_jinja_list *b, struct rn_jinja_value *ret)
{
    int r = rn_jinja_list_new(run, a->n + b->n, a->flavour, ret);
    if (r == 0) {
        for (size_t i = 0; i < a->n + b->n; i++) {
            ret->u.list->items[i] = i < a->n ? a->items[i] : b->items[i - a->n];
        }
        r = rn_jinja_step(run, (a->n + b->n) / 8);
    }
    return r;
}

static int repeat(struct rn_jinja_run *run, const struct rn_jinja_value *v, int64_t n, struct rn_jinja_value *ret)
{
    int r = 0;
    n = n < 0 ? 0 : n;
    if (v->kind == RN_JINJA_STRING) {
        struct rn_jinja_sink k = {0};
        for (int64_t i = 0; r == 0 && i < n && v->u.s.len > 0; i++) {
            r = rn_jinja_put_value(run, &k, v);
            r = r < 0 ? r : rn_jinja_step(run, 1);
        }
        *ret = rn_jinja_sink_value(&k);
        ret->markup = v->markup;
        return r;
    }
    struct rn_jinja_items items = {0};
    for (int64_t i = 0; r == 0 && i < n && v->u.list->n > 0; i++) {
        for (size_t j = 0; r == 0 && j < v->u.list->n; j++) {
            r = rn_jinja_items_add(run, &items, &v->u.list->items[j]);
        }
    }
    return r < 0 ? r : rn_jinja_items_list(run, &items, v->u.list->flavour, ret);
}

static bool is_sequence(const struct rn_jinja_value *v)
{
    return v->kind == RN_JINJA_STRING || (v->kind == RN_JINJA_LIST && v->u.list->flavour <= RN_JINJA_F_TUPLE);
}

int rn_jinja_arithmetic(struct rn_jinja_run *run, enum rn_jinja_op op, const struct rn_jinja_value *a, const struct rn_jinja_value *b,
                        struct rn_jinja_value *ret)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    double x;
    int64_t n;
    if (a->kind == RN_JINJA_STRING && op == RN_JINJA_OP_MOD) {
        return rn_jinja_percent(run, a, b, ret);
    }
    int r = rn_jinja_refuse_undefined(run, a);
    r = r < 0 ? r : rn_jinja_refuse_undefined(run, b);
    if (r < 0) {
        return r;
    }
    if (rn_jinja_as_float(a, &x) && rn_jinja_as_float(b, &x)) {
        return arithmetic_numbers(run, op, a, b, ret);
    }
    if (op == RN_JINJA_OP_ADD && a->kind == b->kind && is_sequence(a) && is_sequence(b)) {
        if (a->kind == RN_JINJA_STRING) {
            return add_strings(run, a, b, ret);
        }
        if (a->u.list->flavour == b->u.list->flavour) {
            return add_lists(run, a->u.list, b->u.list, ret);
        }
    }
    if (op == RN_JINJA_OP_MUL && is_sequence(a) && rn_jinja_as_int(b, &n)) {
        return repeat(run, a, n, ret);
    }
    if (op == RN_JINJA_OP_MUL && is_sequence(b) && rn_jinja_as_int(a, &n)) {
        return repeat(run, b, n, ret);
    }
    return rn_jinja_fail(run, -EINVAL, "'%s' does not work on '%s' and '%s'", names[op], rn_jinja_type_name(a), rn_jinja_type_name(b));
}

int rn_jinja_negate(struct rn_jinja_run *run, const struct rn_jinja_value *v, bool minus, struct rn_jinja_value *ret)
{
    int64_t i;
    int r = rn_jinja_refuse_undefined(run, v);
    if (r < 0) {
        return r;
    }
    if (rn_jinja_as_int(v, &i)) {
        if (minus && i == INT64_MIN) {
            return overflow(run);
        }
        *ret = rn_jinja_int(minus ? -i : i);
    } else if (v->kind == RN_JINJA_FLOAT) {
        *ret = rn_jinja_float(minus ? -v->u.f : v->u.f);
    } else {
        return rn_jinja_fail(run, -EINVAL, "'%s' does not work on '%s'", minus ? "-" : "+", rn_jinja_type_name(v));
    }
    ret->own = v->own;
    return 0;
}
