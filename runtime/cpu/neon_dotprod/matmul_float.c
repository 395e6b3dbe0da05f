/* Float weights for NEON: the 16 virtual lanes of rn_lane_dot are four registers per (row, token). The last, partial step touches only
 * the lanes that have an element. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/neon_dotprod/vmath_internal.h"

enum { F16, BF16, F32 };

#define ROWS_ONE 4 // one token: 16 sums hide the latency of the fma
#define ROWS 2     // more tokens: 2 x 3 x 4 sums, 1 register of weights and 3 of activations
#define TOKENS 3

INLINE float32x4_t load_weights(const int type, const void *w, size_t at)
{
    if (type == F16) {
        return rn_v_load_f16((const uint16_t *)w + at);
    }
    if (type == BF16) {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)w + at), 16));
    }
    return vld1q_f32((const float *)w + at);
}

/* acc = fma(w, x, acc) in the lanes 4 k .. 4 k + 3 of 16 of which the first `left` have an element. */
INLINE float32x4_t add_last(float32x4_t acc, float32x4_t w, float32x4_t x, uint32_t k, uint32_t left)
{
    static const uint32_t lane[4] = {0, 1, 2, 3};
    const uint32x4_t has = vcltq_u32(vaddq_u32(vld1q_u32(lane), vdupq_n_u32(4 * k)), vdupq_n_u32(left));
    return vbslq_f32(has, vfmaq_f32(acc, w, x), acc);
}

/* n_rows x n_tok outputs; both are constants at each call, so that the sums stay in registers. */
INLINE void tile(const int type, const uint32_t n_rows, const uint32_t n_tok, const struct rn_mmf_args *args, uint32_t row, uint32_t m)
{
    const float *x = args->x + m * args->ldx;
    const size_t w0 = row * args->ldw, ldx = args->ldx;
    float32x4_t acc[ROWS_ONE][TOKENS][4];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 3
        for (uint32_t t = 0; t < n_tok; t++) {
            acc[r][t][0] = acc[r][t][1] = acc[r][t][2] = acc[r][t][3] = vdupq_n_f32(0.0f);
        }
    }
    uint32_t i = 0;
    for (; i + 16 <= args->n_cols; i += 16) {
#pragma GCC unroll 4
        for (uint32_t k = 0; k < 4; k++) {
#pragma GCC unroll 4
            for (uint32_t r = 0; r < n_rows; r++) {
                const float32x4_t w = load_weights(type, args->w, w0 + r * args->ldw + i + 4 * k);
#pragma GCC unroll 3
                for (uint32_t t = 0; t < n_tok; t++) {
                    acc[r][t][k] = vfmaq_f32(acc[r][t][k], w, vld1q_f32(x + t * ldx + i + 4 * k));
                }
            }
        }
    }
    const uint32_t left = args->n_cols - i;
#pragma GCC unroll 3
    for (uint32_t t = 0; t < n_tok; t++) {
        float last[16] = {0};
        memcpy(last, x + t * ldx + i, left * sizeof(*last));
#pragma GCC unroll 4
        for (uint32_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
            for (uint32_t k = 0; left && k < 4; k++) { // the row is padded to 16 weights
                const float32x4_t w = load_weights(type, args->w, w0 + r * args->ldw + i + 4 * k);
                acc[r][t][k] = add_last(acc[r][t][k], w, vld1q_f32(last + 4 * k), k, left);
            }
            const struct f8 lanes0 = {acc[r][t][0], acc[r][t][1]}, lanes8 = {acc[r][t][2], acc[r][t][3]};
            args->y[(m + t) * args->ldy + row + r] = f8_lane_sum(lanes0, lanes8);
        }
    }
}

INLINE void matmul(const int type, const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    uint32_t row = row0;
    if (args->n_tok == 1) {
        for (; row + ROWS_ONE <= row1; row += ROWS_ONE) {
            tile(type, ROWS_ONE, 1, args, row, 0);
        }
    }
    for (; row + ROWS <= row1; row += ROWS) {
        uint32_t m = 0;
        for (; m + TOKENS <= args->n_tok; m += TOKENS) {
            tile(type, ROWS, TOKENS, args, row, m);
        }
        for (; m < args->n_tok; m++) {
            tile(type, ROWS, 1, args, row, m);
        }
    }
    for (; row < row1; row++) {
        for (uint32_t m = 0; m < args->n_tok; m++) {
            tile(type, 1, 1, args, row, m);
        }
    }
}

void rn_mm_f16_neon_dotprod(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(F16, args, row0, row1);
}

void rn_mm_bf16_neon_dotprod(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(BF16, args, row0, row1);
}

void rn_mm_f32_neon_dotprod(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(F32, args, row0, row1);
}
