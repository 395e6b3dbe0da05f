/* The client side of the daemon's interface: one HTTP request, or one WebSocket connection on /v1/responses.
 *
 * A connection has a thread of its own that runs the socket loop: pings are answered while a person types. The caller and that thread
 * exchange whole messages through two queues. Nothing here knows what the messages say. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct rn_buf;
struct rn_err;
struct rn_client;

#define RN_CLIENT_URL "http://127.0.0.1:7866"

/* Where a daemon is: "http://HOST[:PORT]" or "ws://…", "HOST:PORT". */
struct rn_client_address {
    char host[256];   /* without brackets */
    char header[272]; /* "HOST:PORT", as the Host header has it */
    uint16_t port;
};

/* -EINVAL: not of this shape (https is not spoken here). */
int rn_client_parse_url(const char *url, struct rn_client_address *ret, struct rn_err *err);

/* Sends METHOD PATH and waits for the whole answer. Any HTTP status is a success here. -ECONNREFUSED: nobody there, or the connection
 * broke; -ETIMEDOUT; -E2BIG: more than 256 MiB; -ENOMEM. Thread: the caller's. */
int rn_client_http(const struct rn_client_address *to, const char *method, const char *path, int *ret_status, struct rn_buf *ret_body,
                   struct rn_err *err);

/* Opens the WebSocket and waits until it stands. -ECONNREFUSED: nobody there, or the upgrade was refused; -ENOMEM. */
int rn_client_open(struct rn_client **ret, const struct rn_client_address *to, struct rn_err *err);
void rn_client_close(struct rn_client *c); /* NULL is fine; unsent messages are dropped */

/* Queues one text message. -ENOTCONN: the connection has ended; -EAGAIN: too many unsent; -ENOMEM. */
int rn_client_send(struct rn_client *c, const char *text, size_t len);

/* The next message that came in, appended to *ret. Waits until deadline_ns (rn_clock_ns; 0 = for ever). 1 = a message; 0 = none yet;
 * -ENOTCONN: the connection has ended and all its messages were taken; -ENOMEM. */
int rn_client_receive(struct rn_client *c, uint64_t deadline_ns, struct rn_buf *ret);
