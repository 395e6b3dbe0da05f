/* Every row of the matrix kernels against plain C, bit for bit, and plain C against float64 over the dequantised weights and
 * activations. Everything runs inside a pool run, as in the engine: flush-to-zero is set. `--bench [TYPE]` measures instead. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/mem.h"
#include "runtime/cpu/pool.h"
#include "runtime/tensor/quant.h"
#include "runtime/tensor/repack.h"
#include "tests/kernels/cpu_kit.h"
#include "tests/kernels/matmul_internal.h"

/* ---- Inputs ------------------------------------------------------------------------------------------------------------------- */

/* A group of 32 activations of one of the shapes that break kernels. */
static void fill_group(float *x, uint32_t shape)
{
    for (int i = 0; i < RN_GROUP; i++) {
        float v = random_normal();
        switch (shape) {
        case 0: // all zero
            v = 0;
            break;
        case 1: // one outlier
            v = i == 11 ? -3000 * (1 + fabsf(v)) : v;
            break;
        case 2: // ties: the scale is exactly 1, values end in .5
            v = i == 0 ? 127 : rintf(v * 40) + 0.5f;
            v = fmaxf(-127, fminf(127, v));
            break;
        case 3: // denormals only
            v *= 1e-40f;
            break;
        case 4: // just at the smallest magnitude that counts
            v = i == 5 ? 0x1p-100f : v * 0x1p-104f;
            break;
        case 5: // just below it
            v = i == 5 ? 0x1.fffffep-101f : v * 0x1p-104f;
            break;
        case 6: // all at the limits: the greatest integer sums
            v = i % 8 < 6 ? -2.5f : 2.5f;
            break;
        default:
            break;
        }
        x[i] = v;
    }
}

static void fill_activations(float *x, size_t n)
{
    for (size_t g = 0; g < n / RN_GROUP; g++) {
        fill_group(x + g * RN_GROUP, random_u32() % 12);
    }
}

/* Scales of weights as models have them, and now and then zero, denormal or large. */
static uint16_t random_scale(void)
{
    switch (random_u32() % 16) {
    case 0:
        return 0;
    case 1:
        return (uint16_t)(random_u32() & 0x83ff); // denormal half
    case 2:
        return rn_f32_to_f16(900 * random_normal());
    default:
        return rn_f32_to_f16(0.02f * random_normal());
    }
}

/* Where a block's f16 fields are. */
static uint32_t f16_fields(enum rn_dtype type, uint32_t at[2])
{
    at[0] = type == RN_DTYPE_Q6_K ? 208 : 0;
    at[1] = 2;
    bool has_min = type == RN_DTYPE_Q4_1 || type == RN_DTYPE_Q5_1 || type == RN_DTYPE_Q4_K || type == RN_DTYPE_Q5_K;
    return type == RN_DTYPE_MXFP4 ? 0 : has_min ? 2 : 1;
}

/* Quantised weights as they lie in a file. */
static struct rn_tensor random_weights(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    size_t n_blocks = (size_t)rows * (cols / info->block_len);
    uint8_t *data = rn_mem_alloc(n_blocks, info->block_bytes);
    assert_non_null(data);
    for (size_t b = 0; b < n_blocks; b++) {
        // All-ones codes are the greatest, 0x80 is the lowest int8, zeros are the lowest unsigned ones.
        uint8_t *block = data + b * info->block_bytes, extreme = random_u32() % 16;
        for (uint32_t i = 0; i < info->block_bytes; i++) {
            block[i] = extreme == 0 ? (type == RN_DTYPE_Q8_0 ? 0x80 : 0xff) : extreme == 1 ? 0 : (uint8_t)random_u32();
        }
        if (type == RN_DTYPE_Q6_K && extreme == 1) { // zero codes are -32: with the lowest scales the greatest sums
            memset(block + 192, 0x80, 16);
        }
        uint32_t at[2], n = f16_fields(type, at);
        for (uint32_t i = 0; i < n; i++) {
            uint16_t scale = random_scale();
            memcpy(block + at[i], &scale, 2);
        }
        if (type == RN_DTYPE_MXFP4) { // exponents of models, and the two whose scale is subnormal
            block[0] = (uint8_t)(extreme < 3 ? random_u32() % 3 : 100 + random_u32() % 40);
        }
    }
    return (struct rn_tensor){.name = "w", .type = type, .cols = cols, .rows = rows, .data = data, .bytes = n_blocks * info->block_bytes};
}

