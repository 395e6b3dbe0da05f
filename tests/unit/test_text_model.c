/* The tokenizer against reference ids. tests/data/smollm2_tokens.json: texts and ids by Hugging Face's tokenizers, with the vocabulary of
 * the model in RUNNEL_TEST_MODEL. RUNNEL_SHARED/data/tokenizers: vocabularies of other models with llama.cpp's vectors. */
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
#include "runtime/model/gguf.h"
#include "runtime/text.h"

static struct rn_text *open_text(const char *path)
{
    struct rn_gguf *g = NULL;
    struct rn_text *t = NULL;
    struct rn_err err = {0};
    if (rn_gguf_open(&g, path, &err) < 0 || rn_text_create(&t, g, &err) < 0) {
        fail_msg("%s", err.text);
    }
    rn_gguf_close(g);
    return t;
}

static struct rn_text *model_or_skip(void)
{
    const char *path = getenv("RUNNEL_TEST_MODEL");
    if (path == NULL) {
        print_message("RUNNEL_TEST_MODEL (the path of smollm2-135m-instruct-q4_1.gguf) is not set\n");
        skip();
    }
    return open_text(path);
}

static json_t *load_data(const char *name)
{
    char path[1024];
    const char *folder = getenv("RUNNEL_TEST_DATA");
    json_error_t e;
    snprintf(path, sizeof(path), "%s/%s", folder == NULL ? "tests/data" : folder, name);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (json == NULL) {
        fail_msg("%s: %s", path, e.text);
    }
    return json;
}

static void assert_ids(const char *what, size_t row, const struct rn_ids *ids, const json_t *expected)
{
    bool equal = ids->len == json_array_size(expected);
    for (size_t i = 0; equal && i < ids->len; i++) {
        equal = ids->data[i] == (uint32_t)json_integer_value(json_array_get(expected, i));
    }
    if (!equal) {
        fail_msg("%s, row %zu: %zu ids differ from the %zu expected", what, row, ids->len, json_array_size(expected));
    }
}

static void assert_says(const struct rn_text *t, size_t row, const struct rn_ids *ids, const char *text, size_t len)
{
    struct rn_detok d = {0};
    struct rn_buf out = {0};
    for (size_t i = 0; i < ids->len; i++) {
        assert_int_equal(rn_detok_push(&d, t, ids->data[i], true, &out), 0);
    }
    assert_int_equal(rn_detok_end(&d, &out), 0);
    if (out.len != len || (len > 0 && memcmp(out.data, text, len) != 0)) {
        fail_msg("row %zu: the ids say another text", row);
    }
    rn_buf_finish(&out);
}

static void ids_equal_those_of_the_models_own_tokenizer(void **state)
{
    (void)state;
    struct rn_text *t = model_or_skip();
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
            assert_ids(special ? "with control tokens" : "plain", i, &ids, json_object_get(row, special ? "ids_special" : "ids"));
            assert_says(t, i, &ids, text, len);
            rn_ids_finish(&ids);
        }
    }
    json_decref(json);
    rn_text_destroy(t);
}

static void the_model_knows_its_marks(void **state)
{
    (void)state;
    struct rn_text *t = model_or_skip();
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
    struct rn_text *t = model_or_skip();
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
        assert_ids("chat", i, &ids, json_object_get(c, "ids"));
        rn_ids_finish(&ids);
        rn_rendered_finish(&r);
    }
    json_decref(json);
    rn_text_destroy(t);
}

/* ---- vectors of other vocabularies ---- */

static char *read_file(const char *folder, const char *name, const char *ending)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/data/tokenizers/%s.%s", folder, name, ending);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fail_msg("%s cannot be read", path);
    }
    struct rn_buf b = {0};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof(part), f)) > 0;) {
        assert_int_equal(rn_buf_add(&b, part, n), 0);
    }
    fclose(f);
    return b.data;
}

/* Texts are separated by a marked line; ids of one text are on one line. */
static void check_vectors(const char *folder, const char *name)
{
    const char *separator = "\n__ggml_vocab_test__\n";
    char path[1024];
    snprintf(path, sizeof(path), "%s/data/tokenizers/%s.gguf", folder, name);
    struct rn_text *t = open_text(path);
    char *inputs = read_file(folder, name, "inp");
    char *outputs = read_file(folder, name, "out");
    const char *text = inputs;
    char *line = outputs;
    size_t n = 0;
    for (const char *end; (end = strstr(text, separator)) != NULL; text = end + strlen(separator)) {
        char *line_end = strchr(line, '\n');
        struct rn_ids ids = {0};
        json_t *expected = json_array();
        assert_non_null(line_end);
        *line_end = '\0';
        for (char *at = line; *at != '\0';) {
            char *next;
            long id = strtol(at, &next, 10);
            assert_true(next == at || json_array_append_new(expected, json_integer(id)) == 0);
            at = next == at ? at + 1 : next;
        }
        assert_int_equal(rn_text_tokenize(t, text, (size_t)(end - text), false, &ids, NULL), 0);
        assert_ids(name, n, &ids, expected);
        assert_says(t, n++, &ids, text, (size_t)(end - text));
        json_decref(expected);
        rn_ids_finish(&ids);
        line = line_end + 1;
    }
    assert_true(n > 40);
    rn_mem_free(inputs);
    rn_mem_free(outputs);
    rn_text_destroy(t);
}

static void vectors_of_other_vocabularies_agree(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-2", "starcoder", "refact", "falcon"};
    const char *folder = getenv("RUNNEL_SHARED");
    if (folder == NULL) {
        print_message("RUNNEL_SHARED (the folder with data/tokenizers) is not set\n");
        skip();
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        check_vectors(folder, names[i]);
    }
}

int main(void)
{
    if (getenv("RUNNEL_TEST_MODEL") == NULL && getenv("RUNNEL_SHARED") == NULL) {
        fprintf(stderr, "skipped: neither RUNNEL_TEST_MODEL nor RUNNEL_SHARED is set\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_those_of_the_models_own_tokenizer),
        cmocka_unit_test(the_model_knows_its_marks),
        cmocka_unit_test(conversations_become_the_ids_of_the_reference),
        cmocka_unit_test(vectors_of_other_vocabularies_agree),
    };
    return cmocka_run_group_tests_name("text_model", tests, NULL, NULL);
}
