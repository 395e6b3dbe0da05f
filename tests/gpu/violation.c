/* Breaks a rule of Vulkan's, so that a test can tell that the validation layer looks. Usage: violation usage|hazard|address
 *
 *   usage    a buffer of no bytes (core validation)
 *   hazard   two copies to one place without a barrier (synchronisation validation)
 *   address  a shader writes the word behind its buffer (GPU-assisted validation); the memory is there, so nothing is hurt without it
 * Exit code 0: done; 77: there is no device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "add.spv.h"
#include "runtime/base/err.h"
#include "tests/gpu/gpu_kit.h"

#define ROW(name, array, op, type, needs, tolerance) {#name, op, type, needs, 16, tolerance, array, sizeof array}
static const struct rn_vk_kernel add_kernel = RN_VK_KERNEL_ROWS(ROW);

static int usage(struct rn_vk_device *d, struct rn_err *err)
{
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 0, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
    VkBuffer buffer = VK_NULL_HANDLE;
    (void)err;
    if (vkCreateBuffer(d->device, &info, NULL, &buffer) == VK_SUCCESS) {
        vkDestroyBuffer(d->device, buffer, NULL);
    }
    return 0;
}

static int hazard(struct rn_vk_device *d, struct rn_err *err)
{
    struct rn_vk_buffer from = {0}, to = {0};
    VkCommandBuffer commands;
    const VkBufferCopy region = {.size = 256};
    int r = rn_vk_buffer_create(&from, d, 256, RN_VK_DEVICE, "from", err);
    r = r == 0 ? rn_vk_buffer_create(&to, d, 256, RN_VK_DEVICE, "to", err) : r;
    r = r == 0 ? rn_vk_commands_begin(d, &commands, err) : r;
    if (r == 0) {
        vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
        vkCmdCopyBuffer(commands, from.buffer, to.buffer, 1, &region);
        r = rn_vk_commands_run(d, commands, err);
    }
    rn_vk_buffer_destroy(d, &to);
    rn_vk_buffer_destroy(d, &from);
    return r;
}

/* A buffer of 60 bytes in memory for more. */
static int short_buffer(struct rn_vk_buffer *b, struct rn_vk_device *d, struct rn_err *err)
{
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 60, .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT};
    int r = rn_vk_buffer_create(b, d, 65536, RN_VK_DEVICE, "b", err);
    if (r != 0) {
        return r;
    }
    VkMemoryRequirements needs;
    vkDestroyBuffer(d->device, b->buffer, NULL);
    b->buffer = VK_NULL_HANDLE;
    r = rn_vk_check(d, vkCreateBuffer(d->device, &info, NULL, &b->buffer), "b", err);
    if (r == 0) {
        vkGetBufferMemoryRequirements(d->device, b->buffer, &needs);
        r = rn_vk_check(d, vkBindBufferMemory(d->device, b->buffer, b->memory, 0), "b", err);
    }
    if (r == 0) {
        const VkBufferDeviceAddressInfo address = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = b->buffer};
        b->address = vkGetBufferDeviceAddress(d->device, &address);
    }
    return r;
}

static int address(struct rn_vk_device *d, struct rn_err *err)
{
    struct rn_vk_buffer b = {0};
    VkPipeline pipeline;
    VkCommandBuffer commands;
    int r = short_buffer(&b, d, err);
    const struct {
        VkDeviceAddress words;
        uint32_t n, padding;
    } args = {b.address, 16, 0};
    r = r == 0 ? rn_vk_pipeline(&pipeline, d, &add_kernel, NULL, 0, err) : r;
    r = r == 0 ? rn_vk_commands_begin(d, &commands, err) : r;
    if (r == 0) {
        vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
        vkCmdPushConstants(commands, rn_vk_layout(d), VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof args, &args);
        vkCmdDispatch(commands, 1, 1, 1);
        r = rn_vk_commands_run(d, commands, err);
    }
    rn_vk_buffer_destroy(d, &b);
    return r;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct rn_vk_device *d, struct rn_err *err);
    } kinds[] = {{"usage", usage}, {"hazard", hazard}, {"address", address}};
    const struct rn_gpu_info *gpu = gpu_kit_device();
    if (!gpu) {
        return 77;
    }
    struct rn_err err = {0};
    struct rn_vk_device *d = NULL;
    int r = rn_vk_device_open(&d, gpu->index, NULL, NULL, &err);
    for (size_t i = 0; r == 0 && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (argc == 2 && strcmp(argv[1], kinds[i].name) == 0) {
            r = kinds[i].run(d, &err);
        }
    }
    rn_vk_device_close(d);
    if (r != 0) {
        fprintf(stderr, "%s\n", err.text);
    }
    return r != 0;
}
