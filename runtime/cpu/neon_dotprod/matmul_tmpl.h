/* Matrix products of one weight format in NEON registers; included once per format by matmul_formats_tmpl.h, with
 *   ROW      suffix of the function names: neon_dotprod, neon_i8mm
 *   RN_MMLA  0: dot products of one token (sdot), 1: 2 x 8 by 8 x 2 matrix products of two tokens (smmla)
 *   FMT, BITS, SCALES: matmul_block_internal.h
 *   OFFSET   what a code has too much; taken off the sums. Codes of 6 bits and less are int8 as they are; those of 8 bits lose their
 *            offset when they are loaded
 *   VALUES   optional, if codes stand for values of a table: its 16 bytes
 *
 * A group's 16 rows are four sides of 4: 8 registers hold 32 columns of a side, and every token passes before the next side is loaded.
 * The float sums of up to 16 tokens lie in the first-level cache: one load and store per group, so that a group of weights is read and
 * unpacked once for all tokens. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/matmul_block_internal.h"
#include "runtime/cpu/neon_dotprod/scales_internal.h"
#include "runtime/tensor/dtype.h"

// Bytes that weights are fetched ahead of their use.
#define AHEAD 2048

/* What one side of a group gives to every token. */
struct NAME(side) {
    int8x16_t c[8]; // register i, 4 rows: columns 4i .. 4i + 3. RN_MMLA: registers 2i, 2i + 1: columns 8i .. 8i + 7 of 2 rows each
    struct scales s;
};

/* Codes of side s, 4 rows. */
INLINE void NAME(load_codes)(const uint8_t *w, const int s, int8x16_t c[8])
{
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
#if BITS == 8
        c[k] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + 64 * k + 16 * s), vdupq_n_u8(0x80)));
#else
        const uint8x16_t both = vld1q_u8(w + 64 * (k / 2) + 16 * s);
        uint8x16_t v = k % 2 ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
#if BITS == 5 || BITS == 6
        // Bit k of a byte, or bits 2 (k % 4) and the next, to where the low four bits end.
        const int8x16_t left = vdupq_n_s8(BITS == 5 ? (int8_t)(4 - k) : (int8_t)(4 - 2 * (k % 4)));
        const uint8x16_t high = vshlq_u8(vld1q_u8(w + 256 + (BITS == 6 ? 64 * (k / 4) : 0) + 16 * s), left);
        v = vorrq_u8(v, vandq_u8(high, vdupq_n_u8(BITS == 5 ? 0x10 : 0x30)));
#endif
#ifdef VALUES
        c[k] = vqtbl1q_s8(vld1q_s8(VALUES), v);
#else
        c[k] = vreinterpretq_s8_u8(v);
#endif
#endif
    }
}

INLINE struct NAME(side) NAME(load_side)(const uint8_t *w, const uint8_t *super, const int s)
{
    struct NAME(side) ret;
    NAME(load_codes)(w, s, ret.c);
#if RN_MMLA
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        const int32x4_t a = vreinterpretq_s32_s8(ret.c[i]), b = vreinterpretq_s32_s8(ret.c[i + 1]);
        ret.c[i] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        ret.c[i + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    }
#endif
    ret.s = load_scales(SCALES, w + CODE_BYTES, super, s);
    return ret;
}

/* Adds one group of one token. first, second: the sums of code times activation over each half of the group. */
INLINE float32x4_t NAME(add_sums)(const struct NAME(side) *w, int32x4_t first, int32x4_t second, const struct rn_acts *a, size_t x,
                                  float32x4_t acc)
{
    const int16_t *sum = a->sum[x].half;
    int32x4_t isum;
    if (HALVES) {
        first = vsubq_s32(first, vdupq_n_s32(OFFSET * sum[0]));
        second = vsubq_s32(second, vdupq_n_s32(OFFSET * sum[1]));
        isum = vmlaq_s32(vmulq_s32(first, w->s.sub[0]), second, w->s.sub[1]);
    } else {
        isum = vaddq_s32(first, second);
        isum = OFFSET ? vsubq_s32(isum, vdupq_n_s32(OFFSET * (sum[0] + sum[1]))) : isum;
    }
    acc = vfmaq_f32(acc, vcvtq_f32_s32(isum), vmulq_n_f32(w->s.d, a->d[x]));
    if (HAS_MIN) {
        acc = SCALES == SCALES_K ? vfmsq_n_f32(acc, w->s.min, a->sd[x]) : vfmaq_n_f32(acc, w->s.min, a->sd[x]);
    }
    return acc;
}

