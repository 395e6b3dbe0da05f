/* Vector kernels with AVX2: the bits of plain/vector.c. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/cpu/avx2/vmath_internal.h"

/* Adds the squares of the first `left` of 8 elements at p; the other lanes add +0 to what is never -0. */
static inline __m256 add_squares(__m256 lanes, const float *p, uint32_t left)
{
    __m256 v = _mm256_maskload_ps(p, rn_v_first(left));
    return _mm256_fmadd_ps(v, v, lanes);
}

void rn_norm_avx2(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    __m256 lanes0 = _mm256_setzero_ps(), lanes8 = lanes0;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        lanes0 = _mm256_fmadd_ps(a, a, lanes0);
        lanes8 = _mm256_fmadd_ps(b, b, lanes8);
    }
    if (i < n) {
        lanes0 = add_squares(lanes0, x + i, n - i);
    }
    if (i + 8 < n) {
        lanes8 = add_squares(lanes8, x + i + 8, n - i - 8);
    }
    float scale = 1.0f / sqrtf(rn_v_lane_sum(lanes0, lanes8) / (float)n + eps);
    __m256 r = _mm256_set1_ps(scale);
    for (i = 0; i < n; i += 8) {
        __m256i m = rn_v_first(n - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, m), r);
        _mm256_maskstore_ps(out + i, m, _mm256_mul_ps(v, _mm256_maskload_ps(w + i, m)));
    }
}

void rn_add_avx2(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i m = rn_v_first(n - i);
        _mm256_maskstore_ps(x + i, m, _mm256_add_ps(_mm256_maskload_ps(x + i, m), _mm256_maskload_ps(y + i, m)));
    }
}

/* x / (1 + exp(-u)). */
static inline __m256 sigmoid_times(__m256 x, __m256 u)
{
    return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), rn_v_exp(_mm256_xor_ps(u, _mm256_set1_ps(-0.0f)))));
}

void rn_silu_mul_avx2(const float *gate, const float *up, float *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i m = rn_v_first(n - i);
        __m256 x = _mm256_maskload_ps(gate + i, m);
        _mm256_maskstore_ps(out + i, m, _mm256_mul_ps(sigmoid_times(x, x), _mm256_maskload_ps(up + i, m)));
    }
}

void rn_gelu_mul_avx2(const float *gate, const float *up, float *out, uint32_t n)
{
    const __m256 line = _mm256_set1_ps(RN_GELU_LINE), cube = _mm256_set1_ps(RN_GELU_CUBE);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i m = rn_v_first(n - i);
        __m256 x = _mm256_maskload_ps(gate + i, m);
        __m256 u = _mm256_mul_ps(x, _mm256_fmadd_ps(cube, _mm256_mul_ps(x, x), line));
        _mm256_maskstore_ps(out + i, m, _mm256_mul_ps(sigmoid_times(x, u), _mm256_maskload_ps(up + i, m)));
    }
}

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
