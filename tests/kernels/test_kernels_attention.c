/* The rows of the attention kernels: plain C against a float64 reference, every other row against plain C bit for bit.
 *
 * Tolerance of plain C: scores carry at most 2e-6 * sum |q k| * scale, the exponential and the sum over 256 tokens 3e-5 in all. Cells that
 * a query does not see hold NaN, infinities and 65504, which must not change a bit of its result.
 * `--bench` prints the time per (key, query) of one decode chunk. One file, because all tests share the reader of the page layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/flush_internal.h"
#include "runtime/tensor/backend.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/quant.h"
#include "tests/kernels/cpu_kit.h"

#define MAX_DIM 256
#define PAGES 4
#define TOKENS RN_CHUNK_TOKENS

static uint32_t random_below(uint32_t n)
{
    return random_u32() % n;
}

/* ---- One chunk ---------------------------------------------------------------------------------------------------------------- */

enum shape { SHAPE_NORMAL, SHAPE_LARGE, SHAPE_TINY, SHAPE_EQUAL, SHAPE_OUTLIER, SHAPE_ZERO, SHAPE_UNDERFLOW, SHAPE_COUNT };

struct chunk {
    bool q8;
    uint32_t head_dim, n_q;
    size_t part_bytes;
    uint8_t *k[PAGES], *v[PAGES];
    float *q;                      /* [16][head_dim] */
    uint16_t lo[RN_ATTN_MAX_Q], hi[RN_ATTN_MAX_Q];
    float scale;
};

struct result {
    float m[RN_ATTN_MAX_Q], l[RN_ATTN_MAX_Q];
    float *o;
};

static float *scratch;
static struct result want, got;

static float shaped(enum shape shape, uint32_t i)
{
    switch (shape) {
    case SHAPE_LARGE:
        return random_normal() * 40.0f;
    case SHAPE_TINY:
        return random_normal() * 1e-6f;
    case SHAPE_EQUAL:
        return 0.5f;
    case SHAPE_OUTLIER:
        return random_below(16) == 0 ? random_normal() * 100.0f : random_normal() * 0.01f;
    case SHAPE_ZERO:
        return i % 3 == 0 ? -0.0f : 0.0f;
    case SHAPE_UNDERFLOW:
        return 1e-37f;
    default:
        return random_normal();
    }
}

static enum rn_cpu_op write_op(bool q8)
{
    return q8 ? RN_CPU_KV_WRITE_Q8_0 : RN_CPU_KV_WRITE_F16;
}

static enum rn_cpu_op attn_op(bool q8)
{
    return q8 ? RN_CPU_ATTN_Q8_0 : RN_CPU_ATTN_F16;
}

static void chunk_init(struct chunk *c, bool q8, uint32_t head_dim, enum shape shape)
{
    *c = (struct chunk){.q8 = q8, .head_dim = head_dim, .n_q = RN_ATTN_MAX_Q, .part_bytes = rn_kv_part_bytes(q8, head_dim)};
    c->scale = 1.0f / sqrtf((float)head_dim);
    c->q = rn_mem_alloc64((size_t)RN_ATTN_MAX_Q * head_dim, sizeof *c->q);
    assert_non_null(c->q);
    for (uint32_t i = 0; i < RN_ATTN_MAX_Q * head_dim; i++) {
        c->q[i] = shaped(shape, i);
    }
    rn_kv_write_fn write = (rn_kv_write_fn)row(write_op(q8), 0)->fn;
    for (uint32_t p = 0; p < PAGES; p++) {
        c->k[p] = rn_mem_alloc64(c->part_bytes, 1);
        c->v[p] = rn_mem_alloc64(c->part_bytes, 1);
        assert_true(c->k[p] && c->v[p]);
        for (uint32_t slot = 0; slot < RN_PAGE_TOKENS; slot++) {
            float k[MAX_DIM], v[MAX_DIM];
            for (uint32_t d = 0; d < head_dim; d++) {
                // Underflow: every score is flushed to zero, of either sign.
                k[d] = shape == SHAPE_UNDERFLOW ? (slot % 3 ? -1e-7f : 1e-7f) : shaped(shape, d);
                v[d] = shape == SHAPE_TINY ? random_normal() * 1e-3f : random_normal();
            }
            write(k, v, head_dim, c->k[p], c->v[p], slot);
        }
    }
}

