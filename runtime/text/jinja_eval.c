/* Expressions: one function per kind of node, all through rn_jinja_eval_node, which counts steps and depth. */
#include "runtime/text/jinja_eval.h"

#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

static int eval_name(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    uint64_t looked_at = 0;
    for (const struct rn_jinja_scope *s = e->scope; s; s = s->outer) {
        for (uint32_t i = 0; i < s->n; i++) {
            if (s->vars[i].id == n->id) {
                *ret = s->vars[i].value;
                return rn_jinja_step(&e->run, looked_at / 16);
            }
        }
        looked_at += s->n + 1;
    }
    struct rn_jinja_value key = rn_jinja_string(n->name.data, n->name.len, RN_JINJA_OWN);
    const struct rn_jinja_value *global = rn_jinja_dict_find(e->globals, &key);
    const struct rn_jinja_function *row = global ? NULL : rn_jinja_find_global(n->name);
    if (row && !row->fn) {
        return rn_jinja_fail(&e->run, -EINVAL, "'%s' is not supported", row->name);
    }
    if (global) {
        *ret = *global;
    } else if (row) {
        *ret = (struct rn_jinja_value){.kind = RN_JINJA_FUNCTION, .u.fn = {row, NULL}};
    } else {
        *ret = rn_jinja_undefined(NULL, n->name.data, n->name.len);
    }
    return rn_jinja_step(&e->run, looked_at / 16);
}

static int eval_list(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value list;
    int r = rn_jinja_list_new(&e->run, n->list.n, n->kind == RN_JINJA_N_TUPLE ? RN_JINJA_F_TUPLE : RN_JINJA_F_LIST, &list);
    for (uint32_t i = 0; r == 0 && i < n->list.n; i++) {
        r = rn_jinja_eval_node(e, n->list.data[i], &list.u.list->items[i]);
    }
    *ret = list;
    return r;
}

static int eval_dict(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value dict;
    int r = rn_jinja_dict_new(&e->run, RN_JINJA_DICT, &dict);
    for (uint32_t i = 0; r == 0 && i < n->list.n; i++) {
        struct rn_jinja_value key, value;
        r = rn_jinja_eval_node(e, n->list.data[i]->a, &key);
        r = r < 0 ? r : rn_jinja_eval_node(e, n->list.data[i]->b, &value);
        e->run.at = n->list.data[i]->at;
        r = r < 0 ? r : rn_jinja_dict_set(&e->run, dict.u.dict, &key, &value);
    }
    *ret = dict;
    return r;
}

static int eval_slice(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    const struct rn_jinja_node *const nodes[3] = {n->a, n->b, n->c};
    struct rn_jinja_value what, part[3] = {{0}, {0}, {0}};
    int r = rn_jinja_eval_node(e, n->d, &what);
    for (int i = 0; r == 0 && i < 3; i++) {
        r = nodes[i] ? rn_jinja_eval_node(e, nodes[i], &part[i]) : 0;
    }
    e->run.at = n->at;
    return r < 0 ? r : rn_jinja_slice(&e->run, &what, part, ret);
}

/* The value of an operand of `~`, as a plain string. */
static int eval_text(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value v;
    int r = rn_jinja_eval_node(e, n, &v);
    if (r == 0 && v.kind == RN_JINJA_UNDEFINED && v.unsafe) {
        r = rn_jinja_refuse_undefined(&e->run, &v);
    }
    r = r < 0 ? r : rn_jinja_to_string(&e->run, &v, ret);
    ret->markup = false;
    return r;
}

static int eval_concat(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value text;
    int r = eval_text(e, n->list.data[0], &text);
    for (uint32_t i = 1; r == 0 && i < n->list.n; i++) {
        struct rn_jinja_value v, before = text;
        r = eval_text(e, n->list.data[i], &v);
        e->run.at = n->at;
        r = r < 0 ? r : rn_jinja_append(&e->run, &before, &v, &text);
    }
    if (r == 0) {
        *ret = text;
    }
    return r;
}

/* a < b < c: each operand once, and none behind the first that fails. */
static int eval_compare(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value left;
    bool yes = true;
    int r = rn_jinja_eval_node(e, n->a, &left);
    for (uint32_t i = 0; r == 0 && yes && i < n->list.n; i++) {
        const struct rn_jinja_node *operand = n->list.data[i];
        struct rn_jinja_value right;
        r = rn_jinja_eval_node(e, operand->a, &right);
        e->run.at = operand->at;
        r = r < 0 ? r : rn_jinja_compare(&e->run, (enum rn_jinja_op)operand->op, &left, &right, &yes);
        left = right;
    }
    *ret = rn_jinja_bool(yes);
    return r;
}

