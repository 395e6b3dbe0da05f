/* Filters on texts and single values, methods of lists and dicts, and the table of all filters. Those on sequences: jinja_sequences.c. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_builtin_internal.h"
#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

static int to_text(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_value *ret)
{
    int r = v->kind == RN_JINJA_UNDEFINED && v->unsafe ? rn_jinja_refuse_undefined(run, v) : 0;
    return r < 0 ? r : rn_jinja_to_string(run, v, ret);
}

static int filter_trim(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value s;
    int r = to_text(run, &call->self, &s);
    return r < 0 ? r : rn_jinja_strip(run, &s, &call->args[0], 0, ret);
}

static int filter_string(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return to_text(run, &call->self, ret);
}

#define CASE_FILTER(name, how)                                                                                            \
    static int filter_##name(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)      \
    {                                                                                                                     \
        struct rn_jinja_value s;                                                                                          \
        int r = to_text(run, &call->self, &s);                                                                            \
        return r < 0 ? r : rn_jinja_change_case(run, &s, how, ret);                                                       \
    }

CASE_FILTER(upper, RN_JINJA_UPPER)
CASE_FILTER(lower, RN_JINJA_LOWER)
CASE_FILTER(capitalize, RN_JINJA_CAPITAL)
CASE_FILTER(title, RN_JINJA_TITLE)

static int filter_safe(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    int r = to_text(run, &call->self, ret);
    ret->markup = true;
    return r;
}

static int filter_escape(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value s = {0};
    struct rn_jinja_sink k = {0};
    int r = to_text(run, &call->self, &s);
    if (r < 0 || s.markup) {
        *ret = s;
        return r;
    }
    r = rn_jinja_put_escaped(run, &k, &s);
    *ret = rn_jinja_sink_value(&k);
    ret->markup = true;
    return r;
}

static int filter_replace(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value s, from, to;
    int64_t count = -1;
    int r = to_text(run, &call->self, &s);
    r = r < 0 ? r : to_text(run, &call->args[0], &from);
    r = r < 0 ? r : to_text(run, &call->args[1], &to);
    if (r == 0 && call->args[2].kind != RN_JINJA_MISSING && call->args[2].kind != RN_JINJA_NONE && !rn_jinja_as_int(&call->args[2], &count)) {
        r = rn_jinja_fail(run, -EINVAL, "replace needs a number as its count");
    }
    s.markup = from.markup = to.markup = false; /* str(x) of a string marked safe is a plain one */
    return r < 0 ? r : rn_jinja_replace(run, &s, &from, &to, count, ret);
}

static int filter_format(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value s, args;
    if (call->n_keywords) {
        return rn_jinja_fail(run, -EINVAL, "format with names is not supported");
    }
    int r = to_text(run, &call->self, &s);
    r = r < 0 ? r : rn_jinja_list_new(run, call->n_args, RN_JINJA_F_TUPLE, &args);
    if (r == 0 && call->n_args) {
        memcpy(args.u.list->items, call->args, call->n_args * sizeof(*call->args));
    }
    return r < 0 ? r : rn_jinja_percent(run, &s, &args, ret);
}

/* One level of indentation: a text, or so many blanks. */
static int indentation(struct rn_jinja_run *run, const struct rn_jinja_value *width, struct rn_jinja_value *ret)
{
    static const char blanks[] = "                                                                ";
    int64_t n;
    if (width->kind == RN_JINJA_STRING) {
        *ret = *width;
        return 0;
    }
    if (!rn_jinja_as_int(width, &n) || n > (int64_t)sizeof(blanks) - 1) {
        return rn_jinja_fail(run, -EINVAL, "an indentation is a text or a number up to %zu", sizeof(blanks) - 1);
    }
    *ret = rn_jinja_string(blanks, n < 0 ? 0 : (size_t)n, RN_JINJA_OWN);
    return 0;
}

static int filter_indent(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value s = {0}, width = rn_jinja_int(4);
    int r = to_text(run, &call->self, &s);
    r = r < 0 ? r : indentation(run, call->args[0].kind == RN_JINJA_MISSING ? &width : &call->args[0], &width);
    bool first = rn_jinja_truth(&call->args[1]), blank = rn_jinja_truth(&call->args[2]);
    struct rn_jinja_sink k = {0};
    r = r < 0 || !first ? r : rn_jinja_put_value(run, &k, &width);
    /* Jinja adds a newline and takes the lines: any line break becomes "\n". */
    for (size_t pos = 0, line = 0; r == 0; line++) {
        size_t end = pos, n = 0;
        while (end < s.u.s.len && (n = rn_jinja_line_break(s.u.s.data + end, s.u.s.len - end)) == 0) {
            end += rn_jinja_char_len(s.u.s.data + end, s.u.s.len - end);
        }
        struct rn_jinja_value part = rn_jinja_part(&s, pos, end);
        if (line > 0 && (blank || end > pos)) {
            r = rn_jinja_put_value(run, &k, &width);
        }
        r = r < 0 ? r : rn_jinja_put_value(run, &k, &part);
        if (r < 0 || end >= s.u.s.len) {
            break;
        }
        bool own = s.own == RN_JINJA_OWN || (s.own == RN_JINJA_MIXED && s.u.s.mask[end]);
        r = rn_jinja_put(run, &k, "\n", 1, own);
        pos = end + n;
    }
    *ret = rn_jinja_sink_value(&k);
    ret->markup = s.markup;
    return r < 0 ? r : rn_jinja_step(run, s.u.s.len / 16);
}

