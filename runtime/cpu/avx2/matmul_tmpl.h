/* Matrix products of one weight format in 256-bit registers; included once per format by matmul_formats_tmpl.h, with
 *   ROW      suffix of the function names: avx2, avxvnni (and RN_DOT_VNNI, see dot_tmpl.h)
 *   FMT, BITS, SCALES: matmul_block_internal.h
 *   MAX      greatest unsigned operand: a code, or a value of the table plus OFFSET
 *   OFFSET   what the unsigned operand has too much
 *   VALUES   optional, if codes stand for values of a table: the values plus OFFSET, 16 bytes
 *
 * A group's 16 rows are two sides of 8: 8 registers hold 32 columns of a side, and every token passes before the next side is loaded.
 * The float sums of up to 16 tokens lie in the first-level cache: one load and store per 8 dot steps, so that a group of weights is read
 * and unpacked once for all tokens. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx2/dot_tmpl.h"
#include "runtime/cpu/avx2/scales_internal.h"
#include "runtime/cpu/matmul_block_internal.h"

// Bytes that weights are fetched ahead of their use, as in the 512-bit rows. 8 groups of a K type are 2.3 to 3.3 KB, and the place of the
// common scales is then the same.
#define AHEAD (SUPER_BYTES ? 8 * GROUP_BYTES + SUPER_BYTES : 2304)
#define AHEAD_GROUPS (SUPER_BYTES ? 8 : AHEAD / GROUP_BYTES)

/* What one side of a group gives to every token. */
struct NAME(side) {
    __m256i c[8]; // columns 4i .. 4i + 3 of 8 rows
    struct scales s;
};

/* Codes of side s, 8 rows. */
INLINE void NAME(load_codes)(const uint8_t *w, const int s, __m256i c[8])
{
#if BITS == 8
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        c[k] = load_bytes(w + 64 * k + 32 * s);
    }
#else
    const __m256i low = _mm256_set1_epi8(15);
#ifdef VALUES
    static const uint8_t values[16] = VALUES;
    const char zero = is_signed(MAX) ? (char)OFFSET : 0;
    const __m256i table = _mm256_broadcastsi128_si256(_mm_sub_epi8(_mm_loadu_si128((const void *)values), _mm_set1_epi8(zero)));
#endif
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) {
        const __m256i v = _mm256_loadu_si256((const void *)(w + 64 * (k / 2) + 32 * s));
        c[k] = _mm256_and_si256(k % 2 ? _mm256_srli_epi16(v, 4) : v, low);
#if BITS == 5 || BITS == 6
        // Bit k of a byte, or bits 2 (k % 4) and the next, to where the low four bits end; what crosses from byte to byte is masked away.
        const int left = BITS == 5 ? 4 - k : 4 - 2 * (k % 4);
        __m256i h = _mm256_loadu_si256((const void *)(w + 256 + (BITS == 6 ? 64 * (k / 4) : 0) + 32 * s));
        h = left > 0 ? _mm256_slli_epi16(h, left > 0 ? left : 0) : _mm256_srli_epi16(h, left > 0 ? 0 : -left);
        c[k] = _mm256_or_si256(c[k], _mm256_and_si256(h, _mm256_set1_epi8(BITS == 5 ? 0x10 : 0x30)));
#endif
#ifdef VALUES
        c[k] = _mm256_shuffle_epi8(table, c[k]);
#endif
    }
#endif
}

INLINE struct NAME(side) NAME(load_side)(const uint8_t *w, const uint8_t *super, const int s)
{
    struct NAME(side) ret;
    NAME(load_codes)(w, s, ret.c);
    ret.s = load_scales(SCALES, w + CODE_BYTES, super, s);
    return ret;
}

/* OFFSET times the sum of the activations, over the whole group or over one half of it. */
INLINE __m256i NAME(excess)(const struct rn_act_sum *sum, const bool first, const bool second)
{
    return _mm256_madd_epi16(four(sum), _mm256_set1_epi32((second ? OFFSET << 16 : 0) | (first ? OFFSET : 0)));
}

/* The integer sums of one group and token, as floats. */
INLINE __m256 NAME(group_sum)(const struct NAME(side) *w, const int8_t *q, const struct rn_act_sum *sum)
{
    const bool over = OFFSET != 0 && !is_signed(MAX);
    if (HALVES) { // exact: below 2^24. The added zero makes a product of -0 the +0 that an integer would give
        const __m256i a = _mm256_sub_epi32(dot_half(MAX, w->c, q), NAME(excess)(sum, true, false));
        const __m256i b = _mm256_sub_epi32(dot_half(MAX, w->c + 4, q + 16), NAME(excess)(sum, false, true));
        const __m256 second = _mm256_fmadd_ps(w->s.sub[1], _mm256_cvtepi32_ps(b), _mm256_setzero_ps());
        return _mm256_fmadd_ps(w->s.sub[0], _mm256_cvtepi32_ps(a), second);
    }
    const __m256i isum = dot_group(MAX, w->c, q);
    return _mm256_cvtepi32_ps(over ? _mm256_sub_epi32(isum, NAME(excess)(sum, true, true)) : isum);
}