static int eval_logic(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    int r = rn_jinja_eval_node(e, n->a, ret);
    if (r == 0 && rn_jinja_truth(ret) == (n->kind == RN_JINJA_N_AND)) {
        r = rn_jinja_eval_node(e, n->b, ret);
    }
    return r;
}

static int eval_choice(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value condition;
    int r = rn_jinja_eval_node(e, n->a, &condition);
    if (r < 0) {
        return r;
    }
    if (rn_jinja_truth(&condition)) {
        return rn_jinja_eval_node(e, n->b, ret);
    }
    if (n->c) {
        return rn_jinja_eval_node(e, n->c, ret);
    }
    *ret = rn_jinja_undefined(NULL, "the inline if", 13);
    return 0;
}

static int add_keyword(struct rn_jinja_eval *e, struct rn_jinja_arguments *args, const struct rn_jinja_value *key,
                       const struct rn_jinja_value *v)
{
    if (key->kind != RN_JINJA_STRING || rn_jinja_dict_find(args->keywords.u.dict, key)) {
        return rn_jinja_fail(&e->run, -EINVAL, "an argument is given twice, or its name is no text");
    }
    return rn_jinja_dict_set(&e->run, args->keywords.u.dict, key, v);
}

static int spread(struct rn_jinja_eval *e, const struct rn_jinja_node *n, const struct rn_jinja_value *v, struct rn_jinja_arguments *args)
{
    int r = 0;
    e->run.at = n->at;
    if (n->kind == RN_JINJA_N_SPREAD) {
        struct rn_jinja_items items;
        r = rn_jinja_elements(&e->run, v, &items);
        for (size_t i = 0; r == 0 && i < items.n; i++) {
            r = rn_jinja_items_add(&e->run, &args->positional, &items.data[i]);
        }
        return r;
    }
    if (v->kind != RN_JINJA_DICT) {
        return rn_jinja_fail(&e->run, -EINVAL, "'**' needs a dict, not '%s'", rn_jinja_type_name(v));
    }
    for (size_t i = 0; r == 0 && i < v->u.dict->n; i++) {
        r = add_keyword(e, args, &v->u.dict->pairs[i].key, &v->u.dict->pairs[i].value);
    }
    return r;
}

int rn_jinja_arguments(struct rn_jinja_eval *e, const struct rn_jinja_nodes *nodes, struct rn_jinja_arguments *ret)
{
    *ret = (struct rn_jinja_arguments){0};
    int r = rn_jinja_dict_new(&e->run, RN_JINJA_DICT, &ret->keywords);
    for (uint32_t i = 0; r == 0 && i < nodes->n; i++) {
        const struct rn_jinja_node *n = nodes->data[i];
        bool plain = n->kind != RN_JINJA_N_KEYWORD && n->kind != RN_JINJA_N_SPREAD && n->kind != RN_JINJA_N_SPREAD_DICT;
        struct rn_jinja_value v;
        r = rn_jinja_eval_node(e, plain ? n : n->a, &v);
        if (r < 0) {
            break;
        }
        if (plain) {
            r = rn_jinja_items_add(&e->run, &ret->positional, &v);
        } else if (n->kind == RN_JINJA_N_KEYWORD) {
            struct rn_jinja_value key = rn_jinja_string(n->name.data, n->name.len, RN_JINJA_OWN);
            e->run.at = n->at;
            r = add_keyword(e, ret, &key, &v);
        } else {
            r = spread(e, n, &v, ret);
        }
    }
    return r;
}

/* Arguments in the form that the tables take. */
static int row_call(struct rn_jinja_eval *e, const struct rn_jinja_arguments *args, const struct rn_jinja_value *self,
                    struct rn_jinja_call *ret)
{
    const struct rn_jinja_dict *d = args->keywords.u.dict;
    struct rn_jinja_keyword *keywords = NULL;
    if (d->n) {
        keywords = rn_jinja_alloc(&e->run, d->n, sizeof(*keywords));
        if (!keywords) {
            return rn_jinja_alloc_code(&e->run);
        }
    }
    for (size_t i = 0; i < d->n; i++) {
        keywords[i] = (struct rn_jinja_keyword){{d->pairs[i].key.u.s.data, d->pairs[i].key.u.s.len}, d->pairs[i].value};
    }
    *ret = (struct rn_jinja_call){.args = args->positional.data, .n_args = args->positional.n, .keywords = keywords, .n_keywords = d->n};
    if (self) {
        ret->self = *self;
    }
    return 0;
}

