/* The floating-point mode of kernels: denormals become zero, as operands and as results. x86: FTZ and DAZ of MXCSR; ARM: FZ of FPCR,
 * which is both. Halves that are subnormal convert to floats that are not, so conversions are untouched. What rounds up to the smallest
 * normal float is a result on x86 and zero on ARM: there two architectures may differ, the rows of one never do.
 * Thread: the mode is each thread's own. */
#pragma once

#include <stdint.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#if defined(__SSE__)
#define RN_FLUSH_BITS 0x8040u

static inline uint64_t rn_flush_mode(void)
{
    return _mm_getcsr();
}

static inline void rn_flush_set(uint64_t mode)
{
    _mm_setcsr((unsigned)mode);
}
#elif defined(__aarch64__)
#define RN_FLUSH_BITS 0x1000000u

static inline uint64_t rn_flush_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

static inline void rn_flush_set(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#else
#define RN_FLUSH_BITS 0u

static inline uint64_t rn_flush_mode(void)
{
    return 0;
}

static inline void rn_flush_set(uint64_t mode)
{
    (void)mode;
}
#endif

/* Sets the mode; returns what rn_flush_restore takes. */
static inline uint64_t rn_flush_denormals(void)
{
    uint64_t old = rn_flush_mode();
    rn_flush_set(old | RN_FLUSH_BITS);
    return old;
}

static inline void rn_flush_restore(uint64_t old)
{
    rn_flush_set((rn_flush_mode() & ~(uint64_t)RN_FLUSH_BITS) | (old & RN_FLUSH_BITS));
}
