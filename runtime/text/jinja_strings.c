#define _GNU_SOURCE /* memmem: linear, whatever the texts are */
/* Methods of strings, and the text operations that filters share with them. A part of a string keeps its marks of origin. */
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

static int need_string(struct rn_jinja_run *run, const struct rn_jinja_value *v)
{
    if (v->kind == RN_JINJA_STRING) {
        return 0;
    }
    int r = rn_jinja_refuse_undefined(run, v);
    return r < 0 ? r : rn_jinja_fail(run, -EINVAL, "a string is needed here, not '%s'", rn_jinja_type_name(v));
}

ptrdiff_t rn_jinja_find_text(const struct rn_jinja_value *s, const struct rn_jinja_value *needle, size_t from)
{
    if (from > s->u.s.len) {
        return -1;
    }
    const char *p = memmem(s->u.s.data + from, s->u.s.len - from, needle->u.s.data, needle->u.s.len);
    return p ? p - s->u.s.data : -1;
}

/* The last place of needle before `end`, or -1. Comparing may take time at each place, so it counts steps. */
static int find_last(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *needle, size_t end,
                     ptrdiff_t *ret)
{
    const char *text = s->u.s.data, *what = needle->u.s.data;
    size_t n = needle->u.s.len;
    int r = 0;
    ptrdiff_t at = (ptrdiff_t)end - (ptrdiff_t)n;
    for (; r == 0 && at >= 0; at--) {
        if (n == 0 || text[at] == what[0]) {
            if (memcmp(text + at, what, n) == 0) {
                break;
            }
            r = rn_jinja_step(run, 1 + n / 64);
        }
    }
    *ret = at < 0 ? -1 : at;
    return r < 0 ? r : rn_jinja_step(run, (end - (size_t)(at < 0 ? 0 : at)) / 64);
}

static bool in_set(const struct rn_jinja_value *set, const char *c, size_t n)
{
    struct rn_jinja_value one = rn_jinja_string(c, n, RN_JINJA_DATA);
    return rn_jinja_find_text(set, &one, 0) >= 0;
}

int rn_jinja_strip(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *chars, int side,
                   struct rn_jinja_value *ret)
{
    const char *text = s->u.s.data;
    size_t from = 0, to = s->u.s.len;
    if (chars->kind == RN_JINJA_MISSING || chars->kind == RN_JINJA_NONE) {
        to = side >= 0 ? rn_jinja_rstrip(text, to) : to;
        from = side <= 0 ? rn_jinja_lstrip(text, to) : 0;
    } else {
        int r = need_string(run, chars);
        if (r < 0) {
            return r;
        }
        while (side <= 0 && from < to) {
            size_t n = rn_jinja_char_len(text + from, to - from);
            if (!in_set(chars, text + from, n)) {
                break;
            }
            from += n;
        }
        while (side >= 0 && to > from) {
            size_t at = to - 1;
            while (at > from && ((unsigned char)text[at] & 0xc0) == 0x80) {
                at--;
            }
            if (!in_set(chars, text + at, to - at)) {
                break;
            }
            to = at;
        }
    }
    *ret = rn_jinja_part(s, from, to);
    size_t each = chars->kind == RN_JINJA_STRING ? 1 + chars->u.s.len / 8 : 1;
    return rn_jinja_step(run, (s->u.s.len - (to - from)) / 8 * each);
}

