/* Float weights for AVX-512: the 16 virtual lanes of rn_lane_dot are one register per (row, token); a step reads a few rows' weights
 * and a few tokens' activations and multiplies all pairs. The last, partial step touches only the lanes that have an element. */
#include <immintrin.h>

#include "runtime/cpu/rows_internal.h"

#define INLINE static inline __attribute__((always_inline))

enum { F16, BF16, F32 };

INLINE __m512 load_weights(const int type, const void *w, size_t at)
{
    if (type == F16) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)((const uint16_t *)w + at)));
    }
    if (type == BF16) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)((const uint16_t *)w + at));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
    }
    return _mm512_loadu_ps((const float *)w + at);
}

/* The tree 8-4-2-1 of rn_lane_sum. */
INLINE float lane_sum(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* n_rows x n_tok outputs; both are constants at each call, so that the sums stay in registers. */
INLINE void tile(const int type, const int n_rows, const int n_tok, const struct rn_mmf_args *args, uint32_t row, uint32_t m)
{
    const float *x = args->x + m * args->ldx;
    const size_t w0 = row * args->ldw;
    __m512 acc[8][4];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (int t = 0; t < n_tok; t++) {
            acc[r][t] = _mm512_setzero_ps();
        }
    }
    uint32_t i = 0;
    for (; i + 16 <= args->n_cols; i += 16) {
        __m512 v[4];
#pragma GCC unroll 4
        for (int t = 0; t < n_tok; t++) {
            v[t] = _mm512_loadu_ps(x + t * args->ldx + i);
        }
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            __m512 w = load_weights(type, args->w, w0 + r * args->ldw + i);
#pragma GCC unroll 4
            for (int t = 0; t < n_tok; t++) {
                acc[r][t] = _mm512_fmadd_ps(w, v[t], acc[r][t]);
            }
        }
    }
    const __mmask16 rest = (__mmask16)((1u << (args->n_cols - i)) - 1);
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++) {
        __m512 w = rest ? load_weights(type, args->w, w0 + r * args->ldw + i) : _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int t = 0; t < n_tok; t++) {
            __m512 v = _mm512_maskz_loadu_ps(rest, x + t * args->ldx + i);
            acc[r][t] = _mm512_mask3_fmadd_ps(w, v, acc[r][t], rest);
            args->y[(m + (uint32_t)t) * args->ldy + row + (uint32_t)r] = lane_sum(acc[r][t]);
        }
    }
}

/* All tokens for n_rows rows. */
INLINE void rows_all_tokens(const int type, const int n_rows, const struct rn_mmf_args *args, uint32_t row)
{
    uint32_t m = 0;
    for (; m + 4 <= args->n_tok; m += 4) {
        tile(type, n_rows, 4, args, row, m);
    }
    switch (args->n_tok - m) {
    case 1:
        tile(type, n_rows, 1, args, row, m);
        break;
    case 2:
        tile(type, n_rows, 2, args, row, m);
        break;
    case 3:
        tile(type, n_rows, 3, args, row, m);
        break;
    default:
        break;
    }
}

INLINE void matmul(const int type, const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    uint32_t row = row0;
    // One token: 8 independent sums hide the latency of the fma; more tokens: 4 rows x 4 tokens leave room for the operands.
    for (; args->n_tok == 1 && row + 8 <= row1; row += 8) {
        tile(type, 8, 1, args, row, 0);
    }
    for (; row + 4 <= row1; row += 4) {
        rows_all_tokens(type, 4, args, row);
    }
    for (; row < row1; row++) {
        rows_all_tokens(type, 1, args, row);
    }
}

void rn_mm_f16_avx512vnni(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(F16, args, row0, row1);
}

void rn_mm_bf16_avx512vnni(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(BF16, args, row0, row1);
}

void rn_mm_f32_avx512vnni(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1)
{
    matmul(F32, args, row0, row1);
}