static int filter_default(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    (void)run;
    bool use = call->self.kind == RN_JINJA_UNDEFINED || (rn_jinja_truth(&call->args[1]) && !rn_jinja_truth(&call->self));
    *ret = !use ? call->self : call->args[0].kind == RN_JINJA_MISSING ? rn_jinja_own_str("") : call->args[0];
    return 0;
}

static int filter_length(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    int64_t n = 0;
    int r = rn_jinja_length(run, &call->self, &n);
    *ret = rn_jinja_int(n);
    return r;
}

static int filter_abs(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    double f = 0;
    int r = rn_jinja_refuse_undefined(run, &call->self);
    if (r == 0 && !rn_jinja_as_float(&call->self, &f)) {
        r = rn_jinja_fail(run, -EINVAL, "abs needs a number, not '%s'", rn_jinja_type_name(&call->self));
    }
    return r < 0 ? r : rn_jinja_negate(run, &call->self, f < 0, ret);
}

/* The text of a number as Python's int() or float() reads it, into buf without blanks and underscores. False: it is none. */
static bool number_text(const struct rn_jinja_value *s, char *buf, size_t size)
{
    size_t end = rn_jinja_rstrip(s->u.s.data, s->u.s.len), n = 0;
    for (size_t i = rn_jinja_lstrip(s->u.s.data, end); i < end; i++) {
        char c = s->u.s.data[i];
        bool digit = c >= '0' && c <= '9';
        if (c == '_' && n > 0 && buf[n - 1] >= '0' && buf[n - 1] <= '9' && i + 1 < end && s->u.s.data[i + 1] >= '0' && s->u.s.data[i + 1] <= '9') {
            continue;
        }
        if ((!digit && !strchr("+-.eE", c)) || c == '\0' || n + 1 >= size) {
            return false;
        }
        buf[n++] = c;
    }
    buf[n] = '\0';
    return n > 0;
}

static bool parse_float(const struct rn_jinja_value *v, double *ret)
{
    char buf[100], *end;
    if (v->kind != RN_JINJA_STRING) {
        return rn_jinja_as_float(v, ret);
    }
    if (!number_text(v, buf, sizeof(buf))) {
        return false;
    }
    *ret = strtod(buf, &end);
    return *end == '\0';
}

static bool parse_int(const struct rn_jinja_value *v, int64_t *ret)
{
    char buf[100], *end;
    if (v->kind != RN_JINJA_STRING) {
        return rn_jinja_as_int(v, ret);
    }
    if (!number_text(v, buf, sizeof(buf))) {
        return false;
    }
    errno = 0;
    *ret = strtoll(buf, &end, 10);
    return *end == '\0' && errno == 0;
}

static int filter_int(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    int64_t i, base;
    double f;
    int r = rn_jinja_refuse_undefined(run, &call->self);
    if (r == 0 && call->args[1].kind != RN_JINJA_MISSING && (!rn_jinja_as_int(&call->args[1], &base) || base != 10)) {
        r = rn_jinja_fail(run, -EINVAL, "int with a base other than 10 is not supported");
    }
    if (r < 0) {
        return r;
    }
    if (parse_int(&call->self, &i)) {
        *ret = rn_jinja_int(i);
    } else if (parse_float(&call->self, &f)) {
        if (!(fabs(f) < 9223372036854775000.0)) {
            return rn_jinja_fail(run, -EINVAL, "a number of more than 64 bits");
        }
        *ret = rn_jinja_int((int64_t)f);
    } else {
        *ret = call->args[0].kind == RN_JINJA_MISSING ? rn_jinja_int(0) : call->args[0];
        return 0;
    }
    ret->own = call->self.own == RN_JINJA_OWN ? RN_JINJA_OWN : RN_JINJA_DATA;
    return 0;
}

static int filter_float(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    double f;
    int r = rn_jinja_refuse_undefined(run, &call->self);
    if (r < 0) {
        return r;
    }
    if (!parse_float(&call->self, &f)) {
        *ret = call->args[0].kind == RN_JINJA_MISSING ? rn_jinja_float(0) : call->args[0];
        return 0;
    }
    *ret = rn_jinja_float(f);
    ret->own = call->self.own == RN_JINJA_OWN ? RN_JINJA_OWN : RN_JINJA_DATA;
    return 0;
}

