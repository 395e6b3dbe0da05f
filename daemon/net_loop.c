#define _GNU_SOURCE
#include "daemon/net_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <libwebsockets.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net_internal.h"
#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/base/queue.h"
#include "runtime/engine.h"
#include "session/service.h"

#define BACKLOG 128
#define ACCEPT_BURST 32      // per turn of the loop, so that a flood of connections cannot starve the others
#define DRAIN_NS (5 * RN_NS) // cancelled answers need one step and one commit; a peer that does not read is not waited for longer
#define TICK_US (1 * LWS_US_PER_SEC)
#define TICKET_MASK (RN_NET_TICKETS - 1ull)

// The timer is a libwebsockets type, which net_internal.h does not know.
struct loop {
    struct rn_net net; // first
    lws_sorted_usec_list_t tick;
};

/* ---- Tickets ----------------------------------------------------------------------------------------------------------------------- */

// The low bits are the slot, the rest a serial number: never reused, found without a search.
uint64_t rn_net_ticket(struct rn_net *net, enum rn_ticket_kind kind, void *owner)
{
    if (!net->n_free) {
        return 0;
    }
    uint32_t slot = net->free_tickets[--net->n_free];
    uint64_t ticket = ++net->ticket_serial * RN_NET_TICKETS + slot;
    net->tickets[slot] = (struct rn_ticket){.ticket = ticket, .kind = kind, .owner = owner};
    return ticket;
}

static struct rn_ticket *find_ticket(struct rn_net *net, uint64_t ticket)
{
    struct rn_ticket *t = &net->tickets[ticket & TICKET_MASK];
    return t->kind != RN_TICKET_FREE && t->ticket == ticket ? t : NULL;
}

void rn_net_ticket_drop(struct rn_net *net, uint64_t ticket)
{
    struct rn_ticket *t = find_ticket(net, ticket);
    if (t) {
        t->kind = RN_TICKET_FREE;
        net->free_tickets[net->n_free++] = (uint32_t)(ticket & TICKET_MASK);
    }
}

/* ---- Events from the engine -------------------------------------------------------------------------------------------------------- */

// Text may fill half of the queue; the other half is enough for the few other events of every answer there can be, so that a terminal
// event always finds room. Lost text is not lost to the client: the terminal event has the whole answer.
void rn_net_event(void *user, struct rn_event *event)
{
    struct rn_net *net = user;
    bool may_go = event->kind == RN_EVENT_TEXT || event->kind == RN_EVENT_EVICTED;
    if ((may_go && rn_queue_len(net->events) >= RN_NET_EVENTS / 2) || rn_queue_push(net->events, event) < 0) {
        atomic_fetch_add(&net->lost_text, 1);
        rn_event_destroy(event);
    }
}

static void take_events(struct rn_net *net)
{
    struct rn_event *event;
    while ((event = rn_queue_pop(net->events))) {
        struct rn_ticket *t = find_ticket(net, event->ticket);
        if (t && t->kind == RN_TICKET_JOB) {
            rn_ws_event(t->owner, event);
        } else if (t && event->kind == RN_EVENT_REPLY) {
            rn_http_reply(t->owner, event);
        }
        rn_event_destroy(event);
    }
    unsigned lost = atomic_exchange(&net->lost_text, 0);
    if (lost) {
        rn_log(RN_LOG_WARN, "socket thread too slow: events dropped, answers are complete at their end, n=%u", lost);
    }
}

static void wake(void *user)
{
    struct rn_net *net = user;
    lws_cancel_service(net->context);
}

void rn_net_serve(struct rn_net *net, const struct rn_net_model *model)
{
    atomic_store(&net->offered, model);
    wake(net);
}

void rn_net_stop(struct rn_net *net)
{
    atomic_store(&net->stop, true);
    wake(net);
}

static void check_drained(struct rn_net *net)
{
    if (net->draining && (!net->conns || rn_clock_ns() >= net->drain_until_ns)) {
        net->done = true;
    }
}

