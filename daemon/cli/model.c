#include "daemon/cli/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"

#define MODEL(field) offsetof(struct rn_model_args, field)
#define WINDOW(field) offsetof(struct rn_window_args, field)
#define SAMPLING(field) offsetof(struct rn_sampling_args, field)

const struct rn_option rn_model_options[4] = {
    {"-m", "FILE", RN_OPTION_STRING, MODEL(model), "the model, a GGUF file"},
    {"--threads", "T", RN_OPTION_U32, MODEL(threads), "CPU threads; 0 = physical cores", .max = 1024, .preset = "0"},
    {"--cpu-mask", "ROWS", RN_OPTION_STRING, MODEL(cpu_mask), "kernel rows to hide, separated by commas"},
    {"--kv", "TYPE", RN_OPTION_CHOICE, MODEL(kv), "type of the KV cells", .choices = "q8_0|f16", .preset = "q8_0"},
};

const struct rn_option rn_window_options[3] = {
    {"--window", "N", RN_OPTION_I64, WINDOW(window), "tokens seen at once", .min = 16, .max = UINT32_MAX, .preset = "-"},
    {"--sinks", "S", RN_OPTION_I64, WINDOW(sinks), "pinned tokens, at most half of the window", .max = UINT32_MAX, .preset = "-"},
    {"--evict", "RULE", RN_OPTION_CHOICE, WINDOW(evict), "what leaves a full window first", .choices = "turn|token", .preset = "turn"},
};

const struct rn_option rn_sampling_options[5] = {
    {"--temp", "T", RN_OPTION_FLOAT, SAMPLING(temperature), "temperature; 0 = always the likeliest token", .f_max = 2, .preset = "0.7"},
    {"--top-k", "K", RN_OPTION_U32, SAMPLING(top_k), "only the K likeliest tokens; 0 = all", .max = 1u << 24, .preset = "0"},
    {"--top-p", "P", RN_OPTION_FLOAT, SAMPLING(top_p), "only the likeliest tokens with this share together", .f_max = 1, .above = true,
     .preset = "1"},
    {"--min-p", "P", RN_OPTION_FLOAT, SAMPLING(min_p), "only tokens with this share of the likeliest one's", .f_max = 1, .below = true,
     .preset = "0"},
    {"--seed", "SEED", RN_OPTION_I64, SAMPLING(seed), "of the random numbers; without it one is drawn", .max = RN_SEED_MAX, .preset = "-"},
};

enum rn_evict rn_window_evict(const struct rn_window_args *args)
{
    return strcmp(args->evict, "token") == 0 ? RN_EVICT_TOKEN : RN_EVICT_TURN;
}

int rn_model_check(const char *model, struct rn_err *err)
{
    return model ? 0 : rn_err_set(err, -EINVAL, "no model: say which with -m FILE");
}

struct progress {
    uint64_t since_ns;
    bool is_terminal, shown;
};

// One line: written over and over in a terminal, once elsewhere.
static void on_progress(void *user, double share)
{
    struct progress *p = user;
    if (rn_clock_ns() - p->since_ns < 1000000000u) {
        return;
    }
    if (p->is_terminal) {
        fprintf(stderr, "\rloading the model, %3.0f %%", share * 100);
    } else if (!p->shown) {
        fprintf(stderr, "loading the model\n");
    }
    p->shown = true;
}

int rn_model_open(struct rn_engine **ret, const struct rn_model_args *args, struct rn_err *err)
{
    struct progress progress = {.since_ns = rn_clock_ns(), .is_terminal = isatty(STDERR_FILENO)};
    struct rn_engine_params params = {.model = args->model,
                                      .n_threads = args->threads,
                                      .cpu_mask = args->cpu_mask,
                                      .kv = args->kv,
                                      .progress = on_progress,
                                      .user = &progress};
    int r = rn_engine_create(ret, &params, err);
    if (progress.shown && progress.is_terminal) {
        fprintf(stderr, "\r\033[K");
    }
    return r;
}
