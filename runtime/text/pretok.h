/* Pre-tokenizers: cut text into the pieces inside which BPE merges.
 *
 * A pre-tokenizer is a row of a table: its names in model files and one or more regular expressions, applied one after the other, each
 * to the pieces that the one before left (matches and the text between them both stay as pieces). Adding one = adding a row. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct rn_err;
struct rn_pretok;

#define RN_PRETOK_MAX_NAMES 8
#define RN_PRETOK_MAX_PASSES 6

struct rn_pretok_row {
    const char *names[RN_PRETOK_MAX_NAMES];   /* tokenizer.ggml.pre; NULL ends the list */
    const char *passes[RN_PRETOK_MAX_PASSES]; /* PCRE2, matched in UTF mode; NULL ends the list; none matches an empty text */
    unsigned byte_pass;                       /* not 0: from this pass on, patterns match single bytes, not characters */
    bool nfc;                                 /* text is brought to Unicode's form C first */
    bool ignore_merges;                       /* a whole piece that is a token is taken as it is */
    bool add_bos;                             /* where the file does not say */
};

/* The row with this name, or NULL. */
const struct rn_pretok_row *rn_pretok_find(const char *name, size_t len);
/* The i-th row, in no order that means anything, or NULL: for tests that go through all of them. */
const struct rn_pretok_row *rn_pretok_row(size_t i);

/* Compiles a row. The result is immutable and shared by all threads. -ENOMEM; -EINVAL: a pattern does not compile (our bug). */
int rn_pretok_create(struct rn_pretok **ret, const struct rn_pretok_row *row, struct rn_err *err);
void rn_pretok_destroy(struct rn_pretok *p); /* NULL is fine */

/* Scratch of one thread. */
struct rn_pretok_run;
int rn_pretok_run_create(struct rn_pretok_run **ret, const struct rn_pretok *p, struct rn_err *err);
void rn_pretok_run_destroy(struct rn_pretok_run *run); /* NULL is fine */

/* One piece: bytes [at, at + len) of the text, len > 0. Not 0: stop and return this. */
typedef int (*rn_pretok_fn)(void *user, size_t at, size_t len);

/* Calls fn for the pieces of text, in order; together they are the whole text. A byte that is not part of well-formed UTF-8 counts as
 * one character that is neither letter, number, punctuation nor space. Time linear in len, memory at most len + a constant.
 * Returns 0; what fn returned; -E2BIG: a match went over its limit, which is linear in len; -ENOMEM. */
int rn_pretok_split(struct rn_pretok_run *run, const char *text, size_t len, rn_pretok_fn fn, void *user, struct rn_err *err);
