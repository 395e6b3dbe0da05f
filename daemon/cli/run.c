/* runnel run: one request without a daemon and without a store. Text comes out as it is made; Ctrl-C ends the answer, not the record.
 *
 * The service answers on its engine thread; events cross to the main thread in a queue. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/replay.h"
#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/queue.h"
#include "runtime/text.h"
#include "session/service.h"

#define DEFAULT_WINDOW 4096
#define EVENTS 65536 // far more than a second of tokens
#define TICKET 1
#define LOOK_NS 50000000u // how late Ctrl-C may be noticed
#define STOP_STRINGS 16   // the service's limits
#define STOP_BYTES 256

struct args {
    struct rn_model_args model;
    struct rn_window_args window;
    struct rn_sampling_args sampling;
    struct rn_numbers turn_starts;
    struct rn_strings stop;
    const char *prompt, *text_file, *ids_file, *system;
    bool raw, ignore_eos, json;
    uint64_t max_tokens;
    int64_t logprobs; // -1 = not given
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"-p", "TEXT", RN_OPTION_TEXT, AT(prompt), "the question; without -p, -f and --ids-file it is read from standard input"},
    {"-s", "SYSTEM", RN_OPTION_TEXT, AT(system), "what the model is told first"},
    {"--raw", NULL, RN_OPTION_FLAG, AT(raw), "no chat template: the model goes on with the text itself"},
    {"-f", "FILE", RN_OPTION_STRING, AT(text_file), "go on with the text of a file (raw); - = standard input"},
    {"--ids-file", "FILE", RN_OPTION_STRING, AT(ids_file), "go on with a JSON list of token ids; - = standard input"},
    {"-n", "N", RN_OPTION_U64, AT(max_tokens), "tokens at most", .min = 1, .max = RN_SEED_MAX, .preset = "4096"},
    {"--stop", "TEXT", RN_OPTION_STRINGS, AT(stop), "end where the answer says this; may be given up to 16 times"},
    {"--ignore-eos", NULL, RN_OPTION_FLAG, AT(ignore_eos), "go on past end marks"},
    {"--json", NULL, RN_OPTION_FLAG, AT(json),
     "print {\"ids\", \"text\", \"prompt_ids\", \"runnel\"} at the end, instead of text as it comes"},
    {"--logprobs", "N", RN_OPTION_I64, AT(logprobs), "with --json: log-probabilities of the tokens and of the N likeliest ones each",
     .max = RN_TOP_LOGPROBS_MAX, .preset = "-"},
};

static const struct rn_option turn_options[] = {
    {"--turn-starts", "A,B,..", RN_OPTION_NUMBERS, AT(turn_starts), "places in the raw prompt's ids where turns start"},
};

static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(options), 0},
    {"sampling", RN_OPTIONS(rn_sampling_options), AT(sampling)},
    {"model", RN_OPTIONS(rn_model_options), AT(model)},
    {"window (N without --window: 4096, or the trained length if that is less)", RN_OPTIONS(rn_window_options), AT(window)},
    {"with a raw prompt", RN_OPTIONS(turn_options), 0},
};

static const struct rn_option_set set = {
    .usage = "run -m FILE [-p TEXT | -f FILE | --ids-file FILE] [--raw] [-s SYSTEM] [-n N]",
    .about = "Generates without a daemon. What leaves the window is forgotten; the answer goes on.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof groups[0],
};

static volatile sig_atomic_t interrupted;

// The second Ctrl-C is for those who cannot wait: it ends the process.
static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* ---- The request ------------------------------------------------------------------------------------------------------------------- */

static bool is_raw(const struct args *a)
{
    return a->raw || a->text_file || a->ids_file;
}

