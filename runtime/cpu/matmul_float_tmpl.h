/* Products with float weights; included once per instruction set, with
 *   ROW         suffix of the function names: avx2
 *   vec         a register of floats, LANES of them (4, 8 or 16): the 16 virtual lanes of rn_lane_dot are 16 / LANES registers per
 *               (row, token)
 *   ROWS_ONE    rows per tile of one token: as many sums as hide the latency of the fma
 *   ROWS        rows per tile of more tokens, TOKENS of them (1..4): what the registers hold beside the operands
 *   vec_zero    0
 *   vec_load    LANES floats
 *   vec_weights LANES weights of a type
 *   vec_fma     fma(a, b, acc)
 *   vec_fma_below   the same in those of the virtual lanes from, from + 1, ... that are below `end`
 *   vec_sum     rn_lane_sum of 16 / LANES registers
 * A step reads a few rows' weights and a few tokens' activations and multiplies all pairs. The last, partial step touches only the lanes
 * that have an element. Thread: any; pure. */
#include <string.h>

#define REGISTERS (16 / LANES)

/* n_rows x n_tok outputs; both are constants at each call, so that the sums stay in registers. */
INLINE void tile(const enum rn_dtype type, const uint32_t n_rows, const uint32_t n_tok, const struct rn_mmf_args *args, uint32_t row,
                 uint32_t m)
{
    const float *x = args->x + m * args->ldx;
    const size_t w0 = row * args->ldw, ldx = args->ldx;
    const uint32_t left = args->n_cols % 16;
    float last[TOKENS][16]; // the activations of the last, partial step; made first, while there are no sums to save
    for (uint32_t t = 0; t < n_tok && left; t++) {
        memset(last[t], 0, sizeof(last[t]));
        memcpy(last[t], x + t * ldx + args->n_cols - left, left * sizeof(*x));
    }
    vec acc[ROWS_ONE][TOKENS][REGISTERS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < n_tok; t++) {
#pragma GCC unroll 4
            for (uint32_t k = 0; k < REGISTERS; k++) {
                acc[r][t][k] = vec_zero();
            }
        }
    }
    size_t i = 0;
    for (; i + 16 <= args->n_cols; i += 16) {
#pragma GCC unroll 4
        for (uint32_t k = 0; k < REGISTERS; k++) {
#pragma GCC unroll 8
            for (uint32_t r = 0; r < n_rows; r++) {
                const vec w = vec_weights(type, args->w, w0 + r * args->ldw + i + LANES * k);
#pragma GCC unroll 4
                for (uint32_t t = 0; t < n_tok; t++) {
                    acc[r][t][k] = vec_fma(acc[r][t][k], w, vec_load(x + t * ldx + i + LANES * k));
                }
            }
        }
    }
#pragma GCC unroll 4
    for (uint32_t k = 0; k < REGISTERS && left; k++) {
#pragma GCC unroll 8
        for (uint32_t r = 0; r < n_rows; r++) {
            const vec w = vec_weights(type, args->w, w0 + r * args->ldw + i + LANES * k); // the row is padded to 16 weights
#pragma GCC unroll 4
            for (uint32_t t = 0; t < n_tok; t++) {
                acc[r][t][k] = vec_fma_below(acc[r][t][k], w, vec_load(last[t] + LANES * k), LANES * k, left);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t < n_tok; t++) {
            args->y[(m + t) * args->ldy + row + r] = vec_sum(acc[r][t]);
        }
    }
}

/* All tokens for n_rows rows. */
INLINE void rows_all_tokens(const enum rn_dtype type, const uint32_t n_rows, const struct rn_mmf_args *args, uint32_t row)
{
    uint32_t m = 0;
    for (; m + TOKENS <= args->n_tok; m += TOKENS) {
        tile(type, n_rows, TOKENS, args, row, m);
    }
    const uint32_t left = args->n_tok - m;
    if (left == 1) {
        tile(type, n_rows, 1, args, row, m);
    } else if (TOKENS > 2 && left == 2) {
        tile(type, n_rows, 2, args, row, m);
    } else if (TOKENS > 3 && left == 3) {
        tile(type, n_rows, 3, args, row, m);
    }
}

INLINE void matmul(const enum rn_dtype type, const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    uint32_t row = row0;
    for (; args->n_tok == 1 && row + ROWS_ONE <= row1; row += ROWS_ONE) {
        tile(type, ROWS_ONE, 1, args, row, 0);
    }
    for (; row + ROWS <= row1; row += ROWS) {
        rows_all_tokens(type, ROWS, args, row);
    }
    for (; row < row1; row++) {
        rows_all_tokens(type, 1, args, row);
    }
}

#define NAME(name) RN_ROW_NAME(name, ROW)

void NAME(rn_mm_f16)(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(RN_DTYPE_F16, args, row0, row1);
}

void NAME(rn_mm_bf16)(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(RN_DTYPE_BF16, args, row0, row1);
}

void NAME(rn_mm_f32)(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(RN_DTYPE_F32, args, row0, row1);
}
