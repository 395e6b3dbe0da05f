/* The tokenizer against what it must not trust: long and broken texts, damaged files, memory that runs out. */
#include "tests/unit/text_kit.h"

#include <stdlib.h>

#include "runtime/base/clock.h"
#include "runtime/text/unicode.h"

static void long_runs_cost_linear_time(void **state)
{
    (void)state;
    static const char *const units[] = {"a",    "\n",       " ",       "\t ", "\u0301",       "\u00E9", "1",  "'",      "!",
                                        "\xFF", "\xE2\x82", "a\u0301", " \n", "<|x|",         "<",      "A1", "abc",    "\u3000\r",
                                        "A",    "\u65E5",   "\u02B0",  "aA",  "\u0323\u0301", "\uAC00", "/",  "A\u02B0"};
    rng_seed(3);
    struct made *m = made_create();
    made_random_merges(m, 100);
    made_merge(m, " ", " ");
    made_merge(m, "\n", "\n");
    made_name(m, "<|x|>", RN_TOKEN_CONTROL);
    const struct rn_pretok_row *row;
    for (size_t k = 0; (row = rn_pretok_row(k)) != NULL; k++) {
        struct rn_text *t = text_of(m, row->names[0]);
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
            struct rn_buf text = {0};
            struct rn_ids ids = {0};
            while (text.len < 100000) {
                assert_int_equal(rn_buf_add_str(&text, units[u]), 0);
            }
            // Runs that end in something else have to be looked at again, from their end.
            assert_int_equal(rn_buf_add_str(&text, u % 2 ? "!" : "\u65E5"), 0);
            uint64_t start = rn_clock_ns();
            assert_int_equal(rn_text_tokenize(t, text.data, text.len, true, &ids, NULL), 0);
            // Quadratic work would be 10^10 steps; linear work takes about 20 ms, with sanitizers on a busy machine ten times that.
            assert_true(rn_clock_ms(start, rn_clock_ns()) < 8000);
            bool kept = !row->nfc || rn_nfc_is_normal(text.data, text.len);
            if (kept && rn_unicode_valid_len(text.data, text.len) == text.len) {
                assert_says(t, &ids, text.data, text.len);
            }
            rn_ids_finish(&ids);
            rn_buf_finish(&text);
        }
        rn_text_destroy(t);
    }
    made_destroy(m);
}

static void a_piece_above_the_limit_is_cut_at_a_character(void **state)
{
    (void)state;
    struct made *m = made_create();
    made_merge(m, "\xC3", "\xA9");
    struct rn_text *t = text_of(m, "gpt-2");
    size_t n = RN_BPE_MAX_PIECE / 2 + 1000;
    struct rn_buf text = {0};
    struct rn_ids ids = {0};
    assert_int_equal(rn_buf_add_char(&text, 'x'), 0); // characters now begin at odd places
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(rn_buf_add(&text, "\xC3\xA9", 2), 0);
    }
    assert_int_equal(rn_text_tokenize(t, text.data, text.len, false, &ids, NULL), 0);
    assert_int_equal(ids.len, n + 1);
    rn_ids_finish(&ids);
    rn_buf_finish(&text);
    rn_text_destroy(t);
    made_destroy(m);
}

static void text_above_the_limit_is_refused(void **state)
{
    (void)state;
    struct made *m = made_create();
    struct rn_text *t = text_of(m, "gpt-2");
    struct rn_ids ids = {0};
    struct rn_err err = {0};
    assert_int_equal(rn_text_tokenize(t, "a", ((size_t)64 << 20) + 1, false, &ids, &err), -E2BIG);
    assert_non_null(strstr(err.text, "67108865"));
    assert_int_equal(rn_text_tokenize(t, NULL, 0, false, &ids, &err), 0);
    assert_int_equal(ids.len, 0);
    rn_text_destroy(t);
    made_destroy(m);
}

