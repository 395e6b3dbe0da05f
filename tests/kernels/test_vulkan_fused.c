/* A product's input on Vulkan has the same bits whoever makes it: prepare.comp in a dispatch of its own, which test_vulkan_vectors.c holds
 * against plain C, or the mat-vec whose result it is (RN_PRODUCT_THEN_*). And a product applies the factor of the norm to its sums, in every
 * row of the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/mem.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/quant.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/kernels/vulkan_kit.h"

#define MAX_TOKENS 40
#define EPS 1e-5f


/* One or two matrices of one type and what they are multiplied by, on the device. */
struct product {
    enum rn_dtype type;
    uint32_t cols, rows, ld, n_groups, next_groups;
    struct rn_vk_buffer w[2], bias, times, norm, q, d;
    float *d_host; // pairs, then shares
    float *old;    // [MAX_TOKENS, ld] what out holds before
};

static struct rn_vk_buffer random_floats(size_t n)
{
    float *x = rn_mem_alloc(n, sizeof *x);
    assert_non_null(x);
    kit_fill(x, n);
    struct rn_vk_buffer b = kit_buffer(n * sizeof *x, x);
    rn_mem_free(x);
    return b;
}

/* Activations, and shares of a norm that they might have. */
static void make_acts(struct product *p)
{
    const size_t n = (size_t)MAX_TOKENS * p->n_groups * 32;
    const bool f = rn_dtype_is_float(p->type);
    float *x = rn_mem_alloc(n, sizeof *x);
    int8_t *q = rn_mem_alloc(n, 1);
    p->d_host = rn_mem_alloc(kit_norm_d_floats(p->n_groups), sizeof(float));
    assert_true(x && q && p->d_host);
    kit_fill(x, n);
    for (size_t g = 0; g < n / 32; g++) {
        int32_t sum;
        p->d_host[2 * g] = rn_quant_act(x + 32 * g, q + 32 * g, &sum);
        p->d_host[2 * g + 1] = (float)sum * p->d_host[2 * g];
        const uint32_t row = (uint32_t)(g / p->n_groups), group = (uint32_t)(g % p->n_groups);
        kit_norm_shares(p->d_host, p->n_groups, row)[group] = kit_norm_share(x + 32 * g, group, p->cols, EPS);
    }
    p->q = f ? kit_buffer(n * sizeof *x, x) : kit_buffer(n, q);
    p->d = kit_buffer(kit_norm_d_floats(p->n_groups) * sizeof(float), p->d_host);
    rn_mem_free(x);
    rn_mem_free(q);
}

static struct product product_create(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    struct product p = {.type = type, .cols = cols, .rows = rows, .ld = (rows + 31) / 32 * 32, .n_groups = cols / 32};
    p.next_groups = p.ld / 32;
    for (uint32_t i = 0; i < 2; i++) {
        struct rn_tensor w = kit_weights(type, cols, rows);
        p.w[i] = kit_repacked(&w);
        rn_mem_free((void *)w.data);
    }
    p.bias = random_floats(p.ld);
    p.norm = random_floats(rows);
    p.times = random_floats((size_t)MAX_TOKENS * p.ld);
    p.old = rn_mem_alloc((size_t)MAX_TOKENS * p.ld, sizeof(float));
    assert_non_null(p.old);
    kit_fill(p.old, (size_t)MAX_TOKENS * p.ld);
    make_acts(&p);
    return p;
}

static void product_free(struct product *p)
{
    struct rn_vk_buffer *all[] = {&p->w[0], &p->w[1], &p->bias, &p->times, &p->norm, &p->q, &p->d};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        kit_buffer_destroy(all[i]);
    }
    rn_mem_free(p->d_host);
    rn_mem_free(p->old);
}

/* What a product leaves behind. */
struct result {
    struct rn_vk_buffer out, q, d;
};

static struct result result_create(const struct product *p)
{
    const size_t n = (size_t)MAX_TOKENS * p->ld;
    return (struct result){.out = kit_buffer(n * sizeof(float), p->old), .q = kit_buffer(n, NULL),
                           .d = kit_buffer(kit_norm_d_floats(p->next_groups) * sizeof(float), NULL)};
}

static void result_free(struct result *r)
{
    kit_buffer_destroy(&r->out);
    kit_buffer_destroy(&r->q);
    kit_buffer_destroy(&r->d);
}

