/* Buffers within the budget, and copies to, from and between them.
 *
 * One VkDeviceMemory per buffer: few and large ones are asked for (weights, slabs of pages, scratch), so nothing is won by a pool of our own,
 * and drivers allow 4096. Each buffer has an address; host-visible ones are coherent and stay mapped.
 * I1  memory_used is the sum of `charged` over the buffers that lie in the main heap.
 * owner: the thread that calls rn_backend_ops. */
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/vulkan/vulkan_internal.h"

#define STAGING_BYTES ((size_t)8 << 20) /* large enough that a copy costs more than its submit (a few hundred µs) */

#define HOST (VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)

/* Types of memory by place, best first: what a type must have, and what it must not. */
static const struct {
    enum rn_vk_place place;
    VkMemoryPropertyFlags has, has_not;
} choices[] = {
    {RN_VK_DEVICE, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT},
    {RN_VK_DEVICE, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0},
    {RN_VK_UPLOAD, HOST, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT}, // the small window into a GPU's memory is left to those who need it
    {RN_VK_UPLOAD, HOST, 0},
    {RN_VK_READBACK, HOST | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT},
    {RN_VK_READBACK, HOST | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 0},
    {RN_VK_READBACK, HOST, 0},
};

static bool is_over_budget(const struct rn_vk_device *d, uint32_t type, VkDeviceSize bytes)
{
    return d->heaps.memoryTypes[type].heapIndex == d->main_heap && (d->memory_used > d->memory_budget || bytes > d->memory_budget - d->memory_used);
}

static int allocate(struct rn_vk_buffer *b, struct rn_vk_device *d, uint32_t type, VkDeviceSize bytes, struct rn_err *err)
{
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags, .allocationSize = bytes, .memoryTypeIndex = type};
    int r = rn_vk_check(d, vkAllocateMemory(d->device, &info, NULL, &b->memory), "allocating memory", err);
    if (r == 0 && d->heaps.memoryTypes[type].heapIndex == d->main_heap) {
        b->charged = (size_t)bytes;
        d->memory_used += bytes; // keeps I1
    }
    return r;
}

/* Memory of the first type that fits and has some left. */
static int find_memory(struct rn_vk_buffer *b, struct rn_vk_device *d, const VkMemoryRequirements *needs, const char *what, struct rn_err *err)
{
    uint32_t tried = 0;
    int r = rn_err_set(err, -ENOTSUP, "the GPU '%s' has no memory fit for %s", d->name, what);
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        for (uint32_t type = 0; type < d->heaps.memoryTypeCount; type++) {
            VkMemoryPropertyFlags flags = d->heaps.memoryTypes[type].propertyFlags;
            bool fits = choices[i].place == b->place && (flags & choices[i].has) == choices[i].has && !(flags & choices[i].has_not) &&
                        (needs->memoryTypeBits & 1u << type) && !(tried & 1u << type);
            if (!fits) {
                continue;
            }
            tried |= 1u << type;
            if (is_over_budget(d, type, needs->size)) {
                r = rn_err_set(err, -ENOMEM, "%s: %llu bytes do not fit the GPU '%s': %llu of its budget of %llu are in use", what,
                               (unsigned long long)needs->size, d->name, (unsigned long long)d->memory_used, (unsigned long long)d->memory_budget);
                continue;
            }
            r = allocate(b, d, type, needs->size, err);
            if (r != -ENOMEM) {
                return r != 0 ? rn_err_prefix(err, "%s (%zu bytes)", what, b->bytes) : 0;
            }
            (void)rn_err_prefix(err, "%s (%zu bytes)", what, b->bytes); // the next type may have some
        }
    }
    return r;
}

static int create(struct rn_vk_buffer *b, struct rn_vk_device *d, const char *what, struct rn_err *err)
{
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = b->bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        .sharingMode = VK_SHARING_MODE_EXCLUSIVE,
    };
    int r = rn_vk_check(d, vkCreateBuffer(d->device, &info, NULL, &b->buffer), what, err);
    if (r != 0) {
        return r;
    }
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(d->device, b->buffer, &needs);
    r = find_memory(b, d, &needs, what, err);
    if (r == 0) {
        r = rn_vk_check(d, vkBindBufferMemory(d->device, b->buffer, b->memory, 0), what, err);
    }
    if (r == 0 && b->place != RN_VK_DEVICE) {
        r = rn_vk_check(d, vkMapMemory(d->device, b->memory, 0, VK_WHOLE_SIZE, 0, &b->mapped), what, err);
    }
    if (r == 0) {
        const VkBufferDeviceAddressInfo address = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = b->buffer};
        b->address = vkGetBufferDeviceAddress(d->device, &address);
    }
    return r;
}

