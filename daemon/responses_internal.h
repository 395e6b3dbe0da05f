/* Shared by responses_request.c and responses_input.c. */
#pragma once

#include <errno.h>
#include <jansson.h>

#include "daemon/responses.h"

/* Evaluates to -EINVAL. */
#define RN_INVALID(problem, path, ...) (rn_problem_set(problem, 400, "invalid_value", path, __VA_ARGS__), -EINVAL)

int rn_problem_no_memory(struct rn_problem *p);                                       /* -ENOMEM */
int rn_problem_unsupported(struct rn_problem *p, const char *path, const char *what); /* -EINVAL */

/* Appends the items that `input` (a string or a list) means to `items`, in the one shape that the session layer knows.
 * 0, or -EINVAL, -ENOMEM with the problem set. */
int rn_responses_input(const json_t *input, json_t *items, struct rn_problem *problem);
