/* Methods that cut a string: split, rsplit, splitlines, partition, rpartition. */
#include "runtime/text/jinja_strings_internal.h"

#include <errno.h>

#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

/* Without a separator: words. limit < 0: no limit. */
static int split_words(struct rn_jinja_run *run, const struct rn_jinja_value *s, int64_t limit, bool from_right, struct rn_jinja_items *out)
{
    if (from_right && limit >= 0) {
        return rn_jinja_fail(run, -EINVAL, "rsplit() with a limit and without a separator is not supported");
    }
    const char *text = s->u.s.data;
    size_t len = s->u.s.len;
    size_t pos = rn_jinja_lstrip(text, len);
    int r = 0;
    while (r == 0 && pos < len) {
        size_t end = pos;
        while (end < len && rn_jinja_space(text + end, len - end) == 0) {
            end += rn_jinja_char_len(text + end, len - end);
        }
        if (limit == 0) {
            end = rn_jinja_rstrip(text, len);
        }
        limit--;
        struct rn_jinja_value word = rn_jinja_part(s, pos, end);
        r = rn_jinja_items_add(run, out, &word);
        pos = end + rn_jinja_lstrip(text + end, len - end);
    }
    return r;
}

static int split_at(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *sep, int64_t limit,
                    struct rn_jinja_items *out)
{
    size_t pos = 0;
    ptrdiff_t at;
    int r = 0;
    while (r == 0 && limit-- != 0 && (at = rn_jinja_find_text(s, sep, pos)) >= 0) {
        struct rn_jinja_value part = rn_jinja_part(s, pos, (size_t)at);
        r = rn_jinja_items_add(run, out, &part);
        pos = (size_t)at + sep->u.s.len;
    }
    struct rn_jinja_value rest = rn_jinja_part(s, pos, s->u.s.len);
    return r < 0 ? r : rn_jinja_items_add(run, out, &rest);
}

static int rsplit_at(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *sep, int64_t limit,
                     struct rn_jinja_items *out)
{
    size_t end = s->u.s.len;
    ptrdiff_t at = 0;
    int r = 0;
    while (r == 0 && limit-- != 0) {
        r = rn_jinja_find_last(run, s, sep, end, &at);
        if (r < 0 || at < 0) {
            break;
        }
        struct rn_jinja_value part = rn_jinja_part(s, (size_t)at + sep->u.s.len, end);
        r = rn_jinja_items_add(run, out, &part);
        end = (size_t)at;
    }
    struct rn_jinja_value rest = rn_jinja_part(s, 0, end);
    r = r < 0 ? r : rn_jinja_items_add(run, out, &rest);
    for (size_t i = 0; i < out->n / 2; i++) {
        struct rn_jinja_value swap = out->data[i];
        out->data[i] = out->data[out->n - 1 - i];
        out->data[out->n - 1 - i] = swap;
    }
    return r;
}

static int split(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool from_right, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *sep = &call->args[0];
    int64_t limit = -1;
    if (call->args[1].kind != RN_JINJA_MISSING && !rn_jinja_as_int(&call->args[1], &limit)) {
        return rn_jinja_fail(run, -EINVAL, "split() needs a number as its limit");
    }
    struct rn_jinja_items parts = {0};
    int r;
    if (sep->kind == RN_JINJA_MISSING || sep->kind == RN_JINJA_NONE) {
        r = split_words(run, &call->self, limit, from_right, &parts);
    } else {
        r = rn_jinja_need_string(run, sep);
        if (r == 0 && sep->u.s.len == 0) {
            r = rn_jinja_fail(run, -EINVAL, "split() with an empty separator");
        }
        if (r == 0) {
            r = from_right ? rsplit_at(run, &call->self, sep, limit, &parts) : split_at(run, &call->self, sep, limit, &parts);
        }
    }
    r = r < 0 ? r : rn_jinja_step(run, call->self.u.s.len / 16 + parts.n / 8);
    return r < 0 ? r : rn_jinja_items_list(run, &parts, RN_JINJA_F_LIST, ret);
}

RN_JINJA_METHOD(split)
{
    return split(run, call, false, ret);
}

RN_JINJA_METHOD(rsplit)
{
    return split(run, call, true, ret);
}

RN_JINJA_METHOD(splitlines)
{
    const struct rn_jinja_value *s = &call->self;
    bool keep = rn_jinja_truth(&call->args[0]);
    struct rn_jinja_items lines = {0};
    size_t from = 0;
    int r = 0;
    for (size_t pos = 0; r == 0 && pos < s->u.s.len;) {
        size_t n = rn_jinja_line_break(s->u.s.data + pos, s->u.s.len - pos);
        if (n > 0) {
            struct rn_jinja_value line = rn_jinja_part(s, from, keep ? pos + n : pos);
            r = rn_jinja_items_add(run, &lines, &line);
            from = pos + n;
        }
        pos += n ? n : 1;
    }
    if (r == 0 && from < s->u.s.len) {
        struct rn_jinja_value line = rn_jinja_part(s, from, s->u.s.len);
        r = rn_jinja_items_add(run, &lines, &line);
    }
    r = r < 0 ? r : rn_jinja_step(run, s->u.s.len / 16);
    return r < 0 ? r : rn_jinja_items_list(run, &lines, RN_JINJA_F_LIST, ret);
}

static int partition(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool last, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *s = &call->self, *sep = &call->args[0];
    int r = rn_jinja_need_string(run, sep);
    if (r == 0 && sep->u.s.len == 0) {
        r = rn_jinja_fail(run, -EINVAL, "partition() with an empty separator");
    }
    r = r < 0 ? r : rn_jinja_list_new(run, 3, RN_JINJA_F_TUPLE, ret);
    if (r < 0) {
        return r;
    }
    ptrdiff_t at = last ? -1 : rn_jinja_find_text(s, sep, 0);
    r = last ? rn_jinja_find_last(run, s, sep, s->u.s.len, &at) : 0;
    if (r < 0) {
        return r;
    }
    struct rn_jinja_value *part = ret->u.list->items;
    size_t cut = at < 0 ? (last ? 0 : s->u.s.len) : (size_t)at;
    size_t n = at < 0 ? 0 : sep->u.s.len;
    part[0] = rn_jinja_part(s, 0, cut);
    part[1] = rn_jinja_part(s, cut, cut + n);
    part[2] = rn_jinja_part(s, cut + n, s->u.s.len);
    return 0;
}

RN_JINJA_METHOD(partition)
{
    return partition(run, call, false, ret);
}

RN_JINJA_METHOD(rpartition)
{
    return partition(run, call, true, ret);
}