struct rn_acts acts_alloc(uint32_t n_tok, uint32_t mb, uint32_t n_groups)
{
    size_t n = (size_t)(n_tok + mb - 1) / mb * mb * n_groups;
    struct rn_acts a = {.n_tok = n_tok, .mb = mb, .n_groups = n_groups};
    a.q = rn_mem_alloc64(n, RN_GROUP);
    a.d = rn_mem_alloc64(n, sizeof(float));
    a.sd = rn_mem_alloc64(n, sizeof(float));
    a.sum = rn_mem_alloc64(n, sizeof(*a.sum));
    if (!a.q || !a.d || !a.sd || !a.sum) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return a;
}

void acts_free(struct rn_acts *a)
{
    rn_mem_free(a->q);
    rn_mem_free(a->d);
    rn_mem_free(a->sd);
    rn_mem_free(a->sum);
}

static bool can_run(const struct rn_cpu_row *row)
{
    return (row->features & ~rn_cpu_features()) == 0;
}

static void quantise(const struct rn_acts *a, const float *x)
{
    rn_quant_act_fn fn = (rn_quant_act_fn)row(RN_CPU_QUANT_ACT, 0)->fn;
    for (uint32_t m = 0; m < a->n_tok; m++) {
        fn(x + (size_t)m * a->n_groups * RN_GROUP, a, m);
    }
}

/* ---- Quantised weights -------------------------------------------------------------------------------------------------------- */

#define MAX_TOK 40
#define GUARD 0x7fc01234u /* bits of a y that nobody may write */

struct mm_case {
    struct rn_tensor src;
    uint32_t n_groups, n_blocks;
    uint8_t *w;
    float *x;        // [MAX_TOK, cols]
    float *deq;      // [rows, cols]
    float *y, *want; // [MAX_TOK + 1, ldy]
    size_t ldy, y_bytes;
};

static struct mm_case mm_case_create(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    struct mm_case t = {.src = random_weights(type, cols, rows), .n_groups = cols / RN_GROUP, .n_blocks = (rows + 15) / 16};
    t.w = rn_mem_alloc64(rn_repack_bytes(type, cols, rows), 1);
    t.x = rn_mem_alloc((size_t)MAX_TOK * cols, sizeof(float));
    t.deq = rn_mem_alloc((size_t)rows * cols, sizeof(float));
    t.ldy = (size_t)t.n_blocks * 16 + 3; // rows of y need not be aligned
    t.y_bytes = (MAX_TOK + 1) * t.ldy * sizeof(float);
    t.y = rn_mem_alloc(t.y_bytes, 1);
    t.want = rn_mem_alloc(t.y_bytes, 1);
    assert_true(t.w && t.x && t.deq && t.y && t.want);
    rn_repack(&t.src, t.w, 0, t.n_blocks);
    rn_dtype_find(type)->dequant(t.src.data, t.deq, (size_t)rows * (cols / rn_dtype_find(type)->block_len));
    fill_activations(t.x, (size_t)MAX_TOK * cols);
    return t;
}

static void mm_case_free(struct mm_case *t)
{
    rn_mem_free((void *)t->src.data);
    rn_mem_free(t->w);
    rn_mem_free(t->x);
    rn_mem_free(t->deq);
    rn_mem_free(t->y);
    rn_mem_free(t->want);
}

static void mm_call(const struct rn_cpu_row *row, const struct mm_case *t, const struct rn_acts *a, float *y, uint32_t b0, uint32_t b1)
{
    for (size_t i = 0; i < t->y_bytes / sizeof(float); i++) {
        const uint32_t guard = GUARD;
        memcpy(&y[i], &guard, sizeof(guard));
    }
    struct rn_mm_args args = {.w = t->w, .n_groups = t->n_groups, .a = a, .y = y, .ldy = t->ldy};
    ((rn_mm_fn)row->fn)(&args, b0, b1);
}

