/* What a client's messages ask for: jobs, in lanes, and the events that answer them.
 *
 *   message --parse--> job --lane--> [waiting] --> running (service) --events--> answer (encoder) --> send queue
 *
 * I1 a job that runs has a ticket; its terminal event frees it and starts the next of its lane.
 * I2 a refusal of a response.create keeps its place in the lane, so that it never falls into the events of the one before.
 * Thread: socket. */
#include <errno.h>
#include <string.h>

#include "daemon/json_text.h"
#include "daemon/net_internal.h"
#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/engine.h"
#include "session/service.h"

/* ---- Jobs -------------------------------------------------------------------------------------------------------------------------- */

static const char *lane_id(const struct rn_lane *lane)
{
    return lane && lane->id[0] ? lane->id : NULL;
}

// The lane's name towards the service: unique for the life of the process.
uint64_t rn_lane_name(const struct rn_conn *c, const struct rn_lane *lane)
{
    return c->id * (RN_LANES_NAMED + 1) + lane->serial;
}

void rn_job_destroy(struct rn_job *j)
{
    if (j) {
        rn_request_destroy(j->request);
        rn_answer_destroy(j->answer);
        rn_mem_free(j->problem);
        rn_mem_free(j);
    }
}

static void job_end(struct rn_job *j)
{
    struct rn_conn *c = j->conn;
    if (j->ticket) {
        rn_net_ticket_drop(c->net, j->ticket);
        for (struct rn_job **at = &c->jobs; *at; at = &(*at)->next) {
            if (*at == j) {
                *at = j->next;
                c->n_jobs--;
                break;
            }
        }
    }
    rn_lanes_done(&c->lanes, j->lane);
    rn_job_destroy(j);
}

static void refuse_job(struct rn_job *j, int status, const char *code, const char *message)
{
    struct rn_problem p;
    rn_problem_set(&p, status, code, NULL, "%s", message);
    rn_conn_send_problem(j->conn, &p, lane_id(j->lane));
    job_end(j);
}

static void submit(struct rn_job *j)
{
    struct rn_conn *c = j->conn;
    struct rn_net *net = c->net;
    j->ticket = rn_net_ticket(net, RN_TICKET_JOB, j);
    if (!j->ticket) {
        refuse_job(j, 503, "server_is_overloaded", "too many requests are running");
        return;
    }
    j->next = c->jobs;
    c->jobs = j;
    c->n_jobs++;
    j->request->ticket = j->ticket;
    j->request->lane = rn_lane_name(c, j->lane);
    if (rn_service_submit(net->model->service, j->request) < 0) {
        refuse_job(j, 503, "server_is_overloaded", "too many requests are waiting");
        return;
    }
    j->request = NULL; // the service's now
}

static void start_job(struct rn_job *j)
{
    struct rn_conn *c = j->conn;
    struct rn_problem p;
    if (j->problem) {
        rn_conn_send_problem(c, j->problem, lane_id(j->lane));
        job_end(j);
        return;
    }
    struct rn_answer_params params = {
        .request = j->request, .stream_id = lane_id(j->lane), .model_id = c->net->model->info->model_id, .emit = rn_conn_send, .user = c};
    if (rn_answer_create(&j->answer, &params) < 0) {
        refuse_job(j, 503, "server_is_overloaded", "out of memory");
    } else if (j->cancelled) {
        if (rn_answer_cancelled(j->answer) < 0) {
            rn_conn_close_now(c, 1011, "internal_error");
        }
        job_end(j);
    } else if (rn_net_not_ready(c->net, &p) < 0) {
        refuse_job(j, p.status, p.code, p.message);
    } else {
        submit(j);
    }
}

void rn_jobs_start(struct rn_conn *c)
{
    struct rn_lane *lane;
    struct rn_job *j;
    while (c->wsi && !c->held && (j = rn_lanes_next(&c->lanes, &lane))) {
        start_job(j);
    }
}

