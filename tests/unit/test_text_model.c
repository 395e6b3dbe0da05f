/* The tokenizer against reference ids of the model in RUNNEL_TEST_MODEL. tests/data/smollm2_tokens.json: texts and ids by Hugging Face's
 * tokenizers. Other vocabularies: test_text_vectors.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "tests/unit/text_kit.h"

static void check_says(const struct rn_text *t, size_t row, const struct rn_ids *ids, const char *text, size_t len)
{
    struct rn_buf out = {0};
    push_all(t, ids->data, ids->len, /*special=*/true, &out);
    if (out.len != len || (len > 0 && memcmp(out.data, text, len) != 0)) {
        fail_msg("row %zu: the ids say another text", row);
    }
    rn_buf_finish(&out);
}

static void ids_equal_those_of_the_models_own_tokenizer(void **state)
{
    (void)state;
    struct rn_text *t = text_of_file(getenv("RUNNEL_TEST_MODEL"));
    json_t *json = load_data("smollm2_tokens.json");
    const json_t *rows = json_object_get(json, "rows");
    assert_int_equal(json_array_size(rows), 257);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *text = json_string_value(json_object_get(row, "text"));
        size_t len = json_string_length(json_object_get(row, "text"));
        for (int special = 0; special < 2; special++) {
            struct rn_ids ids = {0};
            assert_int_equal(rn_text_tokenize(t, text, len, special, &ids, NULL), 0);
            assert_row_ids(special ? "with control tokens" : "plain", i, &ids, json_object_get(row, special ? "ids_special" : "ids"));
            check_says(t, i, &ids, text, len);
            rn_ids_finish(&ids);
        }
    }
    json_decref(json);
    rn_text_destroy(t);
}

static void the_model_knows_its_marks(void **state)
{
    (void)state;
    struct rn_text *t = text_of_file(getenv("RUNNEL_TEST_MODEL"));
    assert_int_equal(rn_text_n_vocab(t), 49152);
    assert_int_equal(rn_text_bos(t), 1);
    assert_false(rn_text_adds_bos(t));
    assert_true(rn_text_has_template(t));
    for (uint32_t id = 0; id < rn_text_n_vocab(t); id++) {
        assert_int_equal(rn_text_is_end(t, id), id == 0 || id == 2); // <|endoftext|>, <|im_end|>
        assert_int_equal(rn_text_is_control(t, id), id < 17);
    }
    rn_text_destroy(t);
}

static void conversations_become_the_ids_of_the_reference(void **state)
{
    (void)state;
    struct rn_text *t = text_of_file(getenv("RUNNEL_TEST_MODEL"));
    json_t *json = load_data("smollm2_chat.json");
    const json_t *cases = json_object_get(json, "cases");
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i);
        const json_t *text = json_object_get(c, "text");
        struct rn_rendered r = {0};
        struct rn_ids ids = {0};
        struct rn_err err = {0};
        int rc = rn_text_render(t, c, &r, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(rc, 0);
        assert_int_equal(r.text.len, json_string_length(text));
        assert_memory_equal(r.text.data, json_string_value(text), r.text.len);
        assert_int_equal(rn_text_tokenize_rendered(t, &r, &ids, &err), 0);
        assert_row_ids("chat", i, &ids, json_object_get(c, "ids"));
        rn_ids_finish(&ids);
        rn_rendered_finish(&r);
    }
    json_decref(json);
    rn_text_destroy(t);
}

int main(void)
{
    if (getenv("RUNNEL_TEST_MODEL") == NULL) {
        fprintf(stderr, "skipped: RUNNEL_TEST_MODEL (the path of smollm2-135m-instruct-q4_1.gguf) is not set\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_those_of_the_models_own_tokenizer),
        cmocka_unit_test(the_model_knows_its_marks),
        cmocka_unit_test(conversations_become_the_ids_of_the_reference),
    };
    return cmocka_run_group_tests_name("text_model", tests, NULL, NULL);
}
