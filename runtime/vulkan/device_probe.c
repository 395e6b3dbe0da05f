/* What one device offers, and why it is refused. What is optional and hidden by a mask is as if it were not there.
 *
 * What versions after 1.2 took into their core is used through its extension, so that headers and drivers of 1.2 do. Thread: any. */
#include "runtime/vulkan/device_internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define MAX_FAMILIES 32
#define SHARED_BYTES 30720 // attend.comp's; matvec.comp and matmat.comp want 17 KiB
#define INVOCATIONS 256    // of a workgroup: prepare.comp's, and matvec.comp's with THEN_QUANT

static const struct {
    const char *name;
    uint32_t flag;
} feature_names[] = {
    {"integer-dot", RN_VK_INTEGER_DOT},
    {"storage8", RN_VK_STORAGE8},
    {"subgroup", RN_VK_SUBGROUP},
    {"coopmat", RN_VK_COOPMAT},
};

#define N_FEATURES (sizeof feature_names / sizeof feature_names[0])

int rn_vk_mask_parse(uint32_t *ret, const char *mask, struct rn_err *err)
{
    uint32_t flags = 0;
    for (const char *at = mask ? mask : ""; *at;) {
        size_t len = strcspn(at, ",");
        uint32_t flag = 0;
        for (size_t i = 0; i < N_FEATURES; i++) {
            if (len == strlen(feature_names[i].name) && strncmp(at, feature_names[i].name, len) == 0) {
                flag = feature_names[i].flag;
            }
        }
        if (!flag && len > 0) {
            return rn_err_set(err, -EINVAL, "unknown GPU feature '%.*s' (known: %s, %s, %s, %s)", (int)len, at, feature_names[0].name,
                              feature_names[1].name, feature_names[2].name, feature_names[3].name);
        }
        flags |= flag;
        at += len + (at[len] == ',');
    }
    *ret = flags;
    return 0;
}

/* ---- Extensions ----------------------------------------------------------------------------------------------------------------------- */

struct extension_list {
    VkExtensionProperties *items;
    uint32_t n;
};

static bool has_extension(const struct extension_list *list, const char *name)
{
    for (uint32_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i].extensionName, name) == 0) {
            return true;
        }
    }
    return false;
}

static int extensions_get(struct extension_list *ret, VkPhysicalDevice physical, struct rn_err *err)
{
    uint32_t n = 0;
    VkResult result = vkEnumerateDeviceExtensionProperties(physical, NULL, &n, NULL);
    if (result != VK_SUCCESS) {
        return rn_err_set(err, -EIO, "listing a device's extensions: %s", rn_vk_result_name(result));
    }
    ret->items = rn_mem_alloc(n, sizeof *ret->items);
    if (!ret->items) {
        return rn_err_nomem(err, n * sizeof *ret->items, "a device's extensions");
    }
    result = vkEnumerateDeviceExtensionProperties(physical, NULL, &n, ret->items);
    ret->n = result == VK_SUCCESS || result == VK_INCOMPLETE ? n : 0;
    return 0;
}

static void enable(struct rn_vk_probe *p, const char *extension)
{
    if (p->n_extensions < RN_VK_MAX_EXTENSIONS) {
        p->extensions[p->n_extensions++] = extension;
    }
}

static void refuse(struct rn_vk_probe *p, const char *why)
{
    snprintf(p->info.refused, sizeof p->info.refused, "%s", why);
}

/* ---- Queue, memory, limits ---------------------------------------------------------------------------------------------------------------- */

/* A family for compute alone is preferred: the desktop's drawing does not wait for us there. */
static void find_queue(struct rn_vk_probe *p)
{
    VkQueueFamilyProperties families[MAX_FAMILIES];
    uint32_t n = MAX_FAMILIES;
    vkGetPhysicalDeviceQueueFamilyProperties(p->physical, &n, families);
    p->queue_family = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        bool compute = families[i].queueCount > 0 && (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT);
        bool graphics = families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT;
        if (compute && (p->queue_family == UINT32_MAX || !graphics)) {
            p->queue_family = i;
            if (!graphics) {
                break;
            }
        }
    }
    if (p->queue_family == UINT32_MAX) {
        refuse(p, "it has no queue for compute");
        p->queue_family = 0;
        return;
    }
    if (families[p->queue_family].timestampValidBits == 0) {
        p->ns_per_tick = 0;
    }
}

