/* struct rn_event -> events of the Responses API. See responses.h for their order.
 *
 * The response object is built once, with every key that strict schemas want, and then only changed in place (status, output, usage).
 * A text delta, the one event per token, is written by hand into a buffer that lives as long as the answer. */
#include "daemon/responses.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/json_text.h"
#include "daemon/lanes.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "session/service.h"

struct rn_answer {
    // Never changes after create.
    char stream_id[RN_STREAM_ID_BYTES]; // "" = default lane
    char response_id[RN_ID_BYTES], item_id[RN_ID_BYTES];
    bool generate;
    rn_emit_fn emit;
    void *user;

    json_t *response;  // the response object; `runnel` in it
    uint64_t sequence; // next sequence_number
    bool created, in_progress, item_open, ended;
    bool held;
    struct rn_buf seen;       // the answer so far, emitted or held
    struct rn_buf pending;    // text held back
    json_t *pending_logprobs; // of that text; array or NULL
    size_t n_logprobs;        // tokens whose log-probabilities went into deltas or pending
    struct rn_buf scratch;    // one event
};

/* ---- Emitting ---------------------------------------------------------------------------------------------------------------------- */

static int emit_scratch(struct rn_answer *a)
{
    a->sequence++;
    return a->emit(a->user, a->scratch.data, a->scratch.len);
}

// Takes `fields` (NULL = out of memory); the event is {"type", "sequence_number", fields…, "stream_id"?}.
static int emit(struct rn_answer *a, const char *type, json_t *fields)
{
    json_t *event = fields ? json_pack("{s:s, s:I}", "type", type, "sequence_number", (json_int_t)a->sequence) : NULL;
    bool ok = event && json_object_update(event, fields) == 0 &&
              (!a->stream_id[0] || json_object_set_new(event, "stream_id", json_string(a->stream_id)) == 0);
    rn_buf_clear(&a->scratch);
    int r = ok ? rn_json_add(&a->scratch, event) : -ENOMEM;
    json_decref(event);
    json_decref(fields);
    return r < 0 ? r : emit_scratch(a);
}

static int emit_response(struct rn_answer *a, const char *type)
{
    return emit(a, type, json_pack("{s:O}", "response", a->response));
}

static int set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) < 0 ? -ENOMEM : 0;
}

// logprobs: borrowed; NULL = none.
static json_t *output_part(const char *text, size_t len, json_t *logprobs)
{
    return json_pack("{s:s, s:s%, s:[], s:o}", "type", "output_text", "text", text, len, "annotations", "logprobs",
                     logprobs ? json_incref(logprobs) : json_array());
}

static json_t *output_item(struct rn_answer *a, const char *status, json_t *content)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", a->item_id, "type", "message", "status", status, "role", "assistant", "content",
                     content);
}

static int emit_delta(struct rn_answer *a, const char *text, size_t len, const json_t *logprobs)
{
    struct rn_buf *b = &a->scratch;
    rn_buf_clear(b);
    bool ok = rn_buf_printf(b,
                            "{\"type\":\"response.output_text.delta\",\"sequence_number\":%" PRIu64 ",\"item_id\":\"%s\","
                            "\"output_index\":0,\"content_index\":0,\"delta\":",
                            a->sequence, a->item_id) == 0 &&
              rn_json_add_string(b, text, len) == 0 && rn_buf_add_str(b, ",\"logprobs\":") == 0 &&
              (logprobs ? rn_json_add(b, logprobs) : rn_buf_add_str(b, "[]")) == 0 &&
              (!a->stream_id[0] || rn_buf_printf(b, ",\"stream_id\":\"%s\"", a->stream_id) == 0) && rn_buf_add_char(b, '}') == 0;
    return ok ? emit_scratch(a) : -ENOMEM;
}

static int flush_pending(struct rn_answer *a)
{
    if (!a->pending.len) {
        return 0;
    }
    int r = emit_delta(a, a->pending.data, a->pending.len, a->pending_logprobs);
    rn_buf_clear(&a->pending);
    json_decref(a->pending_logprobs);
    a->pending_logprobs = NULL;
    return r;
}

/* ---- The response object ----------------------------------------------------------------------------------------------------------- */

