/* What net_loop.c, net_http.c and net_ws.c share. Owner of everything here: socket thread, but for the fields named as atomic. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/guard.h"
#include "daemon/lanes.h"
#include "daemon/net_loop.h"
#include "daemon/responses.h"
#include "runtime/base/mem.h"

struct lws;
struct lws_context;
struct lws_vhost;
struct rn_event;
struct rn_queue;
struct rn_request;

#define RN_NET_CONNECTIONS 256
#define RN_NET_TICKETS 8192 /* answers that run and queries: above 256 connections x 16 active + HTTP */
#define RN_NET_EVENTS 65536 /* queue from the engine; text uses half of it, see rn_net_event */
#define RN_WS_MESSAGE_BYTES (8u << 20)
#define RN_WS_FRAME_BYTES (32u << 10) /* one write: the library copies what the socket does not take */
#define RN_WS_HIGH_WATER (1u << 20)   /* a connection's unsent bytes above which its answers are held back */
#define RN_WS_LOW_WATER (256u << 10)
#define RN_WS_UNSENT_MAX (64u << 20) /* and above which it is closed */
#define RN_WS_DEFLATE_CONNECTIONS 32 /* compression costs about 300 KB each; later ones go without */
#define RN_NS 1000000000ull

enum rn_ticket_kind { RN_TICKET_FREE, RN_TICKET_JOB, RN_TICKET_HTTP };

struct rn_ticket {
    uint64_t ticket;
    enum rn_ticket_kind kind;
    void *owner; // struct rn_job or struct rn_http
};

/* A response.create on its way: waiting in a lane, or running. */
struct rn_job {
    struct rn_conn *conn;
    struct rn_lane *lane;
    struct rn_request *request; // owned until submitted
    struct rn_problem *problem; // instead of a request: refused when its turn comes
    struct rn_answer *answer;
    uint64_t ticket; // 0 = not submitted
    bool cancelled, paused;
    struct rn_job *next; // in the connection's list of running jobs
};

struct rn_message;

/* One WebSocket connection. It outlives its socket while answers linger. */
struct rn_conn {
    struct rn_net *net;
    struct lws *wsi; // NULL = dropped
    struct rn_conn *prev, *next;
    uint64_t id;
    struct rn_lanes lanes;
    struct rn_job *jobs; // running
    uint32_t n_jobs;

    struct rn_buf in; // the message that is coming in
    bool refused_binary, is_deflated, writable_asked;
    struct rn_message *head, *tail;
    size_t unsent;
    bool held;                // above the high-water mark
    uint64_t progress_ns;     // last time bytes went out, or the queue was empty
    uint64_t traffic_ns;      // last message in either direction
    uint64_t linger_until_ns; // dropped: cancel then; 0 = not dropped or cancelled already
    int close_code;           // not 0: close when all is sent
    const char *close_reason;
};

/* One HTTP transaction. */
struct rn_http {
    struct rn_net *net;
    struct lws *wsi;
    uint64_t ticket; // waiting for a reply of the service; 0 = none
    uint32_t limit;  // of a list
    int status;
    const char *content_type, *etag, *allow;
    bool is_page, is_upgrade, head_only, close_after, headers_sent;
    struct rn_buf own;         // body, if made here
    const unsigned char *body; // own.data or an embedded file
    size_t body_len, sent;
};

/* Per-connection data that the library keeps for us. */
struct rn_net_session {
    struct rn_conn *conn;
    struct rn_http *http;
};

struct rn_net {
    struct rn_net_params params;
    struct rn_guard guard;
    char url[96];
    int listen_fd;
    struct lws_context *context;
    struct lws_vhost *vhost;
    struct lws *listener, *waker;
    void (*on_ready)(void);

    struct rn_queue *events;
    _Atomic(const struct rn_net_model *) offered; // written once by rn_net_serve
    atomic_bool stop;
    atomic_uint lost_text; // text events that found the queue full

    const struct rn_net_model *model; // NULL = not ready yet
    bool draining, done;
    int close_code; // while draining
    uint64_t drain_until_ns;
    uint32_t n_sockets, n_own_sockets, n_conns, n_deflated;
    struct rn_conn *conns;
    uint64_t next_conn;
    struct rn_ticket *tickets;
    uint32_t *free_tickets, n_free;
    uint64_t ticket_serial;
    bool tick_armed;
};

/* net_loop.c */
uint64_t rn_net_ticket(struct rn_net *net, enum rn_ticket_kind kind, void *owner); /* 0 = all in use */
void rn_net_ticket_drop(struct rn_net *net, uint64_t ticket);
void rn_net_arm_tick(struct rn_net *net);
/* Not 0: the answer to a request that nothing can serve now (loading, draining). */
int rn_net_not_ready(const struct rn_net *net, struct rn_problem *ret);

/* net_http.c. `reason` is an enum lws_callback_reasons. */
int rn_http_callback(struct rn_net *net, struct lws *wsi, int reason, struct rn_net_session *session, void *in, size_t len);
int rn_http_confirm_upgrade(struct rn_net *net, struct lws *wsi, char *in);
void rn_http_reply(struct rn_http *http, struct rn_event *event);

/* net_ws.c */
int rn_ws_callback(struct rn_net *net, struct lws *wsi, int reason, struct rn_net_session *session, void *in, size_t len);
void rn_ws_tick(struct rn_net *net, uint64_t now_ns);
void rn_ws_drain(struct rn_net *net);
void rn_ws_destroy_all(struct rn_net *net);
int rn_conn_send(void *conn, const char *json, size_t len); /* rn_emit_fn; always 0: a failure ends the connection */
void rn_conn_send_problem(struct rn_conn *c, const struct rn_problem *p, const char *stream_id);
void rn_conn_hold(struct rn_conn *c, bool held);
void rn_conn_close(struct rn_conn *c, int code, const char *reason);     /* after what is queued; `reason` is static */
void rn_conn_close_now(struct rn_conn *c, int code, const char *reason); /* the peer does not read, or we cannot go on */
void rn_conn_destroy(struct rn_conn *c);

/* net_jobs.c */
void rn_conn_message(struct rn_conn *c); /* c->in is a whole message */
void rn_conn_refuse(struct rn_conn *c, int status, const char *code, const char *param, const char *stream_id, const char *message);
void rn_ws_event(struct rn_job *job, struct rn_event *event);
uint64_t rn_lane_name(const struct rn_conn *c, const struct rn_lane *lane); /* towards the service */
void rn_jobs_start(struct rn_conn *c);                                      /* those that may */
void rn_jobs_cancel(struct rn_conn *c);                                     /* those that run */
void rn_jobs_drain(struct rn_conn *c);
void rn_job_destroy(struct rn_job *job);
