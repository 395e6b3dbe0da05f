/* runnel bench: tokens per second of prefill and decode at given depths, beside what this machine can do at best in the same minute.
 *
 * Each repetition starts from a fresh sequence that holds exactly `depth` tokens (a fork of one that was filled once). Decode is one
 * token per step with its logits; prefill is steps of STEP tokens with the logits of the last token. Bytes of a step: all weights once,
 * and the KV of what its rows see, once; multiply-adds: matrices and attention. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/model.h"
#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/engine.h"
#include "session/rope_words.h"

#define STEP 256 // rows of a prefill step: the most that the engine runs in one pass
#define PAGE 64  // tokens of a KV page
#define MIN_WINDOW 16
#define SINKS 4 // what a session without messages gets
#define WARM_TOKENS 32

struct args {
    struct rn_model_args model;
    uint32_t prefill, decode, repetitions;
    struct rn_numbers depths;
    bool json, by_operation;
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"-p", "P", RN_OPTION_U32, AT(prefill), "tokens of prefill; 0 leaves it out", .max = 1u << 24, .preset = "512"},
    {"-n", "N", RN_OPTION_U32, AT(decode), "tokens of decode; 0 leaves it out", .max = 1u << 24, .preset = "128"},
    {"-d", "A,B,..", RN_OPTION_NUMBERS, AT(depths), "tokens that are there before", .max = 1u << 24, .preset = "0,4096"},
    {"-r", "R", RN_OPTION_U32, AT(repetitions), "repetitions of each test", .min = 1, .max = 10000, .preset = "5"},
    {"--ops", NULL, RN_OPTION_FLAG, AT(by_operation), "also say where the time goes, by kind of operation (one more repetition)"},
    {"--json", NULL, RN_OPTION_FLAG, AT(json), "print one JSON object instead of a table"},
};

static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(options), 0},
    {"model", RN_OPTIONS(rn_model_options), AT(model)},
};

static const struct rn_option_set set = {
    .usage = "bench -m FILE [-p 512 -n 128 -d 0,4096 -r 5]",
    .about = "Measures prefill and decode. N is depth + max(P, N), at most the trained length.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof groups[0],
};

struct bench {
    struct rn_engine *engine;
    const struct rn_engine_info *info;
    const struct args *args;
    uint32_t *ids;   // [STEP], any tokens will do
    float *logits;   // [n_vocab]
    double kv_bytes; // per token that a row sees
    double read_gb_per_s, int8_tops;
};

struct result {
    const char *test;
    uint32_t tokens;
    uint64_t depth;
    double tokens_per_s, stdev, gb_per_s, gmac_per_s, share;
    struct rn_engine_cost costs[RN_ENGINE_COSTS]; // of one repetition, with --ops
    size_t n_costs;
    struct rn_engine_host_cost host; // of all repetitions
    bool has_host;
};

/* ---- Feeding ----------------------------------------------------------------------------------------------------------------------- */

static int step(struct bench *b, struct rn_seq *s, uint32_t n_ids, bool with_logits, struct rn_err *err)
{
    struct rn_step_entry entry = {.seq = s, .ids = b->ids, .n_ids = n_ids, .n_logits = with_logits, .logits = b->logits};
    int r = rn_engine_step(b->engine, &entry, 1, err);
    if (r == 0) {
        rn_seq_accept(s, rn_seq_head(s));
    }
    return r;
}

static int feed(struct bench *b, struct rn_seq *s, uint64_t n, struct rn_err *err)
{
    int r = 0;
    while (r == 0 && n > 0) {
        uint32_t rows = n < STEP ? (uint32_t)n : STEP;
        n -= rows;
        r = step(b, s, rows, n == 0, err);
    }
    return r;
}

static int decode(struct bench *b, struct rn_seq *s, uint32_t n, struct rn_err *err)
{
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        r = step(b, s, 1, true, err);
    }
    return r;
}

