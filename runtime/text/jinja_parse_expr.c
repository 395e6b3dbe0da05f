/* Expressions of the template language, by recursive descent; precedence as in Jinja, lowest first:
 * inline if, or, and, not, comparison and `in`, + -, ~, * / // %, **, unary - +, then postfix, filters and tests. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/text/jinja_lex.h"
#include "runtime/text/jinja_parse_internal.h"

typedef int (*parse_fn)(struct rn_jinja_parser *p, struct rn_jinja_node **ret);

struct operator {
    const char *text;
    enum rn_jinja_op op;
};

/* A node at the current token around *node, which becomes its child a. */
static int wrap(struct rn_jinja_parser *p, enum rn_jinja_node_kind kind, struct rn_jinja_node **node)
{
    struct rn_jinja_node *n;
    int r = rn_jinja_parser_new(p, kind, &n);
    if (r == 0) {
        n->a = *node;
        *node = n;
    }
    return r;
}

/* ---- postfix, filters, tests ---- */

/* One argument: x, name=x, *x or **x. */
static int parse_argument(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    struct rn_jinja_node *n = NULL;
    int r = 0;
    if (rn_jinja_parser_at_op(p, "*") || rn_jinja_parser_at_op(p, "**")) {
        r = rn_jinja_parser_new(p, rn_jinja_parser_at_op(p, "*") ? RN_JINJA_N_SPREAD : RN_JINJA_N_SPREAD_DICT, &n);
        p->t++;
    } else if (p->t->kind == RN_JINJA_T_NAME && p->t[1].kind == RN_JINJA_T_OP && p->t[1].text.len == 1 && p->t[1].text.data[0] == '=') {
        r = rn_jinja_parser_new(p, RN_JINJA_N_KEYWORD, &n);
        r = r < 0 ? r : rn_jinja_parser_name(p, n, "a name");
        p->t++;
    }
    if (r < 0 || !n) {
        return r < 0 ? r : rn_jinja_parse_expression(p, ret);
    }
    *ret = n;
    r = rn_jinja_parse_expression(p, &n->a);
    return r < 0 ? r : rn_jinja_parser_close(p, n);
}

/* "(…)" */
static int parse_arguments(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = rn_jinja_parser_expect_op(p, "(");
    bool keywords = false;
    while (r == 0 && !rn_jinja_parser_skip_op(p, ")")) {
        if (n->list.n && (r = rn_jinja_parser_expect_op(p, ",")) < 0) {
            break;
        }
        if (rn_jinja_parser_skip_op(p, ")")) {
            break;
        }
        struct rn_jinja_node *argument;
        r = parse_argument(p, &argument);
        if (r == 0) {
            bool keyword = argument->kind == RN_JINJA_N_KEYWORD || argument->kind == RN_JINJA_N_SPREAD_DICT;
            if (keywords && !keyword) {
                p->run->at = argument->at;
                return rn_jinja_fail(p->run, -EINVAL, "an argument without a name behind one with a name");
            }
            keywords = keyword;
            r = rn_jinja_parser_push(p, &n->list, argument);
        }
    }
    return r;
}

/* What stands between "[" and "]". */
static int parse_index(struct rn_jinja_parser *p, struct rn_jinja_node **node)
{
    struct rn_jinja_node *what = *node;
    struct rn_jinja_node *part[3] = {NULL, NULL, NULL};
    int n_colons = 0;
    int r = wrap(p, RN_JINJA_N_ITEM, node);
    struct rn_jinja_node *n = *node;
    p->t++;
    while (r == 0 && !rn_jinja_parser_at_op(p, "]")) {
        if (rn_jinja_parser_at_op(p, ":") && n_colons < 2) {
            n_colons++;
            p->t++;
        } else if (!part[n_colons]) {
            r = rn_jinja_parse_expression(p, &part[n_colons]);
        } else {
            r = rn_jinja_parser_fail(p, "']'");
        }
    }
    if (r == 0 && n_colons == 0 && !part[0]) {
        r = rn_jinja_parser_fail(p, "an index");
    }
    if (r < 0) {
        return r;
    }
    p->t++;
    if (n_colons > 0) {
        n->kind = RN_JINJA_N_SLICE;
        n->d = what;
        n->a = part[0];
        n->b = part[1];
        n->c = part[2];
    } else {
        n->b = part[0];
    }
    return rn_jinja_parser_close(p, n);
}

