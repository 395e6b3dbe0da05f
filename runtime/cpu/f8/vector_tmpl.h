/* Vector kernels 8 lanes wide, all but rotations; included once per instruction set, whose vmath_internal.h has the words f8_*, with
 *   ROW      suffix of the function names: avx2, neon_dotprod
 * The bits are those of plain/vector.c. What is left behind the last 8 elements passes through registers filled up with zeros. Thread:
 * any; pure. */
#include <math.h>

#define NAME(name) RN_ROW_NAME(name, ROW)

void NAME(rn_norm)(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    struct f8 lanes0 = f8_all(0.0f), lanes8 = lanes0;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const struct f8 a = f8_load(x + i), b = f8_load(x + i + 8);
        lanes0 = f8_fma(lanes0, a, a);
        lanes8 = f8_fma(lanes8, b, b);
    }
    if (i < n) { // zeros add +0 to what is never -0
        const struct f8 a = f8_load_first(x + i, n - i);
        lanes0 = f8_fma(lanes0, a, a);
    }
    if (i + 8 < n) {
        const struct f8 b = f8_load_first(x + i + 8, n - i - 8);
        lanes8 = f8_fma(lanes8, b, b);
    }

    const float r = 1.0f / sqrtf(f8_lane_sum(lanes0, lanes8) / (float)n + eps);
    for (i = 0; i + 8 <= n; i += 8) {
        f8_store(out + i, f8_mul(f8_mul_n(f8_load(x + i), r), f8_load(w + i)));
    }
    if (i < n) {
        f8_store_first(out + i, f8_mul(f8_mul_n(f8_load_first(x + i, n - i), r), f8_load_first(w + i, n - i)), n - i);
    }
}

void NAME(rn_add)(float *x, const float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        f8_store(x + i, f8_add(f8_load(x + i), f8_load(y + i)));
    }
    if (i < n) {
        f8_store_first(x + i, f8_add(f8_load_first(x + i, n - i), f8_load_first(y + i, n - i)), n - i);
    }
}

/* x / (1 + exp(-u)). */
INLINE struct f8 sigmoid_times(struct f8 x, struct f8 u)
{
    return f8_div(x, f8_add(f8_all(1.0f), f8_exp(f8_neg(u))));
}

INLINE struct f8 silu(struct f8 x)
{
    return sigmoid_times(x, x);
}

INLINE struct f8 gelu(struct f8 x)
{
    const struct f8 slope = f8_fma_n(f8_all(RN_GELU_LINE), f8_mul(x, x), RN_GELU_CUBE);
    return sigmoid_times(x, f8_mul(x, slope));
}

INLINE void gate_mul(struct f8 (*f)(struct f8), const float *gate, const float *up, float *out, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        f8_store(out + i, f8_mul(f(f8_load(gate + i)), f8_load(up + i)));
    }
    if (i < n) {
        f8_store_first(out + i, f8_mul(f(f8_load_first(gate + i, n - i)), f8_load_first(up + i, n - i)), n - i);
    }
}

void NAME(rn_silu_mul)(const float *gate, const float *up, float *out, uint32_t n)
{
    gate_mul(silu, gate, up, out, n);
}

void NAME(rn_gelu_mul)(const float *gate, const float *up, float *out, uint32_t n)
{
    gate_mul(gelu, gate, up, out, n);
}
