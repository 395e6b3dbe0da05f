/* Vector kernels with NEON: the bits of plain/vector.c. Pairs left behind the last 4 are turned by scalar operations of the same sequence.
 * Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include <math.h>

#include "runtime/cpu/neon_dotprod/vmath_internal.h"

#define ROW neon_dotprod
#include "runtime/cpu/f8/vector_tmpl.h"

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