static int check(const void *args, struct rn_err *err)
{
    const struct args *a = args;
    if ((a->prompt != NULL) + (a->text_file != NULL) + (a->ids_file != NULL) > 1) {
        return rn_err_set(err, -EINVAL, "more than one of -p, -f and --ids-file is given");
    }
    if (is_raw(a) && a->system) {
        return rn_err_set(err, -EINVAL, "-s needs the chat template, which a raw prompt does without");
    }
    if (!is_raw(a) && a->turn_starts.n) {
        return rn_err_set(err, -EINVAL, "--turn-starts needs a raw prompt: the chat template knows its own");
    }
    struct rn_logit_bias *bias = NULL;
    size_t n_bias;
    int r = rn_sampling_bias(&a->sampling, &bias, &n_bias, err); // before the model is loaded; read again for the request
    rn_mem_free(bias);
    if (r < 0) {
        return r;
    }
    if (a->logprobs >= 0 && !a->json) {
        return rn_err_set(err, -EINVAL, "--logprobs needs --json");
    }
    if (a->stop.n > STOP_STRINGS) {
        return rn_err_set(err, -EINVAL, "--stop is given %zu times, expected at most %d", a->stop.n, STOP_STRINGS);
    }
    for (size_t i = 0; i < a->stop.n; i++) {
        if (strlen(a->stop.data[i]) > STOP_BYTES) {
            return rn_err_set(err, -EINVAL, "--stop has %zu bytes, expected at most %d", strlen(a->stop.data[i]), STOP_BYTES);
        }
    }
    if (a->window.window > 0 && a->window.sinks > a->window.window / 2) {
        return rn_err_set(err, -EINVAL, "--sinks is %lld, expected at most %lld, half of the window", (long long)a->window.sinks,
                          (long long)a->window.window / 2);
    }
    return 0;
}

/* Only an empty raw prompt starts at BOS by itself: something must be fed before a first token can be chosen. */
static int raw_prompt(const struct args *a, const struct rn_text *t, struct rn_engine *e, const struct rn_buf *prompt, struct rn_ids *ids,
                      struct rn_err *err)
{
    int r = 0;
    if (a->ids_file || a->text_file) {
        r = rn_replay_read(e, a->ids_file, a->text_file, ids, err);
    } else {
        r = rn_replay_raw_text(t, prompt->data ? prompt->data : "", prompt->len, ids, err);
    }
    if (r == 0 && ids->len == 0) {
        if (rn_text_bos(t) < 0) {
            return rn_err_set(err, -EINVAL, "the prompt is empty and the model has no BOS token to start from");
        }
        r = rn_ids_add(ids, (uint32_t)rn_text_bos(t)) < 0 ? rn_err_nomem(err, sizeof(uint32_t), "token ids") : 0;
    }
    return r;
}

/* The ids that the service will make of the question: for the record that --json prints. */
static int chat_prompt(const struct args *a, const struct rn_text *t, const struct rn_buf *prompt, struct rn_ids *ids, struct rn_err *err)
{
    struct rn_rendered rendered = {0};
    json_t *messages = json_array();
    if (a->system && *a->system) {
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", a->system));
    }
    json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "user", "content", prompt->data ? prompt->data : "", prompt->len));
    json_t *variables = json_pack("{s:o, s:b}", "messages", messages, "add_generation_prompt", 1);
    int r = variables ? rn_text_render(t, variables, &rendered, err) : rn_err_set(err, -EINVAL, "the prompt is not valid UTF-8");
    r = r < 0 ? r : rn_text_tokenize_rendered(t, &rendered, ids, err);
    json_decref(variables);
    rn_rendered_finish(&rendered);
    return r == -ENOENT ? rn_err_set(err, -EINVAL, "the model has no chat template: say --raw") : r;
}

static int set_raw(struct rn_request *req, const struct args *a, const struct rn_ids *ids)
{
    req->raw_ids = rn_mem_alloc(ids->len, sizeof *req->raw_ids);
    req->turn_starts = rn_mem_alloc(a->turn_starts.n, sizeof *req->turn_starts);
    if (!req->raw_ids || !req->turn_starts) {
        return -ENOMEM;
    }
    memcpy(req->raw_ids, ids->data, ids->len * sizeof *ids->data);
    req->n_raw_ids = ids->len;
    if (a->turn_starts.n) {
        memcpy(req->turn_starts, a->turn_starts.data, a->turn_starts.n * sizeof *req->turn_starts);
    }
    req->n_turn_starts = a->turn_starts.n;
    return 0;
}