static uint32_t window_of(const struct bench *b, uint64_t depth)
{
    uint64_t more = b->args->prefill > b->args->decode ? b->args->prefill : b->args->decode;
    uint64_t n = depth + more < MIN_WINDOW ? MIN_WINDOW : depth + more;
    uint32_t most = rn_rope_max_n(b->args->model.rope, b->info->n_ctx_train);
    return n < most ? (uint32_t)n : most;
}

static int make_sequence(struct bench *b, uint32_t n, struct rn_seq **ret, struct rn_err *err)
{
    struct rn_seq_params params = {.n = n, .sinks = SINKS < n / 4 ? SINKS : n / 4, .evict = RN_EVICT_TOKEN,
                                   .rope = rn_rope_for(b->args->model.rope, n, b->info->n_ctx_train)};
    return rn_seq_create(ret, b->engine, &params, err);
}

/* ---- Preparing --------------------------------------------------------------------------------------------------------------------- */

/* One prefill that is not counted, as llama-bench does: buffers and pages of that size have been touched then. */
static int warm_prefill(struct bench *b, struct rn_err *err)
{
    struct rn_seq *s = NULL;
    int r = make_sequence(b, window_of(b, 0), &s, err);
    r = r < 0 ? r : feed(b, s, b->args->prefill, err);
    rn_seq_destroy(s);
    return r;
}

/* Everything is touched once; two lengths a page apart tell what a token's KV takes. */
static int warm_up(struct bench *b, struct rn_err *err)
{
    uint32_t n = b->info->n_ctx_train < 4 * PAGE ? b->info->n_ctx_train : 4 * PAGE;
    struct rn_seq *s = NULL;
    int r = make_sequence(b, n, &s, err);
    if (r == 0 && n >= SINKS + 2 * PAGE) {
        r = feed(b, s, SINKS + PAGE, err);
        size_t before = rn_seq_bytes(s);
        r = r < 0 ? r : feed(b, s, PAGE, err);
        b->kv_bytes = (double)(rn_seq_bytes(s) - before) / PAGE;
    }
    r = r < 0 ? r : decode(b, s, WARM_TOKENS, err);
    rn_seq_destroy(s);
    return r < 0 || !b->args->prefill ? r : warm_prefill(b, err);
}