static int filter_round(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    double f;
    int64_t precision = 0;
    if (!rn_jinja_as_float(&call->self, &f) || (call->args[0].kind != RN_JINJA_MISSING && !rn_jinja_as_int(&call->args[0], &precision)) ||
        precision < 0 || precision > 15) {
        return rn_jinja_fail(run, -EINVAL, "round needs a number, and a precision of 0 to 15");
    }
    const struct rn_jinja_value *method = &call->args[1];
    double scale = pow(10, (double)precision);
    if (method->kind == RN_JINJA_MISSING || rn_jinja_is_text(method, "common")) {
        char buf[400]; /* printf rounds the exact value half to even, as Python's round does */
        snprintf(buf, sizeof(buf), "%.*f", (int)precision, f);
        f = strtod(buf, NULL);
    } else if (rn_jinja_is_text(method, "ceil")) {
        f = ceil(f * scale) / scale;
    } else if (rn_jinja_is_text(method, "floor")) {
        f = floor(f * scale) / scale;
    } else {
        return rn_jinja_fail(run, -EINVAL, "an unknown method of rounding");
    }
    /* An integer rounded by "common" stays one, as round() of an int does. */
    int64_t i;
    bool stays = rn_jinja_as_int(&call->self, &i) && (method->kind == RN_JINJA_MISSING || rn_jinja_is_text(method, "common"));
    *ret = stays ? rn_jinja_int(i) : rn_jinja_float(f);
    ret->own = call->self.own;
    return 0;
}

/* Separators: a pair of texts. */
static int json_separators(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_json_style *style)
{
    const struct rn_jinja_list *l = v->kind == RN_JINJA_LIST ? v->u.list : NULL;
    if (!l || l->n != 2 || l->items[0].kind != RN_JINJA_STRING || l->items[1].kind != RN_JINJA_STRING) {
        return rn_jinja_fail(run, -EINVAL, "the separators of tojson are two texts");
    }
    style->item = (struct rn_jinja_text){l->items[0].u.s.data, l->items[0].u.s.len};
    style->key = (struct rn_jinja_text){l->items[1].u.s.data, l->items[1].u.s.len};
    return 0;
}

/* Hugging Face's own tojson: json.dumps without escapes for HTML. Arguments: ensure_ascii indent separators sort_keys. */
static int filter_tojson(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *a = call->args;
    struct rn_jinja_json_style style = {.item = {", ", 2}, .key = {": ", 2}};
    int r = 0;
    style.ascii = rn_jinja_truth(&a[0]);
    style.sort_keys = rn_jinja_truth(&a[3]);
    if (a[1].kind != RN_JINJA_MISSING && a[1].kind != RN_JINJA_NONE) {
        struct rn_jinja_value indent;
        r = indentation(run, &a[1], &indent);
        style.pretty = true;
        style.indent = r < 0 ? style.indent : (struct rn_jinja_text){indent.u.s.data, indent.u.s.len};
        style.item = (struct rn_jinja_text){",", 1};
    }
    if (r == 0 && a[2].kind != RN_JINJA_MISSING && a[2].kind != RN_JINJA_NONE) {
        r = json_separators(run, &a[2], &style);
    }
    struct rn_jinja_sink k = {0};
    r = r < 0 ? r : rn_jinja_put_json(run, &k, &call->self, &style);
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r;
}

/* ---- methods of lists and dicts ---- */

int rn_jinja_dict_items(struct rn_jinja_run *run, const struct rn_jinja_dict *d, enum rn_jinja_flavour flavour, struct rn_jinja_value *ret)
{
    int r = rn_jinja_list_new(run, d->n, flavour, ret);
    for (size_t i = 0; r == 0 && i < d->n; i++) {
        r = rn_jinja_pair_new(run, &d->pairs[i].key, &d->pairs[i].value, &ret->u.list->items[i]);
    }
    return r < 0 ? r : rn_jinja_step(run, d->n / 4);
}

static int dict_items(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return rn_jinja_dict_items(run, call->self.u.dict, RN_JINJA_F_VIEW, ret);
}

static int dict_half(struct rn_jinja_run *run, const struct rn_jinja_dict *d, bool keys, struct rn_jinja_value *ret)
{
    int r = rn_jinja_list_new(run, d->n, RN_JINJA_F_VIEW, ret);
    for (size_t i = 0; r == 0 && i < d->n; i++) {
        ret->u.list->items[i] = keys ? d->pairs[i].key : d->pairs[i].value;
    }
    return r < 0 ? r : rn_jinja_step(run, d->n / 8);
}

static int dict_keys(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return dict_half(run, call->self.u.dict, true, ret);
}

