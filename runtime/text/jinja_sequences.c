/* Filters on sequences. What Jinja returns as a generator is computed at once here and marked as one: it can be read once, has no
 * length and no text. */
#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_builtin_internal.h"
#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

static bool given(const struct rn_jinja_value *v)
{
    return v->kind != RN_JINJA_MISSING && v->kind != RN_JINJA_NONE;
}

static bool is_number(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9') {
            return false;
        }
    }
    return len > 0 && len < 10;
}

/* v by a path "a.b.0", each part as v[part]. `fallback` may be NULL: then undefined stays. */
static int attribute_of(struct rn_jinja_run *run, const struct rn_jinja_value *v, const struct rn_jinja_value *path,
                        const struct rn_jinja_value *fallback, struct rn_jinja_value *ret)
{
    int r = 0;
    *ret = *v;
    if (path->kind == RN_JINJA_INT) {
        r = rn_jinja_item(run, v, path, ret);
    } else if (path->kind != RN_JINJA_STRING) {
        return rn_jinja_fail(run, -EINVAL, "an attribute is named by a text, not '%s'", rn_jinja_type_name(path));
    }
    for (size_t pos = 0; path->kind == RN_JINJA_STRING && r == 0 && pos <= path->u.s.len;) {
        const char *start = path->u.s.data + pos;
        const char *dot = memchr(start, '.', path->u.s.len - pos);
        size_t len = dot ? (size_t)(dot - start) : path->u.s.len - pos;
        struct rn_jinja_value key = rn_jinja_part(path, pos, pos + len);
        if (is_number(start, len)) {
            int64_t i = 0;
            for (size_t d = 0; d < len; d++) {
                i = i * 10 + (start[d] - '0');
            }
            key = rn_jinja_int(i);
        }
        struct rn_jinja_value from = *ret;
        r = rn_jinja_item(run, &from, &key, ret);
        if (r == 0 && ret->kind == RN_JINJA_UNDEFINED && fallback && fallback->kind != RN_JINJA_MISSING) {
            *ret = *fallback;
        }
        pos += len + 1;
    }
    return r;
}

RN_JINJA_FILTER(items)
{
    if (call->self.kind == RN_JINJA_UNDEFINED) {
        return rn_jinja_list_new(run, 0, RN_JINJA_F_GENERATOR, ret);
    }
    if (call->self.kind != RN_JINJA_DICT) {
        return rn_jinja_fail(run, -EINVAL, "can only get item pairs from a mapping, not from '%s'", rn_jinja_type_name(&call->self));
    }
    return rn_jinja_dict_items(run, call->self.u.dict, RN_JINJA_F_GENERATOR, ret);
}

RN_JINJA_FILTER(list)
{
    struct rn_jinja_items items;
    int r = rn_jinja_elements(run, &call->self, &items);
    return r < 0 ? r : rn_jinja_items_list(run, &items, RN_JINJA_F_LIST, ret);
}

RN_JINJA_FILTER(first)
{
    struct rn_jinja_items items;
    int r = rn_jinja_elements(run, &call->self, &items);
    *ret = r == 0 && items.n ? items.data[0] : rn_jinja_undefined("sequence", "first element", 13);
    return r;
}

RN_JINJA_FILTER(last)
{
    if (call->self.kind == RN_JINJA_LIST && call->self.u.list->flavour == RN_JINJA_F_GENERATOR) {
        return rn_jinja_fail(run, -EINVAL, "a generator cannot be reversed");
    }
    struct rn_jinja_items items;
    int r = rn_jinja_elements(run, &call->self, &items);
    *ret = r == 0 && items.n ? items.data[items.n - 1] : rn_jinja_undefined("sequence", "last element", 12);
    return r;
}

RN_JINJA_FILTER(reverse)
{
    struct rn_jinja_items items;
    struct rn_jinja_sink k = {0};
    int r = rn_jinja_elements(run, &call->self, &items);
    if (r < 0) {
        return r;
    }
    if (call->self.kind == RN_JINJA_STRING) {
        for (size_t i = items.n; r == 0 && i > 0; i--) {
            r = rn_jinja_put_value(run, &k, &items.data[i - 1]);
        }
        *ret = rn_jinja_sink_value(&k);
        return r;
    }
    r = rn_jinja_list_new(run, items.n, RN_JINJA_F_GENERATOR, ret);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        ret->u.list->items[i] = items.data[items.n - 1 - i];
    }
    return r < 0 ? r : rn_jinja_step(run, items.n / 8);
}

