/* Matrix products on Vulkan: every row of the table that the device can run, in all types, against plain C with Vulkan's order of summation
 * (segments of 128 columns, float weights 32, added in ascending order; design: numerics contract), bit for bit. Since all rows are compared
 * with the same reference, mat-vec, mat-mat and their variants agree with each other too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/mem.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/quant.h"
#include "runtime/tensor/repack.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/kernels/vulkan_kit.h"

#define MAX_TOKENS 256


/* ---- Reference ---------------------------------------------------------------------------------------------------------------------------- */

static float fma_of_device(float a, float b, float c)
{
    return kit_fma_rounds_twice() ? a * b + c : fmaf(a, b, c);
}

struct acts {
    uint32_t n_tokens, cols, n_groups;
    float *x;  // [n_tokens, 32 n_groups], 0 beyond cols
    int8_t *q; // [n_tokens, 32 n_groups]
    float *d;  // [n_tokens, n_groups, 2]: d, d * sum
};

static struct acts acts_create(uint32_t n_tokens, uint32_t cols)
{
    struct acts a = {.n_tokens = n_tokens, .cols = cols, .n_groups = (cols + 31) / 32};
    const size_t n = (size_t)n_tokens * a.n_groups;
    a.x = rn_mem_alloc(n * 32, sizeof *a.x);
    a.q = rn_mem_alloc(n * 32, 1);
    a.d = rn_mem_alloc(n * 2, sizeof *a.d);
    assert_true(a.x && a.q && a.d);
    kit_fill(a.x, n * 32);
    for (uint32_t m = 0; m < n_tokens; m++) {
        for (uint32_t c = cols; c < a.n_groups * 32; c++) {
            a.x[(size_t)m * a.n_groups * 32 + c] = 0;
        }
    }
    for (size_t g = 0; g < n; g++) {
        int32_t sum;
        a.d[2 * g] = rn_quant_act(a.x + 32 * g, a.q + 32 * g, &sum);
        a.d[2 * g + 1] = (float)sum * a.d[2 * g];
    }
    return a;
}

static void acts_free(struct acts *a)
{
    rn_mem_free(a->x);
    rn_mem_free(a->q);
    rn_mem_free(a->d);
}

static bool is_float(enum rn_dtype type)
{
    return rn_dtype_find(type)->block_len == 1;
}

/* Group g of 16 rows for token m, added to the segment's sums. */
static void add_group(const struct rn_repack_group *w, const struct acts *a, uint32_t m, uint32_t g, float acc[16])
{
    const size_t at = (size_t)m * a->n_groups + g;
    const int8_t *x = a->q + at * 32;
    for (uint32_t r = 0; r < 16; r++) {
        int32_t sum[2] = {0};
        for (uint32_t c = 0; c < 32; c++) {
            sum[c / 16] += w->q[c / 4][4 * r + c % 4] * x[c];
        }
        acc[r] = fma_of_device((float)(w->sub[0][r] * sum[0] + w->sub[1][r] * sum[1]), w->d[r] * a->d[2 * at], acc[r]);
        acc[r] = w->has_min ? fma_of_device(a->d[2 * at + 1], w->m[r], acc[r]) : acc[r];
    }
}

/* y [n_tokens, rows] */
static void product_quantised(const struct rn_tensor *w, const struct acts *a, float *y)
{
    const size_t stride = rn_repack_stride(w->type, w->cols);
    uint8_t *blocks = rn_mem_alloc64(rn_repack_bytes(w->type, w->cols, w->rows), 1);
    struct rn_repack_group *groups = rn_mem_alloc(a->n_groups, sizeof *groups);
    assert_true(blocks && groups);
    rn_repack(w, blocks, 0, (w->rows + 15) / 16);
    for (uint32_t b = 0; b < (w->rows + 15) / 16; b++) {
        for (uint32_t g = 0; g < a->n_groups; g++) {
            rn_repack_group_read(w->type, blocks + b * stride, g, 0, 16, &groups[g]);
        }
        for (uint32_t m = 0; m < a->n_tokens; m++) {
            float total[16] = {0};
            for (uint32_t s = 0; s < a->n_groups; s += 4) {
                float acc[16] = {0};
                for (uint32_t g = s; g < s + 4 && g < a->n_groups; g++) {
                    add_group(&groups[g], a, m, g, acc);
                }
                for (uint32_t r = 0; r < 16; r++) {
                    total[r] = s == 0 ? acc[r] : total[r] + acc[r];
                }
            }
            for (uint32_t r = 0; r < 16 && 16 * b + r < w->rows; r++) {
                y[(size_t)m * w->rows + 16 * b + r] = total[r];
            }
        }
    }
    rn_mem_free(blocks);
    rn_mem_free(groups);
}

