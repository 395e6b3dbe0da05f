/* Vocabularies made in tests and those of files, and what the tests of runtime/text share. Failures end the running test (cmocka). */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <string.h>

#include "runtime/text/text_internal.h"
#include "tests/unit/gguf_build.h"

#define MAX_TOKENS 600

/* A vocabulary in the making. */
struct made {
    char *texts[MAX_TOKENS]; /* as the file writes them */
    int32_t types[MAX_TOKENS];
    uint32_t n;
    char *merges[MAX_TOKENS];
    char left[MAX_TOKENS][16]; /* their parts as bytes */
    char right[MAX_TOKENS][16];
    uint32_t n_merges;
};

struct made *made_create(void);       /* tokens 0..255 are the bytes */
struct made *made_create_empty(void); /* no tokens */
void made_destroy(struct made *m);

/* Each returns the new token's id. bytes: what a normal token stands for; name: a token as it is written. */
uint32_t made_bytes(struct made *m, const char *bytes, size_t len);
uint32_t made_name(struct made *m, const char *name, int32_t type);
uint32_t made_merge(struct made *m, const char *left, const char *right); /* a merge and the token it makes */

/* Adds up to n_merges merges of random tokens over the letters a, b, c, up to 8 letters long, each text made once. */
void made_random_merges(struct made *m, uint32_t n_merges);

/* A file with this vocabulary; pre may be NULL. */
struct gguf_build *made_file(const struct made *m, const char *pre);

/* The same as a SentencePiece-style file: tokens are taken as they were named; one score each. */
struct gguf_build *made_pieces_file(const struct made *m, const float *scores);

int open_text(struct rn_text **ret, struct gguf_build *b, struct rn_err *err); /* takes b */
struct rn_text *text_of(const struct made *m, const char *pre);

/* Detokenizes; checks after each id that the output is UTF-8. */
void push_all(const struct rn_text *t, const uint32_t *ids, size_t n, bool special, struct rn_buf *out);

/* The ids say these bytes, also when control tokens are shown. */
void assert_says(const struct rn_text *t, const struct rn_ids *ids, const char *text, size_t len);

void assert_ids(const struct rn_ids *ids, const uint32_t *expected, size_t n);

struct rn_text *text_of_file(const char *path);
json_t *load_data(const char *name); /* a JSON file in tests/data */
/* The same as assert_ids for a row of such a file; a failure names the row. */
void assert_row_ids(const char *what, size_t row, const struct rn_ids *ids, const json_t *expected);

/* Repeatable random numbers, 0..below-1. */
void rng_seed(uint64_t seed);
uint32_t rng(uint32_t below);

#define ASSERT_TOKENS(t, text, special, ...)                                                                                               \
    do {                                                                                                                                   \
        const uint32_t expected_[] = {__VA_ARGS__};                                                                                        \
        struct rn_ids ids_ = {0};                                                                                                          \
        assert_int_equal(rn_text_tokenize(t, text, strlen(text), special, &ids_, NULL), 0);                                                \
        assert_ids(&ids_, expected_, sizeof(expected_) / sizeof(expected_[0]));                                                            \
        rn_ids_finish(&ids_);                                                                                                              \
    } while (0)
