/* Parser of chat templates: tokens to a tree. The tree is immutable afterwards and may be evaluated on several threads.
 *
 * One node type for all kinds; which fields a kind uses stands beside it. Depth is bounded, also that of long chains of operators, so
 * that an evaluator may recurse over any tree. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/text/jinja_value.h"

#define RN_JINJA_MAX_TREE_DEPTH 300

enum rn_jinja_node_kind {
    /* statements */
    RN_JINJA_N_TEXT,       /* constant */
    RN_JINJA_N_PRINT,      /* a */
    RN_JINJA_N_IF,         /* list of CASE */
    RN_JINJA_N_CASE,       /* a condition or NULL = else; body */
    RN_JINJA_N_FOR,        /* a target, b what, c condition or NULL; body; list = else */
    RN_JINJA_N_SET,        /* a target, b value */
    RN_JINJA_N_SET_BLOCK,  /* a target, b filters around CAPTURED, or NULL; body */
    RN_JINJA_N_MACRO,      /* name; list of PARAM; body */
    RN_JINJA_N_CALL_BLOCK, /* a call; list of PARAM; body */
    RN_JINJA_N_FILTER_BLOCK, /* b filters around CAPTURED; body */
    RN_JINJA_N_SCOPE,      /* list of SET (`with`; none: `generation`); body */
    RN_JINJA_N_BREAK,
    RN_JINJA_N_CONTINUE,
    RN_JINJA_N_PARAM,      /* name; a default or NULL */
    /* expressions */
    RN_JINJA_N_CONST,      /* constant */
    RN_JINJA_N_NAME,       /* name */
    RN_JINJA_N_LIST,       /* list */
    RN_JINJA_N_TUPLE,      /* list; also a target */
    RN_JINJA_N_DICT,       /* list of PAIR */
    RN_JINJA_N_PAIR,       /* a key, b value */
    RN_JINJA_N_ATTR,       /* a, name; also a target (namespace) */
    RN_JINJA_N_ITEM,       /* a, b */
    RN_JINJA_N_SLICE,      /* d what; a from, b to, c step, each or NULL */
    RN_JINJA_N_CALL,       /* a; list of arguments */
    RN_JINJA_N_FILTER,     /* a, name; list of arguments */
    RN_JINJA_N_TEST,       /* a, name; list of arguments */
    RN_JINJA_N_KEYWORD,    /* argument: name, a */
    RN_JINJA_N_SPREAD,     /* argument: *a */
    RN_JINJA_N_SPREAD_DICT, /* argument: **a */
    RN_JINJA_N_CHOICE,     /* b if a else c (or NULL) */
    RN_JINJA_N_AND,        /* a, b */
    RN_JINJA_N_OR,         /* a, b */
    RN_JINJA_N_NOT,        /* a */
    RN_JINJA_N_NEGATE,     /* a */
    RN_JINJA_N_PLUS,       /* a */
    RN_JINJA_N_BINARY,     /* a op b */
    RN_JINJA_N_CONCAT,     /* list */
    RN_JINJA_N_COMPARE,    /* a; list of OPERAND */
    RN_JINJA_N_OPERAND,    /* op, a */
    RN_JINJA_N_CAPTURED,   /* the text that a block has just made */
};

enum rn_jinja_op {
    RN_JINJA_OP_ADD, RN_JINJA_OP_SUB, RN_JINJA_OP_MUL, RN_JINJA_OP_DIV, RN_JINJA_OP_FLOORDIV, RN_JINJA_OP_MOD, RN_JINJA_OP_POW,
    RN_JINJA_OP_EQ, RN_JINJA_OP_NE, RN_JINJA_OP_LT, RN_JINJA_OP_LE, RN_JINJA_OP_GT, RN_JINJA_OP_GE, RN_JINJA_OP_IN, RN_JINJA_OP_NOT_IN,
};

struct rn_jinja_nodes {
    struct rn_jinja_node **data;
    uint32_t n, cap;
};

struct rn_jinja_node {
    uint8_t kind;
    uint8_t op;            /* rn_jinja_op; MACRO, CALL_BLOCK: bits 1 << RN_JINJA_ID_… of the special names it uses */
    uint16_t depth;        /* 1 + that of the deepest child */
    uint32_t at;           /* offset in the source */
    uint32_t id;           /* of `name`: equal names have equal ids */
    struct rn_jinja_text name;
    struct rn_jinja_node *a, *b, *c, *d;
    struct rn_jinja_nodes list, body;
    struct rn_jinja_value constant;
};

/* Names the evaluator itself uses; ids of the template's names follow. */
enum rn_jinja_id { RN_JINJA_ID_LOOP, RN_JINJA_ID_CALLER, RN_JINJA_ID_VARARGS, RN_JINJA_ID_KWARGS, RN_JINJA_ID_COUNT };

struct rn_jinja_tree {
    struct rn_jinja_nodes body;
};

/* source as for rn_jinja_lex; everything is allocated in the run's arena and borrows from source. */
int rn_jinja_parse(struct rn_jinja_run *run, const char *source, size_t len, struct rn_jinja_tree *ret);
