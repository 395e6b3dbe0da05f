/* Norms, quantisation and embeddings on Vulkan against plain C, bit for bit: sums of squares in 32 lanes (design: numerics contract), or by
 * group where a product takes the factor (shaders/lib/norm.glsl). */
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
#include "runtime/tensor/quant.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/kernels/vulkan_kit.h"

#define ROWS 8 // of the bucket
#define EPS 1e-5f
#define EPS_NEXT 3e-6f


/* ---- prepare ------------------------------------------------------------------------------------------------------------------------------- */

static float lane_dot(const float *x, uint32_t n)
{
    float lanes[32] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lanes[i % 32] = kit_fma_rounds_twice() ? x[i] * x[i] + lanes[i % 32] : fmaf(x[i], x[i], lanes[i % 32]);
    }
    for (uint32_t half = 16; half >= 1; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            lanes[i] += lanes[i + half];
        }
    }
    return lanes[0];
}

struct prepared {
    uint32_t width, n_groups, ld, flags;
    float *x, *norm, *next;      // [ROWS, ld], [ld], [ld]
    float *old, *sum, *out;      // [ROWS, ld]: what sum holds before, and after; out, which holds `old` too
    int8_t *q;                   // [ROWS, 32 n_groups]
    float *d;                    // [RN_STEP_ROWS, n_groups, 2], then shares [RN_STEP_ROWS, padded n_groups]
    size_t n_d;                  // of d
    struct rn_vk_step head;
};

static void expect_row(struct prepared *p, uint32_t row)
{
    const float *x = p->x + (size_t)(p->flags & RN_PREPARE_WANTED ? p->head.wanted[row] : row) * p->ld;
    const float r = 1.0f / sqrtf(lane_dot(x, p->width) / (float)p->width + EPS);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        float y[32] = {0}, weighed[32] = {0};
        const size_t at = (size_t)row * p->n_groups + g, to = (size_t)row * p->ld + 32 * g;
        for (uint32_t i = 0; i < 32 && 32 * g + i < p->width; i++) {
            y[i] = p->flags & RN_PREPARE_NORM ? x[32 * g + i] * r * p->norm[32 * g + i] : x[32 * g + i];
        }
        for (uint32_t i = 0; i < 32; i++) {
            y[i] = p->flags & RN_PREPARE_ADD ? p->old[to + i] + y[i] : y[i];
            p->sum[to + i] = p->flags & RN_PREPARE_ADD ? y[i] : p->sum[to + i];
            weighed[i] = p->flags & RN_PREPARE_WEIGH ? y[i] * (32 * g + i < p->width ? p->next[32 * g + i] : 0) : y[i];
            p->out[to + i] = p->flags & RN_PREPARE_FLOATS ? weighed[i] : p->out[to + i];
        }
        if (p->flags & RN_PREPARE_QUANT) {
            int32_t sum;
            p->d[2 * at] = rn_quant_act(weighed, p->q + 32 * at, &sum);
            p->d[2 * at + 1] = (float)sum * p->d[2 * at];
        }
        if (p->flags & RN_PREPARE_WEIGH) {
            kit_norm_shares(p->d, p->n_groups, row)[g] = kit_norm_share(y, g, p->width, EPS_NEXT);
        }
    }
}

static struct prepared prepared_create(uint32_t width, uint32_t flags, uint32_t n_rows)
{
    struct prepared p = {.width = width, .n_groups = (width + 31) / 32, .flags = flags};
    p.ld = p.n_groups * 32;
    const size_t n = (size_t)ROWS * p.ld;
    p.x = rn_mem_alloc(n, sizeof(float));
    p.norm = rn_mem_alloc(p.ld, sizeof(float));
    p.old = rn_mem_alloc(n, sizeof(float));
    p.next = rn_mem_alloc(p.ld, sizeof(float));
    p.sum = rn_mem_alloc(n, sizeof(float));
    p.out = rn_mem_alloc(n, sizeof(float));
    p.q = rn_mem_alloc(n, 1);
    p.n_d = kit_norm_d_floats(p.n_groups);
    p.d = rn_mem_alloc(p.n_d, sizeof(float));
    assert_true(p.x && p.norm && p.old && p.next && p.sum && p.out && p.q && p.d);
    kit_fill(p.x, n);
    kit_fill(p.norm, p.ld);
    kit_fill(p.next, p.ld);
    kit_fill(p.old, n);
    memcpy(p.sum, p.old, n * sizeof(float));
    memcpy(p.out, p.old, n * sizeof(float));
    memset(p.q, 0xff, n);
    memset(p.d, 0xff, p.n_d * sizeof(float));
    p.head = (struct rn_vk_step){.n_rows = n_rows, .n_wanted = 3, .wanted = {7, 0, 4}};
    for (uint32_t i = 0; i < (flags & RN_PREPARE_WANTED ? 3 : n_rows); i++) {
        expect_row(&p, i);
    }
    return p;
}

