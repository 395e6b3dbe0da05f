/* matvec.comp's inner loop: one segment of two adjacent rows for all COLUMNS, summed up from 0 in ascending order. */
#if defined(TYPE_F32) || defined(TYPE_F16) || defined(TYPE_BF16)
#include "weights_float.glsl"

uint segment_count()
{
    return args.n_groups;
}

void segment_sums(Words w, uint row0, uint rows, uint s, uint pair, uint n_tokens, out vec2 acc[COLUMNS])
{
    const bool is_half = (args.flags & RN_PRODUCT_HALF) != 0u;
    const uint words = row_words(32 * args.n_groups - (is_half ? 16 : 0)), n = is_half && s + 1 == args.n_groups ? 4 : 8;
    // Rows beyond the matrix are not there: the last one stands for them.
    const uint a = min(row0 + 2 * pair, rows - 1) * words, b = min(row0 + 2 * pair + 1, rows - 1) * words;
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        acc[c] = vec2(0);
    }
    for (uint i = 8 * s; i < 8 * s + n; i++) {
        const vec4 wa = read_weights(w, a, i), wb = read_weights(w, b, i);
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            const vec4 x = Floats4(args.q).v[min(c, n_tokens - 1) * args.n_groups * 8 + i];
            acc[c] = columns_add(wa, wb, x, acc[c]);
        }
    }
}
#else
#include "dot.glsl"
#include "weights.glsl"

uint segment_count()
{
    return (args.n_groups + 3) / 4;
}

void segment_sums(Words w, uint row0, uint rows, uint s, uint pair, uint n_tokens, out vec2 acc[COLUMNS])
{
    // Blocks beyond the matrix are not there: the last one stands for them.
    const uint block = min(row0 / 16 + pair / 8, (rows - 1) / 16) * block_words(args.n_groups), end = min(4 * s + 4, args.n_groups);
    const vec4 super_ = read_super(w, block, 4 * s, pair % 8);
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        acc[c] = vec2(0);
    }
    for (uint g = 4 * s; g < end; g++) {
        Group group;
        read_group(w, block, g, super_, pair % 8, group);
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            const uint at = min(c, n_tokens - 1) * args.n_groups + g;
            const vec2 d = args.d.v[at];
            const Acts x = acts_of(Words4(args.q).v[2 * at], Words4(args.q).v[2 * at + 1]);
            acc[c] = group_add(group, group_dot(group, x), d, acc[c]);
        }
    }
}
#endif