static int set_items(struct rn_request *req, const struct args *a, const struct rn_buf *prompt)
{
    char id[RN_ID_BYTES];
    rn_id_new("msg_", id);
    req->items = json_pack("[{s:s, s:s, s:s, s:[{s:s, s:s%}]}]", "id", id, "type", "message", "role", "user", "content", "type",
                           "input_text", "text", prompt->data ? prompt->data : "", prompt->len);
    req->instructions = a->system && *a->system ? rn_mem_strdup(a->system) : NULL;
    return req->items && (req->instructions || !a->system || !*a->system) ? 0 : -ENOMEM;
}

static int set_stop(struct rn_request *req, const struct args *a)
{
    req->stop = rn_mem_alloc(a->stop.n, sizeof *req->stop);
    if (!req->stop) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < a->stop.n; i++) {
        req->stop[i] = rn_mem_strdup(a->stop.data[i]);
        if (!req->stop[i]) {
            return -ENOMEM;
        }
        req->n_stop++;
    }
    return 0;
}

static int set_sampling(struct rn_request *req, const struct args *a, struct rn_err *err)
{
    const struct rn_sampling_args *s = &a->sampling;
    struct rn_logit_bias *bias = NULL;
    size_t n_bias = 0;
    req->sampling = (struct rn_sampling){.temperature = s->temperature,
                                         .top_k = s->top_k,
                                         .top_p = s->top_p,
                                         .min_p = s->min_p,
                                         .seed = s->seed >= 0 ? (uint64_t)s->seed : 0,
                                         .repeat_penalty = s->repeat_penalty,
                                         .frequency_penalty = s->frequency_penalty,
                                         .presence_penalty = s->presence_penalty};
    req->has_seed = s->seed >= 0;
    req->logprobs = a->logprobs >= 0;
    req->top_logprobs = req->logprobs ? (uint32_t)a->logprobs : 0;
    int r = rn_sampling_bias(s, &bias, &n_bias, err);
    if (r == 0) {
        rn_request_bias(req, bias, n_bias);
    }
    return r;
}

static int make_request(struct rn_request **ret, const struct args *a, const struct rn_ids *ids, const struct rn_buf *prompt,
                        struct rn_err *err)
{
    struct rn_request *req = rn_request_create();
    if (!req) {
        return rn_err_nomem(err, sizeof *req, "the request");
    }
    req->ticket = TICKET;
    req->store = false;
    req->max_output_tokens = a->max_tokens;
    req->ignore_eos = a->ignore_eos;
    req->overflow_roll = true;
    int r = set_sampling(req, a, err);
    if (r < 0) {
        rn_request_destroy(req);
        return r;
    }
    r = set_stop(req, a);
    r = r < 0 ? r : is_raw(a) ? set_raw(req, a, ids) : set_items(req, a, prompt);
    if (r < 0) {
        rn_request_destroy(req);
        return rn_err_nomem(err, ids->len * sizeof *ids->data, "the request");
    }
    *ret = req;
    return 0;
}

/* ---- The answer -------------------------------------------------------------------------------------------------------------------- */

struct answer {
    struct rn_queue *events;
    struct rn_event *last; // DONE or ERROR
};

