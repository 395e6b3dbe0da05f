/* What a product reads: rows of x, normed, added to another value, weighed, as floats and quantised, as the flags RN_PREPARE_* say.
 *
 *   constant 1   invocations: 256 at most, a multiple of 32
 *   workgroups   (bucket, shares of a row, 1). Shares: 1 with NORM, which adds up the whole row, else ceil(n_groups / 32)
 *
 * NORM: x / sqrt(mean(x^2) + eps) * norm as (x * r) * norm. The sum of squares has 32 virtual lanes (element i goes to lane i mod 32,
 * ascending, by fma); all invocations bring x to shared memory, 32 add up. WEIGH: lib/norm.glsl. Quantisation: lib/quant.glsl. Four columns to
 * an invocation; those from width to 32 n_groups count as 0. */
#version 450
#extension GL_GOOGLE_include_directive : require

#define LANE_SUMS 1
#include "lib/refs.glsl"
#include "lib/fmath.glsl"
#include "lib/norm.glsl"
#include "lib/quant.glsl"

layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;
#define out result // a word of GLSL
RN_ARGS(RN_ARGS_PREPARE)
#undef out

const uint STAGE = 2048;                // floats of x on their way
const uint WORDS = 256;                 // per pass: one per invocation

shared float stage[STAGE];
shared float maxima[WORDS], squares[WORDS];
shared int totals[WORDS];

bool has(uint flag)
{
    return (args.flags & flag) != 0u;
}

float whole_factor(uint from)
{
    const uint lane = gl_LocalInvocationID.x;
    precise float sum = 0.0;
    for (uint base = 0; base < args.width; base += STAGE) {
        const uint n = min(args.width - base, STAGE);
        for (uint i = lane; i < n; i += gl_WorkGroupSize.x) {
            stage[i] = args.x.v[from + base + i];
        }
        barrier();
        if (lane < 32u) {
            for (uint i = lane; i < n; i += 32) { // STAGE is a multiple of 32
                sum = fma(stage[i], stage[i], sum);
            }
        }
        barrier();
    }
    sum = rn_lane_sum(0, lane, sum);
    precise float r = 1.0 / sqrt(sum / float(args.width) + args.eps);
    return r;
}

/* Four floats of v from `at` on, of which those from column c on that the row has count. */
vec4 read_columns(Floats v, uint at, uint c)
{
    if (c + 3 < args.width) {
        return Floats4(v).v[at / 4];
    }
    vec4 y = vec4(0);
    for (uint i = 0; i < 4 && c + i < args.width; i++) {
        y[i] = v.v[at + i];
    }
    return y;
}

/* Columns c .. c + 3 of the row, normed and added up. */
vec4 row_columns(uint row, uint from, uint c, float r)
{
    precise vec4 y = read_columns(args.x, from + c, c);
    if (has(RN_PREPARE_NORM)) {
        y = y * r * read_columns(args.norm, c, c);
    }
    if (has(RN_PREPARE_ADD)) {
        const uint at = (row * args.ld_sum + c) / 4;
        y = Floats4(args.sum).v[at] + y;
        Floats4(args.sum).v[at] = y;
    }
    return y;
}

/* Words 8 k .. 8 k + 7 are a group, `group` of the row; x is what is weighed, y what that makes. All invocations call it; `used`: this one has
 * a word. */
void put_group(uint word, bool used, vec4 x, vec4 y, uint row, uint group)
{
    const uint first = word & ~7u, at = row * args.n_groups + group;
    maxima[word] = quant_largest(y);
    barrier();
    float amax = 0.0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        amax = max(amax, maxima[first + i]);
    }
    const ivec4 q = quant_codes(y, amax);
    totals[word] = quant_total(q);
    squares[word] = norm_square(x); // not before: of the groups before they may still be read
    barrier();
    if (!used) {
        return;
    }
    if (has(RN_PREPARE_QUANT)) {
        args.q.v[at * 8 + word % 8] = quant_word(q);
    }
    if (word == first && has(RN_PREPARE_QUANT)) {
        int total = 0;
        [[unroll]] for (uint i = 0; i < 8; i++) {
            total += totals[word + i];
        }
        args.d.v[at] = quant_scale(amax, total);
    }
    if (word == first && has(RN_PREPARE_WEIGH)) {
        precise float square = squares[word];
        [[unroll]] for (uint i = 1; i < 8; i++) {
            square = square + squares[word + i];
        }
        norm_put_share(args.d, args.n_groups, row, group, square, args.width, args.eps_next);
    }
}

void main()
{
    const uint row = gl_WorkGroupID.x, n_rows = has(RN_PREPARE_WANTED) ? args.step.n_wanted : args.step.n_rows;
    if (row >= n_rows) {
        return;
    }
    const uint from = (has(RN_PREPARE_WANTED) ? args.step.wanted[row] : row) * args.ld_x;
    const float r = has(RN_PREPARE_NORM) ? whole_factor(from) : 1.0;
    const uint n_words = args.n_groups * 8, share = (args.n_groups + gl_NumWorkGroups.y - 1) / gl_NumWorkGroups.y * 8;
    const uint first = gl_WorkGroupID.y * share, end = min(first + share, n_words);
    const uint word = gl_LocalInvocationID.x;
    for (uint base = first; base < end; base += gl_WorkGroupSize.x) {
        const uint i = base + word;
        const bool used = i < end;
        vec4 x = vec4(0);
        if (used) {
            x = row_columns(row, from, 4 * i, r);
        }
        precise vec4 y = x;
        if (used && has(RN_PREPARE_WEIGH)) {
            y = x * read_columns(args.next, 4 * i, 4 * i);
        }
        if (used && has(RN_PREPARE_FLOATS)) {
            Floats4(args.result).v[row * args.ld_out / 4 + i] = y;
        }
        if (has(RN_PREPARE_QUANT | RN_PREPARE_WEIGH)) {
            put_group(word, used, x, y, row, i / 8);
        }
    }
}