void rn_jobs_cancel(struct rn_conn *c)
{
    for (struct rn_job *j = c->jobs; j; j = j->next) {
        rn_service_cancel(c->net->model->service, j->ticket);
    }
}

void rn_jobs_drain(struct rn_conn *c)
{
    struct rn_net *net = c->net;
    rn_jobs_cancel(c);
    rn_jobs_start(c); // what waits in other lanes is refused; in lanes that run, when those have ended
    if (c->wsi && !c->n_jobs) {
        rn_conn_close(c, net->close_code, net->close_code == 1012 ? "service restart" : "going away");
    }
}

/* ---- Events from the service ------------------------------------------------------------------------------------------------------- */

void rn_ws_event(struct rn_job *j, struct rn_event *e)
{
    struct rn_conn *c = j->conn;
    bool is_end = e->kind == RN_EVENT_DONE || e->kind == RN_EVENT_ERROR;
    if (e->kind == RN_EVENT_ERROR) {
        struct rn_problem p;
        rn_problem_set(&p, e->http_status ? e->http_status : 500, e->code ? e->code : "internal_error", e->param, "%s",
                       e->message ? e->message : "the request failed");
        rn_conn_send_problem(c, &p, lane_id(j->lane));
    } else if (rn_answer_event(j->answer, e) < 0) {
        rn_conn_close_now(c, 1011, "internal_error");
    }
    if (is_end) {
        c->traffic_ns = rn_clock_ns();
        job_end(j);
    }
    if (!c->held && c->wsi && c->unsent > RN_WS_HIGH_WATER) {
        rn_conn_hold(c, true);
    }
    if (!is_end) {
        return;
    }
    if (!c->wsi && !c->n_jobs) {
        rn_conn_destroy(c);
    } else if (c->net->draining) {
        rn_jobs_drain(c);
    } else {
        rn_jobs_start(c);
    }
}

/* ---- Messages from the client ------------------------------------------------------------------------------------------------------ */

void rn_conn_refuse(struct rn_conn *c, int status, const char *code, const char *param, const char *stream_id, const char *message)
{
    struct rn_problem p;
    rn_problem_set(&p, status, code, param, "%s", message);
    rn_conn_send_problem(c, &p, stream_id);
}

// *ret_id: NULL = default lane; borrowed from the message. False: refused.
static bool get_stream_id(struct rn_conn *c, const json_t *message, const char **ret_id)
{
    const json_t *v = json_object_get(message, "stream_id");
    *ret_id = json_string_value(v);
    if (v && !json_is_null(v) && (!*ret_id || !rn_stream_id_valid(*ret_id, json_string_length(v)))) {
        rn_conn_refuse(c, 400, "invalid_stream_id", "stream_id", NULL, "stream_id has 1 to 256 characters of A-Z a-z 0-9 _ . -");
        return false;
    }
    return true;
}

static void on_create(struct rn_conn *c, const json_t *message, size_t bytes)
{
    const char *stream_id;
    struct rn_lane *lane;
    if (!get_stream_id(c, message, &stream_id)) {
        return;
    }
    int r = rn_lanes_get(&c->lanes, stream_id, &lane);
    if (r == -E2BIG) {
        rn_conn_refuse(c, 400, "websocket_stream_limit_reached", "stream_id", stream_id, "a connection has at most 32 named lanes");
        return;
    }
    struct rn_job *j = r == 0 ? rn_mem_alloc(1, sizeof *j) : NULL;
    struct rn_problem p;
    if (!j) {
        rn_conn_refuse(c, 503, "server_is_overloaded", NULL, stream_id, "out of memory");
        return;
    }
    j->conn = c;
    j->lane = lane;
    if (rn_responses_parse(message, c->net->model->info->model_id, &j->request, &p) < 0) {
        j->problem = rn_mem_alloc(1, sizeof p);
        if (j->problem) {
            *j->problem = p;
        }
    }
    if ((!j->request && !j->problem) || rn_lanes_push(&c->lanes, lane, j, bytes) < 0) {
        rn_conn_refuse(c, 429, "rate_limit_exceeded", NULL, stream_id,
                       "this lane's queue is full: at most 8 requests wait in a lane, 16 MiB on a connection");
        rn_job_destroy(j);
        return;
    }
    rn_jobs_start(c);
}

