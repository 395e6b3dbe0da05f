/* Products for many rows of tokens on cooperative matrices: tiles of 64 matrix rows x TOKENS rows of tokens.
 *
 *   constant 0      TOKENS: 16, 32 or 64, a multiple of N
 *   constant 1      invocations: 64 / M subgroups, full ones
 *   constants 3..5  M, N, K: the device's shape of int8 x int8 -> int32; M is 8, 16 or 32, N 8 or 16, K 8, 16 or 32
 *   workgroups      (sum over the parts of ceil(rows / 64), ceil(bucket / TOKENS), 1); gated: of part 0 alone
 *
 * A subgroup takes M rows and all tokens. A group of 32 columns is one integer product per M x N outputs, exact; it is scaled and added up
 * where it lies, in an order that is matvec.comp's, and so are the bits. Which invocation holds which output is the driver's secret, but it
 * is the same in all matrices of one type. So scales are loaded as such matrices, by a stride of 0, and a sum of floats is one whose
 * elements are the floats' bits: two per output, the segment's and the total. */
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#define BYTES
#include "lib/refs.glsl"
#include "lib/fmath.glsl"
#include "lib/norm.glsl"
#include "lib/product.glsl"
#include "lib/dot.glsl"
#include "lib/weights.glsl"

layout(constant_id = 0) const uint TOKENS = 64;
layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;
layout(constant_id = 3) const uint M = 16;
layout(constant_id = 4) const uint N = 16;
layout(constant_id = 5) const uint K = 32;

const uint ROWS = 64, PAIRS = ROWS / 2;
const uint TILES = TOKENS / N; // of a subgroup
const uint STAGE = 2;          // groups in shared memory at a time

#define WEIGHTS coopmat<int8_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define ACTS coopmat<int8_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define SUMS coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

/* A group of a row of weights or of a token is four vectors of 8 columns; two more keep rows apart in the banks of shared memory. With
 * factors per 16 columns the halves are products of their own: zeros between them let a product of 32 columns see one half. */
const uint UNIT = 6, WEIGHTS_AT = 0, ACTS_AT = STAGE * ROWS * UNIT;
#ifdef HAS_SUBS
const uint PRODUCTS = K < 32 ? 32 / K : 2, SECOND_HALF = 4;
#else
const uint PRODUCTS = 32 / K, SECOND_HALF = 2;
#endif

/* Weights, then activations of a stage; later the sums of 64 rows x N tokens, twice. Matrices are loaded from places aligned to 16 bytes,
 * so what is shared has sizes that are multiples of that. */
shared uvec2 tile[STAGE * (ROWS + 64) * UNIT];
/* Bits of scales: per group of the stage and row d, then m or both factors; per group and token d, then d * sum. */
shared int row_scales[STAGE * 3 * ROWS];
shared int token_scales[STAGE * 2 * 64];
shared float factors[64]; // of the tokens' norms

void put_row(uint j, uint row, ivec2 q[ACT_WORDS], uint i)
{
    const uint at = WEIGHTS_AT + (j * ROWS + row) * UNIT;
    [[unroll]] for (uint k = 0; k < 2; k++) {
        tile[at + k] = uvec2(q[2 * k][i], q[2 * k + 1][i]);
        tile[at + SECOND_HALF + k] = uvec2(q[2 * k + 4][i], q[2 * k + 5][i]);
#ifdef HAS_SUBS
        tile[at + 2 + k] = uvec2(0);
#endif
    }
}

void load_weights(Words w, uint row0, uint rows, uint g0)
{
    for (uint i = gl_LocalInvocationID.x; i < STAGE * PAIRS; i += gl_WorkGroupSize.x) {
        const uint pair = i % PAIRS, j = i / PAIRS, g = min(g0 + j, args.n_groups - 1);
        // Blocks beyond the matrix are not there: the last one stands for them.
        const uint block = min(row0 / 16 + pair / 8, (rows - 1) / 16) * block_words(args.n_groups);
        Group group;
        read_group(w, block, g, read_super(w, block, g, pair % 8), pair % 8, group);
        [[unroll]] for (uint k = 0; k < 2; k++) {
            const uint at = j * 3 * ROWS + 2 * pair + k;
            put_row(j, 2 * pair + k, group.q, k);
            row_scales[at] = floatBitsToInt(group.d[k]);
#if defined(HAS_MIN)
            row_scales[at + ROWS] = floatBitsToInt(group.m[k]);
#elif defined(HAS_SUBS)
            row_scales[at + ROWS] = group.sub0[k];
            row_scales[at + 2 * ROWS] = group.sub1[k];
#endif
        }
    }
}

