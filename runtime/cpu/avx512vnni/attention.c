/* Attention over KV pages with AVX-512 VNNI: the bits of plain/attention.c.
 *
 * Scores: K lies in tiles of 16 tokens, so one register holds one dimension (f16) or four dimensions (q8_0) of 16 keys, and the sum of
 * each key is formed in its own SIMD lane: the 16 virtual lanes of the contract are 16 registers, folded pair by pair so that few are
 * live at a time, and a converted K register serves several queries. Values: one query's output lies in registers over the tokens, and
 * a converted V register serves several queries. Queries are taken in blocks for that; a block holds only queries that see something.
 *
 * I1. A score of an unseen token is replaced by mask before it is used; a value of an unseen token is never loaded into a sum.
 * I2. Only tiles with a token that some query of the block sees are read, so pages that nobody sees may be NULL.
 * Thread: any; pure. Scratch: [16][256] scores, then what struct q8_scratch names. */
#include "runtime/cpu/rows_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/cpu/avx512vnni/vmath_internal.h"
#include "runtime/cpu/fetch_internal.h"
#include "runtime/tensor/backend.h"
#include "runtime/tensor/quant.h"

#define INLINE static inline __attribute__((always_inline))

#define TILE 16      /* tokens per tile of K */
#define SLICE 4      /* registers of V's dimensions held at once, 64 dimensions */
#define BLOCK_K16 5  /* queries per pass over K, f16: two lanes and up to three partial sums each, and two K registers: 27 of 32 */
#define BLOCK_K8 8   /* queries per pass over K, q8_0: an integer sum and a score each */
#define BLOCK_V 6    /* queries per pass over V: 24 sums, 4 V registers, 1 weight */

/* Calls f(__VA_ARGS__, n) with the number of queries as a constant. */
#define FOR_N(n, f, ...)                                                                                                              \
    switch (n) {                                                                                                                      \
    case 1: f(__VA_ARGS__, 1); break;                                                                                                 \
    case 2: f(__VA_ARGS__, 2); break;                                                                                                 \
    case 3: f(__VA_ARGS__, 3); break;                                                                                                 \
    case 4: f(__VA_ARGS__, 4); break;                                                                                                 \
    case 5: f(__VA_ARGS__, 5); break;                                                                                                 \
    case 6: f(__VA_ARGS__, 6); break;                                                                                                 \
    case 7: f(__VA_ARGS__, 7); break;                                                                                                 \
    default: f(__VA_ARGS__, 8); break;                                                                                                \
    }

INLINE __m512 load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

INLINE __m512 load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

/* acc + the sums of four products k (uint8) * q (int8); the compiler would spend an instruction on the broadcast of q. */
INLINE __m512i dot4(__m512i acc, __m512i k, const int8_t *q)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(k), "m"(*(const int8_t(*)[4])q));
    return acc;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------------ */

void rn_kv_write_f16_avx512vnni(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    uint16_t *kt = (uint16_t *)(void *)kpart + (size_t)(slot / TILE) * TILE * head_dim + slot % TILE;
    uint16_t *vt = (uint16_t *)(void *)vpart + (size_t)slot * head_dim;
    for (uint32_t d = 0; d < head_dim; d += 16) {
        uint16_t half[16];
        _mm256_storeu_si256((void *)half, _mm512_cvtps_ph(_mm512_loadu_ps(k + d), _MM_FROUND_TO_NEAREST_INT));
        for (uint32_t i = 0; i < 16; i++) {
            kt[(size_t)(d + i) * TILE] = half[i];
        }
        _mm256_storeu_si256((void *)(vt + d), _mm512_cvtps_ph(_mm512_loadu_ps(v + d), _MM_FROUND_TO_NEAREST_INT));
    }
}

INLINE float group_max(__m512 x0, __m512 x1)
{
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
}