static void product_float(const struct rn_tensor *w, const struct acts *a, float *y)
{
    float *row = rn_mem_alloc(w->cols, sizeof *row);
    assert_non_null(row);
    for (uint32_t r = 0; r < w->rows; r++) {
        const struct rn_dtype_info *type = rn_dtype_find(w->type);
        type->dequant((const uint8_t *)w->data + (size_t)r * w->cols * type->block_bytes, row, w->cols);
        for (uint32_t m = 0; m < a->n_tokens; m++) {
            const float *x = a->x + (size_t)m * a->n_groups * 32;
            float total = 0;
            for (uint32_t s = 0; s < w->cols; s += 32) {
                float acc = 0;
                for (uint32_t c = s; c < s + 32 && c < w->cols; c++) {
                    acc = fma_of_device(row[c], x[c], acc);
                }
                total = s == 0 ? acc : total + acc;
            }
            y[(size_t)m * w->rows + r] = total;
        }
    }
    rn_mem_free(row);
}

/* ---- One case ------------------------------------------------------------------------------------------------------------------------------ */

/* A dispatch: up to three matrices of one type, their biases, what is done with the sums. */
struct product {
    enum rn_dtype type;
    uint32_t cols, rows[3], n_parts, flags;
    uint32_t max_tokens;
    struct rn_tensor w[3];
    struct acts a;
    float *bias[3];
    float *old[3];  // [MAX_TOKENS, ld]: what out holds before
    float *want[3]; // [max_tokens, ld]
    uint32_t n_settled; // rows of want[0] that are a device's: with gates whose exp() is not plain C's, the first result counts
    uint32_t ld[3];
    struct rn_vk_buffer gpu_w[3], gpu_bias[3], gpu_q, gpu_d;
};

static float activated(const struct product *p, float x)
{
    return p->flags & RN_PRODUCT_GELU ? rn_gelu_tanhf(x) : rn_siluf(x);
}

/* What every token's row must be, from the sums. */
static void expect(struct product *p, uint32_t part, const float *sums, const float *up)
{
    for (uint32_t m = 0; m < p->max_tokens; m++) {
        for (uint32_t r = 0; r < p->rows[part]; r++) {
            const size_t at = (size_t)m * p->ld[part] + r, from = (size_t)m * p->rows[part] + r;
            float y = sums[from] + (p->bias[part] ? p->bias[part][r] : 0);
            if (p->flags & RN_PRODUCT_GATED) {
                y = activated(p, y) * (up[from] + (p->bias[1] ? p->bias[1][r] : 0));
            }
            if (p->flags & RN_PRODUCT_TIMES) {
                y = activated(p, y) * p->old[1][(size_t)m * p->ld[1] + r];
            }
            p->want[part][at] = p->flags & RN_PRODUCT_ADD ? p->old[part][at] + y : y;
        }
    }
}

static void product_make_part(struct product *p, uint32_t i, bool bias)
{
    p->w[i] = kit_weights(p->type, p->cols, p->rows[i]);
    p->gpu_w[i] = kit_repacked(&p->w[i]);
    if (bias) {
        p->bias[i] = rn_mem_alloc(p->rows[i], sizeof(float));
        assert_non_null(p->bias[i]);
        kit_fill(p->bias[i], p->rows[i]);
        p->gpu_bias[i] = kit_buffer(p->rows[i] * sizeof(float), p->bias[i]);
    }
}

