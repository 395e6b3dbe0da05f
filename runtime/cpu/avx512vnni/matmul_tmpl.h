/* Matrix products of one weight format for AVX-512 VNNI; included once per format, with
 *   FMT         suffix of the function names: q4_0
 *   GROUP_BYTES bytes of one group (repack.h)
 *   OFFSET      what the stored codes have too much: the integer sums start at -OFFSET * sum(q_x), which costs nothing
 *   HAS_MIN     1 if a minimum per row follows the scales
 *   IS_BYTE     1 for 8-bit codes
 *
 * One tile is 16 rows x 1..16 tokens: 8 registers hold the group's 32 columns of 16 rows, 16 hold the tokens' float sums, and each
 * vpdpbusd takes its 4 activations by a broadcast embedded in the instruction. Compilers emit a broadcast load of its own for that,
 * which costs a third of the speed (330 instead of 450 to 475 GMAC/s on two cores), hence the line of assembly. */
#include <immintrin.h>

#include "runtime/cpu/rows_internal.h"

#define CONCAT3(a, b, c) a##_##b##_##c
#define NAME_(op, fmt) CONCAT3(rn_##op, fmt, avx512vnni)
#define NAME(op) NAME_(op, FMT)

#define INLINE static inline __attribute__((always_inline))
#define SCALES (IS_BYTE ? 512 : 256)
// Bytes that weights are fetched ahead of their use: 1.7 to 2.6 KB were equally good, less was slower.
#define AHEAD 2304

typedef int32_t i32_alias __attribute__((may_alias)); // four int8 activations read as one word

/* acc += w (unsigned codes) . the four int8 at p, for 16 rows. */
#define DOT(acc, w, p) __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const i32_alias *)(p)))

struct codes {
    __m512i c[8]; // columns 4i .. 4i + 3 of 16 rows
};

INLINE struct codes load_codes(const uint8_t *w)
{
    struct codes ret;
#if IS_BYTE
    for (int t = 0; t < 8; t++) {
        ret.c[t] = _mm512_loadu_si512(w + 64 * t);
    }
#else
    const __m512i low = _mm512_set1_epi8(15);
    for (int t = 0; t < 4; t++) {
        __m512i v = _mm512_loadu_si512(w + 64 * t);
        ret.c[2 * t] = _mm512_and_si512(v, low);
        ret.c[2 * t + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
#endif
    return ret;
}

INLINE __m512 load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE void fetch(const uint8_t *w)
{
    for (int i = 0; i < GROUP_BYTES; i += 64) {
        _mm_prefetch((const char *)w + i, _MM_HINT_T0);
    }
}

/* Where the integer sums of 16 tokens start. */
INLINE __m512i starts(__m512i sums)
{
    return _mm512_mullo_epi32(sums, _mm512_set1_epi32(-OFFSET));
}

/* Adds one group of one token. Two chains of four dots: a chain of eight is so long that a core's schedulers fill up with waiting
 * instructions (6 to 8 % slower on Zen 5). */
INLINE __m512 group_token(struct codes c, __m512 d, __m512 min, const int8_t *q, int32_t start, float dx, float sd, __m512 acc)
{
    __m512i isum = _mm512_set1_epi32(start), odd = _mm512_setzero_si512();
    DOT(isum, c.c[0], q);
    DOT(odd, c.c[1], q + 4);
    DOT(isum, c.c[2], q + 8);
    DOT(odd, c.c[3], q + 12);
    DOT(isum, c.c[4], q + 16);
    DOT(odd, c.c[5], q + 20);
    DOT(isum, c.c[6], q + 24);
    DOT(odd, c.c[7], q + 28);
    isum = _mm512_add_epi32(isum, odd);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), _mm512_mul_ps(d, _mm512_set1_ps(dx)), acc);
    if (HAS_MIN) {
        acc = _mm512_fmadd_ps(min, _mm512_set1_ps(sd), acc);
    }
    return acc;
}

