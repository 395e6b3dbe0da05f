/* The thread team (pool.h). Everything that threads share is a C11 atomic; the futex is only a way to sleep on `epoch`.
 *
 * I1  `fn` and `arg` are written before `epoch` is raised and read after it was seen to rise.
 * I2  `claimed` is reset only by the last thread to arrive at a barrier, before `phase` rises: nobody can be claiming then. A run
 *     ends with a barrier, so the first interval of the next run starts at 0 as well.
 * I3  A worker announces itself in `sleepers` before it looks at `epoch` for the last time, and the caller raises `epoch` before
 *     it looks at `sleepers` (both sequentially consistent), so no wake-up is lost.
 *
 *   worker:  spin (<= 50 µs) --epoch rose--> run fn --> barrier --> spin …
 *              '--time is up--> sleep on epoch --woken--^ */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/pool.h"

#define MAX_THREADS 1024
#define SPIN_RUN_NS 50000 // between two steps the engine needs less than this; an idle process must not pay for more
#define SPIN_BARRIER 2000 // pauses before the first yield: some 20 µs, the imbalance of one small matrix product

struct worker {
    struct rn_pool *pool;
    pthread_t thread;
    uint32_t index;
};

struct rn_pool {
    uint32_t n_threads;
    uint32_t n_started; // workers that exist: 1..n_started
    struct worker *workers;
    rn_pool_fn fn;
    void *arg;
    // One cache line each: `epoch` and `phase` are polled while the others are written.
    _Alignas(64) atomic_uint epoch;
    atomic_bool stop;
    _Alignas(64) atomic_uint sleepers;
    _Alignas(64) atomic_uint phase;
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint claimed;
};

#ifdef __SSE__
#define FTZ_DAZ 0x8040u
static unsigned flush_denormals(void)
{
    unsigned old = _mm_getcsr();
    _mm_setcsr(old | FTZ_DAZ);
    return old;
}

static void restore_mode(unsigned old)
{
    _mm_setcsr((_mm_getcsr() & ~FTZ_DAZ) | (old & FTZ_DAZ));
}

static void relax(void)
{
    _mm_pause();
}
#else
static unsigned flush_denormals(void)
{
    return 0;
}

static void restore_mode(unsigned old)
{
    (void)old;
}

static void relax(void)
{
}
#endif

static void futex_wait(atomic_uint *word, unsigned seen)
{
    // Every outcome (woken, value changed, signal) means: look again.
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void wait_epoch(struct rn_pool *p, unsigned seen)
{
    uint64_t start = rn_clock_ns();
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&p->epoch, memory_order_acquire) != seen) {
                return;
            }
            relax();
        }
    } while (rn_clock_ns() - start < SPIN_RUN_NS);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->epoch) == seen) {
        futex_wait(&p->epoch, seen);
    }
    atomic_fetch_sub(&p->sleepers, 1);
}

static void raise_epoch(struct rn_pool *p)
{
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleepers) != 0) {
        futex_wake_all(&p->epoch);
    }
}

static void *worker_main(void *user)
{
    struct worker *w = user;
    struct rn_pool *p = w->pool;
    (void)flush_denormals(); // for the whole life of the thread
    for (unsigned seen = 0;; seen++) {
        wait_epoch(p, seen);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) {
            return NULL;
        }
        p->fn(p->arg, w->index);
        rn_pool_barrier(p, w->index);
    }
}

/* Workers leave all signals to the threads that handle them. */
static int start_workers(struct rn_pool *p)
{
    sigset_t all, old;
    sigfillset(&all);
    int r = pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 1; i < p->n_threads && r == 0; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .index = i};
        r = pthread_create(&w->thread, NULL, worker_main, w);
        p->n_started += r == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL); // cannot fail with a mask that was just read
    return r;
}

int rn_pool_create(struct rn_pool **ret, uint32_t n_threads, struct rn_err *err)
{
    if (n_threads == 0 || n_threads > MAX_THREADS) {
        return rn_err_set(err, -EINVAL, "%u threads asked for, possible are 1 to %d", n_threads, MAX_THREADS);
    }
    struct rn_pool *p = rn_mem_alloc64(1, sizeof(*p));
    if (!p) {
        return rn_err_nomem(err, sizeof(*p), "the thread pool");
    }
    p->n_threads = n_threads;
    p->workers = rn_mem_alloc(n_threads, sizeof(*p->workers));
    if (!p->workers) {
        rn_pool_destroy(p);
        return rn_err_nomem(err, n_threads * sizeof(*p->workers), "the thread pool");
    }
    int r = start_workers(p);
    if (r != 0) {
        rn_pool_destroy(p);
        return rn_err_set(err, -r, "cannot start %u threads", n_threads);
    }
    *ret = p;
    return 0;
}

void rn_pool_destroy(struct rn_pool *p)
{
    if (!p) {
        return;
    }
    atomic_store_explicit(&p->stop, true, memory_order_relaxed); // published by the epoch
    raise_epoch(p);
    for (uint32_t i = 1; i <= p->n_started; i++) {
        (void)pthread_join(p->workers[i].thread, NULL); // our own joinable thread
    }
    rn_mem_free(p->workers);
    rn_mem_free(p);
}

uint32_t rn_pool_threads(const struct rn_pool *p)
{
    return p->n_threads;
}

void rn_pool_run(struct rn_pool *p, rn_pool_fn fn, void *arg)
{
    unsigned mode = flush_denormals();
    if (p->n_threads > 1) {
        p->fn = fn;
        p->arg = arg;
        raise_epoch(p);
    }
    fn(arg, 0);
    rn_pool_barrier(p, 0);
    restore_mode(mode);
}

void rn_pool_barrier(struct rn_pool *p, uint32_t thread)
{
    (void)thread;
    if (p->n_threads == 1) {
        atomic_store_explicit(&p->claimed, 0, memory_order_relaxed);
        return;
    }
    unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) + 1 == p->n_threads) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&p->claimed, 0, memory_order_relaxed); // keeps I2
        atomic_store_explicit(&p->phase, phase + 1, memory_order_release);
        return;
    }
    for (int i = 0; i < SPIN_BARRIER; i++) {
        if (atomic_load_explicit(&p->phase, memory_order_acquire) != phase) {
            return;
        }
        relax();
    }
    while (atomic_load_explicit(&p->phase, memory_order_acquire) == phase) {
        sched_yield();
    }
}

uint32_t rn_pool_claim(struct rn_pool *p, uint32_t piece)
{
    if (p->n_threads == 1) {
        uint32_t at = atomic_load_explicit(&p->claimed, memory_order_relaxed);
        atomic_store_explicit(&p->claimed, at + piece, memory_order_relaxed);
        return at;
    }
    return atomic_fetch_add_explicit(&p->claimed, piece, memory_order_relaxed);
}
