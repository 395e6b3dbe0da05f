/* Speed of the matrix products on Vulkan: all products of a pass of the default model (135 M parameters: 30 layers) or of an 8 B one
 * (2 of its 32 layers), in one command buffer, per row of the table. Usage: bench_vulkan [TYPE [NAME-PART [8b]]]. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/dtype.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/kernels/vulkan_kit.h"

struct shape {
    uint32_t cols, rows[3], flags;
};

struct model {
    uint32_t n_layers;
    struct shape shapes[4];
};
static const struct model small = {30, {{576, {576, 192, 192}, 0}, {576, {576}, RN_PRODUCT_ADD}, {576, {1536, 1536}, RN_PRODUCT_GATED},
                                        {1536, {576}, RN_PRODUCT_ADD}}};
static const struct model large = {2, {{4096, {4096, 1024, 1024}, 0}, {4096, {4096}, RN_PRODUCT_ADD}, {4096, {14336, 14336}, RN_PRODUCT_GATED},
                                       {14336, {4096}, RN_PRODUCT_ADD}}};

struct bench {
    const struct model *m;
    enum rn_dtype type;
    struct rn_vk_buffer w[4][3], q, x, out[3], step;
    double bytes, macs; // of a pass, per row of tokens
};

static struct bench bench_create(const struct model *m, enum rn_dtype type)
{
    struct bench b = {.m = m, .type = type};
    const struct rn_vk_step head = {.n_rows = RN_STEP_ROWS};
    uint32_t widest = 0;
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < 3 && m->shapes[s].rows[i]; i++) {
            struct rn_tensor w = kit_weights(type, m->shapes[s].cols, m->shapes[s].rows[i]);
            b.w[s][i] = kit_repacked(&w);
            b.bytes += (double)b.w[s][i].bytes * m->n_layers;
            b.macs += (double)w.cols * w.rows * m->n_layers;
            widest = w.rows > widest ? w.rows : widest;
            widest = w.cols > widest ? w.cols : widest;
            rn_mem_free((void *)w.data);
        }
    }
    const size_t n = (size_t)RN_STEP_ROWS * widest;
    float *zeros = rn_mem_alloc(n, sizeof(float));
    assert_non_null(zeros);
    b.q = kit_buffer(n * 4, zeros);
    b.x = kit_buffer(n / 4 + 64, zeros);
    for (int i = 0; i < 3; i++) {
        b.out[i] = kit_buffer(n * 4, zeros);
    }
    b.step = kit_buffer(sizeof head, &head);
    rn_mem_free(zeros);
    return b;
}

static void bench_free(struct bench *b)
{
    for (int i = 0; i < 12; i++) {
        kit_buffer_destroy(&b->w[i / 3][i % 3]);
    }
    for (int i = 0; i < 3; i++) {
        kit_buffer_destroy(&b->out[i]);
    }
    kit_buffer_destroy(&b->q);
    kit_buffer_destroy(&b->x);
    kit_buffer_destroy(&b->step);
}

static void dispatch(struct bench *b, VkCommandBuffer commands, const struct rn_vk_kernel *k, int s, uint32_t n_rows, uint32_t slices)
{
    const struct shape *shape = &b->m->shapes[s];
    const bool matvec = k->op == RN_VK_MATVEC;
    const bool coop = k->needs & RN_VK_COOPMAT;
    const uint32_t tile = matvec ? 16 : 64, tokens = !coop ? 32 : kit_device()->is_cpu ? 16 : 64;
    uint32_t specs[RN_VK_MAX_SPECS] = {matvec ? n_rows : 8, matvec ? 8 * slices : 128, 1};
    if (coop) {
        rn_vk_coop_specs(specs, kit_device(), tokens);
    }
    struct rn_args_product a = {.q = b->q.address, .d = b->x.address, .step = b->step.address, .w0 = b->w[s][0].address,
                                .w1 = b->w[s][1].address, .w2 = b->w[s][2].address, .out0 = b->out[0].address, .out1 = b->out[1].address,
                                .out2 = b->out[2].address, .rows0 = shape->rows[0], .rows1 = shape->rows[1], .rows2 = shape->rows[2],
                                .n_groups = shape->cols / 32, .flags = shape->flags};
    a.ld0 = a.rows0, a.ld1 = a.rows1, a.ld2 = a.rows2;
    struct rn_err err = {0};
    VkPipeline pipeline;
    if (rn_vk_pipeline(&pipeline, kit_device(), k, specs, coop ? RN_VK_COOP_SPECS : 3, &err) != 0) {
        fail_msg("%s", err.text);
    }
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, rn_vk_layout(kit_device()), VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof a, &a);
    const bool gated = shape->flags & RN_PRODUCT_GATED;
    uint32_t n = (a.rows0 + tile - 1) / tile + (gated ? 0 : (a.rows1 + tile - 1) / tile + (a.rows2 + tile - 1) / tile);
    vkCmdDispatch(commands, n, matvec ? 1 : (n_rows + tokens - 1) / tokens, 1);
    const VkMemoryBarrier wait = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                  .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &wait, 0, NULL, 0, NULL);
}

/* Milliseconds of a pass. A software device: of processor time, over the number of processors, so that neighbours do not count. */
static double now_ms(void)
{
    struct timespec t;
    clock_gettime(kit_device()->is_cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    const double ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
    return kit_device()->is_cpu ? ms / (double)sysconf(_SC_NPROCESSORS_ONLN) : ms;
}

static double pass_ms(struct bench *b, const struct rn_vk_kernel *k, uint32_t n_rows, uint32_t slices)
{
    double best = 1e9;
    for (int i = 0; i < (kit_device()->is_cpu ? 2 : 10); i++) { // the first makes the pipelines
        struct rn_err err = {0};
        VkCommandBuffer commands;
        assert_int_equal(rn_vk_commands_begin(kit_device(), &commands, &err), 0);
        for (uint32_t l = 0; l < 4 * b->m->n_layers; l++) {
            dispatch(b, commands, k, (int)(l % 4), n_rows, slices);
        }
        const double start = now_ms();
        assert_int_equal(rn_vk_commands_run(kit_device(), commands, &err), 0);
        const double ms = now_ms() - start;
        best = ms < best ? ms : best;
    }
    return best;
}

static void measure(struct bench *b, const struct rn_vk_kernel *k)
{
    const uint32_t unit = kit_device()->subgroup_size > 8 ? kit_device()->subgroup_size / 8 : 1;
    if (k->op == RN_VK_MATMAT) {
        const double ms = pass_ms(b, k, 256, 0);
        printf("%-28s 256 rows: %8.2f ms %8.1f rows/s %8.1f GMAC/s\n", k->name, ms, 256e3 / ms, 256 * b->macs / ms / 1e6);
        return;
    }
    for (uint32_t n = 1; n <= 8; n *= 8) {
        for (uint32_t slices = unit; slices <= (kit_device()->is_cpu ? 1 : 16); slices *= 4) {
            const double ms = pass_ms(b, k, n, slices);
            printf("%-28s %u rows, %2u slices: %8.2f ms %8.1f rows/s %8.2f GB/s\n", k->name, n, slices, ms, n * 1e3 / ms, b->bytes / ms / 1e6);
        }
    }
}

int main(int argc, char **argv)
{
    if (!gpu_kit_device()) {
        return 77;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    (void)kit_setup(NULL);
    const struct rn_vk_device *d = kit_device();
    size_t n;
    const struct rn_vk_kernel *k = rn_vk_kernels(&n);
    printf("%s, subgroups of %u\n", d->name, d->subgroup_size);
    for (size_t i = 0; i < n; i++) {
        const bool product = k[i].op == RN_VK_MATVEC || k[i].op == RN_VK_MATMAT;
        const char *type = product ? rn_dtype_find(k[i].type)->name : "";
        if (!product || k[i].needs & ~d->features || (argc > 1 && strcmp(type, argv[1]) != 0) || (argc > 2 && !strstr(k[i].name, argv[2]))) {
            continue;
        }
        const struct model *m = argc > 3 ? &large : &small;
        if (m->shapes[0].cols % rn_dtype_find(k[i].type)->block_len) {
            continue;
        }
        struct bench b = bench_create(m, k[i].type);
        measure(&b, &k[i]);
        bench_free(&b);
    }
    return kit_teardown(NULL);
}
