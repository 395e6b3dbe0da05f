/* See fault_shim.h. The functions here hide the loader's of the same name and call them by dlsym(RTLD_NEXT). */
#define _GNU_SOURCE
#include "tests/gpu/fault_shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vulkan/vulkan.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 256
#define MAX_MEMORIES 65536

struct spec {
    uint64_t lost, lost_wait, lost_always, hang, alloc; /* 0 = never */
    uint64_t memory, heap;                              /* UINT64_MAX = as it is */
    bool gone, cache_file, cache_driver, hardware;
};

static struct {
    pthread_mutex_t lock;
    struct spec spec;
    uint64_t submits, allocations;
    bool was_lost;
    struct {
        VkDevice device;
        VkQueue queue;
        bool lost, lost_at_wait, hangs;
    } devices[MAX_DEVICES];
    struct {
        VkDeviceMemory memory;
        uint64_t bytes;
    } memories[MAX_MEMORIES];
    uint64_t used;
} shim = {.lock = PTHREAD_MUTEX_INITIALIZER, .spec = {.memory = UINT64_MAX, .heap = UINT64_MAX}};

/* The loader's function of this name. */
#define NEXT(name) ((PFN_##name)next(#name))

static void (*next(const char *name))(void)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (!symbol) {
        fprintf(stderr, "fault_shim: no %s behind it\n", name);
        abort();
    }
    void (*function)(void);
    memcpy(&function, &symbol, sizeof function);
    return function;
}

/* ---- The specification -------------------------------------------------------------------------------------------------------------------- */

static bool parse_one(struct spec *s, const char *item)
{
    const struct {
        const char *name;
        uint64_t *value;
    } numbers[] = {{"lost=", &s->lost}, {"lost-wait=", &s->lost_wait}, {"lost-always=", &s->lost_always}, {"hang=", &s->hang}, {"alloc=", &s->alloc}, {"memory=", &s->memory}, {"heap=", &s->heap}};
    const struct {
        const char *name;
        bool *value;
    } flags[] = {{"gone", &s->gone}, {"hardware", &s->hardware}, {"cache=file", &s->cache_file}, {"cache=driver", &s->cache_driver}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (strcmp(item, flags[i].name) == 0) {
            *flags[i].value = true;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        size_t len = strlen(numbers[i].name);
        if (strncmp(item, numbers[i].name, len) == 0 && item[len] >= '0' && item[len] <= '9') {
            char *end;
            errno = 0;
            *numbers[i].value = strtoull(item + len, &end, 10);
            return *end == '\0' && errno == 0;
        }
    }
    return false;
}

static bool parse(struct spec *ret, const char *text)
{
    struct spec s = {.memory = UINT64_MAX, .heap = UINT64_MAX};
    char copy[256], *rest = copy;
    if (strlen(text) >= sizeof copy) {
        return false;
    }
    snprintf(copy, sizeof copy, "%s", text);
    copy[strcspn(copy, "\n")] = '\0';
    for (char *item; (item = strtok_r(rest, ",", &rest));) {
        if (!parse_one(&s, item)) {
            return false;
        }
    }
    *ret = s;
    return true;
}

static void apply(const struct spec *s)
{
    shim.spec = *s;
    shim.submits = shim.allocations = shim.used = 0;
    shim.was_lost = false;
    memset(shim.memories, 0, sizeof shim.memories);
}

EXPORT int rn_fault_set(const char *text)
{
    struct spec s;
    if (!parse(&s, text ? text : "")) {
        return -1;
    }
    pthread_mutex_lock(&shim.lock);
    apply(&s);
    pthread_mutex_unlock(&shim.lock);
    return 0;
}

EXPORT uint64_t rn_fault_submits(void)
{
    pthread_mutex_lock(&shim.lock);
    uint64_t n = shim.submits;
    pthread_mutex_unlock(&shim.lock);
    return n;
}

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("RUNNEL_GPU_FAULT");
    if (text && rn_fault_set(text) != 0) {
        fprintf(stderr, "fault_shim: RUNNEL_GPU_FAULT='%s' is not understood\n", text);
        abort();
    }
}

/* Under the lock. */
static void look_at_file(void)
{
    const char *path = getenv("RUNNEL_GPU_FAULT_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) {
        return;
    }
    char text[256] = "";
    struct spec s;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    if (!parse(&s, text)) {
        fprintf(stderr, "fault_shim: '%s' is not understood\n", text);
        abort();
    }
    apply(&s);
    unlink(path);
}

