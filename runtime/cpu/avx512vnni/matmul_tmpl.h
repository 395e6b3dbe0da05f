/* Matrix products of one weight format for AVX-512 VNNI; included once per format, with
 *   ROW      avx512vnni
 *   FMT, BITS, SCALES: matmul_block_internal.h
 *   VALUES   if codes stand for values of a table: the values plus OFFSET, 16 bytes
 *   OFFSET   what the unsigned operand has too much: the integer sums start at -OFFSET * sum(q_x), which costs nothing
 *
 * One tile is 16 rows x 1..16 tokens: 8 registers hold the group's 32 columns of 16 rows, 16 hold the tokens' float sums, and each
 * vpdpbusd takes its 4 activations by a broadcast embedded in the instruction. Compilers emit a broadcast load of its own for that,
 * which costs a third of the speed (330 instead of 450 to 475 GMAC/s on two cores), hence the line of assembly. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx512vnni/scales_internal.h"
#include "runtime/cpu/matmul_block_internal.h"

// Bytes that weights are fetched ahead of their use: 1.7 to 2.6 KB were equally good, less was slower. 8 groups of a K type are 2.3 to
// 3.3 KB, and the place of the common scales is then the same.
#define AHEAD (SUPER_BYTES ? 8 * GROUP_BYTES + SUPER_BYTES : 2304)
#define AHEAD_GROUPS (SUPER_BYTES ? 8 : AHEAD / GROUP_BYTES)

typedef int32_t i32_alias __attribute__((may_alias)); // four int8 activations read as one word

/* acc += w (unsigned codes) . the four int8 at p, for 16 rows. */
#define DOT(acc, w, p) __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const i32_alias *)(p)))

struct codes {
    __m512i c[8]; // columns 4i .. 4i + 3 of 16 rows
};

#if BITS == 8
INLINE struct codes load_codes(const uint8_t *w)
{
    struct codes ret;
    for (int t = 0; t < 8; t++) {
        ret.c[t] = _mm512_loadu_si512(w + 64 * t);
    }
    return ret;
}
#else
/* v shifted by n to the left, by -n to the right; what crosses from byte to byte is masked away later. */
INLINE __m512i shift(__m512i v, const int n)
{
    return n > 0 ? _mm512_slli_epi16(v, (unsigned)n) : n < 0 ? _mm512_srli_epi16(v, (unsigned)-n) : v;
}

INLINE struct codes load_codes(const uint8_t *w)
{
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(BITS == 5 ? 0x10 : 0x30);
    struct codes ret;
    for (int k = 0; k < 8; k++) {
        __m512i v = shift(_mm512_loadu_si512(w + 64 * (k / 2)), -4 * (k % 2));
        if (BITS == 4) {
            ret.c[k] = _mm512_and_si512(v, low);
            continue;
        }
        // Bit k of a byte, or bits 2 (k % 4) and the next, to where the low four bits end.
        __m512i h = _mm512_loadu_si512(w + 256 + (BITS == 6 ? 64 * (k / 4) : 0));
        h = _mm512_and_si512(shift(h, BITS == 5 ? 4 - k : 4 - 2 * (k % 4)), high);
        ret.c[k] = _mm512_ternarylogic_epi32(v, low, h, 0xea); // (v & low) | h
    }
#ifdef VALUES
    static const uint8_t values[16] = VALUES;
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values));
    for (int k = 0; k < 8; k++) {
        ret.c[k] = _mm512_shuffle_epi8(table, ret.c[k]);
    }
#endif
    return ret;
}
#endif

INLINE void fetch(const uint8_t *w)
{
    for (int i = 0; i < GROUP_BYTES; i += 64) {
        _mm_prefetch((const char *)w + i, _MM_HINT_T0);
    }
}

/* Where the integer sums of 16 tokens start: over the whole group, or over one half of it. */
INLINE __m512i starts(__m512i sums, const int first, const int second)
{
    const int lo = first ? -OFFSET : 0, hi = second ? -OFFSET : 0;
    return _mm512_madd_epi16(sums, _mm512_set1_epi32((int32_t)((uint32_t)(hi & 0xffff) << 16 | (uint32_t)(lo & 0xffff))));
}

/* Adds one group of one token. Two chains of four dots: a chain of eight is so long that a core's schedulers fill up with waiting
 * instructions (6 to 8 % slower on Zen 5). */
