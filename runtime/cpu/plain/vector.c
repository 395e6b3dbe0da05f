/* Vector kernels in plain C: the specification of the rows of RN_CPU_NORM, ADD, SILU_MUL, GELU_MUL and ROPE. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include <math.h>

#include "runtime/tensor/fmath.h"

void rn_norm_c(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    float r = 1.0f / sqrtf(rn_lane_dot(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (x[i] * r) * w[i];
    }
}

void rn_add_c(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
}

void rn_silu_mul_c(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = rn_siluf(gate[i]) * up[i];
    }
}

void rn_gelu_mul_c(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = rn_gelu_tanhf(gate[i]) * up[i];
    }
}

void rn_rope_c(const float *x, const float *cs, uint32_t head_dim, uint32_t n_rot, bool interleaved, float *out)
{
    uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        // Interleaved: dimensions 2i and 2i + 1 are a pair; else i and i + n_rot / 2.
        uint32_t ia = interleaved ? 2 * i : i;
        uint32_t ib = interleaved ? 2 * i + 1 : i + half;
        float a = x[ia], b = x[ib], c = cs[2 * i], s = cs[2 * i + 1];
        out[ia] = fmaf(a, c, -(b * s));
        out[ib] = fmaf(a, s, b * c);
    }
    for (uint32_t i = 2 * half; i < head_dim; i++) {
        out[i] = x[i];
    }
}
