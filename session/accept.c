/* From a request to an accepted run: its conversation, its new tokens, the refusals. Design: sections 4 (S, N) and 4.1. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/text.h"
#include "session/session_internal.h"

#define TITLE_CHARS 60

void rn_run_refuse(struct rn_service *s, struct rn_run *run, const struct rn_fault *f)
{
    struct rn_event *e = rn_run_terminal(run, RN_EVENT_ERROR);
    e->http_status = f->http_status;
    e->code = f->code;
    e->param = f->param;
    e->message = rn_mem_strdup(f->err.text);
    rn_service_emit(s, e);
    rn_run_destroy(s, run);
}

static int nomem(struct rn_fault *f)
{
    return rn_fault_set(f, 503, "server_is_overloaded", NULL, "out of memory");
}

// Errors of templates and tokenizers: the input's fault, unless memory ran out.
static int text_fault(struct rn_fault *f, int r, const char *param)
{
    if (r == -ENOMEM) {
        return nomem(f);
    }
    f->http_status = 400;
    f->code = "invalid_value";
    f->param = param;
    return r;
}

// ---- The append --------------------------------------------------------------------------------------------------------------------

/* What one request adds. */
struct append {
    struct rn_fresh fresh; // a new timeline first (cause set)
    struct rn_plan plan;
    const struct rn_timeline *onto; // the timeline that it is for
    uint64_t lead;
    uint32_t sinks;
};

static int decide_rebase(struct rn_service *s, struct rn_run *run, struct rn_conversation *c, struct append *a, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    const char *have = c->instructions ? c->instructions : "";
    const char *want = req->instructions ? req->instructions : have;
    const char *cause = NULL;
    if (strcmp(have, want) != 0) {
        cause = "instructions";
    } else if (c->tokenizer != s->info->tokenizer_fingerprint) {
        cause = "model";
    } else if (!req->instructions && *have) {
        rn_run_warn(run, "instructions are absent: the session keeps those it has (the Responses API would drop them)");
    }
    if (!cause) {
        return 0;
    }
    int r = rn_fresh_make(s, c, want, cause, &a->fresh, &f->err);
    if (r < 0) {
        return text_fault(f, r, cause[0] == 'i' ? "instructions" : "input");
    }
    a->onto = &a->fresh.timeline;
    a->lead = a->fresh.lead;
    a->sinks = rn_fresh_sinks(c, &a->fresh);
    return 0;
}

static int plan_raw(const struct rn_service *s, struct rn_run *run, struct rn_plan *plan, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    for (size_t i = 0; i < req->n_raw_ids; i++) {
        if (req->raw_ids[i] >= s->info->n_vocab) {
            return rn_fault_set(f, 400, "invalid_value", "input", "id %u at place %zu, expected less than %u", req->raw_ids[i], i,
                                s->info->n_vocab);
        }
    }
    for (size_t i = 0; i < req->n_turn_starts; i++) {
        if (req->turn_starts[i] >= req->n_raw_ids || (i > 0 && req->turn_starts[i] <= req->turn_starts[i - 1])) {
            return rn_fault_set(f, 400, "invalid_value", "input", "turn start %llu, expected ascending ones below %zu",
                                (unsigned long long)req->turn_starts[i], req->n_raw_ids);
        }
    }
    plan->generation = req->n_raw_ids;
    if (rn_ids_append(&plan->ids, req->raw_ids, req->n_raw_ids) < 0 ||
        rn_answer_follow(&run->answer, s->text, req->raw_ids, req->n_raw_ids) < 0) {
        return nomem(f);
    }
    return 0;
}

// An empty input only asks for an answer: there must be a question.
static int check_empty(const struct rn_request *req, const struct append *a, struct rn_fault *f)
{
    const struct rn_item *last = rn_timeline_last(a->onto);
    if (!req->previous_response_id && !req->session_id) {
        return rn_fault_set(f, 400, "missing_required_parameter", "input", "input is empty and there is no previous response");
    }
    if (!last || !req->generate) {
        return rn_fault_set(f, 400, "invalid_value", "input", "input is empty and there is nothing to %s", last ? "append" : "answer");
    }
    if (strcmp(last->role, "assistant") == 0) {
        return rn_fault_set(f, 400, "invalid_value", "input", "input is empty and the last item is an answer");
    }
    return 0;
}

static int plan_items(struct rn_service *s, const struct rn_run *run, const struct rn_conversation *c, struct append *a, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    if (json_array_size(req->items) == 0) {
        int r = check_empty(req, a, f);
        if (r < 0) {
            return r;
        }
    }
    const char *instructions = a->fresh.cause ? a->fresh.instructions : c->instructions;
    int r = rn_plan_make(&a->plan, s->text, instructions, a->onto, req->items, req->generate, &f->err);
    return r < 0 ? text_fault(f, r, "input") : 0;
}

