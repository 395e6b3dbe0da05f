/* Probes of the machine's limits for measure.c: plain reads, and multiply-add chains that never leave the registers. */
#include <immintrin.h>

#include "runtime/cpu/rows_internal.h"

static uint64_t sum64(__m256i v)
{
    __m128i s = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)_mm_cvtsi128_si64(s) + (uint64_t)_mm_extract_epi64(s, 1);
}

uint64_t rn_probe_read_avx2(const void *p, size_t bytes)
{
    // Two streams, 2 KB ahead: as the kernels do, so that they are compared with what they could reach.
    const size_t half = bytes / 256 * 128;
    const char *s = p, *t = s + half;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < half; i += 64) {
        _mm_prefetch(s + i + 2048, _MM_HINT_T0);
        _mm_prefetch(t + i + 2048, _MM_HINT_T0);
        a = _mm256_add_epi64(a, _mm256_load_si256((const void *)(s + i)));
        b = _mm256_add_epi64(b, _mm256_load_si256((const void *)(s + i + 32)));
        c = _mm256_add_epi64(c, _mm256_load_si256((const void *)(t + i)));
        d = _mm256_add_epi64(d, _mm256_load_si256((const void *)(t + i + 32)));
    }
    return sum64(_mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d)));
}

#define CHAINS 8 // more than latency times issue rate of any such core

uint64_t rn_probe_int8_avx2(uint64_t n_rounds, uint32_t seed)
{
    __m256i acc[CHAINS];
    __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8((char)(seed % 100 + 1));
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = _mm256_setzero_si256();
    }
    for (uint64_t r = 0; r < n_rounds; r++) {
        // The step of 4-bit weights: products in pairs, added in 16 bits. (Those of a whole group are widened once, which is left out.)
        for (int k = 0; k < RN_PROBE_INT8_MACS / 32 / CHAINS; k++) {
#pragma GCC unroll 8
            for (int i = 0; i < CHAINS; i++) {
                acc[i] = _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(x, y));
                __asm__("" : "+x"(y)); // the products must not be formed once for all
            }
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        acc[0] = _mm256_add_epi16(acc[0], acc[i]);
    }
    return sum64(acc[0]);
}
