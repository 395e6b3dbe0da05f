/* WebSocket connections: frames in and out, backpressure, their life and end. What the messages mean is net_jobs.c.
 *
 * I1 one write per WRITEABLE callback, of at most RN_WS_FRAME_BYTES.
 * I2 a connection's unsent bytes are bounded: above the high-water mark its answers are held back (text gathers into one delta, the engine
 *    pauses) and nothing new starts; a reader that takes nothing for STALL_NS, or RN_WS_UNSENT_MAX, ends the connection (1013).
 * I3 the connection outlives its socket until its running answers have ended: they go on for `linger`, then they are cancelled.
 * Thread: socket. */
#include "daemon/net_loop.h"

#include <errno.h>
#include <libwebsockets.h>
#include <string.h>

#include "daemon/net_internal.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "session/service.h"

#define STALL_NS (30 * RN_NS)

struct rn_message {
    struct rn_message *next;
    size_t len, sent;
    unsigned char data[]; // LWS_PRE bytes for the library, then the text
};

/* ---- Sending ----------------------------------------------------------------------------------------------------------------------- */

static void want_write(struct rn_conn *c)
{
    if (c->wsi && !c->writable_asked) {
        c->writable_asked = true;
        lws_callback_on_writable(c->wsi);
    }
}

static void free_messages(struct rn_conn *c)
{
    while (c->head) {
        struct rn_message *m = c->head;
        c->head = m->next;
        rn_mem_free(m);
    }
    c->tail = NULL;
    c->unsent = 0;
}

// Nothing more is accepted; what is queued goes out first.
void rn_conn_close(struct rn_conn *c, int code, const char *reason)
{
    if (!c->close_code) {
        c->close_code = code;
        c->close_reason = reason;
        want_write(c);
    }
}

// The peer does not read, or we cannot go on: now.
void rn_conn_close_now(struct rn_conn *c, int code, const char *reason)
{
    if (c->wsi) {
        free_messages(c);
        c->close_code = code;
        c->close_reason = reason;
        lws_close_reason(c->wsi, (enum lws_close_status)code, (unsigned char *)(uintptr_t)reason, strlen(reason));
        lws_set_timeout(c->wsi, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_ASYNC);
    }
}

void rn_conn_hold(struct rn_conn *c, bool held)
{
    c->held = held;
    for (struct rn_job *j = c->jobs; j; j = j->next) {
        if (j->answer && rn_answer_hold(j->answer, held) < 0) {
            rn_conn_close_now(c, 1011, "internal_error");
            return;
        }
        if (j->ticket && j->paused != held) {
            j->paused = held;
            rn_service_pause(c->net->model->service, j->ticket, held);
        }
    }
}

int rn_conn_send(void *user, const char *json, size_t len)
{
    struct rn_conn *c = user;
    if (!c->wsi || c->close_code == 1013 || c->close_code == 1011) {
        return 0; // nobody hears it
    }
    struct rn_message *m = rn_mem_alloc(1, sizeof *m + LWS_PRE + len);
    if (!m) {
        rn_conn_close_now(c, 1011, "internal_error");
        return 0;
    }
    m->len = len;
    memcpy(m->data + LWS_PRE, json, len);
    if (c->tail) {
        c->tail->next = m;
    } else {
        c->head = m;
        c->progress_ns = rn_clock_ns();
    }
    c->tail = m;
    c->unsent += len;
    if (c->unsent > RN_WS_UNSENT_MAX) {
        rn_conn_close_now(c, 1013, "slow_consumer"); // keeps I2
        return 0;
    }
    want_write(c);
    return 0;
}

void rn_conn_send_problem(struct rn_conn *c, const struct rn_problem *p, const char *stream_id)
{
    struct rn_buf b = {0};
    if (rn_problem_event(p, stream_id, &b) == 0) {
        rn_conn_send(c, b.data, b.len);
    } else {
        rn_conn_close_now(c, 1011, "internal_error");
    }
    rn_buf_finish(&b);
}

