/* Statements: text, print, if, for, set, macros and blocks.
 *
 * Scopes are as Jinja's: `if` makes none; each turn of a loop, each call and each block that captures text has its own, so that `set`
 * inside does not reach outside. A macro sees the scope it was defined in. */
#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_eval.h"
#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

int rn_jinja_push_scope(struct rn_jinja_eval *e)
{
    struct rn_jinja_scope *s = rn_jinja_alloc(&e->run, 1, sizeof(*s));
    if (!s) {
        return rn_jinja_alloc_code(&e->run);
    }
    s->outer = e->scope;
    e->scope = s;
    return 0;
}

int rn_jinja_define(struct rn_jinja_eval *e, uint32_t id, const struct rn_jinja_value *v)
{
    struct rn_jinja_scope *s = e->scope;
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->vars[i].id == id) {
            s->vars[i].value = *v;
            return rn_jinja_step(&e->run, i / 16);
        }
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        struct rn_jinja_variable *vars = rn_jinja_alloc(&e->run, cap, sizeof(*vars));
        if (!vars) {
            return rn_jinja_alloc_code(&e->run);
        }
        if (s->n) {
            memcpy(vars, s->vars, s->n * sizeof(*vars));
        }
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct rn_jinja_variable){id, *v};
    return rn_jinja_step(&e->run, s->n / 16);
}

int rn_jinja_assign(struct rn_jinja_eval *e, const struct rn_jinja_node *target, const struct rn_jinja_value *v)
{
    if (target->kind == RN_JINJA_N_NAME) {
        return rn_jinja_define(e, target->id, v);
    }
    if (target->kind == RN_JINJA_N_ATTR) {
        struct rn_jinja_value ns;
        int r = rn_jinja_eval_node(e, target->a, &ns);
        e->run.at = target->a->at;
        if (r == 0 && ns.kind != RN_JINJA_NAMESPACE) {
            r = rn_jinja_fail(&e->run, -EINVAL, "cannot assign an attribute of '%s': only a namespace has that", rn_jinja_type_name(&ns));
        }
        struct rn_jinja_value key = rn_jinja_string(target->name.data, target->name.len, RN_JINJA_OWN);
        return r < 0 ? r : rn_jinja_dict_set(&e->run, ns.u.dict, &key, v);
    }
    struct rn_jinja_items items;
    e->run.at = target->at;
    int r = rn_jinja_elements(&e->run, v, &items);
    if (r == 0 && items.n != target->list.n) {
        r = rn_jinja_fail(&e->run, -EINVAL, "%u names for %zu values", target->list.n, items.n);
    }
    for (uint32_t i = 0; r == 0 && i < target->list.n; i++) {
        r = rn_jinja_assign(e, target->list.data[i], &items.data[i]);
    }
    return r;
}

/* Runs a body in a scope of its own and returns what it wrote. The scope is left again. */
static int capture(struct rn_jinja_eval *e, const struct rn_jinja_nodes *body, struct rn_jinja_value *ret)
{
    struct rn_jinja_sink k = {0}, *out = e->out;
    struct rn_jinja_scope *scope = e->scope;
    enum rn_jinja_flow flow;
    int r = rn_jinja_push_scope(e);
    e->out = &k;
    r = r < 0 ? r : rn_jinja_exec(e, body, &flow);
    e->out = out;
    e->scope = scope;
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
    }
    return r;
}

static int exec_print(struct rn_jinja_eval *e, const struct rn_jinja_node *n)
{
    struct rn_jinja_value v;
    int r = rn_jinja_eval_node(e, n->a, &v);
    e->run.at = n->at;
    return r < 0 ? r : rn_jinja_put_text(&e->run, e->out, &v);
}

static int exec_if(struct rn_jinja_eval *e, const struct rn_jinja_node *n, enum rn_jinja_flow *flow)
{
    for (uint32_t i = 0; i < n->list.n; i++) {
        const struct rn_jinja_node *c = n->list.data[i];
        struct rn_jinja_value v = rn_jinja_bool(true);
        int r = c->a ? rn_jinja_eval_node(e, c->a, &v) : 0;
        if (r < 0) {
            return r;
        }
        if (rn_jinja_truth(&v)) {
            return rn_jinja_exec(e, &c->body, flow);
        }
    }
    return 0;
}

static int exec_set(struct rn_jinja_eval *e, const struct rn_jinja_node *n)
{
    struct rn_jinja_value v;
    int r = rn_jinja_eval_node(e, n->b, &v);
    return r < 0 ? r : rn_jinja_assign(e, n->a, &v);
}

/* Captures the body and sends it through the filters of the block. */
static int captured_value(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_value outer = e->captured;
    int r = capture(e, &n->body, ret);
    if (r == 0 && n->b) {
        e->captured = *ret;
        r = rn_jinja_eval_node(e, n->b, ret);
        e->captured = outer;
    }
    return r;
}

static int exec_set_block(struct rn_jinja_eval *e, const struct rn_jinja_node *n)
{
    struct rn_jinja_value v;
    int r = captured_value(e, n, &v);
    return r < 0 ? r : rn_jinja_assign(e, n->a, &v);
}

