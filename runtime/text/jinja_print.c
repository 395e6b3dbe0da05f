/* How values are written: str() and repr() as Python has them, JSON as json.dumps has it.
 *
 * The text of a container, and of a number, is the template's only where its content is: brackets and commas around data are data, so
 * nothing that a message decides can become part of a control token. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_text.h"

void rn_jinja_float_repr(double f, char *buf, size_t size)
{
    if (!isfinite(f)) {
        snprintf(buf, size, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    char digits[40];
    int precision = 0;
    do { /* the fewest digits that read back as the same number */
        snprintf(digits, sizeof(digits), "%.*e", precision, f);
    } while (strtod(digits, NULL) != f && ++precision < 17);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        *e = '\0';
        snprintf(buf, size, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - exponent;
    snprintf(buf, size, "%.*f", decimals > 0 ? decimals : 0, f);
    if (decimals <= 0) {
        size_t n = strlen(buf);
        snprintf(buf + n, size - n, ".0");
    }
}

static int put_number(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v)
{
    char buf[40];
    if (v->kind == RN_JINJA_INT) {
        snprintf(buf, sizeof(buf), "%lld", (long long)v->u.i);
    } else {
        rn_jinja_float_repr(v->u.f, buf, sizeof(buf));
    }
    return rn_jinja_put_str(run, k, buf, v->own == RN_JINJA_OWN);
}