static int dict_values(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return dict_half(run, call->self.u.dict, false, ret);
}

static int dict_get(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    if (call->args[0].kind == RN_JINJA_LIST || call->args[0].kind == RN_JINJA_DICT) {
        return rn_jinja_fail(run, -EINVAL, "a %s cannot be a key", rn_jinja_type_name(&call->args[0]));
    }
    const struct rn_jinja_value *found = rn_jinja_dict_find(call->self.u.dict, &call->args[0]);
    *ret = found ? *found : call->args[1].kind == RN_JINJA_MISSING ? rn_jinja_none() : call->args[1];
    return call->args[0].kind == RN_JINJA_STRING ? rn_jinja_step(run, call->args[0].u.s.len / 16) : 0;
}

static int same(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    (void)run;
    *ret = call->self; /* what cannot change need not be copied */
    return 0;
}

static int list_search(struct rn_jinja_run *run, const struct rn_jinja_call *call, bool count, struct rn_jinja_value *ret)
{
    const struct rn_jinja_list *l = call->self.u.list;
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        bool equal = false;
        int r = rn_jinja_equal(run, &l->items[i], &call->args[0], &equal);
        if (r < 0) {
            return r;
        }
        n += equal;
        if (equal && !count) {
            *ret = rn_jinja_int((int64_t)i);
            return 0;
        }
    }
    *ret = rn_jinja_int(n);
    return count ? rn_jinja_step(run, l->n) : rn_jinja_fail(run, -EINVAL, "the value is not in the list");
}

static int list_count(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return list_search(run, call, true, ret);
}

static int list_index(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return list_search(run, call, false, ret);
}

const struct rn_jinja_function rn_jinja_dict_methods[] = {
    {"items", "", dict_items},
    {"keys", "", dict_keys},
    {"values", "", dict_values},
    {"get", "!key default", dict_get},
    {"copy", "", same},
    {"fromkeys", "*", NULL},
    {0},
};

const struct rn_jinja_function rn_jinja_list_methods[] = {
    {"count", "!value", list_count},
    {"index", "!value", list_index},
    {"copy", "", same},
    {0},
};

const struct rn_jinja_function rn_jinja_filters[] = {
    {"trim", "chars", filter_trim},
    {"tojson", "ensure_ascii indent separators sort_keys", filter_tojson},
    {"length", "", filter_length},
    {"count", "", filter_length},
    {"default", "default_value boolean", filter_default},
    {"d", "default_value boolean", filter_default},
    {"string", "", filter_string},
    {"join", "d attribute", rn_jinja_filter_join},
    {"items", "", rn_jinja_filter_items},
    {"dictsort", "case_sensitive by reverse", rn_jinja_filter_dictsort},
    {"list", "", rn_jinja_filter_list},
    {"first", "", rn_jinja_filter_first},
    {"last", "", rn_jinja_filter_last},
    {"reverse", "", rn_jinja_filter_reverse},
    {"map", "*", rn_jinja_filter_map},
    {"select", "*", rn_jinja_filter_select},
    {"reject", "*", rn_jinja_filter_reject},
    {"selectattr", "*", rn_jinja_filter_selectattr},
    {"rejectattr", "*", rn_jinja_filter_rejectattr},
    {"sort", "reverse case_sensitive attribute", rn_jinja_filter_sort},
    {"unique", "case_sensitive attribute", rn_jinja_filter_unique},
    {"min", "case_sensitive attribute", rn_jinja_filter_min},
    {"max", "case_sensitive attribute", rn_jinja_filter_max},
    {"sum", "attribute start", rn_jinja_filter_sum},
    {"upper", "", filter_upper},
    {"lower", "", filter_lower},
    {"capitalize", "", filter_capitalize},
    {"title", "", filter_title},
    {"replace", "!old !new count", filter_replace},
    {"indent", "width first blank", filter_indent},
    {"format", "*", filter_format},
    {"safe", "", filter_safe},
    {"escape", "", filter_escape},
    {"e", "", filter_escape},
    {"int", "default base", filter_int},
    {"float", "default", filter_float},
    {"abs", "", filter_abs},
    {"round", "precision method", filter_round},
    {"attr", "*", NULL},
    {"batch", "*", NULL},
    {"center", "*", NULL},
    {"filesizeformat", "*", NULL},
    {"forceescape", "*", NULL},
    {"groupby", "*", NULL},
    {"pprint", "*", NULL},
    {"random", "*", NULL},
    {"slice", "*", NULL},
    {"striptags", "*", NULL},
    {"truncate", "*", NULL},
    {"urlencode", "*", NULL},
    {"urlize", "*", NULL},
    {"wordcount", "*", NULL},
    {"wordwrap", "*", NULL},
    {"xmlattr", "*", NULL},
    {0},
};
