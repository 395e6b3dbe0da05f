/* Finds tokens that are cut out of text before anything else: user-defined literals always, control tokens where they are allowed.
 *
 * Immutable after init; borrows the vocabulary. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/text/vocab.h"

struct rn_err;
struct rn_special_name;

struct rn_special {
    struct rn_special_name *names; /* sorted by bytes, then id */
    uint32_t n_names;
    uint32_t first[257]; /* names that begin with byte b: [first[b], first[b + 1]) */
};

struct rn_special_hit {
    size_t at;
    size_t len;
    uint32_t id;
};

int rn_special_init(struct rn_special *ret, const struct rn_vocab *v, struct rn_err *err); /* 0 or -ENOMEM */
void rn_special_finish(struct rn_special *s);

/* The leftmost hit at or after `from`, the longest of those that begin there. Control tokens count where `control` is set and, if own
 * is not NULL, all their bytes have own = 1. Returns false if there is none. Cost: linear in the distance, times the length of a name. */
bool rn_special_find(const struct rn_special *s, const char *text, const char *own, size_t len, size_t from, bool control,
                     struct rn_special_hit *ret);
