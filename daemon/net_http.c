/* Plain HTTP: routes, the page, and the checks before a WebSocket upgrade.
 *
 * Every transaction is one struct rn_http: filled by its route (at once, or when the service replies), written from the WRITEABLE callback.
 * Order of checks: Host (421), Origin (403), path (404), method (405), readiness (503). A request with a body is answered and its
 * connection closed: no route takes one, and its bytes must not be read as the next request. Thread: socket. */
#include "daemon/net_loop.h"

#include <errno.h>
#include <libwebsockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/json_text.h"
#include "daemon/net_internal.h"
#include "daemon/web.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/engine.h"
#include "session/service.h"

#define BODY_CHUNK (16u << 10)
#define HEADER_BYTES 2048
#define HOST_HEADER_BYTES 512

enum method { GET = 1, HEAD = 2, POST = 4, OPTIONS = 8, PUT = 16, PATCH = 32, DELETE = 64, OTHER = 128 };

struct route {
    const char *path; // ends with '/': whatever follows is the name
    unsigned methods;
    const char *allow;
    bool needs_model;
    int (*serve)(struct rn_http *h, enum method method, const char *name); // 0, or -ENOMEM
};

/* ---- Answers ----------------------------------------------------------------------------------------------------------------------- */

static int set_problem(struct rn_http *h, const struct rn_problem *p)
{
    h->status = p->status;
    h->content_type = "application/json";
    rn_buf_clear(&h->own);
    int r = rn_problem_body(p, &h->own);
    h->body = (const unsigned char *)h->own.data;
    h->body_len = h->own.len;
    return r;
}

static int set_refused(struct rn_http *h, int status, const char *code, const char *param, const char *message)
{
    struct rn_problem p;
    rn_problem_set(&p, status, code, param, "%s", message);
    return set_problem(h, &p);
}

// Takes v (NULL = out of memory).
static int set_json(struct rn_http *h, int status, json_t *v)
{
    int r = v ? rn_json_add(&h->own, v) : -ENOMEM;
    json_decref(v);
    h->status = status;
    h->content_type = "application/json";
    h->body = (const unsigned char *)h->own.data;
    h->body_len = h->own.len;
    return r;
}

static void set_file(struct rn_http *h, const struct rn_web_file *file)
{
    char known[80];
    h->is_page = true;
    h->etag = file->etag;
    h->content_type = file->type;
    int n = lws_hdr_copy(h->wsi, known, sizeof known, WSI_TOKEN_HTTP_IF_NONE_MATCH);
    bool is_known = n > 0 && strstr(known, file->etag);
    h->status = is_known ? 304 : 200;
    h->body = file->data;
    h->body_len = is_known ? 0 : file->len;
}

/* ---- Routes ------------------------------------------------------------------------------------------------------------------------ */

static int serve_health(struct rn_http *h, enum method method, const char *name)
{
    (void)method, (void)name;
    return set_json(h, 200, json_pack("{s:s}", "status", h->net->draining ? "stopping" : h->net->model ? "ok" : "loading"));
}

static int serve_ready(struct rn_http *h, enum method method, const char *name)
{
    (void)method, (void)name;
    const struct rn_engine_info *info = h->net->model->info;
    if (!rn_service_ready(h->net->model->service)) {
        return set_refused(h, 503, "device_lost", NULL, "the device is lost; it will be tried again");
    }
    return set_json(
        h, 200,
        json_pack("{s:b, s:s, s:s, s:s}", "ready", 1, "model", info->model_id, "device", info->device, "fingerprint", info->fingerprint));
}

static json_t *model_object(const struct rn_net_model *m)
{
    const struct rn_engine_info *info = m->info;
    return json_pack("{s:s, s:s, s:I, s:s, s:I, s:{s:I, s:I, s:I, s:I, s:I}}", "id", info->model_id, "object", "model", "created",
                     (json_int_t)m->created, "owned_by", "runnel", "max_model_len", (json_int_t)m->max_window, "meta", "n_ctx",
                     (json_int_t)m->window, "n_ctx_train", (json_int_t)info->n_ctx_train, "n_vocab", (json_int_t)info->n_vocab, "n_params",
                     (json_int_t)info->n_params, "size", (json_int_t)info->weight_bytes);
}

static int serve_models(struct rn_http *h, enum method method, const char *name)
{
    (void)method, (void)name;
    return set_json(h, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_object(h->net->model)));
}

static int serve_model(struct rn_http *h, enum method method, const char *name)
{
    (void)method;
    if (strcmp(name, h->net->model->info->model_id) != 0 && strcmp(name, "default") != 0) {
        return set_refused(h, 404, "model_not_found", "model", "this model is not loaded");
    }
    return set_json(h, 200, model_object(h->net->model));
}