void load_acts(uint token0, uint n_tokens, uint g0)
{
    for (uint i = gl_LocalInvocationID.x; i < STAGE * TOKENS; i += gl_WorkGroupSize.x) {
        const uint token = i / STAGE, j = i % STAGE;
        const uint from = min(token0 + token, n_tokens - 1) * args.n_groups + min(g0 + j, args.n_groups - 1);
        const uint at = ACTS_AT + (j * TOKENS + token) * UNIT;
        [[unroll]] for (uint k = 0; k < 2; k++) {
            const uvec4 q = Words4(args.q).v[2 * from + k];
            tile[at + 2 * k] = q.xy;
            tile[at + 2 * k + 1] = q.zw;
        }
        const ivec2 d = floatBitsToInt(args.d.v[from]);
        token_scales[j * 2 * TOKENS + token] = d.x;
        token_scales[(j * 2 + 1) * TOKENS + token] = d.y;
    }
}

/* ---- a group of M rows and N tokens -------------------------------------------------------------------------------------------------- */

/* Where product p's columns begin within a group. */
uint weights_step(uint p)
{
#ifdef HAS_SUBS
    return K == 32 ? 2 * p : p / (PRODUCTS / 2) * SECOND_HALF + p % (PRODUCTS / 2) * (K / 8);
#else
    return p * (K / 8);
#endif
}

uint acts_step(uint p)
{
    return K == 32 ? 0 : p * (K / 8);
}

struct Rows { // a group's
    WEIGHTS q[PRODUCTS];
    SUMS d, m, sub0, sub1;
};

void load_rows(uint j, uint first, out Rows w)
{
    const uint at = j * 3 * ROWS + first;
    [[unroll]] for (uint p = 0; p < PRODUCTS; p++) {
        coopMatLoad(w.q[p], tile, WEIGHTS_AT + (j * ROWS + first) * UNIT + weights_step(p), UNIT, gl_CooperativeMatrixLayoutRowMajor);
    }
    coopMatLoad(w.d, row_scales, at, 0, gl_CooperativeMatrixLayoutColumnMajor);
#if defined(HAS_MIN)
    coopMatLoad(w.m, row_scales, at + ROWS, 0, gl_CooperativeMatrixLayoutColumnMajor);
#elif defined(HAS_SUBS)
    coopMatLoad(w.sub0, row_scales, at + ROWS, 0, gl_CooperativeMatrixLayoutColumnMajor);
    coopMatLoad(w.sub1, row_scales, at + 2 * ROWS, 0, gl_CooperativeMatrixLayoutColumnMajor);
#endif
}

SUMS integers(Rows w, uint j, uint token)
{
    SUMS sums[2];
    sums[0] = sums[1] = SUMS(0);
    [[unroll]] for (uint p = 0; p < PRODUCTS; p++) {
        ACTS x;
        coopMatLoad(x, tile, ACTS_AT + (j * TOKENS + token) * UNIT + acts_step(p), UNIT, gl_CooperativeMatrixLayoutColumnMajor);
#ifdef HAS_SUBS
        const uint half_ = p / (PRODUCTS / 2);
        sums[half_] = coopMatMulAdd(w.q[p], x, sums[half_]);
    }
    return w.sub0 * sums[0] + w.sub1 * sums[1];
#else
        sums[0] = coopMatMulAdd(w.q[p], x, sums[0]);
    }
    return sums[0];
#endif
}

/* group_add of lib/weights.glsl, for all outputs. */
void add_group(Rows w, uint j, uint token, inout SUMS acc)
{
    const SUMS isum = integers(w, j, token);
    SUMS d, d_sum;
    coopMatLoad(d, token_scales, j * 2 * TOKENS + token, 0, gl_CooperativeMatrixLayoutRowMajor);
#ifdef HAS_MIN
    coopMatLoad(d_sum, token_scales, (j * 2 + 1) * TOKENS + token, 0, gl_CooperativeMatrixLayoutRowMajor);
#endif
    for (uint i = 0; i < acc.length(); i++) {
        precise float scale = intBitsToFloat(w.d[i]) * intBitsToFloat(d[i]);
        precise float sum = fma(float(isum[i]), scale, intBitsToFloat(acc[i]));
#ifdef HAS_MIN
        sum = fma(intBitsToFloat(d_sum[i]), intBitsToFloat(w.m[i]), sum);
#endif
        acc[i] = floatBitsToInt(sum);
    }
}