/* Adds one group of one token; the activations' numbers are read where they lie. */
INLINE __m256 NAME(add_token)(const struct NAME(side) *w, const int8_t *q, const float *dx, const float *sd, const struct rn_act_sum *sum,
                              __m256 acc)
{
    acc = _mm256_fmadd_ps(NAME(group_sum)(w, q, sum), _mm256_mul_ps(w->s.d, _mm256_set1_ps(*dx)), acc);
    if (HAS_MIN) {
        const __m256 v = _mm256_set1_ps(*sd);
        acc = SCALES == SCALES_K ? _mm256_fnmadd_ps(w->s.min, v, acc) : _mm256_fmadd_ps(w->s.min, v, acc);
    }
    return acc;
}

INLINE void NAME(fetch)(const uint8_t *w)
{
    for (int i = 0; i < GROUP_BYTES; i += 64) {
        _mm_prefetch((const char *)w + i, _MM_HINT_T0);
    }
}

/* Block `block` of 16 rows for the first n tokens (1..16) of token block tb. */
static void NAME(tile)(const struct rn_mm_args *args, uint32_t block, uint32_t tb, uint32_t n)
{
    const struct rn_acts *a = args->a;
    const uint8_t *w = args->w + block * BLOCK_BYTES(args->n_groups), *super = w;
    size_t at = (size_t)tb * a->n_groups * a->mb;
    __m256 acc[2][16];
    for (uint32_t m = 0; m < n; m++) {
        acc[0][m] = acc[1][m] = _mm256_setzero_ps();
    }
    for (uint32_t g = 0; g < args->n_groups; g++, w += GROUP_BYTES, at += a->mb) {
        if (SUPER_BYTES && g % 8 == 0) {
            super = w;
            w += SUPER_BYTES;
            _mm_prefetch((const char *)super + AHEAD, _MM_HINT_T0);
        }
        NAME(fetch)(w + AHEAD);
#pragma GCC unroll 2
        for (int s = 0; s < 2; s++) {
            const struct NAME(side) side = NAME(load_side)(w, super, s);
            for (uint32_t m = 0; m < n; m++) {
                const size_t x = at + m;
                acc[s][m] = NAME(add_token)(&side, a->q + 32 * x, a->d + x, a->sd + x, a->sum + x, acc[s][m]);
            }
        }
    }
    float *y = args->y + (size_t)tb * 16 * args->ldy + (size_t)block * 16;
    for (uint32_t m = 0; m < n; m++) {
        _mm256_storeu_ps(y + m * args->ldy, acc[0][m]);
        _mm256_storeu_ps(y + m * args->ldy + 8, acc[1][m]);
    }
}

/* Row blocks `block` and `block + step` for one token: two streams of weights keep more reads in flight than one. `jump`
 * bytes are skipped by what the first stream fetches behind the end of its block. */
INLINE void NAME(two_blocks)(const struct rn_mm_args *args, uint32_t block, uint32_t step, size_t jump)
{
    const struct rn_acts *a = args->a;
    const uint32_t n_groups = args->n_groups;
    const uint8_t *w[2] = {args->w + block * BLOCK_BYTES(n_groups)}, *super[2] = {w[0], NULL};
    w[1] = super[1] = w[0] + step * BLOCK_BYTES(n_groups);
    __m256 acc[2][2];
    acc[0][0] = acc[0][1] = acc[1][0] = acc[1][1] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < n_groups; g++) {
#pragma GCC unroll 2
        for (int b = 0; b < 2; b++) {
            const size_t ahead = AHEAD + (b == 0 && g + AHEAD_GROUPS >= n_groups ? jump : 0);
            if (SUPER_BYTES && g % 8 == 0) {
                super[b] = w[b];
                w[b] += SUPER_BYTES;
                _mm_prefetch((const char *)super[b] + ahead, _MM_HINT_T0);
            }
            NAME(fetch)(w[b] + ahead);
#pragma GCC unroll 2
            for (int s = 0; s < 2; s++) {
                const struct NAME(side) side = NAME(load_side)(w[b], super[b], s);
                acc[b][s] = NAME(add_token)(&side, a->q + (size_t)g * 32, a->d + g, a->sd + g, a->sum + g, acc[b][s]);
            }
            w[b] += GROUP_BYTES;
        }
    }
#pragma GCC unroll 2
    for (int b = 0; b < 2; b++) {
        float *y = args->y + ((size_t)block + (size_t)b * step) * 16;
        _mm256_storeu_ps(y, acc[b][0]);
        _mm256_storeu_ps(y + 8, acc[b][1]);
    }
}

void NAME(rn_mm1)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    // Each stream runs through one half of the range, so that what is fetched ahead of it is what it reads next. At the end the second
    // stream fetches the start of the range behind this one, and the first stream the middle of that, if it is as long as this.
    const uint32_t half = (block1 - block0) / 2;
    const size_t jump = 2 * half * BLOCK_BYTES(args->n_groups);
    for (uint32_t b = block0; b < block0 + half; b++) {
        NAME(two_blocks)(args, b, half, b + 1 == block0 + half ? jump : 0);
    }
    if ((block1 - block0) % 2) {
        NAME(tile)(args, block1 - 1, 0, 1);
    }
}

#include "runtime/cpu/matmul_walk_tmpl.h"