static bool is_printable(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

/* The escape of one character inside quotes, or "" when it stands for itself. */
static void repr_escape(int32_t c, char quote, char *buf, size_t size)
{
    buf[0] = '\0';
    if (c == '\\' || c == quote) {
        snprintf(buf, size, "\\%c", (char)c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
        snprintf(buf, size, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    } else if (!is_printable(c)) {
        snprintf(buf, size, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    }
}

static int put_repr_string(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *s)
{
    bool single = memchr(s->u.s.data, '\'', s->u.s.len) != NULL;
    char quote = single && !memchr(s->u.s.data, '"', s->u.s.len) ? '"' : '\'';
    int r = rn_jinja_put(run, k, &quote, 1, false);
    for (size_t pos = 0; r == 0 && pos < s->u.s.len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s->u.s.data + pos, (utf8proc_ssize_t)(s->u.s.len - pos), &c);
        size_t len = n > 0 ? (size_t)n : 1;
        char escape[16];
        repr_escape(c, quote, escape, sizeof(escape));
        if (escape[0]) {
            r = rn_jinja_put_str(run, k, escape, false);
        } else {
            struct rn_jinja_value part = rn_jinja_part(s, pos, pos + len);
            r = rn_jinja_put_value(run, k, &part);
        }
        pos += len;
    }
    return r < 0 ? r : rn_jinja_put(run, k, &quote, 1, false);
}

static int put_repr_items(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_list *l, const char *open,
                          const char *close)
{
    int r = rn_jinja_put_str(run, k, open, false);
    for (size_t i = 0; r == 0 && i < l->n; i++) {
        r = i ? rn_jinja_put_str(run, k, ", ", false) : 0;
        r = r < 0 ? r : rn_jinja_put_repr(run, k, &l->items[i]);
    }
    if (r == 0 && l->flavour == RN_JINJA_F_TUPLE && l->n == 1) {
        r = rn_jinja_put_str(run, k, ",", false);
    }
    return r < 0 ? r : rn_jinja_put_str(run, k, close, false);
}

static int put_repr_list(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_list *l)
{
    char buf[80];
    switch (l->flavour) {
    case RN_JINJA_F_LIST: return put_repr_items(run, k, l, "[", "]");
    case RN_JINJA_F_TUPLE: return put_repr_items(run, k, l, "(", ")");
    case RN_JINJA_F_RANGE:
        if (l->step == 1) {
            snprintf(buf, sizeof(buf), "range(%lld, %lld)", (long long)l->start, (long long)l->stop);
        } else {
            snprintf(buf, sizeof(buf), "range(%lld, %lld, %lld)", (long long)l->start, (long long)l->stop, (long long)l->step);
        }
        return rn_jinja_put_str(run, k, buf, false);
    case RN_JINJA_F_VIEW:
    case RN_JINJA_F_GENERATOR: break;
    }
    return rn_jinja_fail(run, -EINVAL, "a %s has no text; use the filter 'list'", l->flavour == RN_JINJA_F_VIEW ? "dict view" : "generator");
}

static int put_repr_dict(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_dict *d)
{
    int r = rn_jinja_put_str(run, k, "{", false);
    for (size_t i = 0; r == 0 && i < d->n; i++) {
        r = i ? rn_jinja_put_str(run, k, ", ", false) : 0;
        r = r < 0 ? r : rn_jinja_put_repr(run, k, &d->pairs[i].key);
        r = r < 0 ? r : rn_jinja_put_str(run, k, ": ", false);
        r = r < 0 ? r : rn_jinja_put_repr(run, k, &d->pairs[i].value);
    }
    return r < 0 ? r : rn_jinja_put_str(run, k, "}", false);
}

int rn_jinja_put_repr(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v)
{
    if (v->kind == RN_JINJA_STRING && !v->markup) {
        return put_repr_string(run, k, v);
    }
    if (v->kind != RN_JINJA_LIST && v->kind != RN_JINJA_DICT) {
        if (v->kind == RN_JINJA_UNDEFINED) {
            return rn_jinja_put_str(run, k, "Undefined", false);
        }
        if (v->kind == RN_JINJA_STRING) {
            return rn_jinja_fail(run, -EINVAL, "the repr of a string marked safe is not supported");
        }
        return rn_jinja_put_text(run, k, v);
    }
    int r = rn_jinja_enter(run);
    if (r == 0) {
        r = v->kind == RN_JINJA_LIST ? put_repr_list(run, k, v->u.list) : put_repr_dict(run, k, v->u.dict);
        rn_jinja_leave(run);
    }
    return r;
}

int rn_jinja_put_text(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v)
{
    bool own = v->own == RN_JINJA_OWN;
    switch ((enum rn_jinja_kind)v->kind) {
    case RN_JINJA_MISSING:
    case RN_JINJA_UNDEFINED: return 0;
    case RN_JINJA_NONE: return rn_jinja_put_str(run, k, "None", own);
    case RN_JINJA_BOOL: return rn_jinja_put_str(run, k, v->u.b ? "True" : "False", own);
    case RN_JINJA_INT:
    case RN_JINJA_FLOAT: return put_number(run, k, v);
    case RN_JINJA_STRING: return rn_jinja_put_value(run, k, v);
    case RN_JINJA_LIST:
    case RN_JINJA_DICT: return rn_jinja_put_repr(run, k, v);
    case RN_JINJA_NAMESPACE:
    case RN_JINJA_MACRO:
    case RN_JINJA_FUNCTION:
    case RN_JINJA_LOOP: break;
    }
    return rn_jinja_fail(run, -EINVAL, "a %s has no text", rn_jinja_type_name(v));
}

int rn_jinja_to_string(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_value *ret)
{
    if (v->kind == RN_JINJA_STRING) {
        *ret = *v;
        return 0;
    }
    struct rn_jinja_sink k = {0};
    int r = rn_jinja_put_text(run, &k, v);
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r;
}

/* ---- JSON ---- */

static void json_escape(int32_t c, bool ascii, char *buf, size_t size)
{
    static const char plain[] = "\"\\\n\r\t\f\b";
    static const char letters[] = "\"\\nrtfb";
    const char *p = c > 0 && c < 0x80 ? strchr(plain, c) : NULL;
    buf[0] = '\0';
    if (p) {
        snprintf(buf, size, "\\%c", letters[p - plain]);
    } else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000)) {
        if (c != 0x7f) {
            snprintf(buf, size, "\\u%04x", (unsigned)c);
        }
    } else if (ascii && c >= 0x10000) {
        unsigned u = (unsigned)c - 0x10000;
        snprintf(buf, size, "\\u%04x\\u%04x", 0xd800 + (u >> 10), 0xdc00 + (u & 0x3ff));
    }
}

static int put_json_string(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *s, bool ascii)
{
    int r = rn_jinja_put_str(run, k, "\"", false);
    size_t plain = 0; /* start of the bytes that go over as they are */
    for (size_t pos = 0; r == 0 && pos < s->u.s.len;) {
        utf8proc_int32_t c = (unsigned char)s->u.s.data[pos];
        size_t len = 1;
        if (c >= 0x80) {
            utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s->u.s.data + pos, (utf8proc_ssize_t)(s->u.s.len - pos), &c);
            len = n > 0 ? (size_t)n : 1;
        }
        char escape[16];
        json_escape(c, ascii, escape, sizeof(escape));
        if (escape[0]) {
            struct rn_jinja_value part = rn_jinja_part(s, plain, pos);
            r = rn_jinja_put_value(run, k, &part);
            r = r < 0 ? r : rn_jinja_put_str(run, k, escape, false);
            plain = pos + len;
        }
        pos += len;
    }
    struct rn_jinja_value rest = rn_jinja_part(s, plain, s->u.s.len);
    r = r < 0 ? r : rn_jinja_put_value(run, k, &rest);
    return r < 0 ? r : rn_jinja_put_str(run, k, "\"", false);
}

