/* The integer dot steps that AVX2 and AVX-VNNI do differently; included by files that set RN_DOT_VNNI to 0 or 1.
 *
 * A weight operand is 32 bytes: 4 columns of 8 rows. Both instruction sets multiply unsigned weights by signed activations, but AVX2 adds
 * the pairs of products in int16, and activations have a magnitude of up to 127. So codes up to 16 may be summed in int16 over a whole
 * group (8 * 2 * 16 * 127 = 32512), codes up to 32 over half of one and codes up to 64 over a quarter. Greater ones would overflow: they
 * become signed weights, whose magnitudes, 128 at most, are the unsigned operand and whose signs go to the activations. Thread: any; pure. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "runtime/cpu/avx2/vmath_internal.h"

typedef int32_t rn_i32_alias __attribute__((may_alias)); // four int8 activations, or the two sums of a group, read as one word

/* The four bytes at p in every lane. */
INLINE __m256i four(const void *p)
{
    return _mm256_set1_epi32(*(const rn_i32_alias *)p);
}

/* True when weights whose greatest code is `max` must be signed. */
INLINE bool is_signed(const int max)
{
    return !RN_DOT_VNNI && max > 64;
}

#if RN_DOT_VNNI
#define BYTE_OFFSET 128 // what dot_byte has too much when the weights are stored plus 128, times the sum of the activations

INLINE __m256i load_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

/* acc + w . q: bytes from load_bytes with the four activations of q. */
INLINE __m256i dot_byte(__m256i acc, __m256i w, __m256i q)
{
    return _mm256_dpbusd_avx_epi32(acc, w, q);
}

/* Codes up to `max` (signed weights where is_signed) of half a group with its 16 activations. */
INLINE __m256i dot_half(const int max, const __m256i c[4], const int8_t *q)
{
    (void)max;
    __m256i acc = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        acc = _mm256_dpbusd_avx_epi32(acc, c[i], four(q + 4 * i));
    }
    return acc;
}
#else
#define BYTE_OFFSET 0

INLINE __m256i load_bytes(const uint8_t *p)
{
    return _mm256_xor_si256(_mm256_loadu_si256((const void *)p), _mm256_set1_epi8((char)0x80));
}

INLINE __m256i widen(__m256i pairs)
{
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

INLINE __m256i dot_byte(__m256i acc, __m256i w, __m256i q)
{
    return _mm256_add_epi32(acc, widen(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w))));
}

/* Two operands in int16. */
INLINE __m256i pairs2(const __m256i c[2], const int8_t *q)
{
    return _mm256_add_epi16(_mm256_maddubs_epi16(c[0], four(q)), _mm256_maddubs_epi16(c[1], four(q + 4)));
}

INLINE __m256i dot_half(const int max, const __m256i c[4], const int8_t *q)
{
    if (is_signed(max)) {
        __m256i acc = dot_byte(_mm256_setzero_si256(), c[0], four(q));
        acc = dot_byte(acc, c[1], four(q + 4));
        acc = dot_byte(acc, c[2], four(q + 8));
        return dot_byte(acc, c[3], four(q + 12));
    }
    __m256i a = pairs2(c, q), b = pairs2(c + 2, q + 8);
    return max > 32 ? _mm256_add_epi32(widen(a), widen(b)) : widen(_mm256_add_epi16(a, b));
}
#endif

/* The same for a whole group. */
INLINE __m256i dot_group(const int max, const __m256i c[8], const int8_t *q)
{
#if !RN_DOT_VNNI
    if (max <= 16) {
        __m256i a = _mm256_add_epi16(pairs2(c, q), pairs2(c + 2, q + 8)),
                b = _mm256_add_epi16(pairs2(c + 4, q + 16), pairs2(c + 6, q + 24));
        return widen(_mm256_add_epi16(a, b));
    }
#endif
    return _mm256_add_epi32(dot_half(max, c, q), dot_half(max, c + 4, q + 16));
}
