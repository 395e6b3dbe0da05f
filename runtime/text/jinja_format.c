/* "%s" % x and "{}".format(x). The usual marks are known; any other is an error. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

/* A mark: [fill zeros] [width] [.precision] type. */
struct mark {
    bool zero, left, plus;
    int width;     /* at most 1000 */
    int precision; /* -1: none */
    char type;     /* s r d i f x X */
};

static const char *read_number(const char *s, const char *end, int *ret)
{
    *ret = 0;
    while (s < end && *s >= '0' && *s <= '9') {
        *ret = *ret > 1000 ? *ret : *ret * 10 + (*s - '0');
        s++;
    }
    return s;
}

static const char *read_mark(const char *s, const char *end, struct mark *m)
{
    *m = (struct mark){.precision = -1};
    for (; s < end && (*s == '-' || *s == '+' || *s == '0'); s++) {
        m->left |= *s == '-';
        m->plus |= *s == '+';
        m->zero |= *s == '0';
    }
    s = read_number(s, end, &m->width);
    if (s < end && *s == '.') {
        s = read_number(s + 1, end, &m->precision);
    }
    m->type = s < end ? *s++ : '\0';
    return s;
}

/* The number v by its mark. Python's %d takes floats (cut), %x integers only. */
static int format_number(struct rn_jinja_run *run, const struct mark *m, const struct rn_jinja_value *v, char *buf, size_t size)
{
    int64_t i;
    double f;
    bool whole = rn_jinja_as_int(v, &i);
    int r = rn_jinja_refuse_undefined(run, v);
    if (r == 0 && !rn_jinja_as_float(v, &f)) {
        r = rn_jinja_fail(run, -EINVAL, "'%c' needs a number, not '%s'", m->type, rn_jinja_type_name(v));
    }
    if (r < 0) {
        return r;
    }
    if (m->type == 'f' && f > -1e15 && f < 1e15) {
        snprintf(buf, size, m->plus ? "%+.*f" : "%.*f", m->precision < 0 ? 6 : m->precision, f);
    } else if (m->type == 'd' && whole) {
        snprintf(buf, size, m->plus ? "%+lld" : "%lld", (long long)i);
    } else if ((m->type == 'x' || m->type == 'X') && whole && i >= 0) {
        snprintf(buf, size, m->type == 'x' ? "%llx" : "%llX", (unsigned long long)i);
    } else {
        return rn_jinja_fail(run, -EINVAL, "this number cannot be formatted with '%c'", m->type);
    }
    return 0;
}

static int put_padding(struct rn_jinja_run *run, struct rn_jinja_sink *k, char c, int n)
{
    int r = 0;
    for (; r == 0 && n > 0; n--) {
        r = rn_jinja_put(run, k, &c, 1, true);
    }
    return r;
}

static int put_marked(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct mark *m, const struct rn_jinja_value *v)
{
    if (m->width > 1000 || m->precision > 30) {
        return rn_jinja_fail(run, -EINVAL, "a width or precision that is too large");
    }
    struct rn_jinja_sink text = {0};
    int r;
    bool number = m->type == 'd' || m->type == 'f' || m->type == 'x' || m->type == 'X';
    if (number) {
        char buf[64];
        r = format_number(run, m, v, buf, sizeof(buf));
        r = r < 0 ? r : rn_jinja_put_str(run, &text, buf, v->own == RN_JINJA_OWN);
    } else if ((m->type == 's' || m->type == 'r') && m->precision < 0 && !m->zero) {
        r = m->type == 's' ? rn_jinja_put_text(run, &text, v) : rn_jinja_put_repr(run, &text, v);
    } else {
        r = rn_jinja_fail(run, -EINVAL, "an unknown formatting mark");
    }
    if (r < 0) {
        return r;
    }
    struct rn_jinja_value s = rn_jinja_sink_value(&text);
    int n = m->width - (int)rn_jinja_n_chars(s.u.s.data, s.u.s.len > 4000 ? 4000 : s.u.s.len);
    bool left = m->left;
    size_t sign = number && m->zero && !left && s.u.s.len && (s.u.s.data[0] == '-' || s.u.s.data[0] == '+') ? 1 : 0;
    struct rn_jinja_value head = rn_jinja_part(&s, 0, sign);
    struct rn_jinja_value tail = rn_jinja_part(&s, sign, s.u.s.len);
    r = rn_jinja_put_value(run, k, &head);
    r = r < 0 || left ? r : put_padding(run, k, m->zero ? '0' : ' ', n);
    r = r < 0 ? r : rn_jinja_put_value(run, k, &tail);
    return r < 0 || !left ? r : put_padding(run, k, ' ', n);
}