static int serve_responses(struct rn_http *h, enum method method, const char *name)
{
    (void)method, (void)name;
    return set_refused(h, 426, "upgrade_required", NULL, "this address speaks WebSocket");
}

static int ask_service(struct rn_http *h, enum rn_query what, const char *id)
{
    h->ticket = rn_net_ticket(h->net, RN_TICKET_HTTP, h);
    if (!h->ticket || rn_service_query(h->net->model->service, h->ticket, what, id) < 0) {
        rn_net_ticket_drop(h->net, h->ticket);
        h->ticket = 0;
        return set_refused(h, 503, "server_is_overloaded", NULL, "too many requests are waiting");
    }
    return 0;
}

static int serve_sessions(struct rn_http *h, enum method method, const char *name)
{
    (void)method, (void)name;
    char value[32];
    const char *limit = lws_get_urlarg_by_name(h->wsi, "limit=", value, sizeof value);
    h->limit = UINT32_MAX;
    if (limit) {
        char *end;
        errno = 0;
        unsigned long n = strtoul(limit, &end, 10);
        if (errno || *limit < '0' || *limit > '9' || *end || n < 1 || n > 100000) {
            return set_refused(h, 400, "invalid_value", "limit", "limit is not an integer from 1 to 100000");
        }
        h->limit = (uint32_t)n;
    }
    return ask_service(h, RN_QUERY_LIST, NULL);
}

static int serve_session(struct rn_http *h, enum method method, const char *name)
{
    if (!*name || strlen(name) >= RN_ID_BYTES) {
        return set_refused(h, 404, "not_found", NULL, "there is no such session");
    }
    return ask_service(h, method == DELETE ? RN_QUERY_DELETE : RN_QUERY_SHOW, name);
}

static const struct route routes[] = {
    // sorted by path
    {"/health", GET | HEAD, "GET, HEAD", false, serve_health},
    {"/ready", GET | HEAD, "GET, HEAD", true, serve_ready},
    {"/runnel/sessions", GET | HEAD, "GET, HEAD", true, serve_sessions},
    {"/runnel/sessions/", GET | HEAD | DELETE, "GET, HEAD, DELETE", true, serve_session},
    {"/v1/models", GET | HEAD, "GET, HEAD", true, serve_models},
    {"/v1/models/", GET | HEAD, "GET, HEAD", true, serve_model},
    {"/v1/responses", GET | HEAD, "GET, HEAD", false, serve_responses},
};

