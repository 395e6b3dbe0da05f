// The lanes of a connection: order, limits, and that nothing overlaps.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/lanes.h"
#include "runtime/base/err.h"

static int items[512];

static struct rn_lane *get(struct rn_lanes *l, const char *id)
{
    struct rn_lane *lane = NULL;
    assert_int_equal(rn_lanes_get(l, id, &lane), 0);
    return lane;
}

static void push(struct rn_lanes *l, const char *id, int item)
{
    assert_int_equal(rn_lanes_push(l, get(l, id), &items[item], 10), 0);
}

static void expect(struct rn_lanes *l, int item, struct rn_lane **ret)
{
    assert_ptr_equal(rn_lanes_next(l, ret), &items[item]);
}

static void one_at_a_time_and_in_order(void **state)
{
    (void)state;
    struct rn_lanes l;
    struct rn_lane *a, *b;
    rn_lanes_init(&l);
    push(&l, "a", 0);
    push(&l, "a", 1);
    push(&l, NULL, 2);
    push(&l, "b", 3);
    expect(&l, 0, &a);
    expect(&l, 2, &b); // the default lane came before b
    assert_string_equal(b->id, "");
    rn_lanes_done(&l, b);
    expect(&l, 3, &b);
    assert_null(rn_lanes_next(&l, &b)); // 1 waits for 0
    rn_lanes_done(&l, a);
    expect(&l, 1, &b);
    assert_ptr_equal(a, b);
    assert_int_equal(l.bytes, 0);
    rn_lanes_finish(&l);
}

static void limits(void **state)
{
    (void)state;
    struct rn_lanes l;
    struct rn_lane *lane, *lanes[RN_LANES_ACTIVE];
    rn_lanes_init(&l);
    char id[24];
    for (int i = 0; i < RN_LANES_NAMED; i++) {
        snprintf(id, sizeof id, "lane.%d", i);
        push(&l, id, i);
    }
    assert_int_equal(rn_lanes_get(&l, "one-more", &lane), -E2BIG);
    assert_null(rn_lanes_find(&l, "one-more"));
    get(&l, NULL); // the default lane does not count
    for (int i = 0; i < RN_LANES_ACTIVE; i++) {
        expect(&l, i, &lanes[i]);
    }
    assert_null(rn_lanes_next(&l, &lane));
    rn_lanes_done(&l, lanes[3]);
    expect(&l, RN_LANES_ACTIVE, &lane);
    assert_null(rn_lanes_next(&l, &lane));
    for (int i = 0; i < RN_LANE_QUEUE; i++) {
        push(&l, "lane.0", 100 + i);
    }
    assert_int_equal(rn_lanes_push(&l, get(&l, "lane.0"), &items[0], 1), -EAGAIN);
    assert_ptr_equal(rn_lane_peek(get(&l, "lane.0"), 7), &items[107]);
    assert_null(rn_lane_peek(get(&l, "lane.0"), 8));
    int n = 0;
    while (rn_lanes_pop(&l)) {
        n++;
    }
    assert_int_equal(n, RN_LANES_NAMED - RN_LANES_ACTIVE - 1 + RN_LANE_QUEUE);
    assert_int_equal(l.bytes, 0);
    rn_lanes_finish(&l);
}

static void bytes_are_bounded(void **state)
{
    (void)state;
    struct rn_lanes l;
    struct rn_lane *lane;
    rn_lanes_init(&l);
    assert_int_equal(rn_lanes_push(&l, get(&l, "a"), &items[0], RN_LANES_BYTES), 0);
    assert_int_equal(rn_lanes_push(&l, get(&l, "b"), &items[1], 1), -EAGAIN);
    assert_ptr_equal(rn_lanes_next(&l, &lane), &items[0]);
    assert_int_equal(rn_lanes_push(&l, get(&l, "b"), &items[1], 1), 0);
    rn_lanes_pop(&l);
    rn_lanes_finish(&l);
}

static void stream_ids(void **state)
{
    (void)state;
    char longest[RN_STREAM_ID_BYTES + 1];
    memset(longest, 'x', sizeof longest);
    assert_true(rn_stream_id_valid("a", 1));
    assert_true(rn_stream_id_valid("A-z_0.9", 7));
    longest[256] = 0;
    assert_true(rn_stream_id_valid(longest, 256));
    longest[256] = 'x';
    longest[257] = 0;
    assert_false(rn_stream_id_valid(longest, 257));
    assert_false(rn_stream_id_valid("", 0));
    assert_false(rn_stream_id_valid("a b", 3));
    assert_false(rn_stream_id_valid("a/b", 3));
    assert_false(rn_stream_id_valid("\xc3\xa4", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_at_a_time_and_in_order),
        cmocka_unit_test(limits),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(stream_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