static int too_long(struct rn_fault *f, const char *what, uint64_t tokens, uint64_t room, uint32_t n)
{
    return rn_fault_set(f, 400, "context_length_exceeded", "input", "%s has %llu tokens, the window of %u has room for %llu", what,
                        (unsigned long long)tokens, n, (unsigned long long)room);
}

// Refusals of design 4, N: a leading block or a message that can never be seen whole.
static int check_lengths(const struct rn_run *run, const struct rn_conversation *c, const struct append *a, struct rn_fault *f)
{
    if (run->req->overflow_roll || run->req->raw_ids) {
        return 0;
    }
    if ((c->head == 0 || a->fresh.cause) && a->lead + 1 > c->n) {
        return too_long(f, "the leading block (instructions and system messages)", a->lead, c->n - 1, c->n);
    }
    uint64_t first = a->onto->log.len == 0 ? a->lead : 0; // items before it lead
    for (size_t i = 0; i < a->plan.n_spans; i++) {
        const struct rn_plan_span *span = &a->plan.spans[i];
        if (span->end <= first) {
            continue;
        }
        uint64_t tokens = i + 1 == a->plan.n_spans ? a->plan.ids.len - span->first : span->end - span->first;
        if (tokens + a->sinks > c->n) {
            char what[64];
            snprintf(what, sizeof what, "input item %zu", i);
            return too_long(f, what, tokens, c->n - a->sinks, c->n);
        }
    }
    return 0;
}

static int plan_append(struct rn_service *s, struct rn_run *run, struct rn_conversation *c, struct append *a, struct rn_fault *f)
{
    const struct rn_request *req = run->req;
    bool is_new = run->create && !c->parent[0];
    *a = (struct append){.onto = &c->timeline, .lead = c->lead, .sinks = c->sinks};
    int r = 0;
    if (is_new) {
        c->instructions = req->instructions && *req->instructions ? rn_mem_strdup(req->instructions) : NULL;
        r = req->instructions && *req->instructions && !c->instructions ? nomem(f) : 0;
    } else {
        r = decide_rebase(s, run, c, a, f);
    }
    if (r == 0) {
        r = req->raw_ids ? plan_raw(s, run, &a->plan, f) : plan_items(s, run, c, a, f);
    }
    if (r == 0 && is_new) {
        int64_t sinks = req->sinks >= 0 ? req->sinks : s->params.sinks;
        a->lead = a->plan.lead;
        a->sinks = sinks >= 0 ? (uint32_t)sinks : rn_auto_sinks(c->n, a->lead);
    }
    if (r == 0 && a->onto->log.len + a->plan.ids.len == 0) {
        return rn_fault_set(f, 400, "invalid_value", "input", "the input gives no tokens");
    }
    return r < 0 ? r : check_lengths(run, c, a, f);
}

// ---- Taking it -----------------------------------------------------------------------------------------------------------------------

static int make_title(struct rn_conversation *c, const json_t *item)
{
    struct rn_buf text = {0};
    int r = rn_item_text(item, &text);
    size_t n = 0, chars = 0;
    for (; n < text.len; n++) {
        if (((unsigned char)text.data[n] & 0xc0) != 0x80 && ++chars > TITLE_CHARS) {
            break;
        }
    }
    if (r == 0 && n > 0) {
        c->title = rn_mem_strndup(text.data, n);
        r = c->title ? 0 : -ENOMEM;
    }
    rn_buf_finish(&text);
    return r;
}

static int add_items(struct rn_conversation *c, const struct rn_run *run, const struct append *a, uint64_t offset)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < a->plan.n_spans; i++) {
        json_t *json = json_array_get(run->req->items, i);
        const char *id = json_string_value(json_object_get(json, "id"));
        struct rn_item item = {.json = json, .first = offset + a->plan.spans[i].first, .end = offset + a->plan.spans[i].end};
        snprintf(item.role, sizeof item.role, "%s", rn_item_role(json));
        if (id) {
            snprintf(item.id, sizeof item.id, "%s", id);
        } else {
            rn_id_new("msg_", item.id);
        }
        item.turn_start = strcmp(item.role, "user") == 0;
        r = rn_timeline_add_item(&c->timeline, &item);
        if (r == 0 && item.turn_start) {
            r = rn_timeline_add_turn(&c->timeline, item.first);
            if (r == 0 && !c->title) {
                r = make_title(c, json);
            }
        }
    }
    for (size_t i = 0; r == 0 && i < run->req->n_turn_starts; i++) {
        r = rn_timeline_add_turn(&c->timeline, offset + run->req->turn_starts[i]);
    }
    return r;
}

