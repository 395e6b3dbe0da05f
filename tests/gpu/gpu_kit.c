#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/base/err.h"
#include "tests/gpu/gpu_kit.h"

static const struct rn_gpu_info *first_fit(const struct rn_gpu_info *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!list[i].refused[0]) {
            return &list[i];
        }
        print_message("'%s' is refused: %s\n", list[i].name, list[i].refused);
    }
    return NULL;
}

const struct rn_gpu_info *gpu_kit_device(void)
{
    static struct rn_gpu_info found;
    if (found.name[0]) {
        return &found;
    }
    struct rn_err err = {0};
    struct rn_gpu_info *list = NULL;
    const struct rn_gpu_info *gpu = NULL;
    size_t n = 0;
    if (rn_gpu_list(&list, &n, NULL, &err) != 0) {
        print_message("no Vulkan device: %s\n", err.text);
        return NULL;
    }
    const char *named = getenv("RUNNEL_TEST_GPU");
    if (!named || !named[0]) {
        gpu = first_fit(list, n);
    } else if (rn_gpu_select(&gpu, list, n, named, /*skip=*/0, &err) != 0) {
        rn_gpu_list_free(list);
        fail_msg("%s", err.text);
    }
    found = gpu ? *gpu : found;
    rn_gpu_list_free(list);
    return gpu ? &found : NULL;
}

struct rn_vk_device *gpu_kit_open(const char *mask, const char *cache_dir)
{
    const struct rn_gpu_info *gpu = gpu_kit_device();
    if (!gpu) {
        skip();
    }
    struct rn_err err = {0};
    struct rn_vk_device *d = NULL;
    if (rn_vk_device_open(&d, gpu->index, mask, cache_dir, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return d;
}

bool gpu_kit_keeps_pipelines(struct rn_vk_device *d)
{
    uint8_t bytes[4096]; // more than the cache of a new device has
    size_t n = sizeof bytes;
    return vkGetPipelineCacheData(d->device, d->pipeline_cache, &n, bytes) >= 0 && n >= sizeof(VkPipelineCacheHeaderVersionOne);
}