enum damage {
    NO_TOKENS,
    NO_MERGES,
    TYPES_SHORT,
    TYPE_RANGE,
    BOS_RANGE,
    EOT_RANGE,
    MERGE_NO_SPACE,
    MERGE_EMPTY,
    MERGE_UNKNOWN,
    MERGE_FOREIGN,
    MERGE_CONTROL,
    TOKENS_NOT_STRINGS,
    ADD_BOS_NOT_BOOL,
    OTHER_MODEL,
    NO_MODEL,
    OTHER_PRE,
    N_DAMAGES
};

static struct gguf_build *damaged_file(struct made *m, enum damage what)
{
    static const char *const merges[] = {"ab", " b", "a zz", "a \u65E5", "< x>"};
    struct gguf_build *b = gguf_build_create();
    if (what != NO_MODEL) {
        gguf_build_str(b, "tokenizer.ggml.model", what == OTHER_MODEL ? "rwkv" : "gpt2");
    }
    gguf_build_str(b, "tokenizer.ggml.pre", what == OTHER_PRE ? "mystery" : "gpt-2");
    if (what == TOKENS_NOT_STRINGS) {
        gguf_build_i32s(b, "tokenizer.ggml.tokens", m->types, m->n);
    } else if (what != NO_TOKENS) {
        gguf_build_strs(b, "tokenizer.ggml.tokens", (const char *const *)m->texts, m->n);
    }
    m->types[3] = what == TYPE_RANGE ? 7 : RN_TOKEN_NORMAL;
    gguf_build_i32s(b, "tokenizer.ggml.token_type", m->types, what == TYPES_SHORT ? m->n - 1 : m->n);
    if (what >= MERGE_NO_SPACE && what <= MERGE_CONTROL) {
        gguf_build_strs(b, "tokenizer.ggml.merges", &merges[what - MERGE_NO_SPACE], 1);
    } else if (what != NO_MERGES) {
        gguf_build_strs(b, "tokenizer.ggml.merges", NULL, 0);
    }
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", what == BOS_RANGE ? m->n : 0);
    gguf_build_u32(b, "tokenizer.ggml.eot_token_id", what == EOT_RANGE ? UINT32_MAX : 0);
    if (what == ADD_BOS_NOT_BOOL) {
        gguf_build_str(b, "tokenizer.ggml.add_bos_token", "yes");
    }
    return b;
}

static void damaged_vocabularies_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        int code;
        const char *says;
    } expected[N_DAMAGES] = {
        [NO_TOKENS] = {-EINVAL, "tokenizer.ggml.tokens"},
        [NO_MERGES] = {-EINVAL, "tokenizer.ggml.merges"},
        [TYPES_SHORT] = {-EINVAL, "token_type has 257 entries, expected 258"},
        [TYPE_RANGE] = {-EINVAL, "token_type of token 3 is 7"},
        [BOS_RANGE] = {-EINVAL, "bos_token_id is 258, expected less than 258"},
        [EOT_RANGE] = {-EINVAL, "eot_token_id is 4294967295"},
        [MERGE_NO_SPACE] = {-EINVAL, "merges, entry 0"},
        [MERGE_EMPTY] = {-EINVAL, "merges, entry 0"},
        [MERGE_UNKNOWN] = {-EINVAL, "right part"},
        [MERGE_FOREIGN] = {-EINVAL, "merges, entry 0"},
        [MERGE_CONTROL] = {-EINVAL, "the result is not a token that text can become"},
        [TOKENS_NOT_STRINGS] = {-EINVAL, "tokenizer.ggml.tokens"},
        [ADD_BOS_NOT_BOOL] = {-EINVAL, "add_bos_token"},
        [OTHER_MODEL] = {-ENOTSUP, "'rwkv'"},
        [NO_MODEL] = {-ENOTSUP, "tokenizer.ggml.model"},
        [OTHER_PRE] = {-ENOTSUP, "'mystery'"},
    };
    struct made *m = made_create();
    made_bytes(m, "x>", 2);
    made_name(m, "<x>", RN_TOKEN_CONTROL);
    for (int what = 0; what < N_DAMAGES; what++) {
        struct rn_text *t = NULL;
        struct rn_err err = {0};
        assert_int_equal(open_text(&t, damaged_file(m, (enum damage)what), &err), expected[what].code);
        assert_null(t);
        if (strstr(err.text, expected[what].says) == NULL || strstr(err.text, "made") == NULL) {
            fail_msg("damage %d: '%s' does not say '%s' and the file's name", what, err.text, expected[what].says);
        }
        assert_int_equal(open_text(&t, damaged_file(m, (enum damage)what), NULL), expected[what].code);
    }
    made_destroy(m);
}

