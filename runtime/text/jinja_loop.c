/* `for` and the variable `loop`. Elements that a condition must pass are looked at when they are needed: one ahead for loop.last and
 * loop.nextitem, all for loop.length and what depends on it. Jinja does the same, and a condition may see what the body has set. */
#include <errno.h>
#include <string.h>

#include "runtime/text/jinja_builtin.h"
#include "runtime/text/jinja_eval.h"
#include "runtime/text/jinja_ops.h"

/* Enters a scope inside the one around the loop: the one of the turn before, emptied, or a new one. */
static int enter_scope(struct rn_jinja_loop *l, struct rn_jinja_scope **scope)
{
    struct rn_jinja_eval *e = l->eval;
    e->scope = l->outside;
    if (*scope && !(*scope)->held) {
        (*scope)->n = 0;
        e->scope = *scope;
        return 0;
    }
    int r = rn_jinja_push_scope(e);
    *scope = r < 0 ? NULL : e->scope;
    return r;
}

/* Does the loop's condition hold for v? It sees the scope around the loop and the loop's names. */
static int passes(struct rn_jinja_loop *l, const struct rn_jinja_value *v, bool *ret)
{
    struct rn_jinja_eval *e = l->eval;
    struct rn_jinja_scope *scope = e->scope;
    struct rn_jinja_value yes;
    int r = enter_scope(l, &l->condition);
    r = r < 0 ? r : rn_jinja_assign(e, l->node->a, v);
    r = r < 0 ? r : rn_jinja_eval_node(e, l->node->c, &yes);
    e->scope = scope;
    *ret = r == 0 && rn_jinja_truth(&yes);
    return r;
}

/* The next element from the source, without the one that was looked at ahead. */
static int pull(struct rn_jinja_loop *l, struct rn_jinja_value *ret, bool *ret_there)
{
    *ret_there = false;
    if (l->rest_pos < l->rest.n) {
        *ret = l->rest.data[l->rest_pos++];
        *ret_there = true;
        return 0;
    }
    int r = 0;
    while (r == 0 && !*ret_there && l->pos < l->items.n) {
        *ret = l->items.data[l->pos++];
        *ret_there = true;
        r = l->node->c ? passes(l, ret, ret_there) : 0;
    }
    return r;
}

/* Makes the element after the current one known, if there is one. */
static int look_ahead(struct rn_jinja_loop *l)
{
    return l->has_ahead ? 0 : pull(l, &l->ahead, &l->has_ahead);
}

static int loop_length(struct rn_jinja_loop *l, int64_t *ret)
{
    int r = 0;
    if (l->node->c && l->pos < l->items.n) {
        struct rn_jinja_items rest = {0};
        bool there = true;
        while (r == 0) {
            struct rn_jinja_value v;
            r = pull(l, &v, &there);
            if (r < 0 || !there) {
                break;
            }
            r = rn_jinja_items_add(&l->eval->run, &rest, &v);
        }
        l->rest = rest;
        l->rest_pos = 0;
    }
    *ret = l->index0 + 1 + l->has_ahead + (int64_t)(l->rest.n - l->rest_pos) + (int64_t)(l->items.n - l->pos);
    return r;
}

static int loop_cycle(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    if (call->n_args == 0) {
        return rn_jinja_fail(run, -EINVAL, "no items for cycling given");
    }
    *ret = call->args[(size_t)call->self.u.loop->index0 % call->n_args];
    return 0;
}

static int loop_changed(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_loop *l = call->self.u.loop;
    struct rn_jinja_items items = {0};
    struct rn_jinja_value now;
    bool equal = false;
    int r = 0;
    for (size_t i = 0; r == 0 && i < call->n_args; i++) {
        r = rn_jinja_items_add(run, &items, &call->args[i]);
    }
    r = r < 0 ? r : rn_jinja_items_list(run, &items, RN_JINJA_F_TUPLE, &now);
    if (r == 0 && l->changed.kind != RN_JINJA_MISSING) {
        r = rn_jinja_equal(run, &l->changed, &now, &equal);
    }
    l->changed = r < 0 ? l->changed : now;
    *ret = rn_jinja_bool(!equal);
    return r;
}

static int method(struct rn_jinja_run *run, struct rn_jinja_loop *l, const struct rn_jinja_function *row, struct rn_jinja_value *ret)
{
    struct rn_jinja_value *self = rn_jinja_alloc(run, 1, sizeof(*self));
    if (!self) {
        return rn_jinja_alloc_code(run);
    }
    *self = (struct rn_jinja_value){.kind = RN_JINJA_LOOP, .u.loop = l};
    *ret = (struct rn_jinja_value){.kind = RN_JINJA_FUNCTION, .u.fn = {row, self}};
    return 0;
}