/* Magnitude of a group's minimum, which may cancel against its codes; 0 for types without one. K types: of the greatest it can be. */
static double group_min(const struct mm_case *t, size_t group)
{
    const struct rn_dtype_info *info = rn_dtype_find(t->src.type);
    uint32_t at[2];
    uint16_t min = 0;
    if (f16_fields(t->src.type, at) == 2) {
        memcpy(&min, (const uint8_t *)t->src.data + group * RN_GROUP / info->block_len * info->block_bytes + at[1], sizeof(min));
    }
    return fabs((double)rn_f16_to_f32(min)) * (info->block_len > RN_GROUP ? 63 : 1);
}

/* Plain C against float64. The products are exact in double; float rounds once per product of scales and twice per group,
 * and a product of scales below the normal range is flushed to zero. */
static void mm_check_plain(const struct mm_case *t, const struct rn_acts *a, const float *y)
{
    const double flushed = (double)FLT_MIN * RN_GROUP * 128 * 127;
    for (uint32_t m = 0; m < a->n_tok; m++) {
        for (uint32_t row = 0; row < t->src.rows; row++) {
            const float *w = t->deq + (size_t)row * t->src.cols;
            double sum = 0, bound = 0;
            for (uint32_t g = 0; g < t->n_groups; g++) {
                size_t at = ((size_t)(m / a->mb) * t->n_groups + g) * a->mb + m % a->mb;
                double min = group_min(t, (size_t)row * t->n_groups + g);
                for (int i = 0; i < RN_GROUP; i++) {
                    double term = (double)w[g * RN_GROUP + i] * a->q[at * RN_GROUP + i] * (double)a->d[at];
                    sum += term;
                    bound += fabs(term) + 2 * fabs(min * a->q[at * RN_GROUP + i] * (double)a->d[at]);
                }
            }
            double tolerance = bound * (double)FLT_EPSILON * (t->n_groups + 4) + flushed * t->n_groups;
            if (!(fabs(y[m * t->ldy + row] - sum) <= tolerance)) {
                fail_msg("%s %ux%u, token %u of %u, row %u: got %g, float64 says %g +- %g", rn_dtype_find(t->src.type)->name, t->src.rows,
                         t->src.cols, m, a->n_tok, row, (double)y[m * t->ldy + row], sum, tolerance);
            }
        }
    }
}

static void mm_check_guards(const struct mm_case *t, const struct rn_acts *a, const float *y, uint32_t b0, uint32_t b1)
{
    for (size_t i = 0; i < t->y_bytes / sizeof(float); i++) {
        uint32_t bits;
        memcpy(&bits, &y[i], sizeof(bits));
        size_t col = i % t->ldy;
        bool ours = i / t->ldy < a->n_tok && col >= b0 * 16 && col < b1 * 16;
        if (ours == (bits == GUARD)) {
            fail_msg("token %zu, row %zu was %s", i / t->ldy, col, ours ? "not written" : "written");
        }
    }
}

static void mm_compare(enum rn_cpu_op op, struct mm_case *t, const struct rn_acts *a, uint32_t b0, uint32_t b1)
{
    size_t n;
    const struct rn_cpu_row *rows = rn_cpu_rows(op, &n);
    mm_call(&rows[n - 1], t, a, t->want, b0, b1);
    mm_check_guards(t, a, t->want, b0, b1);
    for (size_t i = 0; i + 1 < n; i++) {
        if (!can_run(&rows[i])) {
            continue;
        }
        mm_call(&rows[i], t, a, t->y, b0, b1);
        if (memcmp(t->y, t->want, t->y_bytes) != 0) {
            size_t at = 0;
            while (memcmp(&t->y[at], &t->want[at], sizeof(float)) == 0) {
                at++;
            }
            fail_msg("%s %s: %u x %u, %u tokens in blocks of %u, row blocks %u..%u: token %zu, row %zu is %a, plain C says %a",
                     rn_cpu_op_name(op), rows[i].name, t->src.rows, t->src.cols, a->n_tok, a->mb, b0, b1, at / t->ldy, at % t->ldy,
                     (double)t->y[at], (double)t->want[at]);
        }
    }
}

