/* Time. Thread: any. */
#pragma once

#include <stdint.h>

/* Monotonic time in nanoseconds. */
uint64_t rn_clock_ns(void);

/* Monotonic milliseconds between two rn_clock_ns readings. */
double rn_clock_ms(uint64_t from_ns, uint64_t to_ns);

/* Seconds since 1970, UTC. */
int64_t rn_clock_unix(void);
