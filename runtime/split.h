/* A model on two devices: its first layers on one (the CPU), the last ones and the logits on another (the GPU).
 *
 * The program is cut between two layers, where only the residual stream X lives on, and each part runs on a backend of its own; X goes from
 * one to the other through host memory. Layer groups are divided first, so that every KV page belongs to one device. Private to runtime/. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/tensor/backend.h"

struct rn_device;
struct rn_err;

extern const struct rn_backend_ops rn_split_backend; /* load: NULL, see rn_split_load */

/* Divides the groups of a program that has no sequences yet: none then has layers on both sides of layer n_first. 0 or -ENOMEM. */
int rn_split_groups(struct rn_program *p, uint32_t n_first, struct rn_err *err);

struct rn_split_params {
    const struct rn_backend_ops *first, *last;
    uint32_t n_first;               /* layers of the first, 1 .. n_layers - 1; the program's groups are divided there */
};
/* As rn_backend_ops.load. -ENOTSUP: the program cannot be cut there. */
int rn_split_load(struct rn_backend **ret, const struct rn_program *p, const struct rn_split_params *split, const struct rn_backend_params *params,
                  struct rn_err *err);

/* What goes where: for the GPU (side 1) and what stays on the CPU (side 0). */
struct rn_split_side {
    uint32_t n_layers;
    uint64_t weights, kv_per_token, scratch; /* bytes */
};
struct rn_split_plan {
    struct rn_split_side sides[2];
    uint64_t kv_tokens;             /* tokens of KV that must fit beside the weights */
    uint64_t budget;                /* of the GPU */
};
/* gpu_layers: "auto" (NULL), or a number. -EINVAL: it is neither, or not within 1 .. n_layers. -ENOMEM: they, or with "auto" not even one
 * layer, do not fit: both numbers. Nothing is allocated. */
int rn_split_plan_make(struct rn_split_plan *ret, const struct rn_program *p, const char *gpu_layers, enum rn_kv_type kv, uint32_t n_ctx_train,
                       uint64_t budget, struct rn_err *err);
/* "layers 10 to 29 and the logits on 'X': …"; side 0: "" when everything is on the GPU. */
void rn_split_plan_say(const struct rn_split_plan *plan, int side, const char *gpu, char *ret, size_t size);
