/* Scales of repacked weights with NEON: scales_tmpl.h. Thread: any; pure. */
#pragma once

#include "runtime/cpu/matmul_block_internal.h"
#include "runtime/cpu/neon_dotprod/vmath_internal.h"

typedef float32x4_t vec;
typedef int32x4_t sub_vec;
#define LANES 4

INLINE vec vec_mul(vec a, vec b)
{
    return vmulq_f32(a, b);
}

/* 4 bytes, in the low halves of what follows. */
INLINE uint8x8_t load_4(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return vcreate_u8(v);
}

INLINE uint32x4_t u8_to_u32(const uint8_t *p)
{
    return vmovl_u16(vget_low_u16(vmovl_u8(load_4(p))));
}

INLINE vec load_u8(const uint8_t *p)
{
    return vcvtq_f32_u32(u8_to_u32(p));
}

INLINE sub_vec load_s8(const uint8_t *p)
{
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_4(p)))));
}

INLINE vec load_e8m0(const uint8_t *p)
{
    const uint32x4_t e = u8_to_u32(p), bits = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), small, bits));
}

#include "runtime/cpu/scales_tmpl.h"