static void find_memory(struct rn_vk_probe *p, const struct extension_list *extensions)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    bool has_budget = has_extension(extensions, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    if (has_budget) {
        memory.pNext = &budget;
        enable(p, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    }
    vkGetPhysicalDeviceMemoryProperties2(p->physical, &memory);
    const VkPhysicalDeviceMemoryProperties *heaps = &memory.memoryProperties;
    for (uint32_t i = 0; i < heaps->memoryHeapCount; i++) {
        if ((heaps->memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) && heaps->memoryHeaps[i].size > p->info.memory) {
            p->main_heap = i;
            p->info.memory = heaps->memoryHeaps[i].size;
        }
    }
    // Without the extension an eighth is left to others: the desktop, the driver itself.
    p->info.budget = p->info.memory - p->info.memory / 8;
    if (has_budget && budget.heapBudget[p->main_heap] > 0) {
        VkDeviceSize used = budget.heapUsage[p->main_heap];
        VkDeviceSize all = budget.heapBudget[p->main_heap];
        p->info.budget = all > used ? all - used : 0;
    }
    if (p->info.memory == 0) {
        refuse(p, "it has no memory of its own");
    }
}

static void find_properties(struct rn_vk_probe *p, const struct extension_list *extensions, VkSubgroupFeatureFlags *ret_subgroup_operations)
{
    VkPhysicalDeviceSubgroupSizeControlPropertiesEXT sizes = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT};
    VkPhysicalDeviceVulkan12Properties v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES};
    VkPhysicalDeviceVulkan11Properties v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &v12};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &v11};
    bool has_sizes = has_extension(extensions, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    v12.pNext = has_sizes ? &sizes : NULL;
    vkGetPhysicalDeviceProperties2(p->physical, &all);
    const VkPhysicalDeviceLimits *limits = &all.properties.limits;
    snprintf(p->info.driver, sizeof p->info.driver, "%.70s%s%.80s", v12.driverName, v12.driverInfo[0] ? " " : "", v12.driverInfo);
    p->ns_per_tick = limits->timestampPeriod;
    p->max_shared_bytes = limits->maxComputeSharedMemorySize;
    p->max_invocations = limits->maxComputeWorkGroupInvocations;
    if (p->max_invocations > limits->maxComputeWorkGroupSize[0]) {
        p->max_invocations = limits->maxComputeWorkGroupSize[0];
    }
    p->max_allocation = v11.maxMemoryAllocationSize;
    p->subgroup_size = v11.subgroupSize;
    p->size_control = has_sizes && (sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT) && sizes.minSubgroupSize <= v11.subgroupSize &&
                      v11.subgroupSize <= sizes.maxSubgroupSize;
    *ret_subgroup_operations = (v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT) ? v11.subgroupSupportedOperations : 0;
    memcpy(p->cache_id, v11.deviceUUID, VK_UUID_SIZE);
    memcpy(p->cache_id + VK_UUID_SIZE, v11.driverUUID, VK_UUID_SIZE);
}

/* ---- Features -------------------------------------------------------------------------------------------------------------------------- */

#ifdef VK_KHR_cooperative_matrix
/* The shape of int8 x int8 -> int32 among those that matmat_coop.comp takes: 16 x 16 x 32 if there is, else the one with the longer k. */
static bool find_coop_shape(struct rn_vk_probe *p, VkInstance instance)
{
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    VkCooperativeMatrixPropertiesKHR shapes[128];
    uint32_t n = sizeof shapes / sizeof shapes[0];
    for (uint32_t i = 0; i < n; i++) {
        shapes[i] = (VkCooperativeMatrixPropertiesKHR){.sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
    }
    if (!get || get(p->physical, &n, shapes) < 0) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        const VkCooperativeMatrixPropertiesKHR *s = &shapes[i];
        bool fits = s->AType == VK_COMPONENT_TYPE_SINT8_KHR && s->BType == VK_COMPONENT_TYPE_SINT8_KHR && s->CType == VK_COMPONENT_TYPE_SINT32_KHR &&
                    s->ResultType == VK_COMPONENT_TYPE_SINT32_KHR && s->scope == VK_SCOPE_SUBGROUP_KHR && !s->saturatingAccumulation &&
                    (s->MSize == 8 || s->MSize == 16 || s->MSize == 32) && (s->NSize == 8 || s->NSize == 16) &&
                    (s->KSize == 8 || s->KSize == 16 || s->KSize == 32);
        bool square = s->MSize == 16 && s->NSize == 16;
        bool had_square = p->coop_m == 16 && p->coop_n == 16;
        if (fits && (square > had_square || (square == had_square && s->KSize > p->coop_k))) {
            p->coop_m = s->MSize;
            p->coop_n = s->NSize;
            p->coop_k = s->KSize;
        }
    }
    return p->coop_k > 0;
}
#endif

struct feature_chain {
    VkPhysicalDeviceFeatures2 all;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot;
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT sizes;
#ifdef VK_KHR_cooperative_matrix
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR coop;
#endif
};

static void chain(struct feature_chain *c, void *item)
{
    ((VkBaseOutStructure *)item)->pNext = c->all.pNext;
    c->all.pNext = item;
}

