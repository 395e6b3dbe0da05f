/* Adds the partial sums of a tile's chunks in order and divides by the sum of the weights: the second half of attention in split mode.
 *
 * Specialisation constants: none. Workgroup: 64. Dispatch: (n_tiles, n_heads), n_tiles by an indirect count.
 * With RN_COMBINE_QUANT the result is quantised too, which saves a product its prepare.comp.
 * An invocation has two dimensions of a row's head and goes through the chunks by itself; loads of several chunks are in flight at once. */
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/refs.glsl"
#include "lib/fmath.glsl"
#include "lib/partial.glsl"
#include "lib/quant.glsl"

layout(local_size_x = 64) in;

#define out result // a word of GLSL
RN_ARGS(RN_ARGS_COMBINE);
#undef out

shared float maxima[64];
shared ivec2 codes[64];

const uint AHEAD = 8; // chunks loaded before the first of them is added: hides the latency of 8 x 2 loads

vec2 sum_of_chunks(Tile tile, uint row, uint column, uint head, inout float m, inout float l)
{
    Pairs from = Pairs(args.partial);
    const uint pairs = args.head_dim / 2 + 1;
    vec2 o = vec2(0.0);
    for (uint c0 = 0; c0 < tile.n_chunks; c0 += AHEAD) {
        vec2 ml[AHEAD], o1[AHEAD];
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uint place = tile.partial0 + min(c0 + i, tile.n_chunks - 1) * tile.n_rows + row;
            const uint at = (place * args.n_heads + head) * pairs;
            ml[i] = from.v[at];
            o1[i] = from.v[at + 1 + column];
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            if (c0 + i < tile.n_chunks) {
                const Weights w = rn_partial_add(m, l, ml[i].x, ml[i].y);
                o = vec2(rn_partial_sum(w, o.x, o1[i].x), rn_partial_sum(w, o.y, o1[i].y));
            }
        }
    }
    return o;
}

/* rn_quant_act of the group that 16 adjacent invocations have two dimensions of each; `at` is its number. As prepare.comp does it. */
void quantise(bool used, vec2 y, uint at)
{
    const uint inv = gl_LocalInvocationIndex, first = inv & ~15u;
    maxima[inv] = used ? max(abs(y.x), abs(y.y)) : 0.0;
    barrier();
    float amax = 0.0;
    for (uint i = 0; i < 16; i++) {
        amax = max(amax, maxima[first + i]);
    }
    const ivec2 q = quant_codes(vec4(y, 0, 0), amax).xy;
    codes[inv] = q;
    barrier();
    if (used && inv % 2 == 0) {
        args.q.v[at * 8 + inv % 16 / 2] = quant_word(ivec4(q, codes[inv + 1]));
    }
    if (used && inv == first) {
        int total = 0;
        for (uint i = 0; i < 16; i++) {
            total += codes[first + i].x + codes[first + i].y;
        }
        args.d.v[at] = quant_scale(amax, total);
    }
}

void main()
{
    const Tile tile = args.tiles.v[gl_WorkGroupID.x];
    const uint head = gl_WorkGroupID.y, columns = args.head_dim / 2, n = tile.n_rows * columns;
    const bool sinks = (args.flags & RN_ATTEND_SINKS) != 0;
    Pairs to = Pairs(args.result);
    for (uint base = 0; base < n; base += gl_WorkGroupSize.x) {
        const uint i = base + gl_LocalInvocationIndex, row = i / columns, column = i % columns;
        precise vec2 value = vec2(0.0);
        if (i < n) {
            float m = 0.0, l = 0.0;
            const vec2 o = sum_of_chunks(tile, row, column, head, m, l);
            value = o * rn_partial_end(m, l, sinks, sinks ? args.sinks.v[head] : 0.0);
            to.v[((tile.row0 + row) * args.ld_out + head * args.head_dim) / 2 + column] = value;
        }
        if ((args.flags & RN_COMBINE_QUANT) != 0) {
            quantise(i < n, value, ((tile.row0 + row) * args.ld_out + head * args.head_dim) / 32 + column / 16);
        }
    }
}
