/* The thread team: loops are done once, whole, one after the other, with or without all threads, and the caller's floating-point mode
 * survives. And what the team is for: the machine's cores and limits. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/pool.h"

#define MAX_THREADS 8
#define N_INTERVALS 50
#define N_ITEMS 101

struct shared {
    struct rn_pool *pool;
    atomic_uint calls[MAX_THREADS];
    atomic_uint wrong;
    atomic_bool late, go;
    uint32_t stage[N_ITEMS]; // plain memory: the loops order it
    uint8_t taken[N_INTERVALS][N_ITEMS];
    float tiny;
};

static struct rn_pool *pool_of(uint32_t n)
{
    struct rn_pool *p = NULL;
    struct rn_err err = {0};
    assert_int_equal(rn_pool_create(&p, n, &err), 0);
    assert_int_equal(rn_pool_threads(p), n);
    return p;
}

static void count_call(void *arg, uint32_t thread)
{
    struct shared *s = arg;
    atomic_fetch_add(&s->calls[thread], 1);
}

static void callers_run_once_per_run_and_workers_at_most_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        struct shared s = {.pool = pool_of(n)};
        for (uint32_t run = 1; run <= 300; run++) {
            rn_pool_run(s.pool, count_call, &s);
            assert_int_equal(atomic_load(&s.calls[0]), run);
            for (uint32_t i = 1; i < MAX_THREADS; i++) {
                assert_true(atomic_load(&s.calls[i]) <= (i < n ? run : 0));
            }
        }
        rn_pool_destroy(s.pool);
    }
}

/* Each loop reads what the one before wrote, all of it. */
static void stages(void *arg, uint32_t thread)
{
    struct shared *s = arg;
    for (uint32_t k = 1; k <= N_INTERVALS; k++) {
        for (struct rn_loop l = rn_loop_begin(s->pool, thread, N_ITEMS, 3); rn_loop_next(&l);) {
            for (uint32_t i = l.at; i < l.end; i++) {
                atomic_fetch_add(&s->wrong, s->stage[i] != k - 1);
                s->stage[i] = k;
            }
        }
        for (struct rn_loop l = rn_loop_begin(s->pool, thread, k % 2, 1); rn_loop_next(&l);) { // sometimes empty
            for (uint32_t i = 0; i < N_ITEMS; i++) {
                atomic_fetch_add(&s->wrong, s->stage[i] != k);
            }
        }
    }
    for (struct rn_loop l = rn_loop_begin(s->pool, thread, N_ITEMS, N_ITEMS); rn_loop_next(&l);) {
        for (uint32_t i = l.at; i < l.end; i++) {
            s->stage[i] = 0;
        }
    }
}

static void a_loop_begins_when_the_one_before_is_whole(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_THREADS; n += n < 4 ? 1 : 4) {
        struct shared s = {.pool = pool_of(n)};
        for (int run = 0; run < 20; run++) {
            rn_pool_run(s.pool, stages, &s);
        }
        assert_int_equal(atomic_load(&s.wrong), 0);
        rn_pool_destroy(s.pool);
    }
}

static void take_all(void *arg, uint32_t thread)
{
    struct shared *s = arg;
    for (uint32_t k = 0; k < N_INTERVALS; k++) {
        for (struct rn_loop l = rn_loop_begin(s->pool, thread, N_ITEMS, 1 + k % 7); rn_loop_next(&l);) {
            for (uint32_t i = l.at; i < l.end; i++) {
                s->taken[k][i]++; // plain memory: a piece handed out twice is a race that ThreadSanitizer sees
            }
        }
    }
}

static void pieces_cover_each_loop_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        struct shared s = {.pool = pool_of(n)};
        for (uint8_t run = 1; run <= 3; run++) {
            rn_pool_run(s.pool, take_all, &s);
            for (uint32_t k = 0; k < N_INTERVALS; k++) {
                for (uint32_t i = 0; i < N_ITEMS; i++) {
                    assert_int_equal(s.taken[k][i], run);
                }
            }
        }
        rn_pool_destroy(s.pool);
    }
}