static void chunk_finish(struct chunk *c)
{
    for (uint32_t p = 0; p < PAGES; p++) {
        rn_mem_free(c->k[p]);
        rn_mem_free(c->v[p]);
    }
    rn_mem_free(c->q);
}

static bool page_seen(const struct chunk *c, uint32_t p)
{
    for (uint32_t i = 0; i < c->n_q; i++) {
        uint32_t lo = c->lo[i] > p * RN_PAGE_TOKENS ? c->lo[i] : p * RN_PAGE_TOKENS;
        uint32_t hi = c->hi[i] < (p + 1) * RN_PAGE_TOKENS ? c->hi[i] : (p + 1) * RN_PAGE_TOKENS;
        if (lo < hi) {
            return true;
        }
    }
    return false;
}

static void run(const struct rn_cpu_row *r, const struct chunk *c, struct result *ret)
{
    struct rn_attn_args args = {.head_dim = c->head_dim, .n_q = c->n_q, .scale = c->scale};
    args.m = ret->m;
    args.l = ret->l;
    args.o = ret->o;
    args.scratch = scratch;
    for (uint32_t p = 0; p < PAGES; p++) {
        args.k[p] = page_seen(c, p) ? c->k[p] : NULL;
        args.v[p] = page_seen(c, p) ? c->v[p] : NULL;
        args.next_k[p] = random_below(4) ? c->k[p] : NULL; // hints must not change a bit
    }
    args.cold = random_below(2);
    for (uint32_t i = 0; i < c->n_q; i++) {
        args.q[i] = c->q + (size_t)i * c->head_dim;
        args.lo[i] = c->lo[i];
        args.hi[i] = c->hi[i];
    }
    memset(scratch, 0xff, RN_ATTN_SCRATCH(c->head_dim) * sizeof *scratch); // what a thread left there must not matter
    memset(ret->m, 0xff, sizeof ret->m);
    memset(ret->l, 0xff, sizeof ret->l);
    memset(ret->o, 0xff, (size_t)RN_ATTN_MAX_Q * MAX_DIM * sizeof *ret->o);
    ((rn_attn_fn)r->fn)(&args);
}

static void same_query(const struct rn_cpu_row *r, const struct chunk *c, uint32_t i, const struct result *a, const struct result *b)
{
    size_t at = (size_t)i * c->head_dim;
    if (memcmp(&a->m[i], &b->m[i], 4) || memcmp(&a->l[i], &b->l[i], 4) || memcmp(a->o + at, b->o + at, c->head_dim * sizeof *a->o)) {
        uint32_t d = 0;
        while (d + 1 < c->head_dim && memcmp(a->o + at + d, b->o + at + d, 4) == 0) {
            d++;
        }
        fail_msg("row %s, %s, head_dim %u, n_q %u, query %u [%u, %u): m %a %a, l %a %a, o[%u] %a %a", r->name,
                 c->q8 ? "q8_0" : "f16", c->head_dim, c->n_q, i, c->lo[i], c->hi[i],
                 (double)a->m[i], (double)b->m[i], (double)a->l[i], (double)b->l[i], d,
                 (double)a->o[at + d], (double)b->o[at + d]);
    }
}

/* ---- Reading pages, from the layout in kernels.h ------------------------------------------------------------------------------ */

static uint16_t u16_at(const uint8_t *p, size_t index)
{
    uint16_t v;
    memcpy(&v, p + 2 * index, 2);
    return v;
}

static float key(const struct chunk *c, uint32_t j, uint32_t d)
{
    uint32_t slot = j % 64, tile = slot / 16, t = slot % 16;
    const uint8_t *part = c->k[j / 64];
    if (!c->q8) {
        return rn_f16_to_f32(u16_at(part, ((size_t)tile * c->head_dim + d) * 16 + t));
    }
    const uint8_t *q = part + (size_t)tile * c->head_dim * 17;
    int32_t value = q[d / 32 * 512 + d % 32 / 4 * 64 + t * 4 + d % 4] - 128;
    return (float)value * rn_f16_to_f32(u16_at(q + (size_t)c->head_dim * 16, d / 32 * 16 + t));
}

