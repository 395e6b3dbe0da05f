/* The leaves of the template language's expressions: literals, names, lists, dicts and tuples. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/jinja_lex.h"
#include "runtime/text/jinja_parse_internal.h"

static unsigned hex_value(const char *s, size_t n)
{
    unsigned v = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        v = v * 16 + (unsigned)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return v;
}

static size_t put_utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

/* \xHH, \uHHHH, \UHHHHHHHH and octal. Returns the bytes read behind the backslash; 0: no valid escape. */
static size_t numeric_escape(const char *s, size_t len, unsigned *ret)
{
    if (s[0] >= '0' && s[0] <= '7') {
        size_t n = 0;
        for (*ret = 0; n < 3 && n < len && s[n] >= '0' && s[n] <= '7'; n++) {
            *ret = *ret * 8 + (unsigned)(s[n] - '0');
        }
        return n;
    }
    size_t n = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : 8;
    if (n + 1 > len || strspn(s + 1, "0123456789abcdefABCDEF") < n) {
        return 0;
    }
    *ret = hex_value(s + 1, n);
    return n + 1;
}

/* Decodes the inside of a string literal into out, which has room for len bytes. Escapes are Python's; an unknown one stays as it is. */
static int unescape(struct rn_jinja_parser *p, const char *s, size_t len, char *out, size_t *ret_len)
{
    static const char letters[] = "ntr\\'\"abfv";
    static const char values[] = "\n\t\r\\'\"\a\b\f\v";
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (s[i] != '\\' || i + 1 >= len) {
            out[n++] = s[i];
            continue;
        }
        char c = s[++i];
        const char *simple = c ? strchr(letters, c) : NULL;
        if (simple) {
            out[n++] = values[simple - letters];
        } else if (c == 'x' || c == 'u' || c == 'U' || (c >= '0' && c <= '7')) {
            unsigned code = 0;
            size_t read = numeric_escape(s + i, len - i, &code);
            if (read == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
                p->run->at = (size_t)(s + i - 1 - p->source);
                return rn_jinja_fail(p->run, -EINVAL, "an escape that is no character");
            }
            n += put_utf8(out + n, code);
            i += read - 1;
        } else if (c == 'N') {
            p->run->at = (size_t)(s + i - 1 - p->source);
            return rn_jinja_fail(p->run, -EINVAL, "the escape \\N is not supported");
        } else if (c != '\n') {
            out[n++] = '\\';
            out[n++] = c;
        }
    }
    *ret_len = n;
    return 0;
}

/* One literal, or several in a row, which are joined. */
static int parse_string(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    size_t total = 0;
    for (const struct rn_jinja_token *t = p->t; t->kind == RN_JINJA_T_STRING; t++) {
        total += t->text.len;
    }
    char *out = rn_jinja_alloc(p->run, total, 1);
    if (!out) {
        return rn_jinja_alloc_code(p->run);
    }
    size_t len = 0;
    int r = 0;
    for (; r == 0 && p->t->kind == RN_JINJA_T_STRING; p->t++) {
        size_t part = 0;
        r = unescape(p, p->t->text.data + 1, p->t->text.len - 2, out + len, &part);
        len += part;
    }
    n->constant = rn_jinja_string(out, len, RN_JINJA_OWN);
    return r;
}

int rn_jinja_parse_number(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    char buf[64];
    size_t len = 0;
    for (size_t i = 0; i < p->t->text.len; i++) {
        if (p->t->text.data[i] != '_') {
            if (len + 1 == sizeof(buf)) {
                return rn_jinja_parser_fail(p, "a shorter number");
            }
            buf[len++] = p->t->text.data[i];
        }
    }
    buf[len] = '\0';
    if (p->t->kind == RN_JINJA_T_FLOAT) {
        n->constant = rn_jinja_float(strtod(buf, NULL));
    } else {
        if (len > 1 && buf[0] == '0' && strspn(buf, "0") < len) {
            return rn_jinja_parser_fail(p, "a number without leading zeros");
        }
        errno = 0;
        n->constant = rn_jinja_int(strtoll(buf, NULL, 10));
        if (errno == ERANGE) {
            return rn_jinja_parser_fail(p, "a number of at most 64 bits");
        }
    }
    p->t++;
    return 0;
}

static int parse_list(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    p->t++;
    int r = 0;
    while (r == 0 && !rn_jinja_parser_skip_op(p, "]")) {
        if (n->list.n && (r = rn_jinja_parser_expect_op(p, ",")) < 0) {
            break;
        }
        if (rn_jinja_parser_skip_op(p, "]")) {
            break;
        }
        struct rn_jinja_node *item;
        r = rn_jinja_parse_expression(p, &item);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, item);
    }
    return r;
}