static void on_wake(struct rn_net *net)
{
    const struct rn_net_model *model = atomic_load(&net->offered);
    if (!net->model && model) {
        net->model = model;
        if (net->on_ready) {
            net->on_ready();
        }
        dprintf(STDERR_FILENO, "runneld: ready on %s\n", net->url);
        rn_log(RN_LOG_INFO, "model '%s' on '%s' kv=%s window=%u", model->info->model_id, model->info->device, model->info->kv,
               model->window);
    }
    if (atomic_load(&net->stop)) {
        net->done = true;
    }
    take_events(net);
    check_drained(net);
}

int rn_net_not_ready(const struct rn_net *net, struct rn_problem *ret)
{
    if (net->draining) {
        rn_problem_set(ret, 503, "draining", NULL, "the daemon is stopping");
        return -EAGAIN;
    }
    if (!net->model) {
        rn_problem_set(ret, 503, "model_loading", NULL, "the model is being loaded");
        return -EAGAIN;
    }
    return 0;
}

/* ---- Timer and draining ------------------------------------------------------------------------------------------------------------ */

static void on_tick(lws_sorted_usec_list_t *sul)
{
    struct loop *loop = lws_container_of(sul, struct loop, tick);
    struct rn_net *net = &loop->net;
    net->tick_armed = false;
    rn_ws_tick(net, rn_clock_ns());
    check_drained(net);
    rn_net_arm_tick(net);
}

// Runs only while there are WebSocket connections: an idle daemon has no timer.
void rn_net_arm_tick(struct rn_net *net)
{
    struct loop *loop = (struct loop *)(void *)net;
    if (!net->tick_armed && !net->done && (net->conns || net->draining)) {
        net->tick_armed = true;
        lws_sul_schedule(net->context, 0, &loop->tick, on_tick, TICK_US);
    }
}

static void drain(struct rn_net *net, int signal_number)
{
    if (net->draining) {
        return;
    }
    rn_log(RN_LOG_INFO, "stopping: running answers are cancelled and stored");
    net->draining = true;
    net->close_code = signal_number == SIGINT ? 1001 : 1012; // 1012: a service manager is likely to start us again
    net->drain_until_ns = rn_clock_ns() + DRAIN_NS;
    if (net->listener) {
        lws_set_timeout(net->listener, PENDING_TIMEOUT_USER_OK, LWS_TO_KILL_SYNC);
        net->listener = NULL;
    }
    rn_ws_drain(net);
    rn_net_arm_tick(net);
    check_drained(net);
}

static void on_signal(struct rn_net *net)
{
    unsigned char signals[16];
    ssize_t n = read(net->params.wake_fd, signals, sizeof signals);
    if (n > 0) {
        drain(net, signals[0]);
    }
}

/* ---- Sockets ----------------------------------------------------------------------------------------------------------------------- */

static void refuse(int fd)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    ssize_t n = send(fd, full, sizeof full - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n; // it is turned away either way
    close(fd);
}

static void on_accept(struct rn_net *net)
{
    for (int i = 0; i < ACCEPT_BURST; i++) {
        int fd = accept4(net->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
        if (fd < 0) {
            return;
        }
        if (net->n_sockets - net->n_own_sockets >= RN_NET_CONNECTIONS) {
            refuse(fd);
            continue;
        }
        if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0) { // a token must not wait for the next one
            rn_log(RN_LOG_DEBUG, "TCP_NODELAY: %s", strerror(errno));
        }
        if (!lws_adopt_socket_vhost(net->vhost, fd)) { // it closes fd when it fails
            rn_log(RN_LOG_WARN, "a connection could not be taken");
        }
    }
}