/* Block `block` of 16 rows for the first n tokens (1..16, a constant at each call) of token block tb. */
INLINE void tile(const int n, const struct rn_mm_args *args, uint32_t block, uint32_t tb)
{
    const struct rn_acts *a = args->a;
    const size_t mb = a->mb;
    const uint8_t *w = args->w + (size_t)block * args->n_groups * GROUP_BYTES;
    size_t at = (size_t)tb * a->n_groups * mb;
    const int8_t *q = a->q + at * 32;
    const float *dx = a->d + at, *sd = a->sd + at;
    const int32_t *sum = a->sum + at;
    const __mmask16 real = (__mmask16)((1u << n) - 1);
    __m512 acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7, acc8, acc9, acc10, acc11, acc12, acc13, acc14, acc15;
    acc0 = acc1 = acc2 = acc3 = acc4 = acc5 = acc6 = acc7 = _mm512_setzero_ps();
    acc8 = acc9 = acc10 = acc11 = acc12 = acc13 = acc14 = acc15 = _mm512_setzero_ps();
    for (uint32_t g = 0; g < args->n_groups; g++, w += GROUP_BYTES, q += mb * 32, dx += mb, sd += mb, sum += mb) {
        fetch(w + AHEAD);
        _Alignas(64) int32_t start[16] = {0};
        if (OFFSET) {
            _mm512_store_si512(start, starts(_mm512_maskz_loadu_epi32(real, sum)));
        }
        const struct codes c = load_codes(w);
        const __m512 d = load_f16(w + SCALES);
        const __m512 min = HAS_MIN ? load_f16(w + SCALES + 32) : _mm512_setzero_ps();
#define TOKEN(m)                                                                                                                           \
    if (m < n) {                                                                                                                           \
        acc##m = group_token(c, d, min, q + (m)*32, OFFSET ? start[m] : 0, dx[m], sd[m], acc##m);                                          \
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
    const uint8_t *w0 = args->w + (size_t)block * n_groups * GROUP_BYTES, *w1 = w0 + (size_t)step * n_groups * GROUP_BYTES;
    __m512 acc0 = _mm512_setzero_ps(), acc1 = acc0;
    for (uint32_t g = 0; g < n_groups; g++, w0 += GROUP_BYTES, w1 += GROUP_BYTES) {
        const int8_t *q = a->q + (size_t)g * 32;
        const int32_t start = -OFFSET * a->sum[g];
        fetch(w0 + AHEAD + (g + AHEAD / GROUP_BYTES >= n_groups ? jump : 0));
        __m512 min = HAS_MIN ? load_f16(w0 + SCALES + 32) : _mm512_setzero_ps();
        acc0 = group_token(load_codes(w0), load_f16(w0 + SCALES), min, q, start, a->d[g], a->sd[g], acc0);
        if (n == 2) {
            fetch(w1 + AHEAD);
            min = HAS_MIN ? load_f16(w1 + SCALES + 32) : _mm512_setzero_ps();
            acc1 = group_token(load_codes(w1), load_f16(w1 + SCALES), min, q, start, a->d[g], a->sd[g], acc1);
        }
    }
    _mm512_storeu_ps(args->y + (size_t)block * 16, acc0);
    if (n == 2) {
        _mm512_storeu_ps(args->y + ((size_t)block + step) * 16, acc1);
    }
}

void NAME(mm1)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    // Each stream runs through one half of the range, so that what is fetched ahead of it is what it reads next. At the end the second
    // stream fetches the start of the range behind this one, and the first stream the middle of that, if it is as long as this.
    const uint32_t half = (block1 - block0) / 2;
    const size_t jump = 2 * (size_t)half * args->n_groups * GROUP_BYTES;
    for (uint32_t b = block0; b < block0 + half; b++) {
        rows_one_token(2, args, b, half, b + 1 == block0 + half ? jump : 0);
    }
    if ((block1 - block0) % 2) {
        rows_one_token(1, args, block1 - 1, 0, 0);
    }
}

void NAME(mmf)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    tile_fn fn = tiles[args->a->n_tok];
    for (uint32_t b = block0; b < block1; b++) {
        fn(args, b, 0);
    }
}

// Row blocks that stay in the second-level cache while all tokens pass.
#define KEEP 4

void NAME(mmn)(const struct rn_mm_args *args, uint32_t block0, uint32_t block1)
{
    uint32_t n_tok = args->a->n_tok;
    for (uint32_t b0 = block0; b0 < block1; b0 += KEEP) {
        uint32_t b1 = block1 - b0 < KEEP ? block1 : b0 + KEEP;
        for (uint32_t m = 0; m < n_tok; m += 16) {
            tile_fn fn = tiles[n_tok - m < 16 ? n_tok - m : 16];
            for (uint32_t b = b0; b < b1; b++) {
                fn(args, b, m / 16);
            }
        }
    }
}