static int parse_attribute(struct rn_jinja_parser *p, struct rn_jinja_node **node)
{
    p->t++;
    int r = wrap(p, RN_JINJA_N_ATTR, node);
    struct rn_jinja_node *n = *node;
    if (r == 0 && p->t->kind == RN_JINJA_T_INT) {
        n->kind = RN_JINJA_N_ITEM;
        r = rn_jinja_parser_new(p, RN_JINJA_N_CONST, &n->b);
        r = r < 0 ? r : rn_jinja_parse_number(p, n->b);
        r = r < 0 ? r : rn_jinja_parser_close(p, n->b);
    } else if (r == 0) {
        r = rn_jinja_parser_name(p, n, "a name");
    }
    return r < 0 ? r : rn_jinja_parser_close(p, n);
}

static int parse_call(struct rn_jinja_parser *p, struct rn_jinja_node **node)
{
    uint32_t at = (*node)->at;
    int r = wrap(p, RN_JINJA_N_CALL, node);
    if (r == 0) {
        (*node)->at = at; /* errors point at what is called */
        r = parse_arguments(p, *node);
    }
    return r < 0 ? r : rn_jinja_parser_close(p, *node);
}

static int parse_postfix(struct rn_jinja_parser *p, struct rn_jinja_node **node)
{
    int r = 0;
    while (r == 0) {
        if (rn_jinja_parser_at_op(p, ".")) {
            r = parse_attribute(p, node);
        } else if (rn_jinja_parser_at_op(p, "[")) {
            r = parse_index(p, node);
        } else if (rn_jinja_parser_at_op(p, "(")) {
            r = parse_call(p, node);
        } else {
            break;
        }
    }
    return r;
}

static int parse_filter(struct rn_jinja_parser *p, struct rn_jinja_node **node)
{
    int r = wrap(p, RN_JINJA_N_FILTER, node);
    r = r < 0 ? r : rn_jinja_parser_name(p, *node, "the name of a filter");
    if (r == 0 && rn_jinja_parser_at_op(p, "(")) {
        r = parse_arguments(p, *node);
    }
    return r < 0 ? r : rn_jinja_parser_close(p, *node);
}

/* An argument of a test may stand without brackets: `x is divisibleby 3`. */
static bool at_bare_argument(const struct rn_jinja_parser *p)
{
    switch (p->t->kind) {
    case RN_JINJA_T_STRING:
    case RN_JINJA_T_INT:
    case RN_JINJA_T_FLOAT: return true;
    case RN_JINJA_T_NAME:
        return !rn_jinja_parser_at_name(p, "else") && !rn_jinja_parser_at_name(p, "or") && !rn_jinja_parser_at_name(p, "and") &&
               !rn_jinja_parser_at_name(p, "if");
    default: return rn_jinja_parser_at_op(p, "[") || rn_jinja_parser_at_op(p, "{");
    }
}

static int parse_test(struct rn_jinja_parser *p, struct rn_jinja_node **node)
{
    p->t++;
    bool negated = rn_jinja_parser_skip_name(p, "not");
    int r = wrap(p, RN_JINJA_N_TEST, node);
    struct rn_jinja_node *n = *node;
    r = r < 0 ? r : rn_jinja_parser_name(p, n, "the name of a test");
    if (r == 0 && rn_jinja_parser_at_op(p, "(")) {
        r = parse_arguments(p, n);
    } else if (r == 0 && at_bare_argument(p)) {
        struct rn_jinja_node *argument;
        r = rn_jinja_parse_primary(p, &argument);
        r = r < 0 ? r : parse_postfix(p, &argument);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, argument);
    }
    r = r < 0 ? r : rn_jinja_parser_close(p, n);
    if (r == 0 && negated) {
        r = wrap(p, RN_JINJA_N_NOT, node);
        r = r < 0 ? r : rn_jinja_parser_close(p, *node);
    }
    return r;
}

int rn_jinja_parse_filters(struct rn_jinja_parser *p, struct rn_jinja_node *input, struct rn_jinja_node **ret)
{
    int r = parse_filter(p, &input);
    while (r == 0 && rn_jinja_parser_skip_op(p, "|")) {
        r = parse_filter(p, &input);
    }
    *ret = input;
    return r;
}

/* Filters, tests, and calls of what they return. */
static int parse_filters_and_tests(struct rn_jinja_parser *p, struct rn_jinja_node **node)
{
    int r = 0;
    while (r == 0) {
        if (rn_jinja_parser_skip_op(p, "|")) {
            r = parse_filter(p, node);
        } else if (rn_jinja_parser_at_name(p, "is")) {
            r = parse_test(p, node);
        } else if (rn_jinja_parser_at_op(p, "(")) {
            r = parse_call(p, node);
        } else {
            break;
        }
    }
    return r;
}