/* ---- Life of a connection ---------------------------------------------------------------------------------------------------------- */

void rn_conn_destroy(struct rn_conn *c)
{
    struct rn_net *net = c->net;
    struct rn_job *j;
    while ((j = rn_lanes_pop(&c->lanes))) {
        rn_job_destroy(j);
    }
    if (net->model) { // sessions that live in memory only end with their lane
        for (uint32_t i = 0; i <= c->lanes.n_named; i++) {
            rn_service_lane_end(net->model->service, rn_lane_name(c, i ? c->lanes.named[i - 1] : &c->lanes.first));
        }
    }
    *(c->prev ? &c->prev->next : &net->conns) = c->next;
    if (c->next) {
        c->next->prev = c->prev;
    }
    net->n_conns--;
    rn_lanes_finish(&c->lanes);
    free_messages(c);
    rn_buf_finish(&c->in);
    rn_mem_free(c);
}

static int conn_create(struct rn_net *net, struct lws *wsi, struct rn_conn **ret)
{
    struct rn_conn *c = rn_mem_alloc(1, sizeof *c);
    if (!c) {
        return -ENOMEM;
    }
    c->net = net;
    c->wsi = wsi;
    c->id = ++net->next_conn;
    c->traffic_ns = c->progress_ns = rn_clock_ns();
    rn_lanes_init(&c->lanes);
    c->next = net->conns;
    if (c->next) {
        c->next->prev = c;
    }
    net->conns = c;
    net->n_conns++;
    rn_net_arm_tick(net);
    *ret = c;
    return 0;
}

static void conn_dropped(struct rn_conn *c)
{
    struct rn_net *net = c->net;
    struct rn_job *j;
    c->wsi = NULL;
    if (!net->model) {
        return; // the end of the process: rn_ws_destroy_all frees it
    }
    while ((j = rn_lanes_pop(&c->lanes))) { // what had not begun, nobody waits for
        rn_job_destroy(j);
    }
    free_messages(c);
    if (!c->n_jobs) {
        rn_conn_destroy(c);
        return;
    }
    rn_conn_hold(c, false);
    c->linger_until_ns = rn_clock_ns() + net->params.linger_ns;
    if (!net->params.linger_ns || net->draining) {
        rn_jobs_cancel(c);
        c->linger_until_ns = 0;
    }
}

/* ---- Receiving ---------------------------------------------------------------------------------------------------------------------- */

static void on_binary(struct rn_conn *c)
{
    rn_conn_refuse(c, 400, "unsupported_frame", NULL, NULL, "only text frames are understood");
    if (c->refused_binary) {
        rn_conn_close(c, 1003, "unsupported_frame");
    }
    c->refused_binary = true;
}

static void on_receive(struct rn_conn *c, const char *data, size_t len)
{
    struct lws *wsi = c->wsi;
    bool is_last = lws_is_final_fragment(wsi) && !lws_remaining_packet_payload(wsi);
    if (c->close_code) {
        return;
    }
    if (lws_frame_is_binary(wsi)) {
        if (is_last) {
            on_binary(c);
        }
        return;
    }
    if (c->in.len + len > RN_WS_MESSAGE_BYTES) {
        rn_buf_finish(&c->in);
        rn_conn_refuse(c, 413, "request_too_large", NULL, NULL, "a message has at most 8 MiB");
        rn_conn_close(c, 1009, "request_too_large");
        return;
    }
    if (rn_buf_add(&c->in, data, len) < 0) {
        rn_conn_close_now(c, 1011, "internal_error");
        return;
    }
    if (is_last) {
        c->traffic_ns = rn_clock_ns();
        rn_conn_message(c);
        if (c->in.cap > (64u << 10)) {
            rn_buf_finish(&c->in);
        } else {
            rn_buf_clear(&c->in);
        }
    }
}

/* ---- Callbacks --------------------------------------------------------------------------------------------------------------------- */

