/* Elementary functions as fixed sequences of float operations; see the header for the contract. Every fma is written out, and the
 * compiler adds none (-ffp-contract=off), so SIMD rows can repeat a sequence lane by lane and get the same bits. */
#include "runtime/tensor/fmath.h"

#include <math.h>
#include <string.h>

// 2 pi / 2^32
#define TURN_TO_RADIANS 1.4629180792671596e-9

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

float rn_gelu_tanhf(float x)
{
    float u = x * fmaf(RN_GELU_CUBE, x * x, RN_GELU_LINE);
    return x / (1.0f + rn_expf(-u));
}

void rn_sincos_phase(int32_t phase, float *ret_cos, float *ret_sin)
{
    // Nearest quarter turn, then what is left, in [-2^29, 2^29): at most an eighth of a turn.
    uint32_t quarter = ((uint32_t)phase + 0x20000000u) >> 30;
    int32_t rest = (int32_t)((uint32_t)phase - (quarter << 30));
    // Taylor in double: the first terms left out are below 1e-13, so the results are the nearest floats almost always.
    static const double sines[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1};
    static const double cosines[] = {-1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -1.0 / 2, 1};
    double x = rest * TURN_TO_RADIANS, x2 = x * x, sine = 0, cosine = 0;
    for (size_t i = 0; i < sizeof sines / sizeof sines[0]; i++) {
        sine = sine * x2 + sines[i];
    }
    for (size_t i = 0; i < sizeof cosines / sizeof cosines[0]; i++) {
        cosine = cosine * x2 + cosines[i];
    }
    float s = (float)(sine * x), c = (float)cosine;
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