INLINE void store_i8(int8_t *q, __m512i q0, __m512i q1)
{
    _mm_storeu_si128((void *)q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((void *)(q + 16), _mm512_cvtepi32_epi8(q1));
}

/* rn_quant_kv. */
static uint16_t quant_kv(const float *x, int8_t *q)
{
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    uint16_t d16 = _cvtss_sh(group_max(x0, x1) / 127.0f, _MM_FROUND_TO_NEAREST_INT);
    if (d16 == 0) {
        memset(q, 0, RN_GROUP);
        return 0;
    }
    __m512 d = _mm512_set1_ps(_cvtsh_ss(d16)), lo = _mm512_set1_ps(-127.0f), hi = _mm512_set1_ps(127.0f);
    x0 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x0, d), lo), hi);
    x1 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x1, d), lo), hi);
    store_i8(q, _mm512_cvtps_epi32(x0), _mm512_cvtps_epi32(x1));
    return d16;
}

void rn_kv_write_q8_0_avx512vnni(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    uint32_t n_groups = head_dim / RN_GROUP;
    uint8_t *tile = kpart + (size_t)(slot / TILE) * TILE * (head_dim + n_groups * sizeof(uint16_t));
    uint16_t *kd = (uint16_t *)(void *)(tile + (size_t)TILE * head_dim);
    int8_t *vq = (int8_t *)vpart + (size_t)slot * head_dim;
    uint16_t *vd = (uint16_t *)(void *)(vpart + (size_t)RN_PAGE_TOKENS * head_dim) + (size_t)slot * n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        int8_t q[RN_GROUP];
        kd[g * TILE + slot % TILE] = quant_kv(k + g * RN_GROUP, q);
        __m256i biased = _mm256_xor_si256(_mm256_loadu_si256((const void *)q), _mm256_set1_epi8((char)0x80)); // q + 128
        _mm256_storeu_si256((void *)q, biased);
        for (uint32_t t = 0; t < RN_GROUP / 4; t++) {
            memcpy(tile + ((size_t)g * RN_GROUP / 4 + t) * TILE * 4 + slot % TILE * 4, q + 4 * t, 4);
        }
        vd[g] = quant_kv(v + g * RN_GROUP, vq + g * RN_GROUP);
    }
}

/* ---- Which tokens ------------------------------------------------------------------------------------------------------------- */

/* Adjacent queries that all see something. */
struct block {
    uint32_t i0, n;    /* queries i0 .. i0 + n - 1; n = 0: no block left */
    uint32_t lo, hi;   /* every seen token is in lo .. hi - 1 */
    uint32_t all_lo, all_hi; /* what every query sees; may be empty */
    bool fetches;      /* does the fetching that the call asks for */
};

/* The first block at or after query i, of at most max_n queries; a long run of queries is cut into blocks of equal size. */
static struct block next_block(const struct rn_attn_args *args, uint32_t i, uint32_t max_n)
{
    bool first = i == 0;
    while (i < args->n_q && args->lo[i] >= args->hi[i]) {
        i++;
    }
    uint32_t end = i;
    while (end < args->n_q && args->lo[end] < args->hi[end]) {
        end++;
    }
    struct block b = {.i0 = i, .lo = RN_CHUNK_TOKENS, .all_hi = RN_CHUNK_TOKENS, .fetches = first && args->cold};
    if (end == i) {
        return b;
    }
    uint32_t n_blocks = (end - i + max_n - 1) / max_n;
    b.n = (end - i + n_blocks - 1) / n_blocks;
    for (uint32_t x = i; x < i + b.n; x++) {
        b.lo = args->lo[x] < b.lo ? args->lo[x] : b.lo;
        b.hi = args->hi[x] > b.hi ? args->hi[x] : b.hi;
        b.all_lo = args->lo[x] > b.all_lo ? args->lo[x] : b.all_lo;
        b.all_hi = args->hi[x] < b.all_hi ? args->hi[x] : b.all_hi;
    }
    return b;
}

/* The tokens of the tile at j that query i sees. */
INLINE __mmask16 seen(const struct rn_attn_args *args, uint32_t i, uint32_t j)
{
    uint32_t lo = args->lo[i], hi = args->hi[i];
    return (__mmask16)(rn_v_first(hi > j ? hi - j : 0) & ~rn_v_first(lo > j ? lo - j : 0));
}

/* True when a query of the block sees a token of the tile at j. */
static bool tile_seen(const struct rn_attn_args *args, const struct block *b, uint32_t j)
{
    for (uint32_t x = b->i0; x < b->i0 + b->n; x++) {
        if (args->lo[x] < j + TILE && args->hi[x] > j) {
            return true;
        }
    }
    return false;
}