static float value(const struct chunk *c, uint32_t j, uint32_t d)
{
    uint32_t slot = j % 64;
    const uint8_t *part = c->v[j / 64];
    if (!c->q8) {
        return rn_f16_to_f32(u16_at(part, (size_t)slot * c->head_dim + d));
    }
    float scale = rn_f16_to_f32(u16_at(part + (size_t)64 * c->head_dim, (size_t)slot * (c->head_dim / 32) + d / 32));
    return (float)(int8_t)part[(size_t)slot * c->head_dim + d] * scale;
}

/* Overwrites the cells of token j. */
static void poison(struct chunk *c, uint32_t j, uint16_t pattern)
{
    uint32_t slot = j % 64, tile = slot / 16, t = slot % 16, hd = c->head_dim;
    uint8_t *k = c->k[j / 64], *v = c->v[j / 64];
    for (uint32_t d = 0; d < hd; d++) {
        if (c->q8) {
            k[(size_t)tile * hd * 17 + d / 32 * 512 + d % 32 / 4 * 64 + t * 4 + d % 4] = (uint8_t)pattern ^ 0xff;
            v[(size_t)slot * hd + d] = (uint8_t)pattern ^ 0x80;
        } else {
            memcpy(k + 2 * (((size_t)tile * hd + d) * 16 + t), &pattern, 2);
            memcpy(v + 2 * ((size_t)slot * hd + d), &pattern, 2);
        }
    }
    for (uint32_t g = 0; c->q8 && g < hd / 32; g++) {
        memcpy(k + (size_t)tile * hd * 17 + (size_t)hd * 16 + 2 * (g * 16 + t), &pattern, 2);
        memcpy(v + (size_t)64 * hd + 2 * ((size_t)slot * (hd / 32) + g), &pattern, 2);
    }
}

/* ---- Ranges ------------------------------------------------------------------------------------------------------------------- */

enum ranges {
    RANGES_FULL,
    RANGES_DECODE,
    RANGES_SINGLE,
    RANGES_RANDOM, /* between borders, some empty, some with lo > hi */
    RANGES_STAIRS, /* rows of a prefill */
    RANGES_EMPTY,
    RANGES_PAGES,
    RANGES_APART,  /* pages between that nobody sees */
    RANGES_COUNT
};

static void set_ranges(struct chunk *c, enum ranges kind)
{
    static const uint16_t border[] = {0, 1, 15, 16, 17, 31, 32, 47, 63, 64, 65, 127, 128, 129, 191, 192, 193, 240, 255, 256};
    const uint32_t n_borders = sizeof border / sizeof *border;
    uint16_t same = border[1 + random_below(n_borders - 1)];
    for (uint32_t i = 0; i < c->n_q; i++) {
        uint32_t lo = 0, hi = TOKENS;
        switch (kind) {
        case RANGES_DECODE:
            hi = same;
            break;
        case RANGES_SINGLE:
            lo = random_below(TOKENS);
            hi = lo + 1;
            break;
        case RANGES_RANDOM:
            lo = border[random_below(n_borders)];
            hi = border[random_below(n_borders)];
            break;
        case RANGES_STAIRS:
            lo = 30 + i / 3;
            hi = 60 + i / 3 * 5;
            break;
        case RANGES_EMPTY:
            lo = hi = border[random_below(n_borders)];
            break;
        case RANGES_PAGES:
            lo = 64 * random_below(4);
            hi = lo + 64;
            break;
        case RANGES_APART:
            lo = i % 2 ? 200 : 3;
            hi = lo + 10;
            break;
        default:
            break;
        }
        c->lo[i] = (uint16_t)lo;
        c->hi[i] = (uint16_t)hi;
    }
}

/* ---- Float64 reference -------------------------------------------------------------------------------------------------------- */

