/* Which device runs a model: what --device asks for, against what there is. Private to runtime/. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/err.h"
#include "runtime/tensor/backend.h"

struct rn_device {
    const struct rn_backend_ops *ops;
    bool by_auto;       /* "auto" decided: it may decide again, see rn_device_take_cpu */
    bool is_gpu;
    uint32_t index;     /* of the GPU: rn_backend_params.gpu */
    char name[128];     /* of the GPU */
    char driver[128];   /* and of its driver, with the version */
    uint64_t budget;    /* bytes that may be used on the GPU now */
    bool shares_memory; /* the GPU's memory is the machine's */
    bool told;          /* the note is of interest where nobody asked: a GPU is used, or one that is there is not */
    char note[RN_ERR_TEXT + 32]; /* what "auto" decided and why; "" where the device was named */
};

/* Does the text name a device at all? 0; -EINVAL. NULL is "cpu". */
int rn_device_parse(const char *device, struct rn_err *err);
/* skip: bits of devices (by index) that "auto" shall not take. 0; -EINVAL: the text names no device; -ENODEV: it is not there or not usable
 * (with the reasons); -ENOTSUP: this build or this machine has no Vulkan. "auto" always finds one: the CPU, if no GPU can be used. */
int rn_device_choose(struct rn_device *ret, const char *device, const char *gpu_mask, uint64_t skip, struct rn_err *err);
/* After "auto" chose a GPU and it could not be used, or should not: the CPU, and why (told). */
void rn_device_take_cpu(struct rn_device *d, const char *why);