static int parse_unary(struct rn_jinja_parser *p, bool with_filters, struct rn_jinja_node **ret)
{
    int r = rn_jinja_parser_enter(p);
    if (r < 0) {
        return r;
    }
    if (rn_jinja_parser_at_op(p, "-") || rn_jinja_parser_at_op(p, "+")) {
        struct rn_jinja_node *n;
        r = rn_jinja_parser_new(p, rn_jinja_parser_at_op(p, "-") ? RN_JINJA_N_NEGATE : RN_JINJA_N_PLUS, &n);
        p->t++;
        r = r < 0 ? r : parse_unary(p, /*with_filters=*/false, &n->a);
        r = r < 0 ? r : rn_jinja_parser_close(p, n);
        *ret = n;
    } else {
        r = rn_jinja_parse_primary(p, ret);
    }
    r = r < 0 ? r : parse_postfix(p, ret);
    if (r == 0 && with_filters) {
        r = parse_filters_and_tests(p, ret);
    }
    rn_jinja_parser_leave(p);
    return r;
}

/* ---- operators ---- */

static int parse_unary_with_filters(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    return parse_unary(p, /*with_filters=*/true, ret);
}

/* A chain of left-associative operators of one level. ops ends with a NULL text. */
static int parse_chain(struct rn_jinja_parser *p, parse_fn below, const struct operator *ops, struct rn_jinja_node **ret)
{
    int r = below(p, ret);
    while (r == 0) {
        const struct operator *o = ops;
        while (o->text && !rn_jinja_parser_at_op(p, o->text)) {
            o++;
        }
        if (!o->text) {
            break;
        }
        r = wrap(p, RN_JINJA_N_BINARY, ret);
        p->t++;
        if (r == 0) {
            struct rn_jinja_node *n = *ret;
            n->op = (uint8_t)o->op;
            r = below(p, &n->b);
            r = r < 0 ? r : rn_jinja_parser_close(p, n);
        }
    }
    return r;
}

static int parse_power(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    static const struct operator ops[] = {{"**", RN_JINJA_OP_POW}, {NULL, 0}};
    return parse_chain(p, parse_unary_with_filters, ops, ret);
}

static int parse_product(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    static const struct operator ops[] = {
        {"*", RN_JINJA_OP_MUL}, {"/", RN_JINJA_OP_DIV}, {"//", RN_JINJA_OP_FLOORDIV}, {"%", RN_JINJA_OP_MOD}, {NULL, 0}};
    return parse_chain(p, parse_power, ops, ret);
}

static int parse_concat(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    int r = parse_product(p, ret);
    if (r < 0 || !rn_jinja_parser_at_op(p, "~")) {
        return r;
    }
    struct rn_jinja_node *n;
    r = rn_jinja_parser_new(p, RN_JINJA_N_CONCAT, &n);
    r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, *ret);
    while (r == 0 && rn_jinja_parser_skip_op(p, "~")) {
        struct rn_jinja_node *item;
        r = parse_product(p, &item);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, item);
    }
    *ret = n;
    return r < 0 ? r : rn_jinja_parser_close(p, n);
}

static int parse_sum(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    static const struct operator ops[] = {{"+", RN_JINJA_OP_ADD}, {"-", RN_JINJA_OP_SUB}, {NULL, 0}};
    return parse_chain(p, parse_concat, ops, ret);
}

static bool skip_comparison(struct rn_jinja_parser *p, enum rn_jinja_op *ret)
{
    static const struct operator ops[] = {{"==", RN_JINJA_OP_EQ}, {"!=", RN_JINJA_OP_NE}, {"<", RN_JINJA_OP_LT},
                                          {"<=", RN_JINJA_OP_LE}, {">", RN_JINJA_OP_GT},  {">=", RN_JINJA_OP_GE}};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (rn_jinja_parser_skip_op(p, ops[i].text)) {
            *ret = ops[i].op;
            return true;
        }
    }
    if (rn_jinja_parser_skip_name(p, "in")) {
        *ret = RN_JINJA_OP_IN;
        return true;
    }
    if (rn_jinja_parser_at_name(p, "not") && p->t[1].kind == RN_JINJA_T_NAME && p->t[1].text.len == 2 &&
        memcmp(p->t[1].text.data, "in", 2) == 0) {
        p->t += 2;
        *ret = RN_JINJA_OP_NOT_IN;
        return true;
    }
    return false;
}