/* rows: 0 ends them. biases: bit i for part i. */
static struct product product_create(enum rn_dtype type, uint32_t cols, const uint32_t rows[3], uint32_t max_tokens, uint32_t flags,
                                     uint32_t biases)
{
    struct product p = {.type = type, .cols = cols, .flags = flags, .max_tokens = max_tokens, .a = acts_create(max_tokens, cols)};
    float *sums[3] = {NULL};
    for (uint32_t i = 0; i < 3; i++) {
        p.rows[i] = rows[i];
        p.ld[i] = (rows[flags & RN_PRODUCT_TIMES ? 0 : i] + 31) / 32 * 32;
        size_t n = (size_t)MAX_TOKENS * p.ld[i];
        p.old[i] = rn_mem_alloc(n + 1, sizeof(float));
        p.want[i] = rn_mem_alloc(n + 1, sizeof(float));
        assert_true(p.old[i] && p.want[i]);
        memset(p.old[i], 0xff, n * sizeof(float));
        if (flags & (RN_PRODUCT_ADD | RN_PRODUCT_TIMES)) {
            kit_fill(p.old[i], n);
        }
        memcpy(p.want[i], p.old[i], n * sizeof(float));
        if (rows[i]) {
            p.n_parts++;
            product_make_part(&p, i, biases >> i & 1);
            sums[i] = rn_mem_alloc((size_t)max_tokens * rows[i], sizeof(float));
            assert_non_null(sums[i]);
            (is_float(type) ? product_float : product_quantised)(&p.w[i], &p.a, sums[i]);
        }
    }
    for (uint32_t i = 0; i < (flags & RN_PRODUCT_GATED ? 1 : p.n_parts); i++) {
        expect(&p, i, sums[i], sums[1]);
    }
    for (uint32_t i = 0; i < 3; i++) {
        rn_mem_free(sums[i]);
    }
    const size_t n = (size_t)max_tokens * p.a.n_groups;
    p.gpu_q = kit_buffer(n * 32 * (is_float(type) ? sizeof(float) : 1), is_float(type) ? (const void *)p.a.x : p.a.q);
    p.gpu_d = kit_buffer(n * 2 * sizeof(float), p.a.d);
    return p;
}

static void product_free(struct product *p)
{
    for (uint32_t i = 0; i < 3; i++) {
        rn_mem_free((void *)p->w[i].data);
        rn_mem_free(p->bias[i]);
        rn_mem_free(p->old[i]);
        rn_mem_free(p->want[i]);
        kit_buffer_destroy(&p->gpu_w[i]);
        kit_buffer_destroy(&p->gpu_bias[i]);
    }
    kit_buffer_destroy(&p->gpu_q);
    kit_buffer_destroy(&p->gpu_d);
    acts_free(&p->a);
}

static struct rn_args_product product_args(const struct product *p, const struct rn_vk_buffer out[3], const struct rn_vk_buffer *step)
{
    struct rn_args_product a = {.q = p->gpu_q.address, .d = p->gpu_d.address, .step = step->address, .n_groups = p->a.n_groups,
                                .flags = p->flags};
    a.w0 = p->gpu_w[0].address, a.w1 = p->gpu_w[1].address, a.w2 = p->gpu_w[2].address;
    a.out0 = out[0].address, a.out1 = out[1].address, a.out2 = out[2].address;
    a.bias0 = p->gpu_bias[0].address, a.bias1 = p->gpu_bias[1].address, a.bias2 = p->gpu_bias[2].address;
    a.rows0 = p->rows[0], a.rows1 = p->rows[1], a.rows2 = p->rows[2];
    a.ld0 = p->ld[0], a.ld1 = p->ld[1], a.ld2 = p->ld[2];
    for (uint32_t i = 0; i < 3; i++) {
        a.flags |= p->bias[i] ? RN_PRODUCT_BIAS0 << i : 0;
    }
    a.flags |= is_float(p->type) && (p->cols + 15) / 16 % 2 ? RN_PRODUCT_HALF : 0;
    return a;
}

static uint32_t tiles(const struct product *p, uint32_t rows)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < (p->flags & RN_PRODUCT_GATED ? 1 : p->n_parts); i++) {
        n += (p->rows[i] + rows - 1) / rows;
    }
    return n;
}

/* Where the device's fma() is not plain C's, exp() in a gate is not either: a token's first result has to be close, and all later ones the
 * same. Close: where a gate is all but shut, exp() of -60 makes some 1e-5 of its argument's last bit. */
static void settle(struct product *p, const char *what, const float *got, uint32_t n)
{
    for (size_t i = (size_t)p->n_settled * p->ld[0]; i < (size_t)n * p->ld[0]; i++) {
        if (i % p->ld[0] < p->rows[0] && !(fabsf(got[i] - p->want[0][i]) <= 1e-4f * fabsf(p->want[0][i]))) {
            fail_msg("%s: %zu: %.9g, expected %.9g", what, i, (double)got[i], (double)p->want[0][i]);
        }
        p->want[0][i] = i % p->ld[0] < p->rows[0] ? got[i] : p->want[0][i];
    }
    p->n_settled = n > p->n_settled ? n : p->n_settled;
}

/* Runs the product with one row of the table for n tokens and compares. knob: slices of a mat-vec, a quarter of the
 * tokens of a mat-mat's tile. */