static int exec_filter_block(struct rn_jinja_eval *e, const struct rn_jinja_node *n)
{
    struct rn_jinja_value v;
    int r = captured_value(e, n, &v);
    return r < 0 ? r : rn_jinja_put_text(&e->run, e->out, &v);
}

/* `with` and `generation`: a scope. The values of `with` are computed outside of it. */
static int exec_scope(struct rn_jinja_eval *e, const struct rn_jinja_node *n, enum rn_jinja_flow *flow)
{
    struct rn_jinja_scope *scope = e->scope;
    struct rn_jinja_items values = {0};
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < n->list.n; i++) {
        struct rn_jinja_value *slot = rn_jinja_items_grow(&e->run, &values);
        r = slot ? rn_jinja_eval_node(e, n->list.data[i]->b, slot) : rn_jinja_alloc_code(&e->run);
    }
    r = r < 0 ? r : rn_jinja_push_scope(e);
    for (uint32_t i = 0; r == 0 && i < n->list.n; i++) {
        r = rn_jinja_assign(e, n->list.data[i]->a, &values.data[i]);
    }
    r = r < 0 ? r : rn_jinja_exec(e, &n->body, flow);
    e->scope = scope;
    return r;
}

/* ---- macros ---- */

static int new_macro(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret)
{
    struct rn_jinja_macro *m = rn_jinja_alloc(&e->run, 1, sizeof(*m));
    if (!m) {
        return rn_jinja_alloc_code(&e->run);
    }
    *m = (struct rn_jinja_macro){n, e->scope};
    for (struct rn_jinja_scope *s = e->scope; s && !s->held; s = s->outer) {
        s->held = true;
    }
    *ret = (struct rn_jinja_value){.kind = RN_JINJA_MACRO, .u.macro = m};
    return 0;
}

static int exec_macro(struct rn_jinja_eval *e, const struct rn_jinja_node *n)
{
    struct rn_jinja_value v;
    int r = new_macro(e, n, &v);
    return r < 0 ? r : rn_jinja_define(e, n->id, &v);
}

static int too_many(struct rn_jinja_eval *e, const struct rn_jinja_node *n, const char *what)
{
    return rn_jinja_fail(&e->run, -EINVAL, "macro '%.*s' %s", (int)n->name.len, n->name.data, what);
}

/* What is left over goes into varargs and kwargs, if the macro speaks of them. used: keyword arguments that were parameters. */
static int define_rest(struct rn_jinja_eval *e, const struct rn_jinja_node *n, const struct rn_jinja_arguments *args, size_t used)
{
    struct rn_jinja_items rest = {0};
    struct rn_jinja_value varargs, kwargs, caller = {0};
    const struct rn_jinja_dict *d = args->keywords.u.dict;
    static const struct rn_jinja_text caller_name = {"caller", 6};
    int r = rn_jinja_dict_new(&e->run, RN_JINJA_DICT, &kwargs);
    for (size_t i = n->list.n; r == 0 && i < args->positional.n; i++) {
        r = rn_jinja_items_add(&e->run, &rest, &args->positional.data[i]);
    }
    for (size_t i = 0; r == 0 && used < d->n && i < d->n; i++) {
        const struct rn_jinja_pair *p = &d->pairs[i];
        bool param = false;
        for (uint32_t j = 0; j < n->list.n && !param; j++) {
            struct rn_jinja_text name = n->list.data[j]->name;
            param = p->key.u.s.len == name.len && memcmp(p->key.u.s.data, name.data, name.len) == 0;
        }
        if (!param && p->key.u.s.len == caller_name.len && memcmp(p->key.u.s.data, caller_name.data, caller_name.len) == 0) {
            caller = p->value;
        } else if (!param) {
            r = rn_jinja_dict_set(&e->run, kwargs.u.dict, &p->key, &p->value);
        }
    }
    if (r == 0 && (rest.n || (n->op & 1u << RN_JINJA_ID_VARARGS))) {
        r = (n->op & 1u << RN_JINJA_ID_VARARGS) ? rn_jinja_items_list(&e->run, &rest, RN_JINJA_F_TUPLE, &varargs) : too_many(e, n, "takes fewer arguments");
        r = r < 0 ? r : rn_jinja_define(e, RN_JINJA_ID_VARARGS, &varargs);
    }
    if (r == 0 && (kwargs.u.dict->n || (n->op & 1u << RN_JINJA_ID_KWARGS))) {
        r = (n->op & 1u << RN_JINJA_ID_KWARGS) ? rn_jinja_define(e, RN_JINJA_ID_KWARGS, &kwargs) : too_many(e, n, "got an argument by a name that it does not have");
    }
    if (r == 0 && (n->op & 1u << RN_JINJA_ID_CALLER)) {
        struct rn_jinja_value none = rn_jinja_undefined(NULL, "caller", 6);
        r = rn_jinja_define(e, RN_JINJA_ID_CALLER, caller.kind == RN_JINJA_MISSING ? &none : &caller);
    } else if (r == 0 && caller.kind != RN_JINJA_MISSING) {
        r = too_many(e, n, "has no use for a call block");
    }
    return r;
}