/* The query as the kernel uses it: quantised for q8_0. */
static void effective_query(const struct chunk *c, uint32_t i, double *ret)
{
    const float *q = c->q + (size_t)i * c->head_dim;
    for (uint32_t d = 0; d < c->head_dim; d++) {
        ret[d] = (double)q[d];
    }
    for (uint32_t g = 0; c->q8 && g < c->head_dim / RN_GROUP; g++) {
        int8_t quant[RN_GROUP];
        int32_t sum;
        double scale = (double)rn_quant_act(q + g * RN_GROUP, quant, &sum);
        for (uint32_t d = 0; d < RN_GROUP; d++) {
            ret[g * RN_GROUP + d] = scale * quant[d];
        }
    }
}

static void check_reference(const struct chunk *c, uint32_t i, const struct result *r)
{
    double q[MAX_DIM], score[TOKENS], m = -INFINITY, error = 0.0, l = 0.0;
    const float *o = r->o + (size_t)i * c->head_dim;
    effective_query(c, i, q);
    for (uint32_t j = c->lo[i]; j < c->hi[i]; j++) {
        double dot = 0.0, size = 0.0;
        for (uint32_t d = 0; d < c->head_dim; d++) {
            double term = q[d] * (double)key(c, j, d);
            dot += term;
            size += fabs(term);
        }
        score[j] = dot * (double)c->scale;
        m = score[j] > m ? score[j] : m;
        error = fmax(error, 2e-6 * size * (double)c->scale);
    }
    if (c->lo[i] >= c->hi[i]) {
        assert_true(r->m[i] == -INFINITY);
        assert_true(r->l[i] == 0.0f);
        for (uint32_t d = 0; d < c->head_dim; d++) {
            assert_true(o[d] == 0.0f);
        }
        return;
    }
    double tolerance = expm1(2.0 * error) + 3e-5;
    if (!(fabs((double)r->m[i] - m) <= error + 1e-30)) {
        fail_msg("m is %.9g, expected %.9g within %.3g", (double)r->m[i], m, error);
    }
    for (uint32_t j = c->lo[i]; j < c->hi[i]; j++) {
        l += exp(score[j] - m);
    }
    if (!(fabs((double)r->l[i] - l) <= tolerance * l)) {
        fail_msg("l is %.9g, expected %.9g within %.3g", (double)r->l[i], l, tolerance * l);
    }
    for (uint32_t d = 0; d < c->head_dim; d++) {
        double sum = 0.0, size = 0.0;
        for (uint32_t j = c->lo[i]; j < c->hi[i]; j++) {
            double term = exp(score[j] - m) * (double)value(c, j, d);
            sum += term;
            size += fabs(term);
        }
        if (!(fabs((double)o[d] - sum) <= tolerance * size + 1e-30)) {
            fail_msg("o[%u] is %.9g, expected %.9g within %.3g", d, (double)o[d], sum, tolerance * size);
        }
    }
}

/* ---- Tests: attention --------------------------------------------------------------------------------------------------------- */

static const uint32_t dims[2][7] = {{16, 32, 64, 80, 96, 128, 256}, {32, 64, 96, 128, 160, 256, 0}};

static void check_chunk(const struct chunk *c)
{
    run(row(attn_op(c->q8), 0), c, &want);
    for (uint32_t i = 0; i < c->n_q; i++) {
        check_reference(c, i, &want);
    }
    for (size_t k = 1; row(attn_op(c->q8), k); k++) {
        const struct rn_cpu_row *r = row(attn_op(c->q8), k);
        run(r, c, &got);
        for (uint32_t i = 0; i < c->n_q; i++) {
            same_query(r, c, i, &want, &got);
        }
    }
}

static void rows_agree_on_every_shape_and_range(void **state)
{
    (void)state;
    for (uint32_t q8 = 0; q8 < 2; q8++) {
        for (uint32_t x = 0; x < 7 && dims[q8][x]; x++) {
            for (enum shape shape = 0; shape < SHAPE_COUNT; shape++) {
                struct chunk c;
                chunk_init(&c, q8, dims[q8][x], shape);
                for (enum ranges kind = 0; kind < RANGES_COUNT; kind++) {
                    c.n_q = 1 + random_below(RN_ATTN_MAX_Q);
                    set_ranges(&c, kind);
                    check_chunk(&c);
                }
                chunk_finish(&c);
            }
        }
    }
}

