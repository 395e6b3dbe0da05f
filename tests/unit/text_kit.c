/* See text_kit.h. */
#include "tests/unit/text_kit.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/text/unicode.h"

static uint64_t rng_state;

void rng_seed(uint64_t seed)
{
    rng_state = seed;
}

uint32_t rng(uint32_t below)
{
    rng_state = rng_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33) % below;
}

static char *in_alphabet(const char *bytes, size_t len)
{
    char *s = malloc(2 * len + 1);
    size_t n = 0;
    assert_non_null(s);
    for (size_t i = 0; i < len; i++) {
        uint32_t cp = rn_unicode_of_byte((uint8_t)bytes[i]);
        if (cp < 0x80) {
            s[n++] = (char)cp;
        } else {
            s[n++] = (char)(0xC0 | cp >> 6);
            s[n++] = (char)(0x80 | (cp & 0x3F));
        }
    }
    s[n] = '\0';
    return s;
}

static uint32_t made_token(struct made *m, char *text, int32_t type)
{
    assert_true(m->n < MAX_TOKENS);
    m->texts[m->n] = text;
    m->types[m->n] = type;
    return m->n++;
}

uint32_t made_bytes(struct made *m, const char *bytes, size_t len)
{
    return made_token(m, in_alphabet(bytes, len), RN_TOKEN_NORMAL);
}

uint32_t made_name(struct made *m, const char *name, int32_t type)
{
    char *copy = malloc(strlen(name) + 1);
    assert_non_null(copy);
    strcpy(copy, name);
    return made_token(m, copy, type);
}

uint32_t made_merge(struct made *m, const char *left, const char *right)
{
    char line[64];
    char whole[32];
    char *l = in_alphabet(left, strlen(left));
    char *r = in_alphabet(right, strlen(right));
    snprintf(line, sizeof(line), "%s %s", l, r);
    snprintf(whole, sizeof(whole), "%s%s", left, right);
    free(l);
    free(r);
    assert_true(m->n_merges < MAX_TOKENS && strlen(whole) < sizeof(m->left[0]));
    m->merges[m->n_merges] = malloc(strlen(line) + 1);
    assert_non_null(m->merges[m->n_merges]);
    strcpy(m->merges[m->n_merges], line);
    strcpy(m->left[m->n_merges], left);
    strcpy(m->right[m->n_merges++], right);
    return made_bytes(m, whole, strlen(whole));
}

struct made *made_create_empty(void)
{
    struct made *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    return m;
}

struct made *made_create(void)
{
    struct made *m = made_create_empty();
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b;
        made_bytes(m, &c, 1);
    }
    return m;
}

void made_destroy(struct made *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        free(m->texts[i]);
    }
    for (uint32_t i = 0; i < m->n_merges; i++) {
        free(m->merges[i]);
    }
    free(m);
}

struct gguf_build *made_file(const struct made *m, const char *pre)
{
    struct gguf_build *b = gguf_build_create();
    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_str(b, "tokenizer.ggml.model", "gpt2");
    if (pre != NULL) {
        gguf_build_str(b, "tokenizer.ggml.pre", pre);
    }
    gguf_build_strs(b, "tokenizer.ggml.tokens", (const char *const *)m->texts, m->n);
    gguf_build_i32s(b, "tokenizer.ggml.token_type", m->types, m->n);
    gguf_build_strs(b, "tokenizer.ggml.merges", (const char *const *)m->merges, m->n_merges);
    return b;
}

struct gguf_build *made_pieces_file(const struct made *m, const float *scores)
{
    struct gguf_build *b = gguf_build_create();
    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_str(b, "tokenizer.ggml.model", "llama");
    gguf_build_strs(b, "tokenizer.ggml.tokens", (const char *const *)m->texts, m->n);
    gguf_build_i32s(b, "tokenizer.ggml.token_type", m->types, m->n);
    gguf_build_f32s(b, "tokenizer.ggml.scores", scores, m->n);
    return b;
}

int open_text(struct rn_text **ret, struct gguf_build *b, struct rn_err *err)
{
    struct gguf_bytes bytes = gguf_build_bytes(b);
    struct rn_gguf *g = NULL;
    int r = rn_gguf_parse(&g, bytes.data, bytes.len, "made", err);
    assert_int_equal(r, 0);
    r = rn_text_create(ret, g, err);
    rn_gguf_close(g);
    gguf_build_destroy(b);
    return r;
}

struct rn_text *text_of(const struct made *m, const char *pre)
{
    struct rn_text *t = NULL;
    struct rn_err err = {0};
    int r = open_text(&t, made_file(m, pre), &err);
    assert_string_equal(err.text, "");
    assert_int_equal(r, 0);
    return t;
}

void made_random_merges(struct made *m, uint32_t n_merges)
{
    char words[MAX_TOKENS][16] = {"a", "b", "c"};
    uint32_t n = 3;
    for (uint32_t tries = 0; m->n_merges < n_merges && tries < 100000; tries++) {
        const char *left = words[rng(n)];
        const char *right = words[rng(n)];
        char whole[32];
        snprintf(whole, sizeof(whole), "%s%s", left, right);
        bool is_new = strlen(whole) <= 8;
        for (uint32_t i = 0; i < n; i++) {
            is_new = is_new && strcmp(words[i], whole) != 0;
        }
        if (is_new) {
            made_merge(m, left, right);
            strcpy(words[n++], whole);
        }
    }
}

void push_all(const struct rn_text *t, const uint32_t *ids, size_t n, bool special, struct rn_buf *out)
{
    struct rn_detok d = {0};
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(rn_detok_push(&d, t, ids[i], special, out), 0);
        assert_int_equal(rn_unicode_valid_len(out->data, out->len), out->len);
    }
    assert_int_equal(rn_detok_end(&d, out), 0);
    assert_int_equal(rn_unicode_valid_len(out->data, out->len), out->len);
}

void assert_says(const struct rn_text *t, const struct rn_ids *ids, const char *text, size_t len)
{
    struct rn_detok d = {0};
    struct rn_buf out = {0};
    for (size_t i = 0; i < ids->len; i++) {
        assert_int_equal(rn_detok_push(&d, t, ids->data[i], true, &out), 0);
    }
    assert_int_equal(rn_detok_end(&d, &out), 0);
    assert_int_equal(out.len, len);
    if (len > 0) {
        assert_memory_equal(out.data, text, len);
    }
    rn_buf_finish(&out);
}

void assert_ids(const struct rn_ids *ids, const uint32_t *expected, size_t n)
{
    assert_int_equal(ids->len, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(ids->data[i], expected[i]);
    }
}

struct rn_text *text_of_file(const char *path)
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

json_t *load_data(const char *name)
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

void assert_row_ids(const char *what, size_t row, const struct rn_ids *ids, const json_t *expected)
{
    bool equal = ids->len == json_array_size(expected);
    for (size_t i = 0; equal && i < ids->len; i++) {
        equal = ids->data[i] == (uint32_t)json_integer_value(json_array_get(expected, i));
    }
    if (!equal) {
        fail_msg("%s, row %zu: %zu ids differ from the %zu expected", what, row, ids->len, json_array_size(expected));
    }
}
