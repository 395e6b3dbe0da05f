/* runnel eval: how well the model foresees a text: log-probability of each next token, perplexity, and when tokens left the window. */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/replay.h"
#include "runtime/base/err.h"
#include "runtime/sampler.h"

#define BLOCK 400 // tokens per block of perplexity

struct args {
    struct rn_model_args model;
    struct rn_replay_args replay;
    const char *ids_file, *text_file;
    bool json;
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"--ids-file", "FILE", RN_OPTION_STRING, AT(ids_file), "a JSON list of token ids; - = standard input"},
    {"-f", "FILE", RN_OPTION_STRING, AT(text_file), "a text instead; - = standard input"},
    {"--json", NULL, RN_OPTION_FLAG, AT(json), "print {\"logprob\", \"perplexity\", \"blocks\", \"evictions\"}"},
};

static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(options), 0},
    {"model", RN_OPTIONS(rn_model_options), AT(model)},
    {RN_REPLAY_WINDOW_TITLE, RN_OPTIONS(rn_window_options), AT(replay.window)},
    {"steps", RN_OPTIONS(rn_replay_options), AT(replay)},
};

static const struct rn_option_set set = {
    .usage = "eval -m FILE --ids-file FILE | -f FILE [--chunk C] [--window N --sinks S --evict turn|token --turn-starts A,B,…]",
    .about = "Log-probability of each next token and perplexity, in all and per 400 tokens.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof groups[0],
};

struct change { // base(t) is not base(t - 1)
    uint64_t t, base;
};

struct result {
    double *logprob; // [n_ids - 1]
    struct change *changes;
    size_t n_changes, cap_changes;
    uint64_t base;
};

static void result_finish(struct result *res)
{
    rn_mem_free(res->logprob);
    rn_mem_free(res->changes);
}

static int note_base(struct result *res, uint64_t t, uint64_t base, struct rn_err *err)
{
    if (base == res->base) {
        return 0;
    }
    if (res->n_changes == res->cap_changes) {
        size_t cap = res->cap_changes ? 2 * res->cap_changes : 64;
        struct change *grown = rn_mem_realloc(res->changes, cap, sizeof *grown);
        if (!grown) {
            return rn_err_nomem(err, cap * sizeof *grown, "evictions");
        }
        res->changes = grown;
        res->cap_changes = cap;
    }
    res->changes[res->n_changes++] = (struct change){t, base};
    res->base = base;
    return 0;
}

static int evaluate(struct rn_replay *replay, struct result *res, struct rn_err *err)
{
    const struct rn_ids *ids = replay->ids;
    res->base = replay->origin;
    res->logprob = rn_mem_alloc(ids->len, sizeof *res->logprob);
    if (!res->logprob) {
        return rn_err_nomem(err, ids->len * sizeof *res->logprob, "log-probabilities");
    }
    for (;;) {
        size_t from;
        uint32_t n;
        int r = rn_replay_next(replay, &from, &n, err);
        for (uint32_t i = 0; r == 0 && i < n; i++) {
            uint64_t t = rn_replay_index(replay, from + i);
            if (from + i + 1 < ids->len) {
                uint32_t next = ids->data[from + i + 1];
                if (next >= replay->n_vocab) {
                    return rn_err_set(err, -EINVAL, "token id %u at place %zu, the vocabulary has %u", next, from + i + 1, replay->n_vocab);
                }
                res->logprob[from + i] = rn_logprob(replay->logits + (size_t)i * replay->n_vocab, replay->n_vocab, next);
            }
            r = note_base(res, t, rn_seq_base(replay->seq, t), err);
        }
        if (r < 0 || n == 0) {
            return r;
        }
    }
}

static double perplexity(const double *logprob, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += logprob[i];
    }
    return exp(-sum / (double)n);
}

static size_t block_len(size_t at, size_t n)
{
    return n - at < BLOCK ? n - at : BLOCK;
}

static json_t *to_json(const struct result *res, size_t n)
{
    json_t *logprob = json_array(), *blocks = json_array(), *evictions = json_array();
    int r = 0;
    for (size_t i = 0; i < n; i++) {
        r |= json_array_append_new(logprob, json_real(res->logprob[i]));
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        r |= json_array_append_new(blocks, json_real(perplexity(res->logprob + i, block_len(i, n))));
    }
    for (size_t i = 0; i < res->n_changes; i++) {
        r |= json_array_append_new(evictions, json_pack("[I, I]", (json_int_t)res->changes[i].t, (json_int_t)res->changes[i].base));
    }
    json_t *v = json_pack("{s:o, s:f, s:o, s:o}", "logprob", logprob, "perplexity", perplexity(res->logprob, n), "blocks", blocks,
                          "evictions", evictions);
    if (r != 0) {
        json_decref(v);
        return NULL;
    }
    return v;
}

static int print_result(const struct args *a, const struct result *res, size_t n)
{
    if (a->json) {
        return rn_cli_print_json(to_json(res, n));
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        printf("tokens %7zu .. %7zu   perplexity %10.4f\n", i + 1, i + block_len(i, n), perplexity(res->logprob + i, block_len(i, n)));
    }
    printf("%zu tokens, perplexity %.4f, the window moved %zu times\n", n, perplexity(res->logprob, n), res->n_changes);
    return rn_cli_flush();
}

static int run(struct rn_engine *e, const void *args)
{
    const struct args *a = args;
    struct rn_err err = {0};
    struct rn_ids ids = {0};
    struct rn_replay replay = {0};
    struct result res = {0};
    int r = rn_replay_read(e, a->ids_file, a->text_file, &ids, &err);
    if (r < 0) {
        rn_ids_finish(&ids);
        return rn_cli_fail_input(&err);
    }
    if (ids.len < 2) {
        r = rn_err_set(&err, -EINVAL, "there are %zu tokens, expected at least 2", ids.len);
    }
    r = r < 0 ? r : rn_replay_init(&replay, e, &ids, &a->replay, a->model.rope, &err);
    bool usage = r == -EINVAL;
    r = r < 0 ? r : evaluate(&replay, &res, &err);
    int code = r == 0 ? print_result(a, &res, ids.len - 1) : usage ? rn_cli_fail(RN_CLI_USAGE, &err) : rn_cli_fail_work(&err);
    result_finish(&res);
    rn_replay_finish(&replay);
    rn_ids_finish(&ids);
    return code;
}

static int check(const void *args, struct rn_err *err)
{
    const struct args *a = args;
    if (!a->ids_file == !a->text_file) {
        return rn_err_set(err, -EINVAL, "say what to evaluate with one of --ids-file FILE and -f FILE");
    }
    return 0;
}

static const struct rn_model_verb verb = {&set, AT(model), check, run};

int rn_verb_eval(int argc, char *const *argv)
{
    struct args args = {0};
    return rn_model_verb_run(&verb, &args, argc, argv);
}
