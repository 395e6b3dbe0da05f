/* Vector kernels with NEON: the bits of plain/vector.c. What is left behind the last 4 elements passes through a register filled up with
 * zeros, or through scalar operations of the same sequence. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include <math.h>

#include "runtime/cpu/neon_dotprod/vmath_internal.h"

void rn_norm_neon_dotprod(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    struct f8 lanes0 = f8_all(0.0f), lanes8 = lanes0;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const struct f8 a = f8_load(x + i), b = f8_load(x + i + 8);
        lanes0 = f8_fma(lanes0, a, a);
        lanes8 = f8_fma(lanes8, b, b);
    }
    float last[16] = {0}; // adds +0 to what is never -0
    memcpy(last, x + i, (n - i) * sizeof(*x));
    lanes0 = f8_fma(lanes0, f8_load(last), f8_load(last));
    lanes8 = f8_fma(lanes8, f8_load(last + 8), f8_load(last + 8));

    const float r = 1.0f / sqrtf(f8_lane_sum(lanes0, lanes8) / (float)n + eps);
    for (i = 0; i + 4 <= n; i += 4) {
        vst1q_f32(out + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), r), vld1q_f32(w + i)));
    }
    for (; i < n; i++) {
        out[i] = (x[i] * r) * w[i];
    }
}

void rn_add_neon_dotprod(float *x, const float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        vst1q_f32(x + i, vaddq_f32(vld1q_f32(x + i), vld1q_f32(y + i)));
    }
    for (; i < n; i++) {
        x[i] += y[i];
    }
}

/* x / (1 + exp(-u)). */
INLINE float32x4_t sigmoid_times(float32x4_t x, float32x4_t u)
{
    return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), rn_v_exp(vnegq_f32(u))));
}

INLINE float32x4_t silu(float32x4_t x)
{
    return sigmoid_times(x, x);
}

INLINE float32x4_t gelu(float32x4_t x)
{
    const float32x4_t slope = vfmaq_n_f32(vdupq_n_f32(RN_GELU_LINE), vmulq_f32(x, x), RN_GELU_CUBE);
    return sigmoid_times(x, vmulq_f32(x, slope));
}

INLINE void gate_mul(float32x4_t (*f)(float32x4_t), const float *gate, const float *up, float *out, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        vst1q_f32(out + i, vmulq_f32(f(vld1q_f32(gate + i)), vld1q_f32(up + i)));
    }
    if (i < n) {
        const float32x4_t y = vmulq_f32(f(rn_v_load_first(gate + i, n - i)), rn_v_load_first(up + i, n - i));
        rn_v_store_first(out + i, y, n - i);
    }
}

void rn_silu_mul_neon_dotprod(const float *gate, const float *up, float *out, uint32_t n)
{
    gate_mul(silu, gate, up, out, n);
}

void rn_gelu_mul_neon_dotprod(const float *gate, const float *up, float *out, uint32_t n)
{
    gate_mul(gelu, gate, up, out, n);
}

/* Four pairs (a, b), turned by cos and sin at cs. */
INLINE float32x4x2_t turn(float32x4_t a, float32x4_t b, const float *cs)
{
    const float32x4x2_t t = vld2q_f32(cs);
    float32x4x2_t ret;
    ret.val[0] = vfmaq_f32(vnegq_f32(vmulq_f32(b, t.val[1])), a, t.val[0]);
    ret.val[1] = vfmaq_f32(vmulq_f32(b, t.val[0]), a, t.val[1]);
    return ret;
}

void rn_rope_neon_dotprod(const float *x, const float *cs, uint32_t head_dim, uint32_t n_rot, bool interleaved, float *out)
{
    const uint32_t half = n_rot / 2;
    uint32_t i = 0;
    for (; i + 4 <= half; i += 4) {
        if (interleaved) {
            const float32x4x2_t v = vld2q_f32(x + 2 * i);
            vst2q_f32(out + 2 * i, turn(v.val[0], v.val[1], cs + 2 * i));
        } else {
            const float32x4x2_t v = turn(vld1q_f32(x + i), vld1q_f32(x + half + i), cs + 2 * i);
            vst1q_f32(out + i, v.val[0]);
            vst1q_f32(out + half + i, v.val[1]);
        }
    }
    for (; i < half; i++) {
        const uint32_t ia = interleaved ? 2 * i : i, ib = interleaved ? 2 * i + 1 : i + half;
        const float a = x[ia], b = x[ib], c = cs[2 * i], s = cs[2 * i + 1];
        out[ia] = fmaf(a, c, -(b * s));
        out[ib] = fmaf(a, s, b * c);
    }
    memcpy(out + 2 * half, x + 2 * half, (head_dim - 2 * half) * sizeof *out);
}
