/* Filters, tests, methods and global functions of the template language: tables of rows, each with the names of its arguments.
 *
 * A row without a function is something that Jinja or Python knows and we do not: using it is an error, not "undefined". */
#pragma once

#include "runtime/text/jinja_value.h"

#define RN_JINJA_MAX_ARGS 6

struct rn_jinja_keyword {
    struct rn_jinja_text name;
    struct rn_jinja_value value;
};

struct rn_jinja_call {
    struct rn_jinja_value self;          /* a filter's or test's input, a method's object */
    const struct rn_jinja_value *args;   /* rows with named arguments: one each, MISSING where not given; else as called */
    size_t n_args;
    const struct rn_jinja_keyword *keywords; /* only of variadic rows */
    size_t n_keywords;
};

typedef int (*rn_jinja_fn)(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret);

struct rn_jinja_function {
    const char *name;
    const char *params; /* names separated by blanks, "!" before those that must be given; "*": anything, unchecked */
    rn_jinja_fn fn;
};

const struct rn_jinja_function *rn_jinja_find_filter(struct rn_jinja_text name);
const struct rn_jinja_function *rn_jinja_find_test(struct rn_jinja_text name);
const struct rn_jinja_function *rn_jinja_find_global(struct rn_jinja_text name);
/* A method of v's type. *ret_refused: one that the sandbox refuses, as it changes its object. NULL: none. */
const struct rn_jinja_function *rn_jinja_find_method(const struct rn_jinja_value *v, struct rn_jinja_text name, bool *ret_refused);

/* Calls a row: checks and orders the arguments. what: "filter", "test" … for errors. */
int rn_jinja_call_row(struct rn_jinja_run *run, const struct rn_jinja_function *row, const char *what, const struct rn_jinja_call *call,
                      struct rn_jinja_value *ret);
/* By name, as map, select and friends need them. */
int rn_jinja_call_filter(struct rn_jinja_run *run, struct rn_jinja_text name, const struct rn_jinja_call *call, struct rn_jinja_value *ret);
int rn_jinja_call_test(struct rn_jinja_run *run, struct rn_jinja_text name, const struct rn_jinja_call *call, bool *ret);

/* Text with formatting marks: "%s" % args and "{}".format(args). */
int rn_jinja_percent(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *args, struct rn_jinja_value *ret);
int rn_jinja_brace_format(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret);

/* s.replace(from, to, count), as the filter and the method do it; count < 0: all. */
int rn_jinja_replace(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *from,
                     const struct rn_jinja_value *to, int64_t count, struct rn_jinja_value *ret);
/* side: -1 left, 1 right, 0 both; chars MISSING or none: white space. */
int rn_jinja_strip(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *chars, int side,
                   struct rn_jinja_value *ret);
/* Position of needle in s from `from`, or -1. */
ptrdiff_t rn_jinja_find_text(const struct rn_jinja_value *s, const struct rn_jinja_value *needle, size_t from);
int rn_jinja_dict_items(struct rn_jinja_run *run, const struct rn_jinja_dict *d, enum rn_jinja_flavour flavour, struct rn_jinja_value *ret);
/* Pairs by key, for JSON with sorted keys. */
int rn_jinja_sorted_pairs(struct rn_jinja_run *run, const struct rn_jinja_dict *d, const struct rn_jinja_pair *const **ret);

extern const struct rn_jinja_function rn_jinja_filters[], rn_jinja_tests[], rn_jinja_globals[];
extern const struct rn_jinja_function rn_jinja_str_methods[], rn_jinja_list_methods[], rn_jinja_dict_methods[];
