/* What the attention rows of 8 keys at a time share; included by the attention_internal.h of an instruction set, which sets
 *   FINISH   name of the function that does everything after the scores
 * and has `struct f8`, eight floats, with the functions f8_*.
 *
 * Scores: K lies in tiles of 16 tokens, read 8 keys at a time, and the sum of each key is formed in its own SIMD lane; what is loaded of K
 * serves several queries. Values: outputs of a few queries lie in registers over the tokens, and a load of V serves them all. Blocks of
 * queries, I1 and I2: attend_block_internal.h. Thread: any; pure. */
#include <math.h>

#include "runtime/cpu/attend_block_internal.h"

#define BLOCK_K 4 /* queries per pass over K */

/* Place in the scratch of the scales of one page of q8_0 values: behind the scores and what attention_q8_tmpl.h keeps. */
#define VALUE_SCALES(head_dim) ((size_t)RN_ATTN_MAX_Q * RN_CHUNK_TOKENS + 5 * (size_t)(head_dim))

/* Everything after the scores: turns them into weights, sets m and l, and sums the values into o. max: greatest score per SIMD lane of
 * each query that sees something. q8: the values are q8_0. */
void FINISH(const struct rn_attn_args *args, const struct f8 *max, bool q8);

INLINE void rn_attn_start(const struct rn_attn_args *args, struct f8 *max)
{
    for (uint32_t i = 0; i < args->n_q; i++) {
        max[i] = f8_all(-INFINITY);
    }
}

/* Keeps the scores of 8 tokens at j, and the maximum per SIMD lane; tokens that the query does not see count as -inf (I1). */
INLINE void rn_attn_keep(const struct rn_attn_args *args, uint32_t i, uint32_t j, struct f8 dot, struct f8 *max)
{
    const struct f8 s = f8_in_range(f8_mul_n(dot, args->scale), j, args->lo[i], args->hi[i]);
    f8_store(args->scratch + i * RN_CHUNK_TOKENS + j, s);
    max[i] = f8_max(max[i], s);
}
