#define _GNU_SOURCE /* memmem: linear, whatever the texts are */
/* Finding, stripping and replacing text: what the methods of strings and the filters share. A part of a string keeps its marks of origin. */
#include "runtime/text/jinja_strings_internal.h"

#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

int rn_jinja_need_string(struct rn_jinja_run *run, const struct rn_jinja_value *v)
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

int rn_jinja_find_last(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *needle, size_t end,
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
        int r = rn_jinja_need_string(run, chars);
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
    int r = rn_jinja_need_string(run, from);
    r = r < 0 ? r : rn_jinja_need_string(run, to);
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
