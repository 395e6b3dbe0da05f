/* The two transactions of an answer, and its events at both ends. Without a store (or for store: false) both succeed at once.
 *
 *   begin: [REBASE] BEGIN --> CREATED, WAITING          end: END or ABANDON --> the conversation moves (or not) --> DONE
 *
 * A BEGIN that fails refuses the request; an END that fails makes it a failed response with cause "storage", and the conversation goes on
 * from where it was: the next BEGIN in it closes what is left on disk. Each later request tries the disk again by its own BEGIN. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "session/session_internal.h"

// ---- Jobs ------------------------------------------------------------------------------------------------------------------------------

static int copy_ids(struct rn_store_job *job, const struct rn_ids *log, uint64_t from, uint64_t to)
{
    size_t n = (size_t)(to - from);
    job->ids = rn_mem_alloc(n, sizeof *job->ids);
    if (!job->ids) {
        return -ENOMEM;
    }
    if (n) {
        memcpy(job->ids, log->data + from, n * sizeof *job->ids);
    }
    job->n_ids = n;
    return 0;
}

static int copy_items(struct rn_store_job *job, const struct rn_timeline *t, size_t from, size_t to)
{
    job->items = rn_mem_alloc(to - from, sizeof *job->items);
    if (!job->items) {
        return -ENOMEM;
    }
    for (size_t i = from; i < to; i++) {
        const struct rn_item *item = &t->items[i];
        struct rn_store_item *out = &job->items[job->n_items++];
        *out = (struct rn_store_item){.turn_start = item->turn_start, .open = item->answer, .first = item->first, .end = item->end};
        out->item = json_incref(item->json);
        memcpy(out->id, item->id, sizeof out->id);
        memcpy(out->role, item->role, sizeof out->role);
    }
    return 0;
}

static int copy_text(char **ret, const char *text)
{
    *ret = text ? rn_mem_strdup(text) : NULL;
    return text && !*ret ? -ENOMEM : 0;
}

// What a new session, or a new timeline of one, is on disk.
static int describe(const struct rn_service *s, const struct rn_conversation *c, struct rn_store_session *ret)
{
    ret->created_at = c->created_at;
    ret->n = c->n;
    ret->sinks = c->sinks;
    ret->evict = c->evict;
    ret->rope = c->rope;
    ret->origin = c->origin;
    ret->lead = c->lead;
    ret->tokenizer_fingerprint = c->tokenizer;
    ret->at = c->at;
    ret->evicted = c->base - c->sinks;
    memcpy(ret->parent, c->parent, sizeof ret->parent);
    int r = copy_text(&ret->instructions, c->instructions);
    return r < 0 ? r : copy_text(&ret->model_id, s->info->model_id);
}

static struct rn_store_job *make_job(const struct rn_run *run, enum rn_store_op op)
{
    struct rn_store_job *job = rn_store_job_create(op);
    if (job) {
        memcpy(job->session.id, run->conv->id, sizeof job->session.id);
        memcpy(job->response.id, run->req->response_id, sizeof job->response.id);
        job->session.last_used = run->conv->last_used;
    }
    return job;
}

static struct rn_store_job *rebase_job(const struct rn_service *s, const struct rn_run *run)
{
    struct rn_store_job *job = make_job(run, RN_STORE_REBASE);
    const struct rn_conversation *c = run->conv;
    int r = job ? describe(s, c, &job->session) : -ENOMEM;
    if (r == 0) {
        job->timeline = true;
        r = copy_ids(job, &c->timeline.log, 0, c->head);
    }
    if (r == 0) {
        r = copy_items(job, &c->timeline, 0, run->items_before);
    }
    if (r < 0) {
        rn_store_job_destroy(job);
        return NULL;
    }
    return job;
}

static struct rn_store_job *begin_job(const struct rn_service *s, const struct rn_run *run)
{
    struct rn_store_job *job = make_job(run, RN_STORE_BEGIN);
    const struct rn_conversation *c = run->conv;
    const struct rn_request *req = run->req;
    int r = job ? copy_text(&job->session.title, c->title) : -ENOMEM;
    if (r == 0 && run->create) {
        job->create = true;
        memcpy(job->fork_of, run->fork_of, sizeof job->fork_of);
        job->fork_items = run->fork_items;
        r = describe(s, c, &job->session);
    }
    if (r == 0) {
        job->from = c->head;
        r = copy_ids(job, &c->timeline.log, c->head, run->prompt_end);
    }
    if (r == 0) {
        r = copy_items(job, &c->timeline, run->items_before, c->timeline.n_items);
    }
    if (r < 0) {
        rn_store_job_destroy(job);
        return NULL;
    }
    snprintf(job->response.parent_id, sizeof job->response.parent_id, "%s", req->previous_response_id ? req->previous_response_id : "");
    job->response.created_at = run->created_at;
    job->response.seed = req->sampling.seed;
    job->response.generate = req->generate;
    job->response.echo = json_incref(req->echo);
    job->response.sampling = rn_record_sampling(req);
    return job;
}

static bool has_answer_item(const struct rn_request *req)
{
    return req->generate && !req->raw_ids;
}

static struct rn_store_job *end_job(const struct rn_run *run)
{
    static const enum rn_store_status status[] = {
        [RN_STATUS_COMPLETED] = RN_STORE_COMPLETED, [RN_STATUS_INCOMPLETE] = RN_STORE_INCOMPLETE, [RN_STATUS_FAILED] = RN_STORE_FAILED};
    struct rn_store_job *job = make_job(run, run->keep ? RN_STORE_END : RN_STORE_ABANDON);
    if (!job) {
        return NULL;
    }
    const struct rn_conversation *c = run->conv;
    int r = 0;
    if (run->keep) {
        job->from = run->prompt_end;
        job->session.evicted = run->base - c->sinks;
        job->session.origin = c->origin;
        size_t last = c->timeline.n_items - has_answer_item(run->req);
        r = copy_ids(job, &c->timeline.log, run->prompt_end, c->timeline.log.len);
        r = r < 0 ? r : copy_items(job, &c->timeline, last, c->timeline.n_items);
    }
    if (r < 0) {
        rn_store_job_destroy(job);
        return NULL;
    }
    job->response.status = status[run->status];
    snprintf(job->response.cause, sizeof job->response.cause, "%s", run->cause);
    job->response.completed_at = rn_clock_unix();
    job->response.usage = json_incref(run->usage);
    job->response.record = json_incref(run->record);
    return job;
}

// Pages beyond the log's end are taken back; where that cannot be done they are all given up.
static void match_pages(struct rn_conversation *c)
{
    if (c->seq && rn_seq_head(c->seq) > c->timeline.log.len && c->timeline.log.len != 0) {
        if (rn_seq_rewind(c->seq, c->timeline.log.len, NULL) < 0) {
            rn_conversation_drop_pages(c);
        }
    } else if (c->seq && c->timeline.log.len == 0) {
        rn_conversation_drop_pages(c);
    }
}

static void go_back(struct rn_conversation *c, const struct rn_run *run)
{
    rn_timeline_cut(&c->timeline, c->head, run->items_before);
    match_pages(c);
}

// ---- Begin -----------------------------------------------------------------------------------------------------------------------------

static void begun(struct rn_service *s, struct rn_run *run)
{
    struct rn_event *e = rn_run_event(run, RN_EVENT_CREATED);
    if (e) {
        memcpy(e->session_id, run->conv->id, sizeof e->session_id);
        e->created_at = run->created_at;
        e->seed = run->req->sampling.seed;
        e->record = rn_record_begun(run); // without memory for it the terminal event has it
    }
    run->state = RN_RUN_WAITING;
    rn_service_emit(s, e);
}

// The disk refused. What it has counts: a conversation that may differ from it is dropped from memory and will be loaded again.
static void begin_failed(struct rn_service *s, struct rn_run *run)
{
    struct rn_fault f = {0};
    struct rn_conversation *c = run->conv;
    if (run->store_rc == -ENOENT) {
        rn_fault_set(&f, 404, "not_found", run->req->session_id ? "runnel.session" : "previous_response_id", "session '%s' was deleted",
                     run->fork_of[0] ? run->fork_of : c->id);
    } else {
        rn_fault_set(&f, 503, "storage", NULL, "the request cannot be stored: %s",
                     run->fault.err.text[0] ? run->fault.err.text : "too much waits for the disk");
    }
    bool differs = run->create || run->moved || run->store_rc == -ENOENT || run->store_rc == -ESTALE;
    if (!differs) {
        go_back(c, run);
    }
    c->run = NULL;
    run->conv = NULL;
    if (differs) {
        rn_conversations_remove(&s->all, c);
    }
    rn_run_refuse(s, run, &f);
}

static void begin_step(struct rn_service *s, struct rn_run *run)
{
    if (run->jobs > 0) {
        return;
    }
    if (run->store_rc < 0) {
        begin_failed(s, run);
    } else {
        begun(s, run);
    }
}

static void keep_result(struct rn_run *run, struct rn_store_job *job)
{
    run->jobs--;
    if (job->rc < 0 && run->store_rc == 0) {
        run->store_rc = job->rc;
        run->fault.err = job->err;
    }
}

static void begin_done(struct rn_service *s, struct rn_run *run, struct rn_store_job *job)
{
    keep_result(run, job);
    rn_store_job_destroy(job);
    begin_step(s, run);
}

static void submit(struct rn_service *s, struct rn_run *run, struct rn_store_job *job, rn_stored_fn then)
{
    int r = rn_service_store(s, run, job, then);
    if (r == 0) {
        run->jobs++;
    } else if (run->store_rc == 0) {
        run->store_rc = r;
    }
}

void rn_run_begin(struct rn_service *s, struct rn_run *run, bool rebased)
{
    run->state = RN_RUN_BEGINNING;
    if (run->conv->on_disk) {
        if (rebased) {
            run->moved = true;
            submit(s, run, rebase_job(s, run), begin_done);
        }
        if (run->store_rc == 0) {
            submit(s, run, begin_job(s, run), begin_done);
        }
    }
    begin_step(s, run);
}

// ---- End -------------------------------------------------------------------------------------------------------------------------------

static void emit_done(struct rn_service *s, struct rn_run *run)
{
    struct rn_event *e = rn_run_terminal(run, RN_EVENT_DONE);
    struct rn_answer *a = &run->answer;
    memcpy(e->session_id, run->conv->id, sizeof e->session_id);
    e->created_at = run->created_at;
    e->status = run->status;
    e->incomplete_reason = run->status == RN_STATUS_INCOMPLETE && strcmp(run->cause, "length") == 0 ? "max_output_tokens" : NULL;
    e->kept = run->keep && has_answer_item(run->req);
    e->input_tokens = run->visible;
    e->cached_tokens = run->cached;
    e->output_tokens = a->ids.len;
    e->text = a->text.data ? a->text.data : rn_mem_strdup(""); // the buffers are handed on
    e->text_len = a->text.len;
    e->ids = a->ids.data;
    e->n_ids = a->ids.len;
    e->logprobs = run->req->logprobs ? rn_logprobs_json(&run->logprobs, s->text, 0, a->ids.len) : NULL;
    a->text = (struct rn_buf){0};
    a->ids = (struct rn_ids){0};
    e->record = json_incref(run->record);
    e->cause = run->cause;
    if (run->status == RN_STATUS_FAILED) {
        e->http_status = run->fault.http_status;
        e->code = run->fault.code;
        e->message = rn_mem_strdup(run->fault.err.text);
    }
    rn_service_emit(s, e);
}

// The conversation moves: its head is the end of this response.
static void advance(struct rn_conversation *c, struct rn_run *run)
{
    c->head = c->timeline.log.len;
    c->base = run->base;
    c->rebased = NULL; // told
    memcpy(c->last_response_id, run->req->response_id, sizeof c->last_response_id);
    match_pages(c);
    if (c->seq && c->head > 0) {
        rn_seq_hold(c->seq, c->head - 1, rn_timeline_turn_of(&c->timeline, c->head - 1));
    }
}

static void set_cause(struct rn_run *run, enum rn_status status, const char *cause, const char *detail)
{
    run->status = status;
    run->cause = cause;
    run->detail = detail;
}

static void ended(struct rn_service *s, struct rn_run *run)
{
    struct rn_conversation *c = run->conv;
    if (run->store_rc < 0) {
        run->keep = false;
        set_cause(run, RN_STATUS_FAILED, "storage", NULL);
        struct rn_err story = run->fault.err;
        rn_fault_set(&run->fault, 503, "storage", NULL, "the answer cannot be stored: %s",
                     story.text[0] ? story.text : "too much waits for the disk");
        run->base = c->base;
        json_decref(run->record);
        run->record = rn_record_make(s, run);
    }
    if (run->keep) {
        advance(c, run);
    } else {
        go_back(c, run);
    }
    struct rn_answered a = {.head = c->head, .n_items = c->timeline.n_items, .base = c->base};
    memcpy(a.id, run->req->response_id, sizeof a.id);
    (void)rn_conversation_add_answered(c, &a); // without memory for it the response cannot be continued by name, no more
    emit_done(s, run);
    c->run = NULL;
    c->last_used = rn_clock_unix();
    rn_conversations_touch(&s->all, c);
    if (!c->listed && (c->lane == 0 || c->ended || run->lane_gone)) {
        rn_conversations_remove(&s->all, c);
    }
    run->conv = NULL;
    rn_run_destroy(s, run);
    rn_conversations_trim(&s->all);
}

static void end_done(struct rn_service *s, struct rn_run *run, struct rn_store_job *job)
{
    keep_result(run, job);
    rn_store_job_destroy(job);
    ended(s, run);
}

// The answer as an item of the conversation.
static int add_answer(struct rn_run *run)
{
    struct rn_conversation *c = run->conv;
    const struct rn_answer *a = &run->answer;
    const char *status = run->status == RN_STATUS_COMPLETED ? "completed" : "incomplete";
    struct rn_item item = {.role = "assistant", .answer = true, .first = run->generation, .end = c->timeline.log.len};
    item.json = json_pack("{s:s, s:s, s:s, s:s, s:[{s:s, s:s%, s:[], s:[]}]}", "id", run->req->item_id, "type", "message", "status", status,
                          "role", "assistant", "content", "type", "output_text", "text", a->text.data ? a->text.data : "", a->text.len,
                          "annotations", "logprobs");
    if (!item.json) {
        return -ENOMEM;
    }
    memcpy(item.id, run->req->item_id, sizeof item.id);
    int r = rn_timeline_add_item(&c->timeline, &item);
    json_decref(item.json);
    return r;
}

uint64_t rn_run_last_base(const struct rn_run *run)
{
    const struct rn_conversation *c = run->conv;
    uint64_t len = c->timeline.log.len;
    if (run->again) {
        return run->again_base;
    }
    if (!c->seq || len == 0) {
        return c->base;
    }
    uint64_t head = rn_seq_head(c->seq);
    return head >= len ? rn_seq_base(c->seq, len - 1) : rn_seq_next_base(c->seq);
}

void rn_run_end(struct rn_service *s, struct rn_run *run, enum rn_status status, const char *cause, const char *detail)
{
    struct rn_conversation *c = run->conv;
    bool prefilled = run->state == RN_RUN_DECODE || (run->again && run->decoded);
    if (c->seq && (run->state == RN_RUN_DECODE || run->state == RN_RUN_PREFILL)) {
        rn_seq_unreserve(c->seq);
    }
    if (run->again) { // half read again: not worth keeping
        rn_conversation_drop_pages(c);
    }
    run->state = RN_RUN_ENDING;
    if (prefilled) {
        (void)rn_answer_close(&run->answer); // without memory half a character stays unsaid
        rn_run_emit_text(s, run, /*closed=*/true);
    }
    set_cause(run, status, cause, detail);
    run->keep = prefilled && status != RN_STATUS_FAILED;
    if (run->keep && has_answer_item(run->req) && add_answer(run) < 0) {
        run->keep = false;
        set_cause(run, RN_STATUS_FAILED, "error", "out of memory");
        rn_fault_set(&run->fault, 500, "internal_error", NULL, "out of memory");
    }
    run->base = run->keep ? rn_run_last_base(run) : c->base;
    if (run->keep) {
        rn_run_tell_evictions(s, run, run->base, /*last=*/true);
    }
    run->rebased = c->rebased;
    run->record = rn_record_make(s, run);
    run->usage = rn_record_usage(run);
    if (c->on_disk) {
        submit(s, run, end_job(run), end_done);
        if (run->jobs > 0) {
            return;
        }
    }
    ended(s, run);
}

void rn_run_fail(struct rn_service *s, struct rn_run *run, int http_status, const char *code, const char *text)
{
    rn_fault_set(&run->fault, http_status, code, NULL, "%s", text);
    rn_run_end(s, run, RN_STATUS_FAILED, "error", code);
}
