/* Which queries and tokens the attention rows take together, whatever their registers: blocks of queries that see something, tiles of keys,
 * the walk over the values. A row forms scores and adds values; the order in which it does so is here.
 *
 * What is loaded of K or V serves several queries, so queries are taken in blocks; a block holds only queries that see something.
 *
 * I1. A score of an unseen token is replaced before it is used; a value of an unseen token is never loaded into a sum.
 * I2. Only tiles with a token that some query of the block sees are read, so pages that nobody sees may be NULL.
 * Thread: any; pure. Scratch: [16][256] scores, then weights; what is behind them is the row's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/cpu/kernels.h"
#include "runtime/tensor/backend.h"

#define TILE 16 /* tokens per tile of K */

/* Calls f(__VA_ARGS__, n) with the number of queries, 1..3, 1..4 or 1..6, as a constant. */
#define FOR_3(n, f, ...)                                                                                                                   \
    switch (n) {                                                                                                                           \
    case 1:                                                                                                                                \
        f(__VA_ARGS__, 1);                                                                                                                 \
        break;                                                                                                                             \
    case 2:                                                                                                                                \
        f(__VA_ARGS__, 2);                                                                                                                 \
        break;                                                                                                                             \
    default:                                                                                                                               \
        f(__VA_ARGS__, 3);                                                                                                                 \
        break;                                                                                                                             \
    }
#define FOR_4(n, f, ...)                                                                                                                   \
    switch (n) {                                                                                                                           \
    case 4:                                                                                                                                \
        f(__VA_ARGS__, 4);                                                                                                                 \
        break;                                                                                                                             \
    default:                                                                                                                               \
        FOR_3(n, f, __VA_ARGS__);                                                                                                          \
    }
#define FOR_6(n, f, ...)                                                                                                                   \
    switch (n) {                                                                                                                           \
    case 5:                                                                                                                                \
        f(__VA_ARGS__, 5);                                                                                                                 \
        break;                                                                                                                             \
    case 6:                                                                                                                                \
        f(__VA_ARGS__, 6);                                                                                                                 \
        break;                                                                                                                             \
    default:                                                                                                                               \
        FOR_4(n, f, __VA_ARGS__);                                                                                                          \
    }

/* Adjacent queries that all see something. */
struct rn_attn_block {
    uint32_t i0, n;          /* queries i0 .. i0 + n - 1; n = 0: no block left */
    uint32_t lo, hi;         /* every seen token is in lo .. hi - 1 */
    uint32_t all_lo, all_hi; /* what every query sees; may be empty */
    bool fetches;            /* does the fetching that the call asks for */
};

/* The first block at or after query i, of at most max_n queries; a long run of queries is cut into blocks of equal size. */
struct rn_attn_block rn_attn_block(const struct rn_attn_args *args, uint32_t i, uint32_t max_n);

/* True when a query of the block sees a token of the tile at j. */
bool rn_attn_tile_seen(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t j);

/* How many tiles from j on may be scored together: 2, 1 if the block does not see the second, or 0 if it does not see the first. */
uint32_t rn_attn_tiles_seen(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t j);

/* Adds the values of tokens [j0, j1) of one page to the sums of n queries from i on. next: the part of the next keys to fetch meanwhile, as
 * far as those tokens' places go; or NULL. */
typedef void (*rn_attn_values_fn)(const struct rn_attn_args *args, const uint8_t *next, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n);

/* The values of all seen tokens into o, per query in ascending order, for at most max_n queries at once. Queries that see nothing get
 * m = -inf, l = 0, o = 0. */
void rn_attn_sum_values(const struct rn_attn_args *args, rn_attn_values_fn values, uint32_t max_n);

/* What rn_attn_combine_fn does with a side that has seen nothing; false: both have, and nothing is done yet. */
bool rn_attn_combine_trivial(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim);
