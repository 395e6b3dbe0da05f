/* The user's RoPE scaling in words, and what it becomes for a window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "runtime/base/err.h"
#include "session/rope_words.h"

static void words_are_read_and_written(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum rn_rope_kind kind;
        float factor; // -1: refused
    } cases[] = {
        {"none", RN_ROPE_AS_TRAINED, 0}, {"linear", RN_ROPE_LINEAR, 0}, {"yarn", RN_ROPE_YARN, 0}, {"linear:2", RN_ROPE_LINEAR, 2},
        {"yarn:1.5", RN_ROPE_YARN, 1.5f}, {"yarn:1", RN_ROPE_YARN, 1}, {"linear:1000", RN_ROPE_LINEAR, 1000}, {"", 0, -1}, {"lin", 0, -1},
        {"linear:", 0, -1}, {"linear:0.5", 0, -1}, {"linear:1001", 0, -1}, {"linear:inf", 0, -1}, {"linear:nan", 0, -1}, {"linear: 2", 0, -1},
        {"linear:2x", 0, -1}, {"linear:+2", 0, -1}, {"none:2", 0, -1}, {"none:", 0, -1}, {"yarn2", 0, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rn_rope_scaling rope = {RN_ROPE_YARN, 9};
        struct rn_err err = {0};
        char text[RN_ROPE_WORDS];
        if (cases[i].factor < 0) {
            assert_int_equal(rn_rope_parse(cases[i].text, &rope, &err), -EINVAL);
            assert_non_null(strstr(err.text, "expected none, linear or yarn"));
            assert_true(rope.factor == 9.0f); // untouched
            continue;
        }
        assert_int_equal(rn_rope_parse(cases[i].text, &rope, &err), 0);
        assert_int_equal(rope.kind, cases[i].kind);
        assert_true(rope.factor == cases[i].factor);
        rn_rope_format(&rope, text);
        assert_string_equal(text, cases[i].text);
    }
    for (float f = 1; f < 1000; f *= 1.0372f) { // what a session was created with comes back bit for bit
        struct rn_rope_scaling rope = {RN_ROPE_LINEAR, f}, back = {0};
        char text[RN_ROPE_WORDS];
        rn_rope_format(&rope, text);
        assert_int_equal(rn_rope_parse(text, &back, NULL), 0);
        assert_true(back.factor == f);
    }
}

static void the_factor_comes_from_the_window(void **state)
{
    (void)state;
    static const struct {
        struct rn_rope_scaling asked;
        uint32_t n;
        struct rn_rope_scaling expected;
    } cases[] = { // trained for 8192
        {{RN_ROPE_AS_TRAINED, 0}, 4096, {0}},
        {{RN_ROPE_AS_TRAINED, 0}, 16384, {0}},
        {{RN_ROPE_LINEAR, 0}, 8192, {0}},
        {{RN_ROPE_LINEAR, 0}, 8193, {RN_ROPE_LINEAR, 1.25f}},
        {{RN_ROPE_YARN, 0}, 10240, {RN_ROPE_YARN, 1.25f}},
        {{RN_ROPE_YARN, 0}, 10241, {RN_ROPE_YARN, 1.5f}},
        {{RN_ROPE_YARN, 0}, 16384, {RN_ROPE_YARN, 2}},
        {{RN_ROPE_YARN, 4}, 4096, {RN_ROPE_YARN, 4}},
        {{RN_ROPE_YARN, 4}, 32768, {RN_ROPE_YARN, 4}},
        {{RN_ROPE_YARN, 1}, 4096, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rn_rope_scaling got = rn_rope_for(cases[i].asked, cases[i].n, 8192);
        assert_int_equal(got.kind, cases[i].expected.kind);
        assert_true(got.factor == cases[i].expected.factor);
    }
    assert_int_equal(rn_rope_max_n((struct rn_rope_scaling){0}, 8192), 8192);
    assert_int_equal(rn_rope_max_n((struct rn_rope_scaling){RN_ROPE_YARN, 1.5f}, 8192), 12288);
    assert_int_equal(rn_rope_max_n((struct rn_rope_scaling){RN_ROPE_YARN, 0}, 8192), 8192000);
    assert_true(rn_rope_max_n((struct rn_rope_scaling){RN_ROPE_YARN, 0}, 1u << 30) == UINT32_MAX);
    // Every window that is allowed fits its own factor.
    for (uint32_t trained = 16; trained < 100000; trained = trained * 3 + 7) {
        for (uint64_t n = 16; n <= rn_rope_max_n((struct rn_rope_scaling){RN_ROPE_LINEAR, 0}, trained); n = n * 7 / 5 + 1) {
            struct rn_rope_scaling rope = rn_rope_for((struct rn_rope_scaling){RN_ROPE_LINEAR, 0}, (uint32_t)n, trained);
            assert_true((double)n <= trained * (rope.kind ? (double)rope.factor : 1));
            assert_true(rope.factor <= RN_ROPE_FACTOR_MAX);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_read_and_written),
        cmocka_unit_test(the_factor_comes_from_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