int rn_jinja_replace(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *from,
                     const struct rn_jinja_value *to, int64_t count, struct rn_jinja_value *ret)
{
    int r = need_string(run, from);
    r = r < 0 ? r : need_string(run, to);
    if (r == 0 && (s->markup || from->markup || to->markup)) {
        r = rn_jinja_fail(run, -EINVAL, "replace in a string marked safe is not supported");
    }
    struct rn_jinja_sink k = {0};
    size_t pos = 0;
    for (size_t search = 0; r == 0 && count != 0; count--) {
        ptrdiff_t at = rn_jinja_find_text(s, from, search);
        if (at < 0) {
            break;
        }
        struct rn_jinja_value before = rn_jinja_part(s, pos, (size_t)at);
        r = rn_jinja_put_value(run, &k, &before);
        r = r < 0 ? r : rn_jinja_put_value(run, &k, to);
        pos = (size_t)at + from->u.s.len;
        search = pos;
        if (from->u.s.len == 0) { /* Python puts `to` between all characters */
            if (pos >= s->u.s.len) {
                break;
            }
            search = pos + rn_jinja_char_len(s->u.s.data + pos, s->u.s.len - pos);
        }
        r = r < 0 ? r : rn_jinja_step(run, 4); // a search and two copies
    }
    struct rn_jinja_value rest = rn_jinja_part(s, pos, s->u.s.len);
    r = r < 0 ? r : rn_jinja_put_value(run, &k, &rest);
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r < 0 ? r : rn_jinja_step(run, s->u.s.len / 64);
}

/* ---- methods ---- */

static int str_replace(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    int64_t count = -1;
    if (call->args[2].kind != RN_JINJA_MISSING && !rn_jinja_as_int(&call->args[2], &count)) {
        return rn_jinja_fail(run, -EINVAL, "replace() needs a number as its third argument");
    }
    return rn_jinja_replace(run, &call->self, &call->args[0], &call->args[1], count, ret);
}

static int str_strip(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return rn_jinja_strip(run, &call->self, &call->args[0], 0, ret);
}

static int str_lstrip(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return rn_jinja_strip(run, &call->self, &call->args[0], -1, ret);
}

static int str_rstrip(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return rn_jinja_strip(run, &call->self, &call->args[0], 1, ret);
}

#define CASE_METHOD(name, how)                                                                                            \
    static int str_##name(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)         \
    {                                                                                                                     \
        return rn_jinja_change_case(run, &call->self, how, ret);                                                          \
    }

CASE_METHOD(upper, RN_JINJA_UPPER)
CASE_METHOD(lower, RN_JINJA_LOWER)
CASE_METHOD(capitalize, RN_JINJA_CAPITAL)
CASE_METHOD(title, RN_JINJA_WORDS)
CASE_METHOD(swapcase, RN_JINJA_SWAP)

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
        r = find_last(run, s, sep, end, &at);
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
        r = need_string(run, sep);
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

static int str_split(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return split(run, call, false, ret);
}

static int str_rsplit(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return split(run, call, true, ret);
}