static void measure_machine(struct bench *b)
{
    double read, tops;
    rn_engine_measure(b->engine, &read, &tops);
    b->read_gb_per_s = read > b->read_gb_per_s ? read : b->read_gb_per_s; // the best of before and after
    b->int8_tops = tops > b->int8_tops ? tops : b->int8_tops;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------------------------- */

/* Tokens that the rows depth .. depth + n - 1 see, summed. */
static double seen(uint64_t depth, uint32_t n, uint32_t window)
{
    double sum = 0;
    for (uint64_t t = depth; t < depth + n; t++) {
        sum += (double)(t + 1 < window ? t + 1 : window);
    }
    return sum;
}

static void fill_rates(const struct bench *b, struct result *res, bool is_decode)
{
    uint32_t n = res->tokens, window = window_of(b, res->depth);
    double steps = is_decode ? n : (n + STEP - 1) / STEP, rows_with_logits = is_decode ? n : 1, kv_cells = 0;
    if (is_decode) {
        kv_cells = seen(res->depth, n, window);
    } else {
        for (uint32_t at = 0; at < n; at += STEP) { // the last row of a step sees what its step reads
            kv_cells += seen(res->depth + (n - at < STEP ? n : at + STEP) - 1, 1, window);
        }
    }
    double bytes = steps * (double)b->info->weight_bytes + kv_cells * b->kv_bytes;
    double macs = n * (b->info->macs_per_token - b->info->logits_macs) + rows_with_logits * b->info->logits_macs +
                  seen(res->depth, n, window) * b->info->attention_macs;
    double seconds = n / res->tokens_per_s;
    res->gb_per_s = bytes / seconds / 1e9;
    res->gmac_per_s = macs / seconds / 1e9;
    res->share = is_decode ? res->gb_per_s / b->read_gb_per_s : 2 * res->gmac_per_s / 1e3 / b->int8_tops; // an operation is half a MAC
}

/* One run of a test from a sequence that holds its depth; *ret_ms without the making of that. */
static int once(struct bench *b, const struct rn_seq *filled, bool is_decode, uint32_t n, uint64_t depth, double *ret_ms, struct rn_err *err)
{
    struct rn_seq *s = NULL;
    int r = depth ? rn_seq_fork(&s, filled, depth, err) : make_sequence(b, window_of(b, 0), &s, err);
    uint64_t from = rn_clock_ns();
    r = r < 0 ? r : is_decode ? decode(b, s, n, err) : feed(b, s, n, err);
    *ret_ms = rn_clock_ms(from, rn_clock_ns());
    rn_seq_destroy(s);
    return r;
}

static int repeat(struct bench *b, const struct rn_seq *filled, bool is_decode, uint32_t n, struct result *ret, struct rn_err *err)
{
    double sum = 0, squares = 0, ms;
    struct rn_engine_host_cost before = {0};
    ret->has_host = rn_engine_host_cost(b->engine, &before);
    for (uint32_t i = 0; i < b->args->repetitions; i++) {
        int r = once(b, filled, is_decode, n, ret->depth, &ms, err);
        if (r < 0) {
            return r;
        }
        double rate = n / (ms / 1e3);
        sum += rate;
        squares += rate * rate;
    }
    if (ret->has_host && rn_engine_host_cost(b->engine, &ret->host)) {
        ret->host.steps -= before.steps;
        ret->host.calls -= before.calls;
        ret->host.dispatches -= before.dispatches;
        ret->host.ns -= before.ns;
    }
    if (b->args->by_operation) {
        rn_engine_profile(b->engine, true);
        int r = once(b, filled, is_decode, n, ret->depth, &ms, err);
        rn_engine_profile(b->engine, false);
        if (r < 0) {
            return r;
        }
        ret->n_costs = rn_engine_costs(b->engine, ret->costs);
    }
    double count = b->args->repetitions, mean = sum / count;
    ret->test = is_decode ? "decode" : "prefill";
    ret->tokens = n;
    ret->tokens_per_s = mean;
    ret->stdev = count > 1 ? sqrt(fmax(0, (squares - count * mean * mean) / (count - 1))) : 0;
    return 0;
}

static int measure_depth(struct bench *b, uint64_t depth, struct result *results, size_t *n_results, struct rn_err *err)
{
    struct rn_seq *filled = NULL;
    int r = make_sequence(b, window_of(b, depth), &filled, err);
    r = r < 0 ? r : feed(b, filled, depth, err);
    const uint32_t tokens[2] = {b->args->prefill, b->args->decode};
    for (int is_decode = 0; r == 0 && is_decode < 2; is_decode++) {
        struct result *res = &results[*n_results];
        if (tokens[is_decode] == 0) {
            continue;
        }
        *res = (struct result){.depth = depth};
        r = repeat(b, filled, is_decode, tokens[is_decode], res, err);
        *n_results += r == 0;
    }
    rn_seq_destroy(filled);
    return r;
}

/* ---- Printing ---------------------------------------------------------------------------------------------------------------------- */

static double rounded(double x)
{
    return round(x * 1e4) / 1e4;
}

/* The limits measured are the CPU's: what runs elsewhere has no share of them. */
static json_t *share_json(const struct bench *b, double share)
{
    return b->info->on_cpu ? json_real(rounded(share)) : json_null();
}

/* A kind's share of the limit that its test runs into. */
static double cost_share(const struct bench *b, const struct result *x, const struct rn_engine_cost *cost)
{
    double s = cost->ms / 1e3;
    return x->test[0] == 'd' ? cost->bytes / s / 1e9 / b->read_gb_per_s : 2 * cost->macs / s / 1e12 / b->int8_tops;
}

static json_t *costs_json(const struct bench *b, const struct result *x)
{
    json_t *list = json_array();
    int r = 0;
    for (size_t i = 0; i < x->n_costs; i++) {
        const struct rn_engine_cost *k = &x->costs[i];
        r |= json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:o}", "op", k->op, "ms", rounded(k->ms), "gb_per_s",
                                                   rounded(k->bytes / k->ms / 1e6), "gmac_per_s", rounded(k->macs / k->ms / 1e6), "share",
                                                   share_json(b, cost_share(b, x, k))));
    }
    if (r != 0) {
        json_decref(list);
        return NULL;
    }
    return list;
}

