/* The thread team (pool.h). Everything that threads share is a C11 atomic; the futex is only a way to sleep on `epoch`.
 *
 * I1  `fn`, `arg` and the loop counters are written before the gate opens and read by those who came through it.
 * I2  `place` holds the number of the loop that is open and its next piece. Only the thread that finishes a loop's last piece opens the
 *     next one; who comes later with an older number finds nothing to take.
 * I3  A worker announces itself in `sleepers` before it looks at `epoch` for the last time, and the caller raises `epoch` before
 *     it looks at `sleepers` (both sequentially consistent), so no wake-up is lost.
 * I4  The caller closes the gate after its own way through fn and waits until all who came in have gone: then nobody reads `arg`.
 *
 *   worker:  spin (<= 50 µs) --epoch rose--> through the gate, if it is still open --> fn --> out --> spin …
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
#include "runtime/cpu/flush_internal.h"
#include "runtime/cpu/pool.h"

#define MAX_THREADS 1024
#define SPIN_RUN_NS 50000 // between two steps the engine needs less than this; an idle process must not pay for more
#define SPIN_WAIT 2000 // pauses before the first yield: some 20 µs, the imbalance of one small matrix product
#define GATE_OPEN 0x80000000u // beside it: how many workers are inside

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
    // One cache line each: `epoch` and `place` are polled while the others are written.
    _Alignas(64) atomic_uint epoch;
    atomic_bool stop;
    _Alignas(64) atomic_uint sleepers;
    _Alignas(64) atomic_uint gate;
    _Alignas(64) _Atomic uint64_t place; // number of the open loop << 32 | next index to take
    _Alignas(64) atomic_uint done;       // indices of the open loop that are done
    _Alignas(64) struct {
        _Alignas(64) uint32_t loop; // number of the loop that the thread comes to next; its own
    } seat[];
};

static void relax(void)
{
#if defined(__SSE__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); // some 10 ns; "yield" does nothing on most cores
#endif
}

/* The i-th round of waiting for another thread. */
static void pause_or_yield(int i)
{
    if (i < SPIN_WAIT) {
        relax();
    } else {
        sched_yield();
    }
}

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

/* True: inside, and the caller waits for us. False: the run is over. */
static bool enter(struct rn_pool *p)
{
    unsigned gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    while (gate & GATE_OPEN) {
        if (atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acquire, memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

static void *worker_main(void *user)
{
    struct worker *w = user;
    struct rn_pool *p = w->pool;
    (void)rn_flush_denormals(); // for the whole life of the thread
    for (unsigned seen = 0;;) {
        wait_epoch(p, seen);
        seen = atomic_load(&p->epoch);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed)) {
            return NULL;
        }
        if (enter(p)) {
            p->seat[w->index].loop = 0;
            p->fn(p->arg, w->index);
            atomic_fetch_sub_explicit(&p->gate, 1, memory_order_release);
        }
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
    struct rn_pool *p = rn_mem_alloc64(1, sizeof(*p) + n_threads * sizeof(p->seat[0]));
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
    uint64_t mode = rn_flush_denormals();
    p->seat[0].loop = 0;
    atomic_store_explicit(&p->place, 0, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    if (p->n_threads > 1) {
        p->fn = fn;
        p->arg = arg;
        atomic_store_explicit(&p->gate, GATE_OPEN, memory_order_release);
        raise_epoch(p);
    }
    fn(arg, 0);
    if (p->n_threads > 1) {
        atomic_fetch_and_explicit(&p->gate, ~GATE_OPEN, memory_order_relaxed);
        for (int i = 0; atomic_load_explicit(&p->gate, memory_order_acquire) != 0; i++) {
            pause_or_yield(i);
        }
    }
    rn_flush_restore(mode);
}

struct rn_loop rn_loop_begin(struct rn_pool *p, uint32_t thread, uint32_t n, uint32_t piece)
{
    struct rn_loop l = {.pool = p, .n = n, .piece = piece};
    if (n) { // an empty loop has no last piece to open the next one, so it has no number either
        l.number = p->seat[thread].loop++;
    }
    return l;
}

/* Counts the piece that was just done; the last one opens the next loop. */
static void finish_piece(struct rn_loop *l)
{
    struct rn_pool *p = l->pool;
    uint32_t n = l->end - l->at;
    if (atomic_fetch_add_explicit(&p->done, n, memory_order_acq_rel) + n == l->n) {
        atomic_store_explicit(&p->done, 0, memory_order_relaxed);
        atomic_store_explicit(&p->place, (uint64_t)(l->number + 1) << 32, memory_order_release);
    }
    l->holds = false;
}

bool rn_loop_next(struct rn_loop *l)
{
    struct rn_pool *p = l->pool;
    if (l->holds) {
        finish_piece(l);
    }
    if (l->n == 0) {
        return false;
    }
    uint64_t place = atomic_load_explicit(&p->place, memory_order_acquire);
    for (int i = 0; place >> 32 == l->number;) {
        uint32_t at = (uint32_t)place, end = l->n - at < l->piece ? l->n : at + l->piece;
        if (at == l->n) { // all taken, not all done
            pause_or_yield(i++);
            place = atomic_load_explicit(&p->place, memory_order_acquire);
        } else if (atomic_compare_exchange_weak_explicit(&p->place, &place, place - at + end, memory_order_acquire, memory_order_acquire)) {
            l->at = at;
            l->end = end;
            l->holds = true;
            return true;
        }
    }
    return false;
}