static int put_indent(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_json_style *style, unsigned level)
{
    int r = style->pretty ? rn_jinja_put_str(run, k, "\n", false) : 0;
    for (unsigned i = 0; style->pretty && r == 0 && i < level; i++) {
        r = rn_jinja_put(run, k, style->indent.data, style->indent.len, false);
    }
    return r;
}

static int put_json(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v,
                    const struct rn_jinja_json_style *style, unsigned level);

static int put_json_list(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_list *l,
                         const struct rn_jinja_json_style *style, unsigned level)
{
    int r = rn_jinja_put_str(run, k, "[", false);
    for (size_t i = 0; r == 0 && i < l->n; i++) {
        r = i ? rn_jinja_put(run, k, style->item.data, style->item.len, false) : 0;
        r = r < 0 ? r : put_indent(run, k, style, level + 1);
        r = r < 0 ? r : put_json(run, k, &l->items[i], style, level + 1);
    }
    if (r == 0 && l->n > 0) {
        r = put_indent(run, k, style, level);
    }
    return r < 0 ? r : rn_jinja_put_str(run, k, "]", false);
}

static int put_json_key(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *key,
                        const struct rn_jinja_json_style *style)
{
    if (key->kind == RN_JINJA_STRING) {
        return put_json_string(run, k, key, style->ascii);
    }
    int r = rn_jinja_put_str(run, k, "\"", false);
    r = r < 0 ? r : put_json(run, k, key, style, 0);
    return r < 0 ? r : rn_jinja_put_str(run, k, "\"", false);
}

static int put_json_dict(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_dict *d,
                         const struct rn_jinja_json_style *style, unsigned level)
{
    const struct rn_jinja_pair *const *order = NULL;
    int r = style->sort_keys ? rn_jinja_sorted_pairs(run, d, &order) : 0;
    r = r < 0 ? r : rn_jinja_put_str(run, k, "{", false);
    for (size_t i = 0; r == 0 && i < d->n; i++) {
        const struct rn_jinja_pair *p = order ? order[i] : &d->pairs[i];
        r = i ? rn_jinja_put(run, k, style->item.data, style->item.len, false) : 0;
        r = r < 0 ? r : put_indent(run, k, style, level + 1);
        r = r < 0 ? r : put_json_key(run, k, &p->key, style);
        r = r < 0 ? r : rn_jinja_put(run, k, style->key.data, style->key.len, false);
        r = r < 0 ? r : put_json(run, k, &p->value, style, level + 1);
    }
    if (r == 0 && d->n > 0) {
        r = put_indent(run, k, style, level);
    }
    return r < 0 ? r : rn_jinja_put_str(run, k, "}", false);
}

static int put_json_scalar(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v, bool ascii)
{
    switch ((enum rn_jinja_kind)v->kind) {
    case RN_JINJA_NONE: return rn_jinja_put_str(run, k, "null", false);
    case RN_JINJA_BOOL: return rn_jinja_put_str(run, k, v->u.b ? "true" : "false", false);
    case RN_JINJA_STRING: return put_json_string(run, k, v, ascii);
    case RN_JINJA_FLOAT:
        if (!isfinite(v->u.f)) {
            return rn_jinja_put_str(run, k, isnan(v->u.f) ? "NaN" : v->u.f > 0 ? "Infinity" : "-Infinity", false);
        }
        return put_number(run, k, v);
    case RN_JINJA_INT: return put_number(run, k, v);
    default: return rn_jinja_fail(run, -EINVAL, "a %s cannot be written as JSON", rn_jinja_type_name(v));
    }
}

static int put_json(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v,
                    const struct rn_jinja_json_style *style, unsigned level)
{
    int r = rn_jinja_enter(run);
    if (r < 0) {
        return r;
    }
    if (v->kind == RN_JINJA_LIST && v->u.list->flavour <= RN_JINJA_F_TUPLE) {
        r = put_json_list(run, k, v->u.list, style, level);
    } else if (v->kind == RN_JINJA_DICT) {
        r = put_json_dict(run, k, v->u.dict, style, level);
    } else {
        r = put_json_scalar(run, k, v, style->ascii);
    }
    rn_jinja_leave(run);
    return r;
}

int rn_jinja_put_json(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v,
                      const struct rn_jinja_json_style *style)
{
    return put_json(run, k, v, style, 0);
}

int rn_jinja_put_escaped(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *s)
{
    static const char special[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    int r = 0;
    for (size_t i = 0; r == 0 && i < s->u.s.len; i++) {
        const char *p = s->u.s.data[i] ? strchr(special, s->u.s.data[i]) : NULL;
        struct rn_jinja_value part = rn_jinja_part(s, i, i + 1);
        r = p ? rn_jinja_put_str(run, k, to[p - special], false) : rn_jinja_put_value(run, k, &part);
    }
    return r;
}