/* ---- Devices and submits ---------------------------------------------------------------------------------------------------------------- */

/* Index of the device, or of the one whose queue it is; MAX_DEVICES if it is not known. Under the lock. */
static size_t find(VkDevice device, VkQueue queue)
{
    size_t i = 0;
    while (i < MAX_DEVICES && !(device && shim.devices[i].device == device) && !(queue && shim.devices[i].queue == queue)) {
        i++;
    }
    return i;
}

EXPORT VkResult VKAPI_CALL vkCreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info, const VkAllocationCallbacks *callbacks,
                                          VkDevice *ret)
{
    pthread_mutex_lock(&shim.lock);
    bool refuse = shim.spec.gone && shim.was_lost;
    pthread_mutex_unlock(&shim.lock);
    if (refuse) {
        fprintf(stderr, "fault_shim: the device is gone\n");
        return VK_ERROR_INITIALIZATION_FAILED;
    }
    VkResult result = NEXT(vkCreateDevice)(physical, info, callbacks, ret);
    pthread_mutex_lock(&shim.lock);
    for (size_t i = 0; result == VK_SUCCESS && i < MAX_DEVICES; i++) {
        if (!shim.devices[i].device) {
            shim.devices[i].device = *ret;
            break;
        }
    }
    pthread_mutex_unlock(&shim.lock);
    return result;
}

EXPORT void VKAPI_CALL vkGetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *ret)
{
    NEXT(vkGetDeviceQueue)(device, family, index, ret);
    pthread_mutex_lock(&shim.lock);
    size_t i = find(device, VK_NULL_HANDLE);
    if (i < MAX_DEVICES) {
        shim.devices[i].queue = *ret;
    }
    pthread_mutex_unlock(&shim.lock);
}

/* Ends the process if the device hangs: the caller would have waited for ever, or freed what the device still uses. */
static void must_not_hang(VkDevice device, const char *call)
{
    pthread_mutex_lock(&shim.lock);
    size_t i = find(device, VK_NULL_HANDLE);
    bool hangs = i < MAX_DEVICES && shim.devices[i].hangs;
    pthread_mutex_unlock(&shim.lock);
    if (hangs) {
        fprintf(stderr, "fault_shim: %s on a device that hangs\n", call);
        abort();
    }
}

EXPORT void VKAPI_CALL vkDestroyDevice(VkDevice device, const VkAllocationCallbacks *callbacks)
{
    must_not_hang(device, "vkDestroyDevice");
    pthread_mutex_lock(&shim.lock);
    size_t i = find(device, VK_NULL_HANDLE);
    if (i < MAX_DEVICES) {
        memset(&shim.devices[i], 0, sizeof shim.devices[i]);
    }
    pthread_mutex_unlock(&shim.lock);
    NEXT(vkDestroyDevice)(device, callbacks);
}

/* On a lost device nothing runs any more: what belongs to it may be destroyed. */
static void end_work(VkQueue queue)
{
    (void)NEXT(vkQueueWaitIdle)(queue);
}

static bool happens(uint64_t at)
{
    return at > 0 && shim.submits == at;
}

/* What happens to this submit: VK_SUCCESS: it goes on to the driver; VK_TIMEOUT: it is swallowed. Under the lock. */
static VkResult decide(size_t i)
{
    look_at_file();
    shim.submits++;
    bool always = shim.spec.lost_always > 0 && shim.submits >= shim.spec.lost_always;
    if (happens(shim.spec.lost) || always) {
        fprintf(stderr, "fault_shim: submit %llu loses the device\n", (unsigned long long)shim.submits);
        shim.devices[i].lost = shim.was_lost = true;
    }
    if (happens(shim.spec.lost_wait)) {
        fprintf(stderr, "fault_shim: the device is lost after submit %llu\n", (unsigned long long)shim.submits);
        shim.devices[i].lost_at_wait = shim.was_lost = true;
    }
    if (happens(shim.spec.hang)) {
        fprintf(stderr, "fault_shim: submit %llu hangs\n", (unsigned long long)shim.submits);
        shim.devices[i].hangs = true;
    }
    return shim.devices[i].lost ? VK_ERROR_DEVICE_LOST : shim.devices[i].hangs ? VK_TIMEOUT : VK_SUCCESS;
}