static void mm_tokens(enum rn_cpu_op op, struct mm_case *t, uint32_t first, uint32_t n_tok, uint32_t mb)
{
    struct rn_acts a = acts_alloc(n_tok, mb, t->n_groups);
    quantise(&a, t->x + (size_t)first * t->src.cols);
    for (uint32_t b0 = 0; b0 < t->n_blocks && b0 < 2; b0++) { // whole, and a range that starts later
        mm_compare(op, t, &a, b0, t->n_blocks);
        if (b0 == 0) {
            mm_check_plain(t, &a, t->want);
        }
    }
    mm_compare(op, t, &a, 0, t->n_blocks > 1 ? t->n_blocks - 1 : 1);
    acts_free(&a);
}

/* The operations of a quantised type. */
enum { ONE, FEW, MANY };

static enum rn_cpu_op op_of(const struct rn_cpu_product *p, int shape)
{
    return (enum rn_cpu_op)(p->op + shape);
}

static void mm_type_shape(const struct rn_cpu_product *type, uint32_t cols, uint32_t rows)
{
    struct mm_case t = mm_case_create(type->type, cols, rows);
    for (uint32_t m = 0; m < MAX_TOK; m += 5) {
        mm_tokens(op_of(type, ONE), &t, m, 1, 1);
    }
    for (uint32_t n_tok = 2; n_tok <= 16; n_tok++) {
        mm_tokens(op_of(type, FEW), &t, 0, n_tok, n_tok);
    }
    for (uint32_t n_tok = 1; n_tok <= MAX_TOK; n_tok += cols > 64 ? 13 : 1) {
        mm_tokens(op_of(type, MANY), &t, 0, n_tok, 16);
    }
    mm_tokens(op_of(type, MANY), &t, 0, 7, 7);
    mm_case_free(&t);
}

static void quantised_rows_equal_plain_c_bit_for_bit(void **state)
{
    (void)state;
    const uint32_t rows[] = {15, 16, 17, 80}, cols[] = {32, 64, 256, 576, 768, 1536};
    size_t n_types;
    const struct rn_cpu_product *types = rn_cpu_products(&n_types);
    for (size_t type = 0; type < n_types; type++) {
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
            for (size_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++) {
                bool fits = cols[c] % rn_dtype_find(types[type].type)->block_len == 0, is_long = cols[c] > 576;
                if (!types[type].is_float && fits && (!is_long || rows[r] > 16)) {
                    mm_type_shape(&types[type], cols[c], is_long && rows[r] > 17 ? 47 : rows[r]);
                }
            }
        }
    }
}

/* The rows that the machine would choose: one token, few and many give the same bits for the same token. */
static void one_few_and_many_agree(void **state)
{
    (void)state;
    struct rn_cpu_kernels k;
    assert_int_equal(rn_cpu_kernels_choose(&k, NULL, NULL), 0);
    size_t n_types;
    const struct rn_cpu_product *types = rn_cpu_products(&n_types);
    for (size_t i = 0; i < n_types && !types[i].is_float; i++) {
        const uint32_t cols = 768;
        struct mm_case t = mm_case_create(types[i].type, cols, 48);
        struct rn_acts many = acts_alloc(33, 16, t.n_groups);
        quantise(&many, t.x);
        mm_call(k.row[op_of(&types[i], MANY)], &t, &many, t.want, 0, t.n_blocks);
        for (uint32_t m = 0; m < many.n_tok; m++) {
            uint32_t n_few = 2 + m % 15;
            struct rn_acts one = acts_alloc(1, 1, t.n_groups), few = acts_alloc(n_few, n_few, t.n_groups);
            float *x = rn_mem_alloc((size_t)n_few * cols, sizeof(float));
            assert_non_null(x);
            fill_activations(x, (size_t)n_few * cols);
            memcpy(x + (size_t)(n_few - 1) * cols, t.x + (size_t)m * cols, cols * sizeof(float));
            quantise(&one, t.x + (size_t)m * cols);
            quantise(&few, x);
            mm_call(k.row[op_of(&types[i], ONE)], &t, &one, t.y, 0, t.n_blocks);
            assert_memory_equal(t.y, t.want + m * t.ldy, 48 * sizeof(float));
            mm_call(k.row[op_of(&types[i], FEW)], &t, &few, t.y, 0, t.n_blocks);
            assert_memory_equal(t.y + (n_few - 1) * t.ldy, t.want + m * t.ldy, 48 * sizeof(float));
            rn_mem_free(x);
            acts_free(&one);
            acts_free(&few);
        }
        acts_free(&many);
        mm_case_free(&t);
    }
}