static struct rn_args_product args_of(const struct product *p, const struct result *to, VkDeviceAddress step, uint32_t flags)
{
    struct rn_args_product a = {.q = p->q.address, .d = p->d.address, .step = step, .w0 = p->w[0].address, .out0 = to->out.address,
                                .bias0 = p->bias.address, .rows0 = p->rows, .ld0 = p->ld, .n_groups = p->n_groups, .flags = flags};
    if (flags & RN_PRODUCT_GATED) {
        a.w1 = p->w[1].address;
        a.rows1 = p->rows;
    }
    if (flags & RN_PRODUCT_TIMES) {
        a.out1 = p->times.address;
        a.ld1 = p->ld;
    }
    if (flags & RN_PRODUCT_THEN_QUANT) {
        const float eps = EPS;
        a.w2 = to->q.address;
        a.out2 = to->d.address;
        a.bias2 = flags & RN_PRODUCT_THEN_NORM ? p->norm.address : 0;
        memcpy(&a.rows2, &eps, sizeof eps);
    }
    return a;
}

static void run_product(const struct product *p, const struct rn_vk_kernel *k, const struct result *to, uint32_t n, uint32_t slices, uint32_t flags)
{
    struct rn_vk_step head = {.n_rows = n};
    struct rn_vk_buffer step = kit_buffer(sizeof head, &head);
    const struct rn_args_product args = args_of(p, to, step.address, flags);
    const uint32_t blocks = flags & RN_PRODUCT_THEN_QUANT ? 2 : 1, columns = n > 4 ? 8 : n > 2 ? 4 : n;
    struct kit_dispatch how = {.specs = {columns, 8 * blocks * slices, blocks}, .n_specs = 3,
                               .groups = {(p->rows + 16 * blocks - 1) / (16 * blocks), 1, 1}};
    if (k->op == RN_VK_MATMAT) {
        how = (struct kit_dispatch){.specs = {4, 128}, .n_specs = 2, .groups = {(p->rows + 63) / 64, (n + 15) / 16, 1}};
    }
    if (k->needs & RN_VK_COOPMAT) {
        rn_vk_coop_specs(how.specs, kit_device(), 16);
        how.n_specs = RN_VK_COOP_SPECS;
    }
    kit_run(k, &how, &args);
    kit_buffer_destroy(&step);
}

static void run_prepare(const struct product *p, const struct result *to, uint32_t n, bool weigh)
{
    struct rn_vk_step head = {.n_rows = n};
    struct rn_vk_buffer step = kit_buffer(sizeof head, &head);
    const struct rn_args_prepare args = {.x = to->out.address, .next = p->norm.address, .q = to->q.address, .d = to->d.address,
                                         .step = step.address, .width = p->rows, .ld_x = p->ld, .n_groups = p->next_groups,
                                         .flags = RN_PREPARE_QUANT | (weigh ? RN_PREPARE_WEIGH : 0), .eps_next = EPS};
    const struct kit_dispatch how = {.specs = {0, 256}, .n_specs = 2, .groups = {n, 1, 1}};
    kit_run(rn_vk_kernel_find(kit_device(), RN_VK_PREPARE, RN_VK_ANY_TYPE), &how, &args);
    kit_buffer_destroy(&step);
}

static void same_buffer(const char *what, const struct rn_vk_buffer *got, const struct rn_vk_buffer *want)
{
    uint32_t *a = rn_mem_alloc(got->bytes, 1), *b = rn_mem_alloc(got->bytes, 1);
    assert_true(a && b && got->bytes == want->bytes);
    kit_read(got, a, got->bytes);
    kit_read(want, b, got->bytes);
    for (size_t i = 0; i < got->bytes / 4; i++) {
        if (a[i] != b[i]) {
            fail_msg("%s: word %zu is %08x, apart it is %08x", what, i, a[i], b[i]);
        }
    }
    rn_mem_free(a);
    rn_mem_free(b);
}

/* Calls f for every row of the table for the product that the device can run. */
static void for_rows(const struct product *p, enum rn_vk_op op, void (*f)(const struct product *p, const struct rn_vk_kernel *k, uint32_t flags),
                     uint32_t flags)
{
    size_t n;
    const struct rn_vk_kernel *k = rn_vk_kernels(&n);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        if (k[i].op == op && k[i].type == p->type && !(k[i].needs & ~kit_device()->features)) {
            any = true;
            f(p, &k[i], flags);
        }
    }
    assert_true(any);
}

