/* Vector kernels with AVX2: the bits of plain/vector.c. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include <string.h>

#include "runtime/cpu/avx2/vmath_internal.h"

#define ROW avx2
#include "runtime/cpu/f8/vector_tmpl.h"

/* Pairs (i, i + half). */
static void rope_split(const float *x, const float *cs, uint32_t half, float *out)
{
    for (uint32_t i = 0; i < half; i += 8) {
        uint32_t left = half - i;
        __m256i m = rn_v_first(left);
        __m256 cs0 = _mm256_maskload_ps(cs + 2 * i, rn_v_first(2 * left));
        __m256 cs1 = _mm256_maskload_ps(cs + 2 * i + 8, rn_v_first(left > 4 ? 2 * left - 8 : 0));
        // Within 128-bit halves: pairs 0 1 4 5 | 2 3 6 7.
        __m256d c01 = _mm256_castps_pd(_mm256_shuffle_ps(cs0, cs1, 0x88)), s01 = _mm256_castps_pd(_mm256_shuffle_ps(cs0, cs1, 0xdd));
        __m256 c = _mm256_castpd_ps(_mm256_permute4x64_pd(c01, 0xd8)), s = _mm256_castpd_ps(_mm256_permute4x64_pd(s01, 0xd8));
        __m256 a = _mm256_maskload_ps(x + i, m), b = _mm256_maskload_ps(x + half + i, m);
        _mm256_maskstore_ps(out + i, m, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_maskstore_ps(out + half + i, m, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    }
}

/* Pairs (2i, 2i + 1): even lanes give fma(a, cos, -(b * sin)), odd lanes fma(a, sin, b * cos). */
static void rope_interleaved(const float *x, const float *cs, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i m = rn_v_first(n - i);
        __m256 v = _mm256_maskload_ps(x + i, m), t = _mm256_maskload_ps(cs + i, m);
        __m256 sc = _mm256_permute_ps(t, 0xb1); // sin, cos
        __m256 b = _mm256_mul_ps(_mm256_movehdup_ps(v), sc);
        _mm256_maskstore_ps(out + i, m, _mm256_fmaddsub_ps(_mm256_moveldup_ps(v), t, b));
    }
}

void rn_rope_avx2(const float *x, const float *cs, uint32_t head_dim, uint32_t n_rot, bool interleaved, float *out)
{
    uint32_t half = n_rot / 2;
    if (interleaved) {
        rope_interleaved(x, cs, 2 * half, out);
    } else {
        rope_split(x, cs, half, out);
    }
    memcpy(out + 2 * half, x + 2 * half, (head_dim - 2 * half) * sizeof *out);
}
