#define _GNU_SOURCE
#include "runtime/base/clock.h"

#include <time.h>

uint64_t rn_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double rn_clock_ms(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0;
}

int64_t rn_clock_unix(void)
{
    return (int64_t)time(NULL);
}