int rn_jinja_percent(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *args, struct rn_jinja_value *ret)
{
    bool tuple = args->kind == RN_JINJA_LIST && args->u.list->flavour == RN_JINJA_F_TUPLE;
    size_t n_args = tuple ? args->u.list->n : 1, used = 0;
    const char *end = s->u.s.data + s->u.s.len;
    struct rn_jinja_sink k = {0};
    int r = s->markup ? rn_jinja_fail(run, -EINVAL, "'%%' on a string marked safe is not supported") : 0;
    for (const char *p = s->u.s.data; r == 0 && p < end;) {
        const char *mark = memchr(p, '%', (size_t)(end - p));
        mark = mark ? mark : end;
        struct rn_jinja_value part = rn_jinja_part(s, (size_t)(p - s->u.s.data), (size_t)(mark - s->u.s.data));
        r = rn_jinja_put_value(run, &k, &part);
        if (r < 0 || mark == end) {
            break;
        }
        struct mark m;
        p = read_mark(mark + 1, end, &m);
        if (m.type == '%') {
            r = rn_jinja_put(run, &k, "%", 1, s->own == RN_JINJA_OWN);
            continue;
        }
        m.type = m.type == 'i' ? 'd' : m.type;
        if (used >= n_args) {
            r = rn_jinja_fail(run, -EINVAL, "not enough arguments for format string");
        } else {
            r = put_marked(run, &k, &m, tuple ? &args->u.list->items[used] : args);
            used++;
        }
    }
    if (r == 0 && used < n_args && !(args->kind == RN_JINJA_DICT && !tuple)) {
        r = rn_jinja_fail(run, -EINVAL, "not all arguments converted during string formatting");
    }
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r;
}

/* How the fields so far were numbered; Python refuses a mixture. */
struct numbering {
    size_t next;
    bool automatic, manual;
};

/* The argument that a field names: empty = the next, a number, or a keyword. */
static const struct rn_jinja_value *field_value(const struct rn_jinja_call *call, const char *name, size_t len, struct numbering *fields)
{
    if (len == 0 || strspn(name, "0123456789") >= len) {
        size_t i = 0;
        for (size_t d = 0; d < len && i < 1000; d++) {
            i = i * 10 + (size_t)(name[d] - '0');
        }
        i = len == 0 ? fields->next++ : i;
        fields->automatic |= len == 0;
        fields->manual |= len > 0;
        return i < call->n_args ? &call->args[i] : NULL;
    }
    for (size_t i = 0; i < call->n_keywords; i++) {
        if (call->keywords[i].name.len == len && memcmp(call->keywords[i].name.data, name, len) == 0) {
            return &call->keywords[i].value;
        }
    }
    return NULL;
}

/* "{name:mark}"; p stands behind "{", close at "}". */
static int put_field(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_call *call, const char *p, const char *close,
                     struct numbering *fields)
{
    const char *colon = memchr(p, ':', (size_t)(close - p));
    const char *name_end = colon ? colon : close;
    const struct rn_jinja_value *v = field_value(call, p, (size_t)(name_end - p), fields);
    if (fields->automatic && fields->manual) {
        return rn_jinja_fail(run, -EINVAL, "numbered and unnumbered fields in one format string");
    }
    if (!v) {
        return rn_jinja_fail(run, -EINVAL, "format() has no argument '%.*s'", name_end - p > 60 ? 60 : (int)(name_end - p), p);
    }
    if (!colon || colon + 1 == close) {
        return rn_jinja_put_text(run, k, v);
    }
    struct mark m;
    const char *rest = read_mark(colon + 1, close, &m);
    if (rest != close || m.left || strchr("dfxX", m.type) == NULL || m.type == '\0') {
        return rn_jinja_fail(run, -EINVAL, "an unknown formatting mark '%.*s'", close - colon > 60 ? 60 : (int)(close - colon - 1), colon + 1);
    }
    return put_marked(run, k, &m, v);
}

int rn_jinja_brace_format(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *s = &call->self;
    const char *start = s->u.s.data, *end = start + s->u.s.len;
    struct rn_jinja_sink k = {0};
    struct numbering fields = {0};
    int r = s->markup ? rn_jinja_fail(run, -EINVAL, "format() of a string marked safe is not supported") : 0;
    for (const char *p = start; r == 0 && p < end;) {
        const char *brace = p;
        while (brace < end && *brace != '{' && *brace != '}') {
            brace++;
        }
        struct rn_jinja_value part = rn_jinja_part(s, (size_t)(p - start), (size_t)(brace - start));
        r = rn_jinja_put_value(run, &k, &part);
        if (r < 0 || brace == end) {
            break;
        }
        if (brace + 1 < end && brace[1] == *brace) {
            struct rn_jinja_value one = rn_jinja_part(s, (size_t)(brace - start), (size_t)(brace - start) + 1);
            r = rn_jinja_put_value(run, &k, &one);
            p = brace + 2;
            continue;
        }
        const char *close = *brace == '{' ? memchr(brace, '}', (size_t)(end - brace)) : NULL;
        if (!close) {
            return rn_jinja_fail(run, -EINVAL, "a single '%c' in a format string", *brace);
        }
        r = put_field(run, &k, call, brace + 1, close, &fields);
        p = close + 1;
    }
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r;
}
