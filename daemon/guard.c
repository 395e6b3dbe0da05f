#include "daemon/guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HOST_BYTES 256 // a DNS name has at most 253 characters

bool rn_guard_loopback(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1) {
        return ntohl(v4.s_addr) >> 24 == 127;
    }
    return inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

// Splits "name", "name:port", "[v6]", "[v6]:port" into the name without brackets and the port (0 = none). False: not of this shape.
static bool split_host(const char *host, char ret_name[HOST_BYTES], uint32_t *ret_port)
{
    const char *from = host, *end;
    if (*host == '[') {
        from = host + 1;
        end = strchr(from, ']');
        if (!end) {
            return false;
        }
    } else {
        end = host + strcspn(host, ":");
    }
    size_t len = (size_t)(end - from);
    if (len == 0 || len >= HOST_BYTES) {
        return false;
    }
    memcpy(ret_name, from, len);
    ret_name[len] = 0;
    if (strspn(ret_name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:") != len) {
        return false;
    }
    const char *rest = *host == '[' ? end + 1 : end;
    uint32_t port = 0;
    if (*rest == ':') {
        size_t digits = strspn(++rest, "0123456789");
        if (digits == 0 || digits > 5) {
            return false;
        }
        for (; digits; digits--) {
            port = port * 10 + (uint32_t)(*rest++ - '0');
        }
    }
    *ret_port = port;
    return *rest == 0 && port <= UINT16_MAX;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n > m && strcasecmp(s + n - m, tail) == 0;
}

bool rn_guard_host(const struct rn_guard *guard, const char *host)
{
    char name[HOST_BYTES];
    uint32_t port;
    if (!host || !split_host(host, name, &port)) {
        return false;
    }
    return strcasecmp(name, "localhost") == 0 || ends_with(name, ".localhost") || rn_guard_loopback(name) ||
           (guard->bound && strcasecmp(name, guard->bound) == 0);
}

bool rn_guard_origin(const char *origin, const char *host)
{
    static const char scheme[] = "http://";
    if (!origin) {
        return true;
    }
    char name[HOST_BYTES], own_name[HOST_BYTES];
    uint32_t port, own_port;
    if (!host || strncasecmp(origin, scheme, strlen(scheme)) != 0 || !split_host(origin + strlen(scheme), name, &port) ||
        !split_host(host, own_name, &own_port)) {
        return false;
    }
    // 80 is the port that http leaves out.
    return strcasecmp(name, own_name) == 0 && (port ? port : 80) == (own_port ? own_port : 80);
}