static void prepared_free(struct prepared *p)
{
    rn_mem_free(p->x);
    rn_mem_free(p->norm);
    rn_mem_free(p->next);
    rn_mem_free(p->old);
    rn_mem_free(p->sum);
    rn_mem_free(p->out);
    rn_mem_free(p->q);
    rn_mem_free(p->d);
}

static void compare_bytes(const char *what, const int8_t *got, const int8_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (got[i] != want[i]) {
            fail_msg("%s: q %zu is %d, expected %d", what, i, got[i], want[i]);
        }
    }
}

static void check_prepare(uint32_t width, uint32_t flags, uint32_t n_rows, uint32_t shares)
{
    struct prepared p = prepared_create(width, flags, n_rows);
    const size_t n = (size_t)ROWS * p.ld;
    struct rn_vk_buffer x = kit_buffer(n * 4, p.x), norm = kit_buffer(p.ld * 4, p.norm), next = kit_buffer(p.ld * 4, p.next);
    struct rn_vk_buffer sum = kit_buffer(n * 4, p.old), out = kit_buffer(n * 4, p.old), q = kit_buffer(n, NULL);
    struct rn_vk_buffer d = kit_buffer(p.n_d * 4, NULL), step = kit_buffer(sizeof p.head, &p.head);
    const struct rn_args_prepare args = {.x = x.address, .norm = norm.address, .sum = sum.address, .next = next.address, .out = out.address,
                                         .q = q.address, .d = d.address, .step = step.address, .width = width, .ld_x = p.ld, .ld_sum = p.ld,
                                         .ld_out = p.ld, .n_groups = p.n_groups, .flags = flags, .eps = EPS, .eps_next = EPS_NEXT};
    const struct rn_vk_kernel *k = rn_vk_kernel_find(kit_device(), RN_VK_PREPARE, RN_VK_ANY_TYPE);
    assert_non_null(k);
    const struct kit_dispatch how = {.specs = {0, shares == 1 ? 256 : 128}, .n_specs = 2, .groups = {ROWS, shares, 1}};
    kit_run(k, &how, &args);
    float *got = rn_mem_alloc(n > p.n_d ? n : p.n_d, sizeof(float));
    assert_non_null(got);
    char what[96];
    snprintf(what, sizeof what, "width %u, flags %u, %u rows, %u shares", width, flags, n_rows, shares);
    kit_read(&sum, got, n * 4);
    kit_compare(what, k, got, p.sum, n);
    kit_read(&out, got, n * 4);
    kit_compare(what, k, got, p.out, n);
    kit_read(&d, got, p.n_d * 4);
    kit_compare(what, k, got, p.d, p.n_d);
    kit_read(&q, got, n);
    compare_bytes(what, (const int8_t *)got, p.q, n);
    rn_mem_free(got);
    struct rn_vk_buffer *all[] = {&x, &norm, &next, &sum, &out, &q, &d, &step};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        kit_buffer_destroy(all[i]);
    }
    prepared_free(&p);
}

