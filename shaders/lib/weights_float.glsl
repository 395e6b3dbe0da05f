/* Float weights: row-major, each row padded to 16 columns. -DTYPE_F32, TYPE_F16 or TYPE_BF16. */

/* Words of a row. columns: a multiple of 16. */
uint row_words(uint columns)
{
#ifdef TYPE_F32
    return columns;
#else
    return columns / 2;
#endif
}

/* Columns 4 i .. 4 i + 3 of the row that starts at word `row` (a multiple of 8). */
vec4 read_weights(Words w, uint row, uint i)
{
#if defined(TYPE_F32)
    return Floats4(w).v[row / 4 + i];
#else
    const uvec2 both = Words2(w).v[row / 2 + i];
#if defined(TYPE_F16)
    return vec4(rn_halves(both.x), rn_halves(both.y));
#elif defined(TYPE_BF16)
    return uintBitsToFloat(uvec4(both.x << 16, both.x & 0xffff0000u, both.y << 16, both.y & 0xffff0000u));
#endif
#endif
}

/* Four columns of two rows, ascending. */
vec2 columns_add(vec4 a, vec4 b, vec4 x, vec2 acc)
{
    precise vec2 sum = acc;
    [[unroll]] for (uint i = 0; i < 4; i++) {
        sum = fma(vec2(a[i], b[i]), vec2(x[i]), sum);
    }
    return sum;
}
