#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/base/err.h"
#include "runtime/vulkan/gpu.h"
#include "tests/gpu/gpu_kit.h"

const char *gpu_kit_selector(void)
{
    static char index[16];
    const char *named = getenv("RUNNEL_TEST_GPU");
    if (named && named[0]) {
        return named;
    }
    if (index[0]) {
        return index;
    }
    struct rn_err err = {0};
    struct rn_gpu_info *list = NULL;
    size_t n = 0;
    if (rn_gpu_list(&list, &n, NULL, &err) != 0) {
        print_message("no Vulkan device: %s\n", err.text);
        return NULL;
    }
    for (size_t i = 0; i < n && !index[0]; i++) {
        if (!list[i].refused[0]) {
            snprintf(index, sizeof index, "%u", list[i].index);
        } else {
            print_message("'%s' is refused: %s\n", list[i].name, list[i].refused);
        }
    }
    rn_gpu_list_free(list);
    return index[0] ? index : NULL;
}

struct rn_vk_device *gpu_kit_open(const char *mask, const char *cache_dir)
{
    const char *selector = gpu_kit_selector();
    if (!selector) {
        skip();
    }
    struct rn_err err = {0};
    struct rn_vk_device *d = NULL;
    if (rn_vk_device_open(&d, selector, mask, cache_dir, &err) != 0) {
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
