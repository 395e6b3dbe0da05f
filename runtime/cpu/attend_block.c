/* The order of an attention row's work; what it is, is in the header. */
#include "runtime/cpu/attend_block_internal.h"

#include <math.h>
#include <string.h>

struct rn_attn_block rn_attn_block(const struct rn_attn_args *args, uint32_t i, uint32_t max_n)
{
    const bool first = i == 0;
    while (i < args->n_q && args->lo[i] >= args->hi[i]) {
        i++;
    }
    uint32_t end = i;
    while (end < args->n_q && args->lo[end] < args->hi[end]) {
        end++;
    }
    struct rn_attn_block b = {.i0 = i, .lo = RN_CHUNK_TOKENS, .all_hi = RN_CHUNK_TOKENS, .fetches = first && args->cold};
    if (end == i) {
        return b;
    }
    uint32_t n_blocks = (end - i + max_n - 1) / max_n;
    b.n = (end - i + n_blocks - 1) / n_blocks;
    for (uint32_t x = i; x < i + b.n; x++) {
        b.lo = args->lo[x] < b.lo ? args->lo[x] : b.lo;
        b.hi = args->hi[x] > b.hi ? args->hi[x] : b.hi;
        b.all_lo = args->lo[x] > b.all_lo ? args->lo[x] : b.all_lo;
        b.all_hi = args->hi[x] < b.all_hi ? args->hi[x] : b.all_hi;
    }
    return b;
}

bool rn_attn_tile_seen(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t j)
{
    for (uint32_t x = b->i0; x < b->i0 + b->n; x++) {
        if (args->lo[x] < j + TILE && args->hi[x] > j) {
            return true;
        }
    }
    return false;
}

uint32_t rn_attn_tiles_seen(const struct rn_attn_args *args, const struct rn_attn_block *b, uint32_t j)
{
    if (!rn_attn_tile_seen(args, b, j)) {
        return 0;
    }
    return j + TILE < b->hi && rn_attn_tile_seen(args, b, j + TILE) ? 2 : 1;
}

/* Tokens [j0, j1) page by page for n queries from i on. */
static void over_pages(const struct rn_attn_args *args, rn_attn_values_fn values, bool fetches, uint32_t i, uint32_t j0, uint32_t j1,
                       uint32_t n)
{
    for (uint32_t end; j0 < j1; j0 = end) {
        end = (j0 / RN_PAGE_TOKENS + 1) * RN_PAGE_TOKENS;
        end = end < j1 ? end : j1;
        values(args, fetches ? args->next_k[j0 / RN_PAGE_TOKENS] : NULL, i, j0, end, n);
    }
}

/* What only some queries of a block see comes before or after what all of them see, and goes to each query alone. */
static void block_values(const struct rn_attn_args *args, rn_attn_values_fn values, const struct rn_attn_block *b)
{
    const bool common = b->all_lo < b->all_hi;
    for (uint32_t i = b->i0; i < b->i0 + b->n; i++) {
        over_pages(args, values, false, i, args->lo[i], common ? b->all_lo : args->hi[i], 1);
    }
    if (common) {
        over_pages(args, values, b->fetches, b->i0, b->all_lo, b->all_hi, b->n);
    }
    for (uint32_t i = b->i0; common && i < b->i0 + b->n; i++) {
        over_pages(args, values, false, i, b->all_hi, args->hi[i], 1);
    }
}

void rn_attn_sum_values(const struct rn_attn_args *args, rn_attn_values_fn values, uint32_t max_n)
{
    for (uint32_t i = 0; i < args->n_q; i++) {
        if (args->lo[i] >= args->hi[i]) {
            args->m[i] = -INFINITY;
            args->l[i] = 0.0f;
        }
    }
    memset(args->o, 0, (size_t)args->n_q * args->head_dim * sizeof *args->o);
    for (struct rn_attn_block b = rn_attn_block(args, 0, max_n); b.n > 0; b = rn_attn_block(args, b.i0 + b.n, max_n)) {
        block_values(args, values, &b);
    }
}

bool rn_attn_combine_trivial(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim)
{
    if (l1 != 0.0f && *l != 0.0f) {
        return false;
    }
    if (l1 != 0.0f) {
        *m = m1;
        *l = l1;
        memcpy(o, o1, head_dim * sizeof *o);
    }
    return true;
}