// One write per call, as the library wants it. Not 0: close.
static int on_writable(struct rn_conn *c)
{
    struct rn_message *m = c->head;
    c->writable_asked = false;
    if (!m) {
        if (c->close_code) {
            lws_close_reason(c->wsi, (enum lws_close_status)c->close_code, (unsigned char *)(uintptr_t)c->close_reason,
                             strlen(c->close_reason));
            return -1;
        }
        return 0;
    }
    size_t n = m->len - m->sent;
    n = n < RN_WS_FRAME_BYTES ? n : RN_WS_FRAME_BYTES;
    bool is_last = m->sent + n == m->len;
    // The library writes its header into the bytes in front of the text: those that it has sent already, or LWS_PRE.
    int flags = lws_write_ws_flags(LWS_WRITE_TEXT, m->sent == 0, is_last);
    if (lws_write(c->wsi, m->data + LWS_PRE + m->sent, n, (enum lws_write_protocol)flags) < 0) {
        return -1;
    }
    m->sent += n;
    c->unsent -= n;
    c->progress_ns = rn_clock_ns();
    if (is_last) {
        c->head = m->next;
        c->tail = c->head ? c->tail : NULL;
        rn_mem_free(m);
    }
    if (c->held && c->unsent <= RN_WS_LOW_WATER) {
        rn_conn_hold(c, false);
        rn_jobs_start(c);
    }
    if (c->head || c->close_code) {
        want_write(c);
    }
    return 0;
}

static int on_extension(struct rn_net *net)
{
    return net->n_conns >= RN_WS_DEFLATE_CONNECTIONS; // not 0: without it
}

int rn_ws_callback(struct rn_net *net, struct lws *wsi, int reason, struct rn_net_session *session, void *in, size_t len)
{
    if (reason == LWS_CALLBACK_CONFIRM_EXTENSION_OKAY) {
        return on_extension(net);
    }
    if (!session) {
        return 0;
    }
    switch (reason) {
    case LWS_CALLBACK_ESTABLISHED:
        session->http = NULL;
        session->conn = NULL;
        return conn_create(net, wsi, &session->conn) < 0 ? -1 : 0;
    case LWS_CALLBACK_RECEIVE:
        if (session->conn) {
            on_receive(session->conn, in, len);
        }
        return 0;
    case LWS_CALLBACK_SERVER_WRITEABLE:
        return session->conn ? on_writable(session->conn) : 0;
    default:
        if (session->conn) {
            conn_dropped(session->conn);
            session->conn = NULL;
        }
        return 0;
    }
}

void rn_ws_tick(struct rn_net *net, uint64_t now_ns)
{
    for (struct rn_conn *c = net->conns, *next; c; c = next) {
        next = c->next;
        if (!c->wsi) {
            if (c->linger_until_ns && now_ns >= c->linger_until_ns) {
                c->linger_until_ns = 0;
                rn_jobs_cancel(c);
            }
        } else if (c->head && now_ns - c->progress_ns > STALL_NS) {
            rn_log(RN_LOG_INFO, "closing a connection that reads nothing, unsent=%zu", c->unsent);
            rn_conn_close_now(c, 1013, "slow_consumer");
        } else if (!c->n_jobs && net->params.idle_timeout_ns && now_ns - c->traffic_ns > net->params.idle_timeout_ns) {
            rn_conn_close(c, 1001, "idle");
        }
    }
}

void rn_ws_drain(struct rn_net *net)
{
    for (struct rn_conn *c = net->conns, *next; c; c = next) {
        next = c->next;
        rn_jobs_drain(c);
    }
}

// After the service has stopped (net->model is NULL): no more events, no more calls to it.
void rn_ws_destroy_all(struct rn_net *net)
{
    while (net->conns) {
        struct rn_conn *c = net->conns;
        while (c->jobs) {
            struct rn_job *j = c->jobs;
            c->jobs = j->next;
            rn_job_destroy(j);
        }
        rn_conn_destroy(c);
    }
}