/* Workers come in but are held up before their first loop until the caller has done all of it alone. */
static void caller_goes_first(void *arg, uint32_t thread)
{
    struct shared *s = arg;
    if (thread != 0) {
        atomic_store(&s->late, true);
        while (!atomic_load(&s->go)) {
            sched_yield();
        }
    }
    take_all(arg, thread);
    atomic_store(&s->go, true);
}

static void a_thread_that_is_held_up_holds_nobody_back(void **state)
{
    (void)state;
    struct shared s = {.pool = pool_of(3)};
    uint8_t runs = 0;
    while (!atomic_load(&s.late) && runs < 200) { // until a worker was awake in time at least once
        atomic_store(&s.go, false);
        rn_pool_run(s.pool, caller_goes_first, &s);
        runs++;
    }
    assert_true(atomic_load(&s.late));
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        assert_int_equal(s.taken[N_INTERVALS - 1][i], runs);
    }
    rn_pool_destroy(s.pool);
}

static void halve_tiny(void *arg, uint32_t thread)
{
    struct shared *s = arg;
    volatile float x = s->tiny;
    x = x * 0.5f;
    if (x != 0) {
        atomic_fetch_add(&s->calls[thread], 1);
    }
}

static void denormals_are_flushed_inside_a_run_only(void **state)
{
    (void)state;
#if !defined(__x86_64__) && !defined(__aarch64__)
    print_message("skipped: the flush mode is set on x86-64 and ARM only\n");
    skip();
#endif
    struct shared s = {.pool = pool_of(3), .tiny = 1.5e-38f};
    rn_pool_run(s.pool, halve_tiny, &s);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(atomic_load(&s.calls[i]), 0);
    }
    halve_tiny(&s, 5);
    assert_int_equal(atomic_load(&s.calls[5]), 1);
    rn_pool_destroy(s.pool);
}

static void impossible_counts_and_lost_memory_are_errors(void **state)
{
    (void)state;
    struct rn_err err = {0};
    struct rn_pool *p = NULL;
    assert_int_equal(rn_pool_create(&p, 0, &err), -EINVAL);
    assert_int_equal(rn_pool_create(&p, 100000, &err), -EINVAL);
    for (uint64_t i = 1; i <= 2; i++) {
        rn_mem_fail_at(i);
        assert_int_equal(rn_pool_create(&p, 2, &err), -ENOMEM);
    }
    rn_mem_fail_at(0);
    assert_null(p);
    rn_pool_destroy(NULL);
    rn_pool_destroy(pool_of(4)); // never ran
}

static void machine_has_cores_and_limits(void **state)
{
    (void)state;
    uint32_t n = rn_cpu_threads_default();
    assert_true(n >= 1 && n <= sysconf(_SC_NPROCESSORS_ONLN));
    for (uint32_t threads = 1; threads <= 2; threads++) {
        double gb_per_s = -1, tops = -1;
        rn_cpu_measure(threads, /*ms=*/40, &gb_per_s, &tops);
        assert_true(gb_per_s > 0.1 && gb_per_s < 10000); // a slow emulator to more than any machine has
        assert_true(tops > 1e-5 && tops < 10000);
    }
    double gb_per_s = -1, tops = -1;
    rn_cpu_measure(/*n_threads=*/0, 40, &gb_per_s, &tops);
    assert_true(gb_per_s == 0 && tops == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_run_once_per_run_and_workers_at_most_once),
        cmocka_unit_test(a_loop_begins_when_the_one_before_is_whole),
        cmocka_unit_test(pieces_cover_each_loop_once),
        cmocka_unit_test(a_thread_that_is_held_up_holds_nobody_back),
        cmocka_unit_test(denormals_are_flushed_inside_a_run_only),
        cmocka_unit_test(impossible_counts_and_lost_memory_are_errors),
        cmocka_unit_test(machine_has_cores_and_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
