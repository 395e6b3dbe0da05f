/* Statements of the template language, and the bodies between them. */
#include "runtime/text/jinja_parse_internal.h"

#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_lex.h"

static int expect_block_end(struct rn_jinja_parser *p)
{
    if (p->t->kind != RN_JINJA_T_BLOCK_END) {
        return rn_jinja_parser_fail(p, "'%}'");
    }
    p->t++;
    return 0;
}

/* ---- bodies ---- */

static int parse_statement(struct rn_jinja_parser *p, struct rn_jinja_node **ret);

/* ends: the names that end this body, separated by blanks; NULL: the end of the template. */
static bool at_end(const struct rn_jinja_parser *p, const char *ends)
{
    if (p->t->kind != RN_JINJA_T_BLOCK || p->t[1].kind != RN_JINJA_T_NAME) {
        return false;
    }
    size_t len = p->t[1].text.len;
    for (const char *e = ends; e && *e;) {
        size_t n = strcspn(e, " ");
        if (n == len && memcmp(e, p->t[1].text.data, n) == 0) {
            return true;
        }
        e += n + strspn(e + n, " ");
    }
    return false;
}

static int parse_text(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    struct rn_jinja_node *n = rn_jinja_parser_node(p, RN_JINJA_N_TEXT);
    if (!n) {
        return rn_jinja_alloc_code(p->run);
    }
    n->constant = rn_jinja_string(p->t->text.data, p->t->text.len, RN_JINJA_OWN);
    p->t++;
    *ret = n;
    return rn_jinja_parser_close(p, n);
}

static int parse_print(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    struct rn_jinja_node *n = rn_jinja_parser_node(p, RN_JINJA_N_PRINT);
    if (!n) {
        return rn_jinja_alloc_code(p->run);
    }
    p->t++;
    int r = rn_jinja_parse_tuple(p, /*plain=*/false, &n->a);
    if (r < 0) {
        return r;
    }
    if (p->t->kind != RN_JINJA_T_PRINT_END) {
        return rn_jinja_parser_fail(p, "'}}'");
    }
    p->t++;
    *ret = n;
    return rn_jinja_parser_close(p, n);
}

int rn_jinja_parse_body(struct rn_jinja_parser *p, const char *ends, struct rn_jinja_nodes *body)
{
    int r = rn_jinja_parser_enter(p);
    while (r == 0 && !at_end(p, ends)) {
        struct rn_jinja_node *n = NULL;
        if (p->t->kind == RN_JINJA_T_TEXT) {
            r = parse_text(p, &n);
        } else if (p->t->kind == RN_JINJA_T_PRINT) {
            r = parse_print(p, &n);
        } else if (p->t->kind == RN_JINJA_T_BLOCK) {
            p->t++;
            r = parse_statement(p, &n);
        } else if (!ends) {
            break;
        } else {
            char what[80] = "a block ";
            strncat(what, ends, sizeof(what) - strlen(what) - 1);
            r = rn_jinja_parser_fail(p, what);
        }
        r = r < 0 ? r : rn_jinja_parser_push(p, body, n);
    }
    rn_jinja_parser_leave(p);
    p->t += r == 0 && ends;
    return r;
}

/* Body, its end name and "%}". */
static int parse_whole_body(struct rn_jinja_parser *p, const char *end, struct rn_jinja_nodes *body)
{
    int r = expect_block_end(p);
    r = r < 0 ? r : rn_jinja_parse_body(p, end, body);
    if (r == 0) {
        p->t++;
        r = expect_block_end(p);
    }
    return r;
}

/* ---- statements; the name has been read ---- */

static int parse_if(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    bool is_else = false;
    for (;;) {
        struct rn_jinja_node *c = rn_jinja_parser_node(p, RN_JINJA_N_CASE);
        int r = c ? 0 : rn_jinja_alloc_code(p->run);
        if (r == 0 && !is_else) {
            r = rn_jinja_parse_tuple(p, /*plain=*/true, &c->a);
        }
        r = r < 0 ? r : expect_block_end(p);
        r = r < 0 ? r : rn_jinja_parse_body(p, is_else ? "endif" : "elif else endif", &c->body);
        r = r < 0 ? r : rn_jinja_parser_close(p, c);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, c);
        if (r < 0) {
            return r;
        }
        is_else = rn_jinja_parser_at_name(p, "else");
        p->t++;
        if (p->t[-1].text.data[1] == 'n') { /* endif */
            return expect_block_end(p);
        }
    }
}