/* ---- Scores and weights ------------------------------------------------------------------------------------------------------- */

/* Keeps the scores of one tile and the maximum per SIMD lane; tokens that the query does not see count as -inf (I1). */
INLINE void keep_scores(const struct rn_attn_args *args, uint32_t i, uint32_t j, __m512 dot, __m512 *max)
{
    __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 s = _mm512_mask_mul_ps(none, seen(args, i, j), dot, _mm512_set1_ps(args->scale));
    _mm512_storeu_ps(args->scratch + i * RN_CHUNK_TOKENS + j, s);
    max[i] = _mm512_max_ps(max[i], s);
}

/* Turns the scores of query i into weights, in place; sets m and l. Unseen tokens of the first and last tile have the weight exp(-inf) = 0,
 * which leaves a lane's sum as it is. */
static void softmax(const struct rn_attn_args *args, uint32_t i, __m512 max)
{
    float *p = args->scratch + i * RN_CHUNK_TOKENS;
    float m = _mm512_reduce_max_ps(max) + 0.0f; // -0 becomes +0, as in plain C
    __m512 lanes = _mm512_setzero_ps();
    for (uint32_t j = args->lo[i] / TILE * TILE; j < args->hi[i]; j += TILE) {
        __m512 w = rn_v_exp(_mm512_sub_ps(_mm512_loadu_ps(p + j), _mm512_set1_ps(m)));
        lanes = _mm512_add_ps(lanes, w);
        _mm512_storeu_ps(p + j, w);
    }
    args->m[i] = m;
    args->l[i] = rn_v_lane_sum(lanes);
}

static void softmax_all(const struct rn_attn_args *args, const __m512 *max)
{
    for (uint32_t i = 0; i < args->n_q; i++) {
        if (args->lo[i] < args->hi[i]) {
            softmax(args, i, max[i]);
        } else {
            args->m[i] = -INFINITY;
            args->l[i] = 0.0f;
        }
    }
    memset(args->o, 0, (size_t)args->n_q * args->head_dim * sizeof *args->o);
}

/* Virtual lanes i and i + 8 of 16 keys, added. */
INLINE void lane_pair(const float *const *q, const uint8_t *tile, uint32_t head_dim, uint32_t i, __m512 *sum, const uint32_t n)
{
    __m512 a[BLOCK_K8], b[BLOCK_K8];
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        a[x] = b[x] = _mm512_setzero_ps();
    }
    for (uint32_t d = i; d < head_dim; d += 16) {
        __m512 ka = load_f16(tile + (size_t)d * TILE * 2), kb = load_f16(tile + (size_t)(d + 8) * TILE * 2);
        #pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            a[x] = _mm512_fmadd_ps(ka, _mm512_set1_ps(q[x][d]), a[x]);
            b[x] = _mm512_fmadd_ps(kb, _mm512_set1_ps(q[x][d + 8]), b[x]);
        }
    }
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        sum[x] = _mm512_add_ps(a[x], b[x]);
    }
}

/* Lanes i, i + 4, i + 2, i + 6 and their partners 8 above: half of the tree 8-4-2-1. */
INLINE void lane_half(const float *const *q, const uint8_t *tile, uint32_t head_dim, uint32_t i, __m512 *sum, const uint32_t n)
{
    __m512 s[BLOCK_K8], t[BLOCK_K8];
    lane_pair(q, tile, head_dim, i, s, n);
    lane_pair(q, tile, head_dim, i + 4, t, n);
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        sum[x] = _mm512_add_ps(s[x], t[x]);
    }
    lane_pair(q, tile, head_dim, i + 2, s, n);
    lane_pair(q, tile, head_dim, i + 6, t, n);
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        sum[x] = _mm512_add_ps(sum[x], _mm512_add_ps(s[x], t[x]));
    }
}

