/* Filters on sequences, for the table of filters. */
#pragma once

#include "runtime/text/jinja_builtin.h"

#define RN_JINJA_FILTER(name) \
    int rn_jinja_filter_##name(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)

RN_JINJA_FILTER(join);
RN_JINJA_FILTER(items);
RN_JINJA_FILTER(dictsort);
RN_JINJA_FILTER(list);
RN_JINJA_FILTER(first);
RN_JINJA_FILTER(last);
RN_JINJA_FILTER(reverse);
RN_JINJA_FILTER(map);
RN_JINJA_FILTER(select);
RN_JINJA_FILTER(reject);
RN_JINJA_FILTER(selectattr);
RN_JINJA_FILTER(rejectattr);
RN_JINJA_FILTER(sort);
RN_JINJA_FILTER(unique);
RN_JINJA_FILTER(min);
RN_JINJA_FILTER(max);
RN_JINJA_FILTER(sum);
