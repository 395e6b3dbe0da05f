/* A slow, plain reference of a float32 llama model with a rolling window, in float64: what the engine must reproduce.
 *
 * The cache is an explicit list of slots. Keys are kept before RoPE, and at every step every key is rotated at its slot number and the
 * query at the slot of its own key. Nothing is shared with the engine: not the two-query trick, not pages, not chunks, not the history of
 * base(t). Mutations of the rule are there to show that a comparison can fail. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct oracle;

enum oracle_mutation {
    ORACLE_RIGHT,
    ORACLE_ONE_ROTATION, /* the query is not moved to its slot for the pinned zone: pinned keys drift away */
    ORACLE_ONE_LATE,     /* once tokens were evicted, the query one slot behind its own key's, seen from the pinned zone */
    ORACLE_KEEPS_ONE,    /* evicts one token too late */
};

struct oracle_params {
    const char *model; /* GGUF file, matrices F32 */
    uint32_t n, sinks;
    bool by_turn;
    uint64_t origin; /* 0 = sinks */
    enum oracle_mutation mutation;
};

struct oracle *oracle_create(const struct oracle_params *params);
void oracle_destroy(struct oracle *o);

/* Feeds the next token; logits [n_vocab]. The result is base(t). */
uint64_t oracle_step(struct oracle *o, uint32_t id, bool is_turn, double *logits);
