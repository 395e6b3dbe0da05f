#include "tests/kernels/vulkan_kit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/quant.h"
#include "runtime/tensor/repack.h"
#include "tests/gpu/gpu_kit.h"

static struct rn_vk_device *device;
static bool fma_rounds_twice;

/* ---- Inputs ----------------------------------------------------------------------------------------------------------------------------- */

static uint64_t rng = 0x9e3779b97f4a7c15;

uint32_t kit_random(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 32);
}

float kit_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += (float)kit_random() * 0x1p-32f;
    }
    return sum - 6;
}

static float shaped(uint32_t shape, int i)
{
    float v = kit_normal();
    switch (shape) {
    case 0: // all zero
        return 0;
    case 1: // one outlier
        return i == 11 ? -3000 * (1 + fabsf(v)) : v;
    case 2: // ties: the scale is exactly 1, values end in .5
        return i == 0 ? 127 : fmaxf(-127, fminf(127, rintf(v * 40) + 0.5f));
    case 3: // just below what counts
        return i == 5 ? 0x1.fffffep-101f : v * 0x1p-104f;
    case 4: // all at the limits: the greatest integer sums
        return i % 8 < 6 ? -2.5f : 2.5f;
    default:
        return v;
    }
}

void kit_fill(float *x, size_t n)
{
    uint32_t shape = 0;
    for (size_t i = 0; i < n; i++) {
        shape = i % RN_GROUP == 0 ? kit_random() % 12 : shape;
        x[i] = shaped(shape, (int)(i % RN_GROUP));
    }
}

/* Scales as models have them, now and then zero, subnormal or large. */
static uint16_t random_scale(void)
{
    uint32_t which = kit_random() % 16;
    return which == 0 ? 0 : which == 1 ? (uint16_t)(kit_random() & 0x83ff) : rn_f32_to_f16((which == 2 ? 900 : 0.02f) * kit_normal());
}

static void random_block(enum rn_dtype type, uint8_t *block, uint32_t bytes)
{
    const uint32_t extreme = kit_random() % 16;
    for (uint32_t i = 0; i < bytes; i++) {
        block[i] = extreme == 0 ? (type == RN_DTYPE_Q8_0 ? 0x80 : 0xff) : extreme == 1 ? 0 : (uint8_t)kit_random();
    }
    if (type == RN_DTYPE_Q6_K && extreme == 1) { // the greatest sums
        memset(block + 192, 0x80, 16);
    }
    if (type == RN_DTYPE_MXFP4) {
        block[0] = (uint8_t)(100 + kit_random() % 40);
        return;
    }
    const bool has_min = type == RN_DTYPE_Q4_1 || type == RN_DTYPE_Q5_1 || type == RN_DTYPE_Q4_K || type == RN_DTYPE_Q5_K;
    for (uint32_t i = 0; i < (has_min ? 2 : 1); i++) {
        const uint16_t scale = random_scale();
        memcpy(block + (type == RN_DTYPE_Q6_K ? 208 : 2 * i), &scale, 2);
    }
}

static void random_float(enum rn_dtype type, uint8_t *to)
{
    const float v = kit_random() % 8 ? 0.05f * kit_normal() : 0;
    const uint16_t half = kit_random() % 16 ? rn_f32_to_f16(v) : (uint16_t)(kit_random() & 0x83ff); // and subnormal ones
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits = type == RN_DTYPE_BF16 ? bits >> 16 : bits;
    memcpy(to, type == RN_DTYPE_F16 ? (const void *)&half : &bits, type == RN_DTYPE_F32 ? 4 : 2);
}

struct rn_tensor kit_weights(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    const size_t n = (size_t)rows * (cols / info->block_len);
    uint8_t *data = rn_mem_alloc(n, info->block_bytes);
    assert_non_null(data);
    for (size_t b = 0; b < n; b++) {
        if (info->block_len == 1) {
            random_float(type, data + b * info->block_bytes);
        } else {
            random_block(type, data + b * info->block_bytes, info->block_bytes);
        }
    }
    return (struct rn_tensor){.name = "w", .type = type, .cols = cols, .rows = rows, .data = data, .bytes = n * info->block_bytes};
}

/* ---- Device ----------------------------------------------------------------------------------------------------------------------------- */

static void check(int r, const struct rn_err *err)
{
    if (r != 0) {
        fail_msg("%s", err->text);
    }
}

struct rn_vk_buffer kit_buffer(size_t bytes, const void *from)
{
    struct rn_err err = {0};
    struct rn_vk_buffer b;
    check(rn_vk_buffer_create(&b, device, bytes, RN_VK_DEVICE, "a test", &err), &err);
    void *nan = from ? NULL : rn_mem_alloc(bytes, 1);
    if (nan) {
        memset(nan, 0xff, bytes);
    }
    check(rn_vk_upload(device, &b, 0, from ? from : nan, bytes, &err), &err);
    rn_mem_free(nan);
    return b;
}

void kit_buffer_destroy(struct rn_vk_buffer *b)
{
    rn_vk_buffer_destroy(device, b);
}

void kit_read(const struct rn_vk_buffer *b, void *to, size_t bytes)
{
    struct rn_err err = {0};
    check(rn_vk_download(device, to, b, 0, bytes, &err), &err);
}

struct rn_vk_buffer kit_repacked(const struct rn_tensor *w)
{
    const size_t bytes = rn_repack_bytes(w->type, w->cols, w->rows);
    uint8_t *data = rn_mem_alloc64(bytes, 1);
    assert_non_null(data);
    rn_repack(w, data, 0, (w->rows + 15) / 16);
    struct rn_vk_buffer b = kit_buffer(bytes, data);
    rn_mem_free(data);
    return b;
}