static void rows_agree_for_every_number_of_queries(void **state)
{
    (void)state;
    for (uint32_t q8 = 0; q8 < 2; q8++) {
        struct chunk c;
        chunk_init(&c, q8, 64, SHAPE_NORMAL);
        for (uint32_t n_q = 1; n_q <= RN_ATTN_MAX_Q; n_q++) {
            c.n_q = n_q;
            for (uint32_t round = 0; round < 6; round++) {
                set_ranges(&c, round < 4 ? RANGES_RANDOM : round == 4 ? RANGES_STAIRS : RANGES_FULL);
                check_chunk(&c);
            }
        }
        chunk_finish(&c);
    }
}

/* Every row, c included: with all cells that query i does not see poisoned, query i gives the same bits, although its neighbours in the
 * call may see poison. It also gives the same bits alone. */
static void unseen_cells_are_never_used(void **state)
{
    (void)state;
    static const uint16_t patterns[] = {0x7e00, 0xfe01, 0x7c00, 0xfc00, 0x7bff, 0xfbff};
    static const enum ranges kinds[] = {RANGES_DECODE, RANGES_SINGLE, RANGES_RANDOM, RANGES_STAIRS, RANGES_APART};
    for (uint32_t round = 0; round < 20; round++) {
        bool q8 = round % 2;
        uint32_t n_q = 1 + random_below(RN_ATTN_MAX_Q), head_dim = dims[q8][random_below(6)];
        uint64_t seed = random_state();
        for (uint32_t i = 0; i < n_q; i++) {
            random_seed(seed);
            struct chunk c;
            chunk_init(&c, q8, head_dim, round % SHAPE_COUNT);
            c.n_q = n_q;
            set_ranges(&c, kinds[round / 2 % 5]);
            run(row(attn_op(q8), 0), &c, &want);
            for (uint32_t j = 0; j < TOKENS; j++) {
                if (j < c.lo[i] || j >= c.hi[i]) {
                    poison(&c, j, patterns[random_below(sizeof patterns / sizeof *patterns)]);
                }
            }
            for (size_t k = 0; row(attn_op(q8), k); k++) {
                const struct rn_cpu_row *r = row(attn_op(q8), k);
                run(r, &c, &got);
                same_query(r, &c, i, &want, &got);

                struct chunk alone = c;
                alone.n_q = 1;
                alone.q = c.q + (size_t)i * head_dim;
                alone.lo[0] = c.lo[i];
                alone.hi[0] = c.hi[i];
                struct result one = {.m = {want.m[i]}, .l = {want.l[i]}, .o = want.o + (size_t)i * head_dim};
                run(r, &alone, &got);
                same_query(r, &alone, 0, &one, &got);
            }
            chunk_finish(&c);
        }
    }
}

/* ---- Tests: writing ----------------------------------------------------------------------------------------------------------- */

/* Token that byte `at` of a part belongs to. */
static uint32_t slot_of(bool q8, bool is_k, uint32_t hd, size_t at)
{
    if (!q8) {
        return (uint32_t)(is_k ? at / (32 * hd) * 16 + at / 2 % 16 : at / (2 * hd));
    }
    if (!is_k) {
        return (uint32_t)(at < 64 * hd ? at / hd : (at - 64 * hd) / (hd / 32 * 2));
    }
    size_t tile = at / (17 * hd), in = at % (17 * hd);
    return (uint32_t)(tile * 16 + (in < 16 * hd ? in % 64 / 4 : (in - 16 * hd) / 2 % 16));
}

