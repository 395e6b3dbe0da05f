/* What the tests of engine and sequences share: tiny random models, token timelines, a plain reference of the rule base(t), and a way to
 * spoil every cell that nothing may read. Failures end the running cmocka test. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/engine.h"
#include "tests/unit/gguf_build.h"

/* A small generator, so that a failure can be repeated: splitmix64. */
uint64_t kit_next(uint64_t *rng);
/* 0 .. n - 1 */
uint32_t kit_below(uint64_t *rng, uint32_t n);

/* Builds the model, loads it and removes the file. params->model is ignored. */
struct rn_engine *kit_engine(const struct gguf_llama *model, const struct rn_engine_params *params);
/* The file alone; the caller unlinks it. Valid until the next call. */
const char *kit_model(const struct gguf_llama *model);
/* Destroys the engine; all pages must have come back. */
void kit_engine_destroy(struct rn_engine *e);
struct rn_seq *kit_seq(struct rn_engine *e, const struct rn_seq_params *params);

struct kit_timeline {
    uint32_t n;
    uint32_t *ids;
    bool *is_turn;
};
/* Random ids below n_vocab; a turn starts with probability 1 / mean_turn, 0 = never. */
void kit_timeline_init(struct kit_timeline *tl, uint32_t n, uint32_t n_vocab, uint32_t mean_turn, uint64_t seed);
void kit_timeline_finish(struct kit_timeline *tl);

/* bases[t] for t < tl->n, from the definition alone (design 4): one token after the other, every turn start looked at. Indices
 * S .. origin - 1 are left out. */
void kit_bases(const struct kit_timeline *tl, const struct rn_seq_params *p, uint64_t *bases);

/* Index of the token behind t. */
uint64_t kit_after(const struct rn_seq_params *p, uint64_t t);

#define KIT_MAX_STEP 512
/* An entry that appends the next n tokens of the timeline with logits for all of them. The buffers belong to `room`. */
struct kit_room {
    uint32_t ids[KIT_MAX_STEP];
    uint64_t turns[KIT_MAX_STEP], index[KIT_MAX_STEP];
};
void kit_entry(struct rn_step_entry *entry, struct kit_room *room, struct rn_seq *s, const struct rn_seq_params *p,
               const struct kit_timeline *tl, uint32_t n, float *logits);
/* The same with random ids and turn starts. */
void kit_garbage(struct rn_step_entry *entry, struct kit_room *room, struct rn_seq *s, const struct rn_seq_params *p, uint32_t n_vocab,
                 uint32_t n, uint64_t *rng);

/* Writes infinities and NaN into all cells of unshared pages that hold no token below the head, or one that no row from `keep` on sees. */
void kit_spoil(struct rn_seq *s, uint64_t keep);