// The running answer with this id, of whatever connection: the id is a secret that only its client knows.
static struct rn_job *find_running(struct rn_net *net, const char *response_id)
{
    for (struct rn_conn *c = net->conns; c; c = c->next) {
        for (struct rn_job *j = c->jobs; j; j = j->next) {
            if (strcmp(rn_answer_response_id(j->answer), response_id) == 0) {
                return j;
            }
        }
    }
    return NULL;
}

// Running or waiting in the lane: all of it.
static bool cancel_lane(struct rn_conn *c, struct rn_lane *lane)
{
    bool found = false;
    struct rn_job *waiting;
    for (struct rn_job *j = c->jobs; j; j = j->next) {
        if (j->lane == lane) {
            rn_service_cancel(c->net->model->service, j->ticket);
            found = true;
        }
    }
    for (uint32_t i = 0; (waiting = rn_lane_peek(lane, i)); i++) {
        waiting->cancelled = found = true;
    }
    return found;
}

static void on_cancel(struct rn_conn *c, const json_t *message)
{
    const json_t *id = json_object_get(message, "response_id");
    const char *stream_id;
    if (!get_stream_id(c, message, &stream_id)) {
        return;
    }
    if (id && !json_is_null(id)) {
        struct rn_job *j = json_is_string(id) ? find_running(c->net, json_string_value(id)) : NULL;
        if (j) {
            rn_service_cancel(c->net->model->service, j->ticket);
        } else {
            rn_conn_refuse(c, 404, "response_not_found", "response_id", stream_id, "no response with this id is running");
        }
        return;
    }
    struct rn_lane *lane = rn_lanes_find(&c->lanes, stream_id);
    if (!lane || !cancel_lane(c, lane)) {
        rn_conn_refuse(c, 404, "response_not_found", stream_id ? "stream_id" : NULL, stream_id, "nothing is running in this lane");
    }
}

static void on_steer(struct rn_conn *c, const json_t *message)
{
    const char *parent = json_string_value(json_object_get(message, "previous_response_id"));
    json_t *input = json_object_get(message, "input");
    json_t *event = json_pack("{s:s, s:{s:s, s:s, s:s}, s:{s:n, s:s?, s:O?}}", "type", "response.steer.failed", "error", "type",
                              "invalid_request_error", "code", "steering_not_supported", "message", "response.steer is not supported yet",
                              "steer", "id", "previous_response_id", parent, "input", input);
    struct rn_buf b = {0};
    if (event && rn_json_add(&b, event) == 0) {
        rn_conn_send(c, b.data, b.len);
    }
    json_decref(event);
    rn_buf_finish(&b);
}

void rn_conn_message(struct rn_conn *c)
{
    json_t *message;
    struct rn_err err = {0};
    if (rn_json_parse(c->in.data ? c->in.data : "", c->in.len, &message, &err) < 0) {
        bool no_memory = err.code == -ENOMEM;
        rn_conn_refuse(c, no_memory ? 503 : 400, no_memory ? "server_is_overloaded" : "invalid_json", NULL, NULL, err.text);
        return;
    }
    const char *type = json_string_value(json_object_get(message, "type"));
    if (!type) {
        rn_conn_refuse(c, 400, "missing_required_parameter", "type", NULL, "a message needs a type");
    } else if (strcmp(type, "response.create") == 0) {
        on_create(c, message, c->in.len);
    } else if (strcmp(type, "response.cancel") == 0) {
        on_cancel(c, message);
    } else if (strcmp(type, "response.steer") == 0) {
        on_steer(c, message);
    } else {
        rn_conn_refuse(c, 400, "invalid_value", "type", NULL, "type is not one of response.create, response.cancel");
    }
    json_decref(message);
}