static int parse_dict(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    p->t++;
    int r = 0;
    while (r == 0 && !rn_jinja_parser_skip_op(p, "}")) {
        if (n->list.n && (r = rn_jinja_parser_expect_op(p, ",")) < 0) {
            break;
        }
        if (rn_jinja_parser_skip_op(p, "}")) {
            break;
        }
        struct rn_jinja_node *pair;
        r = rn_jinja_parser_new(p, RN_JINJA_N_PAIR, &pair);
        r = r < 0 ? r : rn_jinja_parse_expression(p, &pair->a);
        r = r < 0 ? r : rn_jinja_parser_expect_op(p, ":");
        r = r < 0 ? r : rn_jinja_parse_expression(p, &pair->b);
        r = r < 0 ? r : rn_jinja_parser_close(p, pair);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, pair);
    }
    return r;
}

static bool is_tuple_end(const struct rn_jinja_parser *p)
{
    return p->t->kind == RN_JINJA_T_PRINT_END || p->t->kind == RN_JINJA_T_BLOCK_END || rn_jinja_parser_at_op(p, ")") ||
           rn_jinja_parser_at_name(p, "recursive");
}

/* brackets: an empty tuple is allowed. */
static int tuple(struct rn_jinja_parser *p, bool plain, bool brackets, struct rn_jinja_node **ret)
{
    struct rn_jinja_node *n;
    int r = rn_jinja_parser_new(p, RN_JINJA_N_TUPLE, &n);
    bool comma = false;
    while (r == 0 && !is_tuple_end(p)) {
        struct rn_jinja_node *item;
        r = plain ? rn_jinja_parse_or(p, &item) : rn_jinja_parse_expression(p, &item);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, item);
        if (r < 0 || !rn_jinja_parser_skip_op(p, ",")) {
            break;
        }
        comma = true;
    }
    if (r < 0) {
        return r;
    }
    if (!comma && n->list.n == 1) {
        *ret = n->list.data[0];
        return 0;
    }
    if (n->list.n == 0 && !brackets) {
        return rn_jinja_parser_fail(p, "an expression");
    }
    *ret = n;
    return rn_jinja_parser_close(p, n);
}

int rn_jinja_parse_tuple(struct rn_jinja_parser *p, bool plain, struct rn_jinja_node **ret)
{
    return tuple(p, plain, /*brackets=*/false, ret);
}

int rn_jinja_parse_name(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    static const struct {
        const char *name;
        int value; /* -1: none */
    } constants[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (rn_jinja_parser_skip_name(p, constants[i].name)) {
            n->kind = RN_JINJA_N_CONST;
            n->constant = constants[i].value < 0 ? rn_jinja_none() : rn_jinja_bool(constants[i].value);
            return 0;
        }
    }
    static const char *const words[] = {"if", "else", "elif", "for", "in", "is", "and", "or", "not"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (rn_jinja_parser_at_name(p, words[i])) {
            return rn_jinja_parser_fail(p, "an expression");
        }
    }
    return rn_jinja_parser_name(p, n, "a name");
}

int rn_jinja_parse_primary(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    struct rn_jinja_node *n;
    int r = rn_jinja_parser_new(p, RN_JINJA_N_CONST, &n);
    if (r < 0) {
        return r;
    }
    if (rn_jinja_parser_skip_op(p, "(")) {
        r = tuple(p, /*plain=*/false, /*brackets=*/true, ret);
        return r < 0 ? r : rn_jinja_parser_expect_op(p, ")");
    }
    if (p->t->kind == RN_JINJA_T_NAME) {
        n->kind = RN_JINJA_N_NAME;
        r = rn_jinja_parse_name(p, n);
    } else if (p->t->kind == RN_JINJA_T_STRING) {
        r = parse_string(p, n);
    } else if (p->t->kind == RN_JINJA_T_INT || p->t->kind == RN_JINJA_T_FLOAT) {
        r = rn_jinja_parse_number(p, n);
    } else if (rn_jinja_parser_at_op(p, "[")) {
        n->kind = RN_JINJA_N_LIST;
        r = parse_list(p, n);
    } else if (rn_jinja_parser_at_op(p, "{")) {
        n->kind = RN_JINJA_N_DICT;
        r = parse_dict(p, n);
    } else {
        r = rn_jinja_parser_fail(p, "an expression");
    }
    *ret = n;
    return r < 0 ? r : rn_jinja_parser_close(p, n);
}
