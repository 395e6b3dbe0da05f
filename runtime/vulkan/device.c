/* One opened device: a queue for compute, a timeline semaphore that counts its submits, and what happens when it fails.
 *
 *   open -> (submit -> wait)* -> close
 *              |        `- deadline passed: abandoned. Nothing is known of what the device still touches, so nothing is ever freed.
 *              `- VK_ERROR_DEVICE_LOST: lost. All work has ended; its objects can be destroyed.
 *
 * I1  Both states are for good: every later submit or wait fails with -EIO at once. The way back is another device (open).
 * I2  `submitted` is the value that the timeline reaches when all submits are done.
 * owner: the thread that calls rn_backend_ops. */
#include "runtime/vulkan/vulkan_internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/vulkan/device_internal.h"

#define DEADLINE_MS 10000      /* a submit is meant to take 250 ms */
#define DEADLINE_CPU_MS 120000 /* software devices on a busy machine are many times slower */

static const struct {
    VkResult code;
    const char *name;
} result_names[] = {
    {VK_SUCCESS, "VK_SUCCESS"},
    {VK_NOT_READY, "VK_NOT_READY"},
    {VK_TIMEOUT, "VK_TIMEOUT"},
    {VK_INCOMPLETE, "VK_INCOMPLETE"},
    {VK_ERROR_OUT_OF_HOST_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY"},
    {VK_ERROR_OUT_OF_DEVICE_MEMORY, "VK_ERROR_OUT_OF_DEVICE_MEMORY"},
    {VK_ERROR_INITIALIZATION_FAILED, "VK_ERROR_INITIALIZATION_FAILED"},
    {VK_ERROR_DEVICE_LOST, "VK_ERROR_DEVICE_LOST"},
    {VK_ERROR_MEMORY_MAP_FAILED, "VK_ERROR_MEMORY_MAP_FAILED"},
    {VK_ERROR_LAYER_NOT_PRESENT, "VK_ERROR_LAYER_NOT_PRESENT"},
    {VK_ERROR_EXTENSION_NOT_PRESENT, "VK_ERROR_EXTENSION_NOT_PRESENT"},
    {VK_ERROR_FEATURE_NOT_PRESENT, "VK_ERROR_FEATURE_NOT_PRESENT"},
    {VK_ERROR_INCOMPATIBLE_DRIVER, "VK_ERROR_INCOMPATIBLE_DRIVER"},
    {VK_ERROR_TOO_MANY_OBJECTS, "VK_ERROR_TOO_MANY_OBJECTS"},
    {VK_ERROR_INVALID_EXTERNAL_HANDLE, "VK_ERROR_INVALID_EXTERNAL_HANDLE"},
};

const char *rn_vk_result_name(VkResult result)
{
    for (size_t i = 0; i < sizeof result_names / sizeof result_names[0]; i++) {
        if (result_names[i].code == result) {
            return result_names[i].name;
        }
    }
    return "an unknown VkResult";
}

int rn_vk_check(struct rn_vk_device *d, VkResult result, const char *what, struct rn_err *err)
{
    if (result >= 0) {
        return 0;
    }
    if (result == VK_ERROR_DEVICE_LOST) {
        d->lost = true;
        return rn_err_set(err, -EIO, "the GPU '%s' was lost (%s)", d->name, what);
    }
    bool memory = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return rn_err_set(err, memory ? -ENOMEM : -EIO, "%s on the GPU '%s': %s", what, d->name, rn_vk_result_name(result));
}

/* -EIO when the device is no more. */
static int must_live(const struct rn_vk_device *d, struct rn_err *err)
{
    if (d->abandoned) {
        return rn_err_set(err, -EIO, "the GPU '%s' did not answer and was given up", d->name);
    }
    return d->lost ? rn_err_set(err, -EIO, "the GPU '%s' was lost", d->name) : 0;
}

/* ---- Submission ----------------------------------------------------------------------------------------------------------------------- */

int rn_vk_submit(struct rn_vk_device *d, const VkCommandBuffer *buffers, uint32_t n, struct rn_err *err)
{
    int r = must_live(d, err);
    if (r != 0) {
        return r;
    }
    uint64_t value = d->submitted + 1;
    const VkTimelineSemaphoreSubmitInfo timeline = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, .signalSemaphoreValueCount = 1, .pSignalSemaphoreValues = &value};
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .pNext = &timeline,
                               .commandBufferCount = n,
                               .pCommandBuffers = buffers,
                               .signalSemaphoreCount = 1,
                               .pSignalSemaphores = &d->timeline};
    d->n_calls++;
    r = rn_vk_check(d, vkQueueSubmit(d->queue, 1, &info, VK_NULL_HANDLE), "submitting work", err);
    if (r == 0) {
        d->submitted = value; // keeps I2
    }
    return r;
}

