/* out[row] = row step.id[row] of w, dequantised, times scale.
 *
 *   constant 1   invocations: 32; one takes 32 columns of a row
 *   workgroups   (ceil(ceil(cols / 32) / 32), bucket, 1)
 *
 * Columns from cols to the next multiple of 32 are set to 0 (ld has room for them). */
#version 450
#extension GL_GOOGLE_include_directive : require

#include "lib/refs.glsl"
#include "lib/fmath.glsl"

layout(local_size_x_id = 1, local_size_y = 1, local_size_z = 1) in;
#define out result // a word of GLSL
RN_ARGS(RN_ARGS_EMBED)
#undef out

#if defined(TYPE_F32) || defined(TYPE_F16) || defined(TYPE_BF16)
#include "lib/weights_float.glsl"

void put_group(uint id, uint g, uint at)
{
    const uint row = id * row_words((args.cols + 15) / 16 * 16);
    [[unroll]] for (uint i = 0; i < 8; i++) {
        const uint column = 32 * g + 4 * i;
        precise vec4 y = vec4(0);
        if (column < args.cols) {
            y = read_weights(args.w, row, 8 * g + i) * args.scale; // padding of the row is 0
        }
        Floats4(args.result).v[at / 4 + i] = y;
    }
}
#else
#define BYTES
#include "lib/dot.glsl"
#include "lib/weights.glsl"

/* A column of both rows of the group. */
vec2 value(Group w, uint column)
{
    const ivec2 q = bitfieldExtract(w.q[column / 4], int(column % 4) * 8, 8);
#ifdef HAS_SUBS
    precise vec2 y = vec2(q) * (w.d * vec2(column < 16 ? w.sub0 : w.sub1));
#else
    precise vec2 y = vec2(q) * w.d;
#endif
#ifdef HAS_MIN
    y = y + w.m;
#endif
    return y;
}

void put_group(uint id, uint g, uint at)
{
    const uint block = id / 16 * block_words(args.cols / 32), pair = id % 16 / 2;
    Group group;
    read_group(args.w, block, g, read_super(args.w, block, g, pair), pair, group);
    [[unroll]] for (uint c = 0; c < 32; c++) {
        const vec2 both = value(group, c);
        precise float y = (id % 2 == 0 ? both.x : both.y) * args.scale;
        args.result.v[at + c] = y;
    }
}
#endif

void main()
{
    const uint g = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (row < args.step.n_rows && 32 * g < args.cols) {
        put_group(args.step.id[row], g, row * args.ld + 32 * g);
    }
}
