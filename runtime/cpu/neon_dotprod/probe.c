/* Probes of the machine's limits for measure.c: plain reads, and udot chains that never leave the registers. */
#include <arm_neon.h>

#include "runtime/cpu/rows_internal.h"

uint64_t rn_probe_read_neon_dotprod(const void *p, size_t bytes)
{
    const uint64_t *s = p;
    uint64x2_t a = vdupq_n_u64(0), b = a, c = a, d = a;
    for (size_t i = 0; i < bytes / sizeof(*s); i += 8) {
        __builtin_prefetch(s + i + 256);
        a = vaddq_u64(a, vld1q_u64(s + i));
        b = vaddq_u64(b, vld1q_u64(s + i + 2));
        c = vaddq_u64(c, vld1q_u64(s + i + 4));
        d = vaddq_u64(d, vld1q_u64(s + i + 6));
    }
    return vaddvq_u64(vaddq_u64(vaddq_u64(a, b), vaddq_u64(c, d)));
}

#define CHAINS 16 // at least latency times issue rate of any such core

uint64_t rn_probe_int8_neon_dotprod(uint64_t n_rounds, uint32_t seed)
{
    uint32x4_t acc[CHAINS];
    uint8x16_t x = vdupq_n_u8(3), y = vdupq_n_u8((uint8_t)(seed % 100 + 1));
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = vdupq_n_u32(0);
    }
    for (uint64_t r = 0; r < n_rounds; r++) {
        for (int k = 0; k < RN_PROBE_INT8_MACS / 16 / CHAINS; k++) {
#pragma GCC unroll 16
            for (int i = 0; i < CHAINS; i++) {
                acc[i] = vdotq_u32(acc[i], x, y);
            }
        }
        __asm__ volatile("" : "+w"(x)); // the rounds must not be folded into one
    }
    for (int i = 1; i < CHAINS; i++) {
        acc[0] = vaddq_u32(acc[0], acc[i]);
    }
    return vaddlvq_u32(acc[0]);
}