static json_t *response_object(const struct rn_answer_params *params)
{
    const struct rn_request *q = params->request;
    json_t *response =
        json_pack("{s:s, s:s, s:I, s:n, s:s, s:b, s:n, s:n, s:s?, s:n, s:n, s:s, s:[], s:b, s:s?, s:n}",                    //
                  "id", q->response_id, "object", "response", "created_at", (json_int_t)rn_clock_unix(), "completed_at",    //
                  "status", "in_progress", "background", 0, "error", "incomplete_details", "instructions", q->instructions, //
                  "max_output_tokens", "max_tool_calls", "model", params->model_id, "output", "parallel_tool_calls", 1,     //
                  "previous_response_id", q->previous_response_id, "conversation");
    json_t *rest =
        json_pack("{s:n, s:{s:n, s:n}, s:n, s:s, s:b, s:f, s:{s:{s:s}, s:s}, s:s, s:[], s:i, s:f, s:f, s:f, s:s, s:n, s:n, s:{}}", //
                  "prompt_cache_key", "reasoning", "effort", "summary", "safety_identifier", "service_tier", "default",            //
                  "store", q->store, "temperature", 1.0, "text", "format", "type", "text", "verbosity", "medium",                  //
                  "tool_choice", "auto", "tools", "top_logprobs", 0, "top_p", 1.0, "presence_penalty", 0.0,                        //
                  "frequency_penalty", 0.0, "truncation", "disabled", "usage", "user", "metadata");
    json_t *own = json_pack("{s:n, s:O*, s:O*}", "session", "warnings", q->warnings, "ignored", q->ignored);
    json_t *echo = q->echo ? json_deep_copy(q->echo) : json_object(); // the request goes to another thread
    bool ok = response && rest && own && echo && json_object_update(response, rest) == 0 && json_object_update(response, echo) == 0;
    json_t *copy = ok ? json_deep_copy(own) : NULL;
    ok = copy && json_object_set_new(response, "runnel", copy) == 0;
    json_decref(rest);
    json_decref(own);
    json_decref(echo);
    if (!ok) {
        json_decref(response);
        return NULL;
    }
    return response;
}

int rn_answer_create(struct rn_answer **ret, const struct rn_answer_params *params)
{
    struct rn_answer *a = rn_mem_alloc(1, sizeof *a);
    if (!a) {
        return -ENOMEM;
    }
    snprintf(a->stream_id, sizeof a->stream_id, "%s", params->stream_id ? params->stream_id : "");
    memcpy(a->response_id, params->request->response_id, sizeof a->response_id);
    memcpy(a->item_id, params->request->item_id, sizeof a->item_id);
    a->generate = params->request->generate;
    a->emit = params->emit;
    a->user = params->user;
    a->response = response_object(params);
    if (!a->response) {
        rn_answer_destroy(a);
        return -ENOMEM;
    }
    *ret = a;
    return 0;
}

void rn_answer_destroy(struct rn_answer *a)
{
    if (!a) {
        return;
    }
    json_decref(a->response);
    json_decref(a->pending_logprobs);
    rn_buf_finish(&a->seen);
    rn_buf_finish(&a->pending);
    rn_buf_finish(&a->scratch);
    rn_mem_free(a);
}

const char *rn_answer_response_id(const struct rn_answer *a)
{
    return a->response_id;
}

/* ---- Events ------------------------------------------------------------------------------------------------------------------------ */

static int add_record(json_t *own, const json_t *record)
{
    json_t *copy = json_deep_copy(record); // the event goes on to be freed on this thread, what it shares does not
    int r = copy && json_object_update(own, copy) == 0 ? 0 : -ENOMEM;
    json_decref(copy);
    return r;
}

static int on_created(struct rn_answer *a, const struct rn_event *e)
{
    json_t *own = json_object_get(a->response, "runnel");
    if (a->created) {
        return 0;
    }
    a->created = true;
    if ((e->session_id[0] && set(own, "session", json_string(e->session_id)) < 0) ||
        (e->created_at && set(a->response, "created_at", json_integer(e->created_at)) < 0) ||
        (e->kind == RN_EVENT_CREATED && set(own, "sampling", json_pack("{s:I}", "seed", (json_int_t)e->seed)) < 0) ||
        (e->kind == RN_EVENT_CREATED && e->record && add_record(own, e->record) < 0)) {
        return -ENOMEM;
    }
    return emit_response(a, "response.created");
}