static void mutated_files_are_refused_or_work(void **state)
{
    (void)state;
    struct made *m = made_create();
    made_merge(m, "a", "b");
    made_name(m, "<|x|>", RN_TOKEN_CONTROL);
    struct gguf_build *b = made_file(m, "gpt-2");
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", 257);
    struct gguf_bytes bytes = gguf_build_bytes(b);
    uint8_t *copy = malloc(bytes.len);
    assert_non_null(copy);
    rng_seed(11);
    unsigned n_made = 0;
    for (unsigned i = 0; i < 2000; i++) {
        memcpy(copy, bytes.data, bytes.len);
        for (unsigned k = 1 + rng(3); k > 0; k--) {
            copy[rng((uint32_t)bytes.len)] = (uint8_t)(rng(2) ? rng(256) : 1u << rng(8));
        }
        struct rn_gguf *g = NULL;
        struct rn_text *t = NULL;
        struct rn_err err = {0};
        if (rn_gguf_parse(&g, copy, bytes.len, "mutated", &err) == 0 && rn_text_create(&t, g, &err) == 0) {
            struct rn_ids ids = {0};
            struct rn_buf out = {0};
            assert_int_equal(rn_text_tokenize(t, "ab <|x|>\xF0 1", 12, true, &ids, &err), 0);
            for (size_t k = 0; k < ids.len; k++) {
                assert_true(ids.data[k] < rn_text_n_vocab(t));
            }
            push_all(t, ids.data, ids.len, true, &out);
            rn_buf_finish(&out);
            rn_ids_finish(&ids);
            n_made++;
        }
        rn_text_destroy(t);
        rn_gguf_close(g);
    }
    assert_true(n_made > 0 && n_made < 2000);
    free(copy);
    gguf_build_destroy(b);
    made_destroy(m);
}

static void file_without_types_and_pre_has_defaults(void **state)
{
    (void)state;
    struct made *m = made_create();
    struct gguf_build *b = gguf_build_create();
    gguf_build_str(b, "tokenizer.ggml.model", "gpt2");
    gguf_build_strs(b, "tokenizer.ggml.tokens", (const char *const *)m->texts, m->n);
    gguf_build_strs(b, "tokenizer.ggml.merges", NULL, 0);
    struct rn_text *t = NULL;
    assert_int_equal(open_text(&t, b, NULL), 0);
    ASSERT_TOKENS(t, "a b", false, 'a', ' ', 'b');
    assert_false(rn_text_has_template(t));
    struct rn_rendered r = {0};
    json_t *variables = json_object();
    assert_int_equal(rn_text_render(t, variables, &r, NULL), -ENOENT);
    json_decref(variables);
    rn_text_destroy(t);
    made_destroy(m);
}

static void fingerprint_tells_vocabularies_apart(void **state)
{
    (void)state;
    uint64_t prints[5];
    for (unsigned i = 0; i < 5; i++) {
        struct made *m = made_create();
        made_merge(m, "a", "b");
        made_name(m, i == 1 ? "<|y|>" : "<|x|>", i == 2 ? RN_TOKEN_USER : RN_TOKEN_CONTROL);
        struct rn_text *t = text_of(m, i == 3 ? "smollm" : "gpt-2");
        prints[i] = rn_text_fingerprint(t);
        rn_text_destroy(t);
        made_destroy(m);
    }
    assert_true(prints[0] == prints[4]); // the same again
    assert_true(prints[0] != prints[1] && prints[0] != prints[2] && prints[0] != prints[3]);
}

