/* Byte-level byte pair encoding: a piece of text, byte by byte, merged by rank into tokens.
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

#define RN_BPE_MAX_MERGES (1u << 21)
/* A longer piece (a run of one class of characters) is cut here, at a whole character: bounds the scratch at 28 MiB. Only merges across
 * the cut are lost; the ids still say the same bytes. */
#define RN_BPE_MAX_PIECE (1u << 20)

struct rn_bpe_merge;
struct rn_bpe_symbol;

struct rn_bpe {
    const struct rn_vocab *vocab;
    struct rn_bpe_merge *merges; /* [n_merges] by rank */
    uint32_t n_merges;
    uint32_t *slots; /* [slot_mask + 1] rank + 1 by pair of ids, 0 = free */
    uint32_t slot_mask;
    unsigned slot_shift;   /* 64 - log2 of the number of slots */
    uint64_t slot_factor;  /* odd; a hash of all merges: a file cannot be made whose pairs all collide */
    int64_t byte_ids[256]; /* -1: the vocabulary has no token for this byte */
    bool ignore_merges;
};

struct rn_bpe_scratch { /* zero is empty */
    struct rn_bpe_symbol *symbols;
    uint64_t *heap;
    size_t cap; /* symbols that fit */
};

/* -EINVAL: merges missing or damaged; -E2BIG; -ENOMEM. */
int rn_bpe_init(struct rn_bpe *ret, const struct rn_vocab *v, const struct rn_gguf *g, bool ignore_merges, struct rn_err *err);
void rn_bpe_finish(struct rn_bpe *b);

/* Appends the ids of one piece. Bytes that the vocabulary has no token for are left out, as Hugging Face's tokenizers do where a model
 * has no unknown token. Cost: O(n log n), n = min(len, RN_BPE_MAX_PIECE), per n bytes. Returns 0 or -ENOMEM. */
int rn_bpe_encode(const struct rn_bpe *b, struct rn_bpe_scratch *scratch, const char *piece, size_t len, struct rn_ids *ids);
void rn_bpe_scratch_finish(struct rn_bpe_scratch *s);
