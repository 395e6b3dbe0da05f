/* Probes of the machine's limits for measure.c: plain reads, and vpdpbusd chains that never leave the registers. */
#include <immintrin.h>

#include "runtime/cpu/rows_internal.h"

/* Sum of the lanes without sign, which may wrap. */
static uint64_t lanes_sum(__m512i v)
{
    uint64_t lanes[8], sum = 0;
    _mm512_storeu_si512(lanes, v);
    for (int i = 0; i < 8; i++) {
        sum += lanes[i];
    }
    return sum;
}

uint64_t rn_probe_read_avx512vnni(const void *p, size_t bytes)
{
    // Two streams, 2 KB ahead: as the kernels do, so that they are compared with what they could reach.
    const size_t half = bytes / 256 * 128;
    const char *s = p, *t = s + half;
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < half; i += 128) {
        for (int k = 0; k < 128; k += 64) {
            _mm_prefetch(s + i + 2048 + k, _MM_HINT_T0);
            _mm_prefetch(t + i + 2048 + k, _MM_HINT_T0);
        }
        a = _mm512_add_epi64(a, _mm512_load_si512(s + i));
        b = _mm512_add_epi64(b, _mm512_load_si512(s + i + 64));
        c = _mm512_add_epi64(c, _mm512_load_si512(t + i));
        d = _mm512_add_epi64(d, _mm512_load_si512(t + i + 64));
    }
    return lanes_sum(_mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
}

#define CHAINS (RN_PROBE_INT8_MACS / 64) // 16: more than latency times issue rate of any such core

uint64_t rn_probe_int8_avx512vnni(uint64_t n_rounds, uint32_t seed)
{
    __m512i acc[CHAINS];
    __m512i x = _mm512_set1_epi8(3), y = _mm512_set1_epi8((char)(seed % 100 + 1));
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = _mm512_setzero_si512();
    }
    for (uint64_t r = 0; r < n_rounds; r++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = _mm512_dpbusd_epi32(acc[i], x, y);
        }
        __asm__ volatile("" : "+v"(x)); // the rounds must not be folded into one
    }
    for (int i = 1; i < CHAINS; i++) {
        acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    }
    return lanes_sum(acc[0]);
}
