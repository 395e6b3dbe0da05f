/* Asking for memory before it is needed. KV parts lie far apart, so the hardware's own prefetching starts anew at each of them; a thread
 * that only reads them waits for the memory most of the time.
 * Thread: any; pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RN_LINE 64 /* bytes of a cache line; a longer one is only asked for twice */

/* Asks for the cache line of p, which may be any address. A macro: gcc 12 leaves out calls of a function that does nothing else. */
#define RN_FETCH_LINE(p) __builtin_prefetch((p), 0, 3)

/* Asks for the cache lines of p[0 .. bytes - 1]. */
static inline void rn_fetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += RN_LINE) {
        RN_FETCH_LINE(p + i);
    }
}

/* The same for quarter 0..3 of a KV part: what belongs to 16 of its tokens. NULL: nothing. */
static inline void rn_fetch_quarter(const uint8_t *part, size_t part_bytes, uint32_t quarter)
{
    if (part) {
        rn_fetch(part + quarter * (part_bytes / 4), part_bytes / 4);
    }
}