static void print_costs(const struct bench *b, const struct result *x)
{
    double total = 0;
    for (size_t i = 0; i < x->n_costs; i++) {
        total += x->costs[i].ms;
    }
    for (size_t i = 0; i < x->n_costs; i++) {
        const struct rn_engine_cost *k = &x->costs[i];
        printf("  %-12s %10.3f ms %5.1f %% of the time %15.2f %9.2f", k->op, k->ms, 100 * k->ms / total, k->bytes / k->ms / 1e6,
               k->macs / k->ms / 1e6);
        if (b->info->on_cpu) {
            printf("  %.0f %%", 100 * cost_share(b, x, k));
        }
        putchar('\n');
    }
}

static json_t *to_json(const struct bench *b, const struct result *results, size_t n)
{
    json_t *rows = json_object(), *list = json_array();
    int r = 0;
    for (size_t i = 0; i < b->info->n_kernels; i++) {
        r |= json_object_set_new(rows, b->info->kernels[i].op, json_string(b->info->kernels[i].row));
    }
    for (size_t i = 0; i < n; i++) {
        const struct result *x = &results[i];
        r |= json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "test", x->test, "tokens",
                                                   (json_int_t)x->tokens, "depth", (json_int_t)x->depth, "tokens_per_s",
                                                   rounded(x->tokens_per_s), "stdev", rounded(x->stdev), "gb_per_s", rounded(x->gb_per_s),
                                                   "gmac_per_s", rounded(x->gmac_per_s), "share", share_json(b, x->share)));
        if (b->args->by_operation) {
            r |= json_object_set_new(json_array_get(list, i), "ops", costs_json(b, x));
        }
        if (x->has_host && x->host.steps) {
            double steps = (double)x->host.steps;
            r |= json_object_set_new(json_array_get(list, i), "host",
                                     json_pack("{s:f, s:f, s:f}", "calls_per_step", rounded((double)x->host.calls / steps), "us_per_step",
                                               rounded(x->host.ns / steps / 1e3), "dispatches_per_step",
                                               rounded((double)x->host.dispatches / steps)));
        }
    }
    json_t *v = json_pack("{s:s, s:I, s:s, s:o, s:f, s:f, s:o}", "model", b->info->model_id, "threads", (json_int_t)b->info->n_threads,
                          "kv", b->info->kv, "rows", rows, "read_gb_per_s", rounded(b->read_gb_per_s), "int8_tops", rounded(b->int8_tops),
                          "results", list);
    if (!b->info->on_cpu) {
        r |= json_object_set_new(v, "device", json_string(b->info->device));
    }
    if (r != 0) {
        json_decref(v);
        return NULL;
    }
    return v;
}