static int on_started(struct rn_answer *a)
{
    if (a->in_progress || !a->generate) {
        return 0;
    }
    a->in_progress = true;
    return set(a->response, "status", json_string("in_progress")) < 0 ? -ENOMEM : emit_response(a, "response.in_progress");
}

static int on_queued(struct rn_answer *a)
{
    if (a->in_progress || !a->generate) {
        return 0;
    }
    return set(a->response, "status", json_string("queued")) < 0 ? -ENOMEM : emit_response(a, "response.queued");
}

static int open_item(struct rn_answer *a)
{
    if (a->item_open) {
        return 0;
    }
    a->item_open = true;
    int r = on_started(a);
    if (r == 0) {
        r = emit(a, "response.output_item.added",
                 json_pack("{s:i, s:o}", "output_index", 0, "item", output_item(a, "in_progress", json_array())));
    }
    return r ? r
             : emit(a, "response.content_part.added",
                    json_pack("{s:s, s:i, s:i, s:o}", "item_id", a->item_id, "output_index", 0, "content_index", 0, "part",
                              output_part("", 0, NULL)));
}

static int add_pending(struct rn_answer *a, const char *text, size_t len, json_t *logprobs)
{
    if (logprobs && !a->pending_logprobs && !(a->pending_logprobs = json_array())) {
        return -ENOMEM;
    }
    if (logprobs && json_array_extend(a->pending_logprobs, logprobs) < 0) {
        return -ENOMEM;
    }
    return rn_buf_add(&a->pending, text, len);
}

static int on_text(struct rn_answer *a, const char *text, size_t len, json_t *logprobs)
{
    int r = len ? open_item(a) : 0;
    if (r || !len) {
        return r;
    }
    if (rn_buf_add(&a->seen, text, len) < 0) {
        return -ENOMEM;
    }
    a->n_logprobs += json_array_size(logprobs);
    return a->held ? add_pending(a, text, len, logprobs) : emit_delta(a, text, len, logprobs);
}

static int on_evicted(struct rn_answer *a, const struct rn_event *e)
{
    int r = flush_pending(a); // what was said before stays before
    return r ? r
             : emit(a, "runnel:context.evicted",
                    json_pack("{s:s, s:I, s:I, s:s?}", "response_id", a->response_id, "evicted_tokens", (json_int_t)e->evicted, "kept_from",
                              (json_int_t)e->kept_from, "kept_from_item", e->kept_from_item[0] ? e->kept_from_item : NULL));
}

// The rest of an answer, which no delta had yet.
static int on_rest(struct rn_answer *a, const char *text, size_t len, const json_t *logprobs)
{
    json_t *rest = NULL;
    if (logprobs && !(rest = json_array())) {
        return -ENOMEM;
    }
    int r = 0;
    for (size_t i = a->n_logprobs; r == 0 && i < json_array_size(logprobs); i++) {
        r = json_array_append(rest, json_array_get(logprobs, i)) < 0 ? -ENOMEM : 0;
    }
    r = r ? r : on_text(a, text, len, rest);
    json_decref(rest);
    return r;
}

static int close_item(struct rn_answer *a, const char *text, size_t len, json_t *logprobs, const char *status)
{
    json_t *item = output_item(a, status, json_pack("[o]", output_part(text, len, logprobs)));
    if (!item || json_array_append(json_object_get(a->response, "output"), item) < 0) {
        json_decref(item);
        return -ENOMEM;
    }
    int r = emit(a, "response.output_text.done",
                 json_pack("{s:s, s:i, s:i, s:s%, s:o}", "item_id", a->item_id, "output_index", 0, "content_index", 0, "text", text, len,
                           "logprobs", logprobs ? json_incref(logprobs) : json_array()));
    if (r == 0) {
        r = emit(a, "response.content_part.done",
                 json_pack("{s:s, s:i, s:i, s:o}", "item_id", a->item_id, "output_index", 0, "content_index", 0, "part",
                           output_part(text, len, logprobs)));
    }
    if (r == 0) {
        r = emit(a, "response.output_item.done", json_pack("{s:i, s:O}", "output_index", 0, "item", item));
    }
    json_decref(item);
    return r;
}

