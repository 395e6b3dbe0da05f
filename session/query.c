/* Listing, showing and deleting sessions: from the store, or from memory where there is none. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "session/session_internal.h"

#define MAX_QUERIES 64 // at the store at once

static void reply(struct rn_service *s, uint64_t ticket, int status, const char *code, const char *message, json_t *value)
{
    struct rn_event *e = rn_mem_alloc(1, sizeof *e);
    if (e) {
        *e = (struct rn_event){.kind = RN_EVENT_REPLY, .ticket = ticket, .http_status = status, .code = code, .reply = json_incref(value)};
        e->message = message ? rn_mem_strdup(message) : NULL;
    }
    json_decref(value);
    rn_service_emit(s, e);
}

static json_t *text_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

static json_t *describe(const struct rn_store_session *session)
{
    return json_pack("{s:s, s:o, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:s}", "id", session->id, "title", text_or_null(session->title),
                     "created_at", (json_int_t)session->created_at, "last_used", (json_int_t)session->last_used, "last_response_id",
                     text_or_null(session->last_response_id), "tokens", (json_int_t)session->head, "evicted", (json_int_t)session->evicted,
                     "window", (json_int_t)session->n, "pinned", (json_int_t)session->sinks, "evict",
                     session->evict == RN_EVICT_TURN ? "turn" : "token");
}

// ---- From the store --------------------------------------------------------------------------------------------------------------------

static json_t *stored_value(const struct rn_store_job *job)
{
    json_t *list = json_array();
    if (job->op == RN_STORE_LIST) {
        for (size_t i = 0; i < job->n_sessions; i++) {
            json_array_append_new(list, describe(&job->sessions[i]));
        }
        return json_pack("{s:o}", "data", list);
    }
    if (job->op == RN_STORE_DELETE) {
        json_decref(list);
        return json_pack("{s:s, s:b}", "id", job->session.id, "deleted", 1);
    }
    for (size_t i = 0; i < job->n_items; i++) {
        json_array_append(list, job->items[i].item);
    }
    json_t *value = describe(&job->session);
    json_object_set_new(value, "items", list);
    return value;
}

static void answered(struct rn_service *s, struct rn_run *none, struct rn_store_job *job)
{
    (void)none; // queries belong to no run
    s->n_queries--;
    if (job->rc == 0) {
        if (job->op == RN_STORE_DELETE) {
            struct rn_conversation *c = rn_conversations_find(&s->all, job->session.id);
            if (c && !c->run) {
                rn_conversations_remove(&s->all, c);
            }
        }
        reply(s, job->ticket, 200, NULL, NULL, stored_value(job));
    } else if (job->rc == -ENOENT) {
        reply(s, job->ticket, 404, "not_found", job->err.text, NULL);
    } else {
        reply(s, job->ticket, 503, "storage", job->err.text, NULL);
    }
    rn_store_job_destroy(job);
}

static void ask_store(struct rn_service *s, const struct rn_message *m)
{
    static const enum rn_store_op ops[] = {
        [RN_QUERY_LIST] = RN_STORE_LIST, [RN_QUERY_SHOW] = RN_STORE_SHOW, [RN_QUERY_DELETE] = RN_STORE_DELETE};
    struct rn_store_job *job = s->n_queries < MAX_QUERIES ? rn_store_job_create(ops[m->what]) : NULL;
    if (job) {
        job->ticket = m->ticket;
        memcpy(job->session.id, m->id, sizeof job->session.id);
    }
    if (!job || rn_service_store(s, NULL, job, answered) < 0) {
        reply(s, m->ticket, 503, "server_is_overloaded", "too much waits for the disk", NULL);
        return;
    }
    s->n_queries++;
}

// ---- From memory -----------------------------------------------------------------------------------------------------------------------

static json_t *describe_memory(const struct rn_conversation *c)
{
    struct rn_store_session session = {.created_at = c->created_at,
                                       .last_used = c->last_used,
                                       .title = c->title,
                                       .n = c->n,
                                       .sinks = c->sinks,
                                       .evict = c->evict,
                                       .head = c->head,
                                       .evicted = c->base - c->sinks};
    memcpy(session.id, c->id, sizeof session.id);
    memcpy(session.last_response_id, c->last_response_id, sizeof session.last_response_id);
    return describe(&session);
}

static json_t *list_memory(const struct rn_service *s)
{
    json_t *list = json_array();
    uint64_t below = UINT64_MAX;
    for (;;) { // newest stamp first
        const struct rn_conversation *best = NULL;
        for (size_t i = 0; i < s->all.n; i++) {
            const struct rn_conversation *c = s->all.list[i];
            best = c->listed && c->stamp < below && (!best || c->stamp > best->stamp) ? c : best;
        }
        if (!best) {
            return json_pack("{s:o}", "data", list);
        }
        below = best->stamp;
        json_array_append_new(list, describe_memory(best));
    }
}

static void answer_memory(struct rn_service *s, const struct rn_message *m, struct rn_conversation *c)
{
    if (m->what == RN_QUERY_LIST) {
        reply(s, m->ticket, 200, NULL, NULL, list_memory(s));
        return;
    }
    if (!c || !c->listed) {
        reply(s, m->ticket, 404, "not_found", "no such session", NULL);
        return;
    }
    if (m->what == RN_QUERY_DELETE) {
        reply(s, m->ticket, 200, NULL, NULL, json_pack("{s:s, s:b}", "id", c->id, "deleted", 1));
        rn_conversations_remove(&s->all, c);
        return;
    }
    json_t *value = describe_memory(c), *items = json_array();
    for (size_t i = 0; i < c->timeline.n_items; i++) {
        json_array_append(items, c->timeline.items[i].json);
    }
    json_object_set_new(value, "items", items);
    reply(s, m->ticket, 200, NULL, NULL, value);
}

void rn_query_answer(struct rn_service *s, const struct rn_message *m)
{
    struct rn_conversation *c = m->what == RN_QUERY_LIST ? NULL : rn_conversations_find(&s->all, m->id);
    if (s->stopping) {
        reply(s, m->ticket, 503, "draining", "the daemon is stopping", NULL);
    } else if (m->what == RN_QUERY_DELETE && c && c->listed && c->run) {
        reply(s, m->ticket, 409, "session_busy", "the session is busy", NULL);
    } else if (s->store && !(c && !c->listed)) {
        ask_store(s, m);
    } else {
        answer_memory(s, m, c);
    }
}