static int parse_compare(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    int r = parse_sum(p, ret);
    struct rn_jinja_node *n = NULL;
    while (r == 0) {
        const struct rn_jinja_token *before = p->t;
        enum rn_jinja_op op;
        if (!skip_comparison(p, &op)) {
            break;
        }
        const struct rn_jinja_token *after = p->t;
        p->t = before; /* the nodes stand at the operator */
        if (!n) {
            r = wrap(p, RN_JINJA_N_COMPARE, ret);
            n = *ret;
        }
        struct rn_jinja_node *operand = NULL;
        r = r < 0 ? r : rn_jinja_parser_new(p, RN_JINJA_N_OPERAND, &operand);
        p->t = after;
        if (r == 0) {
            operand->op = (uint8_t)op;
            r = parse_sum(p, &operand->a);
            r = r < 0 ? r : rn_jinja_parser_close(p, operand);
            r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, operand);
        }
    }
    return r < 0 || !n ? r : rn_jinja_parser_close(p, n);
}

static int parse_not(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    if (!rn_jinja_parser_at_name(p, "not")) {
        return parse_compare(p, ret);
    }
    struct rn_jinja_node *n;
    int r = rn_jinja_parser_enter(p);
    r = r < 0 ? r : rn_jinja_parser_new(p, RN_JINJA_N_NOT, &n);
    if (r == 0) {
        p->t++;
        r = parse_not(p, &n->a);
        r = r < 0 ? r : rn_jinja_parser_close(p, n);
        *ret = n;
    }
    rn_jinja_parser_leave(p);
    return r;
}

static int parse_logic(struct rn_jinja_parser *p, parse_fn below, const char *word, enum rn_jinja_node_kind kind, struct rn_jinja_node **ret)
{
    int r = below(p, ret);
    while (r == 0 && rn_jinja_parser_at_name(p, word)) {
        r = wrap(p, kind, ret);
        p->t++;
        if (r == 0) {
            struct rn_jinja_node *n = *ret;
            r = below(p, &n->b);
            r = r < 0 ? r : rn_jinja_parser_close(p, n);
        }
    }
    return r;
}

static int parse_and(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    return parse_logic(p, parse_not, "and", RN_JINJA_N_AND, ret);
}

int rn_jinja_parse_or(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    return parse_logic(p, parse_and, "or", RN_JINJA_N_OR, ret);
}

int rn_jinja_parse_expression(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    int r = rn_jinja_parser_enter(p);
    r = r < 0 ? r : rn_jinja_parse_or(p, ret);
    while (r == 0 && rn_jinja_parser_at_name(p, "if")) {
        struct rn_jinja_node *n;
        r = rn_jinja_parser_new(p, RN_JINJA_N_CHOICE, &n);
        p->t++;
        if (r < 0) {
            break;
        }
        n->b = *ret;
        r = rn_jinja_parse_or(p, &n->a);
        if (r == 0 && rn_jinja_parser_skip_name(p, "else")) {
            r = rn_jinja_parse_expression(p, &n->c);
        }
        r = r < 0 ? r : rn_jinja_parser_close(p, n);
        *ret = n;
    }
    rn_jinja_parser_leave(p);
    return r;
}

/* ---- targets ---- */

int rn_jinja_parse_target(struct rn_jinja_parser *p, bool attribute, struct rn_jinja_node **ret)
{
    bool brackets = rn_jinja_parser_skip_op(p, "(");
    struct rn_jinja_node *n;
    int r = rn_jinja_parser_new(p, RN_JINJA_N_TUPLE, &n);
    bool comma = false;
    while (r == 0) {
        struct rn_jinja_node *name;
        r = rn_jinja_parser_new(p, RN_JINJA_N_NAME, &name);
        r = r < 0 ? r : rn_jinja_parse_name(p, name);
        if (r == 0 && name->kind != RN_JINJA_N_NAME) {
            p->t--;
            r = rn_jinja_parser_fail(p, "a name to assign to");
        }
        r = r < 0 ? r : rn_jinja_parser_close(p, name);
        if (r == 0 && attribute && rn_jinja_parser_at_op(p, ".")) {
            r = parse_attribute(p, &name);
            if (r == 0 && name->kind != RN_JINJA_N_ATTR) {
                r = rn_jinja_parser_fail(p, "an attribute to assign to");
            }
        }
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, name);
        if (r < 0 || !rn_jinja_parser_skip_op(p, ",")) {
            break;
        }
        comma = true;
        if (p->t->kind != RN_JINJA_T_NAME || rn_jinja_parser_at_name(p, "in")) {
            break;
        }
    }
    if (r == 0 && brackets) {
        r = rn_jinja_parser_expect_op(p, ")");
    }
    if (r < 0) {
        return r;
    }
    if (!comma) {
        *ret = n->list.data[0];
        return 0;
    }
    *ret = n;
    return rn_jinja_parser_close(p, n);
}