int rn_jinja_loop_attribute(struct rn_jinja_run *run, struct rn_jinja_loop *l, struct rn_jinja_text name, struct rn_jinja_value *ret)
{
    static const struct rn_jinja_function cycle = {"cycle", "*", loop_cycle}, changed = {"changed", "*", loop_changed};
    static const char *const names[] = {"index",  "index0", "first",    "last",     "length", "revindex", "revindex0",
                                        "depth", "depth0", "previtem", "nextitem", "cycle",  "changed"};
    enum { INDEX, INDEX0, FIRST, LAST, LENGTH, REVINDEX, REVINDEX0, DEPTH, DEPTH0, PREVITEM, NEXTITEM, CYCLE, CHANGED, N };
    int64_t length = 0;
    int which = 0, r = 0;
    while (which < N && (strlen(names[which]) != name.len || memcmp(names[which], name.data, name.len) != 0)) {
        which++;
    }
    switch (which) {
    case INDEX: *ret = rn_jinja_int(l->index0 + 1); return 0;
    case INDEX0: *ret = rn_jinja_int(l->index0); return 0;
    case FIRST: *ret = rn_jinja_bool(l->index0 == 0); return 0;
    case DEPTH: *ret = rn_jinja_int(1); return 0; /* loops are never recursive */
    case DEPTH0: *ret = rn_jinja_int(0); return 0;
    case CYCLE: return method(run, l, &cycle, ret);
    case CHANGED: return method(run, l, &changed, ret);
    case PREVITEM: *ret = l->has_previous ? l->previous : rn_jinja_undefined("loop", "previtem", 8); return 0;
    case LAST:
        r = look_ahead(l);
        *ret = rn_jinja_bool(!l->has_ahead);
        return r;
    case NEXTITEM:
        r = look_ahead(l);
        *ret = l->has_ahead ? l->ahead : rn_jinja_undefined("loop", "nextitem", 8);
        return r;
    case LENGTH:
    case REVINDEX:
    case REVINDEX0:
        r = loop_length(l, &length);
        *ret = rn_jinja_int(which == LENGTH ? length : length - l->index0 - (which == REVINDEX0));
        return r;
    default: *ret = rn_jinja_undefined("loop", name.data, name.len); return 0;
    }
}

/* One turn: a fresh scope with the loop's names and `loop`. */
static int turn(struct rn_jinja_loop *l, enum rn_jinja_flow *flow)
{
    struct rn_jinja_eval *e = l->eval;
    struct rn_jinja_value self = {.kind = RN_JINJA_LOOP, .u.loop = l};
    int r = enter_scope(l, &l->inside);
    r = r < 0 ? r : rn_jinja_define(e, RN_JINJA_ID_LOOP, &self);
    r = r < 0 ? r : rn_jinja_assign(e, l->node->a, &l->current);
    return r < 0 ? r : rn_jinja_exec(e, &l->node->body, flow);
}

static int run_loop(struct rn_jinja_loop *l)
{
    enum rn_jinja_flow flow = RN_JINJA_NEXT;
    int r = 0;
    for (l->index0 = 0; r == 0 && flow != RN_JINJA_BREAK; l->index0++) {
        struct rn_jinja_value v = l->ahead;
        bool there = l->has_ahead;
        l->has_ahead = false;
        r = there ? 0 : pull(l, &v, &there);
        if (r < 0 || !there) {
            break;
        }
        l->previous = l->current;
        l->has_previous = l->index0 > 0;
        l->current = v;
        r = turn(l, &flow);
    }
    return r;
}

int rn_jinja_exec_for(struct rn_jinja_eval *e, const struct rn_jinja_node *n)
{
    struct rn_jinja_value over;
    struct rn_jinja_loop *l = rn_jinja_alloc(&e->run, 1, sizeof(*l));
    int r = l ? rn_jinja_eval_node(e, n->b, &over) : rn_jinja_alloc_code(&e->run);
    if (r < 0) {
        return r;
    }
    l->eval = e;
    l->node = n;
    l->outside = e->scope;
    e->run.at = n->b->at;
    r = rn_jinja_elements(&e->run, &over, &l->items);
    r = r < 0 ? r : run_loop(l);
    if (r == 0 && l->index0 == 0) {
        enum rn_jinja_flow flow;
        e->scope = l->outside;
        r = rn_jinja_push_scope(e);
        struct rn_jinja_nodes otherwise = {n->list.data, n->list.n, n->list.n};
        r = r < 0 ? r : rn_jinja_exec(e, &otherwise, &flow);
    }
    e->scope = l->outside;
    return r;
}