/* ---- Float weights ------------------------------------------------------------------------------------------------------------ */

static void *random_float_weights(enum rn_dtype type, uint32_t cols, size_t ldw, uint32_t rows, float *values)
{
    size_t size = rn_dtype_find(type)->block_bytes;
    uint8_t *w = rn_mem_alloc64(rows * ldw, size);
    assert_non_null(w);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        uint32_t kind = random_u32() % 16;
        float v = kind == 0 ? -0.0f : kind == 1 ? 1e-6f * random_normal() : kind == 2 ? 300 * random_normal() : 0.05f * random_normal();
        uint16_t half = rn_f32_to_f16(v);
        if (type == RN_DTYPE_BF16) { // the upper half of the bits
            uint32_t whole;
            memcpy(&whole, &v, sizeof(whole));
            half = (uint16_t)(whole >> 16);
        }
        rn_dtype_find(type)->dequant(size == 2 ? (const void *)&half : (const void *)&v, &values[i], 1);
        const void *bits = size == 2 ? (const void *)&half : (const void *)&values[i];
        memcpy(w + (i / cols * ldw + i % cols) * size, bits, size);
    }
    return w;
}

static void mmf_check_plain(const struct rn_mmf_args *args, const float *values, uint32_t rows)
{
    for (uint32_t m = 0; m < args->n_tok; m++) {
        for (uint32_t row = 0; row < rows; row++) {
            double sum = 0, bound = 0;
            for (uint32_t i = 0; i < args->n_cols; i++) {
                double term = (double)values[(size_t)row * args->n_cols + i] * (double)args->x[m * args->ldx + i];
                sum += term;
                bound += fabs(term);
            }
            double got = args->y[m * args->ldy + row];
            double tolerance = bound * (double)FLT_EPSILON * (args->n_cols / 16 + 6) + 1e-36;
            if (!(fabs(got - sum) <= tolerance)) {
                fail_msg("%u columns, token %u, row %u: got %g, float64 says %g +- %g", args->n_cols, m, row, got, sum, tolerance);
            }
        }
    }
}

