/* The RoPE scaling that a user asks for, in words ("yarn", "linear:2"), and what it becomes for a window.
 *
 * Asked for without a factor it is made for the window of each session: N / trained length, rounded up to a quarter. A session keeps what
 * it was created with. Thread: any. */
#pragma once

#include <stdint.h>

#include "runtime/engine.h"

struct rn_err;

#define RN_ROPE_WORDS 24 /* bytes of the longest text, "linear:999.999939", and its NUL */

/* "none", "linear", "yarn", the last two also with ":FACTOR", 1 to RN_ROPE_FACTOR_MAX. No factor: 0. -EINVAL: something else. */
int rn_rope_parse(const char *text, struct rn_rope_scaling *ret, struct rn_err *err);
/* The opposite, with its factor where there is one; it reads back bit for bit. */
void rn_rope_format(const struct rn_rope_scaling *rope, char ret[RN_ROPE_WORDS]);

/* What a sequence of N tokens gets: zero where none is asked for, or where nothing would be scaled. */
struct rn_rope_scaling rn_rope_for(struct rn_rope_scaling asked, uint32_t n, uint32_t n_ctx_train);
/* The largest N that it allows. */
uint32_t rn_rope_max_n(struct rn_rope_scaling asked, uint32_t n_ctx_train);
