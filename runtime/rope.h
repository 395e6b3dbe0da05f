/* Rotary position embedding with exact positions: phases are 64-bit fixed point in turns, never float position times frequency.
 *
 * phase(pos) = pos * F_i mod 2^64 with F_i = round(2^64 * theta_i / 2 pi), so the error of a score depends on the distance of two
 * tokens only, however far out they are. Private to runtime/. */
#pragma once

#include <stdint.h>

struct rn_err;
struct rn_hparams;
struct rn_rope;
struct rn_rope_scaling;
struct rn_tensor;

/* Fills rope->freq from the base, what the file declares as scaling, and optional frequency divisors (rope_freqs.weight,
 * [n_rot / 2]). -ENOTSUP: a scaling we do not know (named). -EINVAL: a divisor that is not a positive number. */
int rn_rope_setup(struct rn_rope *rope, const struct rn_hparams *hp, const struct rn_tensor *divisors, struct rn_err *err);

/* Fills ret->freq (as many as `from` has) and mscale with what the user's scaling makes of `from`: every frequency divided by the factor,
 * or YaRN with its usual ramp, from 32 turns to 1 within the trained length. base: the model's rope_base. */
void rn_rope_extend(struct rn_rope *ret, const struct rn_rope *from, const struct rn_rope_scaling *user, float base, uint32_t n_ctx_train);

/* cos, sin pairs of position `pos`: out [n_rot / 2][2]. */
void rn_rope_angles(const struct rn_rope *rope, uint64_t pos, float *out);