INLINE __m512 group_token(struct codes c, struct scales s, const int8_t *q, int32_t start0, int32_t start1, float dx, float sd, __m512 acc)
{
    __m512i first = _mm512_set1_epi32(start0), second = HALVES ? _mm512_set1_epi32(start1) : _mm512_setzero_si512();
    DOT(first, c.c[0], q);
    DOT(second, c.c[4], q + 16);
    DOT(first, c.c[1], q + 4);
    DOT(second, c.c[5], q + 20);
    DOT(first, c.c[2], q + 8);
    DOT(second, c.c[6], q + 24);
    DOT(first, c.c[3], q + 12);
    DOT(second, c.c[7], q + 28);
    __m512 isum;
    if (HALVES) { // exact: below 2^24. The added zero makes a product of -0 the +0 that an integer would give
        isum = _mm512_fmadd_ps(s.sub[1], _mm512_cvtepi32_ps(second), _mm512_setzero_ps());
        isum = _mm512_fmadd_ps(s.sub[0], _mm512_cvtepi32_ps(first), isum);
    } else {
        isum = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
    }
    acc = _mm512_fmadd_ps(isum, _mm512_mul_ps(s.d, _mm512_set1_ps(dx)), acc);
    if (HAS_MIN) {
        const __m512 v = _mm512_set1_ps(sd);
        acc = SCALES == SCALES_K ? _mm512_fnmadd_ps(s.min, v, acc) : _mm512_fmadd_ps(s.min, v, acc);
    }
    return acc;
}

/* Block `block` of 16 rows for the first n tokens (1..16, a constant at each call) of token block tb. */
INLINE void tile(const int n, const struct rn_mm_args *args, uint32_t block, uint32_t tb)
{
    const struct rn_acts *a = args->a;
    const size_t mb = a->mb;
    const uint8_t *w = args->w + block * BLOCK_BYTES(args->n_groups), *super = w;
    size_t at = (size_t)tb * a->n_groups * mb;
    const int8_t *q = a->q + at * 32;
    const float *dx = a->d + at, *sd = a->sd + at;
    const struct rn_act_sum *sum = a->sum + at;
    const __mmask16 real = (__mmask16)((1u << n) - 1);
    __m512 acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7, acc8, acc9, acc10, acc11, acc12, acc13, acc14, acc15;
    acc0 = acc1 = acc2 = acc3 = acc4 = acc5 = acc6 = acc7 = _mm512_setzero_ps();
    acc8 = acc9 = acc10 = acc11 = acc12 = acc13 = acc14 = acc15 = _mm512_setzero_ps();
    for (uint32_t g = 0; g < args->n_groups; g++, w += GROUP_BYTES, q += mb * 32, dx += mb, sd += mb, sum += mb) {
        if (SUPER_BYTES && g % 8 == 0) {
            super = w;
            w += SUPER_BYTES;
            _mm_prefetch((const char *)super + AHEAD, _MM_HINT_T0);
        }
        fetch(w + AHEAD);
        _Alignas(64) int32_t start0[16] = {0}, start1[16] = {0};
        if (OFFSET) {
            const __m512i sums = _mm512_maskz_loadu_epi32(real, sum);
            _mm512_store_si512(start0, starts(sums, 1, !HALVES));
            if (HALVES) {
                _mm512_store_si512(start1, starts(sums, 0, 1));
            }
        }
        const struct codes c = load_codes(w);
        const struct scales s = load_scales(SCALES, w + CODE_BYTES, super, 0);
#define TOKEN(m)                                                                                                                           \
    if (m < n) {                                                                                                                           \
        acc##m = group_token(c, s, q + (m)*32, OFFSET ? start0[m] : 0, HALVES ? start1[m] : 0, dx[m], sd[m], acc##m);                      \
    }
        // clang-format off
        TOKEN(0) TOKEN(1) TOKEN(2) TOKEN(3) TOKEN(4) TOKEN(5) TOKEN(6) TOKEN(7)
        TOKEN(8) TOKEN(9) TOKEN(10) TOKEN(11) TOKEN(12) TOKEN(13) TOKEN(14) TOKEN(15)
        // clang-format on
#undef TOKEN
    }
    float *y = args->y + (size_t)tb * 16 * args->ldy + (size_t)block * 16;
#define STORE(m)                                                                                                                           \
    if (m < n) {                                                                                                                           \
        _mm512_storeu_ps(y + (m)*args->ldy, acc##m);                                                                                       \
    }
    // clang-format off
    STORE(0) STORE(1) STORE(2) STORE(3) STORE(4) STORE(5) STORE(6) STORE(7)
    STORE(8) STORE(9) STORE(10) STORE(11) STORE(12) STORE(13) STORE(14) STORE(15)
    // clang-format on
#undef STORE
}

/* One tile function per number of tokens. */
typedef void (*tile_fn)(const struct rn_mm_args *args, uint32_t block, uint32_t tb);

#define TILE(n)                                                                                                                            \
    static void tile_##n(const struct rn_mm_args *args, uint32_t block, uint32_t tb)                                                       \
    {                                                                                                                                      \
        tile(n, args, block, tb);                                                                                                          \
    }
// clang-format off
TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8)
TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14) TILE(15) TILE(16)
#undef TILE