// The longest match: an exact path, or the part up to its last '/' for a route that takes a name.
static const struct route *find_route(const char *path, const char **ret_name)
{
    size_t low = 0, high = sizeof routes / sizeof routes[0];
    const struct route *prefix = NULL;
    while (low < high) {
        size_t mid = (low + high) / 2, n = strlen(routes[mid].path);
        int order = strcmp(path, routes[mid].path);
        bool takes_name = routes[mid].path[n - 1] == '/' && strncmp(path, routes[mid].path, n) == 0;
        if (order == 0 || takes_name) {
            prefix = &routes[mid];
            *ret_name = path + n;
        }
        if (order == 0) {
            break;
        }
        if (order < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return prefix;
}

/* ---- Checks ------------------------------------------------------------------------------------------------------------------------ */

// A copy of a header, or NULL when it is absent; one that does not fit is as bad as a wrong one: "".
static const char *get_header(struct lws *wsi, enum lws_token_indexes token, char *buf, int size)
{
    if (lws_hdr_total_length(wsi, token) <= 0) {
        return NULL;
    }
    return lws_hdr_copy(wsi, buf, size, token) > 0 ? buf : "";
}

static int check_guard(struct rn_net *net, struct lws *wsi, struct rn_problem *ret)
{
    char host[HOST_HEADER_BYTES], origin[HOST_HEADER_BYTES];
    const char *h = get_header(wsi, WSI_TOKEN_HOST, host, sizeof host);
    const char *o = get_header(wsi, WSI_TOKEN_ORIGIN, origin, sizeof origin);
    if (!rn_guard_host(&net->guard, h)) {
        rn_problem_set(ret, 421, "host_not_allowed", NULL, "this Host is not served here");
        return -EPERM;
    }
    if (!rn_guard_origin(o, h)) {
        rn_problem_set(ret, 403, "origin_not_allowed", NULL, "pages of this Origin may not use the daemon");
        return -EPERM;
    }
    return 0;
}

static enum method get_method(struct lws *wsi)
{
    static const struct {
        enum lws_token_indexes token;
        enum method method;
    } methods[] = {{WSI_TOKEN_GET_URI, GET}, {WSI_TOKEN_HEAD_URI, HEAD},   {WSI_TOKEN_POST_URI, POST},    {WSI_TOKEN_OPTIONS_URI, OPTIONS},
                   {WSI_TOKEN_PUT_URI, PUT}, {WSI_TOKEN_PATCH_URI, PATCH}, {WSI_TOKEN_DELETE_URI, DELETE}};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (lws_hdr_total_length(wsi, methods[i].token) > 0) {
            return methods[i].method;
        }
    }
    return OTHER;
}

static bool has_body(struct lws *wsi, enum method method)
{
    char length[24];
    const char *given = get_header(wsi, WSI_TOKEN_HTTP_CONTENT_LENGTH, length, sizeof length);
    return method & (POST | PUT | PATCH) || (given && strcmp(given, "0") != 0) ||
           lws_hdr_total_length(wsi, WSI_TOKEN_HTTP_TRANSFER_ENCODING) > 0;
}

static int route_request(struct rn_http *h, const char *path, enum method method)
{
    struct rn_problem p;
    const char *name = "";
    if (check_guard(h->net, h->wsi, &p) < 0) {
        return set_problem(h, &p);
    }
    const struct rn_web_file *file = rn_web_find(path);
    const struct route *route = file ? NULL : find_route(path, &name);
    if (!file && !route) {
        return set_refused(h, 404, "not_found", NULL, "there is nothing at this path");
    }
    if (!(method & (file ? GET | HEAD : route->methods))) {
        h->allow = file ? "GET, HEAD" : route->allow;
        return set_refused(h, 405, "method_not_allowed", NULL, "this path does not take this method");
    }
    if (file) {
        set_file(h, file);
        return 0;
    }
    if (route->needs_model && rn_net_not_ready(h->net, &p) < 0) {
        return set_problem(h, &p);
    }
    return route->serve(h, method, name);
}

/* ---- Writing ----------------------------------------------------------------------------------------------------------------------- */

struct header_place {
    unsigned char *at, *end;
    bool failed;
};

static void add_header(struct lws *wsi, struct header_place *h, const char *name, const char *value)
{
    h->failed = h->failed || lws_add_http_header_by_name(wsi, (const unsigned char *)name, (const unsigned char *)value, (int)strlen(value),
                                                         &h->at, h->end);
}

static bool add_headers(const struct rn_http *h, struct header_place *to)
{
    struct lws *wsi = h->wsi;
    to->failed = lws_add_http_header_status(wsi, (unsigned)h->status, &to->at, to->end);
    add_header(wsi, to, "content-type:", h->content_type);
    add_header(wsi, to, "x-content-type-options:", "nosniff");
    add_header(wsi, to, "cache-control:", h->is_page ? "no-cache" : "no-store");
    if (h->is_page) {
        add_header(wsi, to, "etag:", h->etag);
        add_header(wsi, to, "content-security-policy:", RN_WEB_CSP);
        add_header(wsi, to, "referrer-policy:", "no-referrer");
        add_header(wsi, to, "cross-origin-opener-policy:", "same-origin");
        add_header(wsi, to, "cross-origin-resource-policy:", "same-origin");
    }
    if (h->allow) {
        add_header(wsi, to, "allow:", h->allow);
    }
    if (h->status == 426) {
        add_header(wsi, to, "upgrade:", "websocket");
    }
    if (h->status == 503) {
        add_header(wsi, to, "retry-after:", "1");
    }
    if (h->close_after) {
        add_header(wsi, to, "connection:", "close");
    }
    to->failed = to->failed || lws_add_http_header_content_length(wsi, h->body_len, &to->at, to->end);
    return !to->failed && lws_finalize_http_header(wsi, &to->at, to->end) == 0;
}

// Negative: close the connection.
static int write_headers(struct rn_http *h)
{
    unsigned char buf[LWS_PRE + HEADER_BYTES], *start = buf + LWS_PRE;
    struct header_place to = {.at = start, .end = buf + sizeof buf};
    if (!add_headers(h, &to)) {
        return -1;
    }
    size_t n = (size_t)(to.at - start);
    if (h->is_upgrade && n > 8) {
        start[7] = '1'; // the library says HTTP/1.0 before it has read the version; clients refuse to upgrade from that
    }
    return lws_write(h->wsi, start, n, LWS_WRITE_HTTP_HEADERS) == (int)n ? 0 : -1;
}

static int write_body(struct rn_http *h)
{
    unsigned char buf[LWS_PRE + BODY_CHUNK];
    size_t n = h->body_len - h->sent;
    n = n < BODY_CHUNK ? n : BODY_CHUNK;
    memcpy(buf + LWS_PRE, h->body + h->sent, n);
    h->sent += n;
    return lws_write(h->wsi, buf + LWS_PRE, n, h->sent == h->body_len ? LWS_WRITE_HTTP_FINAL : LWS_WRITE_HTTP) == (int)n ? 0 : -1;
}

static void free_http(struct rn_net_session *session)
{
    struct rn_http *h = session->http;
    if (h) {
        rn_net_ticket_drop(h->net, h->ticket);
        rn_buf_finish(&h->own);
        rn_mem_free(h);
        session->http = NULL;
    }
}

static int on_writable(struct lws *wsi, struct rn_net_session *session)
{
    struct rn_http *h = session->http;
    if (!h || !h->status) {
        return 0;
    }
    int r = h->headers_sent ? write_body(h) : write_headers(h);
    h->headers_sent = true;
    if (r < 0) {
        free_http(session);
        return -1;
    }
    if (!h->head_only && h->sent < h->body_len) {
        lws_callback_on_writable(wsi);
        return 0;
    }
    bool close_after = h->close_after;
    free_http(session);
    return close_after || lws_http_transaction_completed(wsi) ? -1 : 0;
}

static int on_request(struct rn_net *net, struct lws *wsi, struct rn_net_session *session, const char *path)
{
    free_http(session);
    struct rn_http *h = rn_mem_alloc(1, sizeof *h);
    if (!h) {
        return -1;
    }
    enum method method = get_method(wsi);
    h->net = net;
    h->wsi = wsi;
    h->head_only = method == HEAD;
    h->close_after = has_body(wsi, method);
    session->http = h;
    if (route_request(h, path, method) < 0) {
        free_http(session);
        return -1;
    }
    if (h->status) {
        lws_callback_on_writable(wsi);
    }
    return 0;
}

void rn_http_reply(struct rn_http *h, struct rn_event *event)
{
    rn_net_ticket_drop(h->net, h->ticket);
    h->ticket = 0;
    int r;
    if (event->http_status >= 400) {
        r = set_refused(h, event->http_status, event->code ? event->code : "internal_error", event->param,
                        event->message ? event->message : "failed");
    } else {
        json_t *data = json_object_get(event->reply, "data"), *reply = json_incref(event->reply);
        while (json_is_array(data) && json_array_size(data) > h->limit) {
            json_array_remove(data, json_array_size(data) - 1);
        }
        r = set_json(h, 200, reply ? reply : json_object());
    }
    if (r < 0) { // nothing can be said: an empty 503
        h->status = 503;
        h->body_len = 0;
    }
    lws_callback_on_writable(h->wsi);
}

int rn_http_callback(struct rn_net *net, struct lws *wsi, int reason, struct rn_net_session *session, void *in, size_t len)
{
    (void)len;
    if (!session) {
        return 0;
    }
    switch (reason) {
    case LWS_CALLBACK_HTTP:
        return on_request(net, wsi, session, in);
    case LWS_CALLBACK_HTTP_WRITEABLE:
        return on_writable(wsi, session);
    default: // the transaction is over, one way or another
        free_http(session);
        return 0;
    }
}

/* ---- Upgrade ----------------------------------------------------------------------------------------------------------------------- */

static int refuse_upgrade(struct rn_net *net, struct lws *wsi, const struct rn_problem *p)
{
    struct rn_http h = {.net = net, .wsi = wsi, .close_after = true, .is_upgrade = true};
    int r = set_problem(&h, p);
    if (r == 0) {
        r = write_headers(&h);
    }
    if (r == 0) {
        r = write_body(&h);
    }
    rn_buf_finish(&h.own);
    return r < 0 ? -1 : 1;
}

// 0: go on; 1: refused with a status; -1: hang up.
int rn_http_confirm_upgrade(struct rn_net *net, struct lws *wsi, char *in)
{
    // CVE-2025-11677, not fixed in the distributions: with an unknown Upgrade value on a kept-alive connection the header table is gone
    // and `in` points to freed memory. Can go when 4.3.9 or 4.5.0 is the oldest version.
    if (lws_hdr_total_length(wsi, WSI_TOKEN_UPGRADE) <= 0) {
        return -1;
    }
    if (strncasecmp(in, "h2c", 3) == 0) {
        *in = 'x'; // no upgrade to HTTP/2 in the clear, where a body would be lost: it is served as HTTP/1.1
        return 0;
    }
    if (strcasecmp(in, "websocket") != 0) {
        return 0;
    }
    struct rn_problem p;
    char path[64];
    if (lws_hdr_copy(wsi, path, sizeof path, WSI_TOKEN_GET_URI) <= 0 || strcmp(path, "/v1/responses") != 0) {
        rn_problem_set(&p, 404, "not_found", NULL, "there is no WebSocket at this path");
        return refuse_upgrade(net, wsi, &p);
    }
    if (check_guard(net, wsi, &p) < 0 || rn_net_not_ready(net, &p) < 0) {
        return refuse_upgrade(net, wsi, &p);
    }
    return 0;
}