static void mmf_shape(enum rn_cpu_op op, enum rn_dtype type, uint32_t cols, uint32_t rows, uint32_t n_tok)
{
    const size_t ldw = (cols + 15) / 16 * 16, ldx = cols + 1, y_bytes = (size_t)n_tok * rows * sizeof(float);
    float *values = rn_mem_alloc((size_t)rows * cols, sizeof(float)), *x = rn_mem_alloc((n_tok - 1) * ldx + cols, sizeof(float));
    float *y = rn_mem_alloc(y_bytes, 1), *want = rn_mem_alloc(y_bytes, 1);
    assert_true(values && x && y && want);
    void *w = random_float_weights(type, cols, ldw, rows, values);
    for (size_t i = 0; i < (n_tok - 1) * ldx + cols; i++) {
        uint32_t kind = random_u32() % 16;
        x[i] = i % ldx == cols ? NAN : kind == 0 ? 1e-38f * random_normal() : kind == 1 ? -0.0f : random_normal();
    }
    struct rn_mmf_args args = {.w = w, .n_cols = cols, .ldw = ldw, .x = x, .ldx = ldx, .n_tok = n_tok, .y = want, .ldy = rows};
    size_t n;
    const struct rn_cpu_row *table = rn_cpu_rows(op, &n);
    ((rn_mmf_fn)table[n - 1].fn)(&args, 0, rows);
    mmf_check_plain(&args, values, rows);
    args.y = y;
    for (size_t i = 0; i + 1 < n; i++) {
        if (can_run(&table[i])) {
            memset(y, 0xff, y_bytes);
            ((rn_mmf_fn)table[i].fn)(&args, rows / 3, rows);
            ((rn_mmf_fn)table[i].fn)(&args, 0, rows / 3);
            if (memcmp(y, want, y_bytes) != 0) {
                fail_msg("%s %s: %u x %u, %u tokens: not plain C's bits", rn_cpu_op_name(op), table[i].name, rows, cols, n_tok);
            }
        }
    }
    rn_mem_free(values);
    rn_mem_free(x);
    rn_mem_free(y);
    rn_mem_free(want);
    rn_mem_free(w);
}

static void float_rows_equal_plain_c_bit_for_bit(void **state)
{
    (void)state;
    const uint32_t cols[] = {1, 15, 16, 17, 33, 64, 576}, rows[] = {1, 7, 8, 9, 21}, toks[] = {1, 2, 3, 4, 5, 8, 17};
    for (size_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++) {
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
            for (size_t m = 0; m < sizeof(toks) / sizeof(toks[0]); m++) {
                mmf_shape(RN_CPU_MM_F16, RN_DTYPE_F16, cols[c], rows[r], toks[m]);
                mmf_shape(RN_CPU_MM_BF16, RN_DTYPE_BF16, cols[c], rows[r], toks[m]);
                mmf_shape(RN_CPU_MM_F32, RN_DTYPE_F32, cols[c], rows[r], toks[m]);
            }
        }
    }
}

/* ---- Activations and the table ------------------------------------------------------------------------------------------------ */

static void check_quantised_group(const float *x, const struct rn_acts *a, size_t at)
{
    float amax = 0;
    int32_t sum[2] = {0};
    for (int i = 0; i < RN_GROUP; i++) {
        amax = fmaxf(amax, fabsf(x[i]));
        sum[i / 16] += a->q[at * RN_GROUP + i];
        double error = fabs((double)x[i] - (double)a->d[at] * a->q[at * RN_GROUP + i]);
        assert_true(error <= 0.50001 * (double)a->d[at] || a->d[at] == 0);
    }
    assert_true(a->d[at] == (amax < 0x1p-100f ? 0 : amax / 127));
    assert_int_equal(a->sum[at].half[0], sum[0]);
    assert_int_equal(a->sum[at].half[1], sum[1]);
    assert_true(a->sd[at] == (float)(sum[0] + sum[1]) * a->d[at]);
}

static void quantised_activations_are_right_in_every_row(void **state)
{
    (void)state;
    size_t n;
    const struct rn_cpu_row *rows = rn_cpu_rows(RN_CPU_QUANT_ACT, &n);
    const uint32_t n_groups = 48, n_tok = 19;
    float *x = rn_mem_alloc((size_t)n_tok * n_groups * RN_GROUP + 1, sizeof(float));
    assert_non_null(x);
    fill_activations(x + 1, (size_t)n_tok * n_groups * RN_GROUP); // not aligned
    struct rn_acts want = acts_alloc(n_tok, 16, n_groups);
    quantise(&want, x + 1);
    for (uint32_t i = 0; i < n_tok * n_groups; i++) {
        uint32_t m = i / n_groups, g = i % n_groups;
        check_quantised_group(x + 1 + (size_t)i * RN_GROUP, &want, ((size_t)(m / 16) * n_groups + g) * 16 + m % 16);
    }
    for (size_t r = 0; r + 1 < n; r++) {
        if (!can_run(&rows[r])) {
            continue;
        }
        struct rn_acts got = acts_alloc(n_tok, 16, n_groups);
        for (uint32_t m = 0; m < n_tok; m++) {
            ((rn_quant_act_fn)rows[r].fn)(x + 1 + (size_t)m * n_groups * RN_GROUP, &got, m);
        }
        assert_memory_equal(got.q, want.q, 2 * 16 * n_groups * RN_GROUP);
        assert_memory_equal(got.d, want.d, 2 * 16 * n_groups * sizeof(float));
        assert_memory_equal(got.sd, want.sd, 2 * 16 * n_groups * sizeof(float));
        assert_memory_equal(got.sum, want.sum, 2 * 16 * n_groups * sizeof(*got.sum));
        acts_free(&got);
    }
    acts_free(&want);
    rn_mem_free(x);
}