#if RN_MMLA
/* Products of half a group of 4 rows with two tokens, q0 and q1: ret[t] are the sums of token t. */
INLINE void NAME(mmla_half)(const int8x16_t c[4], int8x16_t q0, int8x16_t q1, int32x4_t ret[2])
{
    const int64x2_t a = vreinterpretq_s64_s8(q0), b = vreinterpretq_s64_s8(q1);
    const int8x16_t low = vreinterpretq_s8_s64(vzip1q_s64(a, b)), high = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    const int32x4_t zero = vdupq_n_s32(0);
    // Each is (row, token) = (0, 0) (0, 1) (1, 0) (1, 1) of its two rows.
    const int32x4_t rows01 = vmmlaq_s32(vmmlaq_s32(zero, c[0], low), c[2], high);
    const int32x4_t rows23 = vmmlaq_s32(vmmlaq_s32(zero, c[1], low), c[3], high);
    ret[0] = vuzp1q_s32(rows01, rows23);
    ret[1] = vuzp2q_s32(rows01, rows23);
}

/* Adds one group of tokens x and x + 1, or of x alone. */
INLINE void NAME(add_pair)(const struct NAME(side) *w, const struct rn_acts *a, size_t x, const bool both, float32x4_t *acc)
{
    const int8_t *q0 = a->q + 32 * x, *q1 = both ? q0 + 32 : q0;
    int32x4_t first[2], second[2];
    NAME(mmla_half)(w->c, vld1q_s8(q0), vld1q_s8(q1), first);
    NAME(mmla_half)(w->c + 4, vld1q_s8(q0 + 16), vld1q_s8(q1 + 16), second);
    acc[0] = NAME(add_sums)(w, first[0], second[0], a, x, acc[0]);
    if (both) {
        acc[1] = NAME(add_sums)(w, first[1], second[1], a, x + 1, acc[1]);
    }
}
#else
INLINE int32x4_t NAME(dot_half)(const int8x16_t c[4], int8x16_t q)
{
    int32x4_t sum = vdotq_laneq_s32(vdupq_n_s32(0), c[0], q, 0);
    sum = vdotq_laneq_s32(sum, c[1], q, 1);
    sum = vdotq_laneq_s32(sum, c[2], q, 2);
    return vdotq_laneq_s32(sum, c[3], q, 3);
}

INLINE float32x4_t NAME(add_token)(const struct NAME(side) *w, const struct rn_acts *a, size_t x, float32x4_t acc)
{
    const int8_t *q = a->q + 32 * x;
    return NAME(add_sums)(w, NAME(dot_half)(w->c, vld1q_s8(q)), NAME(dot_half)(w->c + 4, vld1q_s8(q + 16)), a, x, acc);
}
#endif

/* One side of a group for the n tokens from x on. */
INLINE void NAME(add_side)(const struct NAME(side) *w, const struct rn_acts *a, size_t x, uint32_t n, float32x4_t *acc)
{
#if RN_MMLA
    uint32_t m = 0;
    for (; m + 2 <= n; m += 2) {
        NAME(add_pair)(w, a, x + m, true, acc + m);
    }
    if (m < n) {
        NAME(add_pair)(w, a, x + m, false, acc + m);
    }
#else
    for (uint32_t m = 0; m < n; m++) {
        acc[m] = NAME(add_token)(w, a, x + m, acc[m]);
    }
#endif
}

INLINE void NAME(fetch)(const uint8_t *w)
{
    for (int i = 0; i < GROUP_BYTES; i += 64) {
        __builtin_prefetch(w + i);
    }
}

/* Block `block` of 16 rows for the first n tokens (1..16) of token block tb. */
INLINE void NAME(block_tokens)(const struct rn_mm_args *args, uint32_t block, uint32_t tb, const uint32_t n)
{
    const struct rn_acts *a = args->a;
    const uint8_t *w = args->w + block * BLOCK_BYTES(args->n_groups), *super = w;
    size_t x = (size_t)tb * a->n_groups * a->mb;
    float32x4_t acc[4][16];
    for (uint32_t m = 0; m < n; m++) {
        acc[0][m] = acc[1][m] = acc[2][m] = acc[3][m] = vdupq_n_f32(0.0f);
    }
    for (uint32_t g = 0; g < args->n_groups; g++, w += GROUP_BYTES, x += a->mb) {
        if (SUPER_BYTES && g % 8 == 0) {
            super = w;
            w += SUPER_BYTES;
        }
        NAME(fetch)(w + AHEAD);
#pragma GCC unroll 4
        for (int s = 0; s < 4; s++) {
            const struct NAME(side) side = NAME(load_side)(w, super, s);
            NAME(add_side)(&side, a, x, n, acc[s]);
        }
    }
    float *y = args->y + (size_t)tb * 16 * args->ldy + (size_t)block * 16;
    for (uint32_t m = 0; m < n; m++) {
        for (int s = 0; s < 4; s++) {
            vst1q_f32(y + m * args->ldy + 4 * s, acc[s][m]);
        }
    }
}

static void NAME(tile)(const struct rn_mm_args *args, uint32_t block, uint32_t tb, uint32_t n)
{
    NAME(block_tokens)(args, block, tb, n);
}

#if !RN_MMLA
void NAME(rn_mm1)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    for (uint32_t b = block0; b < block1; b++) {
        NAME(block_tokens)(args, b, 0, 1); // a constant: the sums stay in registers
    }
}
#endif

#include "runtime/cpu/matmul_walk_tmpl.h"
