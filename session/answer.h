/* The text of one running answer: ids in, text out; stop strings across tokens, end marks, the output limit.
 *
 *   push(id) --> GOES_ON | EOS | STOP | LENGTH
 *   take     --> text that can be shown already and the ids behind it
 *
 * I1. Text that may yet turn out to be the beginning of a stop string is held back; so is half a character.
 * I2. After STOP, text ends before the stop string and ids holds the tokens that lie wholly before it.
 * I3. An end mark is never among ids (unless ignore_eos makes it an ordinary token).
 * owner: engine thread. Zero (with stop strings set) is the start. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/mem.h"
#include "runtime/text.h"

struct rn_answer {
    /* config: borrowed */
    char *const *stop;
    size_t n_stop;
    bool ignore_eos;
    uint64_t limit; /* tokens */
    /* state */
    struct rn_detok detok;
    struct rn_buf text; /* all of it */
    struct rn_ids ids;
    size_t *ends; /* [ids.len] bytes of text up to and with each token */
    size_t cap_ends;
    size_t shown; /* bytes handed out */
    size_t shown_ids;
    const char *stopped; /* the stop string that was found; borrowed */
};

enum rn_answer_result { RN_ANSWER_GOES_ON, RN_ANSWER_EOS, RN_ANSWER_STOP, RN_ANSWER_LENGTH };

void rn_answer_finish(struct rn_answer *a);
/* Before the first push: the answer goes on with the text of these ids, so its own text is what they and its tokens say, without what
 * these ids say alone. Not called: it is a text of its own. 0, -EINVAL (an unknown id) or -ENOMEM. */
int rn_answer_follow(struct rn_answer *a, const struct rn_text *text, const uint32_t *ids, size_t n);
/* Takes the token that was sampled. 0 or -ENOMEM. */
int rn_answer_push(struct rn_answer *a, const struct rn_text *text, uint32_t id, enum rn_answer_result *ret);
/* The answer is over (whatever ended it): nothing is held back any more. 0 or -ENOMEM. */
int rn_answer_close(struct rn_answer *a);
/* What is new to show; both may be empty. Borrowed until the next call. */
void rn_answer_take(struct rn_answer *a, bool closed, const char **ret_text, size_t *ret_len, const uint32_t **ret_ids, size_t *ret_n_ids);