int rn_vk_wait(struct rn_vk_device *d, struct rn_err *err)
{
    int r = must_live(d, err);
    if (r != 0) {
        return r;
    }
    const VkSemaphoreWaitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1, .pSemaphores = &d->timeline, .pValues = &d->submitted};
    d->n_calls++;
    VkResult result = vkWaitSemaphores(d->device, &info, (uint64_t)d->deadline_ms * 1000000);
    if (result == VK_TIMEOUT) {
        d->lost = d->abandoned = true;
        return rn_err_set(err, -EIO, "the GPU '%s' did not finish within %u ms and is given up", d->name, d->deadline_ms);
    }
    return rn_vk_check(d, result, "waiting for work", err);
}

int rn_vk_commands_begin(struct rn_vk_device *d, VkCommandBuffer *ret, struct rn_err *err)
{
    int r = must_live(d, err);
    if (r != 0) {
        return r;
    }
    const VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = d->command_pool,
                                              .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                              .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VkCommandBuffer commands = VK_NULL_HANDLE;
    r = rn_vk_check(d, vkAllocateCommandBuffers(d->device, &info, &commands), "allocating a command buffer", err);
    if (r != 0) {
        return r;
    }
    r = rn_vk_check(d, vkBeginCommandBuffer(commands, &begin), "beginning a command buffer", err);
    if (r != 0) {
        vkFreeCommandBuffers(d->device, d->command_pool, 1, &commands);
        return r;
    }
    *ret = commands;
    return 0;
}

int rn_vk_commands_run(struct rn_vk_device *d, VkCommandBuffer commands, struct rn_err *err)
{
    int r = rn_vk_check(d, vkEndCommandBuffer(commands), "ending a command buffer", err);
    if (r == 0) {
        r = rn_vk_submit(d, &commands, 1, err);
    }
    if (r == 0) {
        r = rn_vk_wait(d, err);
    }
    if (!d->abandoned) {
        vkFreeCommandBuffers(d->device, d->command_pool, 1, &commands);
    }
    return r;
}

/* ---- Open and close --------------------------------------------------------------------------------------------------------------------- */

static int create_device(struct rn_vk_device *d, const struct rn_vk_probe *p, struct rn_err *err)
{
    bool coop = p->features & RN_VK_COOPMAT;
    VkPhysicalDeviceVulkan11Features v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .storageBuffer16BitAccess = VK_TRUE};
    VkPhysicalDeviceVulkan12Features v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                            .pNext = &v11,
                                            .bufferDeviceAddress = VK_TRUE,
                                            .timelineSemaphore = VK_TRUE,
                                            .storageBuffer8BitAccess = (p->features & RN_VK_STORAGE8) != 0,
                                            .shaderInt8 = coop,
                                            .vulkanMemoryModel = coop};
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR, .shaderIntegerDotProduct = VK_TRUE};
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT sizes = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT,
                                                            .subgroupSizeControl = VK_TRUE,
                                                            .computeFullSubgroups = VK_TRUE};
    void *next = &v12;
    if (p->features & RN_VK_INTEGER_DOT) {
        dot.pNext = next;
        next = &dot;
    }
    if (p->size_control) {
        sizes.pNext = next;
        next = &sizes;
    }
#ifdef VK_KHR_cooperative_matrix
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrices = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
                                                             .cooperativeMatrix = VK_TRUE};
    if (coop) {
        matrices.pNext = next;
        next = &matrices;
    }
#endif
    const float priority = 0.5f;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = p->queue_family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = next,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue,
                                     .enabledExtensionCount = p->n_extensions,
                                     .ppEnabledExtensionNames = p->extensions};
    return rn_vk_check(d, vkCreateDevice(p->physical, &info, NULL, &d->device), "opening", err);
}

static int create_objects(struct rn_vk_device *d, struct rn_err *err)
{
    vkGetDeviceQueue(d->device, d->queue_family, 0, &d->queue);
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = d->queue_family};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .offset = 0, .size = RN_VK_PUSH_BYTES};
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1, .pPushConstantRanges = &range};
    int r = rn_vk_check(d, vkCreateCommandPool(d->device, &pool, NULL, &d->command_pool), "creating a command pool", err);
    if (r == 0) {
        r = rn_vk_check(d, vkCreateSemaphore(d->device, &semaphore, NULL, &d->timeline), "creating a semaphore", err);
    }
    return r != 0 ? r : rn_vk_check(d, vkCreatePipelineLayout(d->device, &layout, NULL, &d->layout), "creating a pipeline layout", err);
}

