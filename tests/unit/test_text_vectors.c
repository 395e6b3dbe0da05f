/* Tokenizers against vectors that others made.
 *
 * RUNNEL_SHARED/data/tokenizers: vocabularies (NAME.gguf) with texts (NAME.inp) and their ids (NAME.out). Where a model's own tokenizer
 * says something else than such a vector, the own one counts; none of these does.
 * tests/data/gemma3_tokens.json: texts and ids with the vocabulary of the model in RUNNEL_TEST_MODEL_GEMMA. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "tests/unit/text_kit.h"

#define SEPARATOR "\n__ggml_vocab_test__\n"

/* A text and back: ids must be the expected ones and say the text again, with the same pieces for each way of cutting them. */
static void check_text(const struct rn_text *t, const char *what, size_t row, const char *text, size_t len, bool by_score,
                       const json_t *expected)
{
    struct rn_ids ids = {0};
    struct rn_buf out = {0};
    struct rn_err err = {0};
    if (rn_text_tokenize(t, text, len, false, &ids, &err) < 0) {
        fail_msg("%s, row %zu: %s", what, row, err.text);
    }
    size_t n_marks = 0;
    for (const char *at = text; by_score && (at = strstr(at, "\u2581")) != NULL; at += 3) {
        n_marks++;
    }
    assert_row_ids(what, row, &ids, expected);
    push_all(t, ids.data, ids.len, /*special=*/false, &out);
    if (n_marks > 0) { // U+2581 is the piece of a space, and comes back as one
        assert_int_equal(out.len, len - 2 * n_marks);
        out.len = len = 0;
    }
    if (out.len != len || (len > 0 && memcmp(out.data, text, len) != 0)) {
        fail_msg("%s, row %zu: the ids say another text", what, row);
    }
    rn_buf_finish(&out);
    rn_ids_finish(&ids);
}

/* ---- vocabularies with vectors ---- */

// Every name in the folder. Those without a reason have a vocabulary there.
static const struct {
    const char *name;
    const char *skipped;
} vectors[] = {
    {"command-r", "its vocabulary is not stored: test_text.c has its pre-tokenizer's pieces"},
    {"deepseek-coder", NULL},
    {"deepseek-llm", NULL},
    {"falcon", NULL},
    {"gpt-2", NULL},
    {"llama-bpe", "its vocabulary is not stored: test_text.c has its pre-tokenizer's pieces"},
    {"llama-spm", NULL},
    {"mpt", NULL},
    {"phi-3", NULL},
    {"qwen2", "its vocabulary is not stored: test_text.c has its pre-tokenizer's pieces"},
    {"qwen35", "its vocabulary is not stored: test_text.c has its pre-tokenizer's pieces"},
    {"refact", NULL},
    {"starcoder", NULL},
};

#define N_VECTORS (sizeof(vectors) / sizeof(vectors[0]))

static const char *shared_or_skip(void)
{
    const char *folder = getenv("RUNNEL_SHARED");
    if (folder == NULL) {
        print_message("RUNNEL_SHARED (the folder with data/tokenizers) is not set\n");
        skip();
    }
    return folder;
}

static void read_file(const char *folder, const char *name, const char *ending, struct rn_buf *ret)
{
    char path[1024];
    char part[4096];
    snprintf(path, sizeof(path), "%s/data/tokenizers/%s.%s", folder, name, ending);
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fail_msg("%s cannot be read", path);
    }
    *ret = (struct rn_buf){0};
    for (size_t n; (n = fread(part, 1, sizeof(part), f)) > 0;) {
        assert_int_equal(rn_buf_add(ret, part, n), 0);
    }
    fclose(f);
}

/* The ids on one line. *line moves to the next. */
static json_t *read_ids(char **line)
{
    json_t *ids = json_array();
    char *end = strchr(*line, '\n');
    assert_non_null(end);
    *end = '\0';
    for (char *at = *line; *at != '\0';) {
        char *next;
        long id = strtol(at, &next, 10);
        assert_true(next == at || json_array_append_new(ids, json_integer(id)) == 0);
        at = next == at ? at + 1 : next;
    }
    *line = end + 1;
    return ids;
}

static void check_vectors(const char *folder, const char *name)
{
    char path[1024];
    struct rn_buf inputs;
    struct rn_buf outputs;
    snprintf(path, sizeof(path), "%s/data/tokenizers/%s.gguf", folder, name);
    struct rn_text *t = text_of_file(path);
    read_file(folder, name, "inp", &inputs);
    read_file(folder, name, "out", &outputs);
    const char *text = inputs.data;
    char *line = outputs.data;
    size_t n = 0;
    for (const char *end; (end = strstr(text, SEPARATOR)) != NULL; text = end + strlen(SEPARATOR)) {
        json_t *expected = read_ids(&line);
        check_text(t, name, n++, text, (size_t)(end - text), /*by_score=*/false, expected);
        json_decref(expected);
    }
    assert_true(n > 40);
    rn_buf_finish(&inputs);
    rn_buf_finish(&outputs);
    rn_text_destroy(t);
}

