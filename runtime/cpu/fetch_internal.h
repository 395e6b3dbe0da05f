/* Asking for memory before it is needed. KV parts lie far apart, so the hardware's own prefetching starts anew at each of them; a thread
 * that only reads them waits for the memory most of the time.
 *
 * Requests are spread over the arithmetic: beside each line that is read, one of another part is asked for. A burst of requests stands in a
 * queue, or is dropped, and then the memory waits. What is fetched when: struct rn_attn_args. Where nothing is to be fetched, kernels ask
 * again for what they read (`ahead`), which costs less than a question.
 * Thread: any; pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RN_LINE 64 /* bytes of a cache line; a longer one is only asked for twice */

/* Asks for the cache line of p, which may be any address. A macro, and not alone in a function: gcc 12 takes one that only asks for
 * memory for one without effect and leaves out its calls. */
#define RN_FETCH_LINE(p) __builtin_prefetch((p), 0, 3)

/* Asks for the cache lines of p[0 .. bytes - 1]. */
static inline void rn_fetch(const uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += RN_LINE) {
        RN_FETCH_LINE(p + i);
    }
    __asm__ volatile(""); // an effect, see above
}