INLINE void score_f16(const struct rn_attn_args *args, const struct block *blk, __m512 *max, const uint32_t n)
{
    uint32_t head_dim = args->head_dim;
    const float *const *q = args->q + blk->i0;
    for (uint32_t j = blk->lo / TILE * TILE; j < blk->hi; j += TILE) {
        if (!tile_seen(args, blk, j)) {
            continue; // keeps I2
        }
        const uint8_t *tile = args->k[j / RN_PAGE_TOKENS] + (size_t)(j % RN_PAGE_TOKENS) * head_dim * 2;
        if (blk->fetches) {
            rn_fetch_quarter(args->v[j / RN_PAGE_TOKENS], (size_t)RN_PAGE_TOKENS * head_dim * 2, j % RN_PAGE_TOKENS / TILE);
        }
        __m512 even[BLOCK_K8], odd[BLOCK_K8];
        lane_half(q, tile, head_dim, 0, even, n);
        lane_half(q, tile, head_dim, 1, odd, n);
        #pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            keep_scores(args, blk->i0 + x, j, _mm512_add_ps(even[x], odd[x]), max);
        }
    }
}

/* ---- Values ------------------------------------------------------------------------------------------------------------------- */

/* o[x][0 .. 16 nz - 1] += weight * value over the n_tok tokens at v, ascending. p[x * 256]: weights of query x. */
INLINE void add_values_f16(float *o, const float *p, const uint8_t *v, uint32_t head_dim, uint32_t n_tok, const uint32_t nz,
                           const uint32_t n)
{
    __m512 acc[BLOCK_K8][SLICE];
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        #pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            acc[x][z] = _mm512_loadu_ps(o + (size_t)x * head_dim + 16 * z);
        }
    }
    for (uint32_t j = 0; j < n_tok; j++, v += (size_t)head_dim * 2) {
        __m512 val[SLICE];
        #pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            val[z] = load_f16(v + 32 * z);
        }
        #pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            __m512 w = _mm512_set1_ps(p[x * RN_CHUNK_TOKENS + j]);
            #pragma GCC unroll 4
            for (uint32_t z = 0; z < nz; z++) {
                acc[x][z] = _mm512_fmadd_ps(w, val[z], acc[x][z]);
            }
        }
    }
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        #pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            _mm512_storeu_ps(o + (size_t)x * head_dim + 16 * z, acc[x][z]);
        }
    }
}

/* Tokens [j0, j1) of one page for n queries from i on, all dimensions. */
INLINE void page_f16(const struct rn_attn_args *args, uint32_t i, uint32_t j0, uint32_t j1, const uint32_t n)
{
    uint32_t head_dim = args->head_dim, d = 0;
    float *o = args->o + (size_t)i * head_dim;
    const float *p = args->scratch + i * RN_CHUNK_TOKENS + j0;
    const uint8_t *v = args->v[j0 / RN_PAGE_TOKENS] + (size_t)(j0 % RN_PAGE_TOKENS) * head_dim * 2;
    for (; d + 64 <= head_dim; d += 64) {
        add_values_f16(o + d, p, v + (size_t)d * 2, head_dim, j1 - j0, 4, n);
    }
    if (d + 32 <= head_dim) {
        add_values_f16(o + d, p, v + (size_t)d * 2, head_dim, j1 - j0, 2, n);
        d += 32;
    }
    if (d < head_dim) {
        add_values_f16(o + d, p, v + (size_t)d * 2, head_dim, j1 - j0, 1, n);
    }
}

typedef void (*values_fn)(const struct rn_attn_args *args, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n);

static void values_f16(const struct rn_attn_args *args, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n)
{
    FOR_N(n, page_f16, args, i, j0, j1);
}

/* Tokens [j0, j1) page by page. */
static void over_pages(const struct rn_attn_args *args, values_fn values, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n)
{
    for (uint32_t end; j0 < j1; j0 = end) {
        end = (j0 / RN_PAGE_TOKENS + 1) * RN_PAGE_TOKENS;
        end = end < j1 ? end : j1;
        values(args, i, j0, end, n);
    }
}

/* As over_pages, but tile by tile, and fetches the tiles of the next keys meanwhile. */
static void over_tiles(const struct rn_attn_args *args, values_fn values, const struct block *b)
{
    for (uint32_t tile = 0; tile < RN_CHUNK_TOKENS; tile += TILE) {
        rn_fetch_quarter(args->next_k[tile / RN_PAGE_TOKENS], args->next_k_bytes, tile % RN_PAGE_TOKENS / TILE);
        uint32_t j0 = tile > b->all_lo ? tile : b->all_lo, j1 = tile + TILE < b->all_hi ? tile + TILE : b->all_hi;
        if (j0 < j1) {
            values(args, b->i0, j0, j1, b->n);
        }
    }
}

