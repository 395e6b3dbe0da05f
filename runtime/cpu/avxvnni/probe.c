/* The integer probe of AVX-VNNI for measure.c: vpdpbusd chains that never leave the registers. */
#include <immintrin.h>

#include "runtime/cpu/rows_internal.h"

#define CHAINS 8 // more than latency times issue rate of any such core

uint64_t rn_probe_int8_avxvnni(uint64_t n_rounds, uint32_t seed)
{
    __m256i acc[CHAINS];
    __m256i x = _mm256_set1_epi8(3), y = _mm256_set1_epi8((char)(seed % 100 + 1));
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = _mm256_setzero_si256();
    }
    for (uint64_t r = 0; r < n_rounds; r++) {
        for (int k = 0; k < RN_PROBE_INT8_MACS / 32 / CHAINS; k++) {
#pragma GCC unroll 8
            for (int i = 0; i < CHAINS; i++) {
                acc[i] = _mm256_dpbusd_avx_epi32(acc[i], x, y);
            }
        }
        __asm__ volatile("" : "+x"(x)); // the rounds must not be folded into one
    }
    for (int i = 1; i < CHAINS; i++) {
        acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(acc[0]), _mm256_extracti128_si256(acc[0], 1));
    return (uint64_t)_mm_cvtsi128_si64(s) + (uint64_t)_mm_extract_epi64(s, 1);
}
