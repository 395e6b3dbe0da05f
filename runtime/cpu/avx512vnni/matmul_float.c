/* Float weights for AVX-512. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx512vnni/vmath_internal.h"

typedef __m512 vec;
#define LANES 16
#define ROWS_ONE 8
#define ROWS 4 // 4 x 4 sums
#define TOKENS 4

INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

INLINE vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE vec vec_weights(const enum rn_dtype type, const void *w, size_t at)
{
    if (type == RN_DTYPE_F16) {
        return rn_v_load_f16((const uint16_t *)w + at);
    }
    if (type == RN_DTYPE_BF16) {
        const __m256i v = _mm256_loadu_si256((const void *)((const uint16_t *)w + at));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
    }
    return _mm512_loadu_ps((const float *)w + at);
}

INLINE vec vec_fma(vec acc, vec a, vec b)
{
    return _mm512_fmadd_ps(a, b, acc);
}

INLINE vec vec_fma_below(vec acc, vec a, vec b, uint32_t from, uint32_t end)
{
    return _mm512_mask3_fmadd_ps(a, b, acc, rn_v_first(end > from ? end - from : 0));
}

INLINE float vec_sum(const vec lanes[1])
{
    return rn_v_lane_sum(lanes[0]);
}

#define ROW avx512vnni
#include "runtime/cpu/matmul_float_tmpl.h"
