/* Elementary functions of our own, so that every kernel row and every machine gives the same bits (design: numerics contract).
 *
 * Each is a fixed sequence of IEEE float operations with the fused multiply-adds written out; SIMD rows repeat the same sequence
 * lane by lane. Accuracy is stated per function. The constants are here because all rows share them. Thread: any; pure. */
#pragma once

#include <stdint.h>

/* exp(x): n = rint(x * log2(e)); r = fma(n, -LN2_HI, x), r = fma(n, -LN2_LO, r); Horner in r with RN_EXP_C6..C0 by fma; times 2^n.
 * x < RN_EXP_MIN (and -inf) gives 0; x > RN_EXP_MAX is clamped; NaN gives NaN. At most 1 ulp. */
#define RN_EXP_MIN (-87.0f)
#define RN_EXP_MAX 88.0f
#define RN_EXP_LOG2E 1.44269504088896341f
#define RN_EXP_LN2_HI 0.693359375f
#define RN_EXP_LN2_LO (-2.12194440e-4f)
/* Least worst relative error (3.2e-9) on |r| <= ln(2)/2 with C1 = C0 = 1; the Taylor coefficients would cost 2.7 ulp in all. */
#define RN_EXP_C6 1.38206617e-3f
#define RN_EXP_C5 8.36867467e-3f
#define RN_EXP_C4 4.16682661e-2f
#define RN_EXP_C3 1.66665211e-1f
#define RN_EXP_C2 0.49999994f
float rn_expf(float x);

/* x / (1 + exp(-x)). */
float rn_siluf(float x);

/* GELU in its tanh form, x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, as x / (1 + exp(-u)), u = x * fma(RN_GELU_CUBE, x * x, RN_GELU_LINE). */
#define RN_GELU_LINE 1.5957691216057308f /* 2 sqrt(2/pi) */
#define RN_GELU_CUBE 0.07135481627159604f /* RN_GELU_LINE * 0.044715 */
float rn_gelu_tanhf(float x);

/* cos and sin of a phase in turns: angle = 2 pi * phase / 2^32, |angle| <= pi. Nearest float but for rare ties: at most 4e-8 absolute. */
void rn_sincos_phase(int32_t phase, float *ret_cos, float *ret_sin);

/* Sum of 16 virtual lanes by the fixed tree 8-4-2-1: lane i += lane i+8, then i+4, i+2, i+1. lanes is overwritten. */
float rn_lane_sum(float lanes[16]);

/* Dot product in 16 virtual lanes: element i goes to lane i mod 16, ascending, by fma; then rn_lane_sum. */
float rn_lane_dot(const float *a, const float *b, uint32_t n);
