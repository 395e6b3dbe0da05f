#include "daemon/net_client.h"

#include <errno.h>
#include <libwebsockets.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/base/queue.h"

#define BODY_MAX ((size_t)256 << 20)   // bytes of an HTTP answer
#define MESSAGE_MAX ((size_t)64 << 20) // bytes of a message that comes in
#define MESSAGES 16384                 // that wait: an answer has at most 4096 pieces
#define RX_BYTES 65536
#define PATH "/v1/responses"

/* ---- Addresses --------------------------------------------------------------------------------------------------------------------- */

static int bad_url(const char *url, struct rn_err *err)
{
    return rn_err_set(err, -EINVAL, "the daemon's address is '%.100s', expected http://HOST:PORT", url);
}

int rn_client_parse_url(const char *url, struct rn_client_address *ret, struct rn_err *err)
{
    const char *from = url, *scheme = strstr(url, "://"), *end;
    if (scheme) {
        size_t n = (size_t)(scheme - url);
        if (!((n == 4 && strncasecmp(url, "http", 4) == 0) || (n == 2 && strncasecmp(url, "ws", 2) == 0))) {
            return bad_url(url, err);
        }
        from = scheme + 3;
    }
    const char *host = from;
    size_t len;
    if (*from == '[') {
        host = from + 1;
        end = strchr(from, ']');
        len = end ? (size_t)(end - host) : 0;
        end = end ? end + 1 : NULL;
    } else {
        len = strcspn(from, ":/");
        end = from + len;
    }
    if (!end || len == 0 || len >= sizeof ret->host) {
        return bad_url(url, err);
    }
    unsigned long port = scheme ? 80 : 7866;
    char *stop = (char *)(uintptr_t)end;
    if (*end == ':') {
        port = end[1] >= '0' && end[1] <= '9' ? strtoul(end + 1, &stop, 10) : 0;
    }
    if (port == 0 || port > UINT16_MAX || (*stop && strcmp(stop, "/") != 0)) {
        return bad_url(url, err);
    }
    memcpy(ret->host, host, len);
    ret->host[len] = 0;
    ret->port = (uint16_t)port;
    snprintf(ret->header, sizeof ret->header, *from == '[' ? "[%s]:%u" : "%s:%u", ret->host, (unsigned)ret->port);
    return 0;
}

static int nobody(const struct rn_client_address *to, const char *why, struct rn_err *err)
{
    return rn_err_set(err, -ECONNREFUSED, "no daemon answers at http://%s%s%s (runneld --model FILE starts one)", to->header,
                      why && *why ? ": " : "", why ? why : "");
}

static struct lws_context *make_context(const struct lws_protocols *protocols, void *user)
{
    struct lws_context_creation_info info = {
        .port = CONTEXT_PORT_NO_LISTEN, .protocols = protocols, .user = user, .gid = (gid_t)-1, .uid = (uid_t)-1};
    lws_set_log_level(0, NULL); // what goes wrong comes back as an error value
    return lws_create_context(&info);
}

static struct lws *connect_to(struct lws_context *context, const struct rn_client_address *to, const char *path, const char *method)
{
    struct lws_client_connect_info info = {.context = context,
                                           .address = to->host,
                                           .port = to->port,
                                           .path = path,
                                           .host = to->header,
                                           .method = method,
                                           .local_protocol_name = "runnel"};
    return lws_client_connect_via_info(&info);
}

/* ---- HTTP -------------------------------------------------------------------------------------------------------------------------- */

struct exchange {
    struct rn_buf *body;
    int status;
    bool complete, over;
    int code; // first error
    char why[128];
};

static int on_http(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    struct exchange *x = lws_context_user(lws_get_context(wsi));
    (void)user;
    switch (reason) {
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        snprintf(x->why, sizeof x->why, "%.*s", in ? (int)len : 0, in ? (const char *)in : "");
        x->over = true;
        return 0;
    case LWS_CALLBACK_ESTABLISHED_CLIENT_HTTP:
        x->status = (int)lws_http_client_http_response(wsi);
        return 0;
    case LWS_CALLBACK_RECEIVE_CLIENT_HTTP: {
        char space[LWS_PRE + 4096], *p = space + LWS_PRE;
        int n = 4096;
        return lws_http_client_read(wsi, &p, &n) < 0 ? -1 : 0;
    }
    case LWS_CALLBACK_RECEIVE_CLIENT_HTTP_READ:
        if (x->body->len + len > BODY_MAX || rn_buf_add(x->body, in, len) < 0) {
            x->code = x->body->len + len > BODY_MAX ? -E2BIG : -ENOMEM;
            return -1;
        }
        return 0;
    case LWS_CALLBACK_COMPLETED_CLIENT_HTTP:
        x->complete = true;
        x->over = true;
        return 0;
    case LWS_CALLBACK_CLOSED_CLIENT_HTTP:
        x->over = true;
        return 0;
    default:
        return lws_callback_http_dummy(wsi, reason, user, in, len);
    }
}

