#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/base/queue.h"

static void errors_gather_their_story(void **state)
{
    (void)state;
    struct rn_err err = {0};
    assert_int_equal(rn_err_set(&err, -EINVAL, "dim %d", 3), -EINVAL);
    assert_int_equal(rn_err_prefix(&err, "loading '%s'", "m.gguf"), -EINVAL);
    assert_string_equal(err.text, "loading 'm.gguf': dim 3");
    assert_int_equal(rn_err_set(NULL, -ENOENT, "x"), -ENOENT);
}

static void array_sizes_do_not_overflow(void **state)
{
    (void)state;
    size_t bytes = 7;
    assert_false(rn_mem_array(SIZE_MAX / 2, 3, &bytes));
    assert_int_equal(bytes, 7);
    assert_null(rn_mem_alloc(SIZE_MAX / 2, 3));
    assert_true(rn_mem_array(5, 6, &bytes));
    assert_int_equal(bytes, 30);
}

static void nth_allocation_fails_once(void **state)
{
    (void)state;
    rn_mem_fail_at(2);
    void *a = rn_mem_alloc(1, 1), *b = rn_mem_alloc(1, 1), *c = rn_mem_alloc(1, 1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(rn_mem_count(), 3);
    rn_mem_fail_at(0);
    rn_mem_free(a);
    rn_mem_free(c);
}

static void regions_are_zero_and_aligned(void **state)
{
    (void)state;
    size_t bytes = (5u << 20) + 123;
    unsigned char *p = rn_mem_region_alloc(bytes);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % (2u << 20), 0);
    assert_int_equal(p[0] | p[bytes - 1], 0);
    p[bytes - 1] = 1;
    rn_mem_region_free(p, bytes);
}

static void buffers_grow_and_stay_terminated(void **state)
{
    (void)state;
    struct rn_buf b = {0};
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(rn_buf_printf(&b, "%d,", i), 0);
    }
    assert_int_equal(b.data[b.len], 0);
    assert_memory_equal(b.data, "0,1,2,", 6);
    rn_buf_finish(&b);
    assert_null(b.data);
}

static int n_notified;
static void notified(void *user)
{
    (void)user;
    n_notified++;
}

static void queue_is_bounded_and_first_in_first_out(void **state)
{
    (void)state;
    struct rn_queue *q = NULL;
    int item[3];
    n_notified = 0;
    assert_int_equal(rn_queue_create(&q, 2, notified, NULL, NULL), 0);
    assert_int_equal(rn_queue_push(q, &item[0]), 0);
    assert_int_equal(rn_queue_push(q, &item[1]), 0);
    assert_int_equal(rn_queue_push(q, &item[2]), -EAGAIN);
    assert_int_equal(n_notified, 1);
    assert_ptr_equal(rn_queue_pop(q), &item[0]);
    assert_ptr_equal(rn_queue_pop_wait(q, 0), &item[1]);
    assert_null(rn_queue_pop(q));
    assert_null(rn_queue_pop_wait(q, rn_clock_ns() + 1000000));
    rn_queue_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_gather_their_story), cmocka_unit_test(array_sizes_do_not_overflow), cmocka_unit_test(nth_allocation_fails_once),
        cmocka_unit_test(regions_are_zero_and_aligned), cmocka_unit_test(buffers_grow_and_stay_terminated),
        cmocka_unit_test(queue_is_bounded_and_first_in_first_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
