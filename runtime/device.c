/* Choosing a device. "auto" takes the first GPU that can be used, never a software device, and says in a note what it did; what is named is
 * taken or refused, never replaced. */
#include "runtime/device_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
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

static bool contains(const char *text, const char *part)
{
    for (; *text; text++) {
        size_t i = 0;
        while (part[i] && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i])) {
            i++;
        }
        if (!part[i]) {
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
    char *end;
    unsigned long index = strtoul(selector, &end, 10);
    bool is_index = isdigit((unsigned char)selector[0]) && !*end;
    return is_index ? gpu->index == index : contains(gpu->name, selector);
}

/* "0 'llvmpipe' is a software device, taken only when named; 1 'X' …" */
static void list_reasons(const struct rn_gpu_info *list, size_t n, const char *selector, char *ret, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < n && at < size; i++) {
        const struct rn_gpu_info *gpu = &list[i];
        const char *why = gpu->refused[0] ? gpu->refused : gpu->is_cpu && !selector[0] ? "a software device, taken only when named" : "usable";
        int len = snprintf(ret + at, size - at, "%s%u '%s': %s", i ? "; " : "", gpu->index, gpu->name, why);
        at += len > 0 ? (size_t)len : 0;
    }
}

const struct rn_gpu_info *rn_device_pick(const struct rn_gpu_info *list, size_t n, const char *selector, uint64_t skip, struct rn_err *err)
{
    for (size_t i = 0; i < n; i++) {
        bool skipped = list[i].index < 64 && (skip >> list[i].index & 1);
        if (fits(&list[i], selector) && !list[i].refused[0] && !skipped) {
            return &list[i];
        }
    }
    char reasons[400] = "there is none";
    list_reasons(list, n, selector, reasons, sizeof reasons);
    if (selector[0]) {
        (void)rn_err_set(err, -ENODEV, "no usable Vulkan device '%s' (%s)", selector, reasons);
    } else {
        (void)rn_err_set(err, -ENODEV, "no usable GPU (%s)", reasons);
    }
    return NULL;
}

void rn_device_take_cpu(struct rn_device *d, const char *why)
{
    *d = (struct rn_device){.ops = &rn_cpu_backend, .by_auto = true, .told = true};
    snprintf(d->note, sizeof d->note, "auto: cpu, %s", why);
}

#if RN_HAVE_VULKAN

int rn_device_list(struct rn_gpu_info **ret, size_t *ret_n, const char *gpu_mask, struct rn_err *err)
{
    return rn_gpu_list(ret, ret_n, gpu_mask, err);
}

void rn_device_list_free(struct rn_gpu_info *list)
{
    rn_gpu_list_free(list);
}

int rn_device_rights(struct rn_err *err)
{
    return rn_gpu_rights(err);
}

static const struct rn_backend_ops *const gpu_backend = &rn_vulkan_backend;

#else

int rn_device_list(struct rn_gpu_info **ret, size_t *ret_n, const char *gpu_mask, struct rn_err *err)
{
    (void)ret;
    (void)ret_n;
    (void)gpu_mask;
    return rn_err_set(err, -ENOTSUP, "this build has no Vulkan (meson option 'vulkan')");
}

void rn_device_list_free(struct rn_gpu_info *list)
{
    (void)list;
}

int rn_device_rights(struct rn_err *err)
{
    (void)err;
    return 0;
}

static const struct rn_backend_ops *const gpu_backend = NULL;

#endif

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
    size_t n = 0;
    int r = rn_device_list(&list, &n, mask, err);
    if (r < 0) {
        return r;
    }
    const struct rn_gpu_info *gpu = rn_device_pick(list, n, selector, skip, err);
    if (gpu) {
        *ret = (struct rn_device){.ops = gpu_backend, .index = gpu->index, .budget = gpu->budget, .shares_memory = gpu->integrated || gpu->is_cpu};
        snprintf(ret->gpu, sizeof ret->gpu, "%u", gpu->index);
        snprintf(ret->name, sizeof ret->name, "%.*s", (int)sizeof ret->name - 1, gpu->name);
        snprintf(ret->driver, sizeof ret->driver, "%.*s", (int)sizeof ret->driver - 1, gpu->driver);
    }
    *ret_refused = !gpu && has_hardware(list, n);
    rn_device_list_free(list);
    return gpu ? 0 : -ENODEV;
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
        return r < 0 ? rn_err_set(err, r, "device '%s': %s", device, why.text) : 0;
    }
    if (r < 0) {
        bool barred = rn_device_rights(&rights) < 0;
        rn_device_take_cpu(ret, barred ? rights.text : why.text);
        ret->told = barred || refused;
        return 0;
    }
    ret->by_auto = ret->told = true;
    snprintf(ret->note, sizeof ret->note, "auto: %s", ret->name);
    return 0;
}
