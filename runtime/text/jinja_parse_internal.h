/* What the files of the template parser share: jinja_parse.c (the entry, tokens and nodes), jinja_parse_statement.c (statements),
 * jinja_parse_expr.c (operators, postfix, filters, tests) and jinja_parse_primary.c (literals, names, brackets). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/text/jinja_parse.h"

struct rn_jinja_token;
struct rn_jinja_parser {
    struct rn_jinja_run *run;
    const struct rn_jinja_token *t; /* the current token */
    const char *source;
    unsigned depth;                 /* of the recursion */
    unsigned n_loops;               /* loops around, for break and continue */
    struct rn_jinja_value ids;      /* dict: name -> id */
};

int rn_jinja_parser_fail(struct rn_jinja_parser *p, const char *what); /* "unexpected X, expected <what>" at the current token */
int rn_jinja_parser_enter(struct rn_jinja_parser *p);
void rn_jinja_parser_leave(struct rn_jinja_parser *p);
bool rn_jinja_parser_at_op(const struct rn_jinja_parser *p, const char *op);
bool rn_jinja_parser_at_name(const struct rn_jinja_parser *p, const char *name);
bool rn_jinja_parser_skip_op(struct rn_jinja_parser *p, const char *op);
bool rn_jinja_parser_skip_name(struct rn_jinja_parser *p, const char *name);
int rn_jinja_parser_expect_op(struct rn_jinja_parser *p, const char *op);
/* A node at the current token; NULL: failed. */
struct rn_jinja_node *rn_jinja_parser_node(struct rn_jinja_parser *p, enum rn_jinja_node_kind kind);
/* The same as a result: 0 or -ENOMEM. */
int rn_jinja_parser_new(struct rn_jinja_parser *p, enum rn_jinja_node_kind kind, struct rn_jinja_node **ret);
/* Sets name and id from the current token, which must be a name, and goes on. */
int rn_jinja_parser_name(struct rn_jinja_parser *p, struct rn_jinja_node *n, const char *what);
int rn_jinja_parser_push(struct rn_jinja_parser *p, struct rn_jinja_nodes *list, struct rn_jinja_node *n);
/* Computes n->depth from its children; -E2BIG past the limit. */
int rn_jinja_parser_close(struct rn_jinja_parser *p, struct rn_jinja_node *n);

/* Everything up to a block that starts with one of `ends` (names separated by blanks; NULL: the end of the template); stands on that name
 * afterwards. */
int rn_jinja_parse_body(struct rn_jinja_parser *p, const char *ends, struct rn_jinja_nodes *body);
int rn_jinja_parse_expression(struct rn_jinja_parser *p, struct rn_jinja_node **ret);
/* One expression, or several with commas between: a tuple. */
int rn_jinja_parse_tuple(struct rn_jinja_parser *p, bool plain, struct rn_jinja_node **ret);
/* A name, a tuple of names, or (when allowed) name.attribute. */
int rn_jinja_parse_target(struct rn_jinja_parser *p, bool attribute, struct rn_jinja_node **ret);
/* `name(args) | name …` behind a bar that has been read, around `input`. */
int rn_jinja_parse_filters(struct rn_jinja_parser *p, struct rn_jinja_node *input, struct rn_jinja_node **ret);

/* An expression without inline if. */
int rn_jinja_parse_or(struct rn_jinja_parser *p, struct rn_jinja_node **ret);
/* A literal, a name or something in brackets. */
int rn_jinja_parse_primary(struct rn_jinja_parser *p, struct rn_jinja_node **ret);
/* Fills n, of kind NAME, with the name at the current token, or makes it the constant that the word stands for. */
int rn_jinja_parse_name(struct rn_jinja_parser *p, struct rn_jinja_node *n);
/* Fills n, of kind CONST, with the number at the current token. */
int rn_jinja_parse_number(struct rn_jinja_parser *p, struct rn_jinja_node *n);
