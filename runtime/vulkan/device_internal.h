/* What device.c, device_list.c and device_probe.c share: a look at each physical device before one is opened. Private to them (and tests). */
#pragma once

#include "runtime/vulkan/gpu.h"
#include "runtime/vulkan/vulkan_internal.h"

#define RN_VK_MAX_EXTENSIONS 8

struct rn_vk_probe {                /* one physical device */
    VkPhysicalDevice physical;
    struct rn_gpu_info info;
    uint32_t features;              /* RN_VK_*, after masking */
    uint32_t queue_family;
    float ns_per_tick;
    uint32_t subgroup_size;
    bool size_control;              /* a pipeline may ask for the subgroup size and full subgroups */
    uint32_t coop_m, coop_n, coop_k;
    uint32_t max_shared_bytes, max_invocations;
    uint64_t max_allocation;
    uint8_t cache_id[2 * VK_UUID_SIZE];
    uint32_t main_heap;             /* the largest device-local one */
    const char *extensions[RN_VK_MAX_EXTENSIONS]; /* to be enabled; string constants */
    uint32_t n_extensions;
};

/* Names of the mask -> RN_VK_*. -EINVAL: an unknown one; the error names the known ones. NULL, "": 0. */
int rn_vk_mask_parse(uint32_t *ret, const char *mask, struct rn_err *err);

/* -ENOTSUP: no driver. The instance is the caller's (vkDestroyInstance). */
int rn_vk_instance_create(VkInstance *ret, struct rn_err *err);

/* Fills the rest of a probe of which `physical` and info.index are set. A device that cannot be used is no error: info.refused says why.
 * -ENOMEM, -EIO. */
int rn_vk_probe_one(struct rn_vk_probe *p, VkInstance instance, uint32_t masked, struct rn_err *err);

/* All devices in Vulkan's order, at least one; freed by rn_mem_free. -ENOTSUP: none. */
int rn_vk_probe_all(struct rn_vk_probe **ret, size_t *ret_n, VkInstance instance, uint32_t masked, struct rn_err *err);

/* "VK_ERROR_DEVICE_LOST"; for messages. */
const char *rn_vk_result_name(VkResult result);

/* rn_gpu_rights for the nodes renderD* of a directory. */
int rn_vk_rights_in(const char *dir, struct rn_err *err);
