#include "daemon/cli/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cli/cli.h"
#include "daemon/config.h"
#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "session/rope_words.h"

#define MODEL(field) offsetof(struct rn_model_args, field)
#define WINDOW(field) offsetof(struct rn_window_args, field)
#define SAMPLING(field) offsetof(struct rn_sampling_args, field)

const struct rn_option rn_model_options[9] = {
    {"-m", "FILE", RN_OPTION_STRING, MODEL(model), "the model, a GGUF file"},
    {"--threads", "T", RN_OPTION_U32, MODEL(threads), "CPU threads; 0 = physical cores", .max = 1024, .preset = "0"},
    {"--cpu-mask", "ROWS", RN_OPTION_STRING, MODEL(cpu_mask), "kernel rows to hide, separated by commas"},
    {"--kv", "TYPE", RN_OPTION_CHOICE, MODEL(kv), "type of the KV cells", .choices = "q8_0|f16", .preset = "q8_0"},
    {"--rope-scaling", "KIND", RN_OPTION_STRING, MODEL(rope_scaling),
     "to go beyond the trained length: linear or yarn, perhaps with :FACTOR, else N / trained length", .preset = "none"},
    {"--device", "DEVICE", RN_OPTION_STRING, MODEL(device), "auto, cpu, vulkan, vulkan:INDEX or vulkan:NAME (see runnel doctor)", .preset = "auto"},
    {"--gpu-layers", "N", RN_OPTION_STRING, MODEL(gpu_layers), "the model's last N layers on the GPU, the others on the CPU; auto = all that fit",
     .preset = "auto"},
    {"--gpu-mask", "FEATURES", RN_OPTION_STRING, MODEL(gpu_mask), "features of the GPU to leave unused, separated by commas"},
    {"--cache-dir", "DIR", RN_OPTION_STRING, MODEL(cache_dir),
     "compiled shaders (default: $CACHE_DIRECTORY, $XDG_CACHE_HOME/runnel, ~/.cache/runnel)"},
};

const struct rn_option rn_window_options[3] = {
    {"--window", "N", RN_OPTION_I64, WINDOW(window), "tokens seen at once", .min = 16, .max = UINT32_MAX, .preset = "-"},
    {"--sinks", "S", RN_OPTION_I64, WINDOW(sinks), "pinned tokens, at most half of the window", .max = UINT32_MAX, .preset = "-"},
    {"--evict", "RULE", RN_OPTION_CHOICE, WINDOW(evict), "what leaves a full window first", .choices = "turn|token", .preset = "turn"},
};

const struct rn_option rn_sampling_options[9] = {
    {"--temp", "T", RN_OPTION_FLOAT, SAMPLING(temperature), "temperature; 0 = always the likeliest token", .f_max = 2, .preset = "0.7"},
    {"--top-k", "K", RN_OPTION_U32, SAMPLING(top_k), "only the K likeliest tokens; 0 = all", .max = 1u << 24, .preset = "0"},
    {"--top-p", "P", RN_OPTION_FLOAT, SAMPLING(top_p), "only the likeliest tokens with this share together", .f_max = 1, .above = true,
     .preset = "1"},
    {"--min-p", "P", RN_OPTION_FLOAT, SAMPLING(min_p), "only tokens with this share of the likeliest one's", .f_max = 1, .below = true,
     .preset = "0"},
    {"--seed", "SEED", RN_OPTION_I64, SAMPLING(seed), "of the random numbers; without it one is drawn", .max = RN_SEED_MAX, .preset = "-"},
    {"--repeat-penalty", "R", RN_OPTION_FLOAT, SAMPLING(repeat_penalty), "against all tokens in view; 1 = none",
     .f_min = RN_REPEAT_PENALTY_MIN, .f_max = RN_REPEAT_PENALTY_MAX, .preset = "1"},
    {"--frequency-penalty", "F", RN_OPTION_FLOAT, SAMPLING(frequency_penalty), "against the answer's tokens, times how often they came",
     .f_min = -RN_PENALTY_LIMIT, .f_max = RN_PENALTY_LIMIT, .preset = "0"},
    {"--presence-penalty", "P", RN_OPTION_FLOAT, SAMPLING(presence_penalty), "against the answer's tokens", .f_min = -RN_PENALTY_LIMIT,
     .f_max = RN_PENALTY_LIMIT, .preset = "0"},
    {"--logit-bias", "ID:B,..", RN_OPTION_STRING, SAMPLING(logit_bias), "for (or, negative, against) tokens; -100 bans, 100 forces"},
};