static void write_is_exact_and_touches_its_own_token_only(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 2u * 7 * SHAPE_COUNT; n++) {
        bool q8 = n % 2;
        uint32_t hd = dims[q8][n / 2 % 7];
        if (hd == 0) {
            continue;
        }
        struct chunk c;
        chunk_init(&c, q8, hd, n / 14);
        float k[MAX_DIM], v[MAX_DIM];
        for (uint32_t d = 0; d < hd; d++) {
            k[d] = shaped(n / 14, d);
            v[d] = shaped((n / 14 + 1) % SHAPE_COUNT, d) * (d % 7 == 0 ? 1e-6f : 1.0f);
        }
        uint32_t slot = random_below(64);
        uint8_t *first = NULL;
        for (size_t i = 0; row(write_op(q8), i); i++) {
            uint8_t *now = rn_mem_alloc64(2 * c.part_bytes, 1);
            assert_non_null(now);
            memset(now, 0xa5, 2 * c.part_bytes);
            ((rn_kv_write_fn)row(write_op(q8), i)->fn)(k, v, hd, now, now + c.part_bytes, slot);
            for (size_t at = 0; at < 2 * c.part_bytes; at++) {
                bool is_k = at < c.part_bytes;
                assert_true(slot_of(q8, is_k, hd, at % c.part_bytes) == slot || now[at] == 0xa5);
            }
            if (first) {
                assert_memory_equal(first, now, 2 * c.part_bytes);
                rn_mem_free(now);
            } else {
                first = now;
            }
        }
        memcpy(c.k[0], first, c.part_bytes);
        memcpy(c.v[0], first + c.part_bytes, c.part_bytes);
        for (uint32_t d = 0; d < hd; d++) {
            int8_t kq[RN_GROUP], vq[RN_GROUP];
            float want_k = rn_f16_to_f32(rn_f32_to_f16(k[d])), want_v = rn_f16_to_f32(rn_f32_to_f16(v[d]));
            if (q8) {
                float dk = rn_f16_to_f32(rn_quant_kv(k + d / 32 * 32, kq)), dv = rn_f16_to_f32(rn_quant_kv(v + d / 32 * 32, vq));
                want_k = (float)kq[d % 32] * dk;
                want_v = (float)vq[d % 32] * dv;
            }
            float got_k = key(&c, slot, d), got_v = value(&c, slot, d);
            assert_true(want_k == got_k);
            assert_true(want_v == got_v);
        }
        rn_mem_free(first);
        chunk_finish(&c);
    }
}

static void parts_are_whole_cache_lines(void **state)
{
    (void)state;
    assert_int_equal(rn_kv_part_bytes(false, 64), 64 * 64 * 2);
    assert_int_equal(rn_kv_part_bytes(true, 64), 64 * (64 + 2 * 2));
    for (uint32_t hd = 16; hd <= 512; hd += 16) {
        assert_int_equal(rn_kv_part_bytes(false, hd) % 64, 0);
        if (hd % 32 == 0) {
            assert_int_equal(rn_kv_part_bytes(true, hd) % 64, 0);
        }
    }
}

/* ---- Tests: combining --------------------------------------------------------------------------------------------------------- */

static void combine_adds_chunks_in_order(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 400; n++) {
        uint32_t hd = dims[0][n % 7];
        static const float gaps[] = {0.0f, 1e-3f, 1.0f, 30.0f, 86.9f, 87.1f, 1e4f};
        float m = random_normal() * 10.0f, m1 = m + gaps[n / 7 % 7] * (n & 1 ? 1.0f : -1.0f);
        float l = n % 11 == 0 ? 0.0f : 1.0f + fabsf(random_normal()), l1 = n % 13 == 0 ? 0.0f : 1.0f + fabsf(random_normal());
        m = l == 0.0f ? -INFINITY : m;
        float o[MAX_DIM], o1[MAX_DIM], first[MAX_DIM + 2] = {0};
        for (uint32_t d = 0; d < hd; d++) {
            o[d] = l == 0.0f ? 0.0f : random_normal();
            o1[d] = random_normal();
        }
        for (size_t i = 0; row(RN_CPU_ATTN_COMBINE, i); i++) {
            float now[MAX_DIM + 2] = {0};
            memcpy(now, o, hd * sizeof *o);
            float *rm = &now[hd], *rl = &now[hd + 1];
            *rm = m;
            *rl = l;
            ((rn_attn_combine_fn)row(RN_CPU_ATTN_COMBINE, i)->fn)(rm, rl, now, m1, l1, o1, hd);
            if (i > 0) {
                assert_memory_equal(first, now, (hd + 2) * sizeof *now);
                continue;
            }
            memcpy(first, now, sizeof first);
            float top = fmaxf(m, m1), a = rn_expf(m - top), b = rn_expf(m1 - top);
            bool keep = l1 == 0.0f, copy = !keep && l == 0.0f;
            assert_true(*rm == (keep ? m : copy ? m1 : top));
            assert_true(*rl == (keep ? l : copy ? l1 : fmaf(l, a, l1 * b)));
            for (uint32_t d = 0; d < hd; d++) {
                assert_true(now[d] == (keep ? o[d] : copy ? o1[d] : fmaf(o[d], a, o1[d] * b)));
            }
        }
    }
}

