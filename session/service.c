/* The engine thread: its inbox, its loop, its end. Everything it does for a request lies in accept.c, scheduler.c and commit.c.
 *
 * The loop takes all messages, gives the scheduler one turn, and sleeps on the inbox when that had nothing to do: an idle service uses no
 * processor. The store thread answers through the same inbox. Stopping: all runs are cancelled, what the store owes is waited for. */
#include "session/service.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/sampler.h"
#include "session/rope_words.h"
#include "session/session_internal.h"

#define INBOX 8192        // messages; far more than the store and the cancels of all requests can bring
#define INBOX_SUBMIT 1024 // beyond this new requests are turned away

// ---- For all files of the layer ------------------------------------------------------------------------------------------------------

void rn_service_emit(struct rn_service *s, struct rn_event *e)
{
    if (e) {
        s->params.on_event(s->params.user, e);
    }
}

struct rn_event *rn_run_event(const struct rn_run *run, enum rn_event_kind kind)
{
    struct rn_event *e = rn_mem_alloc(1, sizeof *e);
    if (e) {
        e->kind = kind;
        e->ticket = run->req->ticket;
    }
    return e;
}

void rn_run_emit_text(struct rn_service *s, struct rn_run *run, bool closed)
{
    const char *text;
    const uint32_t *ids;
    size_t len, n_ids, shown = run->answer.shown, shown_ids = run->answer.shown_ids;
    rn_answer_take(&run->answer, closed, &text, &len, &ids, &n_ids);
    if (len == 0) {
        run->answer.shown_ids = shown_ids; // ids without text come with the next one
        return;
    }
    struct rn_event *e = rn_run_event(run, RN_EVENT_TEXT);
    if (e) {
        e->text = rn_mem_strndup(text, len);
        e->ids = rn_mem_alloc(n_ids, sizeof *e->ids);
        e->logprobs = run->req->logprobs ? rn_logprobs_json(&run->logprobs, s->text, shown_ids, shown_ids + n_ids) : NULL;
    }
    if (!e || !e->text || !e->ids || (run->req->logprobs && !e->logprobs)) { // no memory now: it comes with the next event
        run->answer.shown = shown;
        run->answer.shown_ids = shown_ids;
        rn_event_destroy(e);
        return;
    }
    if (n_ids) {
        memcpy(e->ids, ids, n_ids * sizeof *ids);
    }
    e->text_len = len;
    e->n_ids = n_ids;
    e->ns = run->last_ns;
    rn_service_emit(s, e);
}

void rn_run_warn(struct rn_run *run, const char *text)
{
    if (!run->warnings) {
        run->warnings = json_array();
    }
    json_array_append_new(run->warnings, json_string(text));
}

int rn_fault_set(struct rn_fault *f, int http_status, const char *code, const char *param, const char *format, ...)
{
    f->http_status = http_status;
    f->code = code;
    f->param = param;
    f->err.code = -EINVAL;
    va_list args;
    va_start(args, format);
    vsnprintf(f->err.text, sizeof f->err.text, format, args);
    va_end(args);
    return -EINVAL;
}

struct rn_event *rn_run_terminal(struct rn_run *run, enum rn_event_kind kind)
{
    struct rn_event *e = run->terminal;
    run->terminal = NULL;
    e->kind = kind;
    e->ticket = run->req->ticket;
    return e;
}

static void add_run(struct rn_service *s, struct rn_run *run)
{
    struct rn_request *req = run->req;
    run->number = ++s->arrivals;
    run->answer =
        (struct rn_answer){.stop = req->stop, .n_stop = req->n_stop, .ignore_eos = req->ignore_eos, .limit = req->max_output_tokens};
    run->logprobs.n_top = req->top_logprobs;
    if (!req->has_seed) {
        req->sampling.seed = rn_seed_random();
        req->has_seed = true;
    }
    struct rn_run **end = &s->runs;
    while (*end) {
        end = &(*end)->next;
    }
    *end = run;
    s->n_runs++;
}

