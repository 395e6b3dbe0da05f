#include "daemon/cli/replay.h"

#include <errno.h>

#include "daemon/cli/cli.h"
#include "runtime/base/err.h"
#include "runtime/text.h"
#include "session/rope_words.h"

#define MIN_WINDOW 16 // the engine's
#define AUTO_SINKS 4  // with a window and without messages: min(4, N / 4)

#define AT(field) offsetof(struct rn_replay_args, field)

const struct rn_option rn_replay_options[3] = {
    {"--turn-starts", "A,B,..", RN_OPTION_NUMBERS, AT(turn_starts), "places in the list of ids where turns start"},
    {"--chunk", "C", RN_OPTION_U32, AT(chunk), "tokens per step", .min = 1, .max = 4096, .preset = "128"},
    {"--origin", "O", RN_OPTION_U64, AT(origin), "index of the first token that is not pinned, as in a session that was read again",
     .max = 1ull << 62},
};

static int set_turns(struct rn_replay *r, const struct rn_numbers *places, struct rn_err *err)
{
    r->turns = rn_mem_alloc(places->n, sizeof *r->turns);
    if (!r->turns) {
        return rn_err_nomem(err, places->n * sizeof *r->turns, "turn starts");
    }
    for (size_t i = 0; i < places->n; i++) {
        if (places->data[i] >= r->ids->len || (i > 0 && places->data[i] <= places->data[i - 1])) {
            return rn_err_set(err, -EINVAL, "--turn-starts has %llu, expected ascending places below %zu, the number of ids",
                              (unsigned long long)places->data[i], r->ids->len);
        }
        r->turns[i] = rn_replay_index(r, places->data[i]);
    }
    r->n_turns = places->n;
    return 0;
}

static int make_sequence(struct rn_replay *r, const struct rn_replay_args *args, struct rn_rope_scaling rope, struct rn_err *err)
{
    const struct rn_engine_info *info = rn_engine_info(r->engine);
    uint32_t most = rn_rope_max_n(rope, info->n_ctx_train);
    uint64_t n = r->ids->len < MIN_WINDOW ? MIN_WINDOW : r->ids->len;
    if (args->window.window >= 0) {
        n = (uint64_t)args->window.window;
    } else if (n > most) {
        return rn_err_set(err, -EINVAL, "%zu ids do not fit into the trained length of %u at once: say --window N", r->ids->len, most);
    }
    if (args->window.sinks >= 0) {
        r->sinks = (uint64_t)args->window.sinks;
    } else if (args->window.window >= 0) { // else nothing ever leaves: there is nothing to pin against
        r->sinks = n / 4 < AUTO_SINKS ? n / 4 : AUTO_SINKS;
    }
    r->origin = args->origin ? args->origin : r->sinks;
    if (n > most) {
        return rn_err_set(err, -EINVAL, "--window is %llu, expected %d to %u, the trained length%s", (unsigned long long)n, MIN_WINDOW, most,
                          most > info->n_ctx_train ? " times the factor of --rope-scaling" : "");
    }
    if (r->sinks > n / 2) {
        return rn_err_set(err, -EINVAL, "--sinks is %llu, expected at most %llu, half of the window", (unsigned long long)r->sinks,
                          (unsigned long long)(n / 2));
    }
    if (r->origin < r->sinks) {
        return rn_err_set(err, -EINVAL, "--origin is %llu, expected at least %llu, the number of pinned tokens",
                          (unsigned long long)r->origin, (unsigned long long)r->sinks);
    }
    struct rn_seq_params params = {.n = (uint32_t)n,
                                   .sinks = (uint32_t)r->sinks,
                                   .evict = rn_window_evict(&args->window),
                                   .origin = args->origin,
                                   .rope = rn_rope_for(rope, (uint32_t)n, info->n_ctx_train)};
    return rn_seq_create(&r->seq, r->engine, &params, err);
}

int rn_replay_init(struct rn_replay *ret, struct rn_engine *e, const struct rn_ids *ids, const struct rn_replay_args *args,
                   struct rn_rope_scaling rope, struct rn_err *err)
{
    uint32_t n_vocab = rn_engine_info(e)->n_vocab;
    *ret = (struct rn_replay){.engine = e, .ids = ids, .chunk = args->chunk, .n_vocab = n_vocab};
    if (ids->len == 0) {
        return rn_err_set(err, -EINVAL, "there are no token ids");
    }
    size_t rows = ids->len < args->chunk ? ids->len : args->chunk, n;
    int r = make_sequence(ret, args, rope, err);
    r = r < 0 ? r : set_turns(ret, &args->turn_starts, err);
    if (r == 0) {
        ret->logits = rn_mem_array(rows, n_vocab, &n) ? rn_mem_alloc(n, sizeof *ret->logits) : NULL;
        r = ret->logits ? 0 : rn_err_nomem(err, rows * sizeof *ret->logits * n_vocab, "logits");
    }
    if (r < 0) {
        rn_replay_finish(ret);
    }
    return r;
}

void rn_replay_finish(struct rn_replay *r)
{
    rn_seq_destroy(r->seq);
    rn_mem_free(r->turns);
    rn_mem_free(r->logits);
    *r = (struct rn_replay){0};
}

uint64_t rn_replay_index(const struct rn_replay *r, size_t place)
{
    return place < r->sinks ? place : r->origin + (place - r->sinks);
}

int rn_replay_next(struct rn_replay *r, size_t *ret_from, uint32_t *ret_n, struct rn_err *err)
{
    size_t left = r->ids->len - r->done;
    uint32_t n = left < r->chunk ? (uint32_t)left : r->chunk;
    *ret_from = r->done;
    *ret_n = n;
    if (n == 0) {
        return 0;
    }
    if (r->done) {
        rn_seq_accept(r->seq, rn_seq_head(r->seq));
    }
    size_t turns = r->next_turn;
    while (turns < r->n_turns && r->turns[turns] <= rn_replay_index(r, r->done + n - 1)) {
        turns++;
    }
    struct rn_step_entry entry = {.seq = r->seq,
                                  .ids = r->ids->data + r->done,
                                  .n_ids = n,
                                  .turn_starts = r->turns + r->next_turn,
                                  .n_turn_starts = (uint32_t)(turns - r->next_turn),
                                  .n_logits = n,
                                  .logits = r->logits};
    int code = rn_engine_step(r->engine, &entry, 1, err);
    if (code == 0) {
        r->done += n;
        r->next_turn = turns;
    }
    return code;
}

int rn_replay_raw_text(const struct rn_text *t, const char *text, size_t len, struct rn_ids *ret, struct rn_err *err)
{
    if (rn_text_adds_bos(t) && rn_ids_add(ret, (uint32_t)rn_text_bos(t)) < 0) {
        return rn_err_nomem(err, sizeof(uint32_t), "token ids");
    }
    return rn_text_tokenize(t, text, len, /*special=*/false, ret, err);
}

int rn_replay_read(struct rn_engine *e, const char *ids_file, const char *text_file, struct rn_ids *ret, struct rn_err *err)
{
    if (ids_file) {
        return rn_cli_read_ids(ids_file, ret, err);
    }
    struct rn_buf text = {0};
    int r = rn_cli_read(text_file, &text, err);
    r = r < 0 ? r : rn_replay_raw_text(rn_engine_text(e), text.data ? text.data : "", text.len, ret, err);
    rn_buf_finish(&text);
    return r;
}