// Several reasons that belong together are consecutive calls here; what is not named needs nothing.
static int callback(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    struct lws_context *context = wsi ? lws_get_context(wsi) : NULL;
    struct rn_net *net = context ? lws_context_user(context) : NULL;
    if (!net) {
        return 0;
    }
    switch (reason) {
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED: // comes once per protocol: the second finds nothing
        on_wake(net);
        return 0;
    case LWS_CALLBACK_RAW_RX_FILE:
        if (wsi == net->listener) {
            on_accept(net);
        } else if (wsi == net->waker) {
            on_signal(net);
        }
        return 0;
    case LWS_CALLBACK_WSI_CREATE:
        net->n_sockets++;
        return 0;
    case LWS_CALLBACK_WSI_DESTROY:
        net->n_sockets--;
        return 0;
    case LWS_CALLBACK_HTTP_CONFIRM_UPGRADE:
        return rn_http_confirm_upgrade(net, wsi, in);
    case LWS_CALLBACK_HTTP:
    case LWS_CALLBACK_HTTP_WRITEABLE:
    case LWS_CALLBACK_HTTP_DROP_PROTOCOL:
    case LWS_CALLBACK_CLOSED_HTTP:
        return rn_http_callback(net, wsi, (int)reason, user, in, len);
    case LWS_CALLBACK_ESTABLISHED:
    case LWS_CALLBACK_RECEIVE:
    case LWS_CALLBACK_SERVER_WRITEABLE:
    case LWS_CALLBACK_CONFIRM_EXTENSION_OKAY: {
        return rn_ws_callback(net, wsi, (int)reason, user, in, len);
    }
    case LWS_CALLBACK_CLOSED: {
        int r = rn_ws_callback(net, wsi, (int)reason, user, in, len);
        check_drained(net);
        return r;
    }
    default:
        return 0;
    }
}

static const struct lws_protocols protocols[] = {
    {"http", callback, sizeof(struct rn_net_session), 64 << 10, 0, NULL, 0}, // also WebSocket without a subprotocol
    {"runnel.v1", callback, sizeof(struct rn_net_session), 64 << 10, 0, NULL, 0},
    {NULL, NULL, 0, 0, 0, NULL, 0},
};

static const struct lws_extension extensions[] = {
    {"permessage-deflate", lws_extension_callback_pm_deflate, "permessage-deflate; client_no_context_takeover; client_max_window_bits"},
    {NULL, NULL, NULL},
};

static const lws_retry_bo_t keep_alive = {.secs_since_valid_ping = 30, .secs_since_valid_hangup = 75};

static void log_line(int level, const char *line)
{
    rn_log(level & LLL_ERR ? RN_LOG_INFO : RN_LOG_DEBUG, "libwebsockets: %.*s", (int)strcspn(line, "\n"), line);
}

static int open_context(struct rn_net *net, struct rn_err *err)
{
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN_SERVER,
        .protocols = protocols,
        .extensions = extensions,
        .options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_VALIDATE_UTF8,
        .user = net,
        .uid = (uid_t)-1,
        .gid = (gid_t)-1,
        .max_http_header_data = 16 << 10,
        .pt_serv_buf_size = 4 << 10,
        .fd_limit_per_thread = RN_NET_CONNECTIONS + 32,
        .keepalive_timeout = 30,
        .timeout_secs = 20,
        .retry_and_idle_policy = &keep_alive,
        .server_string = "runnel/" RN_VERSION,
        .vhost_name = "runnel",
        .alpn = "http/1.1",
    };
    lws_set_log_level(LLL_ERR | LLL_WARN, log_line);
    net->context = lws_create_context(&info);
    net->vhost = net->context ? lws_create_vhost(net->context, &info) : NULL;
    return net->vhost ? 0 : rn_err_set(err, -ENOMEM, "libwebsockets could not start");
}

static int adopt(struct rn_net *net, int fd, struct lws **ret, struct rn_err *err)
{
    lws_sock_file_fd_type file = {.filefd = fd};
    struct lws *wsi = lws_adopt_descriptor_vhost(net->vhost, LWS_ADOPT_RAW_FILE_DESC, file, "http", NULL);
    if (!wsi) {
        return rn_err_set(err, -ENOMEM, "libwebsockets could not take a descriptor");
    }
    *ret = wsi;
    return 0;
}

