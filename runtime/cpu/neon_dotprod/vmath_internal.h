/* Building blocks of the NEON rows: the scalar sequences of runtime/tensor/fmath.h, 4 or 8 values at a time, bit for bit. 16 virtual
 * lanes are four registers of 4 or two pairs of 8. f8_*: the words of the templates in runtime/cpu/f8. Thread: any; pure. */
#pragma once

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "runtime/tensor/fmath.h"

#define INLINE static inline __attribute__((always_inline))

/* 8 floats: lanes 0..3 and 4..7. */
struct f8 {
    float32x4_t lo, hi;
};

INLINE struct f8 f8_all(float x)
{
    return (struct f8){vdupq_n_f32(x), vdupq_n_f32(x)};
}

INLINE struct f8 f8_load(const float *p)
{
    return (struct f8){vld1q_f32(p), vld1q_f32(p + 4)};
}

INLINE void f8_store(float *p, struct f8 v)
{
    vst1q_f32(p, v.lo);
    vst1q_f32(p + 4, v.hi);
}

INLINE struct f8 f8_add(struct f8 a, struct f8 b)
{
    return (struct f8){vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)};
}

INLINE struct f8 f8_mul(struct f8 a, struct f8 b)
{
    return (struct f8){vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)};
}

INLINE struct f8 f8_div(struct f8 a, struct f8 b)
{
    return (struct f8){vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)};
}

INLINE struct f8 f8_neg(struct f8 a)
{
    return (struct f8){vnegq_f32(a.lo), vnegq_f32(a.hi)};
}

INLINE struct f8 f8_mul_n(struct f8 a, float b)
{
    return (struct f8){vmulq_n_f32(a.lo, b), vmulq_n_f32(a.hi, b)};
}

/* fma(a, b, acc) */
INLINE struct f8 f8_fma(struct f8 acc, struct f8 a, struct f8 b)
{
    return (struct f8){vfmaq_f32(acc.lo, a.lo, b.lo), vfmaq_f32(acc.hi, a.hi, b.hi)};
}

INLINE struct f8 f8_fma_n(struct f8 acc, struct f8 a, float b)
{
    return (struct f8){vfmaq_n_f32(acc.lo, a.lo, b), vfmaq_n_f32(acc.hi, a.hi, b)};
}

/* 4 halves; any alignment. A subnormal half is a normal float, so flushing does not touch it. */
INLINE float32x4_t rn_v_load_f16(const void *p)
{
    return vcvt_f32_f16(vld1_f16(p));
}

INLINE struct f8 f8_load_f16(const void *p)
{
    const float16x8_t h = vld1q_f16(p);
    return (struct f8){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}

/* 8 int8. */
INLINE struct f8 f8_load_s8(const uint8_t *p)
{
    const int16x8_t v = vmovl_s8(vld1_s8((const int8_t *)p));
    return (struct f8){vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
}

INLINE float f8_first(struct f8 a)
{
    return vgetq_lane_f32(a.lo, 0);
}

INLINE struct f8 f8_max(struct f8 a, struct f8 b)
{
    return (struct f8){vmaxq_f32(a.lo, b.lo), vmaxq_f32(a.hi, b.hi)};
}

/* The greatest lane. */
INLINE float f8_top(struct f8 a)
{
    return vmaxvq_f32(vmaxq_f32(a.lo, a.hi));
}

/* Lane i is token j + i: those of tokens below lo and from hi on become -inf. */
INLINE float32x4_t rn_v_in_range(float32x4_t x, uint32_t j, uint32_t lo, uint32_t hi)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    const uint32x4_t token = vaddq_u32(vld1q_u32(lane), vdupq_n_u32(j));
    const uint32x4_t seen = vandq_u32(vcgeq_u32(token, vdupq_n_u32(lo)), vcltq_u32(token, vdupq_n_u32(hi)));
    return vbslq_f32(seen, x, vdupq_n_f32(-INFINITY));
}

INLINE struct f8 f8_in_range(struct f8 a, uint32_t j, uint32_t lo, uint32_t hi)
{
    return (struct f8){rn_v_in_range(a.lo, j, lo, hi), rn_v_in_range(a.hi, j + 4, lo, hi)};
}

/* The first n values at p, zeros behind them; n may be larger than 8. */
INLINE struct f8 f8_load_first(const float *p, uint32_t n)
{
    float v[8] = {0};
    memcpy(v, p, (n < 8 ? n : 8) * sizeof(*v));
    return f8_load(v);
}

INLINE void f8_store_first(float *p, struct f8 a, uint32_t n)
{
    float v[8];
    f8_store(v, a);
    memcpy(p, v, (n < 8 ? n : 8) * sizeof(*v));
}

/* rn_expf of every lane. */
static inline float32x4_t rn_v_exp(float32x4_t x)
{
    const uint32x4_t tiny = vcltq_f32(x, vdupq_n_f32(RN_EXP_MIN));
    x = vminq_f32(x, vdupq_n_f32(RN_EXP_MAX)); // a NaN stays a NaN
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, RN_EXP_LOG2E));
    float32x4_t r = vfmaq_n_f32(x, n, -RN_EXP_LN2_HI);
    r = vfmaq_n_f32(r, n, -RN_EXP_LN2_LO);
    float32x4_t p = vfmaq_n_f32(vdupq_n_f32(RN_EXP_C5), r, RN_EXP_C6);
    p = vfmaq_f32(vdupq_n_f32(RN_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(RN_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(RN_EXP_C2), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    // 2^n as a number, n in -126..127; where x is tiny or NaN it is whatever it is.
    const int32x4_t scale = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    const uint32x4_t y = vreinterpretq_u32_f32(vmulq_f32(p, vreinterpretq_f32_s32(scale)));
    return vreinterpretq_f32_u32(vbicq_u32(y, tiny));
}

INLINE struct f8 f8_exp(struct f8 x)
{
    return (struct f8){rn_v_exp(x.lo), rn_v_exp(x.hi)};
}

/* rn_lane_sum: 8 lanes and the 8 above them. */
INLINE float f8_lane_sum(struct f8 lanes0, struct f8 lanes8)
{
    const struct f8 s8 = f8_add(lanes0, lanes8);
    const float32x4_t s4 = vaddq_f32(s8.lo, s8.hi);
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