RN_JINJA_FILTER(join)
{
    struct rn_jinja_items items;
    struct rn_jinja_sink k = {0};
    int r = rn_jinja_elements(run, &call->self, &items);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        struct rn_jinja_value v = items.data[i];
        if (given(&call->args[1])) {
            r = attribute_of(run, &items.data[i], &call->args[1], NULL, &v);
        }
        if (r == 0 && i > 0 && call->args[0].kind != RN_JINJA_MISSING) {
            r = rn_jinja_put_text(run, &k, &call->args[0]);
        }
        r = r < 0 ? r : rn_jinja_put_text(run, &k, &v);
    }
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r < 0 ? r : rn_jinja_step(run, items.n);
}

static struct rn_jinja_call rest_of(const struct rn_jinja_call *call, size_t skip, const struct rn_jinja_value *self)
{
    return (struct rn_jinja_call){.self = *self,
                                  .args = call->args + skip,
                                  .n_args = call->n_args - skip,
                                  .keywords = call->keywords,
                                  .n_keywords = call->n_keywords};
}

/* map and select take anything that is false (none, 0) for an empty sequence. */
static int elements_or_none(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_items *ret)
{
    *ret = (struct rn_jinja_items){0};
    return v->kind == RN_JINJA_UNDEFINED || rn_jinja_truth(v) ? rn_jinja_elements(run, v, ret) : 0;
}

RN_JINJA_FILTER(map)
{
    const struct rn_jinja_value *path = NULL, *fallback = NULL;
    for (size_t i = 0; i < call->n_keywords && call->n_args == 0; i++) {
        struct rn_jinja_text name = call->keywords[i].name;
        if (name.len == 9 && memcmp(name.data, "attribute", 9) == 0) {
            path = &call->keywords[i].value;
        } else if (name.len == 7 && memcmp(name.data, "default", 7) == 0) {
            fallback = &call->keywords[i].value;
        } else {
            return rn_jinja_fail(run, -EINVAL, "map has no argument '%.*s'", (int)name.len, name.data);
        }
    }
    if (!path && (call->n_args == 0 || call->args[0].kind != RN_JINJA_STRING)) {
        return rn_jinja_fail(run, -EINVAL, "map needs the name of a filter, or attribute=");
    }
    struct rn_jinja_items items, out = {0};
    int r = elements_or_none(run, &call->self, &items);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        struct rn_jinja_value v;
        if (path) {
            r = attribute_of(run, &items.data[i], path, fallback, &v);
        } else {
            struct rn_jinja_call inner = rest_of(call, 1, &items.data[i]);
            r = rn_jinja_call_filter(run, (struct rn_jinja_text){call->args[0].u.s.data, call->args[0].u.s.len}, &inner, &v);
        }
        r = r < 0 ? r : rn_jinja_items_add(run, &out, &v);
    }
    r = r < 0 ? r : rn_jinja_step(run, items.n);
    return r < 0 ? r : rn_jinja_items_list(run, &out, RN_JINJA_F_GENERATOR, ret);
}

/* select, reject (by_attribute false) and selectattr, rejectattr. */
static int choose(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool by_attribute, bool keep, struct rn_jinja_value *ret)
{
    size_t skip = by_attribute ? 1 : 0;
    if (call->n_args < skip || (call->n_args > skip && call->args[skip].kind != RN_JINJA_STRING)) {
        return rn_jinja_fail(run, -EINVAL, by_attribute ? "the name of an attribute and of a test are needed" : "the name of a test is needed");
    }
    struct rn_jinja_items items, out = {0};
    int r = elements_or_none(run, &call->self, &items);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        struct rn_jinja_value v = items.data[i];
        if (by_attribute) {
            r = attribute_of(run, &items.data[i], &call->args[0], NULL, &v);
        }
        bool yes = rn_jinja_truth(&v);
        if (r == 0 && call->n_args > skip) {
            struct rn_jinja_call inner = rest_of(call, skip + 1, &v);
            r = rn_jinja_call_test(run, (struct rn_jinja_text){call->args[skip].u.s.data, call->args[skip].u.s.len}, &inner, &yes);
        }
        if (r == 0 && yes == keep) {
            r = rn_jinja_items_add(run, &out, &items.data[i]);
        }
    }
    r = r < 0 ? r : rn_jinja_step(run, items.n);
    return r < 0 ? r : rn_jinja_items_list(run, &out, RN_JINJA_F_GENERATOR, ret);
}

