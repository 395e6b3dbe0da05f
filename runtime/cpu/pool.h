/* A team of threads that works through a sequence of loops together.
 *
 * rn_pool_run calls one function on every thread that is awake; inside, all threads go through the same loops in the same order, and each
 * piece of a loop is done by whoever asks for it first. A loop is over when all its pieces are done, not when all threads have come by:
 * a thread that the system has taken off its core holds back the others only while it is inside a piece, and skips what was done without
 * it. So an oversubscribed machine slows a run down by its share, not by a wait per loop.
 *
 * The caller is thread 0. Workers spin at most 50 µs for the next run, then sleep on a futex, so an idle process costs nothing. All
 * threads run with flush-to-zero and denormals-are-zero set (numerics contract); the caller's mode is restored after a run.
 * Owner: one thread at a time calls rn_pool_run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rn_pool;
struct rn_err;

typedef void (*rn_pool_fn)(void *arg, uint32_t thread);

int rn_pool_create(struct rn_pool **ret, uint32_t n_threads, struct rn_err *err);
void rn_pool_destroy(struct rn_pool *p);
uint32_t rn_pool_threads(const struct rn_pool *p);

/* Runs fn(arg, thread) on the caller and on the workers that wake up in time; returns when all of them have returned. Work outside of
 * loops is done by every one of them. */
void rn_pool_run(struct rn_pool *p, rn_pool_fn fn, void *arg);

/* One thread's way through a loop:
 *
 *   for (struct rn_loop l = rn_loop_begin(p, thread, n, piece); rn_loop_next(&l);) { do l.at .. l.end - 1 }
 *
 * Every thread of a run makes the same calls with the same n and piece. Behind the loop all of 0 .. n - 1 is done, by whomever. What a
 * piece reads may change in later loops only, so everything that the piece needs must be read inside the loop. */
struct rn_loop {
    uint32_t at, end; /* the piece */
    struct rn_pool *pool;
    uint32_t n, piece, number;
    bool holds;
};
struct rn_loop rn_loop_begin(struct rn_pool *p, uint32_t thread, uint32_t n, uint32_t piece);
bool rn_loop_next(struct rn_loop *l);
