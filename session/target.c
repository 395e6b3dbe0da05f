/* Which conversation a request runs on: continue, fork, load or make one; and new timelines for one whose block or tokenizer changed.
 * Design: "The timeline". */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "session/rope_words.h"
#include "session/session_internal.h"

// ---- Loading -----------------------------------------------------------------------------------------------------------------------

// Ids from a database are range-checked: one that this model does not have means another tokenizer.
static void check_ids(const struct rn_service *s, struct rn_conversation *c)
{
    for (size_t i = 0; i < c->timeline.log.len; i++) {
        if (c->timeline.log.data[i] >= s->info->n_vocab) {
            c->tokenizer = ~s->info->tokenizer_fingerprint;
            return;
        }
    }
}

static void loaded(struct rn_service *s, struct rn_run *run, struct rn_store_job *job)
{
    struct rn_conversation *c = NULL;
    int r = job->rc;
    if (r == 0 && !rn_conversations_find(&s->all, job->session.id)) {
        r = rn_conversation_load(&c, job);
        if (r == 0) {
            check_ids(s, c);
            r = rn_conversations_add(&s->all, c);
            if (r < 0) {
                rn_conversation_destroy(c);
            }
        }
    }
    run->loaded = true;
    if (r < 0 && r != -ENOENT) {
        struct rn_fault f = {0};
        rn_fault_set(&f, 503, "storage", NULL, "the conversation cannot be read: %s", job->err.text[0] ? job->err.text : "out of memory");
        rn_store_job_destroy(job);
        rn_run_refuse(s, run, &f);
        return;
    }
    rn_store_job_destroy(job);
    rn_run_accept(s, run);
}

static enum rn_found load(struct rn_service *s, struct rn_run *run, const char *response_id, const char *session_id, struct rn_fault *f)
{
    struct rn_store_job *job = rn_store_job_create(RN_STORE_LOAD);
    if (job && response_id) {
        snprintf(job->response.id, sizeof job->response.id, "%s", response_id);
    } else if (job) {
        snprintf(job->session.id, sizeof job->session.id, "%s", session_id);
    }
    run->state = RN_RUN_LOADING;
    int r = rn_service_store(s, run, job, loaded);
    if (r < 0) {
        rn_fault_set(f, 503, "server_is_overloaded", NULL, "too much waits for the disk");
        return RN_REFUSED;
    }
    return RN_LOADING;
}

// ---- Finding -----------------------------------------------------------------------------------------------------------------------

static enum rn_found fork_of(struct rn_run *run, struct rn_conversation *c, uint64_t at, size_t n_items, uint64_t base,
                             struct rn_conversation **ret, struct rn_fault *f)
{
    if (rn_conversation_fork(ret, c, at, n_items, base) < 0) {
        rn_fault_set(f, 503, "server_is_overloaded", NULL, "out of memory");
        return RN_REFUSED;
    }
    run->create = true;
    if (c->on_disk) {
        snprintf(run->fork_of, sizeof run->fork_of, "%s", c->id);
        run->fork_items = (uint32_t)n_items;
    }
    return RN_FOUND;
}

static bool is_running(const struct rn_service *s, const struct rn_run *run, const char *response_id)
{
    for (const struct rn_run *other = s->runs; other; other = other->next) {
        if (other != run && other->conv && strcmp(other->req->response_id, response_id) == 0) {
            return true;
        }
    }
    return false;
}

// A conversation that this request may move: of its own kind, and of its own lane.
static bool may_move(const struct rn_conversation *c, const struct rn_request *req)
{
    return !c->run && c->listed == req->store && (c->listed || c->lane == req->lane);
}

static enum rn_found by_response(struct rn_service *s, struct rn_run *run, struct rn_conversation **ret, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    const char *id = req->previous_response_id;
    const struct rn_answered *a = NULL;
    if (is_running(s, run, id)) {
        rn_fault_set(f, 409, "session_busy", "previous_response_id", "response '%s' is still running", id);
        return RN_REFUSED;
    }
    struct rn_conversation *c = strlen(id) < RN_ID_BYTES ? rn_conversations_find_response(&s->all, id, &a) : NULL;
    if (!c && s->store && !run->loaded && strlen(id) < RN_ID_BYTES) {
        return load(s, run, id, NULL, f);
    }
    if (!c || (req->store && !c->listed)) {
        rn_fault_set(f, 400, "previous_response_not_found", "previous_response_id", "previous response '%s' not found%s", id,
                     c ? ": it was not stored" : "");
        return RN_REFUSED;
    }
    if (req->session_id && strcmp(req->session_id, c->id) != 0) {
        rn_fault_set(f, 400, "invalid_value", "runnel.session", "response '%s' is not one of session '%s'", id, req->session_id);
        return RN_REFUSED;
    }
    if (a->head == RN_NOWHERE) {
        rn_fault_set(f, 400, "previous_response_not_found", "previous_response_id",
                     "previous response '%s' left its conversation when the instructions changed", id);
        return RN_REFUSED;
    }
    if (a->head == c->head && may_move(c, req)) {
        *ret = c;
        return RN_FOUND;
    }
    return fork_of(run, c, a->head, a->n_items, a->head == c->head ? c->base : a->base, ret, f);
}

