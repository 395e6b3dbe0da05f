/* Errors are values with a story: a negative errno plus one sentence that gathers context on the way up.
 *
 *   bottom:  return rn_err_set(err, -EINVAL, "tensor '%s': dim %d is %d, expected %d", …);
 *   above:   return rn_err_prefix(err, "loading '%s'", path);      ->  "loading 'm.gguf': tensor …"
 *
 * `err` may be NULL everywhere: the code is still returned. Thread: any; a struct rn_err belongs to its caller. */
#pragma once

#include <errno.h>
#include <stddef.h>

#define RN_ERR_TEXT 512

struct rn_err {
    int code;                /* 0 or a negative errno */
    char text[RN_ERR_TEXT];  /* one sentence, lower case, no full stop; cut at RN_ERR_TEXT - 1 bytes */
};

/* Sets code and text; returns `code`. */
int rn_err_set(struct rn_err *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before the text; returns the code that is already there (-EIO when err is NULL). */
int rn_err_prefix(struct rn_err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Same as rn_err_set(err, -ENOMEM, "out of memory (%zu bytes for %s)"). */
int rn_err_nomem(struct rn_err *err, size_t bytes, const char *what);