static void features_get(struct feature_chain *c, VkPhysicalDevice physical, const struct extension_list *extensions)
{
    *c = (struct feature_chain){
        .all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2},
        .v11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES},
        .v12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES},
        .dot = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR},
        .sizes = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT},
    };
    chain(c, &c->v11);
    chain(c, &c->v12);
    if (has_extension(extensions, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME)) {
        chain(c, &c->dot);
    }
    if (has_extension(extensions, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME)) {
        chain(c, &c->sizes);
    }
#ifdef VK_KHR_cooperative_matrix
    c->coop = (VkPhysicalDeviceCooperativeMatrixFeaturesKHR){.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
    if (has_extension(extensions, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME)) {
        chain(c, &c->coop);
    }
#endif
    vkGetPhysicalDeviceFeatures2(physical, &c->all);
}

static void refuse_without(struct rn_vk_probe *p, const struct feature_chain *c)
{
    if (!c->v12.bufferDeviceAddress) {
        refuse(p, "it has no buffer device addresses");
    } else if (!c->v11.storageBuffer16BitAccess) {
        refuse(p, "it has no 16-bit storage");
    } else if (!c->v12.timelineSemaphore) {
        refuse(p, "it has no timeline semaphores");
    } else if (p->max_shared_bytes < SHARED_BYTES || p->max_invocations < INVOCATIONS) {
        snprintf(p->info.refused, sizeof p->info.refused, "its workgroups have %u invocations and %u bytes, %d and %d are needed",
                 p->max_invocations, p->max_shared_bytes, INVOCATIONS, SHARED_BYTES);
    }
}

static uint32_t optional_features(struct rn_vk_probe *p, VkInstance instance, const struct feature_chain *c, VkSubgroupFeatureFlags operations)
{
    const VkSubgroupFeatureFlags wanted = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    uint32_t features = (c->dot.shaderIntegerDotProduct ? RN_VK_INTEGER_DOT : 0u) | (c->v12.storageBuffer8BitAccess ? RN_VK_STORAGE8 : 0u) |
                        ((operations & wanted) == wanted ? RN_VK_SUBGROUP : 0u);
#ifdef VK_KHR_cooperative_matrix
    if (c->coop.cooperativeMatrix && c->v12.shaderInt8 && c->v12.vulkanMemoryModel && p->size_control && find_coop_shape(p, instance)) {
        features |= RN_VK_COOPMAT;
    }
#else
    (void)p;
    (void)instance;
#endif
    return features;
}

static void enable_features(struct rn_vk_probe *p)
{
    if (p->features & RN_VK_INTEGER_DOT) {
        enable(p, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
    }
    if (p->size_control) {
        enable(p, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    }
#ifdef VK_KHR_cooperative_matrix
    if (p->features & RN_VK_COOPMAT) {
        enable(p, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME);
    }
#endif
    for (size_t i = 0, at = 0; i < N_FEATURES; i++) {
        if (p->features & feature_names[i].flag) {
            at += (size_t)snprintf(p->info.features + at, sizeof p->info.features - at, "%s%s", at ? "," : "", feature_names[i].name);
        }
    }
}

static void find_features(struct rn_vk_probe *p, VkInstance instance, const struct extension_list *extensions, uint32_t masked)
{
    struct feature_chain c;
    VkSubgroupFeatureFlags operations = 0;
    find_properties(p, extensions, &operations);
    features_get(&c, p->physical, extensions);
    refuse_without(p, &c);
    p->size_control = p->size_control && c.sizes.subgroupSizeControl && c.sizes.computeFullSubgroups;
    p->features = optional_features(p, instance, &c, operations) & ~masked;
    if (!(p->features & RN_VK_COOPMAT)) {
        p->coop_m = p->coop_n = p->coop_k = 0;
    }
    enable_features(p);
}

/* ---- The whole ------------------------------------------------------------------------------------------------------------------------ */

int rn_vk_probe_one(struct rn_vk_probe *p, VkInstance instance, uint32_t masked, struct rn_err *err)
{
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(p->physical, &properties);
    snprintf(p->info.name, sizeof p->info.name, "%.*s", RN_GPU_TEXT - 1, properties.deviceName);
    p->info.is_cpu = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    p->info.integrated = properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU || p->info.is_cpu;
    uint32_t major = VK_API_VERSION_MAJOR(properties.apiVersion), minor = VK_API_VERSION_MINOR(properties.apiVersion);
    if (major < 1 || (major == 1 && minor < 2)) {
        snprintf(p->info.refused, sizeof p->info.refused, "it has Vulkan %u.%u, 1.2 is needed", major, minor);
        return 0;
    }
    struct extension_list extensions = {0};
    int r = extensions_get(&extensions, p->physical, err);
    if (r == 0) {
        find_features(p, instance, &extensions, masked);
        find_memory(p, &extensions);
        find_queue(p);
    }
    rn_mem_free(extensions.items);
    return r;
}
