/* Which device of a list a selector means: the part behind "vulkan:" in --device. Pure; built without Vulkan too. Thread: any. */
#include "runtime/vulkan/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/err.h"

static bool contains(const char *text, const char *part)
{
    size_t len = strlen(part);
    for (; strlen(text) >= len; text++) {
        if (strncasecmp(text, part, len) == 0) {
            return true;
        }
    }
    return false;
}

static bool fits(const struct rn_gpu_info *gpu, const char *selector)
{
    if (!selector[0]) {
        return !gpu->is_cpu;
    }
    bool is_index = strspn(selector, "0123456789") == strlen(selector);
    return is_index ? strtoul(selector, NULL, 10) == gpu->index : contains(gpu->name, selector);
}

static bool is_skipped(const struct rn_gpu_info *gpu, uint64_t skip)
{
    return gpu->index < 64 && (skip >> gpu->index & 1);
}

/* "0 'llvmpipe': a software device, taken only when named; 1 'X': …" */
static void list_reasons(const struct rn_gpu_info *list, size_t n, const char *selector, uint64_t skip, char *ret, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < n && at < size; i++) {
        const struct rn_gpu_info *gpu = &list[i];
        const char *why = gpu->refused[0]               ? gpu->refused
                          : gpu->is_cpu && !selector[0] ? "a software device, taken only when named"
                          : is_skipped(gpu, skip)       ? "tried already"
                                                        : "usable";
        int len = snprintf(ret + at, size - at, "%s%u '%s': %s", i ? "; " : "", gpu->index, gpu->name, why);
        at += len > 0 ? (size_t)len : 0;
    }
}

int rn_gpu_select(const struct rn_gpu_info **ret, const struct rn_gpu_info *list, size_t n, const char *selector, uint64_t skip, struct rn_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (fits(&list[i], selector) && !list[i].refused[0] && !is_skipped(&list[i], skip)) {
            *ret = &list[i];
            return 0;
        }
    }
    char reasons[400] = "there is none";
    list_reasons(list, n, selector, skip, reasons, sizeof reasons);
    return selector[0] ? rn_err_set(err, -ENODEV, "no usable Vulkan device '%s' (%s)", selector, reasons)
                       : rn_err_set(err, -ENODEV, "no usable GPU (%s)", reasons);
}