EXPORT VkResult VKAPI_CALL vkQueueSubmit(VkQueue queue, uint32_t n, const VkSubmitInfo *infos, VkFence fence)
{
    VkResult result = VK_SUCCESS;
    pthread_mutex_lock(&shim.lock);
    size_t i = find(VK_NULL_HANDLE, queue);
    if (i < MAX_DEVICES) {
        result = decide(i);
    }
    pthread_mutex_unlock(&shim.lock);
    if (result == VK_TIMEOUT) {
        return VK_SUCCESS; // taken, and never done
    }
    if (result == VK_ERROR_DEVICE_LOST) {
        end_work(queue);
    }
    return result == VK_SUCCESS ? NEXT(vkQueueSubmit)(queue, n, infos, fence) : result;
}

EXPORT VkResult VKAPI_CALL vkWaitSemaphores(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout)
{
    pthread_mutex_lock(&shim.lock);
    size_t i = find(device, VK_NULL_HANDLE);
    bool hangs = i < MAX_DEVICES && shim.devices[i].hangs;
    bool lost = i < MAX_DEVICES && (shim.devices[i].lost || shim.devices[i].lost_at_wait);
    VkQueue queue = i < MAX_DEVICES ? shim.devices[i].queue : VK_NULL_HANDLE;
    if (lost) {
        shim.devices[i].lost = true;
    }
    pthread_mutex_unlock(&shim.lock);
    if (hangs) {
        return VK_TIMEOUT; // the deadline is over as soon as it is asked for
    }
    if (lost) {
        end_work(queue);
        return VK_ERROR_DEVICE_LOST;
    }
    return NEXT(vkWaitSemaphores)(device, info, timeout);
}

EXPORT VkResult VKAPI_CALL vkDeviceWaitIdle(VkDevice device)
{
    must_not_hang(device, "vkDeviceWaitIdle");
    return NEXT(vkDeviceWaitIdle)(device);
}

/* ---- Memory ----------------------------------------------------------------------------------------------------------------------------- */

static bool fits(uint64_t bytes)
{
    shim.allocations++;
    if (shim.spec.alloc == shim.allocations) {
        fprintf(stderr, "fault_shim: allocation %llu fails\n", (unsigned long long)shim.allocations);
        return false;
    }
    if (shim.used + bytes > shim.spec.memory) {
        fprintf(stderr, "fault_shim: no memory for %llu bytes\n", (unsigned long long)bytes);
        return false;
    }
    return true;
}

EXPORT VkResult VKAPI_CALL vkAllocateMemory(VkDevice device, const VkMemoryAllocateInfo *info, const VkAllocationCallbacks *callbacks,
                                            VkDeviceMemory *ret)
{
    pthread_mutex_lock(&shim.lock);
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    if (fits(info->allocationSize)) {
        result = NEXT(vkAllocateMemory)(device, info, callbacks, ret);
        shim.used += result == VK_SUCCESS ? info->allocationSize : 0;
        for (size_t i = 0; result == VK_SUCCESS && i < MAX_MEMORIES; i++) {
            if (!shim.memories[i].memory) {
                shim.memories[i].memory = *ret;
                shim.memories[i].bytes = info->allocationSize;
                break;
            }
        }
    }
    pthread_mutex_unlock(&shim.lock);
    return result;
}

EXPORT void VKAPI_CALL vkFreeMemory(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *callbacks)
{
    must_not_hang(device, "vkFreeMemory");
    pthread_mutex_lock(&shim.lock);
    for (size_t i = 0; memory && i < MAX_MEMORIES; i++) {
        if (shim.memories[i].memory == memory) {
            shim.used -= shim.memories[i].bytes;
            shim.memories[i].memory = VK_NULL_HANDLE;
            break;
        }
    }
    pthread_mutex_unlock(&shim.lock);
    NEXT(vkFreeMemory)(device, memory, callbacks);
}

static VkDeviceSize at_most(VkDeviceSize bytes)
{
    return bytes < shim.spec.heap ? bytes : shim.spec.heap;
}

static void claim_hardware(VkPhysicalDeviceProperties *p)
{
    p->deviceType = shim.spec.hardware ? VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU : p->deviceType;
}

EXPORT void VKAPI_CALL vkGetPhysicalDeviceProperties(VkPhysicalDevice physical, VkPhysicalDeviceProperties *ret)
{
    NEXT(vkGetPhysicalDeviceProperties)(physical, ret);
    claim_hardware(ret);
}

