/* Matrix products in plain C: the specification of every other row (kernels.h has the order of summation, repack.h the layout).
 *
 * One row of tokens, few and many differ only in which rows of a faster table they stand for, so here they are one function; types
 * differ only in how a group of weights is read. */
#include <math.h>
#include <string.h>

#include "runtime/cpu/rows_internal.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/quant.h"
#include "runtime/tensor/repack.h"

#define ROWS 16
#define TOKENS 16 // that share the reading of a group

/* The sums of code * q_x over each half of the group, for 16 rows. restrict: bytes may alias anything, and the loop would stay scalar. */
static void dot(const struct rn_repack_group *restrict w, const int8_t *restrict x, int32_t sum[restrict 2][ROWS])
{
    memset(sum, 0, 2 * sizeof(sum[0]));
    for (int k = 0; k < 8; k++, x += 4) {
        for (int r = 0; r < ROWS; r++) {
            const int8_t *q = w->q[k] + 4 * r;
            sum[k / 4][r] += q[0] * x[0] + q[1] * x[1] + q[2] * x[2] + q[3] * x[3];
        }
    }
}

/* One block of 16 rows for the tokens m0 .. m0 + n - 1. */
static void block_tokens(enum rn_dtype type, const uint8_t *block, const struct rn_mm_args *args, uint32_t m0, uint32_t n, float *y)
{
    const struct rn_acts *a = args->a;
    float acc[TOKENS][ROWS] = {0};
    for (uint32_t g = 0; g < args->n_groups; g++) {
        struct rn_repack_group w;
        rn_repack_group_read(type, block, g, 0, ROWS, &w);
        for (uint32_t m = m0; m < m0 + n; m++) {
            size_t at = ((size_t)(m / a->mb) * a->n_groups + g) * a->mb + m % a->mb;
            float *sums = acc[m - m0];
            int32_t sum[2][ROWS];
            dot(&w, a->q + at * RN_GROUP, sum);
            for (uint32_t r = 0; r < ROWS; r++) {
                int32_t isum = w.sub[0][r] * sum[0][r] + w.sub[1][r] * sum[1][r];
                sums[r] = fmaf((float)isum, w.d[r] * a->d[at], sums[r]);
                sums[r] = w.has_min ? fmaf(a->sd[at], w.m[r], sums[r]) : sums[r];
            }
        }
    }
    for (uint32_t m = 0; m < n; m++) {
        memcpy(y + m * args->ldy, acc[m], sizeof(acc[m]));
    }
}

static void matmul(enum rn_dtype type, const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    const size_t stride = rn_repack_stride(type, args->n_groups * RN_GROUP);
    const uint32_t n_tok = args->a->n_tok;
    for (uint32_t b = block0; b < block1; b++) {
        for (uint32_t m = 0; m < n_tok; m += TOKENS) {
            uint32_t n = n_tok - m < TOKENS ? n_tok - m : TOKENS;
            block_tokens(type, args->w + b * stride, args, m, n, args->y + m * args->ldy + (size_t)b * ROWS);
        }
    }
}

#define MATMUL(type, op)                                                                                                                   \
    void rn_##op##_c(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)                                                      \
    {                                                                                                                                      \
        matmul(type, args, block0, block1);                                                                                                \
    }
#define MATMULS(TYPE, name)                                                                                                                \
    MATMUL(RN_DTYPE_##TYPE, mm1_##name)                                                                                                    \
    MATMUL(RN_DTYPE_##TYPE, mmf_##name)                                                                                                    \
    MATMUL(RN_DTYPE_##TYPE, mmn_##name)

RN_CPU_QUANT_TYPES(MATMULS)

/* 16-bit floats: rows of `to_f32`, in the order of rn_lane_dot. */
static inline void matmul_16(float (*to_f32)(uint16_t), const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    for (uint32_t row = row0; row < row1; row++) {
        const uint16_t *w = (const uint16_t *)args->w + row * args->ldw;
        for (uint32_t m = 0; m < args->n_tok; m++) {
            const float *x = args->x + m * args->ldx;
            float lanes[16] = {0};
            for (uint32_t i = 0; i < args->n_cols; i++) {
                lanes[i % 16] = fmaf(to_f32(w[i]), x[i], lanes[i % 16]);
            }
            args->y[m * args->ldy + row] = rn_lane_sum(lanes);
        }
    }
}

void rn_mm_f16_c(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul_16(rn_f16_to_f32, args, row0, row1);
}

void rn_mm_bf16_c(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul_16(rn_bf16_to_f32, args, row0, row1);
}

void rn_mm_f32_c(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    for (uint32_t row = row0; row < row1; row++) {
        const float *w = (const float *)args->w + row * args->ldw;
        for (uint32_t m = 0; m < args->n_tok; m++) {
            args->y[m * args->ldy + row] = rn_lane_dot(w, args->x + m * args->ldx, args->n_cols);
        }
    }
}

void rn_quant_act_c(const float *x, const struct rn_acts *a, uint32_t m)
{
    for (uint32_t g = 0; g < a->n_groups; g++, x += RN_GROUP) {
        size_t at = ((size_t)(m / a->mb) * a->n_groups + g) * a->mb + m % a->mb;
        int8_t *q = a->q + at * RN_GROUP;
        int32_t sum, first = 0;
        a->d[at] = rn_quant_act(x, q, &sum);
        for (int i = 0; i < RN_GROUP / 2; i++) {
            first += q[i];
        }
        a->sum[at] = (struct rn_act_sum){{(int16_t)first, (int16_t)(sum - first)}};
        a->sd[at] = (float)sum * a->d[at];
    }
}
