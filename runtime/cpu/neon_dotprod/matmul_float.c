/* Float weights for NEON. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/neon_dotprod/vmath_internal.h"

typedef float32x4_t vec;
#define LANES 4
#define ROWS_ONE 4 // 16 sums
#define ROWS 2     // 2 x 3 x 4 sums, 1 register of weights and 3 of activations
#define TOKENS 3

INLINE vec vec_zero(void)
{
    return vdupq_n_f32(0.0f);
}

INLINE vec vec_load(const float *p)
{
    return vld1q_f32(p);
}

INLINE vec vec_weights(const enum rn_dtype type, const void *w, size_t at)
{
    if (type == RN_DTYPE_F16) {
        return rn_v_load_f16((const uint16_t *)w + at);
    }
    if (type == RN_DTYPE_BF16) {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)w + at), 16));
    }
    return vld1q_f32((const float *)w + at);
}

INLINE vec vec_fma(vec acc, vec a, vec b)
{
    return vfmaq_f32(acc, a, b);
}

INLINE vec vec_fma_below(vec acc, vec a, vec b, uint32_t from, uint32_t end)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    const uint32x4_t has = vcltq_u32(vaddq_u32(vld1q_u32(lane), vdupq_n_u32(from)), vdupq_n_u32(end));
    return vbslq_f32(has, vfmaq_f32(acc, a, b), acc);
}

INLINE float vec_sum(const vec lanes[4])
{
    return f8_lane_sum((struct f8){lanes[0], lanes[1]}, (struct f8){lanes[2], lanes[3]});
}

#define ROW neon_dotprod
#include "runtime/cpu/matmul_float_tmpl.h"
