/* Scales of repacked weights (repack.h), 4 rows at a time. Thread: any; pure. */
#pragma once

#include "runtime/cpu/matmul_block_internal.h"
#include "runtime/cpu/neon_dotprod/vmath_internal.h"

/* Scales of 4 rows; what a format does not have is not read. */
struct scales {
    float32x4_t d, min; // of the whole group; the minimum of SCALES_K is subtracted
    int32x4_t sub[2];   // SCALES_K6: of each half of the group
};

/* 4 bytes, in the low halves of what follows. */
INLINE uint8x8_t load_4(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return vcreate_u8(v);
}

INLINE uint32x4_t load_u8(const uint8_t *p)
{
    return vmovl_u16(vget_low_u16(vmovl_u8(load_4(p))));
}

INLINE int32x4_t load_s8(const uint8_t *p)
{
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_4(p)))));
}

/* 2^(e - 128): the exponent's bits, or a subnormal for e < 2. */
INLINE float32x4_t load_e8m0(const uint8_t *p)
{
    const uint32x4_t e = load_u8(p), bits = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), small, bits));
}

/* Side `side` (rows 4 side .. 4 side + 3) of a group. s: behind the group's codes; super: the common scales of its 8 groups. */
INLINE struct scales load_scales(const int kind, const uint8_t *s, const uint8_t *super, const int side)
{
    struct scales ret;
    ret.d = ret.min = vdupq_n_f32(0.0f);
    ret.sub[0] = ret.sub[1] = vdupq_n_s32(0);
    switch (kind) {
    case SCALES_F16:
        ret.d = rn_v_load_f16(s + 8 * side);
        break;
    case SCALES_F16_MIN:
        ret.d = rn_v_load_f16(s + 8 * side);
        ret.min = rn_v_load_f16(s + 32 + 8 * side);
        break;
    case SCALES_E8M0:
        ret.d = load_e8m0(s + 4 * side);
        break;
    case SCALES_K:
        ret.d = vmulq_f32(rn_v_load_f16(super + 8 * side), vcvtq_f32_u32(load_u8(s + 4 * side)));
        ret.min = vmulq_f32(rn_v_load_f16(super + 32 + 8 * side), vcvtq_f32_u32(load_u8(s + 16 + 4 * side)));
        break;
    default:
        ret.d = rn_v_load_f16(super + 8 * side);
        ret.sub[0] = load_s8(s + 4 * side);
        ret.sub[1] = load_s8(s + 16 + 4 * side);
        break;
    }
    return ret;
}