static int open_listener(struct rn_net *net, struct rn_err *err)
{
    const struct rn_net_params *p = &net->params;
    char port[8];
    snprintf(port, sizeof port, "%u", p->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE}, *found = NULL;
    if (getaddrinfo(p->address, port, &hints, &found) != 0) {
        return rn_err_set(err, -EADDRNOTAVAIL, "'%s' is not an address", p->address);
    }
    int on = 1, fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
              bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0;
    struct sockaddr_storage bound = {0};
    socklen_t size = sizeof bound;
    ok = ok && getsockname(fd, (struct sockaddr *)&bound, &size) == 0;
    int code = ok ? 0 : rn_err_set(err, -errno, "listening on %s port %u: %s", p->address, p->port, strerror(errno));
    bool is_v6 = found->ai_family == AF_INET6;
    freeaddrinfo(found);
    if (code < 0) {
        if (fd >= 0) {
            close(fd);
        }
        return code;
    }
    uint16_t at = ntohs(is_v6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port : ((struct sockaddr_in *)(void *)&bound)->sin_port);
    snprintf(net->url, sizeof net->url, is_v6 ? "http://[%s]:%u" : "http://%s:%u", p->address, at);
    net->listen_fd = fd;
    return 0;
}

static int make_tables(struct rn_net *net, struct rn_err *err)
{
    net->tickets = rn_mem_alloc(RN_NET_TICKETS, sizeof *net->tickets);
    net->free_tickets = rn_mem_alloc(RN_NET_TICKETS, sizeof *net->free_tickets);
    if (!net->tickets || !net->free_tickets) {
        return rn_err_nomem(err, RN_NET_TICKETS * sizeof *net->tickets, "tickets");
    }
    for (uint32_t i = 0; i < RN_NET_TICKETS; i++) {
        net->free_tickets[net->n_free++] = RN_NET_TICKETS - 1 - i;
    }
    return rn_queue_create(&net->events, RN_NET_EVENTS, wake, net, err);
}

int rn_net_create(struct rn_net **ret, const struct rn_net_params *params, struct rn_err *err)
{
    struct loop *loop = rn_mem_alloc(1, sizeof *loop);
    if (!loop) {
        return rn_err_nomem(err, sizeof *loop, "connections");
    }
    struct rn_net *net = &loop->net;
    net->params = *params;
    net->guard.bound = params->address;
    net->listen_fd = -1;
    int r = open_listener(net, err);
    if (r == 0) {
        r = make_tables(net, err);
    }
    if (r == 0) {
        r = open_context(net, err);
    }
    if (r == 0) {
        r = adopt(net, net->listen_fd, &net->listener, err);
    }
    if (r == 0) {
        r = adopt(net, net->params.wake_fd, &net->waker, err);
    }
    if (r < 0) {
        rn_net_destroy(net);
        return r;
    }
    net->n_own_sockets = net->n_sockets;
    *ret = net;
    return 0;
}

const char *rn_net_url(const struct rn_net *net)
{
    return net->url;
}

int rn_net_run(struct rn_net *net, void (*on_ready)(void), struct rn_err *err)
{
    net->on_ready = on_ready;
    while (!net->done) {
        if (lws_service(net->context, 0) < 0) {
            return rn_err_set(err, -EIO, "the socket loop failed");
        }
    }
    return 0;
}

void rn_net_destroy(struct rn_net *net)
{
    if (!net) {
        return;
    }
    bool adopted = net->listener || net->draining; // the library closes what it has adopted
    net->done = true;
    net->model = NULL; // the service is gone: connections that close now must not call it
    if (net->context) {
        lws_context_destroy(net->context);
    }
    if (!adopted && net->listen_fd >= 0) {
        close(net->listen_fd);
    }
    rn_ws_destroy_all(net);
    struct rn_event *event;
    while (net->events && (event = rn_queue_pop(net->events))) {
        rn_event_destroy(event);
    }
    rn_queue_destroy(net->events);
    rn_mem_free(net->tickets);
    rn_mem_free(net->free_tickets);
    rn_mem_free(net);
}