static int print_table(const struct bench *b, const struct result *results, size_t n)
{
    printf("%s, %.1f M parameters, %.1f MB of weights, %s, KV %s\n", b->info->model_id, (double)b->info->n_params / 1e6,
           (double)b->info->weight_bytes / 1e6, b->info->device, b->info->kv);
    printf("this machine's CPU now: reads %.1f GB/s, int8 peak %.2f tera operations/s\n\n", b->read_gb_per_s, b->int8_tops);
    printf("%-8s %7s %7s %21s %9s %9s  %s\n", "test", "tokens", "depth", "tokens/s", "GB/s", "GMAC/s", b->info->on_cpu ? "share" : "");
    for (size_t i = 0; i < n; i++) {
        const struct result *x = &results[i];
        printf("%-8s %7u %7llu %12.2f ± %6.2f %9.2f %9.2f", x->test, x->tokens, (unsigned long long)x->depth, x->tokens_per_s, x->stdev,
               x->gb_per_s, x->gmac_per_s);
        if (b->info->on_cpu) {
            printf("  %.0f %% of %s", 100 * x->share, x->test[0] == 'd' ? "the read bandwidth" : "the integer peak");
        }
        putchar('\n');
        if (x->has_host && x->host.steps) {
            double steps = (double)x->host.steps;
            printf("  on the host  %10.1f µs and %.1f calls per step, %.0f dispatches\n", x->host.ns / steps / 1e3, (double)x->host.calls / steps,
                   (double)x->host.dispatches / steps);
        }
        print_costs(b, x);
    }
    printf("\nkernels:");
    for (size_t i = 0; i < b->info->n_kernels; i++) {
        printf(" %s=%s", b->info->kernels[i].op, b->info->kernels[i].row);
    }
    putchar('\n');
    return rn_cli_flush();
}

/* ---- The verb ---------------------------------------------------------------------------------------------------------------------- */

static int prepare(struct bench *b, struct rn_err *err)
{
    b->ids = rn_mem_alloc(STEP, sizeof *b->ids);
    b->logits = rn_mem_alloc(b->info->n_vocab, sizeof *b->logits);
    if (!b->ids || !b->logits) {
        return rn_err_nomem(err, b->info->n_vocab * sizeof *b->logits, "logits");
    }
    for (uint32_t i = 0; i < STEP; i++) {
        b->ids[i] = (uint32_t)((i + 1) * 2654435761ull % b->info->n_vocab); // spread over the embedding, as text would be
    }
    for (size_t i = 0; i < b->args->depths.n; i++) {
        if (b->args->depths.data[i] > rn_rope_max_n(b->args->model.rope, b->info->n_ctx_train)) {
            return rn_err_set(err, -EINVAL, "-d has %llu, the model was trained for %u tokens (see --rope-scaling)",
                              (unsigned long long)b->args->depths.data[i], b->info->n_ctx_train);
        }
    }
    return 0;
}

static int run(struct rn_engine *e, const void *args)
{
    const struct args *a = args;
    struct rn_err err = {0};
    struct bench b = {.engine = e, .info = rn_engine_info(e), .args = a};
    struct result *results = rn_mem_alloc(2 * a->depths.n, sizeof *results);
    size_t n = 0;
    int r = results ? prepare(&b, &err) : rn_err_nomem(&err, a->depths.n * sizeof *results, "results");
    bool usage = r == -EINVAL;
    r = r < 0 ? r : warm_up(&b, &err);
    if (r == 0) {
        measure_machine(&b);
    }
    for (size_t i = 0; r == 0 && i < a->depths.n; i++) {
        r = measure_depth(&b, a->depths.data[i], results, &n, &err);
    }
    int code = RN_CLI_OK;
    if (r == 0) {
        measure_machine(&b);
        for (size_t i = 0; i < n; i++) {
            fill_rates(&b, &results[i], results[i].test[0] == 'd');
        }
        code = a->json ? rn_cli_print_json(to_json(&b, results, n)) : print_table(&b, results, n);
    }
    rn_mem_free(b.ids);
    rn_mem_free(b.logits);
    rn_mem_free(results);
    if (r < 0) {
        return usage ? rn_cli_fail(RN_CLI_USAGE, &err) : rn_cli_fail_work(&err);
    }
    return code;
}

static const struct rn_model_verb verb = {&set, AT(model), /*check=*/NULL, run};

int rn_verb_bench(int argc, char *const *argv)
{
    struct args args = {0};
    return rn_model_verb_run(&verb, &args, argc, argv);
}
