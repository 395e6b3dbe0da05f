/* The log-probabilities of one answer's tokens: gathered as numbers while it is sampled, told as JSON.
 *
 * They are the model's own: of its logits before bias, penalties and temperature, so they equal what `runnel eval` says of the same text.
 * owner: engine thread. Zero (with n_top set) is the start. */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/sampler.h"

struct rn_text;

struct rn_logprobs {
    uint32_t n_top;          /* at most RN_TOP_LOGPROBS_MAX */
    struct rn_logprob *rows; /* [cap][1 + n_top]: the token itself, then the likeliest ones */
    uint8_t *n_likely;       /* [cap] how many of those there are */
    size_t cap;
};

void rn_logprobs_finish(struct rn_logprobs *l);
/* Notes token number `place` of the answer; what stood there (tokens that were cut) is overwritten. 0 or -ENOMEM. */
int rn_logprobs_add(struct rn_logprobs *l, size_t place, const float *logits, uint32_t n_vocab, uint32_t id);
/* Tokens [from, end) in the form of struct rn_event. NULL = no memory. */
json_t *rn_logprobs_json(const struct rn_logprobs *l, const struct rn_text *text, size_t from, size_t end);
