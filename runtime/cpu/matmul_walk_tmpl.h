/* Products of few and of many tokens from the tiles of one weight format; included at the end of a format's template, which has
 *   NAME(tile)   block `block` of 16 rows for the first n tokens (1..16) of token block tb
 * and gives up its parameters here. Thread: any; pure. */

// Row blocks that stay in the second-level cache while all tokens pass.
#define KEEP 4

void NAME(rn_mmf)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    for (uint32_t b = block0; b < block1; b++) {
        NAME(tile)(args, b, 0, args->a->n_tok);
    }
}

void NAME(rn_mmn)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    uint32_t n_tok = args->a->n_tok;
    for (uint32_t b0 = block0; b0 < block1; b0 += KEEP) {
        uint32_t b1 = block1 - b0 < KEEP ? block1 : b0 + KEEP;
        for (uint32_t m = 0; m < n_tok; m += 16) {
            for (uint32_t b = b0; b < b1; b++) {
                NAME(tile)(args, b, m / 16, n_tok - m < 16 ? n_tok - m : 16);
            }
        }
    }
}

#undef KEEP
#undef FMT
#undef BITS
#undef SCALES
#undef MAX
#undef OFFSET
#undef VALUES