static void product_check(struct product *p, const struct rn_vk_kernel *k, uint32_t n, uint32_t bucket, uint32_t knob)
{
    struct rn_vk_step head = {.n_rows = p->flags & RN_PRODUCT_WANTED ? 999 : n, .n_wanted = p->flags & RN_PRODUCT_WANTED ? n : 999};
    struct rn_vk_buffer out[3] = {0}, step = kit_buffer(sizeof head, &head);
    for (uint32_t i = 0; i < 3; i++) {
        out[i] = kit_buffer((size_t)MAX_TOKENS * p->ld[i] * sizeof(float) + 4, p->old[i]);
    }
    struct kit_dispatch how = {.specs = {bucket, 8 * knob}, .n_specs = 2, .groups = {tiles(p, 16), 1, 1}};
    if (k->op == RN_VK_MATMAT) {
        how = (struct kit_dispatch){.specs = {knob, 128}, .n_specs = 2,
                                    .groups = {tiles(p, 64), (bucket + 4 * knob - 1) / (4 * knob), 1}};
    }
    if (k->needs & RN_VK_COOPMAT) { // one product wide, or as wide as a GPU's
        const uint32_t tokens = knob <= 4 ? 16 : 4 * kit_device()->coop_n;
        rn_vk_coop_specs(how.specs, kit_device(), tokens);
        how.n_specs = RN_VK_COOP_SPECS;
        how.groups[1] = (bucket + tokens - 1) / tokens;
    }
    const struct rn_args_product args = product_args(p, out, &step);
    kit_run(k, &how, &args);
    for (uint32_t i = 0; i < 3; i++) {
        const size_t all = (size_t)MAX_TOKENS * p->ld[i], real = (size_t)n * p->ld[i];
        float *got = rn_mem_alloc(all + 1, sizeof(float));
        assert_non_null(got);
        kit_read(&out[i], got, all * sizeof(float) + 4);
        char what[160];
        snprintf(what, sizeof what, "part %u, %u cols, %u rows, %u tokens, bucket %u, %u, flags %u", i, p->cols, p->rows[i], n, bucket, knob, p->flags);
        if (i == 0 && kit_fma_rounds_twice() && (p->flags & (RN_PRODUCT_GATED | RN_PRODUCT_TIMES))) {
            settle(p, what, got, n);
        }
        kit_compare(what, k, got, p->want[i], real);
        kit_compare(what, k, got + real, p->old[i] + real, all - real); // nothing beyond the last token
        rn_mem_free(got);
        kit_buffer_destroy(&out[i]);
    }
    kit_buffer_destroy(&step);
}

/* ---- Tests --------------------------------------------------------------------------------------------------------------------------------- */

static const enum rn_dtype types[] = {RN_DTYPE_Q4_0, RN_DTYPE_Q4_1, RN_DTYPE_Q5_0, RN_DTYPE_Q5_1,  RN_DTYPE_Q8_0,  RN_DTYPE_Q4_K, RN_DTYPE_Q5_K,
                                      RN_DTYPE_Q6_K, RN_DTYPE_F32,  RN_DTYPE_F16,  RN_DTYPE_IQ4_NL, RN_DTYPE_BF16, RN_DTYPE_MXFP4};
#define N_TYPES (sizeof types / sizeof types[0])

/* Calls f for all rows of the table with this type that the device can run. */
static void for_rows(struct product *p, uint32_t op, void (*f)(struct product *p, const struct rn_vk_kernel *k))
{
    size_t n;
    const struct rn_vk_kernel *k = rn_vk_kernels(&n);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (k[i].op == op && k[i].type == p->type && !(k[i].needs & ~kit_device()->features)) {
            any = true;
            f(p, &k[i]);
        }
    }
    assert_true(any);
}

/* Slices that divide the work evenly and not, none at all; fewer tokens than the bucket. */
static void check_matvec(struct product *p, const struct rn_vk_kernel *k)
{
    const uint32_t unit = kit_device()->subgroup_size > 8 ? kit_device()->subgroup_size / 8 : 1; // slices that fill whole subgroups
    product_check(p, k, 1, 1, kit_device()->subgroup_size > 8 ? unit : 1);
    product_check(p, k, 8, 8, 3 * unit);
    product_check(p, k, 5, 8, 3 * unit);
    if (k->needs == 0) {
        product_check(p, k, 2, 2, 16);
        product_check(p, k, 3, 4, unit);
    }
}

