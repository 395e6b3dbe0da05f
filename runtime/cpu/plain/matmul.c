/* Matrix products in plain C: the specification of every other row (kernels.h has the order of summation, repack.h the layout).
 *
 * One row of tokens, few and many differ only in which rows of a faster table they stand for, so here they are one function. */
#include <math.h>
#include <string.h>

#include "runtime/cpu/rows_internal.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/quant.h"

#define ROWS 16

enum { Q4_0, Q4_1, Q8_0 };

static const size_t group_bytes[] = {[Q4_0] = 288, [Q4_1] = 320, [Q8_0] = 544};

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof(h));
    return rn_f16_to_f32(h);
}

/* isum[r] = start + sum over the group of code * q_x for the 16 rows; `start` takes the codes' offset away: -offset * sum(q_x). */
static void dot_4bit(const uint8_t *w, const int8_t *x, int32_t start, int32_t isum[ROWS])
{
    for (int r = 0; r < ROWS; r++) {
        isum[r] = start;
    }
    for (int t = 0; t < 4; t++, w += 64, x += 8) {
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < 4; i++) {
                isum[r] += (w[4 * r + i] & 15) * x[i] + (w[4 * r + i] >> 4) * x[4 + i];
            }
        }
    }
}

static void dot_8bit(const uint8_t *w, const int8_t *x, int32_t start, int32_t isum[ROWS])
{
    for (int r = 0; r < ROWS; r++) {
        isum[r] = start;
    }
    for (int t = 0; t < 8; t++, w += 64, x += 4) {
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < 4; i++) {
                isum[r] += w[4 * r + i] * x[i];
            }
        }
    }
}

/* One block of 16 rows for one token m. */
static void block_token(int type, const uint8_t *w, const struct rn_mm_args *args, uint32_t m, float *y)
{
    const struct rn_acts *a = args->a;
    float acc[ROWS] = {0};
    for (uint32_t g = 0; g < args->n_groups; g++, w += group_bytes[type]) {
        size_t at = ((size_t)(m / a->mb) * a->n_groups + g) * a->mb + m % a->mb;
        const int8_t *x = a->q + at * RN_GROUP;
        const uint8_t *scales = w + (type == Q8_0 ? 512 : 256);
        int32_t isum[ROWS];
        switch (type) {
        case Q4_0:
            dot_4bit(w, x, -8 * a->sum[at], isum);
            break;
        case Q4_1:
            dot_4bit(w, x, 0, isum);
            break;
        default:
            dot_8bit(w, x, -128 * a->sum[at], isum);
        }
        for (int r = 0; r < ROWS; r++) {
            acc[r] = fmaf((float)isum[r], load_f16(scales + 2 * r) * a->d[at], acc[r]);
            if (type == Q4_1) {
                acc[r] = fmaf(a->sd[at], load_f16(scales + 2 * ROWS + 2 * r), acc[r]);
            }
        }
    }
    memcpy(y, acc, sizeof(acc));
}

static inline void matmul(int type, const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    for (uint32_t b = block0; b < block1; b++) {
        const uint8_t *w = args->w + (size_t)b * args->n_groups * group_bytes[type];
        for (uint32_t m = 0; m < args->a->n_tok; m++) {
            block_token(type, w, args, m, args->y + m * args->ldy + (size_t)b * ROWS);
        }
    }
}

#define MATMUL(op, type)                                                                                                                   \
    void rn_##op##_c(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)                                                      \
    {                                                                                                                                      \
        matmul(type, args, block0, block1);                                                                                                \
    }

MATMUL(mm1_q4_0, Q4_0)
MATMUL(mmf_q4_0, Q4_0)
MATMUL(mmn_q4_0, Q4_0)
MATMUL(mm1_q4_1, Q4_1)
MATMUL(mmf_q4_1, Q4_1)
MATMUL(mmn_q4_1, Q4_1)
MATMUL(mm1_q8_0, Q8_0)
MATMUL(mmf_q8_0, Q8_0)
MATMUL(mmn_q8_0, Q8_0)

void rn_mm_f16_c(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    for (uint32_t row = row0; row < row1; row++) {
        const uint16_t *w = (const uint16_t *)args->w + row * args->ldw;
        for (uint32_t m = 0; m < args->n_tok; m++) {
            const float *x = args->x + m * args->ldx;
            float lanes[16] = {0};
            for (uint32_t i = 0; i < args->n_cols; i++) { // the order of rn_lane_dot
                lanes[i % 16] = fmaf(rn_f16_to_f32(w[i]), x[i], lanes[i % 16]);
            }
            args->y[m * args->ldy + row] = rn_lane_sum(lanes);
        }
    }
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
        a->d[at] = rn_quant_act(x, a->q + at * RN_GROUP, &a->sum[at]);
        a->sd[at] = (float)a->sum[at] * a->d[at];
    }
}