static int parse_for(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = rn_jinja_parse_target(p, /*attribute=*/false, &n->a);
    if (r == 0 && !rn_jinja_parser_skip_name(p, "in")) {
        r = rn_jinja_parser_fail(p, "'in'");
    }
    r = r < 0 ? r : rn_jinja_parse_tuple(p, /*plain=*/true, &n->b);
    if (r == 0 && rn_jinja_parser_skip_name(p, "if")) {
        r = rn_jinja_parse_expression(p, &n->c);
    }
    if (r == 0 && rn_jinja_parser_at_name(p, "recursive")) {
        p->run->at = n->at;
        r = rn_jinja_fail(p->run, -EINVAL, "recursive loops are not supported");
    }
    r = r < 0 ? r : expect_block_end(p);
    p->n_loops++;
    r = r < 0 ? r : rn_jinja_parse_body(p, "else endfor", &n->body);
    p->n_loops--;
    if (r == 0 && rn_jinja_parser_skip_name(p, "else")) {
        r = expect_block_end(p);
        r = r < 0 ? r : rn_jinja_parse_body(p, "endfor", &n->list);
    }
    if (r == 0) {
        p->t++;
        r = expect_block_end(p);
    }
    return r;
}

static int captured(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    *ret = rn_jinja_parser_node(p, RN_JINJA_N_CAPTURED);
    return *ret ? rn_jinja_parser_close(p, *ret) : rn_jinja_alloc_code(p->run);
}

static int parse_set(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = rn_jinja_parse_target(p, /*attribute=*/true, &n->a);
    if (r < 0) {
        return r;
    }
    if (rn_jinja_parser_skip_op(p, "=")) {
        r = rn_jinja_parse_tuple(p, /*plain=*/false, &n->b);
        return r < 0 ? r : expect_block_end(p);
    }
    n->kind = RN_JINJA_N_SET_BLOCK;
    if (rn_jinja_parser_skip_op(p, "|")) {
        r = captured(p, &n->b);
        r = r < 0 ? r : rn_jinja_parse_filters(p, n->b, &n->b);
    }
    return r < 0 ? r : parse_whole_body(p, "endset", &n->body);
}

/* "(a, b=1)" */
static int parse_params(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = rn_jinja_parser_expect_op(p, "(");
    bool need_default = false;
    while (r == 0 && !rn_jinja_parser_skip_op(p, ")")) {
        if (n->list.n && (r = rn_jinja_parser_expect_op(p, ",")) < 0) {
            break;
        }
        struct rn_jinja_node *param = rn_jinja_parser_node(p, RN_JINJA_N_PARAM);
        r = param ? rn_jinja_parser_name(p, param, "a parameter") : rn_jinja_alloc_code(p->run);
        if (r == 0 && rn_jinja_parser_skip_op(p, "=")) {
            need_default = true;
            r = rn_jinja_parse_expression(p, &param->a);
        } else if (r == 0 && need_default) {
            r = rn_jinja_parser_fail(p, "a default, as the parameter before has one");
        }
        r = r < 0 ? r : rn_jinja_parser_close(p, param);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, param);
    }
    return r;
}

/* True when something in the tree is named `id`, inner macros included. */
static bool mentions(const struct rn_jinja_node *n, uint32_t id)
{
    if (!n) {
        return false;
    }
    if (n->kind == RN_JINJA_N_NAME && n->id == id) {
        return true;
    }
    if (mentions(n->a, id) || mentions(n->b, id) || mentions(n->c, id) || mentions(n->d, id)) {
        return true;
    }
    for (uint32_t i = 0; i < n->list.n; i++) {
        if (mentions(n->list.data[i], id)) {
            return true;
        }
    }
    for (uint32_t i = 0; i < n->body.n; i++) {
        if (mentions(n->body.data[i], id)) {
            return true;
        }
    }
    return false;
}