static void check_matmat(struct product *p, const struct rn_vk_kernel *k)
{
    product_check(p, k, 40, 64, 8);
    product_check(p, k, 9, 16, 4);
}

/* A row's columns: one group, no multiple of a segment, many; for types in blocks of 256, and floats whose rows are padded. */
static void every_type_and_row(uint32_t op, void (*f)(struct product *p, const struct rn_vk_kernel *k))
{
    static const uint32_t small[] = {32, 96, 576, 2080}, large[] = {256, 512, 2304}, floats[] = {16, 40, 96, 576};
    for (size_t t = 0; t < N_TYPES; t++) {
        const uint32_t block = rn_dtype_find(types[t])->block_len;
        const uint32_t *cols = block == 256 ? large : block == 1 ? floats : small;
        for (uint32_t c = 0; c < (block == 256 ? 3 : 4); c++) {
            const uint32_t rows[3] = {c == 0 ? 1 : 16 * c + 5 + c * 20};
            struct product p = product_create(types[t], cols[c], rows, 40, 0, 0);
            for_rows(&p, op, f);
            product_free(&p);
        }
    }
}

static void matvec_has_the_bits_of_plain_c(void **state)
{
    (void)state;
    every_type_and_row(RN_VK_MATVEC, check_matvec);
}

static void matmat_has_the_bits_of_plain_c(void **state)
{
    (void)state;
    every_type_and_row(RN_VK_MATMAT, check_matmat);
}

static void check_both(struct product *p)
{
    for_rows(p, RN_VK_MATVEC, check_matvec);
    for_rows(p, RN_VK_MATMAT, check_matmat);
}

static void parts_share_a_dispatch(void **state)
{
    (void)state;
    static const uint32_t rows[3] = {70, 17, 33};
    static const uint32_t flags[] = {0, RN_PRODUCT_ADD, RN_PRODUCT_WANTED};
    for (uint32_t i = 0; i < 3; i++) {
        struct product p = product_create(i == 1 ? RN_DTYPE_F16 : RN_DTYPE_Q4_1, 160, rows, 40, flags[i], 5);
        check_both(&p);
        product_free(&p);
    }
}

static void gates_follow_the_sums(void **state)
{
    (void)state;
    static const uint32_t two[3] = {70, 70}, one[3] = {70};
    static const uint32_t flags[] = {RN_PRODUCT_GATED, RN_PRODUCT_GATED | RN_PRODUCT_GELU, RN_PRODUCT_TIMES, RN_PRODUCT_TIMES | RN_PRODUCT_GELU};
    for (uint32_t i = 0; i < 4; i++) {
        struct product p = product_create(i == 1 ? RN_DTYPE_BF16 : RN_DTYPE_Q5_0, 160, i < 2 ? two : one, 40, flags[i], i % 2 ? 3 : 0);
        check_both(&p);
        product_free(&p);
    }
}

/* More segments than shared memory holds: they come in windows. */
static void check_windows(struct product *p, const struct rn_vk_kernel *k)
{
    product_check(p, k, 8, 8, 16);
    product_check(p, k, 8, 8, 4);
}

static void long_rows_come_in_windows(void **state)
{
    (void)state;
    static const uint32_t rows[3] = {20, 20};
    struct product p = product_create(RN_DTYPE_Q4_0, 9 * 1024 + 32, rows, 8, RN_PRODUCT_GATED, 0);
    for_rows(&p, RN_VK_MATVEC, check_windows);
    product_free(&p);
}

static void check_256(struct product *p, const struct rn_vk_kernel *k)
{
    product_check(p, k, 256, 256, 8);
    product_check(p, k, 129, 256, 8);
}

static void a_full_step(void **state)
{
    (void)state;
    static const uint32_t rows[3] = {80};
    for (uint32_t i = 0; i < 2; i++) {
        struct product p = product_create(i ? RN_DTYPE_Q6_K : RN_DTYPE_Q4_0, 512, rows, 256, 0, 0);
        for_rows(&p, RN_VK_MATMAT, check_256);
        product_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matvec_has_the_bits_of_plain_c), cmocka_unit_test(matmat_has_the_bits_of_plain_c),
        cmocka_unit_test(parts_share_a_dispatch),         cmocka_unit_test(gates_follow_the_sums),
        cmocka_unit_test(long_rows_come_in_windows),      cmocka_unit_test(a_full_step),
    };
    return gpu_kit_run_group_tests(tests, kit_setup, kit_teardown);
}