int rn_client_http(const struct rn_client_address *to, const char *method, const char *path, int *ret_status, struct rn_buf *ret_body,
                   struct rn_err *err)
{
    static const struct lws_protocols protocols[] = {{.name = "runnel", .callback = on_http, .rx_buffer_size = RX_BYTES}, {0}};
    struct exchange x = {.body = ret_body};
    struct lws_context *context = make_context(protocols, &x);
    if (!context) {
        return rn_err_nomem(err, sizeof x, "the connection");
    }
    if (!connect_to(context, to, path, method)) {
        x.over = true;
    }
    while (!x.over && lws_service(context, 0) >= 0) {
    }
    lws_context_destroy(context);
    if (x.code) {
        return rn_err_set(err, x.code, "the answer to %s %s is too large", method, path);
    }
    if (!x.complete) {
        return x.status ? rn_err_set(err, -ECONNREFUSED, "the daemon at http://%s broke off its answer", to->header)
                        : nobody(to, x.why, err);
    }
    *ret_status = x.status;
    return 0;
}

/* ---- WebSocket --------------------------------------------------------------------------------------------------------------------- */

struct message {
    size_t len;
    unsigned char data[]; // out: LWS_PRE bytes for the library, then the text
};

struct rn_client {
    /* config */
    struct lws_context *context;
    pthread_t thread;
    bool has_thread;
    struct rn_queue *in, *out; // the two threads' only meeting places, besides:
    atomic_bool stop;
    char opened, ended; // their addresses go through `in` like messages
    /* socket thread */
    struct lws *wsi;
    struct rn_buf part; // of a message that is coming in
    bool over;
    char why[128]; // read by the caller after `ended`
    /* caller's thread */
    bool is_ended;
};

static void push_end(struct rn_client *c)
{
    if (!c->over) {
        c->over = true;
        c->wsi = NULL;
        (void)rn_queue_push(c->in, &c->ended); // one place is kept for it
    }
}

/* A whole message is there: hand it over. Not 0 = end the connection. */
static int hand_over(struct rn_client *c)
{
    struct message *m = rn_queue_len(c->in) < MESSAGES - 1 ? rn_mem_alloc(1, sizeof *m + c->part.len) : NULL;
    if (!m) {
        snprintf(c->why, sizeof c->why, "more messages than fit");
        return -1;
    }
    m->len = c->part.len;
    if (m->len) {
        memcpy(m->data, c->part.data, m->len);
    }
    rn_buf_clear(&c->part);
    return rn_queue_push(c->in, m) < 0 ? (rn_mem_free(m), -1) : 0;
}

static int receive(struct rn_client *c, const void *data, size_t len)
{
    if (c->part.len + len > MESSAGE_MAX || rn_buf_add(&c->part, data, len) < 0) {
        snprintf(c->why, sizeof c->why, "a message larger than %zu MiB", MESSAGE_MAX >> 20);
        return -1;
    }
    return lws_is_final_fragment(c->wsi) && !lws_remaining_packet_payload(c->wsi) ? hand_over(c) : 0;
}

static int write_one(struct rn_client *c)
{
    struct message *m = rn_queue_pop(c->out);
    if (!m) {
        return 0;
    }
    int n = lws_write(c->wsi, m->data + LWS_PRE, m->len, LWS_WRITE_TEXT);
    rn_mem_free(m);
    if (n >= 0 && rn_queue_len(c->out)) {
        lws_callback_on_writable(c->wsi);
    }
    return n < 0 ? -1 : 0;
}

