/* Products for many rows of tokens: tiles of 64 matrix rows x 4 TOKENS rows of tokens.
 *
 *   constant 0   tokens of an invocation: 4 for a bucket of 16 rows, else 8
 *   constant 1   invocations: 128
 *   workgroups   (sum over the parts of ceil(rows / 64), ceil(bucket / (4 tokens)), 1); gated: of part 0 alone
 *
 * An invocation takes two adjacent rows of a block of 16 and TOKENS tokens, and keeps two accumulators per output: the segment's (128
 * columns; float weights: 32) and the total, to which it is added. The order is that of matvec.comp, and so are the bits. A segment's
 * activations pass through shared memory; weights are read where they lie, by the four invocations that share them at about the same time. */
#version 450
#extension GL_GOOGLE_include_directive : require

#include "lib/refs.glsl"
#include "lib/fmath.glsl"
#include "lib/norm.glsl"
#include "lib/product.glsl"

layout(constant_id = 0) const uint TOKENS = 8;
layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;

const uint PAIRS = 32;          // of rows: 4 blocks
const uint TILE = 4 * TOKENS;   // tokens of the workgroup

shared float factors[TILE];

#if defined(TYPE_F32) || defined(TYPE_F16) || defined(TYPE_BF16)
/* A segment's activations: 32 floats per token. */
shared uvec4 tile_q[TILE * 8];
#include "lib/weights_float.glsl"

uint segment_count()
{
    return args.n_groups;
}

void tile_load(uint s, uint token0, uint n_tokens)
{
    for (uint i = gl_LocalInvocationID.x; i < 8 * TILE; i += gl_WorkGroupSize.x) {
        tile_q[i] = Words4(args.q).v[(min(token0 + i / 8, n_tokens - 1) * args.n_groups + s) * 8 + i % 8];
    }
}

void segment_sums(Words w, uint row0, uint rows, uint s, uint pair, uint first, out vec2 acc[TOKENS])
{
    const bool is_half = (args.flags & RN_PRODUCT_HALF) != 0u;
    const uint words = row_words(32 * args.n_groups - (is_half ? 16 : 0)), n = is_half && s + 1 == args.n_groups ? 4 : 8;
    const uint a = min(row0 + 2 * pair, rows - 1) * words, b = min(row0 + 2 * pair + 1, rows - 1) * words;
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        acc[t] = vec2(0);
    }
    for (uint i = 0; i < n; i++) {
        const vec4 wa = read_weights(w, a, 8 * s + i), wb = read_weights(w, b, 8 * s + i);
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            acc[t] = columns_add(wa, wb, uintBitsToFloat(tile_q[(first + t) * 8 + i]), acc[t]);
        }
    }
}
#else
#include "lib/dot.glsl"
#include "lib/weights.glsl"

uint segment_count()
{
    return (args.n_groups + 3) / 4;
}

/* A segment's activations, ready to be multiplied: [token][group of the segment]. Groups beyond the last are not there and not used. */
const uint QUADS = ACT_WORDS / 4;
shared uvec4 tile_q[4 * TILE * QUADS];
shared vec2 tile_d[4 * TILE];

void tile_load(uint s, uint token0, uint n_tokens)
{
    for (uint i = gl_LocalInvocationID.x; i < 4 * TILE; i += gl_WorkGroupSize.x) {
        const uint at = min(token0 + i / 4, n_tokens - 1) * args.n_groups + min(4 * s + i % 4, args.n_groups - 1);
        const Acts x = acts_of(Words4(args.q).v[2 * at], Words4(args.q).v[2 * at + 1]);
        [[unroll]] for (uint k = 0; k < QUADS; k++) {
            tile_q[QUADS * i + k] = uvec4(x.x[4 * k], x.x[4 * k + 1], x.x[4 * k + 2], x.x[4 * k + 3]);
        }
        tile_d[i] = args.d.v[at];
    }
}

Acts tile_acts(uint i)
{
    Acts x;
    [[unroll]] for (uint k = 0; k < QUADS; k++) {
        const ivec4 four = ivec4(tile_q[QUADS * i + k]);
        x.x[4 * k] = four.x;
        x.x[4 * k + 1] = four.y;
        x.x[4 * k + 2] = four.z;
        x.x[4 * k + 3] = four.w;
    }
    return x;
}

void segment_sums(Words w, uint row0, uint rows, uint s, uint pair, uint first, out vec2 acc[TOKENS])
{
    // Blocks beyond the matrix are not there: the last one stands for them.
    const uint block = min(row0 / 16 + pair / 8, (rows - 1) / 16) * block_words(args.n_groups), n = min(4, args.n_groups - 4 * s);
    const vec4 super_ = read_super(w, block, 4 * s, pair % 8);
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        acc[t] = vec2(0);
    }
    for (uint j = 0; j < n; j++) {
        Group group;
        read_group(w, block, 4 * s + j, super_, pair % 8, group);
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            const uint at = (first + t) * 4 + j;
            acc[t] = group_add(group, group_dot(group, tile_acts(at)), tile_d[at], acc[t]);
        }
    }
}
#endif

void tile_sums(Words w, uint row0, uint rows, uint pair, uint token0, uint first, uint n_tokens, out vec2 total[TOKENS])
{
    const uint n = segment_count();
    for (uint s = 0; s < n; s++) {
        vec2 acc[TOKENS];
        barrier();
        tile_load(s, token0, n_tokens);
        barrier();
        segment_sums(w, row0, rows, s, pair, first, acc);
        [[unroll]] for (uint t = 0; t < TOKENS; t++) {
            precise vec2 sum = total[t] + acc[t];
            total[t] = s == 0 ? acc[t] : sum;
        }
    }
}

void main()
{
    const uint pair = gl_LocalInvocationID.x % PAIRS, first = gl_LocalInvocationID.x / PAIRS * TOKENS;
    const uint token0 = gl_WorkGroupID.y * TILE, n_tokens = token_count();
    if (token0 >= n_tokens) {
        return; // the whole workgroup
    }
    for (uint i = gl_LocalInvocationID.x; i < min(TILE, n_tokens - token0); i += gl_WorkGroupSize.x) {
        factors[i] = row_factor(token0 + i); // there are barriers before they are used
    }
    uint row0;
    Part part = part_find(64, row0);
    vec2 total[TOKENS], up[TOKENS];
    tile_sums(part.w, row0, part.rows, pair, token0, first, n_tokens, total);
    if (is_gated()) {
        tile_sums(args.w1, row0, args.rows1, pair, token0, first, n_tokens, up);
    }
    const uint row = row0 + 2 * pair;
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const uint token = token0 + first + t;
        if (token < n_tokens) {
            if (is_gated()) {
                put_gated(row, token, factors[first + t], total[t], up[t]);
            } else {
                put(part, row, token, factors[first + t], total[t]);
            }
        }
    }
}