static const tile_fn tiles[17] = {
    NULL, tile_1, tile_2, tile_3, tile_4, tile_5, tile_6, tile_7, tile_8,
    tile_9, tile_10, tile_11, tile_12, tile_13, tile_14, tile_15, tile_16,
};
// clang-format on

/* Row blocks `block` and, if n == 2, `block + step` for one token: two streams of weights keep more reads in flight than one. `jump`
 * bytes are skipped by what the first stream fetches behind the end of its block. */
INLINE void rows_one_token(const int n, const struct rn_mm_args *args, uint32_t block, uint32_t step, size_t jump)
{
    const struct rn_acts *a = args->a;
    const uint32_t n_groups = args->n_groups;
    const uint8_t *w0 = args->w + block * BLOCK_BYTES(n_groups), *w1 = w0 + step * BLOCK_BYTES(n_groups);
    const uint8_t *super0 = w0, *super1 = w1;
    __m512 acc0 = _mm512_setzero_ps(), acc1 = acc0;
    for (uint32_t g = 0; g < n_groups; g++, w0 += GROUP_BYTES, w1 += GROUP_BYTES) {
        const int8_t *q = a->q + (size_t)g * 32;
        const struct rn_act_sum sum = a->sum[g];
        const int32_t start0 = -OFFSET * (sum.half[0] + (HALVES ? 0 : sum.half[1])), start1 = -OFFSET * sum.half[1];
        const size_t ahead = AHEAD + (g + AHEAD_GROUPS >= n_groups ? jump : 0);
        if (SUPER_BYTES && g % 8 == 0) {
            super0 = w0;
            super1 = w1;
            w0 += SUPER_BYTES;
            w1 += SUPER_BYTES;
            _mm_prefetch((const char *)super0 + ahead, _MM_HINT_T0);
            _mm_prefetch((const char *)super1 + AHEAD, _MM_HINT_T0);
        }
        fetch(w0 + ahead);
        const struct scales s0 = load_scales(SCALES, w0 + CODE_BYTES, super0, 0);
        acc0 = group_token(load_codes(w0), s0, q, start0, start1, a->d[g], a->sd[g], acc0);
        if (n == 2) {
            fetch(w1 + AHEAD);
            const struct scales s1 = load_scales(SCALES, w1 + CODE_BYTES, super1, 0);
            acc1 = group_token(load_codes(w1), s1, q, start0, start1, a->d[g], a->sd[g], acc1);
        }
    }
    _mm512_storeu_ps(args->y + (size_t)block * 16, acc0);
    if (n == 2) {
        _mm512_storeu_ps(args->y + ((size_t)block + step) * 16, acc1);
    }
}

void NAME(rn_mm1)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    // Each stream runs through one half of the range, so that what is fetched ahead of it is what it reads next. At the end the second
    // stream fetches the start of the range behind this one, and the first stream the middle of that, if it is as long as this.
    const uint32_t half = (block1 - block0) / 2;
    const size_t jump = 2 * half * BLOCK_BYTES(args->n_groups);
    for (uint32_t b = block0; b < block0 + half; b++) {
        rows_one_token(2, args, b, half, b + 1 == block0 + half ? jump : 0);
    }
    if ((block1 - block0) % 2) {
        rows_one_token(1, args, block1 - 1, 0, 0);
    }
}

INLINE void NAME(tile)(const struct rn_mm_args *args, uint32_t block, uint32_t tb, uint32_t n)
{
    tiles[n](args, block, tb);
}

#include "runtime/cpu/matmul_walk_tmpl.h"