static void free_run(struct rn_run *run)
{
    rn_answer_finish(&run->answer);
    rn_counts_finish(&run->counts);
    rn_logprobs_finish(&run->logprobs);
    rn_event_destroy(run->terminal);
    json_decref(run->warnings);
    json_decref(run->record);
    json_decref(run->usage);
    rn_request_destroy(run->req);
    rn_mem_free(run);
}

void rn_run_destroy(struct rn_service *s, struct rn_run *run)
{
    for (struct rn_run **at = &s->runs; *at; at = &(*at)->next) {
        if (*at == run) {
            *at = run->next;
            s->n_runs--;
            break;
        }
    }
    free_run(run);
}

// ---- The store's answers ---------------------------------------------------------------------------------------------------------------

// Store thread. The inbox is larger than what the store can owe; should it be full all the same, the store waits: nothing may be lost.
static void stored(void *user, struct rn_store_job *job)
{
    struct rn_message *m = user;
    m->job = job;
    while (rn_queue_push(m->inbox, m) < 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

int rn_service_store(struct rn_service *s, struct rn_run *run, struct rn_store_job *job, rn_stored_fn then)
{
    struct rn_message *m = job ? rn_mem_alloc(1, sizeof *m) : NULL;
    if (!m) {
        rn_store_job_destroy(job);
        return -ENOMEM;
    }
    *m = (struct rn_message){.kind = RN_MSG_STORED, .run = run, .then = then, .inbox = s->inbox};
    job->done = stored;
    job->user = m;
    int r = rn_store_submit(s->store, job);
    if (r < 0) {
        rn_mem_free(m);
        rn_store_job_destroy(job);
        return r;
    }
    s->n_jobs++;
    return 0;
}

// ---- The inbox -------------------------------------------------------------------------------------------------------------------------

static struct rn_run *find_run(const struct rn_service *s, uint64_t ticket)
{
    struct rn_run *run = s->runs;
    while (run && run->req->ticket != ticket) {
        run = run->next;
    }
    return run;
}

static void lane_ended(struct rn_service *s, uint64_t lane)
{
    for (struct rn_run *run = s->runs; run; run = run->next) {
        run->lane_gone |= run->req->lane == lane;
    }
    for (size_t i = s->all.n; i-- > 0;) {
        struct rn_conversation *c = s->all.list[i];
        if (c->listed || c->lane != lane) {
            continue;
        }
        if (c->run) {
            c->ended = true;
        } else {
            rn_conversations_remove(&s->all, c);
        }
    }
}

static void handle(struct rn_service *s, struct rn_message *m)
{
    struct rn_run *run = m->kind == RN_MSG_CANCEL || m->kind == RN_MSG_PAUSE ? find_run(s, m->ticket) : NULL;
    switch (m->kind) {
    case RN_MSG_SUBMIT:
        add_run(s, m->run);
        rn_run_accept(s, m->run);
        break;
    case RN_MSG_CANCEL:
        if (run) {
            run->cancelled = true;
        }
        break;
    case RN_MSG_PAUSE:
        if (run) {
            run->paused = m->flag;
        }
        break;
    case RN_MSG_LANE_END:
        lane_ended(s, m->ticket);
        break;
    case RN_MSG_QUERY:
        rn_query_answer(s, m);
        break;
    case RN_MSG_STORED:
        s->n_jobs--;
        m->then(s, m->run, m->job);
        break;
    case RN_MSG_STOP:
        s->stopping = true;
        return; // in the service itself
    }
    rn_mem_free(m);
}

static void cancel_all(struct rn_service *s)
{
    for (struct rn_run *run = s->runs; run; run = run->next) {
        run->interrupted |= !run->cancelled;
        run->cancelled = true;
    }
}

static void *engine_thread(void *user)
{
    struct rn_service *s = user;
    bool busy = false;
    while (!s->stopping || s->runs || s->n_jobs) {
        struct rn_message *m = busy ? rn_queue_pop(s->inbox) : rn_queue_pop_wait(s->inbox, rn_loss_deadline(s));
        while (m) {
            handle(s, m);
            m = rn_queue_pop(s->inbox);
        }
        if (s->stopping) {
            cancel_all(s);
        }
        rn_loss_retry(s);
        busy = rn_scheduler_turn(s);
    }
    return NULL;
}

// ---- The boundary ----------------------------------------------------------------------------------------------------------------------

static int push(struct rn_service *s, const struct rn_message *message)
{
    struct rn_message *m = rn_mem_alloc(1, sizeof *m);
    if (!m) {
        return -ENOMEM;
    }
    *m = *message;
    int r = rn_queue_push(s->inbox, m);
    if (r < 0) {
        rn_mem_free(m);
    }
    return r;
}

bool rn_service_ready(const struct rn_service *s)
{
    return atomic_load(&s->ready);
}

int rn_service_submit(struct rn_service *s, struct rn_request *r)
{
    if (rn_queue_len(s->inbox) >= INBOX_SUBMIT) {
        return -EAGAIN;
    }
    struct rn_run *run = rn_mem_alloc(1, sizeof *run);
    struct rn_event *terminal = rn_mem_alloc(1, sizeof *terminal);
    if (run && terminal) {
        *run = (struct rn_run){.req = r, .terminal = terminal, .submitted_ns = rn_clock_ns()};
        if (push(s, &(struct rn_message){.kind = RN_MSG_SUBMIT, .run = run}) == 0) {
            return 0;
        }
    }
    rn_mem_free(run);
    rn_mem_free(terminal);
    return -EAGAIN;
}

void rn_service_cancel(struct rn_service *s, uint64_t ticket)
{
    (void)push(s, &(struct rn_message){.kind = RN_MSG_CANCEL, .ticket = ticket}); // full or out of memory: the answer ends by itself
}

void rn_service_pause(struct rn_service *s, uint64_t ticket, bool paused)
{
    (void)push(s, &(struct rn_message){.kind = RN_MSG_PAUSE, .ticket = ticket, .flag = paused});
}

void rn_service_lane_end(struct rn_service *s, uint64_t lane)
{
    (void)push(s, &(struct rn_message){.kind = RN_MSG_LANE_END, .ticket = lane});
}

int rn_service_query(struct rn_service *s, uint64_t ticket, enum rn_query what, const char *session_id)
{
    struct rn_message m = {.kind = RN_MSG_QUERY, .ticket = ticket, .what = what};
    if (session_id && strlen(session_id) < sizeof m.id) { // a longer one names nothing
        snprintf(m.id, sizeof m.id, "%s", session_id);
    }
    return rn_queue_len(s->inbox) >= INBOX_SUBMIT || push(s, &m) < 0 ? -EAGAIN : 0;
}

// ---- Start and stop --------------------------------------------------------------------------------------------------------------------

static int set_params(struct rn_service *s, const struct rn_service_params *params, struct rn_err *err)
{
    struct rn_service_params *p = &s->params;
    uint32_t trained = s->info->n_ctx_train;
    *p = *params;
    p->state_dir = NULL;
    p->window = p->window ? p->window : trained < 4096 ? trained : 4096;
    p->max_concurrent = p->max_concurrent ? p->max_concurrent : 8;
    p->max_queue = p->max_queue ? p->max_queue : 64;
    p->prefill_chunk = p->prefill_chunk ? p->prefill_chunk : 128;
    uint32_t most = rn_rope_max_n(p->rope, trained);
    if (p->window < 16 || p->window > most) {
        return rn_err_set(err, -EINVAL, "window is %u, expected 16 to %u, the trained length%s", p->window, most,
                          most > trained ? " times the factor of the RoPE scaling" : "");
    }
    if (p->sinks > p->window / 2) {
        return rn_err_set(err, -EINVAL, "sinks is %lld, expected at most %u, half of the window", (long long)p->sinks, p->window / 2);
    }
    return 0;
}

// A window of which not one session fits is refused now.
static int check_room(struct rn_service *s, struct rn_err *err)
{
    struct rn_seq *seq = NULL;
    uint32_t sinks = s->params.sinks >= 0 ? (uint32_t)s->params.sinks : s->params.window / 4;
    struct rn_seq_params params = {.n = s->params.window,
                                   .sinks = sinks,
                                   .evict = s->params.evict,
                                   .rope = rn_rope_for(s->params.rope, s->params.window, s->info->n_ctx_train)};
    int r = rn_seq_create(&seq, s->engine, &params, err);
    if (r == 0) {
        r = rn_seq_reserve(seq, err);
        if (r == 0) {
            rn_seq_unreserve(seq);
        } else {
            r = rn_err_prefix(err, "no session with a window of %u fits into the KV pool", s->params.window);
        }
        rn_seq_destroy(seq);
    }
    return r;
}

static int make_buffers(struct rn_service *s, struct rn_err *err)
{
    size_t n = s->params.max_concurrent, cells;
    if (!rn_mem_array(n, s->info->n_vocab, &cells)) {
        return rn_err_nomem(err, n, "logits");
    }
    s->logits = rn_mem_alloc(cells, sizeof *s->logits);
    s->entries = rn_mem_alloc(n, sizeof *s->entries);
    s->step = rn_mem_alloc(n, sizeof(void *));
    s->thread = rn_mem_alloc(1, sizeof(pthread_t));
    return s->logits && s->entries && s->step && s->thread ? 0 : rn_err_nomem(err, cells * sizeof *s->logits, "logits");
}

static void finish(struct rn_service *s)
{
    rn_store_close(s->store);
    rn_conversations_finish(&s->all);
    rn_queue_destroy(s->inbox);
    rn_sampler_finish(&s->sampler);
    rn_mem_free(s->logits);
    rn_mem_free(s->entries);
    rn_mem_free(s->step);
    rn_mem_free(s->thread);
    rn_mem_free(s);
}

int rn_service_start(struct rn_service **ret, const struct rn_service_params *params, struct rn_err *err)
{
    struct rn_service *s = rn_mem_alloc(1, sizeof *s);
    if (!s) {
        return rn_err_nomem(err, sizeof *s, "the service");
    }
    s->engine = params->engine;
    s->info = rn_engine_info(params->engine);
    s->text = rn_engine_text(params->engine);
    s->stop.kind = RN_MSG_STOP;
    atomic_store(&s->ready, true);
    int r = set_params(s, params, err);
    r = r < 0 ? r : check_room(s, err);
    r = r < 0 ? r : make_buffers(s, err);
    r = r < 0 ? r : rn_queue_create(&s->inbox, INBOX, NULL, NULL, err);
    if (r == 0 && params->state_dir) {
        r = rn_store_open(&s->store, params->state_dir, err);
    }
    if (r == 0) {
        int failed = pthread_create(s->thread, NULL, engine_thread, s);
        r = failed ? rn_err_set(err, -failed, "the engine thread does not start") : 0;
    }
    if (r < 0) {
        finish(s);
        return r;
    }
    *ret = s;
    return 0;
}

void rn_service_stop(struct rn_service *s)
{
    if (!s) {
        return;
    }
    while (rn_queue_push(s->inbox, &s->stop) < 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    pthread_join(*(pthread_t *)s->thread, NULL);
    for (struct rn_message *m; (m = rn_queue_pop(s->inbox)) != NULL;) { // came after the end
        if (m->kind == RN_MSG_SUBMIT || m->kind == RN_MSG_QUERY) {
            handle(s, m); // refused: the service is stopping
        } else {
            rn_mem_free(m);
        }
    }
    finish(s);
}