int rn_jinja_call_value(struct rn_jinja_eval *e, const struct rn_jinja_value *f, const struct rn_jinja_arguments *args,
                        struct rn_jinja_value *ret)
{
    if (f->kind == RN_JINJA_MACRO) {
        return rn_jinja_call_macro(e, f->u.macro, args, ret);
    }
    if (f->kind == RN_JINJA_FUNCTION) {
        struct rn_jinja_call call;
        int r = row_call(e, args, f->u.fn.self, &call);
        return r < 0 ? r : rn_jinja_call_row(&e->run, f->u.fn.row, f->u.fn.self ? "method" : "function", &call, ret);
    }
    int r = rn_jinja_refuse_undefined(&e->run, f);
    return r < 0 ? r : rn_jinja_fail(&e->run, -EINVAL, "a '%s' cannot be called", rn_jinja_type_name(f));
}

static int eval_call(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value f;
    struct rn_jinja_arguments args;
    int r = rn_jinja_eval_node(e, n->a, &f);
    r = r < 0 ? r : rn_jinja_arguments(e, &n->list, &args);
    e->run.at = n->at;
    return r < 0 ? r : rn_jinja_call_value(e, &f, &args, ret);
}

/* Filters and tests. */
static int eval_row(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value self;
    struct rn_jinja_arguments args;
    struct rn_jinja_call call;
    int r = rn_jinja_eval_node(e, n->a, &self);
    r = r < 0 ? r : rn_jinja_arguments(e, &n->list, &args);
    r = r < 0 ? r : row_call(e, &args, &self, &call);
    e->run.at = n->at;
    if (r < 0 || n->kind == RN_JINJA_N_FILTER) {
        return r < 0 ? r : rn_jinja_call_filter(&e->run, n->name, &call, ret);
    }
    bool yes = false;
    r = rn_jinja_call_test(&e->run, n->name, &call, &yes);
    *ret = rn_jinja_bool(yes);
    return r;
}

/* Operators with one or two operands that are always evaluated. */
static int eval_operator(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value a, b = {0};
    int r = rn_jinja_eval_node(e, n->a, &a);
    r = r < 0 || !n->b ? r : rn_jinja_eval_node(e, n->b, &b);
    e->run.at = n->at;
    if (r < 0) {
        return r;
    }
    switch (n->kind) {
    case RN_JINJA_N_ATTR: return rn_jinja_attribute(&e->run, &a, n->name, ret);
    case RN_JINJA_N_ITEM: return rn_jinja_item(&e->run, &a, &b, ret);
    case RN_JINJA_N_BINARY: return rn_jinja_arithmetic(&e->run, (enum rn_jinja_op)n->op, &a, &b, ret);
    case RN_JINJA_N_NEGATE: return rn_jinja_negate(&e->run, &a, true, ret);
    case RN_JINJA_N_PLUS: return rn_jinja_negate(&e->run, &a, false, ret);
    default: *ret = rn_jinja_bool(!rn_jinja_truth(&a)); return 0; /* not */
    }
}

static int eval_kind(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    e->run.at = n->at;
    switch ((enum rn_jinja_node_kind)n->kind) {
    case RN_JINJA_N_CONST: *ret = n->constant; return 0;
    case RN_JINJA_N_NAME: return eval_name(e, n, ret);
    case RN_JINJA_N_LIST:
    case RN_JINJA_N_TUPLE: return eval_list(e, n, ret);
    case RN_JINJA_N_DICT: return eval_dict(e, n, ret);
    case RN_JINJA_N_SLICE: return eval_slice(e, n, ret);
    case RN_JINJA_N_CALL: return eval_call(e, n, ret);
    case RN_JINJA_N_FILTER:
    case RN_JINJA_N_TEST: return eval_row(e, n, ret);
    case RN_JINJA_N_CHOICE: return eval_choice(e, n, ret);
    case RN_JINJA_N_AND:
    case RN_JINJA_N_OR: return eval_logic(e, n, ret);
    case RN_JINJA_N_CONCAT: return eval_concat(e, n, ret);
    case RN_JINJA_N_COMPARE: return eval_compare(e, n, ret);
    case RN_JINJA_N_CAPTURED: *ret = e->captured; return 0;
    case RN_JINJA_N_ATTR:
    case RN_JINJA_N_ITEM:
    case RN_JINJA_N_BINARY:
    case RN_JINJA_N_NEGATE:
    case RN_JINJA_N_PLUS:
    case RN_JINJA_N_NOT: return eval_operator(e, n, ret);
    default: return rn_jinja_fail(&e->run, -EINVAL, "this is no expression");
    }
}

int rn_jinja_eval_node(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    int r = rn_jinja_enter(&e->run);
    if (r == 0) {
        r = eval_kind(e, n, ret);
        rn_jinja_leave(&e->run);
    }
    return r;
}