// A fork with a new timeline shares nothing with its parent: it is a new session that brings the items it kept itself.
static void start_over(struct rn_run *run, struct rn_conversation *c)
{
    struct rn_timeline *t = &c->timeline;
    size_t n = 0;
    for (size_t i = 0; i < t->n_items; i++) {
        if (t->items[i].first == RN_NOWHERE) {
            json_decref(t->items[i].json);
        } else {
            t->items[n++] = t->items[i];
        }
    }
    t->n_items = n;
    c->head = c->at = 0;
    c->parent[0] = 0;
    c->base = c->origin;
    run->fork_of[0] = 0;
}

// The conversation takes the new timeline and the append; on failure it is as before, but for the new timeline.
static int take(struct rn_service *s, struct rn_run *run, struct rn_conversation *c, struct append *a)
{
    if (a->fresh.cause) {
        rn_conversation_rebase(c, &a->fresh);
        c->tokenizer = s->info->tokenizer_fingerprint;
        if (run->create) {
            start_over(run, c);
        }
    }
    if (run->create && !c->parent[0]) {
        c->lead = a->lead;
        c->sinks = a->sinks;
        c->origin = c->base = a->sinks;
    }
    uint64_t offset = c->timeline.log.len;
    run->items_before = c->head > 0 || !run->create ? c->timeline.n_items : 0;
    int r = rn_ids_append(&c->timeline.log, a->plan.ids.data, a->plan.ids.len);
    if (r == 0) {
        r = add_items(c, run, a, offset);
    }
    if (r == 0 && run->create) {
        r = rn_conversations_add(&s->all, c);
    }
    if (r < 0) {
        rn_timeline_cut(&c->timeline, c->head, run->items_before);
        return r;
    }
    run->prompt_end = c->timeline.log.len;
    run->generation = offset + a->plan.generation;
    run->conv = c;
    c->run = run;
    c->last_used = run->created_at;
    rn_conversations_touch(&s->all, c);
    return 0;
}

static int check_bias(const struct rn_request *req, uint32_t n_vocab, struct rn_fault *f)
{
    for (size_t i = 0; i < req->sampling.n_bias; i++) {
        if (req->bias[i].id >= n_vocab) {
            return rn_fault_set(f, 400, "invalid_value", "logit_bias", "logit_bias has the token id %u, the vocabulary has %u",
                                req->bias[i].id, n_vocab);
        }
    }
    return 0;
}

static int check_request(const struct rn_service *s, const struct rn_run *run, struct rn_fault *f)
{
    size_t limit = (size_t)s->params.max_queue + s->params.max_concurrent;
    if (s->stopping) {
        return rn_fault_set(f, 503, "draining", NULL, "the daemon is stopping");
    }
    if (s->loss.down) {
        return rn_fault_set(f, 503, "device_lost", NULL, "the device is lost; it will be tried again");
    }
    if (!run->loaded && s->n_runs > limit) {
        return rn_fault_set(f, 429, "queue_full", NULL, "%zu requests are running or waiting already", limit);
    }
    if (run->req->raw_ids && run->req->n_raw_ids == 0) {
        return rn_fault_set(f, 400, "invalid_value", "input", "the prompt has no ids");
    }
    return check_bias(run->req, s->info->n_vocab, f);
}

void rn_run_accept(struct rn_service *s, struct rn_run *run)
{
    struct rn_fault f = {0};
    struct rn_conversation *c = NULL;
    struct append a = {0};
    if (check_request(s, run, &f) < 0) {
        rn_run_refuse(s, run, &f);
        return;
    }
    enum rn_found found = rn_run_find(s, run, &c, &f);
    if (found == RN_LOADING) {
        return;
    }
    run->created_at = rn_clock_unix();
    bool rebased = false;
    int r = found == RN_FOUND ? plan_append(s, run, c, &a, &f) : -EINVAL;
    if (r == 0) {
        rebased = a.fresh.cause != NULL && !run->create;
        r = take(s, run, c, &a) < 0 ? nomem(&f) : 0;
    }
    rn_fresh_finish(&a.fresh);
    rn_plan_finish(&a.plan);
    if (r < 0) {
        if (run->create) {
            rn_conversation_destroy(c);
        } else if (rebased) {
            rn_conversations_remove(&s->all, c); // what is on disk counts
        }
        rn_run_refuse(s, run, &f);
        return;
    }
    rn_run_begin(s, run, rebased);
}
