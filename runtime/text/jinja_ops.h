/* Operators of the template language on values: truth, comparison, arithmetic, items and attributes, with Python's meaning. */
#pragma once

#include <stdbool.h>

#include "runtime/text/jinja_parse.h"
#include "runtime/text/jinja_value.h"

bool rn_jinja_truth(const struct rn_jinja_value *v);

/* Fails for a value that cannot take part in an expression: "'x' is undefined". */
int rn_jinja_refuse_undefined(struct rn_jinja_run *run, const struct rn_jinja_value *v);

int rn_jinja_equal(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, bool *ret);
/* *ret: below, equal or above 0. Fails where Python has no order. */
int rn_jinja_order(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, int *ret);
/* item in container */
int rn_jinja_contains(struct rn_jinja_run *run, const struct rn_jinja_value *container, const struct rn_jinja_value *item, bool *ret);
int rn_jinja_compare(struct rn_jinja_run *run, enum rn_jinja_op op, const struct rn_jinja_value *a, const struct rn_jinja_value *b,
                     bool *ret);

int rn_jinja_arithmetic(struct rn_jinja_run *run, enum rn_jinja_op op, const struct rn_jinja_value *a, const struct rn_jinja_value *b,
                        struct rn_jinja_value *ret);
int rn_jinja_negate(struct rn_jinja_run *run, const struct rn_jinja_value *v, bool minus, struct rn_jinja_value *ret);

/* v as a number, if it is a bool, int or float. */
bool rn_jinja_as_int(const struct rn_jinja_value *v, int64_t *ret);   /* bool and int only */
bool rn_jinja_as_float(const struct rn_jinja_value *v, double *ret);

/* What `for` sees: the elements of a list, characters of a string, keys of a dict; nothing of undefined. Consumes a generator. */
int rn_jinja_elements(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_items *ret);
/* len(v); fails for what has none. */
int rn_jinja_length(struct rn_jinja_run *run, const struct rn_jinja_value *v, int64_t *ret);

/* v[key] and v.name: undefined where there is nothing. */
int rn_jinja_item(struct rn_jinja_run *run, const struct rn_jinja_value *v, const struct rn_jinja_value *key, struct rn_jinja_value *ret);
int rn_jinja_attribute(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_text name, struct rn_jinja_value *ret);
/* v[from:to:step]; MISSING or none: open. */
int rn_jinja_slice(struct rn_jinja_run *run, const struct rn_jinja_value *v, const struct rn_jinja_value part[3], struct rn_jinja_value *ret);
