/* Options that verbs share, and what follows from them: the model, the window, the sampler. */
#pragma once

#include <stdint.h>

#include "daemon/cli/options.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"

struct rn_err;

struct rn_model_args {
    const char *model;
    uint32_t threads;
    const char *cpu_mask, *kv, *rope_scaling;
    const char *device, *gpu_layers, *gpu_mask, *cache_dir;
};
extern const struct rn_option rn_model_options[9];

/* Loads the model; a load of more than a second shows its progress on standard error. -EINVAL when none was named. */
int rn_model_open(struct rn_engine **ret, const struct rn_model_args *args, struct rn_err *err);
/* -EINVAL: -m was not given. */
int rn_model_check(const char *model, struct rn_err *err);

/* --rope-scaling. -EINVAL: it is none. */
int rn_model_rope(const struct rn_model_args *args, struct rn_rope_scaling *ret, struct rn_err *err);

struct rn_window_args {
    int64_t window, sinks; /* -1 = not given */
    const char *evict;
};
extern const struct rn_option rn_window_options[3];
enum rn_evict rn_window_evict(const struct rn_window_args *args);

struct rn_sampling_args {
    float temperature, top_p, min_p;
    uint32_t top_k;
    int64_t seed; /* -1 = not given */
    float repeat_penalty, frequency_penalty, presence_penalty;
    const char *logit_bias; /* "ID:VALUE,…"; NULL = not given */
};
extern const struct rn_option rn_sampling_options[9];
/* Reads --logit-bias; *ret (owned, rn_mem_free) is NULL where there is none. -EINVAL: what is wrong with it; -ENOMEM. */
int rn_sampling_bias(const struct rn_sampling_args *args, struct rn_logit_bias **ret, size_t *ret_n, struct rn_err *err);
