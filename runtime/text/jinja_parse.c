/* Parsing a template: the entry, and what all parts of the parser work with: the current token, nodes, names. Statements:
 * jinja_parse_statement.c; expressions: jinja_parse_expr.c, jinja_parse_primary.c. */
#include "runtime/text/jinja_parse.h"

#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_lex.h"
#include "runtime/text/jinja_parse_internal.h"

static bool token_is(const struct rn_jinja_token *t, enum rn_jinja_token_kind kind, const char *s)
{
    return t->kind == kind && t->text.len == strlen(s) && memcmp(t->text.data, s, t->text.len) == 0;
}

int rn_jinja_parser_fail(struct rn_jinja_parser *p, const char *what)
{
    const struct rn_jinja_token *t = p->t;
    p->run->at = (size_t)(t->text.data - p->source);
    int len = t->text.len > 40 ? 40 : (int)t->text.len;
    if (t->kind == RN_JINJA_T_END) {
        return rn_jinja_fail(p->run, -EINVAL, "the template ends, expected %s", what);
    }
    if (t->kind == RN_JINJA_T_TEXT) {
        return rn_jinja_fail(p->run, -EINVAL, "unexpected text, expected %s", what);
    }
    return rn_jinja_fail(p->run, -EINVAL, "unexpected '%.*s', expected %s", len, t->text.data, what);
}

int rn_jinja_parser_enter(struct rn_jinja_parser *p)
{
    if (p->depth >= RN_JINJA_MAX_TREE_DEPTH) {
        p->run->at = (size_t)(p->t->text.data - p->source);
        return rn_jinja_fail(p->run, -E2BIG, "nested more than %d levels deep", RN_JINJA_MAX_TREE_DEPTH);
    }
    p->depth++;
    return 0;
}

void rn_jinja_parser_leave(struct rn_jinja_parser *p)
{
    p->depth--;
}

bool rn_jinja_parser_at_op(const struct rn_jinja_parser *p, const char *op)
{
    return token_is(p->t, RN_JINJA_T_OP, op);
}

bool rn_jinja_parser_at_name(const struct rn_jinja_parser *p, const char *name)
{
    return token_is(p->t, RN_JINJA_T_NAME, name);
}

bool rn_jinja_parser_skip_op(struct rn_jinja_parser *p, const char *op)
{
    bool there = rn_jinja_parser_at_op(p, op);
    p->t += there;
    return there;
}

bool rn_jinja_parser_skip_name(struct rn_jinja_parser *p, const char *name)
{
    bool there = rn_jinja_parser_at_name(p, name);
    p->t += there;
    return there;
}

int rn_jinja_parser_expect_op(struct rn_jinja_parser *p, const char *op)
{
    if (rn_jinja_parser_skip_op(p, op)) {
        return 0;
    }
    char what[8] = {'\'', op[0], '\''};
    return rn_jinja_parser_fail(p, what);
}

struct rn_jinja_node *rn_jinja_parser_node(struct rn_jinja_parser *p, enum rn_jinja_node_kind kind)
{
    struct rn_jinja_node *n = rn_jinja_alloc(p->run, 1, sizeof(*n));
    if (n) {
        n->kind = (uint8_t)kind;
        n->at = (uint32_t)(p->t->text.data - p->source);
    }
    return n;
}

int rn_jinja_parser_new(struct rn_jinja_parser *p, enum rn_jinja_node_kind kind, struct rn_jinja_node **ret)
{
    *ret = rn_jinja_parser_node(p, kind);
    return *ret ? 0 : rn_jinja_alloc_code(p->run);
}

/* Numbers a name. Equal names get equal ids. */
static int intern(struct rn_jinja_parser *p, struct rn_jinja_text name, uint32_t *ret)
{
    struct rn_jinja_dict *d = p->ids.u.dict;
    struct rn_jinja_value key = rn_jinja_string(name.data, name.len, RN_JINJA_OWN);
    const struct rn_jinja_value *known = rn_jinja_dict_find(d, &key);
    if (known) {
        *ret = (uint32_t)known->u.i;
        return 0;
    }
    *ret = (uint32_t)d->n;
    struct rn_jinja_value id = rn_jinja_int((int64_t)d->n);
    return rn_jinja_dict_set(p->run, d, &key, &id);
}

int rn_jinja_parser_name(struct rn_jinja_parser *p, struct rn_jinja_node *n, const char *what)
{
    if (p->t->kind != RN_JINJA_T_NAME) {
        return rn_jinja_parser_fail(p, what);
    }
    n->name = p->t->text;
    p->t++;
    return intern(p, n->name, &n->id);
}

int rn_jinja_parser_push(struct rn_jinja_parser *p, struct rn_jinja_nodes *list, struct rn_jinja_node *n)
{
    if (list->n == list->cap) {
        uint32_t cap = list->cap ? list->cap * 2 : 4;
        struct rn_jinja_node **data = rn_jinja_alloc(p->run, cap, sizeof(struct rn_jinja_node *));
        if (!data) {
            return rn_jinja_alloc_code(p->run);
        }
        if (list->n) {
            memcpy(data, list->data, list->n * sizeof(*data));
        }
        list->data = data;
        list->cap = cap;
    }
    list->data[list->n++] = n;
    return 0;
}

static void deepen(struct rn_jinja_node *n, const struct rn_jinja_node *child)
{
    if (child && child->depth >= n->depth) {
        n->depth = (uint16_t)(child->depth + 1);
    }
}

int rn_jinja_parser_close(struct rn_jinja_parser *p, struct rn_jinja_node *n)
{
    n->depth = 1;
    deepen(n, n->a);
    deepen(n, n->b);
    deepen(n, n->c);
    deepen(n, n->d);
    for (uint32_t i = 0; i < n->list.n; i++) {
        deepen(n, n->list.data[i]);
    }
    for (uint32_t i = 0; i < n->body.n; i++) {
        deepen(n, n->body.data[i]);
    }
    if (n->depth > RN_JINJA_MAX_TREE_DEPTH) {
        p->run->at = n->at;
        return rn_jinja_fail(p->run, -E2BIG, "nested more than %d levels deep", RN_JINJA_MAX_TREE_DEPTH);
    }
    return 0;
}

int rn_jinja_parse(struct rn_jinja_run *run, const char *source, size_t len, struct rn_jinja_tree *ret)
{
    static const char *const names[RN_JINJA_ID_COUNT] = {"loop", "caller", "varargs", "kwargs"};
    struct rn_jinja_token *tokens;
    size_t n_tokens;
    int r = rn_jinja_lex(run, source, len, &tokens, &n_tokens);
    if (r < 0) {
        return r;
    }
    struct rn_jinja_parser p = {.run = run, .t = tokens, .source = source};
    r = rn_jinja_dict_new(run, RN_JINJA_DICT, &p.ids);
    for (unsigned i = 0; r == 0 && i < RN_JINJA_ID_COUNT; i++) {
        uint32_t id;
        r = intern(&p, (struct rn_jinja_text){names[i], strlen(names[i])}, &id);
    }
    struct rn_jinja_tree tree = {0};
    r = r < 0 ? r : rn_jinja_parse_body(&p, NULL, &tree.body);
    if (r == 0 && p.t->kind != RN_JINJA_T_END) {
        r = rn_jinja_parser_fail(&p, "text or a block");
    }
    if (r == 0) {
        *ret = tree;
    }
    return r;
}
