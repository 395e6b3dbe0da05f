/* Float weights for AVX2: the 16 virtual lanes of rn_lane_dot are two registers per (row, token). The last, partial step touches only
 * the lanes that have an element. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx2/vmath_internal.h"

enum { F16, BF16, F32 };

#define ROWS_ONE 4 // one token: 8 sums hide the latency of the fma
#define ROWS 2     // more tokens: 2 x 3 x 2 sums and 2 registers of weights; activations come from memory
#define TOKENS 3

INLINE __m256 load_weights(const int type, const void *w, size_t at)
{
    if (type == F16) {
        return rn_v_load_f16((const uint16_t *)w + at);
    }
    if (type == BF16) {
        const __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)((const uint16_t *)w + at)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    }
    return _mm256_loadu_ps((const float *)w + at);
}

/* acc = fma(w, x, acc) in the first `left` of 8 lanes. */
INLINE __m256 add_tail(__m256 acc, __m256 w, const float *x, uint32_t left)
{
    __m256i m = rn_v_first(left);
    return _mm256_blendv_ps(acc, _mm256_fmadd_ps(w, _mm256_maskload_ps(x, m), acc), _mm256_castsi256_ps(m));
}

/* n_rows x n_tok outputs; both are constants at each call, so that the sums stay in registers. */
INLINE void tile(const int type, const uint32_t n_rows, const uint32_t n_tok, const struct rn_mmf_args *args, uint32_t row, uint32_t m)
{
    const float *x = args->x + m * args->ldx;
    const size_t w0 = row * args->ldw, ldx = args->ldx;
    __m256 acc[ROWS_ONE][TOKENS][2];
#pragma GCC unroll 4
    for (uint32_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 3
        for (uint32_t t = 0; t < n_tok; t++) {
            acc[r][t][0] = acc[r][t][1] = _mm256_setzero_ps();
        }
    }
    uint32_t i = 0;
    for (; i + 16 <= args->n_cols; i += 16) {
#pragma GCC unroll 4
        for (uint32_t r = 0; r < n_rows; r++) {
            __m256 a = load_weights(type, args->w, w0 + r * args->ldw + i), b = load_weights(type, args->w, w0 + r * args->ldw + i + 8);
#pragma GCC unroll 3
            for (uint32_t t = 0; t < n_tok; t++) {
                acc[r][t][0] = _mm256_fmadd_ps(a, _mm256_loadu_ps(x + t * ldx + i), acc[r][t][0]);
                acc[r][t][1] = _mm256_fmadd_ps(b, _mm256_loadu_ps(x + t * ldx + i + 8), acc[r][t][1]);
            }
        }
    }
    const uint32_t left = args->n_cols - i;
#pragma GCC unroll 4
    for (uint32_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 3
        for (uint32_t t = 0; t < n_tok; t++) {
            if (left) { // the row is padded to 16 weights
                acc[r][t][0] = add_tail(acc[r][t][0], load_weights(type, args->w, w0 + r * args->ldw + i), x + t * ldx + i, left);
            }
            if (left > 8) {
                acc[r][t][1] =
                    add_tail(acc[r][t][1], load_weights(type, args->w, w0 + r * args->ldw + i + 8), x + t * ldx + i + 8, left - 8);
            }
            args->y[(m + t) * args->ldy + row + r] = rn_v_lane_sum(acc[r][t][0], acc[r][t][1]);
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

void rn_mm_f16_avx2(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(F16, args, row0, row1);
}

void rn_mm_bf16_avx2(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(BF16, args, row0, row1);
}

void rn_mm_f32_avx2(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(F32, args, row0, row1);
}
