/* The integer probe of 8-bit matrix products for measure.c: ummla chains that never leave the registers. */
#include <arm_neon.h>

#include "runtime/cpu/rows_internal.h"

#define CHAINS 16 // at least latency times issue rate of any such core

uint64_t rn_probe_int8_neon_i8mm(uint64_t n_rounds, uint32_t seed)
{
    uint32x4_t acc[CHAINS];
    uint8x16_t x = vdupq_n_u8(3), y = vdupq_n_u8((uint8_t)(seed % 100 + 1));
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = vdupq_n_u32(0);
    }
    for (uint64_t r = 0; r < n_rounds; r++) {
        for (int k = 0; k < RN_PROBE_INT8_MACS / 32 / CHAINS; k++) {
#pragma GCC unroll 16
            for (int i = 0; i < CHAINS; i++) {
                acc[i] = vmmlaq_u32(acc[i], x, y);
            }
        }
        __asm__ volatile("" : "+w"(x)); // the rounds must not be folded into one
    }
    for (int i = 1; i < CHAINS; i++) {
        acc[0] = vaddq_u32(acc[0], acc[i]);
    }
    return vaddlvq_u32(acc[0]);
}