void kit_run(const struct rn_vk_kernel *k, const struct kit_dispatch *how, const void *args)
{
    struct rn_err err = {0};
    VkPipeline pipeline;
    VkCommandBuffer commands;
    check(rn_vk_pipeline(&pipeline, device, k, how->specs, how->n_specs, &err), &err);
    check(rn_vk_commands_begin(device, &commands, &err), &err);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, rn_vk_layout(device), VK_SHADER_STAGE_COMPUTE_BIT, 0, k->args_bytes, args);
    vkCmdDispatch(commands, how->groups[0], how->groups[1], how->groups[2]);
    check(rn_vk_commands_run(device, commands, &err), &err);
}

/* x . w = (1 + 2^-12)^2 - (1 + 2^-11), which only a fused fma does not make 0. */
static bool measure_fma(void)
{
    static float w[32] = {-1 - 0x1p-11f, 1 + 0x1p-12f};
    static const float x[32] = {1, 1 + 0x1p-12f};
    float y;
    struct rn_vk_step head = {.n_rows = 1};
    const struct rn_tensor matrix = {.name = "w", .type = RN_DTYPE_F32, .cols = 32, .rows = 1, .data = w, .bytes = sizeof w};
    struct rn_vk_buffer b[] = {kit_repacked(&matrix), kit_buffer(sizeof x, x), kit_buffer(sizeof head, &head), kit_buffer(sizeof y, NULL)};
    const struct rn_args_product args = {.w0 = b[0].address, .q = b[1].address, .step = b[2].address, .out0 = b[3].address, .rows0 = 1,
                                         .ld0 = 32, .n_groups = 1};
    const struct kit_dispatch how = {.specs = {1, 8}, .n_specs = 2, .groups = {1, 1, 1}};
    kit_run(rn_vk_kernel_find(device, RN_VK_MATVEC, RN_DTYPE_F32), &how, &args);
    kit_read(&b[3], &y, sizeof y);
    assert_true(y == 0 || y == 0x1p-24f);
    for (size_t i = 0; i < 4; i++) {
        kit_buffer_destroy(&b[i]);
    }
    return y == 0;
}

int kit_setup(void **state)
{
    (void)state;
    device = gpu_kit_open(NULL, NULL);
    fma_rounds_twice = measure_fma();
    print_message("'%s': fma() rounds %s\n", device->name, fma_rounds_twice ? "twice" : "once");
    return 0;
}

int kit_teardown(void **state)
{
    (void)state;
    rn_vk_device_close(device);
    return 0;
}

struct rn_vk_device *kit_device(void)
{
    return device;
}

bool kit_fma_rounds_twice(void)
{
    return fma_rounds_twice;
}

/* ---- The factor of a norm --------------------------------------------------------------------------------------------------------------- */

size_t kit_norm_d_floats(uint32_t n_groups)
{
    return (size_t)RN_STEP_ROWS * (2 * n_groups + (n_groups + 3) / 4 * 4);
}

float *kit_norm_shares(float *d, uint32_t n_groups, uint32_t row)
{
    return d + (size_t)RN_STEP_ROWS * 2 * n_groups + (size_t)row * ((n_groups + 3) / 4 * 4);
}

float kit_norm_share(const float *x, uint32_t group, uint32_t width, float eps)
{
    float sum = 0;
    for (uint32_t i = 0; i < 32; i += 4) {
        float four = x[i] * x[i];
        for (uint32_t k = i + 1; k < i + 4; k++) {
            four = fma_rounds_twice ? x[k] * x[k] + four : fmaf(x[k], x[k], four);
        }
        sum = i == 0 ? four : sum + four;
    }
    sum /= (float)width;
    return group == 0 ? sum + eps : sum;
}

float kit_norm_factor(const float *shares, uint32_t n_groups)
{
    float lanes[32] = {0};
    for (uint32_t g = 0; g < n_groups; g++) {
        lanes[g % 32] += shares[g];
    }
    for (uint32_t half = 16; half >= 1; half /= 2) {
        for (uint32_t i = 0; i < half; i++) {
            lanes[i] += lanes[i + half];
        }
    }
    return 1.0f / sqrtf(lanes[0]);
}

/* The same bits, or a zero for a number that is subnormal: Vulkan lets a device flush those. */
static bool same_number(float got, float want)
{
    return memcmp(&got, &want, sizeof got) == 0 || (fpclassify(want) == FP_SUBNORMAL && got == 0);
}

void kit_compare(const char *what, const struct rn_vk_kernel *k, const float *got, const float *want, size_t n)
{
    if (memcmp(got, want, n * sizeof *got) == 0) {
        return;
    }
    float largest = 0, worst = 0;
    size_t n_bad = 0, first = n, at = 0;
    for (size_t i = 0; i < n; i++) {
        const bool same = same_number(got[i], want[i]);
        const float off = same ? 0 : fabsf(got[i] - want[i]);
        largest = isfinite(want[i]) ? fmaxf(largest, fabsf(want[i])) : largest;
        first = !same && first == n ? i : first;
        n_bad += !same;
        if (!(off <= worst)) { // a NaN is worse than anything
            worst = isnan(off) ? INFINITY : off;
            at = i;
        }
    }
    const bool other = getenv("RUNNEL_TEST_GPU") != NULL;
    if (n_bad > 0 && (!other || worst > k->tolerance * largest)) {
        fail_msg("%s, %s: %zu of %zu differ, first %zu: %.9g, expected %.9g; worst %zu: %.9g, expected %.9g; largest %.9g", k->name, what, n_bad, n,
                 first, (double)got[first], (double)want[first], at, (double)got[at], (double)want[at], (double)largest);
    }
}