RN_JINJA_FILTER(select)
{
    return choose(run, call, false, true, ret);
}

RN_JINJA_FILTER(reject)
{
    return choose(run, call, false, false, ret);
}

RN_JINJA_FILTER(selectattr)
{
    return choose(run, call, true, true, ret);
}

RN_JINJA_FILTER(rejectattr)
{
    return choose(run, call, true, false, ret);
}

/* ---- order ---- */

struct entry {
    struct rn_jinja_value key;
    size_t at; /* in the input */
};

/* What an element is compared by: an attribute of it, in lower case unless case matters. */
static int sort_key(struct rn_jinja_run *run, const struct rn_jinja_value *v, const struct rn_jinja_value *path, bool case_sensitive,
                    struct rn_jinja_value *ret)
{
    int r = 0;
    *ret = *v;
    if (given(path)) {
        if (path->kind == RN_JINJA_STRING && memchr(path->u.s.data, ',', path->u.s.len)) {
            return rn_jinja_fail(run, -EINVAL, "sorting by several attributes is not supported");
        }
        r = attribute_of(run, v, path, NULL, ret);
    }
    if (r == 0 && ret->kind == RN_JINJA_STRING && !case_sensitive) {
        struct rn_jinja_value text = *ret;
        r = rn_jinja_change_case(run, &text, RN_JINJA_LOWER, ret);
    }
    return r;
}

static int sort_keys(struct rn_jinja_run *run, const struct rn_jinja_items *items, const struct rn_jinja_value *path, bool case_sensitive,
                     struct entry **ret)
{
    struct entry *e = rn_jinja_alloc(run, items->n, sizeof(*e));
    int r = e ? 0 : rn_jinja_alloc_code(run);
    for (size_t i = 0; r == 0 && i < items->n; i++) {
        e[i].at = i;
        r = sort_key(run, &items->data[i], path, case_sensitive, &e[i].key);
    }
    *ret = e;
    return r;
}

/* Stable merge sort, bottom up; equal elements keep their order also when reversed, as Python's do. */
static int sort_entries(struct rn_jinja_run *run, struct entry *e, size_t n, bool reverse)
{
    struct entry *other = rn_jinja_alloc(run, n, sizeof(*other));
    if (!other) {
        return rn_jinja_alloc_code(run);
    }
    struct entry *from = e, *to = other;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t a = lo, b = mid;
            for (size_t k = lo; k < hi; k++) {
                int order = 0;
                if (a < mid && b < hi) {
                    int r = rn_jinja_order(run, &from[a].key, &from[b].key, &order);
                    r = r < 0 ? r : rn_jinja_step(run, 1);
                    if (r < 0) {
                        return r;
                    }
                    order = reverse ? -order : order;
                }
                to[k] = b >= hi || (a < mid && order <= 0) ? from[a++] : from[b++];
            }
        }
        struct entry *swap = from;
        from = to;
        to = swap;
    }
    if (from != e && n) {
        memcpy(e, from, n * sizeof(*e));
    }
    return 0;
}

RN_JINJA_FILTER(sort)
{
    struct rn_jinja_items items;
    struct entry *e;
    int r = rn_jinja_elements(run, &call->self, &items);
    r = r < 0 ? r : sort_keys(run, &items, &call->args[2], rn_jinja_truth(&call->args[1]), &e);
    r = r < 0 ? r : sort_entries(run, e, items.n, rn_jinja_truth(&call->args[0]));
    r = r < 0 ? r : rn_jinja_list_new(run, items.n, RN_JINJA_F_LIST, ret);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        ret->u.list->items[i] = items.data[e[i].at];
    }
    return r;
}

