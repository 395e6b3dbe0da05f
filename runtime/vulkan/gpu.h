/* The Vulkan backend: rn_vulkan_backend interprets a model's program with compute shaders; what devices there are. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/backend.h"

extern const struct rn_backend_ops rn_vulkan_backend;

#define RN_GPU_TEXT 160

struct rn_gpu_info {            /* one physical device, as `runnel doctor` shows it */
    uint32_t index;             /* of --device vulkan:INDEX */
    char name[RN_GPU_TEXT];     /* "NVIDIA GeForce RTX 3060" */
    char driver[RN_GPU_TEXT];   /* driver's name and version */
    char features[RN_GPU_TEXT]; /* optional ones in use, comma-separated: "integer-dot,storage8,subgroup,coopmat" */
    char refused[RN_GPU_TEXT];  /* why it cannot be used; "" = it can */
    bool is_cpu;                /* a software device: only taken when named */
    bool integrated;            /* shares the machine's memory */
    uint64_t memory, budget;    /* bytes of its largest device-local heap; what of it may be used now */
};

/* Lists all devices in Vulkan's order; *ret_n of them, freed by rn_gpu_list_free. -ENOTSUP: no loader, no driver (named, with what is
 * missing: package, group of /dev/dri). mask: features to hide, see rn_backend_params. */
int rn_gpu_list(struct rn_gpu_info **ret, size_t *ret_n, const char *mask, struct rn_err *err);
void rn_gpu_list_free(struct rn_gpu_info *list);

/* The first usable device of a list that a selector means: "" = any but a software device, INDEX, or a part of a NAME in any case. skip: bits of
 * devices (by index) to pass over. Borrowed. -ENODEV: there is none, and why each is not it. */
int rn_gpu_select(const struct rn_gpu_info **ret, const struct rn_gpu_info *list, size_t n, const char *selector, uint64_t skip, struct rn_err *err);

/* 0, or -EACCES: this process may not open a GPU's device node; the error names it, and the group that is missing. A GPU without rights
 * is not in the list above. */
int rn_gpu_rights(struct rn_err *err);