static json_t *usage_object(const struct rn_event *e)
{
    return json_pack("{s:I, s:{s:I, s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)e->input_tokens, "input_tokens_details",
                     "cached_tokens", (json_int_t)e->cached_tokens, "cache_write_tokens", (json_int_t)0, "output_tokens",
                     (json_int_t)e->output_tokens, "output_tokens_details", "reasoning_tokens", (json_int_t)0, "total_tokens",
                     (json_int_t)(e->input_tokens + e->output_tokens));
}

static int finish_response(struct rn_answer *a, const struct rn_event *e, const char *status)
{
    json_t *response = a->response, *own = json_object_get(response, "runnel");
    int r = set(response, "status", json_string(status)) | set(response, "usage", usage_object(e));
    if (e->status == RN_STATUS_COMPLETED) {
        r |= set(response, "completed_at", json_integer(rn_clock_unix()));
    }
    if (e->status == RN_STATUS_INCOMPLETE && e->incomplete_reason) {
        r |= set(response, "incomplete_details", json_pack("{s:s}", "reason", e->incomplete_reason));
    }
    if (e->status == RN_STATUS_FAILED) {
        r |= set(response, "error",
                 json_pack("{s:s, s:s}", "code", "server_error", "message", e->message ? e->message : "the response failed"));
    }
    r |= e->record ? add_record(own, e->record) : 0;
    return r ? -ENOMEM : 0;
}

static int on_done(struct rn_answer *a, const struct rn_event *e)
{
    static const char *const names[] = {"completed", "incomplete", "failed"};
    static const char *const types[] = {"response.completed", "response.incomplete", "response.failed"};
    const char *text = e->text ? e->text : "";
    size_t n = a->seen.len;
    int r = on_created(a, e);
    if (r == 0 && a->generate) {
        // What no delta had yet. (It does not fit only when deltas were dropped, see rn_net_event: then the done events have it all.)
        if (e->text_len > n && (n == 0 || memcmp(text, a->seen.data, n) == 0)) {
            r = on_rest(a, text + n, e->text_len - n, e->logprobs);
        }
        // What the conversation keeps is an item of the output too, also one that was cancelled before its first word.
        bool has_item = a->item_open || e->kept || e->status == RN_STATUS_COMPLETED || e->incomplete_reason;
        r = r || !has_item ? r : open_item(a); // one that ended while it waited never was in progress
        r = r ? r : flush_pending(a);
        if (r == 0 && has_item) {
            r = close_item(a, text, e->text_len, e->logprobs, e->status == RN_STATUS_COMPLETED ? "completed" : "incomplete");
        }
    }
    r = r ? r : finish_response(a, e, names[e->status]);
    a->ended = true;
    return r ? r : emit_response(a, types[e->status]);
}

int rn_answer_event(struct rn_answer *a, const struct rn_event *e)
{
    if (a->ended) { // keeps I2
        return 0;
    }
    switch (e->kind) {
    case RN_EVENT_CREATED:
        return on_created(a, e);
    case RN_EVENT_QUEUED:
        return on_queued(a);
    case RN_EVENT_STARTED:
        return on_started(a);
    case RN_EVENT_TEXT:
        return on_text(a, e->text ? e->text : "", e->text_len, e->logprobs);
    case RN_EVENT_EVICTED:
        return on_evicted(a, e);
    case RN_EVENT_DONE:
        return on_done(a, e);
    case RN_EVENT_ERROR:
    case RN_EVENT_REPLY:
        break;
    }
    return 0;
}

int rn_answer_hold(struct rn_answer *a, bool held)
{
    a->held = held;
    return held || a->ended ? 0 : flush_pending(a);
}

int rn_answer_cancelled(struct rn_answer *a)
{
    json_t *record = json_pack("{s:{s:s, s:n}}", "stop", "cause", "cancelled", "detail");
    struct rn_event done = {.kind = RN_EVENT_DONE, .status = RN_STATUS_INCOMPLETE, .cause = "cancelled", .record = record};
    int r = record ? on_created(a, &done) : -ENOMEM;
    r = r ? r : on_done(a, &done);
    json_decref(record);
    return r;
}
