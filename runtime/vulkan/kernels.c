/* The table of shaders, which of them a device runs, and pipelines made of them on demand.
 *
 * The table comes from shaders/meson.build: kernels.spv.h has the SPIR-V and the rows. A pipeline is made the first time that its row and
 * constants are asked for, and stays until the device is closed.
 * owner: the thread that calls rn_backend_ops. */
#include "runtime/vulkan/vulkan_internal.h"

#include <string.h>

#include "kernels.spv.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/dtype.h"

struct rn_vk_pipeline {
    const struct rn_vk_kernel *kernel;
    uint32_t specs[RN_VK_MAX_SPECS], n_specs;
    VkPipeline pipeline;
    struct rn_vk_pipeline *next;
};

/* Bytes of push constants by op. */
enum {
    ARGS_RN_VK_EMBED = sizeof(struct rn_args_embed),
    ARGS_RN_VK_PREPARE = sizeof(struct rn_args_prepare),
    ARGS_RN_VK_MATVEC = sizeof(struct rn_args_product),
    ARGS_RN_VK_MATMAT = sizeof(struct rn_args_product),
    ARGS_RN_VK_ROPE_KV = sizeof(struct rn_args_rope_kv),
    ARGS_RN_VK_ATTEND = sizeof(struct rn_args_attend),
    ARGS_RN_VK_COMBINE = sizeof(struct rn_args_combine),
};

#define ROW(name, array, op, type, needs, tolerance) {#name, op, type, needs, ARGS_##op, tolerance, array, sizeof array},

static const struct rn_vk_kernel rows[] = {
    RN_VK_KERNEL_ROWS(ROW) //
    {NULL, RN_VK_OP_COUNT, 0, 0, 0, 0, NULL, 0}, // so that a table without rows compiles
};

#undef ROW

#define N_ROWS (sizeof rows / sizeof rows[0] - 1)

const struct rn_vk_kernel *rn_vk_kernels(size_t *ret_n)
{
    *ret_n = N_ROWS;
    return rows;
}

const struct rn_vk_kernel *rn_vk_kernel_find(const struct rn_vk_device *d, enum rn_vk_op op, uint32_t type)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct rn_vk_kernel *k = &rows[i];
        if (k->op == op && (k->type == type || k->type == RN_VK_ANY_TYPE) && !(k->needs & ~d->features) && !d->disabled[i]) {
            return k;
        }
    }
    return NULL;
}

void rn_vk_kernel_disable(struct rn_vk_device *d, const struct rn_vk_kernel *k)
{
    if (k >= rows && k < rows + N_ROWS) {
        d->disabled[k - rows] = true;
    }
}

/* ---- Pipelines ------------------------------------------------------------------------------------------------------------------------ */

static struct rn_vk_pipeline *find(const struct rn_vk_device *d, const struct rn_vk_kernel *k, const uint32_t *specs, uint32_t n_specs)
{
    struct rn_vk_pipeline *p = d->pipelines;
    while (p && (p->kernel != k || p->n_specs != n_specs || memcmp(p->specs, specs, n_specs * sizeof *specs) != 0)) {
        p = p->next;
    }
    return p;
}

static int compile(struct rn_vk_pipeline *p, struct rn_vk_device *d, VkShaderModule module, struct rn_err *err)
{
    VkSpecializationMapEntry entries[RN_VK_MAX_SPECS];
    for (uint32_t i = 0; i < p->n_specs; i++) {
        entries[i] = (VkSpecializationMapEntry){.constantID = i, .offset = i * (uint32_t)sizeof p->specs[0], .size = sizeof p->specs[0]};
    }
    const VkSpecializationInfo specs = {
        .mapEntryCount = p->n_specs, .pMapEntries = entries, .dataSize = p->n_specs * sizeof p->specs[0], .pData = p->specs};
    const VkPipelineShaderStageRequiredSubgroupSizeCreateInfoEXT size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO_EXT, .requiredSubgroupSize = d->subgroup_size};
    // A kernel that counts on the size of a subgroup gets just that size, whatever the driver would like better.
    bool fixed_size = d->size_control && (p->kernel->needs & (RN_VK_SUBGROUP | RN_VK_COOPMAT));
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = fixed_size ? &size : NULL,
                  .flags = fixed_size ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &specs},
        .layout = d->layout,
    };
    VkResult result = vkCreateComputePipelines(d->device, d->pipeline_cache, 1, &info, NULL, &p->pipeline);
    return rn_vk_check(d, result, p->kernel->name, err);
}

static int make(struct rn_vk_pipeline *p, struct rn_vk_device *d, struct rn_err *err)
{
    const VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = p->kernel->spirv_bytes, .pCode = p->kernel->spirv};
    VkShaderModule module;
    int r = rn_vk_check(d, vkCreateShaderModule(d->device, &info, NULL, &module), p->kernel->name, err);
    if (r == 0) {
        r = compile(p, d, module, err);
        vkDestroyShaderModule(d->device, module, NULL);
    }
    return r;
}

int rn_vk_pipeline(VkPipeline *ret, struct rn_vk_device *d, const struct rn_vk_kernel *k, const uint32_t *specs, uint32_t n_specs, struct rn_err *err)
{
    if (n_specs > RN_VK_MAX_SPECS) {
        return rn_err_set(err, -EINVAL, "%s: %u specialisation constants, at most %d", k->name, n_specs, RN_VK_MAX_SPECS);
    }
    const uint32_t none = 0;
    specs = specs ? specs : &none;
    struct rn_vk_pipeline *p = find(d, k, specs, n_specs);
    if (p) {
        *ret = p->pipeline;
        return 0;
    }
    if (d->lost) {
        return rn_err_set(err, -EIO, "the GPU '%s' was lost", d->name);
    }
    p = rn_mem_alloc(1, sizeof *p);
    if (!p) {
        return rn_err_nomem(err, sizeof *p, "a pipeline");
    }
    p->kernel = k;
    p->n_specs = n_specs;
    memcpy(p->specs, specs, n_specs * sizeof *specs);
    int r = make(p, d, err);
    if (r != 0) {
        rn_mem_free(p);
        return r;
    }
    p->next = d->pipelines;
    d->pipelines = p;
    d->n_unsaved++;
    *ret = p->pipeline;
    return 0;
}

VkPipelineLayout rn_vk_layout(const struct rn_vk_device *d)
{
    return d->layout;
}

void rn_vk_pipelines_destroy(struct rn_vk_device *d)
{
    for (struct rn_vk_pipeline *p = d->pipelines; p; p = p->next) {
        vkDestroyPipeline(d->device, p->pipeline, NULL);
        p->pipeline = VK_NULL_HANDLE;
    }
}

void rn_vk_pipelines_forget(struct rn_vk_device *d)
{
    while (d->pipelines) {
        struct rn_vk_pipeline *p = d->pipelines;
        d->pipelines = p->next;
        rn_mem_free(p);
    }
}