static int define_params(struct rn_jinja_eval *e, const struct rn_jinja_node *n, const struct rn_jinja_arguments *args)
{
    size_t used = 0;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < n->list.n; i++) {
        const struct rn_jinja_node *param = n->list.data[i];
        struct rn_jinja_value key = rn_jinja_string(param->name.data, param->name.len, RN_JINJA_OWN);
        const struct rn_jinja_value *named = rn_jinja_dict_find(args->keywords.u.dict, &key);
        struct rn_jinja_value v = rn_jinja_undefined(NULL, param->name.data, param->name.len);
        used += named != NULL;
        if (named && i < args->positional.n) {
            return too_many(e, n, "got an argument twice");
        }
        if (i < args->positional.n) {
            v = args->positional.data[i];
        } else if (named) {
            v = *named;
        } else if (param->a) {
            r = rn_jinja_eval_node(e, param->a, &v);
        }
        r = r < 0 ? r : rn_jinja_define(e, param->id, &v);
    }
    return r < 0 ? r : define_rest(e, n, args, used);
}

int rn_jinja_call_macro(struct rn_jinja_eval *e, const struct rn_jinja_macro *macro, const struct rn_jinja_arguments *args,
                        struct rn_jinja_value *ret)
{
    struct rn_jinja_scope *scope = e->scope;
    struct rn_jinja_value captured = e->captured;
    e->scope = macro->scope;
    int r = rn_jinja_push_scope(e);
    r = r < 0 ? r : define_params(e, macro->node, args);
    r = r < 0 ? r : capture(e, &macro->node->body, ret);
    e->scope = scope;
    e->captured = captured;
    return r;
}

/* {% call f(…) %} body {% endcall %}: f with the body as its `caller`. */
static int exec_call_block(struct rn_jinja_eval *e, const struct rn_jinja_node *n)
{
    struct rn_jinja_value f, v, caller, key = rn_jinja_own_str("caller");
    struct rn_jinja_arguments args;
    int r = rn_jinja_eval_node(e, n->a->a, &f);
    r = r < 0 ? r : rn_jinja_arguments(e, &n->a->list, &args);
    r = r < 0 ? r : new_macro(e, n, &caller);
    r = r < 0 ? r : rn_jinja_dict_set(&e->run, args.keywords.u.dict, &key, &caller);
    e->run.at = n->a->at;
    r = r < 0 ? r : rn_jinja_call_value(e, &f, &args, &v);
    return r < 0 ? r : rn_jinja_put_text(&e->run, e->out, &v);
}

/* ---- bodies ---- */

static int exec_node(struct rn_jinja_eval *e, const struct rn_jinja_node *n, enum rn_jinja_flow *flow)
{
    e->run.at = n->at;
    switch ((enum rn_jinja_node_kind)n->kind) {
    case RN_JINJA_N_TEXT: return rn_jinja_put_value(&e->run, e->out, &n->constant);
    case RN_JINJA_N_PRINT: return exec_print(e, n);
    case RN_JINJA_N_IF: return exec_if(e, n, flow);
    case RN_JINJA_N_FOR: return rn_jinja_exec_for(e, n);
    case RN_JINJA_N_SET: return exec_set(e, n);
    case RN_JINJA_N_SET_BLOCK: return exec_set_block(e, n);
    case RN_JINJA_N_MACRO: return exec_macro(e, n);
    case RN_JINJA_N_CALL_BLOCK: return exec_call_block(e, n);
    case RN_JINJA_N_FILTER_BLOCK: return exec_filter_block(e, n);
    case RN_JINJA_N_SCOPE: return exec_scope(e, n, flow);
    case RN_JINJA_N_BREAK: *flow = RN_JINJA_BREAK; return 0;
    case RN_JINJA_N_CONTINUE: *flow = RN_JINJA_CONTINUE; return 0;
    default: return rn_jinja_fail(&e->run, -EINVAL, "this is no statement");
    }
}

int rn_jinja_exec(struct rn_jinja_eval *e, const struct rn_jinja_nodes *body, enum rn_jinja_flow *ret)
{
    *ret = RN_JINJA_NEXT;
    int r = rn_jinja_enter(&e->run);
    if (r < 0) {
        return r;
    }
    for (uint32_t i = 0; r == 0 && *ret == RN_JINJA_NEXT && i < body->n; i++) {
        r = exec_node(e, body->data[i], ret);
        r = r < 0 ? r : rn_jinja_step(&e->run, 1);
    }
    rn_jinja_leave(&e->run);
    return r;
}

int rn_jinja_render(struct rn_jinja_eval *e, const struct rn_jinja_tree *tree)
{
    enum rn_jinja_flow flow;
    int r = rn_jinja_push_scope(e);
    return r < 0 ? r : rn_jinja_exec(e, &tree->body, &flow);
}
