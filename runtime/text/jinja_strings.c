/* Methods of strings, and the table of all of them. Those that cut a string: jinja_split.c. */
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_strings_internal.h"
#include "runtime/text/jinja_text.h"

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
        int r = rn_jinja_need_string(run, one);
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
    int r = rn_jinja_need_string(run, &call->args[0]);
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
    int r = rn_jinja_need_string(run, &call->args[0]);
    if (r < 0) {
        return r;
    }
    ptrdiff_t at = last ? -1 : rn_jinja_find_text(s, &call->args[0], 0);
    r = last ? rn_jinja_find_last(run, s, &call->args[0], s->u.s.len, &at) : 0;
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
    int r = rn_jinja_need_string(run, what);
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

static int join_all(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_items items;
    struct rn_jinja_sink k = {0};
    int r = rn_jinja_elements(run, &call->args[0], &items);
    for (size_t i = 0; r == 0 && i < items.n; i++) {
        r = rn_jinja_need_string(run, &items.data[i]);
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
    int r = rn_jinja_need_string(run, fill);
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
    {"split", "sep maxsplit", rn_jinja_str_split},
    {"rsplit", "sep maxsplit", rn_jinja_str_rsplit},
    {"splitlines", "keepends", rn_jinja_str_splitlines},
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
    {"partition", "!sep", rn_jinja_str_partition},
    {"rpartition", "!sep", rn_jinja_str_rpartition},
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
