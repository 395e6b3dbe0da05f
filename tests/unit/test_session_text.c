/* The text side of the session layer: answers (detokenised, stopped, held back) and plans (new items to new tokens). */
#include "tests/unit/session_kit.h"

#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "session/answer.h"
#include "session/plan.h"
#include "session/timeline.h"

// Pushes bytes as tokens; joins what is shown after each; returns the last result.
static enum rn_answer_result say(struct rn_answer *a, const char *bytes, size_t n, char *shown, size_t *n_shown_ids)
{
    enum rn_answer_result result = RN_ANSWER_GOES_ON;
    const char *text;
    const uint32_t *ids;
    size_t len, n_ids;
    for (size_t i = 0; i < n && result == RN_ANSWER_GOES_ON; i++) {
        assert_int_equal(rn_answer_push(a, NULL, (unsigned char)bytes[i], &result), 0);
        rn_answer_take(a, false, &text, &len, &ids, &n_ids);
        strncat(shown, text, len);
        *n_shown_ids += n_ids;
    }
    return result;
}

static void text_that_may_become_a_stop_string_is_held_back(void **state)
{
    (void)state;
    char *stop[] = {"END", "ENDE", "\n\nUser:"};
    struct rn_answer a = {.stop = stop, .n_stop = 3, .limit = 100};
    char shown[128] = "";
    size_t n_ids = 0;
    assert_int_equal(say(&a, "one EN", 6, shown, &n_ids), RN_ANSWER_GOES_ON);
    assert_string_equal(shown, "one ");
    assert_int_equal(n_ids, 4);
    assert_int_equal(say(&a, "ough\n\nUs", 8, shown, &n_ids), RN_ANSWER_GOES_ON);
    assert_string_equal(shown, "one ENough");
    assert_int_equal(say(&a, "e EN", 4, shown, &n_ids), RN_ANSWER_GOES_ON);
    assert_string_equal(shown, "one ENough\n\nUse ");
    assert_int_equal(say(&a, "D", 1, shown, &n_ids), RN_ANSWER_STOP);
    assert_string_equal(a.stopped, "END");
    assert_string_equal(a.text.data, "one ENough\n\nUse ");
    assert_int_equal(a.ids.len, strlen(a.text.data));
    rn_answer_finish(&a);
}

static void tokens_wholly_before_the_stop_string_stay(void **state)
{
    (void)state;
    char *stop[] = {"\nx"};
    struct rn_answer a = {.stop = stop, .n_stop = 1, .limit = 100};
    enum rn_answer_result result;
    uint32_t ids[] = {'a', FAKE_BREAKS, 'x'}; // the stop string begins inside the second token
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rn_answer_push(&a, NULL, ids[i], &result), 0);
    }
    assert_int_equal(result, RN_ANSWER_STOP);
    assert_string_equal(a.text.data, "a\n");
    assert_int_equal(a.ids.len, 1);
    rn_answer_finish(&a);
}

static void half_characters_wait_and_end_as_replacement(void **state)
{
    (void)state;
    struct rn_answer a = {.limit = 4};
    char shown[64] = "";
    size_t n_ids = 0;
    assert_int_equal(say(&a, "a\xC3", 2, shown, &n_ids), RN_ANSWER_GOES_ON);
    assert_string_equal(shown, "a");
    assert_int_equal(n_ids, 1);
    assert_int_equal(say(&a, "\xA9", 1, shown, &n_ids), RN_ANSWER_GOES_ON);
    assert_string_equal(shown, "a\xC3\xA9");
    assert_int_equal(n_ids, 3);
    assert_int_equal(say(&a, "\xC3", 1, shown, &n_ids), RN_ANSWER_LENGTH);
    assert_int_equal(rn_answer_close(&a), 0);
    assert_string_equal(a.text.data, "a\xC3\xA9\xEF\xBF\xBD");
    rn_answer_finish(&a);
}

static void end_marks_are_no_text(void **state)
{
    (void)state;
    enum rn_answer_result result;
    struct rn_answer a = {.limit = 10};
    assert_int_equal(rn_answer_push(&a, NULL, FAKE_END, &result), 0);
    assert_int_equal(result, RN_ANSWER_EOS);
    assert_int_equal(a.ids.len, 0);
    a.ignore_eos = true;
    assert_int_equal(rn_answer_push(&a, NULL, FAKE_END, &result), 0);
    assert_int_equal(result, RN_ANSWER_GOES_ON);
    assert_int_equal(a.ids.len, 1);
    assert_int_equal(a.text.len, 0);
    rn_answer_finish(&a);
}

// ---- Plans -----------------------------------------------------------------------------------------------------------------------------

static void check_ids(const struct rn_plan *p, const char *text)
{
    static uint32_t ids[1 << 16];
    size_t n = kit_ids(text, ids);
    assert_int_equal(p->ids.len, n);
    assert_memory_equal(p->ids.data, ids, n * sizeof *ids);
}

