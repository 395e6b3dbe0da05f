/* Elementary functions as fixed sequences of float operations; see the header for the contract. Every fma is written out, and the
 * compiler adds none (-ffp-contract=off), so SIMD rows can repeat a sequence lane by lane and get the same bits. */
#include "runtime/tensor/fmath.h"

#include <math.h>
#include <string.h>

// Taylor coefficients; on [-pi/4, pi/4] the first omitted terms are below 2e-9 (sine) and 3e-8 (cosine).
#define SIN_3 (-1.6666667e-1f) // -1/3!
#define SIN_5 8.3333333e-3f
#define SIN_7 (-1.9841270e-4f)
#define SIN_9 2.7557319e-6f
#define COS_2 (-0.5f)
#define COS_4 4.1666667e-2f
#define COS_6 (-1.3888889e-3f)
#define COS_8 2.4801587e-5f
#define TURN_TO_RADIANS 1.4629180792671596e-9f // 2 pi / 2^32

float rn_expf(float x)
{
    if (isnan(x)) {
        return x;
    }
    if (x < RN_EXP_MIN) {
        return 0.0f;
    }
    x = x > RN_EXP_MAX ? RN_EXP_MAX : x;
    float n = rintf(x * RN_EXP_LOG2E);
    float r = fmaf(n, -RN_EXP_LN2_HI, x);
    r = fmaf(n, -RN_EXP_LN2_LO, r);
    float p = RN_EXP_C6;
    p = fmaf(p, r, RN_EXP_C5);
    p = fmaf(p, r, RN_EXP_C4);
    p = fmaf(p, r, RN_EXP_C3);
    p = fmaf(p, r, RN_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23; // 2^n, n in [-126, 127]
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

float rn_siluf(float x)
{
    return x / (1.0f + rn_expf(-x));
}

void rn_sincos_phase(int32_t phase, float *ret_cos, float *ret_sin)
{
    // Nearest quarter turn, then what is left, in [-2^29, 2^29): at most an eighth of a turn.
    uint32_t quarter = ((uint32_t)phase + 0x20000000u) >> 30;
    int32_t rest = (int32_t)((uint32_t)phase - (quarter << 30));
    float x = (float)rest * TURN_TO_RADIANS, x2 = x * x;
    float s = SIN_9;
    s = fmaf(s, x2, SIN_7);
    s = fmaf(s, x2, SIN_5);
    s = fmaf(s, x2, SIN_3);
    s = fmaf(s * x2, x, x);
    float c = COS_8;
    c = fmaf(c, x2, COS_6);
    c = fmaf(c, x2, COS_4);
    c = fmaf(c, x2, COS_2);
    c = fmaf(c, x2, 1.0f);
    float co = quarter & 1 ? s : c, si = quarter & 1 ? c : s;
    *ret_cos = quarter == 1 || quarter == 2 ? -co : co;
    *ret_sin = quarter >= 2 ? -si : si;
}

float rn_lane_sum(float lanes[16])
{
    for (uint32_t half = 8; half >= 1; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            lanes[i] += lanes[i + half];
        }
    }
    return lanes[0];
}

float rn_lane_dot(const float *a, const float *b, uint32_t n)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lanes[i % 16] = fmaf(a[i], b[i], lanes[i % 16]);
    }
    return rn_lane_sum(lanes);
}
