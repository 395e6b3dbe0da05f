/* Shared by responses_request.c, responses_fields.c and responses_input.c. */
#pragma once

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "daemon/responses.h"

/* Evaluates to -EINVAL. */
#define RN_INVALID(problem, path, ...) (rn_problem_set(problem, 400, "invalid_value", path, __VA_ARGS__), -EINVAL)

/* Appends the items that `input` (a string or a list) means to `items`, in the one shape that the session layer knows.
 * 0, or -EINVAL, -ENOMEM with the problem set. */
int rn_responses_input(const json_t *input, json_t *items, struct rn_problem *problem);

/* ---- the fields of response.create: responses_fields.c ------------------------------------------------------------------------------- */

struct rn_field_parse { /* a message on its way to a request */
    struct rn_request *request;
    json_t *echo; // borrowed from request
    const char *model_id;
    struct rn_problem *problem;
    bool overflow_given;
    bool truncation_auto;
};

enum rn_field_where { RN_TOP = 1, RN_OWN = 2, RN_BOTH = 3 }; /* at the top of the message, in its object `runnel` */

struct rn_field {
    const char *name;
    enum rn_field_where where;
    int (*apply)(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v);
    const char *types;   // allowed JSON types: (a)rray (b)ool (i)nteger (n)umber (o)bject (s)tring; null is always allowed and means absent
    double min, max;     // numbers
    size_t offset;       // in struct rn_request
    const char *neutral; // unsupported fields: JSON list of the values that change nothing
};

/* NULL: no such field there. */
const struct rn_field *rn_field_find(const char *name, enum rn_field_where where);
