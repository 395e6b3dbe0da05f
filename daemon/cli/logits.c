/* runnel logits: the model's answer after each of a list of tokens, as its highest entries or whole. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/replay.h"
#include "runtime/base/err.h"

struct args {
    struct rn_model_args model;
    struct rn_replay_args replay;
    const char *ids_file, *dump;
    uint32_t top;
    bool json;
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"--ids-file", "FILE", RN_OPTION_STRING, AT(ids_file), "a JSON list of token ids; - = standard input"},
    {"--top", "K", RN_OPTION_U32, AT(top), "print the K highest logits after each token", .max = 65536, .preset = "5"},
    {"--dump", "FILE", RN_OPTION_STRING, AT(dump), "write one row per id: n_vocab little-endian float32"},
    {"--json", NULL, RN_OPTION_FLAG, AT(json),
     "print {\"n_vocab\", \"positions\": [{\"t\", \"id\", \"logsumexp\", \"top\": [[id, logit], …]}]}"},
};

static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(options), 0},
    {"model", RN_OPTIONS(rn_model_options), AT(model)},
    {RN_REPLAY_WINDOW_TITLE, RN_OPTIONS(rn_window_options), AT(replay.window)},
    {"steps", RN_OPTIONS(rn_replay_options), AT(replay)},
};

static const struct rn_option_set set = {
    .usage = "logits -m FILE --ids-file FILE [--top K] [--dump FILE] [--chunk C]",
    .about = "Runs the ids through the model. One line per token: its index, its id, and the highest logits after it as ID:LOGIT.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof groups[0],
};

// Dumps go out as they lie in memory.
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are little-endian");

struct entry {
    uint32_t id;
    float logit;
};

/* The k highest, descending, ties to the lowest id: a heap would be faster, k insertions are enough beside a forward pass. */
static uint32_t highest(const float *row, uint32_t n_vocab, struct entry *top, uint32_t k)
{
    uint32_t n = 0;
    for (uint32_t id = 0; id < n_vocab; id++) {
        if (n == k && (k == 0 || row[id] <= top[n - 1].logit)) {
            continue;
        }
        uint32_t at = n < k ? n++ : n - 1;
        while (at > 0 && top[at - 1].logit < row[id]) {
            top[at] = top[at - 1];
            at--;
        }
        top[at] = (struct entry){id, row[id]};
    }
    return n;
}

static double log_sum_exp(const float *row, uint32_t n_vocab)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        max = row[i] > max ? row[i] : max;
    }
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += exp(row[i] - max);
    }
    return max + log(sum);
}

static json_t *position(uint64_t t, uint32_t id, const float *row, uint32_t n_vocab, const struct entry *top, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        json_array_append_new(list, json_pack("[I, f]", (json_int_t)top[i].id, (double)top[i].logit)); // a failure is seen at the end
    }
    if (json_array_size(list) != n) {
        json_decref(list);
        return NULL;
    }
    return json_pack("{s:I, s:I, s:f, s:o}", "t", (json_int_t)t, "id", (json_int_t)id, "logsumexp", log_sum_exp(row, n_vocab), "top", list);
}

struct output {
    FILE *dump;
    json_t *positions; // with --json
    struct entry *top;
};

static int put_row(const struct args *a, const struct rn_replay *r, size_t place, const float *row, const struct output *out,
                   struct rn_err *err)
{
    uint64_t t = rn_replay_index(r, place);
    uint32_t id = r->ids->data[place], n = highest(row, r->n_vocab, out->top, a->top);
    if (out->dump && fwrite(row, sizeof *row, r->n_vocab, out->dump) != r->n_vocab) {
        return rn_err_set(err, -EIO, "writing '%s': %s", a->dump, strerror(errno));
    }
    if (out->positions) {
        return json_array_append_new(out->positions, position(t, id, row, r->n_vocab, out->top, n)) < 0 ? rn_err_nomem(err, n, "a position")
                                                                                                        : 0;
    }
    if (a->top) {
        printf("%llu %u", (unsigned long long)t, id);
        for (uint32_t i = 0; i < n; i++) {
            printf(" %u:%.9g", out->top[i].id, (double)out->top[i].logit);
        }
        putchar('\n');
    }
    return 0;
}

static int put_all(const struct args *a, struct rn_replay *replay, const struct output *out, struct rn_err *err)
{
    for (;;) {
        size_t from;
        uint32_t n;
        int r = rn_replay_next(replay, &from, &n, err);
        for (uint32_t i = 0; r == 0 && i < n; i++) {
            r = put_row(a, replay, from + i, replay->logits + (size_t)i * replay->n_vocab, out, err);
        }
        if (r < 0 || n == 0) {
            return r;
        }
    }
}

static int open_output(const struct args *a, struct output *out, struct rn_err *err)
{
    out->top = rn_mem_alloc(a->top, sizeof *out->top);
    out->positions = a->json ? json_array() : NULL;
    if (!out->top || (a->json && !out->positions)) {
        return rn_err_nomem(err, a->top * sizeof *out->top, "the output");
    }
    if (a->dump) {
        out->dump = fopen(a->dump, "wb");
        if (!out->dump) {
            int code = errno;
            return rn_err_set(err, -code, "opening '%s': %s", a->dump, strerror(code));
        }
    }
    return 0;
}

static int close_output(const struct args *a, struct output *out, int r, struct rn_err *err)
{
    if (out->dump && fclose(out->dump) != 0 && r == 0) {
        r = rn_err_set(err, -EIO, "writing '%s': %s", a->dump, strerror(errno));
    }
    rn_mem_free(out->top);
    return r;
}

static int run(struct rn_engine *e, const void *args)
{
    const struct args *a = args;
    struct rn_err err = {0};
    struct rn_ids ids = {0};
    struct rn_replay replay = {0};
    struct output out = {0};
    int r = rn_cli_read_ids(a->ids_file, &ids, &err);
    if (r < 0) {
        rn_ids_finish(&ids);
        return rn_cli_fail_input(&err);
    }
    r = rn_replay_init(&replay, e, &ids, &a->replay, a->model.rope, &err);
    bool usage = r == -EINVAL;
    r = r < 0 ? r : open_output(a, &out, &err);
    r = r < 0 ? r : put_all(a, &replay, &out, &err);
    r = close_output(a, &out, r, &err);
    int code = r == 0 && a->json
                   ? rn_cli_print_json(json_pack("{s:I, s:O}", "n_vocab", (json_int_t)replay.n_vocab, "positions", out.positions))
                   : rn_cli_flush();
    json_decref(out.positions);
    rn_replay_finish(&replay);
    rn_ids_finish(&ids);
    if (r < 0) {
        return usage ? rn_cli_fail(RN_CLI_USAGE, &err) : rn_cli_fail_work(&err);
    }
    return code;
}

static int check(const void *args, struct rn_err *err)
{
    const struct args *a = args;
    return a->ids_file ? 0 : rn_err_set(err, -EINVAL, "no ids: say which with --ids-file FILE");
}

static const struct rn_model_verb verb = {&set, AT(model), check, run};

int rn_verb_logits(int argc, char *const *argv)
{
    struct args args = {0};
    return rn_model_verb_run(&verb, &args, argc, argv);
}