/* Adds the values of all seen tokens, per query in ascending order: what only some queries of a block see comes before or after what
 * all of them see, and goes to each query alone. */
static void add_all_values(const struct rn_attn_args *args, values_fn values)
{
    for (struct block b = next_block(args, 0, BLOCK_V); b.n > 0; b = next_block(args, b.i0 + b.n, BLOCK_V)) {
        bool common = b.all_lo < b.all_hi;
        for (uint32_t i = b.i0; i < b.i0 + b.n; i++) {
            over_pages(args, values, i, args->lo[i], common ? b.all_lo : args->hi[i], 1);
        }
        if (common && b.fetches) {
            over_tiles(args, values, &b);
        } else if (common) {
            over_pages(args, values, b.i0, b.all_lo, b.all_hi, b.n);
        }
        for (uint32_t i = b.i0; common && i < b.i0 + b.n; i++) {
            over_pages(args, values, i, b.all_hi, args->hi[i], 1);
        }
    }
}

void rn_attn_f16_avx512vnni(const struct rn_attn_args *args)
{
    __m512 max[RN_ATTN_MAX_Q];
    for (uint32_t i = 0; i < args->n_q; i++) {
        max[i] = _mm512_set1_ps(-INFINITY);
    }
    for (struct block b = next_block(args, 0, BLOCK_K16); b.n > 0; b = next_block(args, b.i0 + b.n, BLOCK_K16)) {
        FOR_N(b.n, score_f16, args, &b, max);
    }
    softmax_all(args, max);
    add_all_values(args, values_f16);
}

/* ---- q8_0 --------------------------------------------------------------------------------------------------------------------- */

/* Parts of the scratch after the scores; 17.5 of 32 head_dim floats. */
struct q8_scratch {
    int8_t *q;        /* [16][head_dim] quantised queries */
    float *d;         /* [16][n_groups] their scales */
    int32_t *bias;    /* [16][n_groups] -128 * sum of q, undoes the offset of the keys */
    int32_t *token;   /* [n_groups][16] token of a tile that scale 16 s + lane of V belongs to */
    float *pd;        /* [BLOCK_V][64 tokens * n_groups] weight * scale of one page */
};

static struct q8_scratch q8_scratch(const struct rn_attn_args *args)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    struct q8_scratch s;
    s.q = (int8_t *)(args->scratch + (size_t)RN_ATTN_MAX_Q * RN_CHUNK_TOKENS);
    s.d = (float *)(void *)(s.q + (size_t)RN_ATTN_MAX_Q * args->head_dim);
    s.bias = (int32_t *)(void *)(s.d + (size_t)RN_ATTN_MAX_Q * n_groups);
    s.token = s.bias + (size_t)RN_ATTN_MAX_Q * n_groups;
    s.pd = (float *)(void *)(s.token + (size_t)TILE * n_groups);
    return s;
}

/* rn_quant_act. */
static float quant_act(const float *x, int8_t *q, int32_t *ret_sum)
{
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    float amax = group_max(x0, x1);
    if (amax < 0x1p-100f) {
        memset(q, 0, RN_GROUP);
        *ret_sum = 0;
        return 0.0f;
    }
    __m512 inv = _mm512_set1_ps(127.0f / amax);
    __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inv)), q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inv));
    store_i8(q, q0, q1);
    *ret_sum = _mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    return amax / 127.0f;
}

static void prepare_q8(const struct rn_attn_args *args, const struct q8_scratch *s)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    for (uint32_t i = 0; i < args->n_q; i++) {
        if (args->lo[i] >= args->hi[i]) {
            continue;
        }
        for (uint32_t g = 0; g < n_groups; g++) {
            int32_t sum;
            uint32_t at = i * n_groups + g;
            s->d[at] = quant_act(args->q[i] + (size_t)g * RN_GROUP, s->q + (size_t)at * RN_GROUP, &sum);
            s->bias[at] = -128 * sum;
        }
    }
    for (uint32_t t = 0; t < TILE; t++) {
        for (uint32_t g = 0; g < n_groups; g++) {
            s->token[t * n_groups + g] = (int32_t)t;
        }
    }
}