static enum rn_found by_session(struct rn_service *s, struct rn_run *run, struct rn_conversation **ret, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    struct rn_conversation *c = strlen(req->session_id) < RN_ID_BYTES ? rn_conversations_find(&s->all, req->session_id) : NULL;
    if (!c && s->store && !run->loaded && strlen(req->session_id) < RN_ID_BYTES) {
        return load(s, run, NULL, req->session_id, f);
    }
    if (!c || (req->store && !c->listed)) {
        rn_fault_set(f, 404, "not_found", "runnel.session", "session '%s' not found", req->session_id);
        return RN_REFUSED;
    }
    if (c->run) {
        rn_fault_set(f, 409, "session_busy", "runnel.session", "session '%s' is busy", req->session_id);
        return RN_REFUSED;
    }
    if (may_move(c, req)) {
        *ret = c;
        return RN_FOUND;
    }
    // Items that a cancelled request left behind on disk are not in memory: all items are the conversation up to the head.
    return fork_of(run, c, c->head, c->timeline.n_items, c->base, ret, f);
}

static void warn_of_scaling(struct rn_run *run, const struct rn_conversation *c, uint32_t trained)
{
    char rope[RN_ROPE_WORDS], text[192];
    rn_rope_format(&c->rope, rope);
    snprintf(text, sizeof text, "RoPE scaling %s is added for a window of %u (trained length %u) and stays with the session; answers may be worse",
             rope, c->n, trained);
    rn_run_warn(run, text);
}

// N, S and the policy of a new session; S waits for B.
static enum rn_found make(struct rn_service *s, struct rn_run *run, struct rn_conversation **ret, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    int64_t n = req->window >= 0 ? req->window : s->params.window;
    uint32_t most = rn_rope_max_n(s->params.rope, s->info->n_ctx_train);
    if (n < 16 || n > most) {
        rn_fault_set(f, 400, "invalid_value", "runnel.window", "window is %lld, expected 16 to %u", (long long)n, most);
        return RN_REFUSED;
    }
    int64_t sinks = req->sinks >= 0 ? req->sinks : s->params.sinks;
    if (sinks > n / 2) {
        rn_fault_set(f, 400, "invalid_value", "runnel.sinks", "sinks is %lld, expected at most %lld, half of the window", (long long)sinks,
                     (long long)(n / 2));
        return RN_REFUSED;
    }
    struct rn_conversation *c = rn_conversation_create();
    if (!c) {
        rn_fault_set(f, 503, "server_is_overloaded", NULL, "out of memory");
        return RN_REFUSED;
    }
    c->n = (uint32_t)n;
    c->evict = req->evict >= 0 ? (enum rn_evict)req->evict : s->params.evict;
    c->rope = rn_rope_for(s->params.rope, c->n, s->info->n_ctx_train);
    if (c->rope.kind != RN_ROPE_AS_TRAINED) {
        warn_of_scaling(run, c, s->info->n_ctx_train);
    }
    c->tokenizer = s->info->tokenizer_fingerprint;
    run->create = true;
    *ret = c;
    return RN_FOUND;
}

static enum rn_found check_same(const struct rn_request *req, const struct rn_conversation *c, struct rn_fault *f)
{
    if (req->window >= 0 && req->window != (int64_t)c->n) {
        rn_fault_set(f, 400, "invalid_value", "runnel.window", "window is %lld, the session's is %u and stays", (long long)req->window,
                     c->n);
    } else if (req->sinks >= 0 && req->sinks != (int64_t)c->sinks) {
        rn_fault_set(f, 400, "invalid_value", "runnel.sinks", "sinks is %lld, the session's is %u and stays", (long long)req->sinks,
                     c->sinks);
    } else if (req->evict >= 0 && req->evict != (int)c->evict) {
        rn_fault_set(f, 400, "invalid_value", "runnel.evict", "evict is '%s', the session's is '%s' and stays",
                     req->evict == RN_EVICT_TURN ? "turn" : "token", c->evict == RN_EVICT_TURN ? "turn" : "token");
    } else {
        return RN_FOUND;
    }
    return RN_REFUSED;
}

