/* Given token ids going through the model in steps, with logits for every row: what `logits` and `eval` stand on. Thread: main. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "daemon/cli/model.h"
#include "runtime/base/mem.h"
#include "runtime/engine.h"

struct rn_replay_args {
    struct rn_window_args window;
    struct rn_numbers turn_starts; /* places in the list of ids, ascending */
    uint32_t chunk;                /* rows per step */
    uint64_t origin;               /* index of the first token that is not pinned; 0 = the number of pinned ones */
};
extern const struct rn_option rn_replay_options[3];
#define RN_REPLAY_WINDOW_TITLE "window (without --window: N is the number of ids, nothing is pinned)"

struct rn_replay {
    struct rn_engine *engine; /* borrowed */
    const struct rn_ids *ids; /* borrowed */
    struct rn_seq *seq;       /* owned */
    uint64_t *turns;          /* owned: indices, not places */
    size_t n_turns, next_turn;
    uint64_t sinks, origin;
    float *logits; /* owned [chunk, n_vocab], of the newest step */
    uint32_t chunk, n_vocab;
    size_t done; /* ids that went through */
};

/* Without --window N is the number of ids (at least 16) and nothing is pinned. rope: as asked for. -EINVAL: the option that is wrong, and
 * its bound. */
int rn_replay_init(struct rn_replay *ret, struct rn_engine *e, const struct rn_ids *ids, const struct rn_replay_args *args,
                   struct rn_rope_scaling rope, struct rn_err *err);
void rn_replay_finish(struct rn_replay *r);

/* Runs the next step. *ret_n rows from place *ret_from on have their logits in r->logits; 0 rows: all ids are done. Pages that left the
 * window go with the next call. */
int rn_replay_next(struct rn_replay *r, size_t *ret_from, uint32_t *ret_n, struct rn_err *err);

/* Index of the token at a place in the list. */
uint64_t rn_replay_index(const struct rn_replay *r, size_t place);

/* The ids of --ids-file, or of the text file -f (BOS in front if the model's file says so). -EINVAL: not exactly one was given. */
int rn_replay_read(struct rn_engine *e, const char *ids_file, const char *text_file, struct rn_ids *ret, struct rn_err *err);
/* Appends the ids of raw text, after BOS if the model's file says so. */
int rn_replay_raw_text(const struct rn_text *t, const char *text, size_t len, struct rn_ids *ret, struct rn_err *err);