/* The body of a macro is a function: break and continue do not reach a loop around it. */
static int parse_function_body(struct rn_jinja_parser *p, const char *end, struct rn_jinja_node *n)
{
    unsigned n_loops = p->n_loops;
    p->n_loops = 0;
    int r = parse_whole_body(p, end, &n->body);
    p->n_loops = n_loops;
    for (unsigned id = RN_JINJA_ID_CALLER; r == 0 && id < RN_JINJA_ID_COUNT; id++) {
        n->op = (uint8_t)(n->op | (mentions(n, id) ? 1u << id : 0));
    }
    return r;
}

static int parse_macro(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = rn_jinja_parser_name(p, n, "the name of a macro");
    r = r < 0 ? r : parse_params(p, n);
    return r < 0 ? r : parse_function_body(p, "endmacro", n);
}

static int parse_call_block(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = rn_jinja_parser_at_op(p, "(") ? parse_params(p, n) : 0;
    r = r < 0 ? r : rn_jinja_parse_expression(p, &n->a);
    if (r == 0 && n->a->kind != RN_JINJA_N_CALL) {
        r = rn_jinja_parser_fail(p, "a call");
    }
    return r < 0 ? r : parse_function_body(p, "endcall", n);
}

static int parse_filter_block(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = captured(p, &n->b);
    r = r < 0 ? r : rn_jinja_parse_filters(p, n->b, &n->b);
    return r < 0 ? r : parse_whole_body(p, "endfilter", &n->body);
}

static int parse_with(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    int r = 0;
    while (r == 0 && p->t->kind != RN_JINJA_T_BLOCK_END) {
        if (n->list.n && (r = rn_jinja_parser_expect_op(p, ",")) < 0) {
            break;
        }
        struct rn_jinja_node *set = rn_jinja_parser_node(p, RN_JINJA_N_SET);
        r = set ? rn_jinja_parse_target(p, /*attribute=*/false, &set->a) : rn_jinja_alloc_code(p->run);
        r = r < 0 ? r : rn_jinja_parser_expect_op(p, "=");
        r = r < 0 ? r : rn_jinja_parse_expression(p, &set->b);
        r = r < 0 ? r : rn_jinja_parser_close(p, set);
        r = r < 0 ? r : rn_jinja_parser_push(p, &n->list, set);
    }
    return r < 0 ? r : parse_whole_body(p, "endwith", &n->body);
}

static int parse_generation(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    return parse_function_body(p, "endgeneration", n);
}

static int parse_jump(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    if (p->n_loops == 0) {
        p->run->at = n->at;
        return rn_jinja_fail(p->run, -EINVAL, "'%.*s' outside a loop", (int)p->t[-1].text.len, p->t[-1].text.data);
    }
    return expect_block_end(p);
}

static int parse_statement(struct rn_jinja_parser *p, struct rn_jinja_node **ret)
{
    static const struct {
        const char *name;
        enum rn_jinja_node_kind kind;
        int (*parse)(struct rn_jinja_parser *p, struct rn_jinja_node *n);
    } table[] = {
        {"if", RN_JINJA_N_IF, parse_if},
        {"for", RN_JINJA_N_FOR, parse_for},
        {"set", RN_JINJA_N_SET, parse_set},
        {"macro", RN_JINJA_N_MACRO, parse_macro},
        {"call", RN_JINJA_N_CALL_BLOCK, parse_call_block},
        {"filter", RN_JINJA_N_FILTER_BLOCK, parse_filter_block},
        {"with", RN_JINJA_N_SCOPE, parse_with},
        {"generation", RN_JINJA_N_SCOPE, parse_generation},
        {"break", RN_JINJA_N_BREAK, parse_jump},
        {"continue", RN_JINJA_N_CONTINUE, parse_jump},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (!rn_jinja_parser_at_name(p, table[i].name)) {
            continue;
        }
        struct rn_jinja_node *n = rn_jinja_parser_node(p, table[i].kind);
        if (!n) {
            return rn_jinja_alloc_code(p->run);
        }
        p->t++;
        int r = table[i].parse(p, n);
        *ret = n;
        return r < 0 ? r : rn_jinja_parser_close(p, n);
    }
    if (p->t->kind == RN_JINJA_T_NAME) {
        p->run->at = (size_t)(p->t->text.data - p->source);
        int len = p->t->text.len > 40 ? 40 : (int)p->t->text.len;
        return rn_jinja_fail(p->run, -EINVAL, "unknown or misplaced statement '%.*s'", len, p->t->text.data);
    }
    return rn_jinja_parser_fail(p, "a statement");
}