/* ---- Frame -------------------------------------------------------------------------------------------------------------------- */

static int setup(void **state)
{
    (void)state;
    scratch = rn_mem_alloc64(RN_ATTN_SCRATCH(MAX_DIM), sizeof *scratch);
    want.o = rn_mem_alloc64((size_t)RN_ATTN_MAX_Q * MAX_DIM, sizeof *want.o);
    got.o = rn_mem_alloc64((size_t)RN_ATTN_MAX_Q * MAX_DIM, sizeof *got.o);
    return scratch && want.o && got.o ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    rn_mem_free(scratch);
    rn_mem_free(want.o);
    rn_mem_free(got.o);
    return 0;
}

/* Decode: all queries of a GQA group see the whole chunk. */
static void bench(bool q8, uint32_t head_dim, uint32_t n_q)
{
    struct chunk c;
    chunk_init(&c, q8, head_dim, SHAPE_NORMAL);
    c.n_q = n_q;
    set_ranges(&c, RANGES_FULL);
    struct rn_attn_args args = {.head_dim = head_dim, .n_q = n_q, .scale = c.scale, .m = got.m, .l = got.l, .o = got.o, .scratch = scratch};
    memcpy(args.k, c.k, sizeof c.k);
    memcpy(args.v, c.v, sizeof c.v);
    for (uint32_t i = 0; i < n_q; i++) {
        args.q[i] = c.q + (size_t)i * head_dim;
        args.hi[i] = TOKENS;
    }
    for (size_t k = 0; row(attn_op(q8), k); k++) {
        const struct rn_cpu_row *r = row(attn_op(q8), k);
        uint32_t rounds = k == 0 ? 20 : 2000;
        double best = INFINITY;
        for (uint32_t repeat = 0; repeat < 5; repeat++) {
            uint64_t start = rn_clock_ns();
            for (uint32_t i = 0; i < rounds; i++) {
                ((rn_attn_fn)r->fn)(&args);
            }
            best = fmin(best, (double)(rn_clock_ns() - start) / rounds / (TOKENS * n_q));
        }
        printf("attn %-4s head_dim %3u, %2u queries, %-11s %8.3f ns per key and query\n",
               q8 ? "q8_0" : "f16", head_dim, n_q, r->name, best);
    }
    chunk_finish(&c);
}

int main(int argc, char **argv)
{
    (void)rn_flush_denormals(); // as in the pool's threads
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        static const uint32_t shapes[][2] = {{64, 3}, {64, 1}, {64, 15}, {128, 4}, {128, 16}};
        if (setup(NULL) != 0) {
            return 1;
        }
        for (uint32_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
            bench(i % 2, shapes[i / 2][0], shapes[i / 2][1]);
        }
        return teardown(NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_agree_on_every_shape_and_range),
        cmocka_unit_test(rows_agree_for_every_number_of_queries),
        cmocka_unit_test(unseen_cells_are_never_used),
        cmocka_unit_test(write_is_exact_and_touches_its_own_token_only),
        cmocka_unit_test(parts_are_whole_cache_lines),
        cmocka_unit_test(combine_adds_chunks_in_order),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