RN_JINJA_FILTER(dictsort)
{
    struct rn_jinja_value pairs, by_key = rn_jinja_int(0), by_value = rn_jinja_int(1);
    int r = rn_jinja_refuse_undefined(run, &call->self);
    if (r == 0 && call->self.kind != RN_JINJA_DICT) {
        r = rn_jinja_fail(run, -EINVAL, "dictsort needs a dict, not '%s'", rn_jinja_type_name(&call->self));
    }
    bool value = rn_jinja_is_text(&call->args[1], "value");
    if (r == 0 && !value && call->args[1].kind != RN_JINJA_MISSING && !rn_jinja_is_text(&call->args[1], "key")) {
        r = rn_jinja_fail(run, -EINVAL, "dictsort sorts by 'key' or 'value'");
    }
    r = r < 0 ? r : rn_jinja_dict_items(run, call->self.u.dict, RN_JINJA_F_LIST, &pairs);
    if (r < 0) {
        return r;
    }
    struct rn_jinja_items items = {.data = pairs.u.list->items, .n = pairs.u.list->n};
    struct entry *e;
    r = sort_keys(run, &items, value ? &by_value : &by_key, rn_jinja_truth(&call->args[0]), &e);
    r = r < 0 ? r : sort_entries(run, e, items.n, rn_jinja_truth(&call->args[2]));
    r = r < 0 ? r : rn_jinja_list_new(run, items.n, RN_JINJA_F_LIST, ret);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        ret->u.list->items[i] = items.data[e[i].at];
    }
    return r;
}

int rn_jinja_sorted_pairs(struct rn_jinja_run *run, const struct rn_jinja_dict *d, const struct rn_jinja_pair *const **ret)
{
    struct entry *e = rn_jinja_alloc(run, d->n, sizeof(*e));
    const struct rn_jinja_pair **order = rn_jinja_alloc(run, d->n, sizeof(const struct rn_jinja_pair *));
    if (!e || !order) {
        return rn_jinja_alloc_code(run);
    }
    for (size_t i = 0; i < d->n; i++) {
        e[i] = (struct entry){d->pairs[i].key, i};
    }
    int r = sort_entries(run, e, d->n, false);
    for (size_t i = 0; r == 0 && i < d->n; i++) {
        order[i] = &d->pairs[e[i].at];
    }
    *ret = order;
    return r;
}

RN_JINJA_FILTER(unique)
{
    struct rn_jinja_items items, out = {0};
    struct rn_jinja_value seen, yes = rn_jinja_bool(true);
    struct entry *e;
    int r = rn_jinja_elements(run, &call->self, &items);
    r = r < 0 ? r : sort_keys(run, &items, &call->args[1], rn_jinja_truth(&call->args[0]), &e);
    r = r < 0 ? r : rn_jinja_dict_new(run, RN_JINJA_DICT, &seen);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        if (!rn_jinja_dict_find(seen.u.dict, &e[i].key)) {
            r = rn_jinja_dict_set(run, seen.u.dict, &e[i].key, &yes);
            r = r < 0 ? r : rn_jinja_items_add(run, &out, &items.data[i]);
        }
    }
    return r < 0 ? r : rn_jinja_items_list(run, &out, RN_JINJA_F_GENERATOR, ret);
}

static int extreme(struct rn_jinja_run *run, const struct rn_jinja_call *call, int sign, struct rn_jinja_value *ret)
{
    struct rn_jinja_items items;
    struct entry *e;
    int r = rn_jinja_elements(run, &call->self, &items);
    r = r < 0 ? r : sort_keys(run, &items, &call->args[1], rn_jinja_truth(&call->args[0]), &e);
    size_t best = 0;
    for (size_t i = 1; r == 0 && i < items.n; i++) {
        int order = 0;
        r = rn_jinja_order(run, &e[i].key, &e[best].key, &order);
        best = order * sign > 0 ? i : best;
    }
    *ret = r == 0 && items.n ? items.data[best] : rn_jinja_undefined("sequence", "element", 7);
    return r < 0 ? r : rn_jinja_step(run, items.n);
}

RN_JINJA_FILTER(min)
{
    return extreme(run, call, -1, ret);
}

RN_JINJA_FILTER(max)
{
    return extreme(run, call, 1, ret);
}

RN_JINJA_FILTER(sum)
{
    struct rn_jinja_items items;
    int r = rn_jinja_elements(run, &call->self, &items);
    struct rn_jinja_value total = call->args[1].kind == RN_JINJA_MISSING ? rn_jinja_int(0) : call->args[1];
    if (r == 0 && total.kind == RN_JINJA_STRING) {
        r = rn_jinja_fail(run, -EINVAL, "sum does not work on strings");
    }
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        struct rn_jinja_value v = items.data[i], before = total;
        if (given(&call->args[0])) {
            r = attribute_of(run, &items.data[i], &call->args[0], NULL, &v);
        }
        r = r < 0 ? r : rn_jinja_arithmetic(run, RN_JINJA_OP_ADD, &before, &v, &total);
    }
    *ret = total;
    return r < 0 ? r : rn_jinja_step(run, items.n);
}
