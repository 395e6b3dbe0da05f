/* One group of 32 to int8 with NEON: rn_quant_act and rn_quant_kv of runtime/tensor/quant.h, bit for bit. The greatest magnitude and
 * the integer sum do not depend on order, so every lane may go its own way. Thread: any; pure. */
#pragma once

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/neon_dotprod/vmath_internal.h"
#include "runtime/tensor/quant.h"

/* Greatest magnitude of 32 values; a NaN does not count. */
static inline float rn_v_group_max(const float *x)
{
    float32x4_t max = vdupq_n_f32(0.0f);
#pragma GCC unroll 8
    for (int i = 0; i < RN_GROUP; i += 4) {
        max = vmaxnmq_f32(max, vabsq_f32(vld1q_f32(x + i)));
    }
    return vmaxvq_f32(max);
}

/* 16 integers of magnitude 127 at most, as int8. */
INLINE int8x16_t rn_v_narrow(const int32x4_t v[4])
{
    const int16x8_t a = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1])), b = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
    return vcombine_s8(vmovn_s16(a), vmovn_s16(b));
}

/* *ret_sum: the sums of both halves. */
static inline float rn_v_quant_act(const float *x, int8_t *q, struct rn_act_sum *ret_sum)
{
    const float amax = rn_v_group_max(x);
    if (amax < RN_AMAX_MIN) {
        memset(q, 0, RN_GROUP);
        *ret_sum = (struct rn_act_sum){{0, 0}};
        return 0.0f;
    }
    const float inverse = 127.0f / amax;
    for (int half = 0; half < 2; half++, x += 16) {
        int32x4_t v[4];
        for (int i = 0; i < 4; i++) {
            v[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inverse));
        }
        const int8x16_t bytes = rn_v_narrow(v);
        vst1q_s8(q + 16 * half, bytes);
        ret_sum->half[half] = vaddlvq_s8(bytes);
    }
    return amax / 127.0f;
}

static inline uint16_t rn_v_quant_kv(const float *x, int8_t *q)
{
    const float16x4_t d16 = vcvt_f16_f32(vdupq_n_f32(rn_v_group_max(x) / 127.0f));
    const uint16_t bits = vget_lane_u16(vreinterpret_u16_f16(d16), 0);
    if (bits == 0) {
        memset(q, 0, RN_GROUP);
        return 0;
    }
    const float32x4_t d = vcvt_f32_f16(d16), lo = vdupq_n_f32(-127.0f), hi = vdupq_n_f32(127.0f);
    for (int half = 0; half < 2; half++, x += 16) {
        int32x4_t v[4];
        for (int i = 0; i < 4; i++) {
            const float32x4_t y = vdivq_f32(vld1q_f32(x + 4 * i), d);
            v[i] = vcvtnq_s32_f32(vminq_f32(vmaxnmq_f32(y, lo), hi)); // the greater of a NaN and -127 is -127
        }
        vst1q_s8(q + 16 * half, rn_v_narrow(v));
    }
    return bits;
}