INLINE void score_q8(const struct rn_attn_args *args, const struct block *blk, const struct q8_scratch *s, __m512 *max, const uint32_t n)
{
    uint32_t head_dim = args->head_dim, n_groups = head_dim / RN_GROUP;
    const int8_t *q = s->q + (size_t)blk->i0 * head_dim;
    const float *dq = s->d + (size_t)blk->i0 * n_groups;
    const int32_t *bias = s->bias + (size_t)blk->i0 * n_groups;
    size_t tile_bytes = (size_t)TILE * (head_dim + n_groups * sizeof(uint16_t));
    for (uint32_t j = blk->lo / TILE * TILE; j < blk->hi; j += TILE) {
        if (!tile_seen(args, blk, j)) {
            continue; // keeps I2
        }
        const uint8_t *tile = args->k[j / RN_PAGE_TOKENS] + j % RN_PAGE_TOKENS / TILE * tile_bytes;
        const uint8_t *scales = tile + (size_t)TILE * head_dim;
        if (blk->fetches) {
            rn_fetch_quarter(args->v[j / RN_PAGE_TOKENS], 4 * tile_bytes, j % RN_PAGE_TOKENS / TILE);
        }
        __m512 acc[BLOCK_K8];
        #pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            acc[x] = _mm512_setzero_ps();
        }
        for (uint32_t g = 0; g < n_groups; g++) {
            __m512i sum[BLOCK_K8];
            #pragma GCC unroll 8
            for (uint32_t x = 0; x < n; x++) {
                sum[x] = _mm512_set1_epi32(bias[x * n_groups + g]);
            }
            #pragma GCC unroll 8
            for (uint32_t t = 0; t < 8; t++) {
                __m512i k = _mm512_loadu_si512(tile + ((size_t)g * 8 + t) * TILE * 4);
                #pragma GCC unroll 8
                for (uint32_t x = 0; x < n; x++) {
                    sum[x] = dot4(sum[x], k, q + (size_t)x * head_dim + g * RN_GROUP + 4 * t);
                }
            }
            __m512 dk = load_f16(scales + (size_t)g * TILE * sizeof(uint16_t));
            #pragma GCC unroll 8
            for (uint32_t x = 0; x < n; x++) {
                __m512 d = _mm512_mul_ps(_mm512_set1_ps(dq[x * n_groups + g]), dk);
                acc[x] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[x]), d, acc[x]);
            }
        }
        #pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            keep_scores(args, blk->i0 + x, j, acc[x], max);
        }
    }
}

/* As add_values_f16, for q8_0: nz is even, pd[x * pd_stride + token * n_groups + group]. */
INLINE void add_values_q8(float *o, const float *pd, const int8_t *v, uint32_t head_dim, uint32_t n_tok, const uint32_t nz,
                          const uint32_t n)
{
    uint32_t n_groups = head_dim / RN_GROUP;
    size_t pd_stride = (size_t)RN_PAGE_TOKENS * n_groups;
    __m512 acc[BLOCK_K8][SLICE];
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        #pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            acc[x][z] = _mm512_loadu_ps(o + (size_t)x * head_dim + 16 * z);
        }
    }
    for (uint32_t j = 0; j < n_tok; j++, v += head_dim, pd += n_groups) {
        __m512 val[SLICE];
        #pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            val[z] = load_i8(v + 16 * z);
        }
        #pragma GCC unroll 8
        for (uint32_t x = 0; x < n; x++) {
            #pragma GCC unroll 4
            for (uint32_t z = 0; z < nz; z++) {
                acc[x][z] = _mm512_fmadd_ps(_mm512_set1_ps(pd[x * pd_stride + z / 2]), val[z], acc[x][z]);
            }
        }
    }
    #pragma GCC unroll 8
    for (uint32_t x = 0; x < n; x++) {
        #pragma GCC unroll 4
        for (uint32_t z = 0; z < nz; z++) {
            _mm512_storeu_ps(o + (size_t)x * head_dim + 16 * z, acc[x][z]);
        }
    }
}