static void a_first_append_has_lead_items_and_prompt(void **state)
{
    (void)state;
    struct rn_engine *e = fake_engine_create();
    struct rn_timeline t = {0};
    struct rn_plan p = {0};
    json_t *items = json_array();
    json_array_append_new(items, kit_item("developer", "D"));
    json_array_append_new(items, kit_item("user", "u1"));
    json_array_append_new(items, kit_item("assistant", "a1"));
    json_array_append_new(items, kit_item("user", "u2"));
    assert_int_equal(rn_plan_make(&p, rn_engine_text(e), "I", &t, items, true, NULL), 0);
    check_ids(&p, "<|im_start|>system\nI\n\nD<|im_end|>\n<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n"
                  "<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n");
    size_t lead = 1 + 7 + 3 + 2; // <|im_start|> system\n I\n\nD <|im_end|>\n
    assert_int_equal(p.lead, lead);
    assert_int_equal(p.spans[0].first, 0);
    assert_int_equal(p.spans[0].end, lead);
    assert_int_equal(p.spans[1].first, lead);
    assert_int_equal(p.spans[1].end, lead + 10);
    assert_int_equal(p.spans[2].end, lead + 25);
    assert_int_equal(p.spans[3].end, lead + 35);
    assert_int_equal(p.generation, lead + 35);
    rn_plan_finish(&p);
    json_decref(items);
    fake_engine_destroy(e);
}

static void only_a_leading_block(void **state)
{
    (void)state;
    struct rn_engine *e = fake_engine_create();
    struct rn_timeline t = {0};
    struct rn_plan p = {0};
    json_t *items = json_array();
    assert_int_equal(rn_plan_make(&p, rn_engine_text(e), "I", &t, items, false, NULL), 0);
    check_ids(&p, "<|im_start|>system\nI<|im_end|>\n");
    assert_int_equal(p.lead, p.ids.len);
    rn_plan_finish(&p);
    // An assistant message that comes first.
    json_array_append_new(items, kit_item("assistant", "I speak first"));
    assert_int_equal(rn_plan_make(&p, rn_engine_text(e), NULL, &t, items, true, NULL), 0);
    assert_int_equal(p.lead, 18);
    rn_plan_finish(&p);
    fake_of(e)->template = FAKE_SYSTEM_IN_USER;
    json_array_clear(items);
    json_array_append_new(items, kit_item("user", "u"));
    assert_int_equal(rn_plan_make(&p, rn_engine_text(e), NULL, &t, items, true, NULL), 0);
    assert_int_equal(p.lead, 1);
    rn_plan_finish(&p);
    assert_int_equal(rn_plan_make(&p, rn_engine_text(e), "I", &t, items, true, NULL), 0);
    assert_int_equal(p.lead, 1);
    assert_int_equal(p.spans[0].first, 1);
    rn_plan_finish(&p);
    json_decref(items);
    fake_engine_destroy(e);
}

static void too_many_items_are_refused(void **state)
{
    (void)state;
    struct rn_engine *e = fake_engine_create();
    struct rn_timeline t = {0};
    struct rn_plan p = {0};
    struct rn_err err = {0};
    json_t *items = json_array();
    for (unsigned i = 0; i <= RN_PLAN_MAX_ITEMS; i++) {
        json_array_append_new(items, kit_item("user", "x"));
    }
    assert_int_equal(rn_plan_make(&p, rn_engine_text(e), NULL, &t, items, true, &err), -E2BIG);
    json_array_remove(items, 0);
    assert_int_equal(rn_plan_make(&p, rn_engine_text(e), NULL, &t, items, true, &err), 0);
    assert_int_equal(p.spans[RN_PLAN_MAX_ITEMS - 1].end, p.generation);
    rn_plan_finish(&p);
    json_decref(items);
    fake_engine_destroy(e);
}

static void timelines_find_items_and_turns(void **state)
{
    (void)state;
    struct rn_timeline t = {0}, copy = {0};
    for (uint32_t i = 0; i < 100; i++) {
        rn_ids_add(&t.log, i);
    }
    for (uint64_t i = 0; i < 4; i++) {
        struct rn_item item = {.first = 10 + 20 * i, .end = 25 + 20 * i, .json = json_object()};
        rn_timeline_add_item(&t, &item);
        json_decref(item.json);
        rn_timeline_add_turn(&t, item.first);
    }
    assert_null(rn_timeline_item_at(&t, 9));
    assert_ptr_equal(rn_timeline_item_at(&t, 27), &t.items[0]); // what closes an answer belongs to it
    assert_ptr_equal(rn_timeline_last(&t), &t.items[3]);
    assert_int_equal(rn_timeline_turn_of(&t, 9), RN_NOWHERE);
    assert_int_equal(rn_timeline_turn_of(&t, 30), 30);
    assert_int_equal(rn_timeline_turn_of(&t, 49), 30);
    size_t n;
    assert_int_equal(rn_timeline_turns(&t, 10, 50, &n)[0], 10);
    assert_int_equal(n, 2);
    assert_int_equal(rn_timeline_copy(&copy, &t, 30, 1), 0);
    assert_int_equal(copy.log.len, 30);
    assert_int_equal(copy.n_turns, 1);
    assert_int_equal(copy.n_items, 1);
    rn_timeline_cut(&t, 50, 2);
    assert_int_equal(t.n_turns, 2);
    assert_int_equal(t.n_items, 2);
    rn_timeline_finish(&t);
    rn_timeline_finish(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_that_may_become_a_stop_string_is_held_back),
        cmocka_unit_test(tokens_wholly_before_the_stop_string_stay),
        cmocka_unit_test(half_characters_wait_and_end_as_replacement),
        cmocka_unit_test(end_marks_are_no_text),
        cmocka_unit_test(a_first_append_has_lead_items_and_prompt),
        cmocka_unit_test(only_a_leading_block),
        cmocka_unit_test(too_many_items_are_refused),
        cmocka_unit_test(timelines_find_items_and_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