static int str_splitlines(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
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

static bool has_affix(const struct rn_jinja_value *s, const struct rn_jinja_value *affix, bool at_end)
{
    size_t n = affix->u.s.len;
    return n <= s->u.s.len && memcmp(s->u.s.data + (at_end ? s->u.s.len - n : 0), affix->u.s.data, n) == 0;
}

/* startswith and endswith take a string or a tuple of strings. */
static int affix(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool at_end, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *what = &call->args[0];
    bool tuple = what->kind == RN_JINJA_LIST && what->u.list->flavour == RN_JINJA_F_TUPLE;
    size_t n = tuple ? what->u.list->n : 1;
    bool found = false;
    for (size_t i = 0; i < n && !found; i++) {
        const struct rn_jinja_value *one = tuple ? &what->u.list->items[i] : what;
        int r = need_string(run, one);
        if (r < 0) {
            return r;
        }
        found = has_affix(&call->self, one, at_end);
    }
    *ret = rn_jinja_bool(found);
    return 0;
}

static int str_startswith(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return affix(run, call, false, ret);
}

static int str_endswith(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return affix(run, call, true, ret);
}

static int remove_affix(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool at_end, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *s = &call->self;
    int r = need_string(run, &call->args[0]);
    if (r < 0) {
        return r;
    }
    size_t n = has_affix(s, &call->args[0], at_end) ? call->args[0].u.s.len : 0;
    *ret = at_end ? rn_jinja_part(s, 0, s->u.s.len - n) : rn_jinja_part(s, n, s->u.s.len);
    return 0;
}

static int str_removeprefix(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return remove_affix(run, call, false, ret);
}

static int str_removesuffix(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return remove_affix(run, call, true, ret);
}

static int position(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool last, bool must, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *s = &call->self;
    int r = need_string(run, &call->args[0]);
    if (r < 0) {
        return r;
    }
    ptrdiff_t at = last ? -1 : rn_jinja_find_text(s, &call->args[0], 0);
    r = last ? find_last(run, s, &call->args[0], s->u.s.len, &at) : 0;
    if (r < 0) {
        return r;
    }
    if (at < 0 && must) {
        return rn_jinja_fail(run, -EINVAL, "substring not found");
    }
    *ret = rn_jinja_int(at < 0 ? -1 : (int64_t)rn_jinja_n_chars(s->u.s.data, (size_t)at));
    return rn_jinja_step(run, s->u.s.len / 64);
}

static int str_find(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return position(run, call, false, false, ret);
}

static int str_rfind(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return position(run, call, true, false, ret);
}

static int str_index(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return position(run, call, false, true, ret);
}

static int str_count(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *s = &call->self, *what = &call->args[0];
    int r = need_string(run, what);
    if (r < 0) {
        return r;
    }
    int64_t n = what->u.s.len == 0 ? (int64_t)rn_jinja_n_chars(s->u.s.data, s->u.s.len) + 1 : 0;
    size_t pos = 0;
    ptrdiff_t at;
    while (what->u.s.len > 0 && (at = rn_jinja_find_text(s, what, pos)) >= 0) {
        pos = (size_t)at + what->u.s.len;
        n++;
    }
    *ret = rn_jinja_int(n);
    return rn_jinja_step(run, s->u.s.len / 16);
}

static int partition(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool last, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *s = &call->self, *sep = &call->args[0];
    int r = need_string(run, sep);
    if (r == 0 && sep->u.s.len == 0) {
        r = rn_jinja_fail(run, -EINVAL, "partition() with an empty separator");
    }
    r = r < 0 ? r : rn_jinja_list_new(run, 3, RN_JINJA_F_TUPLE, ret);
    if (r < 0) {
        return r;
    }
    ptrdiff_t at = last ? -1 : rn_jinja_find_text(s, sep, 0);
    r = last ? find_last(run, s, sep, s->u.s.len, &at) : 0;
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

static int str_partition(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return partition(run, call, false, ret);
}

static int str_rpartition(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return partition(run, call, true, ret);
}

static int join_all(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_items items;
    struct rn_jinja_sink k = {0};
    int r = rn_jinja_elements(run, &call->args[0], &items);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        r = need_string(run, &items.data[i]);
        r = r < 0 || i == 0 ? r : rn_jinja_put_value(run, &k, &call->self);
        r = r < 0 ? r : rn_jinja_put_value(run, &k, &items.data[i]);
    }
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r;
}

/* Fills up to `width` characters. */
static int pad(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool left, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *s = &call->self;
    struct rn_jinja_value blank = rn_jinja_own_str(" ");
    const struct rn_jinja_value *fill = call->args[1].kind == RN_JINJA_MISSING ? &blank : &call->args[1];
    int64_t width;
    int r = need_string(run, fill);
    if (r == 0 && (!rn_jinja_as_int(&call->args[0], &width) || rn_jinja_n_chars(fill->u.s.data, fill->u.s.len) != 1)) {
        r = rn_jinja_fail(run, -EINVAL, "a width and one character are needed");
    }
    if (r < 0) {
        return r;
    }
    int64_t n = width - (int64_t)rn_jinja_n_chars(s->u.s.data, s->u.s.len);
    struct rn_jinja_sink k = {0};
    r = left ? 0 : rn_jinja_put_value(run, &k, s);
    for (int64_t i = 0; r == 0 && i < n; i++) {
        r = rn_jinja_put_value(run, &k, fill);
        r = r < 0 ? r : rn_jinja_step(run, 1);
    }
    r = r < 0 || !left ? r : rn_jinja_put_value(run, &k, s);
    *ret = rn_jinja_sink_value(&k);
    return r;
}

static int str_ljust(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return pad(run, call, false, ret);
}

static int str_rjust(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return pad(run, call, true, ret);
}

/* What all characters of a string must be. */
static bool is_class(int32_t c, char what)
{
    utf8proc_category_t k = utf8proc_category(c);
    bool alpha = k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT || k == UTF8PROC_CATEGORY_LM ||
                 k == UTF8PROC_CATEGORY_LO;
    bool digit = k == UTF8PROC_CATEGORY_ND;
    return what == 'a' ? alpha : what == 'd' ? digit : alpha || digit;
}

static int all_are(struct rn_jinja_run *run, const struct rn_jinja_value *s, char what, struct rn_jinja_value *ret)
{
    bool all = s->u.s.len > 0;
    for (size_t pos = 0; all && pos < s->u.s.len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s->u.s.data + pos, (utf8proc_ssize_t)(s->u.s.len - pos), &c);
        all = n > 0 && (what == 's' ? rn_jinja_space(s->u.s.data + pos, s->u.s.len - pos) > 0 : is_class(c, what));
        pos += n > 0 ? (size_t)n : 1;
    }
    *ret = rn_jinja_bool(all);
    return rn_jinja_step(run, s->u.s.len / 64);
}