static void table_is_complete_and_masks_hide_rows(void **state)
{
    (void)state;
    struct rn_cpu_kernels k;
    for (uint32_t op = 0; op < RN_CPU_OP_COUNT; op++) {
        size_t n;
        const struct rn_cpu_row *rows = rn_cpu_rows((enum rn_cpu_op)op, &n);
        assert_true(n >= 1);
        assert_non_null(rn_cpu_op_name((enum rn_cpu_op)op));
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(rows[i].op, op);
            assert_non_null(rows[i].fn);
            assert_int_equal(strcmp(rows[i].name, "c") == 0, i + 1 == n);
        }
        assert_int_equal(rows[n - 1].features, 0);
    }
    size_t n_types;
    const struct rn_cpu_product *types = rn_cpu_products(&n_types);
    for (size_t i = 0; i < n_types; i++) {
        assert_ptr_equal(rn_cpu_product_find(types[i].type), &types[i]);
        assert_non_null(rn_dtype_find(types[i].type)->dequant);
        assert_int_not_equal(rn_repack_bytes(types[i].type, 256, 16), 0);
        assert_int_equal(types[i].is_float, rn_dtype_find(types[i].type)->block_len == 1);
    }
    for (uint32_t id = 0; rn_dtype_find(id); id++) { // every type that a file may have can be multiplied
        assert_int_equal(rn_cpu_product_find((enum rn_dtype)id) != NULL, rn_dtype_find(id)->dequant != NULL);
    }
    assert_int_equal(rn_cpu_kernels_choose(&k, "avx512vnni,avxvnni,avx2,neon_i8mm,neon_dotprod,c", NULL), 0);
    for (uint32_t op = 0; op < RN_CPU_OP_COUNT; op++) {
        assert_string_equal(k.row[op]->name, "c");
    }
    assert_int_equal(rn_cpu_kernels_choose(&k, "", NULL), 0);
    assert_true(can_run(k.row[RN_CPU_MM1_Q4_1]));
    assert_int_equal(rn_cpu_kernels_choose(&k, "avx512vnni,avx", NULL), -22);
}

static bool only_plain_c(void)
{
    struct rn_cpu_kernels k;
    return rn_cpu_kernels_choose(&k, NULL, NULL) == 0 && strcmp(k.row[RN_CPU_MM1_Q4_1]->name, "c") == 0;
}

static void run_group(void *arg, uint32_t thread)
{
    (void)thread;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_complete_and_masks_hide_rows),    cmocka_unit_test(quantised_activations_are_right_in_every_row),
        cmocka_unit_test(quantised_rows_equal_plain_c_bit_for_bit), cmocka_unit_test(one_few_and_many_agree),
        cmocka_unit_test(float_rows_equal_plain_c_bit_for_bit),
    };
    *(int *)arg = cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench_matmul(argc > 2 ? argv[2] : NULL);
        return 0;
    }
    printf("seed %#llx\n", (unsigned long long)random_state());
    if (only_plain_c()) {
        printf("this machine can run no row but plain C: only that is compared, with float64\n");
    }
    struct rn_pool *pool;
    if (rn_pool_create(&pool, 1, NULL) < 0) {
        return 1;
    }
    int failed = 1;
    rn_pool_run(pool, run_group, &failed);
    rn_pool_destroy(pool);
    return failed;
}
