/* A team of threads that runs one function together and meets at barriers.
 *
 * The caller is thread 0. Workers spin at most 50 µs for the next run, then sleep on a futex, so an idle process costs nothing. A
 * barrier spins briefly, then yields: cheap enough for six per layer on a 135M model, harmless when the machine is busy.
 * All threads run with flush-to-zero and denormals-are-zero set (numerics contract); the caller's mode is restored after a run.
 * Owner: one thread at a time calls rn_pool_run. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct rn_pool;
struct rn_err;

typedef void (*rn_pool_fn)(void *arg, uint32_t thread);

int rn_pool_create(struct rn_pool **ret, uint32_t n_threads, struct rn_err *err);
void rn_pool_destroy(struct rn_pool *p);
uint32_t rn_pool_threads(const struct rn_pool *p);

/* Runs fn(arg, 0..n-1), one call per thread; returns when all have returned. */
void rn_pool_run(struct rn_pool *p, rn_pool_fn fn, void *arg);

/* Inside a run: waits until all threads have come here. Every thread must make the same calls in the same order. */
void rn_pool_barrier(struct rn_pool *p, uint32_t thread);

/* Inside a run, between two barriers: hands out [0, n) in pieces of `piece` to whoever asks. Returns the start of the next piece, or
 * >= n when there is none. The counter belongs to the current interval between barriers and starts at 0 in each. One loop per interval. */
uint32_t rn_pool_claim(struct rn_pool *p, uint32_t piece);
