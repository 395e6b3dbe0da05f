/* What the files of the methods of strings share: jinja_strings.c, jinja_search.c and jinja_split.c. */
#pragma once

#include "runtime/text/jinja_builtin.h"

/* 0, or fails: v is no string. */
int rn_jinja_need_string(struct rn_jinja_run *run, const struct rn_jinja_value *v);

/* The last place of needle before `end`, or -1. Comparing may take time at each place, so it counts steps. */
int rn_jinja_find_last(struct rn_jinja_run *run, const struct rn_jinja_value *s, const struct rn_jinja_value *needle, size_t end,
                       ptrdiff_t *ret);

#define RN_JINJA_METHOD(name) \
    int rn_jinja_str_##name(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)

RN_JINJA_METHOD(split);
RN_JINJA_METHOD(rsplit);
RN_JINJA_METHOD(splitlines);
RN_JINJA_METHOD(partition);
RN_JINJA_METHOD(rpartition);
