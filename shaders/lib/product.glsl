/* What matvec.comp, matmat.comp and matmat_coop.comp share: push constants, parts, and what is done with a finished sum. */
RN_ARGS(RN_ARGS_PRODUCT)

/* One matrix of the dispatch. */
struct Part {
    Words w;
    Floats result, bias;
    uint rows, ld;
    bool has_bias;
};

Part part_get(uint i)
{
    const bool has_bias = (args.flags & RN_PRODUCT_BIAS0 << i) != 0u;
    return i == 0u ? Part(args.w0, args.out0, args.bias0, args.rows0, args.ld0, has_bias) :
           i == 1u ? Part(args.w1, args.out1, args.bias1, args.rows1, args.ld1, has_bias) :
                     Part(args.w2, args.out2, args.bias2, args.rows2, args.ld2, has_bias);
}

/* Part and first matrix row of this workgroup's tile of `tile` rows; those of a part follow the previous part's. */
Part part_find(uint tile, out uint row)
{
    const uint n0 = (args.rows0 + tile - 1) / tile, n1 = (args.rows1 + tile - 1) / tile, at = gl_WorkGroupID.x;
    const uint i = at < n0 ? 0u : at < n0 + n1 ? 1u : 2u;
    row = (i == 0u ? at : i == 1u ? at - n0 : at - n0 - n1) * tile;
    return part_get(i);
}

bool is_gated()
{
    return (args.flags & RN_PRODUCT_GATED) != 0u;
}

/* Rows of tokens. */
uint token_count()
{
    return (args.flags & RN_PRODUCT_WANTED) != 0u ? args.step.n_wanted : args.step.n_rows;
}

float biased(Part p, uint row, float sum)
{
    precise float y = sum;
    if (p.has_bias) {
        y = y + p.bias.v[row];
    }
    return y;
}

float activated(float x)
{
    return (args.flags & RN_PRODUCT_GELU) != 0u ? rn_gelu_tanhf(x) : rn_siluf(x);
}

/* The factor of a token's norm. */
float row_factor(uint token)
{
    return (args.flags & RN_PRODUCT_NORMED) != 0u ? norm_factor(args.d, args.n_groups, token) : 1.0;
}

/* Stores two adjacent rows for one token, of sums without the token's factor. Returns what is stored; rows beyond the matrix are 0. */
vec2 put(Part p, uint row, uint token, float factor, vec2 sums)
{
    precise vec2 normed = sums * factor, stored = vec2(0);
    [[unroll]] for (uint i = 0; i < 2; i++) {
        if (row + i < p.rows) {
            precise float y = biased(p, row + i, normed[i]);
            const uint at = token * p.ld + row + i;
            if ((args.flags & RN_PRODUCT_TIMES) != 0u) {
                y = activated(y) * args.out1.v[token * args.ld1 + row + i];
            }
            if ((args.flags & RN_PRODUCT_ADD) != 0u) {
                y = p.result.v[at] + y;
            }
            p.result.v[at] = y;
            stored[i] = y;
        }
    }
    return stored;
}

vec2 put_gated(uint row, uint token, float factor, vec2 gate, vec2 up)
{
    Part a = part_get(0), b = part_get(1);
    precise vec2 gates = gate * factor, ups = up * factor, stored = vec2(0);
    [[unroll]] for (uint i = 0; i < 2; i++) {
        if (row + i < a.rows) {
            const float x = biased(a, row + i, gates[i]), y = biased(b, row + i, ups[i]);
            precise float z = activated(x) * y;
            a.result.v[token * a.ld + row + i] = z;
            stored[i] = z;
        }
    }
    return stored;
}
