/* A stand-in for the engine and the text library, so that tests of the session layer know exactly what must come out.
 *
 * The "model" is a hash: the value of a token is a hash of its id and of the values of all tokens that it sees (pinned ones and base(t)..t),
 * as KV is; logits follow from the last value. Any mistake in what is fed, at which index, with which turn starts or origin, changes
 * the answer. The vocabulary: the 256 bytes and a few control tokens. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/engine.h"
#include "runtime/text.h"

enum { FAKE_START = 256, FAKE_END = 257, FAKE_BOS = 258, FAKE_BREAKS = 259, FAKE_VOCAB = 264 };

enum fake_template {
    FAKE_CHATML,         /* <|im_start|>role\ntext<|im_end|>\n, with a default system message */
    FAKE_SYSTEM_IN_USER, /* <|bos|>, system text inside the first user message */
    FAKE_REWRITES,       /* the last answer is rendered differently from earlier ones */
    FAKE_NO_TEMPLATE,
};

struct fake {
    enum fake_template template;
    uint64_t tokenizer_fingerprint;
    uint32_t n_ctx_train;
    uint64_t pool; /* tokens that all sequences may hold; 0 = no limit */
    int fail_step; /* this step (1 = the next) fails with fail_code; 0 = none */
    int fail_code;
    int fail_again; /* > 0: after a rebuild this step (1 = the probe's) fails with fail_code too */
    int fail_rebuild; /* so many rebuilds fail */
    unsigned rebuilds; /* tried */
    void (*on_step)(void *user, const struct rn_step_entry *entries, uint32_t n); /* before each step; may block */
    void *user;
    uint64_t steps, rows;
    bool no_end; /* end marks are never likely; otherwise now and then */
    bool halves; /* halves of characters are likely */
};

struct rn_engine *fake_engine_create(void);
struct fake *fake_of(struct rn_engine *e);
void fake_engine_destroy(struct rn_engine *e);

/* The greedy answer that a fresh sequence gives after feeding ids (turn starts at the FAKE_START of user messages): at most n ids, up to
 * and without the end mark. Returns their number. */
size_t fake_answer(struct rn_engine *e, const struct rn_seq_params *params, const uint32_t *ids, size_t n_ids, uint32_t *ret, size_t n);