static int on_ws(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len)
{
    struct rn_client *c = lws_context_user(lws_get_context(wsi));
    (void)user;
    switch (reason) {
    case LWS_CALLBACK_CLIENT_ESTABLISHED:
        c->wsi = wsi;
        (void)rn_queue_push(c->in, &c->opened); // the queue is empty
        return 0;
    case LWS_CALLBACK_CLIENT_RECEIVE:
        return receive(c, in, len);
    case LWS_CALLBACK_CLIENT_WRITEABLE:
        return write_one(c);
    case LWS_CALLBACK_EVENT_WAIT_CANCELLED:
        if (c->wsi && rn_queue_len(c->out)) {
            lws_callback_on_writable(c->wsi);
        }
        return 0;
    case LWS_CALLBACK_CLIENT_CONNECTION_ERROR:
        snprintf(c->why, sizeof c->why, "%.*s", in ? (int)len : 0, in ? (const char *)in : "");
        push_end(c);
        return 0;
    case LWS_CALLBACK_CLIENT_CLOSED:
        push_end(c);
        return 0;
    default:
        return 0;
    }
}

static void *run_loop(void *user)
{
    struct rn_client *c = user;
    while (!atomic_load(&c->stop) && !c->over && lws_service(c->context, 0) >= 0) {
    }
    push_end(c);
    return NULL;
}

/* Ctrl-C is the caller's. */
static int start_thread(struct rn_client *c)
{
    sigset_t all, old;
    sigfillset(&all);
    int r = pthread_sigmask(SIG_SETMASK, &all, &old);
    if (r == 0) {
        r = pthread_create(&c->thread, NULL, run_loop, c);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL); // cannot fail with a mask that was just read
    }
    c->has_thread = r == 0;
    return -r;
}

static int open_context(struct rn_client *c, const struct rn_client_address *to, struct rn_err *err)
{
    static const struct lws_protocols protocols[] = {{.name = "runnel", .callback = on_ws, .rx_buffer_size = RX_BYTES}, {0}};
    int r = rn_queue_create(&c->in, MESSAGES, NULL, NULL, err);
    r = r < 0 ? r : rn_queue_create(&c->out, MESSAGES, NULL, NULL, err);
    if (r < 0) {
        return r;
    }
    c->context = make_context(protocols, c);
    if (!c->context) {
        return rn_err_nomem(err, sizeof *c, "the connection");
    }
    if (!connect_to(c->context, to, PATH, /*method=*/NULL)) {
        push_end(c);
    }
    r = start_thread(c);
    return r < 0 ? rn_err_set(err, r, "the socket thread does not start") : 0;
}

int rn_client_open(struct rn_client **ret, const struct rn_client_address *to, struct rn_err *err)
{
    struct rn_client *c = rn_mem_alloc(1, sizeof *c);
    if (!c) {
        return rn_err_nomem(err, sizeof *c, "the connection");
    }
    int r = open_context(c, to, err);
    if (r == 0 && rn_queue_pop_wait(c->in, 0) != &c->opened) {
        r = nobody(to, c->why, err);
    }
    if (r < 0) {
        rn_client_close(c);
        return r;
    }
    *ret = c;
    return 0;
}

static void drain(struct rn_client *c, struct rn_queue *q)
{
    void *m;
    while (q && (m = rn_queue_pop(q))) {
        if (m != &c->opened && m != &c->ended) {
            rn_mem_free(m);
        }
    }
    rn_queue_destroy(q);
}

void rn_client_close(struct rn_client *c)
{
    if (!c) {
        return;
    }
    atomic_store(&c->stop, true);
    if (c->has_thread) {
        lws_cancel_service(c->context);
        pthread_join(c->thread, NULL);
    }
    if (c->context) {
        lws_context_destroy(c->context); // closes the socket; the last callbacks come in here
    }
    drain(c, c->in);
    drain(c, c->out);
    rn_buf_finish(&c->part);
    rn_mem_free(c);
}

int rn_client_send(struct rn_client *c, const char *text, size_t len)
{
    if (c->is_ended) {
        return -ENOTCONN;
    }
    struct message *m = rn_mem_alloc(1, sizeof *m + LWS_PRE + len);
    if (!m) {
        return -ENOMEM;
    }
    m->len = len;
    memcpy(m->data + LWS_PRE, text, len);
    if (rn_queue_push(c->out, m) < 0) {
        rn_mem_free(m);
        return -EAGAIN;
    }
    lws_cancel_service(c->context);
    return 0;
}

int rn_client_receive(struct rn_client *c, uint64_t deadline_ns, struct rn_buf *ret)
{
    void *item = c->is_ended ? &c->ended : rn_queue_pop_wait(c->in, deadline_ns);
    if (!item) {
        return 0;
    }
    if (item == &c->ended) {
        c->is_ended = true;
        return -ENOTCONN;
    }
    struct message *m = item;
    int r = rn_buf_add(ret, m->data, m->len) < 0 ? -ENOMEM : 1;
    rn_mem_free(m);
    return r;
}