static void take_over(struct rn_vk_device *d, const struct rn_vk_probe *p)
{
    d->physical = p->physical;
    d->queue_family = p->queue_family;
    d->features = p->features;
    d->subgroup_size = p->subgroup_size;
    d->size_control = p->size_control;
    d->coop_m = p->coop_m;
    d->coop_n = p->coop_n;
    d->coop_k = p->coop_k;
    d->max_allocation = p->max_allocation < SIZE_MAX ? (size_t)p->max_allocation : SIZE_MAX;
    d->ns_per_tick = p->ns_per_tick;
    d->is_cpu = p->info.is_cpu;
    d->integrated = p->info.integrated;
    d->main_heap = p->main_heap;
    d->memory_budget = p->info.budget;
    d->deadline_ms = d->is_cpu ? DEADLINE_CPU_MS : DEADLINE_MS;
    memcpy(d->name, p->info.name, sizeof d->name);
    memcpy(d->driver, p->info.driver, sizeof d->driver);
    memcpy(d->cache_id, p->cache_id, sizeof d->cache_id);
    vkGetPhysicalDeviceMemoryProperties(d->physical, &d->heaps);
}

static int open_index(struct rn_vk_device *d, uint32_t index, uint32_t masked, const char *cache_dir, struct rn_err *err)
{
    struct rn_vk_probe *list = NULL;
    size_t n = 0;
    int r = rn_vk_probe_all(&list, &n, d->instance, masked, err);
    if (r == 0 && index >= n) {
        r = rn_err_set(err, -ENODEV, "there is no Vulkan device %u, only %zu in all", index, n);
    } else if (r == 0 && list[index].info.refused[0]) {
        r = rn_err_set(err, -ENODEV, "the Vulkan device %u '%s' cannot be used: %s", index, list[index].info.name, list[index].info.refused);
    }
    if (r == 0) {
        take_over(d, &list[index]);
        r = create_device(d, &list[index], err);
    }
    rn_mem_free(list);
    if (r == 0) {
        r = create_objects(d, err);
    }
    return r != 0 ? r : rn_vk_cache_open(d, cache_dir, err);
}

int rn_vk_device_open(struct rn_vk_device **ret, uint32_t index, const char *mask, const char *cache_dir, struct rn_err *err)
{
    uint32_t masked;
    size_t n_kernels;
    int r = rn_vk_mask_parse(&masked, mask, err);
    if (r != 0) {
        return r;
    }
    struct rn_vk_device *d = rn_mem_alloc(1, sizeof *d);
    if (!d) {
        return rn_err_nomem(err, sizeof *d, "a device");
    }
    (void)rn_vk_kernels(&n_kernels);
    d->disabled = rn_mem_alloc(n_kernels, sizeof *d->disabled);
    r = d->disabled ? rn_vk_instance_create(&d->instance, err) : rn_err_nomem(err, n_kernels, "a device");
    if (r == 0) {
        r = open_index(d, index, masked, cache_dir, err);
    }
    if (r != 0) {
        rn_vk_device_close(d);
        return r;
    }
    *ret = d;
    return 0;
}

/* All objects of the logical device, in the reverse order of creation. */
static void destroy_objects(struct rn_vk_device *d)
{
    rn_vk_buffer_destroy(d, &d->staging_down);
    rn_vk_buffer_destroy(d, &d->staging_up);
    rn_vk_pipelines_destroy(d);
    vkDestroyPipelineCache(d->device, d->pipeline_cache, NULL);
    vkDestroyPipelineLayout(d->device, d->layout, NULL);
    vkDestroySemaphore(d->device, d->timeline, NULL);
    vkDestroyCommandPool(d->device, d->command_pool, NULL);
    vkDestroyDevice(d->device, NULL);
}

void rn_vk_device_close(struct rn_vk_device *d)
{
    if (!d) {
        return;
    }
    if (d->device && d->timeline && !d->lost) {
        (void)rn_vk_wait(d, NULL); // what it says is in d: a caller that left work behind has had its error
    }
    if (d->device && !d->abandoned) {
        rn_vk_cache_save(d);
        destroy_objects(d);
    }
    if (d->instance && !d->abandoned) {
        vkDestroyInstance(d->instance, NULL);
    }
    rn_vk_pipelines_forget(d);
    rn_mem_free(d->cache_path);
    rn_mem_free(d->disabled);
    rn_mem_free(d);
}
