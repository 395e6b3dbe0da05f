/* Options that verbs share, and what follows from them: the model, the window, the sampler; and the frame of a verb that loads a model. */
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
    struct rn_rope_scaling rope; /* what rope_scaling says; no option's field: rn_model_verb_run sets it */
};
extern const struct rn_option rn_model_options[9];

/* -EINVAL: -m was not given. */
int rn_model_check(const char *model, struct rn_err *err);

/* A verb that works with a loaded model. */
struct rn_model_verb {
    const struct rn_option_set *set;
    size_t model; /* offset of the struct rn_model_args in the verb's arguments */
    /* What is wrong with the command line, said before the model is loaded. NULL: nothing but what the options' rows say can be. */
    int (*check)(const void *args, struct rn_err *err);
    int (*work)(struct rn_engine *e, const void *args); /* returns an exit code */
};
/* Reads the command line, checks it, loads the model (which shows its progress on standard error when it takes more than a second), works
 * and frees. args: the verb's arguments, zeroed. Returns an exit code. */
int rn_model_verb_run(const struct rn_model_verb *verb, void *args, int argc, char *const *argv);

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
