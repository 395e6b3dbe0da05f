/* How partial sums of attention, (m, l, o) of one query and one chunk, are added in order: runtime/cpu/kernels.h, rn_attn_combine_fn. Both
 * modes of attention do it by these functions, so they give the same bits. Needs lib/fmath.glsl. */

struct Weights {
    float a, b;  /* o = fma(o, a, o1 * b) */
    bool skip;   /* the chunk adds nothing */
    bool first;  /* o = o1 */
};

/* Adds m1, l1 to the running m, l, and says how to add o1 to o. */
Weights rn_partial_add(inout float m, inout float l, float m1, float l1)
{
    Weights w = Weights(0.0, 0.0, l1 == 0.0, l == 0.0);
    if (w.skip) {
        return w;
    }
    if (w.first) {
        m = m1;
        l = l1;
        return w;
    }
    precise float top = max(m, m1), below = m - top, below1 = m1 - top;
    w.a = rn_expf(below);
    w.b = rn_expf(below1);
    precise float share = l1 * w.b;
    precise float sum = fma(l, w.a, share);
    m = top;
    l = sum;
    return w;
}

float rn_partial_sum(Weights w, float o, float o1)
{
    precise float share = o1 * w.b;
    precise float sum = fma(o, w.a, share);
    return w.skip ? o : w.first ? o1 : sum;
}

/* A learned sink logit is one more chunk of m = logit, l = 1, o = 0, after all others. Then out = o * (1 / l): returns the factor of o. */
float rn_partial_end(float m, float l, bool has_sink, float sink)
{
    precise float factor = 1.0;
    if (has_sink) {
        const Weights w = rn_partial_add(m, l, sink, 1.0);
        factor = w.a; // a row always sees itself, so the sink is never the first
    }
    precise float inverse = 1.0 / l;
    precise float both = factor * inverse;
    return both;
}
