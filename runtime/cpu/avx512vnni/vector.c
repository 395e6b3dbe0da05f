/* Vector kernels with AVX-512: the bits of plain/vector.c. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/cpu/avx512vnni/vmath_internal.h"

void rn_norm_avx512vnni(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    __m512 lanes = _mm512_setzero_ps();
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        lanes = _mm512_fmadd_ps(v, v, lanes);
    }
    __mmask16 tail = rn_v_first(n - i);
    if (tail) {
        __m512 v = _mm512_maskz_loadu_ps(tail, x + i);
        lanes = _mm512_mask3_fmadd_ps(v, v, lanes, tail);
    }
    float scale = 1.0f / sqrtf(rn_v_lane_sum(lanes) / (float)n + eps);
    __m512 r = _mm512_set1_ps(scale);
    for (i = 0; i < n; i += 16) {
        __mmask16 m = rn_v_first(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), r);
        _mm512_mask_storeu_ps(out + i, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, w + i)));
    }
}

void rn_add_avx512vnni(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = rn_v_first(n - i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i)));
    }
}

void rn_silu_mul_avx512vnni(const float *gate, const float *up, float *out, uint32_t n)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = rn_v_first(n - i);
        __m512 x = _mm512_maskz_loadu_ps(m, gate + i);
        __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, rn_v_exp(_mm512_xor_ps(x, sign))));
        _mm512_mask_storeu_ps(out + i, m, _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(m, up + i)));
    }
}

void rn_gelu_mul_avx512vnni(const float *gate, const float *up, float *out, uint32_t n)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f), line = _mm512_set1_ps(RN_GELU_LINE), cube = _mm512_set1_ps(RN_GELU_CUBE);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = rn_v_first(n - i);
        __m512 x = _mm512_maskz_loadu_ps(m, gate + i);
        __m512 u = _mm512_mul_ps(x, _mm512_fmadd_ps(cube, _mm512_mul_ps(x, x), line));
        __m512 gelu = _mm512_div_ps(x, _mm512_add_ps(one, rn_v_exp(_mm512_xor_ps(u, sign))));
        _mm512_mask_storeu_ps(out + i, m, _mm512_mul_ps(gelu, _mm512_maskz_loadu_ps(m, up + i)));
    }
}

/* Pairs (i, i + half). */
static void rope_split(const float *x, const float *cs, uint32_t half, float *out)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (uint32_t i = 0; i < half; i += 16) {
        uint32_t left = half - i;
        __mmask16 m = rn_v_first(left);
        __m512 cs0 = _mm512_maskz_loadu_ps(rn_v_first(2 * left), cs + 2 * i);
        __m512 cs1 = _mm512_maskz_loadu_ps(left > 8 ? rn_v_first(2 * left - 16) : 0, cs + 2 * i + 16);
        __m512 c = _mm512_permutex2var_ps(cs0, even, cs1), s = _mm512_permutex2var_ps(cs0, odd, cs1);
        __m512 a = _mm512_maskz_loadu_ps(m, x + i), b = _mm512_maskz_loadu_ps(m, x + half + i);
        _mm512_mask_storeu_ps(out + i, m, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(out + half + i, m, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
    }
}

/* Pairs (2i, 2i + 1): even lanes give fma(a, cos, -(b * sin)), odd lanes fma(a, sin, b * cos). */
static void rope_interleaved(const float *x, const float *cs, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = rn_v_first(n - i);
        __m512 v = _mm512_maskz_loadu_ps(m, x + i), t = _mm512_maskz_loadu_ps(m, cs + i);
        __m512 sc = _mm512_permute_ps(t, 0xb1); // sin, cos
        __m512 b = _mm512_mul_ps(_mm512_movehdup_ps(v), sc);
        _mm512_mask_storeu_ps(out + i, m, _mm512_fmaddsub_ps(_mm512_moveldup_ps(v), t, b));
    }
}

void rn_rope_avx512vnni(const float *x, const float *cs, uint32_t head_dim, uint32_t n_rot, bool interleaved, float *out)
{
    uint32_t half = n_rot / 2;
    if (interleaved) {
        rope_interleaved(x, cs, 2 * half, out);
    } else {
        rope_split(x, cs, half, out);
    }
    memcpy(out + 2 * half, x + 2 * half, (head_dim - 2 * half) * sizeof *out);
}
