/* Float weights for AVX2. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx2/vmath_internal.h"

typedef __m256 vec;
#define LANES 8
#define ROWS_ONE 4 // 8 sums
#define ROWS 2     // 2 x 3 x 2 sums, 1 register of weights and 3 of activations
#define TOKENS 3

INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

INLINE vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

INLINE vec vec_weights(const enum rn_dtype type, const void *w, size_t at)
{
    if (type == RN_DTYPE_F16) {
        return rn_v_load_f16((const uint16_t *)w + at);
    }
    if (type == RN_DTYPE_BF16) {
        const __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)((const uint16_t *)w + at)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    }
    return _mm256_loadu_ps((const float *)w + at);
}

INLINE vec vec_fma(vec acc, vec a, vec b)
{
    return _mm256_fmadd_ps(a, b, acc);
}

INLINE vec vec_fma_below(vec acc, vec a, vec b, uint32_t from, uint32_t end)
{
    return _mm256_blendv_ps(acc, _mm256_fmadd_ps(a, b, acc), _mm256_castsi256_ps(rn_v_first(end > from ? end - from : 0)));
}

INLINE float vec_sum(const vec lanes[2])
{
    return rn_v_lane_sum(lanes[0], lanes[1]);
}

#define ROW avx2
#include "runtime/cpu/matmul_float_tmpl.h"
