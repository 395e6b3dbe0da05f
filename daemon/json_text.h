/* JSON from outside, with limits that the parser itself does not have, and the one string writer of the hot path. Pure; any thread. */
#pragma once

#include <jansson.h>
#include <stddef.h>

struct rn_buf;
struct rn_err;

#define RN_JSON_DEPTH 64
#define RN_JSON_VALUES 200000 /* about 20 MB of parsed values at most */

/* Parses one object of at most RN_JSON_DEPTH levels and RN_JSON_VALUES values. -EINVAL: err has the reason; -ENOMEM. */
int rn_json_parse(const char *data, size_t len, json_t **ret, struct rn_err *err);

/* Appends s (UTF-8) as a JSON string with quotes. 0 or -ENOMEM. */
int rn_json_add_string(struct rn_buf *b, const char *s, size_t len);

/* Appends v in compact form. 0 or -ENOMEM. */
int rn_json_add(struct rn_buf *b, const json_t *v);
