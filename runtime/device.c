/* Choosing a device. "auto" takes the first GPU that can be used, never a software device, and says in a note what it did; what is named is
 * taken or refused, never replaced. What comes behind "vulkan:" is read by runtime/vulkan/gpu_select.c. */
#include "runtime/device_internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/cpu/cpu.h"
#include "runtime/vulkan/gpu.h"

enum kind { CPU, AUTO, VULKAN };

static int parse(const char *device, enum kind *ret, const char **ret_selector, struct rn_err *err)
{
    *ret_selector = "";
    if (!device || strcmp(device, "cpu") == 0) {
        *ret = CPU;
    } else if (strcmp(device, "auto") == 0) {
        *ret = AUTO;
    } else if (strcmp(device, "vulkan") == 0) {
        *ret = VULKAN;
    } else if (strncmp(device, "vulkan:", 7) == 0 && device[7]) {
        *ret = VULKAN;
        *ret_selector = device + 7;
    } else {
        return rn_err_set(err, -EINVAL, "device is '%s', known are auto, cpu, vulkan, vulkan:INDEX and vulkan:NAME", device);
    }
    return 0;
}

int rn_device_parse(const char *device, struct rn_err *err)
{
    enum kind kind;
    const char *selector;
    return parse(device, &kind, &selector, err);
}

void rn_device_take_cpu(struct rn_device *d, const char *why)
{
    *d = (struct rn_device){.ops = &rn_cpu_backend, .by_auto = true, .told = true};
    snprintf(d->note, sizeof d->note, "auto: cpu, %s", why);
}

static bool has_hardware(const struct rn_gpu_info *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!list[i].is_cpu) {
            return true;
        }
    }
    return false;
}

/* *ret_refused: there is a GPU, but none that can be used. */
static int choose_gpu(struct rn_device *ret, bool *ret_refused, const char *selector, const char *mask, uint64_t skip, struct rn_err *err)
{
    struct rn_gpu_info *list = NULL;
    const struct rn_gpu_info *gpu = NULL;
    size_t n = 0;
    int r = rn_gpu_list(&list, &n, mask, err);
    if (r < 0) {
        return r;
    }
    r = rn_gpu_select(&gpu, list, n, selector, skip, err);
    if (r == 0) {
        *ret = (struct rn_device){.ops = &rn_vulkan_backend, .is_gpu = true, .index = gpu->index, .budget = gpu->budget,
                                  .shares_memory = gpu->integrated || gpu->is_cpu};
        snprintf(ret->name, sizeof ret->name, "%.*s", (int)sizeof ret->name - 1, gpu->name);
        snprintf(ret->driver, sizeof ret->driver, "%.*s", (int)sizeof ret->driver - 1, gpu->driver);
    }
    *ret_refused = r < 0 && has_hardware(list, n);
    rn_gpu_list_free(list);
    return r;
}

int rn_device_choose(struct rn_device *ret, const char *device, const char *gpu_mask, uint64_t skip, struct rn_err *err)
{
    enum kind kind;
    const char *selector;
    int r = parse(device, &kind, &selector, err);
    if (r < 0) {
        return r;
    }
    if (kind == CPU) {
        *ret = (struct rn_device){.ops = &rn_cpu_backend};
        return 0;
    }
    struct rn_err why = {0}, rights = {0};
    bool refused = false;
    r = choose_gpu(ret, &refused, selector, gpu_mask, kind == AUTO ? skip : 0, &why);
    if (kind == VULKAN) {
        bool barred = r == -ENODEV && rn_gpu_rights(&rights) < 0;
        return r < 0 ? rn_err_set(err, r, "device '%s': %s%s%s", device, why.text, barred ? "; " : "", rights.text) : 0;
    }
    if (r < 0) {
        bool barred = rn_gpu_rights(&rights) < 0;
        rn_device_take_cpu(ret, barred ? rights.text : why.text);
        ret->told = barred || refused;
        return 0;
    }
    ret->by_auto = ret->told = true;
    snprintf(ret->note, sizeof ret->note, "auto: %s", ret->name);
    return 0;
}