EXPORT void VKAPI_CALL vkGetPhysicalDeviceProperties2(VkPhysicalDevice physical, VkPhysicalDeviceProperties2 *ret)
{
    NEXT(vkGetPhysicalDeviceProperties2)(physical, ret);
    claim_hardware(&ret->properties);
}

EXPORT void VKAPI_CALL vkGetPhysicalDeviceMemoryProperties2(VkPhysicalDevice physical, VkPhysicalDeviceMemoryProperties2 *ret)
{
    NEXT(vkGetPhysicalDeviceMemoryProperties2)(physical, ret);
    for (uint32_t i = 0; i < ret->memoryProperties.memoryHeapCount; i++) {
        ret->memoryProperties.memoryHeaps[i].size = at_most(ret->memoryProperties.memoryHeaps[i].size);
    }
    for (VkBaseOutStructure *s = ret->pNext; s; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT) {
            VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget = (VkPhysicalDeviceMemoryBudgetPropertiesEXT *)s;
            for (uint32_t i = 0; i < VK_MAX_MEMORY_HEAPS; i++) {
                if (shim.spec.heap != UINT64_MAX) {
                    // A software device says of the whole machine's memory how much is in use: more than such a heap has.
                    budget->heapUsage[i] = 0;
                    budget->heapBudget[i] = at_most(budget->heapBudget[i]) / 8 * 7;
                }
            }
        }
    }
}

EXPORT void VKAPI_CALL vkDestroyBuffer(VkDevice device, VkBuffer buffer, const VkAllocationCallbacks *callbacks)
{
    must_not_hang(device, "vkDestroyBuffer");
    NEXT(vkDestroyBuffer)(device, buffer, callbacks);
}

EXPORT void VKAPI_CALL vkFreeCommandBuffers(VkDevice device, VkCommandPool pool, uint32_t n, const VkCommandBuffer *buffers)
{
    must_not_hang(device, "vkFreeCommandBuffers");
    NEXT(vkFreeCommandBuffers)(device, pool, n, buffers);
}

EXPORT void VKAPI_CALL vkDestroyQueryPool(VkDevice device, VkQueryPool pool, const VkAllocationCallbacks *callbacks)
{
    must_not_hang(device, "vkDestroyQueryPool");
    NEXT(vkDestroyQueryPool)(device, pool, callbacks);
}

/* ---- The pipeline cache ------------------------------------------------------------------------------------------------------------------- */

EXPORT VkResult VKAPI_CALL vkGetPipelineCacheData(VkDevice device, VkPipelineCache cache, size_t *bytes, void *data)
{
    VkResult result = NEXT(vkGetPipelineCacheData)(device, cache, bytes, data);
    if (shim.spec.cache_driver && data && *bytes >= sizeof(VkPipelineCacheHeaderVersionOne)) {
        ((uint8_t *)data)[8] ^= 0x55; // vendorID
        fprintf(stderr, "fault_shim: the driver's cache names another vendor\n");
    }
    return result;
}

EXPORT VkResult VKAPI_CALL vkCreatePipelineCache(VkDevice device, const VkPipelineCacheCreateInfo *info, const VkAllocationCallbacks *callbacks,
                                                 VkPipelineCache *ret)
{
    if ((shim.spec.cache_file || shim.spec.cache_driver) && info->initialDataSize > 0) {
        fprintf(stderr, "fault_shim: a damaged cache reached the driver\n");
        abort();
    }
    return NEXT(vkCreatePipelineCache)(device, info, callbacks, ret);
}

static void turn_a_byte(const char *path)
{
    FILE *file = fopen(path, "r+b");
    if (!file) {
        return;
    }
    fseek(file, 0, SEEK_END);
    long at = ftell(file) / 2;
    fseek(file, at, SEEK_SET);
    int c = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(c ^ 0x10, file);
    fclose(file);
    fprintf(stderr, "fault_shim: a byte of the pipeline cache is turned\n");
}

EXPORT int rename(const char *from, const char *to)
{
    size_t len = strlen(to);
    if (shim.spec.cache_file && len > 10 && strcmp(to + len - 10, ".pipelines") == 0) {
        turn_a_byte(from);
    }
    int (*real)(const char *, const char *);
    void (*function)(void) = next("rename");
    memcpy(&real, &function, sizeof real);
    return real(from, to);
}
