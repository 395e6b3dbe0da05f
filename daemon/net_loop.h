/* The socket thread: one libwebsockets context, one vhost, our own listening socket, adopted. Everything that is a connection lives here.
 *
 *   engine thread --rn_net_event--> [queue] --wake--> socket thread: events -> frames          (lws_cancel_service is the wake)
 *   signal handler --pipe--> socket thread: drain
 *
 * Life: create (listening; everything but /health is answered 503) -> serve (the model is there: ready) -> drain -> run returns.
 * No libwebsockets type appears here. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct rn_engine_info;
struct rn_err;
struct rn_event;
struct rn_net;
struct rn_service;

struct rn_net_params {
    const char *address;      /* loopback, without brackets; borrowed for the life of the net */
    uint16_t port;            /* 0 = any free one */
    uint64_t linger_ns;       /* answers of a dropped connection run on for this long */
    uint64_t idle_timeout_ns; /* 0 = never */
    int wake_fd;              /* a pipe's read end: each byte in it is a signal number, the wish to drain; closed by the net */
};

/* What is served once the model is there. */
struct rn_net_model {
    struct rn_service *service;
    const struct rn_engine_info *info;
    uint32_t window;     /* default N */
    uint32_t max_window; /* the largest N that a session may ask for, with the RoPE scaling that is configured */
    int64_t created;     /* unix seconds */
};

/* Binds and listens. -EADDRINUSE, -EACCES, -EADDRNOTAVAIL: the address; -ENOMEM. */
int rn_net_create(struct rn_net **ret, const struct rn_net_params *params, struct rn_err *err);
/* After rn_net_run has returned and the service has stopped. NULL is fine. */
void rn_net_destroy(struct rn_net *net);

/* "http://127.0.0.1:7866". */
const char *rn_net_url(const struct rn_net *net);

/* Hands the model over and wakes the loop, which prints the ready line. `model` is borrowed until rn_net_destroy. Thread: any, once. */
void rn_net_serve(struct rn_net *net, const struct rn_net_model *model);
/* Makes rn_net_run return (loading failed). Thread: any. */
void rn_net_stop(struct rn_net *net);

/* rn_event_fn; user = the net. Thread: any. Never blocks. */
void rn_net_event(void *net, struct rn_event *event);

/* Serves until drained or stopped. `on_ready` is called on the socket thread right before the ready line; may be NULL. */
int rn_net_run(struct rn_net *net, void (*on_ready)(void), struct rn_err *err);