enum rn_found rn_run_find(struct rn_service *s, struct rn_run *run, struct rn_conversation **ret, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    run->create = false;
    run->fork_of[0] = 0;
    struct rn_conversation *c = NULL;
    enum rn_found r;
    if (req->previous_response_id) {
        r = by_response(s, run, &c, f);
    } else if (req->session_id) {
        r = by_session(s, run, &c, f);
    } else {
        r = make(s, run, &c, f);
    }
    if (r != RN_FOUND) {
        return r;
    }
    if (req->previous_response_id || req->session_id) {
        r = check_same(req, c, f);
    }
    if (r != RN_FOUND) {
        if (run->create) {
            rn_conversation_destroy(c);
        }
        return r;
    }
    if (run->create) {
        c->listed = req->store;
        c->on_disk = req->store && s->store;
        c->lane = req->store ? 0 : req->lane;
    }
    *ret = c;
    return RN_FOUND;
}

// ---- A new timeline ----------------------------------------------------------------------------------------------------------------

// Items that stay: the leading ones, and those wholly in the window, from the first user message on.
static bool stays(const struct rn_conversation *c, size_t i, bool *started)
{
    const struct rn_item *item = &c->timeline.items[i];
    if (item->first == RN_NOWHERE) {
        return false;
    }
    if (!*started && rn_role_leads(item->role) && item->end <= c->lead) {
        return true;
    }
    uint64_t base = c->base == RN_NOWHERE ? c->origin : c->base;
    bool visible = item->first >= base || item->end <= c->sinks || base <= c->sinks;
    if (!*started && visible) {
        *started = strcmp(item->role, "user") == 0;
    }
    return *started && visible;
}

static int place_items(struct rn_timeline *fresh, const struct rn_conversation *c, const struct rn_plan *plan, const bool *kept)
{
    int r = rn_ids_append(&fresh->log, plan->ids.data, plan->ids.len);
    size_t k = 0;
    for (size_t i = 0; r == 0 && i < c->timeline.n_items; i++) {
        struct rn_item item = c->timeline.items[i];
        item.answer = false; // rendered whole, with what closes it
        item.first = kept[i] ? plan->spans[k].first : RN_NOWHERE;
        item.end = kept[i] ? plan->spans[k].end : RN_NOWHERE;
        k += kept[i];
        item.turn_start = kept[i] && strcmp(item.role, "user") == 0;
        r = rn_timeline_add_item(fresh, &item);
        if (r == 0 && item.turn_start) {
            r = rn_timeline_add_turn(fresh, item.first);
        }
    }
    return r;
}

int rn_fresh_make(struct rn_service *s, const struct rn_conversation *c, const char *instructions, const char *cause, struct rn_fresh *ret,
                  struct rn_err *err)
{
    size_t n = c->timeline.n_items;
    json_t *items = json_array();
    bool *kept = rn_mem_alloc(n, sizeof *kept);
    struct rn_fresh fresh = {.cause = cause, .instructions = instructions && *instructions ? rn_mem_strdup(instructions) : NULL};
    struct rn_timeline empty = {0};
    struct rn_plan plan = {0};
    bool started = false;
    int r = items && kept && (fresh.instructions || !instructions || !*instructions) ? 0 : rn_err_nomem(err, n, "a new timeline");
    size_t n_kept = 0;
    for (size_t i = n; r == 0 && i-- > 0;) { // no more than one request may bring: the newest
        n_kept += c->timeline.items[i].first != RN_NOWHERE;
        kept[i] = n_kept <= RN_PLAN_MAX_ITEMS - 16;
    }
    for (size_t i = 0; r == 0 && i < n; i++) {
        bool leads = !started && rn_role_leads(c->timeline.items[i].role);
        kept[i] = stays(c, i, &started) && (kept[i] || leads);
        r = kept[i] && json_array_append(items, c->timeline.items[i].json) < 0 ? rn_err_nomem(err, n, "a new timeline") : 0;
    }
    if (r == 0) {
        r = rn_plan_make(&plan, s->text, fresh.instructions, &empty, items, /*generate=*/false, err);
    }
    if (r == 0 && place_items(&fresh.timeline, c, &plan, kept) < 0) {
        r = rn_err_nomem(err, n, "a new timeline");
    }
    fresh.lead = plan.lead;
    rn_plan_finish(&plan);
    rn_mem_free(kept);
    json_decref(items);
    if (r < 0) {
        rn_fresh_finish(&fresh);
        return r;
    }
    *ret = fresh;
    return 0;
}