static void prepare_has_the_bits_of_plain_c(void **state)
{
    (void)state;
    static const uint32_t widths[] = {16, 32, 40, 96, 576, 1000, 2080, 5120}, flags[] = {
        RN_PREPARE_QUANT, RN_PREPARE_NORM | RN_PREPARE_FLOATS, RN_PREPARE_NORM | RN_PREPARE_ADD, RN_PREPARE_FLOATS | RN_PREPARE_WANTED,
        RN_PREPARE_WEIGH | RN_PREPARE_QUANT, RN_PREPARE_WEIGH | RN_PREPARE_FLOATS, RN_PREPARE_WANTED | RN_PREPARE_WEIGH | RN_PREPARE_QUANT,
        RN_PREPARE_NORM | RN_PREPARE_ADD | RN_PREPARE_WEIGH | RN_PREPARE_FLOATS | RN_PREPARE_QUANT,
    };
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        for (size_t f = 0; f < sizeof flags / sizeof flags[0]; f++) {
            check_prepare(widths[w], flags[f], 1 + (uint32_t)(w + f) % ROWS, 1);
            check_prepare(widths[w], flags[f], ROWS, flags[f] & RN_PREPARE_NORM ? 1 : 3);
        }
    }
}

/* ---- embed --------------------------------------------------------------------------------------------------------------------------------- */

static void check_embed(enum rn_dtype type, uint32_t cols, float scale)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    const uint32_t rows = 37, ld = (cols + 31) / 32 * 32;
    struct rn_tensor w = kit_weights(type, cols, rows);
    struct rn_vk_step head = {.n_rows = 5, .id = {36, 0, 17, 16, 1, 99}};
    float *want = rn_mem_alloc((size_t)ROWS * ld, sizeof(float)), *got = rn_mem_alloc((size_t)ROWS * ld, sizeof(float));
    assert_true(want && got);
    memset(want, 0xff, (size_t)ROWS * ld * 4);
    for (uint32_t m = 0; m < head.n_rows; m++) {
        float *to = want + (size_t)m * ld;
        memset(to, 0, ld * sizeof(float));
        info->dequant((const uint8_t *)w.data + (size_t)head.id[m] * (cols / info->block_len) * info->block_bytes, to, cols / info->block_len);
        for (uint32_t c = 0; c < cols; c++) {
            to[c] *= scale;
        }
    }
    struct rn_vk_buffer gpu_w = kit_repacked(&w), step = kit_buffer(sizeof head, &head);
    struct rn_vk_buffer out = kit_buffer((size_t)ROWS * ld * 4, NULL);
    const struct rn_args_embed args = {.w = gpu_w.address, .out = out.address, .step = step.address, .cols = cols, .ld = ld, .scale = scale};
    const struct kit_dispatch how = {.specs = {0, 32}, .n_specs = 2, .groups = {(ld / 32 + 31) / 32, ROWS, 1}};
    const struct rn_vk_kernel *k = rn_vk_kernel_find(kit_device(), RN_VK_EMBED, type);
    assert_non_null(k);
    kit_run(k, &how, &args);
    kit_read(&out, got, (size_t)ROWS * ld * 4);
    char what[64];
    snprintf(what, sizeof what, "%u cols", cols);
    kit_compare(what, k, got, want, (size_t)ROWS * ld);
    kit_buffer_destroy(&gpu_w);
    kit_buffer_destroy(&step);
    kit_buffer_destroy(&out);
    rn_mem_free((void *)w.data);
    rn_mem_free(want);
    rn_mem_free(got);
}

static void embed_has_the_bits_of_the_file(void **state)
{
    (void)state;
    static const enum rn_dtype types[] = {RN_DTYPE_Q4_0, RN_DTYPE_Q4_1, RN_DTYPE_Q5_0, RN_DTYPE_Q5_1, RN_DTYPE_Q8_0, RN_DTYPE_Q4_K, RN_DTYPE_Q5_K,
                                          RN_DTYPE_Q6_K, RN_DTYPE_F32, RN_DTYPE_F16, RN_DTYPE_IQ4_NL, RN_DTYPE_BF16, RN_DTYPE_MXFP4};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        const uint32_t block = rn_dtype_find(types[t])->block_len;
        check_embed(types[t], block == 256 ? 768 : block == 1 ? 40 : 1120, t % 2 ? 24.0f : 1.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prepare_has_the_bits_of_plain_c), cmocka_unit_test(embed_has_the_bits_of_the_file)};
    return gpu_kit_run_group_tests(tests, kit_setup, kit_teardown);
}
