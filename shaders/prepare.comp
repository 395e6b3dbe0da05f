/* What a product reads: rows of x, normed (RN_PREPARE_NORM), quantised (QUANT) and/or as floats (FLOATS, ADD).
 *
 *   constant 1   invocations: 256
 *   workgroups   (bucket, shares of a row, 1). Shares: 1 where out is x or with ADD and NORM (a share would norm what another has
 *                changed already), else as many as pay: with NORM each adds up the whole row; without, ceil(n_groups / 32)
 *
 * Norm: x / sqrt(mean(x^2) + eps) * norm as (x * r) * norm. The sum of squares has 32 virtual lanes (element i goes to lane i mod 32,
 * ascending, by fma); all invocations bring x to shared memory, 32 add up. Quantisation: rn_quant_act (runtime/tensor/quant.h), four columns
 * to an invocation; maximum and sum of a group are the same in any order. Columns from width to 32 n_groups count as 0. With ADD, q and d
 * are of what is added. */
#version 450
#extension GL_GOOGLE_include_directive : require

#define LANE_SUMS 1
#include "lib/refs.glsl"
#include "lib/fmath.glsl"

layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;
#define out result // a word of GLSL
RN_ARGS(RN_ARGS_PREPARE)
#undef out

const uint STAGE = 2048;                // floats of x on their way
const uint WORDS = 256;                 // per pass: one per invocation at most
const float AMAX_MIN = 7.8886090522101181e-31; // 2^-100, see rn_quant_act

shared float stage[STAGE];
shared float maxima[WORDS];
shared int totals[WORDS];

bool has(uint flag)
{
    return (args.flags & flag) != 0u;
}

float row_factor(uint from)
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

/* Columns c .. c + 3 of the row, normed. */
vec4 read_columns(uint from, uint c, float r)
{
    precise vec4 y = vec4(0);
    if (c + 3 < args.width) {
        y = Floats4(args.x).v[(from + c) / 4];
        if (has(RN_PREPARE_NORM)) {
            y = y * r * Floats4(args.norm).v[c / 4];
        }
        return y;
    }
    for (uint i = 0; i < 4 && c + i < args.width; i++) {
        y[i] = args.x.v[from + c + i];
        if (has(RN_PREPARE_NORM)) {
            y[i] = y[i] * r * args.norm.v[c + i];
        }
    }
    return y;
}

/* `word` of WORDS: words 8 k .. 8 k + 7 are a group, the one at `at` in q and d. All invocations call it; `used`: this one has a word. */
void quantise(uint word, bool used, vec4 y, uint group, uint at)
{
    const vec4 a = abs(y);
    maxima[word] = max(max(a.x, a.y), max(a.z, a.w));
    barrier();
    float amax = 0.0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        amax = max(amax, maxima[(word & ~7u) + i]);
    }
    precise float inverse = 127.0 / amax;
    precise vec4 scaled = y * inverse;
    const ivec4 q = amax < AMAX_MIN ? ivec4(0) : ivec4(roundEven(scaled));
    totals[word] = q.x + q.y + q.z + q.w;
    barrier();
    if (used) {
        args.q.v[at * 8 + word % 8] = uint(q.x & 255 | (q.y & 255) << 8 | (q.z & 255) << 16 | q.w << 24);
        if (word % 8 == 0) {
            int total = 0;
            [[unroll]] for (uint i = 0; i < 8; i++) {
                total += totals[word + i];
            }
            precise float d = amax < AMAX_MIN ? 0.0 : amax / 127.0;
            precise float sum = float(total) * d;
            args.d.v[at] = vec2(d, sum);
        }
    }
}

void put_floats(uint to, uint c, vec4 y)
{
    precise vec4 z = y;
    if (has(RN_PREPARE_ADD)) {
        z = Floats4(args.result).v[(to + c) / 4] + z;
    }
    Floats4(args.result).v[(to + c) / 4] = z;
}

void main()
{
    const uint row = gl_WorkGroupID.x, n_rows = has(RN_PREPARE_WANTED) ? args.step.n_wanted : args.step.n_rows;
    if (row >= n_rows) {
        return;
    }
    const uint from = (has(RN_PREPARE_WANTED) ? args.step.wanted[row] : row) * args.ld_x, to = row * args.ld_out;
    const float r = has(RN_PREPARE_NORM) ? row_factor(from) : 1.0;
    const uint n_words = args.n_groups * 8, share = (args.n_groups + gl_NumWorkGroups.y - 1) / gl_NumWorkGroups.y * 8;
    const uint first = gl_WorkGroupID.y * share, end = min(first + share, n_words);
    const uint step_ = min(gl_WorkGroupSize.x, WORDS), word = gl_LocalInvocationID.x;
    for (uint base = first; base < end; base += step_) {
        const uint i = base + word;
        const bool used = i < end && word < step_;
        vec4 y = vec4(0);
        if (used) {
            y = read_columns(from, 4 * i, r);
        }
        if (used && has(RN_PREPARE_FLOATS | RN_PREPARE_ADD)) {
            put_floats(to, 4 * i, y);
        }
        if (has(RN_PREPARE_QUANT)) {
            quantise(min(word, WORDS - 1), used, y, i / 8, row * args.n_groups + i / 8);
        }
    }
}