// Engine thread. A full queue makes the engine wait for the terminal: the main thread always empties it.
static void on_event(void *user, struct rn_event *e)
{
    struct answer *answer = user;
    while (rn_queue_push(answer->events, e) < 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void put_text(const struct rn_event *e)
{
    rn_cli_put_text(e->text, e->text_len);
    fflush(stdout);
}

static void take_events(struct answer *answer, struct rn_service *service, bool json)
{
    bool cancelled = false;
    while (!answer->last) {
        struct rn_event *e = rn_queue_pop_wait(answer->events, rn_clock_ns() + LOOK_NS);
        if ((interrupted || ferror(stdout)) && !cancelled) {
            cancelled = true;
            rn_service_cancel(service, TICKET);
        }
        if (!e) {
            continue;
        }
        if (e->kind == RN_EVENT_TEXT && !json) {
            put_text(e);
        }
        if (e->kind == RN_EVENT_DONE || e->kind == RN_EVENT_ERROR) {
            answer->last = e;
        } else {
            rn_event_destroy(e);
        }
    }
}

static int print_end(const struct args *a, const struct rn_ids *prompt_ids, const struct rn_event *e)
{
    struct rn_err err = {0};
    if (e->kind == RN_EVENT_ERROR || e->status == RN_STATUS_FAILED) {
        bool usage = e->code && strcmp(e->code, "invalid_value") == 0;
        bool busy = e->http_status == 503;
        (void)rn_err_set(&err, -EINVAL, "%s", e->message ? e->message : "the answer failed"); // the code is chosen here
        return rn_cli_fail(usage ? RN_CLI_USAGE : busy ? RN_CLI_UNAVAILABLE : RN_CLI_FAILED, &err);
    }
    if (!a->json) {
        putchar('\n');
        return rn_cli_flush();
    }
    return rn_cli_print_json(json_pack("{s:o, s:s%, s:O*, s:o, s:O}", "ids", rn_cli_ids_to_json(e->ids, e->n_ids), "text",
                                       e->text ? e->text : "", e->text_len, "logprobs", e->logprobs, "prompt_ids",
                                       rn_cli_ids_to_json(prompt_ids->data, prompt_ids->len), "runnel", e->record));
}

static int start(struct rn_service **ret, struct rn_engine *e, const struct args *a, struct answer *answer, struct rn_err *err)
{
    uint32_t trained = rn_engine_info(e)->n_ctx_train;
    uint32_t window = a->window.window >= 0 ? (uint32_t)a->window.window : trained < DEFAULT_WINDOW ? trained : DEFAULT_WINDOW;
    struct rn_service_params params = {.engine = e,
                                       .window = window,
                                       .sinks = a->window.sinks,
                                       .evict = rn_window_evict(&a->window),
                                       .rope = a->model.rope,
                                       .max_concurrent = 1,
                                       .on_event = on_event,
                                       .user = answer};
    int r = rn_queue_create(&answer->events, EVENTS, NULL, NULL, err);
    return r < 0 ? r : rn_service_start(ret, &params, err);
}

static int answer_one(struct rn_engine *e, const struct args *a, const struct rn_ids *ids, const struct rn_buf *prompt)
{
    struct rn_err err = {0};
    struct answer answer = {0};
    struct rn_service *service = NULL;
    struct rn_request *req = NULL;
    int r = make_request(&req, a, ids, prompt, &err);
    r = r < 0 ? r : start(&service, e, a, &answer, &err);
    if (r == 0 && rn_service_submit(service, req) < 0) {
        r = rn_err_set(&err, -EAGAIN, "the service does not take the request");
    }
    if (r < 0) {
        rn_request_destroy(req);
    } else {
        struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
        sigaction(SIGINT, &action, NULL);
        take_events(&answer, service, a->json);
    }
    rn_service_stop(service);
    int code = r == -EINVAL ? rn_cli_fail(RN_CLI_USAGE, &err) : r < 0 ? rn_cli_fail_input(&err) : print_end(a, ids, answer.last);
    rn_event_destroy(answer.last);
    rn_queue_destroy(answer.events);
    return code;
}

static int run(struct rn_engine *e, const void *args)
{
    const struct args *a = args;
    const struct rn_text *t = rn_engine_text(e);
    struct rn_err err = {0};
    struct rn_ids ids = {0};
    struct rn_buf prompt = {0};
    int r = 0;
    if (a->prompt) {
        r = rn_buf_add_str(&prompt, a->prompt) < 0 ? rn_err_nomem(&err, strlen(a->prompt), "the prompt") : 0;
    } else if (!a->text_file && !a->ids_file) {
        r = rn_cli_read("-", &prompt, &err);
    }
    if (r == 0 && !is_raw(a) && prompt.len == 0) {
        r = rn_err_set(&err, -EINVAL, "the prompt is empty");
    }
    r = r < 0 ? r : is_raw(a) ? raw_prompt(a, t, e, &prompt, &ids, &err) : chat_prompt(a, t, &prompt, &ids, &err);
    int code = r < 0 ? rn_cli_fail_input(&err) : answer_one(e, a, &ids, &prompt);
    rn_ids_finish(&ids);
    rn_buf_finish(&prompt);
    return code;
}

static const struct rn_model_verb verb = {&set, AT(model), check, run};

int rn_verb_run(int argc, char *const *argv)
{
    struct args args = {0};
    return rn_model_verb_run(&verb, &args, argc, argv);
}
