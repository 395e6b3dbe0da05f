/* Products for 1..8 rows of tokens (columns): out = w x + bias, with the epilogues of RN_PRODUCT_*.
 *
 *   constant 0   columns: 1, 2, 4, 8; step rows beyond the actual number are computed again for the last one and not stored
 *   constant 1   invocations: 8 blocks x slices of K. A GPU: min(segments of a row, 16) slices; a CPU: 1 (then there is neither shared
 *                memory nor a barrier, but for THEN_QUANT)
 *   constant 2   blocks of 16 rows that a workgroup takes: 1; with RN_PRODUCT_THEN_QUANT 2, a group of the next product
 *   workgroups   (sum over the parts of ceil(rows / (16 blocks)), 1, 1); gated: of part 0 alone
 *
 * An invocation takes two adjacent rows of a block of 16 and every slices'th segment of K (128 columns; float weights: 32), and sums it
 * up in ascending order. Sums of segments go to shared memory and are added in ascending order: the same order whatever the number of
 * slices, and as matmat.comp does. Where shared memory cannot hold a row's segments, they come in windows. */
#version 450
#extension GL_GOOGLE_include_directive : require

#include "lib/refs.glsl"
#include "lib/fmath.glsl"
#include "lib/norm.glsl"
#include "lib/product.glsl"
#include "lib/quant.glsl"

layout(constant_id = 0) const uint COLUMNS = 1;
layout(constant_id = 2) const uint BLOCKS = 1;
layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;

#include "lib/segment.glsl"
#include "lib/then.glsl"

const uint PAIRS = 8 * BLOCKS;
const uint SLICES = gl_WorkGroupSize.x / PAIRS;
const uint WINDOW = 256 / (COLUMNS * BLOCKS); // segments: one for each of 16 slices at least, and 16 KiB of sums (THEN_QUANT: 1 KiB more)

shared vec2 sums[SLICES == 1 ? 1 : WINDOW * COLUMNS * PAIRS];

/* Puts rows row0 + 2 pair and the next for one token. */
void finish(Part part, uint row0, uint pair, uint token, vec2 sums, vec2 up)
{
    const uint row = row0 + 2 * pair;
    const float factor = row_factor(token);
    then_stage(row, token, is_gated() ? put_gated(row, token, factor, sums, up) : put(part, row, token, factor, sums));
}

/* One slice: the sums stay in registers. */
void sum_alone(Words w, uint row, uint rows, uint pair, uint n_tokens, out vec2 total[COLUMNS])
{
    const uint n = segment_count();
    segment_sums(w, row, rows, 0, pair, n_tokens, total);
    for (uint s = 1; s < n; s++) {
        vec2 acc[COLUMNS];
        segment_sums(w, row, rows, s, pair, n_tokens, acc);
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            precise vec2 sum = total[c] + acc[c];
            total[c] = sum;
        }
    }
}

void main_alone(uint pair, uint n_tokens)
{
    uint row;
    Part part = part_find(16 * BLOCKS, row);
    vec2 total[COLUMNS], up[COLUMNS];
    sum_alone(part.w, row, part.rows, pair, n_tokens, total);
    if (is_gated()) {
        sum_alone(args.w1, row, args.rows1, pair, n_tokens, up);
    }
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        if (c >= n_tokens) {
            break;
        }
        finish(part, row, pair, c, total[c], up[c]);
    }
}

/* Adds the n segments of a window to `total`, for column c. */
vec2 window_add(uint n, uint c, uint pair, bool first, vec2 total)
{
    precise vec2 sum = first ? sums[c * PAIRS + pair] : total;
    for (uint i = first ? 1 : 0; i < n; i++) {
        sum = sum + sums[(i * COLUMNS + c) * PAIRS + pair];
    }
    return sum;
}

/* Several slices. total[j]: column `slice` + j SLICES. */
const uint OWN = (COLUMNS + SLICES - 1) / SLICES;

void sum_together(Words w, uint row, uint rows, uint slice, uint pair, uint n_tokens, out vec2 total[OWN])
{
    const uint n = segment_count();
    for (uint s0 = 0; s0 < n; s0 += WINDOW) {
        const uint end = min(n - s0, WINDOW);
        if (s0 > 0) {
            barrier();
        }
        for (uint i = slice; i < end; i += SLICES) {
            vec2 acc[COLUMNS];
            segment_sums(w, row, rows, s0 + i, pair, n_tokens, acc);
            [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
                sums[(i * COLUMNS + c) * PAIRS + pair] = acc[c];
            }
        }
        barrier();
        [[unroll]] for (uint j = 0; j < OWN; j++) {
            const uint c = slice + j * SLICES;
            if (c < COLUMNS) {
                total[j] = window_add(end, c, pair, s0 == 0, total[j]);
            }
        }
    }
}

void main_together(uint slice, uint pair, uint n_tokens)
{
    uint row;
    Part part = part_find(16 * BLOCKS, row);
    vec2 total[OWN], up[OWN];
    sum_together(part.w, row, part.rows, slice, pair, n_tokens, total);
    if (is_gated()) {
        barrier();
        sum_together(args.w1, row, args.rows1, slice, pair, n_tokens, up);
    }
    [[unroll]] for (uint j = 0; j < OWN; j++) {
        const uint c = slice + j * SLICES;
        if (c < min(COLUMNS, n_tokens)) {
            finish(part, row, pair, c, total[j], up[j]);
        }
    }
}

void main()
{
    const uint pair = gl_LocalInvocationID.x % PAIRS, slice = gl_LocalInvocationID.x / PAIRS, n_tokens = token_count();
    if (n_tokens == 0) {
        return;
    }
    if (SLICES == 1) {
        main_alone(pair, n_tokens);
    } else {
        main_together(slice, pair, n_tokens);
    }
    if (BLOCKS == 2) {
        then_all(32 * gl_WorkGroupID.x, n_tokens);
    }
}