int rn_vk_buffer_create(struct rn_vk_buffer *ret, struct rn_vk_device *d, size_t bytes, enum rn_vk_place place, const char *what,
                        struct rn_err *err)
{
    if (d->lost) {
        return rn_err_set(err, -EIO, "the GPU '%s' was lost", d->name);
    }
    if (bytes == 0 || bytes > d->max_allocation) {
        return rn_err_set(err, -ENOMEM, "%s: %zu bytes in one piece, the GPU '%s' allows 1 to %zu", what, bytes, d->name, d->max_allocation);
    }
    struct rn_vk_buffer b = {.bytes = bytes, .place = place};
    int r = create(&b, d, what, err);
    if (r != 0) {
        rn_vk_buffer_destroy(d, &b);
        return r;
    }
    *ret = b;
    return 0;
}

void rn_vk_buffer_destroy(struct rn_vk_device *d, struct rn_vk_buffer *b)
{
    if (!d->abandoned) {
        vkDestroyBuffer(d->device, b->buffer, NULL);
        vkFreeMemory(d->device, b->memory, NULL); // ends the mapping too
        d->memory_used -= b->charged;
    }
    *b = (struct rn_vk_buffer){0};
}

/* ---- Copies --------------------------------------------------------------------------------------------------------------------------- */

static void barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags wrote, VkPipelineStageFlags to, VkAccessFlags access)
{
    const VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = wrote, .dstAccessMask = access};
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &all, 0, NULL, 0, NULL);
}

static int check_range(const struct rn_vk_buffer *b, size_t at, size_t bytes, struct rn_err *err)
{
    if (at > b->bytes || bytes > b->bytes - at) {
        return rn_err_set(err, -EINVAL, "a copy of %zu bytes at %zu leaves a buffer of %zu bytes", bytes, at, b->bytes);
    }
    return 0;
}

int rn_vk_copy(struct rn_vk_device *d, const struct rn_vk_buffer *to, size_t to_at, const struct rn_vk_buffer *from, size_t from_at, size_t bytes,
               struct rn_err *err)
{
    int r = check_range(to, to_at, bytes, err);
    r = r == 0 ? check_range(from, from_at, bytes, err) : r;
    if (r != 0 || bytes == 0) {
        return r;
    }
    VkCommandBuffer commands;
    r = rn_vk_commands_begin(d, &commands, err);
    if (r != 0) {
        return r;
    }
    // What earlier submits wrote comes first; what later ones and the host read comes after.
    const VkBufferCopy region = {.srcOffset = from_at, .dstOffset = to_at, .size = bytes};
    const VkAccessFlags any = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
    barrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_WRITE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
    vkCmdCopyBuffer(commands, from->buffer, to->buffer, 1, &region);
    barrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT,
            any | VK_ACCESS_HOST_READ_BIT);
    return rn_vk_commands_run(d, commands, err);
}

static int stage(struct rn_vk_buffer *staging, struct rn_vk_device *d, enum rn_vk_place place, struct rn_err *err)
{
    return staging->buffer ? 0 : rn_vk_buffer_create(staging, d, STAGING_BYTES, place, "a staging buffer", err);
}

int rn_vk_upload(struct rn_vk_device *d, const struct rn_vk_buffer *to, size_t at, const void *from, size_t bytes, struct rn_err *err)
{
    int r = check_range(to, at, bytes, err);
    if (r == 0 && to->mapped) {
        memcpy((char *)to->mapped + at, from, bytes);
        return 0;
    }
    r = r == 0 ? stage(&d->staging_up, d, RN_VK_UPLOAD, err) : r;
    for (size_t done = 0; r == 0 && done < bytes;) {
        size_t n = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        memcpy(d->staging_up.mapped, (const char *)from + done, n);
        r = rn_vk_copy(d, to, at + done, &d->staging_up, 0, n, err);
        done += n;
    }
    return r;
}

int rn_vk_download(struct rn_vk_device *d, void *to, const struct rn_vk_buffer *from, size_t at, size_t bytes, struct rn_err *err)
{
    int r = check_range(from, at, bytes, err);
    if (r == 0 && from->mapped) {
        memcpy(to, (const char *)from->mapped + at, bytes);
        return 0;
    }
    r = r == 0 ? stage(&d->staging_down, d, RN_VK_READBACK, err) : r;
    for (size_t done = 0; r == 0 && done < bytes;) {
        size_t n = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        r = rn_vk_copy(d, &d->staging_down, 0, from, at + done, n, err);
        if (r == 0) {
            memcpy((char *)to + done, d->staging_down.mapped, n);
        }
        done += n;
    }
    return r;
}