static void vocabularies_agree_with_their_vectors(void **state)
{
    (void)state;
    const char *folder = shared_or_skip();
    for (size_t i = 0; i < N_VECTORS; i++) {
        if (vectors[i].skipped == NULL) {
            check_vectors(folder, vectors[i].name);
        } else {
            print_message("%s: skipped, %s\n", vectors[i].name, vectors[i].skipped);
        }
    }
}

static void no_vector_is_forgotten(void **state)
{
    (void)state;
    char path[1024];
    snprintf(path, sizeof(path), "%s/data/tokenizers", shared_or_skip());
    DIR *dir = opendir(path);
    assert_non_null(dir);
    size_t n_texts = 0;
    size_t n_vocabularies = 0;
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        size_t len = dot == NULL ? 0 : (size_t)(dot - e->d_name);
        bool is_vocabulary = dot != NULL && strcmp(dot, ".gguf") == 0;
        if (!is_vocabulary && (dot == NULL || strcmp(dot, ".inp") != 0)) {
            continue;
        }
        size_t i = 0;
        while (i < N_VECTORS && (strlen(vectors[i].name) != len || memcmp(vectors[i].name, e->d_name, len) != 0)) {
            i++;
        }
        if (i == N_VECTORS || (is_vocabulary && vectors[i].skipped != NULL)) {
            fail_msg("%s is not compared", e->d_name);
        }
        n_texts += !is_vocabulary;
        n_vocabularies += is_vocabulary;
    }
    closedir(dir);
    assert_int_equal(n_texts, N_VECTORS);
    for (size_t i = 0; i < N_VECTORS; i++) {
        n_vocabularies -= vectors[i].skipped == NULL;
    }
    assert_int_equal(n_vocabularies, 0);
}

/* Also what their files say about marks, where names and keys differ from one to the next. */
static void vocabularies_know_their_marks(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t bos;
        bool adds_bos;
        uint32_t ends[3];
        size_t n_ends;
    } cases[] = {
        {"llama-spm", 1, true, {2}, 1},
        {"phi-3", 1, true, {32000, 32007}, 2},              // <|endoftext|>, <|end|>
        {"deepseek-coder", 32013, true, {32014, 32021}, 2}, // <｜end▁of▁sentence｜>, <|EOT|>
        {"deepseek-llm", 100000, true, {100001}, 1},
        {"gpt-2", 50256, false, {50256}, 1},
    };
    const char *folder = shared_or_skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[1024];
        snprintf(path, sizeof(path), "%s/data/tokenizers/%s.gguf", folder, cases[i].name);
        struct rn_text *t = text_of_file(path);
        assert_int_equal(rn_text_bos(t), cases[i].bos);
        assert_int_equal(rn_text_adds_bos(t), cases[i].adds_bos);
        size_t n = 0;
        for (uint32_t id = 0; id < rn_text_n_vocab(t); id++) {
            if (rn_text_is_end(t, id)) {
                assert_true(n < cases[i].n_ends);
                assert_int_equal(cases[i].ends[n++], id);
            }
        }
        assert_int_equal(n, cases[i].n_ends);
        rn_text_destroy(t);
    }
}

/* ---- Gemma 3 ---- */

static struct rn_text *gemma_or_skip(void)
{
    const char *path = getenv("RUNNEL_TEST_MODEL_GEMMA");
    if (path == NULL) {
        print_message("RUNNEL_TEST_MODEL_GEMMA (the path of gemma-3-270m-q4_k_m.gguf) is not set\n");
        skip();
    }
    return text_of_file(path);
}

static void gemmas_ids_equal_the_reference(void **state)
{
    (void)state;
    struct rn_text *t = gemma_or_skip();
    json_t *json = load_data("gemma3_tokens.json");
    const json_t *rows = json_object_get(json, "rows");
    assert_true(json_array_size(rows) > 200);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const json_t *text = json_object_get(row, "text");
        check_text(t, "gemma", i, json_string_value(text), json_string_length(text), /*by_score=*/true, json_object_get(row, "ids"));
    }
    json_decref(json);
    rn_text_destroy(t);
}

static void gemma_knows_its_marks(void **state)
{
    (void)state;
    struct rn_text *t = gemma_or_skip();
    assert_int_equal(rn_text_n_vocab(t), 262144);
    assert_int_equal(rn_text_bos(t), 2);
    assert_true(rn_text_adds_bos(t));
    assert_false(rn_text_has_template(t));
    for (uint32_t id = 0; id < rn_text_n_vocab(t); id++) {
        assert_int_equal(rn_text_is_end(t, id), id == 1 || id == 106); // <eos>, <end_of_turn>
    }
    rn_text_destroy(t);
}

int main(void)
{
    if (getenv("RUNNEL_TEST_MODEL_GEMMA") == NULL && getenv("RUNNEL_SHARED") == NULL) {
        fprintf(stderr, "skipped: neither RUNNEL_SHARED nor RUNNEL_TEST_MODEL_GEMMA is set\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocabularies_agree_with_their_vectors),
        cmocka_unit_test(no_vector_is_forgotten),
        cmocka_unit_test(vocabularies_know_their_marks),
        cmocka_unit_test(gemmas_ids_equal_the_reference),
        cmocka_unit_test(gemma_knows_its_marks),
    };
    return cmocka_run_group_tests_name("text_vectors", tests, NULL, NULL);
}
