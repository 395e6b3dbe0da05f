/* The lexer alternates between text and code. In code, brackets are counted, because "}}" and "%}" inside of them do not end it.
 *
 * Whitespace, as Jinja has it: "-" beside a mark strips all whitespace on that side; a block or comment that stands first in its line
 * takes the blanks before it along (not with "+"), and the newline right after a block or comment goes too (not with "+"). */
#include "runtime/text/jinja_lex.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "runtime/text/jinja_text.h"

#define MAX_BRACKETS 200

struct lexer {
    struct rn_jinja_run *run;
    const char *s;
    size_t len, pos;
    struct rn_jinja_token *tokens;
    size_t n, cap;
    char brackets[MAX_BRACKETS]; /* closing brackets that are waited for */
    size_t n_brackets;
};

static int fail_at(struct lexer *x, size_t at, const char *what)
{
    x->run->at = at;
    return rn_jinja_fail(x->run, -EINVAL, "%s", what);
}

static bool looking_at(const struct lexer *x, size_t pos, const char *what)
{
    size_t n = strlen(what);
    return n <= x->len - pos && memcmp(x->s + pos, what, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t pos)
{
    size_t n;
    while (pos < x->len && (n = rn_jinja_space(x->s + pos, x->len - pos)) > 0) {
        pos += n;
    }
    return pos;
}

static int add(struct lexer *x, enum rn_jinja_token_kind kind, size_t from, size_t to)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        struct rn_jinja_token *tokens = rn_jinja_alloc(x->run, cap, sizeof(*tokens));
        if (!tokens) {
            return rn_jinja_alloc_code(x->run);
        }
        if (x->n) {
            memcpy(tokens, x->tokens, x->n * sizeof(*tokens));
        }
        x->tokens = tokens;
        x->cap = cap;
    }
    x->tokens[x->n++] = (struct rn_jinja_token){kind, {x->s + from, to - from}};
    return 0;
}

/* The text [from, to) before an opening mark at `to`; block: it is one of {% and {#. */
static int add_text(struct lexer *x, size_t from, size_t to, bool block)
{
    size_t end = to;
    char sign = to + 2 < x->len ? x->s[to + 2] : '\0';
    if (sign == '-') {
        end = from + rn_jinja_rstrip(x->s + from, to - from);
    } else if (sign != '+' && block) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n') {
            line--;
        }
        bool first = line > from || line == 0 || x->s[line - 1] == '\n';
        if (first && skip_space(x, line) >= to) {
            end = line;
        }
    }
    return end > from ? add(x, RN_JINJA_T_TEXT, from, end) : 0;
}

/* Behind a closing mark that ends at pos, whose sign was `sign`; block: {% or {#. */
static size_t after_mark(const struct lexer *x, size_t pos, char sign, bool block)
{
    if (sign == '-') {
        return skip_space(x, pos);
    }
    return block && sign != '+' && pos < x->len && x->s[pos] == '\n' ? pos + 1 : pos;
}

static int lex_comment(struct lexer *x)
{
    size_t open = x->pos;
    size_t from = open + 2;
    from += from < x->len && (x->s[from] == '-' || x->s[from] == '+');
    for (size_t i = from; i + 1 < x->len; i++) {
        if (x->s[i] == '#' && x->s[i + 1] == '}') {
            char sign = i > from ? x->s[i - 1] : '\0';
            x->pos = after_mark(x, i + 2, sign, true);
            return 0;
        }
    }
    return fail_at(x, open, "missing end of comment");
}

/* At pos, after "{%": [-+] spaces WORD spaces [-+] "%}". Returns the position behind it and the two signs; 0 = it is not that. */
static size_t match_tag(const struct lexer *x, size_t pos, const char *word, char *ret_left, char *ret_right)
{
    *ret_left = *ret_right = '\0';
    if (pos < x->len && (x->s[pos] == '-' || x->s[pos] == '+')) {
        *ret_left = x->s[pos++];
    }
    pos = skip_space(x, pos);
    if (!looking_at(x, pos, word)) {
        return 0;
    }
    pos = skip_space(x, pos + strlen(word));
    if (pos < x->len && (x->s[pos] == '-' || x->s[pos] == '+')) {
        *ret_right = x->s[pos++];
    }
    return looking_at(x, pos, "%}") ? pos + 2 : 0;
}

/* {% raw %} … {% endraw %}: everything between is text. after_open is the position behind the opening tag. */
static int lex_raw(struct lexer *x, size_t after_open, char open_right)
{
    size_t from = open_right == '-' ? skip_space(x, after_open) : after_open;
    for (size_t i = from; i + 1 < x->len; i++) {
        char left, right;
        size_t end = looking_at(x, i, "{%") ? match_tag(x, i + 2, "endraw", &left, &right) : 0;
        if (end) {
            int r = add_text(x, from, i, true);
            x->pos = after_mark(x, end, right, true);
            return r;
        }
    }
    return fail_at(x, x->pos, "missing end of raw block");
}

