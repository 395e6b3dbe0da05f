/* SentencePiece-style tokenizing by score: the characters of a text are merged, the adjacent pair with the best score first, into pieces
 * of the vocabulary. A space is a character like any other (the file writes it U+2581, vocab.c keeps it as a space).
 *
 * Immutable after init; borrows the vocabulary. Thread: any, each with its own scratch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/mem.h"
#include "runtime/text/vocab.h"

struct rn_err;
struct rn_gguf;

/* Characters that are merged at once; a text is cut wherever no token could join both sides, so only a run without any such place can be
 * longer. It is cut here: bounds the scratch at 40 MiB. Only merges across the cut are lost; the ids still say the same bytes. */
#define RN_SPM_MAX_RUN (1u << 20)

struct rn_spm_symbol;

struct rn_spm {
    const struct rn_vocab *vocab;
    uint32_t *order;       /* [n_vocab] which merge comes first: the token with the smaller number (the better score) */
    uint8_t *joins;        /* bit (a << 8 | b): some token has a character that ends in byte a before one that begins with byte b */
    size_t max_len;        /* bytes of the longest token that text can become */
    int64_t byte_ids[256]; /* tokens <0xNN>; -1: the vocabulary has none */
    int64_t unknown;       /* stands for a run of characters that nothing else can say; -1 = none */
    bool space_prefix;     /* a text is tokenized as if a space came before it */
};

struct rn_spm_scratch { /* zero is empty */
    struct rn_spm_symbol *symbols;
    uint64_t *heap;
    size_t cap;         /* symbols that fit */
    struct rn_buf text; /* the text with its prefix, and with spaces for U+2581 */
};

/* -EINVAL: scores missing or damaged; -ENOMEM. */
int rn_spm_init(struct rn_spm *ret, const struct rn_vocab *v, const struct rn_gguf *g, struct rn_err *err);
void rn_spm_finish(struct rn_spm *s);

/* Appends the ids of a text, len > 0, the prefix included. Characters that the vocabulary cannot say, byte by byte, become the unknown
 * token, one for a run of them, or are left out where there is none. A byte that is not part of well-formed UTF-8 counts as a character.
 * Cost: O(n log n), n the longest run, at most RN_SPM_MAX_RUN, per n characters; memory: len + the scratch. Returns 0 or -ENOMEM. */
int rn_spm_encode(const struct rn_spm *s, struct rn_spm_scratch *scratch, const char *text, size_t len, struct rn_ids *ids);
void rn_spm_scratch_finish(struct rn_spm_scratch *s);
