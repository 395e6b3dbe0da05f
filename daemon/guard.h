/* Who may talk to us from a browser: checks of the Host and Origin headers, before anything else looks at a request.
 *
 * Host stops DNS rebinding (a foreign name that points to 127.0.0.1), Origin stops pages of other sites. Pure functions; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct rn_guard {
    const char *bound; /* the address we listen on, without brackets; NULL = none */
};

/* Host as sent, with or without a port. Allowed: localhost, *.localhost, loopback literals, the bound address. NULL or anything that is
 * not one well-formed host is refused. */
bool rn_guard_host(const struct rn_guard *guard, const char *host);

/* NULL (no browser) is fine; otherwise it must be "http://" + the Host of the same request. */
bool rn_guard_origin(const char *origin, const char *host);

/* 127.0.0.0/8, ::1; without brackets. */
bool rn_guard_loopback(const char *address);