static void a_broken_template_is_reported_when_it_is_used(void **state)
{
    (void)state;
    struct made *m = made_create();
    struct gguf_build *b = made_file(m, "gpt-2");
    gguf_build_str(b, "tokenizer.chat_template", "{% for x in %}");
    struct rn_text *t = NULL;
    struct rn_err err = {0};
    struct rn_rendered r = {0};
    assert_int_equal(open_text(&t, b, &err), 0);
    assert_true(rn_text_has_template(t));
    json_t *variables = json_object();
    assert_int_equal(rn_text_render(t, variables, &r, &err), -EINVAL);
    assert_non_null(strstr(err.text, "line 1"));
    json_decref(variables);
    rn_text_destroy(t);
    made_destroy(m);
}

/* ---- memory ---- */

static void every_failing_allocation_is_an_error(void **state)
{
    (void)state;
    struct made *m = made_create();
    made_merge(m, "a", "b");
    uint32_t x = made_name(m, "<|x|>", RN_TOKEN_CONTROL);
    struct gguf_build *b = made_file(m, "qwen2");
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", x);
    gguf_build_u32(b, "tokenizer.ggml.eos_token_id", x);
    gguf_build_str(b, "tokenizer.chat_template", "{{ bos_token }}{{ messages[0]['content'] }}");
    struct gguf_bytes bytes = gguf_build_bytes(b);
    struct rn_gguf *g = NULL;
    assert_int_equal(rn_gguf_parse(&g, bytes.data, bytes.len, "made", NULL), 0);
    uint64_t n = 0;
    uint64_t n_allocs;
    do {
        struct rn_text *t = NULL;
        struct rn_ids ids = {0};
        struct rn_buf out = {0};
        struct rn_detok d = {.held = {0xE2}, .n_held = 1};
        struct rn_err err = {0};
        const char *text = "ab<|x|>abe\u0301\xFF 12\xC3";
        assert_int_equal(rn_ids_add(&ids, 77), 0);
        rn_mem_fail_at(++n);
        int r = rn_text_create(&t, g, &err);
        if (r == 0) {
            r = rn_text_tokenize(t, text, strlen(text), true, &ids, &err);
            assert_true(r == 0 || ids.len == 1); // as it was
        }
        if (r == 0) {
            r = rn_detok_push(&d, t, 'a', true, &out);
        }
        n_allocs = rn_mem_count();
        rn_mem_fail_at(0);
        // A pattern may do without its compiled code; whatever else fails is reported.
        assert_true(r == 0 || r == -ENOMEM);
        assert_true(r == 0 || n_allocs >= n);
        rn_text_destroy(t);
        rn_ids_finish(&ids);
        rn_buf_finish(&out);
    } while (n_allocs >= n);
    assert_true(n > 20);
    rn_gguf_close(g);
    gguf_build_destroy(b);
    made_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_runs_cost_linear_time),           cmocka_unit_test(a_piece_above_the_limit_is_cut_at_a_character),
        cmocka_unit_test(text_above_the_limit_is_refused),      cmocka_unit_test(damaged_vocabularies_are_refused_by_name),
        cmocka_unit_test(mutated_files_are_refused_or_work),    cmocka_unit_test(file_without_types_and_pre_has_defaults),
        cmocka_unit_test(fingerprint_tells_vocabularies_apart), cmocka_unit_test(a_broken_template_is_reported_when_it_is_used),
        cmocka_unit_test(every_failing_allocation_is_an_error),
    };
    return cmocka_run_group_tests_name("text_hostile", tests, NULL, NULL);
}