/* weight * scale for the tiles of tokens [j0, j1) of one page. Tokens beyond the range give numbers that nobody reads. */
INLINE void page_weights(const struct rn_attn_args *args, const struct q8_scratch *s, uint32_t i, uint32_t j0, uint32_t j1,
                         const uint32_t n)
{
    uint32_t n_groups = args->head_dim / RN_GROUP;
    const uint8_t *scales = args->v[j0 / RN_PAGE_TOKENS] + (size_t)RN_PAGE_TOKENS * args->head_dim;
    for (uint32_t j = j0 / TILE * TILE; j < j1; j += TILE) {
        size_t at = (size_t)(j % RN_PAGE_TOKENS) * n_groups;
        for (uint32_t t = 0; t < n_groups; t++, at += 16) {
            __m512 d = load_f16(scales + at * sizeof(uint16_t));
            __m512i token = _mm512_loadu_si512(s->token + t * 16);
            #pragma GCC unroll 8
            for (uint32_t x = 0; x < n; x++) {
                __m512 p = _mm512_loadu_ps(args->scratch + (i + x) * RN_CHUNK_TOKENS + j);
                float *pd = s->pd + (size_t)x * RN_PAGE_TOKENS * n_groups + at;
                _mm512_storeu_ps(pd, _mm512_mul_ps(_mm512_permutexvar_ps(token, p), d));
            }
        }
    }
}

INLINE void page_q8(const struct rn_attn_args *args, uint32_t i, uint32_t j0, uint32_t j1, const uint32_t n)
{
    struct q8_scratch s = q8_scratch(args);
    uint32_t head_dim = args->head_dim, d = 0;
    page_weights(args, &s, i, j0, j1, n);
    float *o = args->o + (size_t)i * head_dim;
    const float *pd = s.pd + (size_t)(j0 % RN_PAGE_TOKENS) * (head_dim / RN_GROUP);
    const int8_t *v = (const int8_t *)args->v[j0 / RN_PAGE_TOKENS] + (size_t)(j0 % RN_PAGE_TOKENS) * head_dim;
    if (head_dim == 64) { // strides as constants
        add_values_q8(o, pd, v, 64, j1 - j0, 4, n);
        return;
    }
    for (; d + 64 <= head_dim; d += 64) {
        add_values_q8(o + d, pd + d / RN_GROUP, v + d, head_dim, j1 - j0, 4, n);
    }
    if (d < head_dim) {
        add_values_q8(o + d, pd + d / RN_GROUP, v + d, head_dim, j1 - j0, 2, n);
    }
}

static void values_q8(const struct rn_attn_args *args, uint32_t i, uint32_t j0, uint32_t j1, uint32_t n)
{
    FOR_N(n, page_q8, args, i, j0, j1);
}

void rn_attn_q8_0_avx512vnni(const struct rn_attn_args *args)
{
    struct q8_scratch s = q8_scratch(args);
    __m512 max[RN_ATTN_MAX_Q];
    for (uint32_t i = 0; i < args->n_q; i++) {
        max[i] = _mm512_set1_ps(-INFINITY);
    }
    prepare_q8(args, &s);
    for (struct block b = next_block(args, 0, BLOCK_K8); b.n > 0; b = next_block(args, b.i0 + b.n, BLOCK_K8)) {
        FOR_N(b.n, score_q8, args, &b, &s, max);
    }
    softmax_all(args, max);
    add_all_values(args, values_q8);
}

/* ---- Combining ---------------------------------------------------------------------------------------------------------------- */

void rn_attn_combine_avx512vnni(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim)
{
    if (l1 == 0.0f) {
        return;
    }
    if (*l == 0.0f) {
        *m = m1;
        *l = l1;
        memcpy(o, o1, head_dim * sizeof *o);
        return;
    }
    float top = m1 > *m ? m1 : *m;
    __m512 a = rn_v_exp(_mm512_set1_ps(*m - top)), b = rn_v_exp(_mm512_set1_ps(m1 - top));
    for (uint32_t d = 0; d < head_dim; d += 16) {
        __m512 add = _mm512_mul_ps(_mm512_loadu_ps(o1 + d), b);
        _mm512_storeu_ps(o + d, _mm512_fmadd_ps(_mm512_loadu_ps(o + d), a, add));
    }
    *l = fmaf(*l, _mm512_cvtss_f32(a), l1 * _mm512_cvtss_f32(b));
    *m = top;
}