static int str_isalpha(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return all_are(run, &call->self, 'a', ret);
}

static int str_isdigit(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return all_are(run, &call->self, 'd', ret);
}

static int str_isalnum(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return all_are(run, &call->self, 'n', ret);
}

static int str_isspace(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return all_are(run, &call->self, 's', ret);
}

static int str_isupper(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    bool b = false;
    int r = rn_jinja_call_test(run, (struct rn_jinja_text){"upper", 5}, &(struct rn_jinja_call){.self = call->self}, &b);
    *ret = rn_jinja_bool(b);
    return r;
}

static int str_islower(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    bool b = false;
    int r = rn_jinja_call_test(run, (struct rn_jinja_text){"lower", 5}, &(struct rn_jinja_call){.self = call->self}, &b);
    *ret = rn_jinja_bool(b);
    return r;
}

const struct rn_jinja_function rn_jinja_str_methods[] = {
    {"strip", "chars", str_strip},
    {"lstrip", "chars", str_lstrip},
    {"rstrip", "chars", str_rstrip},
    {"split", "sep maxsplit", str_split},
    {"rsplit", "sep maxsplit", str_rsplit},
    {"splitlines", "keepends", str_splitlines},
    {"startswith", "!prefix", str_startswith},
    {"endswith", "!suffix", str_endswith},
    {"removeprefix", "!prefix", str_removeprefix},
    {"removesuffix", "!suffix", str_removesuffix},
    {"replace", "!old !new count", str_replace},
    {"format", "*", rn_jinja_brace_format},
    {"join", "!iterable", join_all},
    {"upper", "", str_upper},
    {"lower", "", str_lower},
    {"title", "", str_title},
    {"capitalize", "", str_capitalize},
    {"swapcase", "", str_swapcase},
    {"find", "!sub", str_find},
    {"rfind", "!sub", str_rfind},
    {"index", "!sub", str_index},
    {"count", "!sub", str_count},
    {"partition", "!sep", str_partition},
    {"rpartition", "!sep", str_rpartition},
    {"ljust", "!width fillchar", str_ljust},
    {"rjust", "!width fillchar", str_rjust},
    {"isalpha", "", str_isalpha},
    {"isdigit", "", str_isdigit},
    {"isalnum", "", str_isalnum},
    {"isspace", "", str_isspace},
    {"isupper", "", str_isupper},
    {"islower", "", str_islower},
    {"casefold", "*", NULL},
    {"center", "*", NULL},
    {"encode", "*", NULL},
    {"expandtabs", "*", NULL},
    {"format_map", "*", NULL},
    {"isascii", "*", NULL},
    {"isdecimal", "*", NULL},
    {"isidentifier", "*", NULL},
    {"isnumeric", "*", NULL},
    {"isprintable", "*", NULL},
    {"istitle", "*", NULL},
    {"maketrans", "*", NULL},
    {"rindex", "*", NULL},
    {"translate", "*", NULL},
    {"zfill", "*", NULL},
    {0},
};
