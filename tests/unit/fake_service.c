/* A scripted service and engine behind the real interfaces, for the daemon's own tests: no model, the same events every time.
 *
 * The text of the last input item is the script:
 *   "words N"  N text events "w0 " .. ; "big N" one text event of N bytes; "hold" a text event, then nothing until cancelled;
 *   "queued" waits for a place first; "evict" tokens leave the window; "length" ends at the output limit; "fail" the store fails;
 *   "refuse" is refused; anything else is said back in two pieces, of which the second comes only with the terminal event.
 * previous_response_id "resp_missing" is not found. Threads: one, as in the real service. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/base/queue.h"
#include "runtime/engine.h"
#include "session/service.h"

#define HOLDS 64

enum command_kind { SUBMIT, CANCEL, QUERY, STOP };

struct command {
    enum command_kind kind;
    struct rn_request *request;
    uint64_t ticket;
    enum rn_query query;
    char id[RN_ID_BYTES];
};

struct held {
    uint64_t ticket;
    char session_id[RN_ID_BYTES];
};

struct rn_service {
    struct rn_service_params params;
    struct rn_queue *inbox;
    pthread_t thread;
    struct held holds[HOLDS];
    size_t n_holds;
};

static struct rn_event *event_new(enum rn_event_kind kind, uint64_t ticket)
{
    struct rn_event *e = rn_mem_alloc(1, sizeof *e);
    if (!e) {
        abort();
    }
    e->kind = kind;
    e->ticket = ticket;
    return e;
}

static void say(struct rn_service *s, uint64_t ticket, const char *text, size_t len)
{
    struct rn_event *e = event_new(RN_EVENT_TEXT, ticket);
    e->text = rn_mem_strndup(text, len);
    e->text_len = len;
    e->ns = rn_clock_ns();
    s->params.on_event(s->params.user, e);
}

static void tell(struct rn_service *s, enum rn_event_kind kind, uint64_t ticket, const char *session_id)
{
    struct rn_event *e = event_new(kind, ticket);
    snprintf(e->session_id, sizeof e->session_id, "%s", session_id);
    e->created_at = 1700000000;
    e->seed = 7;
    e->evicted = 100;
    e->kept_from = 104;
    s->params.on_event(s->params.user, e);
}

static void done(struct rn_service *s, uint64_t ticket, const char *session_id, enum rn_status status, const char *cause, const char *text,
                 size_t len)
{
    struct rn_event *e = event_new(RN_EVENT_DONE, ticket);
    snprintf(e->session_id, sizeof e->session_id, "%s", session_id);
    e->created_at = 1700000000;
    e->status = status;
    e->cause = cause;
    e->incomplete_reason = strcmp(cause, "length") == 0 ? "max_output_tokens" : NULL;
    e->text = rn_mem_strndup(text, len);
    e->text_len = len;
    e->n_ids = 0;
    e->input_tokens = 11;
    e->cached_tokens = 5;
    e->output_tokens = len;
    e->record =
        json_pack("{s:s, s:{s:s, s:n}, s:[], s:s}", "session", session_id, "stop", "cause", cause, "detail", "warnings", "device", "fake");
    if (status == RN_STATUS_FAILED) {
        e->http_status = 503;
        e->code = "storage";
        e->message = rn_mem_strdup("the disk is full");
    }
    s->params.on_event(s->params.user, e);
}

static void refuse(struct rn_service *s, uint64_t ticket, int status, const char *code, const char *param, const char *message)
{
    struct rn_event *e = event_new(RN_EVENT_ERROR, ticket);
    e->http_status = status;
    e->code = code;
    e->param = param;
    e->message = rn_mem_strdup(message);
    s->params.on_event(s->params.user, e);
}

static const char *script_of(const struct rn_request *r)
{
    size_t n = json_array_size(r->items);
    const json_t *content = json_object_get(json_array_get(r->items, n - 1), "content");
    const char *text = json_string_value(json_object_get(json_array_get(content, 0), "text"));
    return text ? text : "";
}

static void run_words(struct rn_service *s, uint64_t ticket, const char *session_id, unsigned long n)
{
    struct rn_buf all = {0};
    for (unsigned long i = 0; i < n; i++) {
        char word[24];
        int len = snprintf(word, sizeof word, "w%lu ", i);
        say(s, ticket, word, (size_t)len);
        rn_buf_add(&all, word, (size_t)len);
    }
    done(s, ticket, session_id, RN_STATUS_COMPLETED, "eos", all.data ? all.data : "", all.len);
    rn_buf_finish(&all);
}

static void run_big(struct rn_service *s, uint64_t ticket, const char *session_id, unsigned long n)
{
    char *text = rn_mem_alloc(n + 1, 1);
    if (!text) {
        abort();
    }
    memset(text, 'x', n);
    say(s, ticket, text, n);
    done(s, ticket, session_id, RN_STATUS_COMPLETED, "eos", text, n);
    rn_mem_free(text);
}

static void run(struct rn_service *s, struct rn_request *r)
{
    const char *script = script_of(r);
    char session_id[RN_ID_BYTES];
    rn_id_new("sess_", session_id);
    if (r->previous_response_id && strcmp(r->previous_response_id, "resp_missing") == 0) {
        refuse(s, r->ticket, 400, "previous_response_not_found", "previous_response_id", "there is no such response");
        return;
    }
    if (strcmp(script, "refuse") == 0) {
        refuse(s, r->ticket, 400, "context_length_exceeded", "input", "5000 tokens do not fit into 4096");
        return;
    }
    tell(s, RN_EVENT_CREATED, r->ticket, session_id);
    if (strcmp(script, "queued") == 0) {
        tell(s, RN_EVENT_QUEUED, r->ticket, session_id);
    }
    tell(s, RN_EVENT_STARTED, r->ticket, session_id);
    size_t len = strlen(script);
    if (!r->generate) {
        done(s, r->ticket, session_id, RN_STATUS_COMPLETED, "eos", "", 0);
    } else if (strncmp(script, "words ", 6) == 0) {
        run_words(s, r->ticket, session_id, strtoul(script + 6, NULL, 10));
    } else if (strncmp(script, "big ", 4) == 0) {
        run_big(s, r->ticket, session_id, strtoul(script + 4, NULL, 10));
    } else if (strcmp(script, "hold") == 0 && s->n_holds < HOLDS) {
        say(s, r->ticket, "held", 4);
        s->holds[s->n_holds].ticket = r->ticket;
        memcpy(s->holds[s->n_holds++].session_id, session_id, sizeof session_id);
    } else if (strcmp(script, "evict") == 0) {
        say(s, r->ticket, "one ", 4);
        tell(s, RN_EVENT_EVICTED, r->ticket, session_id);
        say(s, r->ticket, "two", 3);
        done(s, r->ticket, session_id, RN_STATUS_COMPLETED, "eos", "one two", 7);
    } else if (strcmp(script, "length") == 0) {
        say(s, r->ticket, "too lo", 6);
        done(s, r->ticket, session_id, RN_STATUS_INCOMPLETE, "length", "too lo", 6);
    } else if (strcmp(script, "fail") == 0) {
        say(s, r->ticket, "par", 3);
        done(s, r->ticket, session_id, RN_STATUS_FAILED, "storage", "par", 3);
    } else {
        size_t half = len / 2;
        while (half < len && ((unsigned char)script[half] & 0xc0) == 0x80) {
            half++;
        }
        say(s, r->ticket, script, half);
        done(s, r->ticket, session_id, RN_STATUS_COMPLETED, "eos", script, len);
    }
}

static void cancel(struct rn_service *s, uint64_t ticket)
{
    for (size_t i = 0; i < s->n_holds; i++) {
        if (ticket == 0 || s->holds[i].ticket == ticket) {
            struct held held = s->holds[i];
            s->holds[i--] = s->holds[--s->n_holds];
            done(s, held.ticket, held.session_id, RN_STATUS_INCOMPLETE, "cancelled", "held", 4);
        }
    }
}

static void answer(struct rn_service *s, const struct command *c)
{
    struct rn_event *e = event_new(RN_EVENT_REPLY, c->ticket);
    e->http_status = 200;
    if (c->query == RN_QUERY_LIST) {
        e->reply = json_pack("{s:[{s:s}, {s:s}]}", "data", "id", "sess_b", "id", "sess_a");
    } else if (strcmp(c->id, "sess_a") != 0) {
        e->http_status = 404;
        e->code = "not_found";
        e->message = rn_mem_strdup("there is no such session");
    } else {
        e->reply =
            c->query == RN_QUERY_SHOW ? json_pack("{s:s, s:[]}", "id", c->id, "items") : json_pack("{s:s, s:b}", "id", c->id, "deleted", 1);
    }
    s->params.on_event(s->params.user, e);
}

static void *serve(void *user)
{
    struct rn_service *s = user;
    for (;;) {
        struct command *c = rn_queue_pop_wait(s->inbox, 0);
        enum command_kind kind = c->kind;
        if (kind == SUBMIT) {
            run(s, c->request);
            rn_request_destroy(c->request);
        } else if (kind == CANCEL) {
            cancel(s, c->ticket);
        } else if (kind == QUERY) {
            answer(s, c);
        } else {
            cancel(s, 0);
        }
        rn_mem_free(c);
        if (kind == STOP) {
            return NULL;
        }
    }
}

static int post(struct rn_service *s, struct command from)
{
    struct command *c = rn_mem_alloc(1, sizeof *c);
    if (!c) {
        return -ENOMEM;
    }
    *c = from;
    int r = rn_queue_push(s->inbox, c);
    if (r < 0) {
        rn_mem_free(c);
    }
    return r;
}

int rn_service_start(struct rn_service **ret, const struct rn_service_params *params, struct rn_err *err)
{
    struct rn_service *s = rn_mem_alloc(1, sizeof *s);
    if (!s) {
        return rn_err_nomem(err, sizeof *s, "service");
    }
    s->params = *params;
    if (rn_queue_create(&s->inbox, 1024, NULL, NULL, err) < 0 || pthread_create(&s->thread, NULL, serve, s) != 0) {
        rn_queue_destroy(s->inbox);
        rn_mem_free(s);
        return rn_err_set(err, -ENOMEM, "the service could not start");
    }
    *ret = s;
    return 0;
}

void rn_service_stop(struct rn_service *s)
{
    if (s) {
        post(s, (struct command){.kind = STOP});
        pthread_join(s->thread, NULL);
        rn_queue_destroy(s->inbox);
        rn_mem_free(s);
    }
}

bool rn_service_ready(const struct rn_service *s)
{
    (void)s;
    return true;
}

int rn_service_submit(struct rn_service *s, struct rn_request *r)
{
    return post(s, (struct command){.kind = SUBMIT, .request = r});
}

void rn_service_cancel(struct rn_service *s, uint64_t ticket)
{
    post(s, (struct command){.kind = CANCEL, .ticket = ticket});
}

void rn_service_pause(struct rn_service *s, uint64_t ticket, bool paused)
{
    (void)s, (void)ticket, (void)paused;
}

void rn_service_lane_end(struct rn_service *s, uint64_t lane)
{
    (void)s, (void)lane;
}

int rn_service_query(struct rn_service *s, uint64_t ticket, enum rn_query what, const char *session_id)
{
    struct command c = {.kind = QUERY, .ticket = ticket, .query = what};
    snprintf(c.id, sizeof c.id, "%s", session_id ? session_id : "");
    return post(s, c);
}

/* ---- Engine: one token, no weights ------------------------------------------------------------------------------------------------- */

