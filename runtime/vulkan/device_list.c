/* What devices there are. The instance asks for Vulkan 1.2. Nothing here keeps state. Thread: any, one instance each. */
#include "runtime/vulkan/device_internal.h"

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define MAX_DEVICES 64

static int no_device(const char *what, struct rn_err *err)
{
    struct rn_err rights = {0};
    if (rn_gpu_rights(&rights) != 0) {
        return rn_err_set(err, -ENOTSUP, "%s: %s", what, rights.text);
    }
    return rn_err_set(err, -ENOTSUP, "%s (a GPU needs its Vulkan driver: Debian package mesa-vulkan-drivers, or the vendor's)", what);
}

int rn_vk_instance_create(VkInstance *ret, struct rn_err *err)
{
    const VkApplicationInfo application = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pApplicationName = "runnel", .pEngineName = "runnel", .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    uint32_t version = VK_API_VERSION_1_0;
    VkResult result = vkEnumerateInstanceVersion(&version);
    if (result == VK_SUCCESS && version < VK_API_VERSION_1_1) {
        return rn_err_set(err, -ENOTSUP, "the Vulkan loader is older than Vulkan 1.1");
    }
    VkInstance instance = VK_NULL_HANDLE;
    result = vkCreateInstance(&info, NULL, &instance);
    if (result == VK_ERROR_OUT_OF_HOST_MEMORY) {
        return rn_err_set(err, -ENOMEM, "out of memory for a Vulkan instance");
    }
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER) {
        return no_device("there is no Vulkan driver", err);
    }
    if (result != VK_SUCCESS) {
        return rn_err_set(err, -ENOTSUP, "vkCreateInstance: %s", rn_vk_result_name(result));
    }
    *ret = instance;
    return 0;
}

int rn_vk_probe_all(struct rn_vk_probe **ret, size_t *ret_n, VkInstance instance, uint32_t masked, struct rn_err *err)
{
    VkPhysicalDevice physical[MAX_DEVICES];
    uint32_t n = MAX_DEVICES;
    VkResult result = vkEnumeratePhysicalDevices(instance, &n, physical);
    if (result == VK_ERROR_INITIALIZATION_FAILED || (result >= 0 && n == 0)) {
        return no_device("there is no Vulkan device", err);
    }
    if (result < 0) {
        return rn_err_set(err, result == VK_ERROR_OUT_OF_HOST_MEMORY ? -ENOMEM : -ENOTSUP, "vkEnumeratePhysicalDevices: %s",
                          rn_vk_result_name(result));
    }
    struct rn_vk_probe *list = rn_mem_alloc(n, sizeof *list);
    if (!list) {
        return rn_err_nomem(err, n * sizeof *list, "the list of devices");
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i].physical = physical[i];
        list[i].info.index = i;
        int r = rn_vk_probe_one(&list[i], instance, masked, err);
        if (r != 0) {
            rn_mem_free(list);
            return r;
        }
    }
    *ret = list;
    *ret_n = n;
    return 0;
}

int rn_gpu_list(struct rn_gpu_info **ret, size_t *ret_n, const char *mask, struct rn_err *err)
{
    uint32_t masked;
    VkInstance instance = VK_NULL_HANDLE;
    struct rn_vk_probe *probes = NULL;
    struct rn_gpu_info *list = NULL;
    size_t n = 0;
    int r = rn_vk_mask_parse(&masked, mask, err);
    if (r == 0) {
        r = rn_vk_instance_create(&instance, err);
    }
    if (r != 0) {
        return r;
    }
    r = rn_vk_probe_all(&probes, &n, instance, masked, err);
    if (r != 0) {
        goto done;
    }
    list = rn_mem_alloc(n, sizeof *list);
    if (!list) {
        r = rn_err_nomem(err, n * sizeof *list, "the list of devices");
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        list[i] = probes[i].info;
    }
    *ret = list;
    *ret_n = n;
done:
    rn_mem_free(probes);
    vkDestroyInstance(instance, NULL);
    return r;
}

void rn_gpu_list_free(struct rn_gpu_info *list)
{
    rn_mem_free(list);
}
