#include "tests/unit/session_kit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"

static void on_event(void *user, struct rn_event *e)
{
    struct kit *k = user;
    if (rn_queue_push(k->events, e) < 0) {
        abort();
    }
}

void kit_init(struct kit *k, struct rn_engine *engine)
{
    *k = (struct kit){.engine = engine, .replies = calloc(KIT_TICKETS, sizeof *k->replies)};
    k->params = (struct rn_service_params){.engine = engine, .window = 512, .sinks = -1, .on_event = on_event, .user = k};
    assert_int_equal(rn_queue_create(&k->events, 1 << 20, NULL, NULL, NULL), 0);
}

void kit_start(struct kit *k, const char *state_dir)
{
    struct rn_err err = {0};
    k->params.state_dir = state_dir;
    if (rn_service_start(&k->service, &k->params, &err) < 0) {
        fail_msg("%s", err.text);
    }
}

static void sort(struct kit *k, struct rn_event *e)
{
    static const char letters[] = {[RN_EVENT_CREATED] = 'C', [RN_EVENT_QUEUED] = 'Q', [RN_EVENT_STARTED] = 'S', [RN_EVENT_TEXT] = 'T',
                                   [RN_EVENT_EVICTED] = 'E', [RN_EVENT_DONE] = 'D',   [RN_EVENT_ERROR] = '!',   [RN_EVENT_REPLY] = 'R'};
    struct kit_reply *r = &k->replies[e->ticket % KIT_TICKETS];
    size_t n = strlen(r->order);
    if (n < sizeof r->order - 1) {
        r->order[n] = letters[e->kind];
    }
    if (e->kind == RN_EVENT_CREATED) {
        memcpy(r->session, e->session_id, sizeof r->session);
        r->begun_used = (uint64_t)json_integer_value(json_object_get(json_object_get(e->record, "context"), "used"));
    } else if (e->kind == RN_EVENT_TEXT) {
        assert_true(e->text_len > 0 && strlen(r->text) + e->text_len < sizeof r->text);
        strncat(r->text, e->text, e->text_len);
        r->n_text_ids += e->n_ids;
    } else if (e->kind == RN_EVENT_EVICTED) {
        assert_true(e->kept_from > r->kept_from);
        r->evicted = e->evicted;
        r->kept_from = e->kept_from;
        memcpy(r->kept_from_item, e->kept_from_item, sizeof r->kept_from_item);
    }
    if (e->kind == RN_EVENT_DONE || e->kind == RN_EVENT_ERROR || e->kind == RN_EVENT_REPLY) {
        assert_null(r->last); // exactly one
        if (e->kind == RN_EVENT_DONE && r->begun_used > 0 && e->input_tokens > 0) {
            assert_int_equal(r->begun_used, e->input_tokens); // what CREATED said is what the first sampled row saw
        }
        r->last = e;
    } else {
        rn_event_destroy(e);
    }
}

void kit_stop(struct kit *k)
{
    rn_service_stop(k->service);
    k->service = NULL;
    for (struct rn_event *e; (e = rn_queue_pop(k->events)) != NULL;) {
        sort(k, e);
    }
}

void kit_finish(struct kit *k)
{
    kit_stop(k);
    for (size_t i = 0; i < KIT_TICKETS; i++) {
        rn_event_destroy(k->replies[i].last);
    }
    free(k->replies);
    rn_queue_destroy(k->events);
}

json_t *kit_item(const char *role, const char *text)
{
    char id[RN_ID_BYTES];
    rn_id_new("msg_", id);
    return json_pack("{s:s, s:s, s:s, s:[{s:s, s:s}]}", "id", id, "type", "message", "role", role, "content", "type", "input_text", "text",
                     text);
}

struct rn_request *kit_request(const char *text, const char *previous)
{
    struct rn_request *r = rn_request_create();
    r->items = json_array();
    if (text) {
        json_array_append_new(r->items, kit_item("user", text));
    }
    r->previous_response_id = previous ? rn_mem_strdup(previous) : NULL;
    r->sampling.temperature = 0;
    r->has_seed = true;
    r->max_output_tokens = KIT_TOKENS;
    r->lane = 1;
    return r;
}

struct kit_reply *kit_new_reply(struct kit *k)
{
    struct kit_reply *reply = &k->replies[++k->tickets % KIT_TICKETS];
    rn_event_destroy(reply->last);
    memset(reply, 0, sizeof *reply);
    return reply;
}

struct kit_reply *kit_send(struct kit *k, struct rn_request *r)
{
    struct kit_reply *reply = kit_new_reply(k);
    r->ticket = k->tickets;
    memcpy(reply->response, r->response_id, sizeof reply->response);
    memcpy(reply->item, r->item_id, sizeof reply->item);
    assert_int_equal(rn_service_submit(k->service, r), 0);
    return reply;
}

static void next_event(struct kit *k)
{
    struct rn_event *e = rn_queue_pop_wait(k->events, rn_clock_ns() + 20000000000ull);
    if (!e) {
        for (uint64_t t = 1; t <= k->tickets; t++) {
            print_message("ticket %d: %s\n", (int)t, k->replies[t % KIT_TICKETS].order);
        }
        fail_msg("no event came");
    }
    sort(k, e);
}

struct kit_reply *kit_wait(struct kit *k, struct kit_reply *reply)
{
    while (!reply->last) {
        next_event(k);
    }
    return reply;
}

void kit_wait_for(struct kit *k, struct kit_reply *reply, char event)
{
    while (!strchr(reply->order, event)) {
        next_event(k);
    }
}

struct kit_reply *kit_ask(struct kit *k, const char *text, const char *previous)
{
    return kit_wait(k, kit_send(k, kit_request(text, previous)));
}

struct kit_reply *kit_send_query(struct kit *k, enum rn_query what, const char *id)
{
    struct kit_reply *reply = kit_new_reply(k);
    assert_int_equal(rn_service_query(k->service, k->tickets, what, id), 0);
    return reply;
}

struct kit_reply *kit_query(struct kit *k, enum rn_query what, const char *id)
{
    return kit_wait(k, kit_send_query(k, what, id));
}

uint64_t kit_ticket(const struct kit *k, const struct kit_reply *reply)
{
    uint64_t ticket = k->tickets;
    while (&k->replies[ticket % KIT_TICKETS] != reply) {
        ticket--;
    }
    return ticket;
}

void kit_temp_dir(char ret[64])
{
    snprintf(ret, 64, "/tmp/runnel-test-XXXXXX");
    assert_non_null(mkdtemp(ret));
}

void kit_remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') {
            unlink(path);
        }
    }
    if (d) {
        closedir(d);
    }
    rmdir(dir);
}

static json_t *at(const struct kit_reply *r, const char *path)
{
    json_t *v = r->last ? r->last->record : NULL;
    char part[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        v = json_object_get(v, part);
        path += path[n] ? n + 1 : n;
    }
    return v;
}

const char *kit_string(const struct kit_reply *r, const char *path)
{
    return json_string_value(at(r, path));
}

int64_t kit_number(const struct kit_reply *r, const char *path)
{
    json_t *v = at(r, path);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
}