/* ---- the next product's input ------------------------------------------------------------------------------------------------------------- */

static void check_then(const struct product *p, const struct rn_vk_kernel *k, uint32_t flags)
{
    static const uint32_t tokens[] = {1, 3, 8}, slices[] = {1, 4, 16};
    for (uint32_t i = 0; i < 3; i++) {
        struct result fused = result_create(p), apart = result_create(p);
        run_product(p, k, &fused, tokens[i], slices[i], flags | RN_PRODUCT_THEN_QUANT);
        run_product(p, k, &apart, tokens[i], slices[2 - i], flags & ~(uint32_t)RN_PRODUCT_THEN_NORM);
        run_prepare(p, &apart, tokens[i], flags & RN_PRODUCT_THEN_NORM);
        char what[128];
        snprintf(what, sizeof what, "%s, %u x %u, %u tokens, %u slices, flags %u", k->name, p->cols, p->rows, tokens[i], slices[i], flags);
        same_buffer(what, &fused.out, &apart.out);
        same_buffer(what, &fused.q, &apart.q);
        same_buffer(what, &fused.d, &apart.d);
        result_free(&fused);
        result_free(&apart);
    }
}

static void the_next_input_is_as_if_made_apart(void **state)
{
    (void)state;
    static const struct {
        enum rn_dtype type;
        uint32_t cols, rows, flags;
    } cases[] = {
        {RN_DTYPE_Q4_0, 416, 100, RN_PRODUCT_THEN_NORM | RN_PRODUCT_ADD | RN_PRODUCT_BIAS0},
        {RN_DTYPE_Q6_K, 768, 200, RN_PRODUCT_GATED | RN_PRODUCT_NORMED},
        {RN_DTYPE_F16, 416, 32, RN_PRODUCT_THEN_NORM},
        {RN_DTYPE_Q5_1, 416, 16, RN_PRODUCT_TIMES | RN_PRODUCT_GELU},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct product p = product_create(cases[i].type, cases[i].cols, cases[i].rows);
        for_rows(&p, RN_VK_MATVEC, check_then, cases[i].flags);
        product_free(&p);
    }
}

/* ---- the factor of a norm ------------------------------------------------------------------------------------------------------------------ */

static void check_factor(const struct product *p, const struct rn_vk_kernel *k, uint32_t flags)
{
    const uint32_t n = k->op == RN_VK_MATVEC ? 5 : MAX_TOKENS;
    const size_t floats = (size_t)MAX_TOKENS * p->ld;
    struct result plain = result_create(p), normed = result_create(p);
    run_product(p, k, &plain, n, 3, flags);
    run_product(p, k, &normed, n, 3, flags | RN_PRODUCT_NORMED);
    float *want = rn_mem_alloc(floats, sizeof *want), *got = rn_mem_alloc(floats, sizeof *got);
    assert_true(want && got);
    kit_read(&plain.out, want, floats * sizeof *want);
    kit_read(&normed.out, got, floats * sizeof *got);
    for (uint32_t token = 0; token < n; token++) {
        const float factor = kit_norm_factor(kit_norm_shares(p->d_host, p->n_groups, token), p->n_groups);
        for (uint32_t row = 0; row < p->rows; row++) {
            want[(size_t)token * p->ld + row] *= factor;
        }
    }
    kit_compare("normed", k, got, want, floats);
    rn_mem_free(want);
    rn_mem_free(got);
    result_free(&plain);
    result_free(&normed);
}

static void sums_are_times_the_factor(void **state)
{
    (void)state;
    static const enum rn_dtype types[] = {RN_DTYPE_Q4_1, RN_DTYPE_Q6_K, RN_DTYPE_BF16};
    static const uint32_t cols[] = {32, 1280, 2304}; // groups: 1, 40, 72: below, above and no multiple of 32
    for (uint32_t t = 0; t < 3; t++) {
        for (uint32_t i = t == 1 ? 1 : 0; i < 3; i++) {
            struct product p = product_create(types[t], cols[i], 70);
            for_rows(&p, RN_VK_MATVEC, check_factor, 0);
            for_rows(&p, RN_VK_MATMAT, check_factor, 0);
            product_free(&p);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_next_input_is_as_if_made_apart), cmocka_unit_test(sums_are_times_the_factor)};
    return gpu_kit_run_group_tests(tests, kit_setup, kit_teardown);
}