static bool is_name_start(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t digits(const struct lexer *x, size_t pos)
{
    while (pos < x->len && (is_digit(x->s[pos]) || (x->s[pos] == '_' && pos + 1 < x->len && is_digit(x->s[pos + 1])))) {
        pos++;
    }
    return pos;
}

static int lex_number(struct lexer *x)
{
    size_t from = x->pos;
    size_t end = digits(x, from);
    bool is_float = false;
    /* After a dot, as in `x.0.1`, the number is an index: no fraction. */
    bool index = from > 0 && x->s[from - 1] == '.';
    if (!index && end + 1 < x->len && x->s[end] == '.' && is_digit(x->s[end + 1])) {
        end = digits(x, end + 1);
        is_float = true;
    }
    if (!index && end < x->len && (x->s[end] == 'e' || x->s[end] == 'E')) {
        size_t e = end + 1;
        e += e < x->len && (x->s[e] == '+' || x->s[e] == '-');
        if (e < x->len && is_digit(x->s[e])) {
            end = digits(x, e);
            is_float = true;
        }
    }
    if (end < x->len && (is_name_start(x->s[end]) || is_digit(x->s[end]))) {
        return fail_at(x, from, "a number of an unknown form");
    }
    x->pos = end;
    return add(x, is_float ? RN_JINJA_T_FLOAT : RN_JINJA_T_INT, from, end);
}

static int lex_string(struct lexer *x)
{
    size_t from = x->pos;
    for (size_t i = from + 1; i < x->len; i++) {
        if (x->s[i] == '\\') {
            i++;
        } else if (x->s[i] == x->s[from]) {
            x->pos = i + 1;
            return add(x, RN_JINJA_T_STRING, from, i + 1);
        }
    }
    return fail_at(x, from, "missing end of string");
}

static int count_bracket(struct lexer *x, char c)
{
    static const char pairs[] = "()[]{}";
    const char *open = strchr("([{", c);
    if (open) {
        if (x->n_brackets == MAX_BRACKETS) {
            return fail_at(x, x->pos, "brackets nested too deep");
        }
        x->brackets[x->n_brackets++] = strchr(pairs, c)[1];
    } else if (strchr(")]}", c)) {
        if (x->n_brackets == 0 || x->brackets[x->n_brackets - 1] != c) {
            x->run->at = x->pos;
            return rn_jinja_fail(x->run, -EINVAL, "unexpected '%c'", c);
        }
        x->n_brackets--;
    }
    return 0;
}

static int lex_operator(struct lexer *x)
{
    static const char *const two[] = {"==", "!=", ">=", "<=", "//", "**"};
    for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++) {
        if (looking_at(x, x->pos, two[i])) {
            x->pos += 2;
            return add(x, RN_JINJA_T_OP, x->pos - 2, x->pos);
        }
    }
    char c = x->s[x->pos];
    if (c == '\0' || !strchr("+-/*%~[](){}><=.:|,;", c)) {
        return fail_at(x, x->pos, "unexpected character");
    }
    int r = count_bracket(x, c);
    x->pos++;
    return r < 0 ? r : add(x, RN_JINJA_T_OP, x->pos - 1, x->pos);
}

/* The end mark of the code, when it stands here: adds its token and goes behind it. */
static bool at_end_mark(struct lexer *x, bool block, int *ret)
{
    if (x->n_brackets > 0) {
        return false;
    }
    char c = x->s[x->pos];
    char sign = c == '-' || (block && c == '+') ? c : '\0';
    size_t pos = x->pos + (sign ? 1 : 0);
    if (!looking_at(x, pos, block ? "%}" : "}}")) {
        return false;
    }
    *ret = add(x, block ? RN_JINJA_T_BLOCK_END : RN_JINJA_T_PRINT_END, x->pos, pos + 2);
    x->pos = after_mark(x, pos + 2, sign, block);
    return true;
}

static int lex_code(struct lexer *x, bool block)
{
    size_t open = x->pos;
    int r = add(x, block ? RN_JINJA_T_BLOCK : RN_JINJA_T_PRINT, open, open + 2);
    x->pos += 2;
    if (x->pos < x->len && (x->s[x->pos] == '-' || x->s[x->pos] == '+')) {
        x->pos++;
    }
    x->n_brackets = 0;
    while (r == 0) {
        x->pos = skip_space(x, x->pos);
        if (x->pos >= x->len) {
            return fail_at(x, open, block ? "missing '%}'" : "missing '}}'");
        }
        if (at_end_mark(x, block, &r)) {
            break;
        }
        char c = x->s[x->pos];
        if (is_name_start(c)) {
            size_t from = x->pos;
            while (x->pos < x->len && (is_name_start(x->s[x->pos]) || is_digit(x->s[x->pos]))) {
                x->pos++;
            }
            r = add(x, RN_JINJA_T_NAME, from, x->pos);
        } else if (is_digit(c)) {
            r = lex_number(x);
        } else if (c == '\'' || c == '"') {
            r = lex_string(x);
        } else {
            r = lex_operator(x);
        }
    }
    return r;
}

int rn_jinja_lex(struct rn_jinja_run *run, const char *source, size_t len, struct rn_jinja_token **ret_tokens, size_t *ret_n)
{
    struct lexer x = {.run = run, .s = source, .len = len};
    if (len > 0 && source[len - 1] == '\n') {
        x.len--;
    }
    int r = 0;
    while (r == 0 && x.pos < x.len) {
        size_t i = x.pos;
        while (i < x.len && !(x.s[i] == '{' && i + 1 < x.len && strchr("{%#", x.s[i + 1]) && x.s[i + 1])) {
            i++;
        }
        if (i == x.len) {
            r = add(&x, RN_JINJA_T_TEXT, x.pos, i);
            break;
        }
        char kind = x.s[i + 1];
        r = add_text(&x, x.pos, i, kind != '{');
        x.pos = i;
        char left, right;
        size_t raw = kind == '%' ? match_tag(&x, i + 2, "raw", &left, &right) : 0;
        if (r == 0) {
            r = kind == '#' ? lex_comment(&x) : raw && right != '+' ? lex_raw(&x, raw, right) : lex_code(&x, kind == '%');
        }
    }
    if (r == 0) {
        r = add(&x, RN_JINJA_T_END, x.len, x.len);
    }
    if (r == 0) {
        *ret_tokens = x.tokens;
        *ret_n = x.n;
    }
    return r;
}