struct rn_engine {
    struct rn_engine_info info;
};

int rn_engine_create(struct rn_engine **ret, const struct rn_engine_params *params, struct rn_err *err)
{
    static const struct rn_kernel_row rows[] = {{"matvec", "none"}};
    if (strstr(params->model, "missing")) {
        return rn_err_set(err, -ENOENT, "'%s': no such file", params->model);
    }
    struct rn_engine *e = rn_mem_alloc(1, sizeof *e);
    if (!e) {
        return rn_err_nomem(err, sizeof *e, "engine");
    }
    e->info = (struct rn_engine_info){.model_id = "fake",
                                      .arch = "fake",
                                      .device = "fake",
                                      .fingerprint = "fake",
                                      .kv = "q8_0",
                                      .n_vocab = 16,
                                      .n_ctx_train = 2048,
                                      .n_layers = 1,
                                      .n_threads = 1,
                                      .kernels = rows,
                                      .n_kernels = 1};
    *ret = e;
    return 0;
}

void rn_engine_destroy(struct rn_engine *e)
{
    rn_mem_free(e);
}

const struct rn_engine_info *rn_engine_info(const struct rn_engine *e)
{
    return &e->info;
}

int rn_engine_probe(struct rn_engine *e, struct rn_err *err)
{
    (void)e, (void)err;
    return 0;
}
