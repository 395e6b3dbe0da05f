/* RN_PRODUCT_THEN_QUANT: a mat-vec's workgroup of 32 rows of a matrix makes one group of the next product's input, as prepare.comp would do
 * in a dispatch of its own, with the same bits. */

shared float then_rows[BLOCKS == 1 ? 1 : 32 * COLUMNS]; // what was put, [token][row]; rows beyond the matrix are 0

void then_stage(uint row, uint token, vec2 y)
{
    if (BLOCKS == 2) {
        then_rows[token * 32 + row % 32] = y.x;
        then_rows[token * 32 + row % 32 + 1] = y.y;
    }
}

vec4 then_row(uint token, uint i)
{
    const uint at = token * 32 + 4 * i;
    return vec4(then_rows[at], then_rows[at + 1], then_rows[at + 2], then_rows[at + 3]);
}

/* Columns 4 i .. 4 i + 3 of the group, times the weights of the norm. */
vec4 then_weighed(uint token, uint group, uint i)
{
    precise vec4 y = then_row(token, i);
    const uint column = 32 * group + 4 * i;
    if ((args.flags & RN_PRODUCT_THEN_NORM) != 0u) {
        [[unroll]] for (uint k = 0; k < 4; k++) {
            y[k] = column + k < args.rows0 ? y[k] * args.bias2.v[column + k] : 0.0;
        }
    }
    return y;
}

/* Word `word` of the group, and by the first invocations of eight what the group has once. */
void then_quantise(uint token, uint group, uint word)
{
    const uint n_groups = (args.rows0 + 31) / 32, at = token * n_groups + group;
    Pairs d = Pairs(args.out2);
    vec4 y[8];
    float amax = 0.0;
    [[unroll]] for (uint i = 0; i < 8; i++) {
        y[i] = then_weighed(token, group, i);
        amax = max(amax, quant_largest(y[i]));
    }
    args.w2.v[8 * at + word] = quant_word(quant_codes(then_weighed(token, group, word), amax));
    if (word == 0u) {
        int total = 0;
        [[unroll]] for (uint i = 0; i < 8; i++) {
            total += quant_total(quant_codes(y[i], amax));
        }
        d.v[at] = quant_scale(amax, total);
    }
    if (word == 1u && (args.flags & RN_PRODUCT_THEN_NORM) != 0u) {
        precise float square = norm_square(then_row(token, 0));
        [[unroll]] for (uint i = 1; i < 8; i++) {
            square = square + norm_square(then_row(token, i));
        }
        norm_put_share(d, n_groups, token, group, square, args.rows0, uintBitsToFloat(args.rows2));
    }
}

/* All invocations call it, when all rows of the workgroup are staged. */
void then_all(uint row0, uint n_tokens)
{
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < 8 * n_tokens; i += gl_WorkGroupSize.x) {
        then_quantise(i / 8, row0 / 32, i % 8);
    }
}