/* One "ID:VALUE" at *text; moves it behind a comma or to the end. */
static bool read_bias(const char **text, struct rn_logit_bias *ret)
{
    char *end;
    const char *at = *text;
    if (*at < '0' || *at > '9') {
        return false;
    }
    errno = 0;
    unsigned long long id = strtoull(at, &end, 10);
    if (errno || id > UINT32_MAX || *end != ':') {
        return false;
    }
    at = end + 1;
    if (!strchr("-.0123456789", *at)) { // strtod would take blanks and words
        return false;
    }
    double x = strtod(at, &end);
    if (end == at || !(x >= -RN_LOGIT_BIAS_LIMIT && x <= RN_LOGIT_BIAS_LIMIT) || (*end && (*end != ',' || !end[1]))) {
        return false;
    }
    *ret = (struct rn_logit_bias){(uint32_t)id, (float)x};
    *text = *end ? end + 1 : end;
    return true;
}

static int read_biases(const char *text, struct rn_logit_bias *bias, size_t n, struct rn_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *at = text;
        if (!read_bias(&text, &bias[i])) {
            return rn_err_set(err, -EINVAL, "--logit-bias has '%.64s', expected ID:VALUE with a value from -%d to %d", at,
                              RN_LOGIT_BIAS_LIMIT, RN_LOGIT_BIAS_LIMIT);
        }
        for (size_t k = 0; k < i; k++) {
            if (bias[k].id == bias[i].id) {
                return rn_err_set(err, -EINVAL, "--logit-bias has the token id %u twice", bias[i].id);
            }
        }
    }
    return 0;
}

int rn_sampling_bias(const struct rn_sampling_args *args, struct rn_logit_bias **ret, size_t *ret_n, struct rn_err *err)
{
    size_t n = args->logit_bias != NULL;
    for (const char *c = args->logit_bias; c && *c; c++) {
        n += *c == ',';
    }
    if (n > RN_LOGIT_BIAS_MAX) {
        return rn_err_set(err, -EINVAL, "--logit-bias has %zu tokens, expected at most %d", n, RN_LOGIT_BIAS_MAX);
    }
    struct rn_logit_bias *bias = n ? rn_mem_alloc(n, sizeof *bias) : NULL;
    int r = n && !bias ? rn_err_nomem(err, n * sizeof *bias, "--logit-bias") : n ? read_biases(args->logit_bias, bias, n, err) : 0;
    if (r < 0) {
        rn_mem_free(bias);
        return r;
    }
    *ret = bias;
    *ret_n = n;
    return 0;
}

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

static void on_tell(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "runnel: %s\n", line);
}

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

static int open_model(struct rn_engine **ret, const struct rn_model_args *args, struct rn_err *err)
{
    struct progress progress = {.since_ns = rn_clock_ns(), .is_terminal = isatty(STDERR_FILENO)};
    char cache[512];
    rn_config_cache_dir(cache, sizeof cache);
    struct rn_engine_params params = {.model = args->model,
                                      .n_threads = args->threads,
                                      .cpu_mask = args->cpu_mask,
                                      .kv = args->kv,
                                      .device = args->device,
                                      .gpu_layers = args->gpu_layers,
                                      .gpu_mask = args->gpu_mask,
                                      .cache_dir = args->cache_dir ? args->cache_dir : cache,
                                      .tell = on_tell,
                                      .progress = on_progress,
                                      .user = &progress};
    int r = rn_engine_create(ret, &params, err);
    if (progress.shown && progress.is_terminal) {
        fprintf(stderr, "\r\033[K");
    }
    return r;
}

static int check(const struct rn_model_verb *verb, void *args, struct rn_model_args *model, struct rn_err *err)
{
    int r = rn_model_check(model->model, err);
    if (r == 0 && rn_rope_parse(model->rope_scaling, &model->rope, err) < 0) {
        r = rn_err_prefix(err, "--rope-scaling");
    }
    return r < 0 || !verb->check ? r : verb->check(args, err);
}

int rn_model_verb_run(const struct rn_model_verb *verb, void *args, int argc, char *const *argv)
{
    struct rn_model_args *model = (void *)((char *)args + verb->model);
    struct rn_engine *engine = NULL;
    struct rn_err err = {0};
    int code;
    if (!rn_cli_parse(verb->set, args, argc, argv, NULL, &code)) {
        return code;
    }
    if (check(verb, args, model, &err) < 0) {
        code = rn_cli_fail(RN_CLI_USAGE, &err);
    } else if (open_model(&engine, model, &err) < 0) {
        code = rn_cli_fail_input(&err);
    } else {
        code = verb->work(engine, args);
    }
    rn_engine_destroy(engine);
    rn_options_finish(verb->set, args);
    return code;
}
