/* Evaluator of parsed templates. */
#pragma once

#include "runtime/text/jinja_parse.h"
#include "runtime/text/jinja_value.h"

/* Variables of one block. Inner scopes see outer ones; `set` writes the innermost. */
struct rn_jinja_scope {
    struct rn_jinja_scope *outer;
    struct rn_jinja_variable {
        uint32_t id;
        struct rn_jinja_value value;
    } *vars;
    uint32_t n, cap;
    bool held; /* a macro was defined in it or further in: it must stay as it is */
};

/* State of one rendering; lives for one call, owned by its thread. */
struct rn_jinja_eval {
    struct rn_jinja_run run; /* first: the builtins know only this part */
    const struct rn_jinja_dict *globals; /* the variables given to the rendering */
    struct rn_jinja_scope *scope;
    struct rn_jinja_sink *out;
    struct rn_jinja_value captured;      /* input of the filters of a block */
};

/* How a statement ended. */
enum rn_jinja_flow { RN_JINJA_NEXT, RN_JINJA_BREAK, RN_JINJA_CONTINUE };

/* Renders the tree into e->out. */
int rn_jinja_render(struct rn_jinja_eval *e, const struct rn_jinja_tree *tree);

/* ---- between the halves of the evaluator ---- */

int rn_jinja_eval_node(struct rn_jinja_eval *e, const struct rn_jinja_node *n, struct rn_jinja_value *ret);
int rn_jinja_exec(struct rn_jinja_eval *e, const struct rn_jinja_nodes *body, enum rn_jinja_flow *ret);
int rn_jinja_push_scope(struct rn_jinja_eval *e);
int rn_jinja_define(struct rn_jinja_eval *e, uint32_t id, const struct rn_jinja_value *v);

struct rn_jinja_arguments {
    struct rn_jinja_items positional;
    struct rn_jinja_value keywords; /* dict */
};
/* Calls any value; args as evaluated. */
int rn_jinja_call_value(struct rn_jinja_eval *e, const struct rn_jinja_value *f, const struct rn_jinja_arguments *args,
                        struct rn_jinja_value *ret);
int rn_jinja_arguments(struct rn_jinja_eval *e, const struct rn_jinja_nodes *nodes, struct rn_jinja_arguments *ret);
/* Calls a macro (or the body of a call block). caller: MISSING or what `caller` means inside. */
int rn_jinja_call_macro(struct rn_jinja_eval *e, const struct rn_jinja_macro *macro, const struct rn_jinja_arguments *args,
                        struct rn_jinja_value *ret);

/* A running `for`. With a condition the elements are looked at only when they are needed, as Jinja does. */
struct rn_jinja_loop {
    struct rn_jinja_eval *eval;
    const struct rn_jinja_node *node;
    struct rn_jinja_scope *outside; /* scope around the loop */
    struct rn_jinja_scope *inside, *condition; /* of the last turn and of its condition, for the next one unless held */
    struct rn_jinja_items items;
    size_t pos;          /* the next element not looked at */
    int64_t index0;      /* of the current element */
    struct rn_jinja_value current, previous, ahead;
    bool has_previous, has_ahead;
    struct rn_jinja_items rest; /* elements that `loop.length` has looked at */
    size_t rest_pos;
    struct rn_jinja_value changed; /* arguments of the last loop.changed() */
};
int rn_jinja_exec_for(struct rn_jinja_eval *e, const struct rn_jinja_node *n);
/* Gives v to a target: a name, an attribute of a namespace, or several of them. */
int rn_jinja_assign(struct rn_jinja_eval *e, const struct rn_jinja_node *target, const struct rn_jinja_value *v);
int rn_jinja_loop_attribute(struct rn_jinja_run *run, struct rn_jinja_loop *loop, struct rn_jinja_text name, struct rn_jinja_value *ret);