void add_segment(SUMS acc, bool is_first, inout SUMS total)
{
    for (uint i = 0; i < acc.length(); i++) {
        precise float sum = intBitsToFloat(total[i]) + intBitsToFloat(acc[i]);
        total[i] = is_first ? acc[i] : floatBitsToInt(sum);
    }
}

/* ---- all groups ---------------------------------------------------------------------------------------------------------------------- */

void tile_sums(Words w, uint row0, uint rows, uint token0, uint n_tokens, out SUMS total[TILES])
{
    const uint first = gl_SubgroupID * M;
    SUMS acc[TILES];
    for (uint g0 = 0; g0 < args.n_groups; g0 += STAGE) {
        barrier();
        load_weights(w, row0, rows, g0);
        load_acts(token0, n_tokens, g0);
        barrier();
        if (g0 % 4 == 0) {
            [[unroll]] for (uint t = 0; t < TILES; t++) {
                acc[t] = SUMS(0);
            }
        }
        for (uint j = 0; j < min(STAGE, args.n_groups - g0); j++) {
            Rows group;
            load_rows(j, first, group);
            [[unroll]] for (uint t = 0; t < TILES; t++) {
                if (token0 + t * N < n_tokens) {
                    add_group(group, j, t * N, acc[t]);
                }
            }
        }
        if (g0 % 4 == 4 - STAGE || g0 + STAGE >= args.n_groups) {
            [[unroll]] for (uint t = 0; t < TILES; t++) {
                add_segment(acc[t], g0 < 4, total[t]);
            }
        }
    }
}

/* ---- results: N tokens at a time through shared memory ------------------------------------------------------------------------------- */

/* Sums of a pair of rows and a token; i: 0 with gates, 1. */
vec2 sums_get(uint i, uint pair, uint token)
{
    return uintBitsToFloat(tile[(i * N + token) * PAIRS + pair]);
}

void sums_put(uint i, SUMS sums)
{
    coopMatStore(sums, tile, i * N * PAIRS + gl_SubgroupID * (M / 2), PAIRS, gl_CooperativeMatrixLayoutColumnMajor);
}

/* Tokens from token0 + at on. */
void put_all(Part part, uint row0, uint token0, uint at, uint n_tokens)
{
    for (uint i = gl_LocalInvocationID.x; i < N * PAIRS; i += gl_WorkGroupSize.x) {
        const uint pair = i % PAIRS, of_tile = i / PAIRS, token = token0 + at + of_tile, row = row0 + 2 * pair;
        if (token < n_tokens) {
            const float factor = factors[at + of_tile];
            if (is_gated()) {
                put_gated(row, token, factor, sums_get(0, pair, of_tile), sums_get(1, pair, of_tile));
            } else {
                put(part, row, token, factor, sums_get(1, pair, of_tile));
            }
        }
    }
}

void main()
{
    const uint token0 = gl_WorkGroupID.y * TOKENS, n_tokens = token_count();
    if (token0 >= n_tokens) {
        return; // the whole workgroup
    }
    for (uint i = gl_LocalInvocationID.x; i < min(TOKENS, n_tokens - token0); i += gl_WorkGroupSize.x) {
        factors[i] = row_factor(token0 + i); // there are barriers before they are used
    }
    uint row0;
    Part part = part_find(ROWS, row0);
    SUMS total[TILES], gate[TILES];
    for (uint i = is_gated() ? 0 : 1; i < 2; i++) { // one call, for it is long
        Words w = part.w;
        if (is_gated() && i == 1) {
            w = args.w1;
            [[unroll]] for (uint t = 0; t < TILES; t++) {
                gate[t] = total[t];
            }
        }
        tile_sums(w, row0, part.rows, token0, n_tokens, total);
    }
    [[unroll]] for (uint t = 0; t < TILES; t++) {
        barrier();
        if (is_gated()) {
            sums_put(0, gate[t]);
        }
        sums_put(1, total[t]);
        barrier();
        put_all(part, row0, token0, t * N, n_tokens);
    }
}
