/* SentencePiece-style tokenizing with vocabularies made here: merges against their definition, spaces, bytes, marks, hostile input.
 * Real vocabularies: test_text_vectors.c. */
#include "tests/unit/text_kit.h"

#include <math.h>
#include <stdio.h>

#include "runtime/base/clock.h"
#include "runtime/text/unicode.h"

#define SPACE "\u2581"

struct pieces {
    struct made *m;
    float scores[MAX_TOKENS];
};

static uint32_t add(struct pieces *p, const char *name, int32_t type, float score)
{
    uint32_t id = made_name(p->m, name, type);
    p->scores[id] = score;
    return id;
}

/* <unk>, <s>, </s>, the bytes if asked for, letters. */
static void pieces_init(struct pieces *p, bool bytes)
{
    *p = (struct pieces){.m = made_create_empty()};
    add(p, "<unk>", RN_TOKEN_UNKNOWN, 0);
    add(p, "<s>", RN_TOKEN_CONTROL, 0);
    add(p, "</s>", RN_TOKEN_CONTROL, 0);
    for (unsigned b = 0; bytes && b < 256; b++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", b);
        add(p, name, RN_TOKEN_BYTE, 0);
    }
    add(p, SPACE, RN_TOKEN_NORMAL, -100);
    add(p, "a", RN_TOKEN_NORMAL, -101);
    add(p, "b", RN_TOKEN_NORMAL, -102);
    add(p, "c", RN_TOKEN_NORMAL, -103);
    add(p, "\u00E9", RN_TOKEN_NORMAL, -104);
}

static uint32_t id_of(const struct pieces *p, const char *name)
{
    for (uint32_t id = 0; id < p->m->n; id++) {
        if (strcmp(p->m->texts[id], name) == 0) {
            return id;
        }
    }
    fail_msg("no token '%s'", name);
    return 0;
}

static struct gguf_build *file_of(const struct pieces *p)
{
    struct gguf_build *b = made_pieces_file(p->m, p->scores);
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", 1);
    gguf_build_u32(b, "tokenizer.ggml.eos_token_id", 2);
    gguf_build_u32(b, "tokenizer.ggml.unknown_token_id", 0);
    return b;
}

static struct rn_text *open_pieces(const struct pieces *p, bool prefix)
{
    struct gguf_build *b = file_of(p);
    struct rn_text *t = NULL;
    struct rn_err err = {0};
    if (!prefix) {
        gguf_build_bool(b, "tokenizer.ggml.add_space_prefix", false);
    }
    int r = open_text(&t, b, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(r, 0);
    return t;
}

static void spaces_are_pieces(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint32_t sa = add(&p, SPACE "a", RN_TOKEN_NORMAL, -1);
    uint32_t ss = add(&p, SPACE SPACE, RN_TOKEN_NORMAL, -2);
    uint32_t s = id_of(&p, SPACE);
    uint32_t a = id_of(&p, "a");
    uint32_t x = id_of(&p, "<s>");
    struct rn_text *t = open_pieces(&p, true);
    assert_true(rn_text_adds_bos(t)); // where the file does not say
    ASSERT_TOKENS(t, "a", false, sa);
    ASSERT_TOKENS(t, " a", false, s, sa);
    ASSERT_TOKENS(t, "  a", false, ss, sa);
    ASSERT_TOKENS(t, "aa a", false, sa, a, sa);
    ASSERT_TOKENS(t, SPACE "a", false, s, sa); // the same as a space
    ASSERT_TOKENS(t, "<s>a", true, x, sa);     // the prefix of each part, but no prefix of nothing
    ASSERT_TOKENS(t, "a<s>", true, sa, x);
    ASSERT_TOKENS(t, "<s>", true, x);
    struct rn_ids none = {0};
    assert_int_equal(rn_text_tokenize(t, "", 0, false, &none, NULL), 0);
    assert_int_equal(none.len, 0);
    rn_text_destroy(t);
    t = open_pieces(&p, false);
    ASSERT_TOKENS(t, "a", false, a);
    ASSERT_TOKENS(t, " a", false, sa);
    ASSERT_TOKENS(t, "<s>a", true, x, a);
    rn_text_destroy(t);
    made_destroy(p.m);
}

static void best_score_merges_first_and_of_equal_ones_the_leftmost(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint32_t ab = add(&p, "ab", RN_TOKEN_NORMAL, -5);
    uint32_t bc = add(&p, "bc", RN_TOKEN_NORMAL, -4);
    uint32_t ca = add(&p, "ca", RN_TOKEN_NORMAL, -4);
    uint32_t aa = add(&p, "aa", RN_TOKEN_NORMAL, 1e30f);
    uint32_t bbb = add(&p, "bbb", RN_TOKEN_NORMAL, 3); // nothing leads to it
    uint32_t a = id_of(&p, "a");
    uint32_t b = id_of(&p, "b");
    struct rn_text *t = open_pieces(&p, false);
    ASSERT_TOKENS(t, "abc", false, a, bc);
    ASSERT_TOKENS(t, "bcab", false, bc, ab);
    ASSERT_TOKENS(t, "bca", false, bc, a);
    ASSERT_TOKENS(t, "cab", false, ca, b);
    ASSERT_TOKENS(t, "aaa", false, aa, a);
    ASSERT_TOKENS(t, "bbb", false, b, b, b);
    assert_int_equal(rn_vocab_find(&t->vocab, "bbb", 3), bbb);
    rn_text_destroy(t);
    made_destroy(p.m);
}

/* As SentencePiece defines it: while some adjacent pair is a token, merge the one with the best score, of equal ones the leftmost. */
static size_t naive(const struct pieces *p, const char *text, size_t len, uint32_t *ids)
{
    char symbols[64][64];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        snprintf(symbols[n++], sizeof(symbols[0]), "%s", text[i] == ' ' ? SPACE : (char[]){text[i], '\0'});
    }
    for (;;) {
        float best = -INFINITY;
        size_t at = 0;
        bool found = false;
        for (size_t i = 0; i + 1 < n; i++) {
            for (uint32_t id = 0; id < p->m->n; id++) {
                const char *name = p->m->texts[id];
                size_t left = strlen(symbols[i]);
                bool fits = strncmp(name, symbols[i], left) == 0 && strcmp(name + left, symbols[i + 1]) == 0;
                if (fits && (!found || p->scores[id] > best)) {
                    best = p->scores[id];
                    at = i;
                    found = true;
                }
            }
        }
        if (!found) {
            break;
        }
        memcpy(symbols[at] + strlen(symbols[at]), symbols[at + 1], strlen(symbols[at + 1]) + 1); // no token is as long as a row
        memmove(symbols[at + 1], symbols[at + 2], (n - at - 2) * sizeof(symbols[0]));
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = id_of(p, symbols[i]);
    }
    return n;
}

static void merging_equals_the_definition(void **state)
{
    (void)state;
    static const char *const letters[] = {"a", "b", "c", SPACE};
    for (uint64_t seed = 1; seed <= 30; seed++) {
        rng_seed(seed);
        struct pieces p;
        pieces_init(&p, true);
        for (uint32_t n = 5 + rng(60); n > 0; n--) {
            char name[32] = "";
            for (uint32_t k = 2 + rng(4); k > 0; k--) {
                strcat(name, letters[rng(4)]);
            }
            bool is_new = true;
            for (uint32_t id = 0; id < p.m->n; id++) {
                is_new = is_new && strcmp(p.m->texts[id], name) != 0;
            }
            if (is_new) {
                add(&p, name, RN_TOKEN_NORMAL, (float)rng(12) - 6); // few scores: many are equal
            }
        }
        struct rn_text *t = open_pieces(&p, false);
        for (unsigned i = 0; i < 60; i++) {
            char text[40];
            size_t len = 1 + rng(39);
            for (size_t k = 0; k < len; k++) {
                text[k] = "abc "[rng(4)];
            }
            uint32_t expected[64];
            size_t n = naive(&p, text, len, expected);
            struct rn_ids ids = {0};
            assert_int_equal(rn_text_tokenize(t, text, len, false, &ids, NULL), 0);
            if (ids.len != n || memcmp(ids.data, expected, n * sizeof(expected[0])) != 0) {
                fail_msg("seed %u, text %u '%.*s' differs", (unsigned)seed, i, (int)len, text);
            }
            assert_says(t, &ids, text, len);
            rn_ids_finish(&ids);
        }
        rn_text_destroy(t);
        made_destroy(p.m);
    }
}

static void what_has_no_piece_becomes_bytes_or_unknown(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint32_t zero = id_of(&p, "<0x00>");
    uint32_t a = id_of(&p, "a");
    uint32_t e = id_of(&p, "\u00E9");
    struct rn_text *t = open_pieces(&p, false);
    ASSERT_TOKENS(t, "a\u20AC\n", false, a, zero + 0xE2, zero + 0x82, zero + 0xAC, zero + '\n');
    ASSERT_TOKENS(t,
                  "\xFF"
                  "a\xC3\u00E9\xE2\x82",
                  false, zero + 0xFF, a, zero + 0xC3, e, zero + 0xE2, zero + 0x82);
    rn_text_destroy(t);
    made_destroy(p.m);
    pieces_init(&p, false);
    a = id_of(&p, "a");
    t = open_pieces(&p, false);
    ASSERT_TOKENS(t, "xyaz", false, 0, a, 0); // one for a run
    rn_text_destroy(t);
    struct gguf_build *b = made_pieces_file(p.m, p.scores);
    t = NULL;
    assert_int_equal(open_text(&t, b, NULL), 0);
    assert_int_equal(rn_text_bos(t), -1);
    assert_false(rn_text_adds_bos(t)); // there is none
    uint32_t s = id_of(&p, SPACE);
    ASSERT_TOKENS(t, "xya", false, s, a); // no unknown token either: left out
    rn_text_destroy(t);
    made_destroy(p.m);
}

static void literals_are_matched_before_anything_merges(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint32_t two = add(&p, "  ", RN_TOKEN_USER, -1000);                // as files write them: with spaces …
    uint32_t three = add(&p, SPACE SPACE SPACE, RN_TOKEN_USER, -1000); // … or as they write pieces
    uint32_t tag = add(&p, "<b>", RN_TOKEN_USER, -1000);
    uint32_t sa = add(&p, SPACE "a", RN_TOKEN_NORMAL, -1);
    uint32_t unused = add(&p, "ab", RN_TOKEN_UNUSED, -1);
    uint32_t s = id_of(&p, SPACE);
    uint32_t a = id_of(&p, "a");
    uint32_t b = id_of(&p, "b");
    struct rn_text *t = open_pieces(&p, false);
    ASSERT_TOKENS(t, "   a", false, three, a);
    ASSERT_TOKENS(t, "  a", false, two, a);
    ASSERT_TOKENS(t, " a", false, sa);
    ASSERT_TOKENS(t, "    a", false, three, sa);
    ASSERT_TOKENS(t, "a<b>ab", false, a, tag, a, b);
    ASSERT_TOKENS(t, SPACE SPACE "b", false, s, s, b); // no spaces, so no literal
    struct rn_buf out = {0};
    push_all(t, (uint32_t[]){three, unused, two, a}, 4, true, &out);
    assert_string_equal(out.data, "     a");
    rn_buf_finish(&out);
    rn_text_destroy(t);
    made_destroy(p.m);
}

static void control_tokens_never_come_from_text(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    static const char *const parts[] = {"<", "s", ">", "<s"};
    for (size_t i = 0; i < 4; i++) {
        add(&p, parts[i], RN_TOKEN_NORMAL, -1);
    }
    struct rn_text *t = open_pieces(&p, false);
    ASSERT_TOKENS(t, "<s>", false, id_of(&p, "<s"), id_of(&p, ">"));
    ASSERT_TOKENS(t, "<s>", true, id_of(&p, "<s>"));
    assert_true(rn_text_is_end(t, 2));
    assert_true(rn_text_is_control(t, 0));
    rn_text_destroy(t);
    made_destroy(p.m);
}

static void the_text_of_ids_has_no_prefix(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint32_t sa = add(&p, SPACE "a", RN_TOKEN_NORMAL, -1);
    uint32_t tag = add(&p, "<b>", RN_TOKEN_USER, -1000);
    uint32_t euro[] = {id_of(&p, "<0xE2>"), id_of(&p, "<0x82>"), id_of(&p, "<0xAC>")};
    struct rn_text *t = open_pieces(&p, true);
    struct {
        uint32_t ids[6];
        size_t n;
        const char *text; /* with control tokens */
        const char *plain;
    } cases[] = {
        {{sa, sa}, 2, "a a", "a a"},
        {{1, sa, sa, 2}, 4, "<s>a a</s>", "a a"},
        {{sa, tag, sa, sa}, 4, "a<b>a a", "a<b>a a"},
        {{id_of(&p, SPACE), sa}, 2, " a", " a"},
        {{id_of(&p, "a"), sa}, 2, "a a", "a a"},
        {{euro[0], euro[1], euro[2], sa}, 4, "\u20AC a", "\u20AC a"},
        {{sa, euro[0], euro[1], sa}, 4, "a\uFFFD a", "a\uFFFD a"},
        {{euro[0], 2, euro[1]}, 3, "\uFFFD</s>\uFFFD", "\uFFFD"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int special = 0; special < 2; special++) {
            struct rn_buf out = {0};
            push_all(t, cases[i].ids, cases[i].n, special, &out);
            assert_string_equal(out.data, special ? cases[i].text : cases[i].plain);
            rn_buf_finish(&out);
        }
    }
    // Ids that go on with a text keep their first space.
    struct rn_detok d = {.inside = true};
    struct rn_buf out = {0};
    assert_int_equal(rn_detok_push(&d, t, sa, false, &out), 0);
    assert_string_equal(out.data, " a");
    rn_buf_finish(&out);
    rn_text_destroy(t);
    made_destroy(p.m);
}

static void texts_come_back(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    add(&p, SPACE "a", RN_TOKEN_NORMAL, -1);
    add(&p, SPACE SPACE, RN_TOKEN_NORMAL, -2);
    add(&p, "b" SPACE, RN_TOKEN_NORMAL, -3);
    add(&p, "\n\n", RN_TOKEN_USER, -1000);
    add(&p, "  ", RN_TOKEN_USER, -1000);
    static const char *const parts[] = {"a", "b", " ", "\n", "\u00E9", "\u20AC", "x", "<s>", "</s>", "\u0301", "\U0001F44D", "  a"};
    for (int prefix = 0; prefix < 2; prefix++) {
        struct rn_text *t = open_pieces(&p, prefix);
        rng_seed(7);
        for (unsigned i = 0; i < 2000; i++) {
            char text[256] = "";
            for (uint32_t n = rng(20); n > 0; n--) {
                strcat(text, parts[rng(sizeof(parts) / sizeof(parts[0]))]);
            }
            struct rn_ids ids = {0};
            assert_int_equal(rn_text_tokenize(t, text, strlen(text), true, &ids, NULL), 0);
            assert_says(t, &ids, text, strlen(text));
            rn_ids_finish(&ids);
        }
        rn_text_destroy(t);
    }
    made_destroy(p.m);
}

static void bos_comes_once(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint32_t sa = add(&p, SPACE "a", RN_TOKEN_NORMAL, -1);
    static const struct {
        const char *chat;
        bool writes_bos;
    } cases[] = {
        {"{{ bos_token }}{{ messages[0]['content'] }}", true},
        {"{{ messages[0]['content'] }}", false},
    };
    for (size_t i = 0; i < 2; i++) {
        struct gguf_build *b = file_of(&p);
        gguf_build_bool(b, "tokenizer.ggml.add_bos_token", true);
        gguf_build_str(b, "tokenizer.chat_template", cases[i].chat);
        gguf_build_str(b, "tokenizer.chat_template.tool_use", "{% broken");
        struct rn_text *t = NULL;
        assert_int_equal(open_text(&t, b, NULL), 0);
        json_t *variables = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", "a");
        struct rn_rendered r = {0};
        struct rn_ids ids = {0};
        struct rn_err err = {0};
        assert_int_equal(rn_text_render(t, variables, &r, &err), 0);
        assert_int_equal(rn_text_tokenize_rendered(t, &r, &ids, &err), 0);
        const uint32_t expected[] = {1, sa};
        assert_ids(&ids, cases[i].writes_bos ? expected : expected + 1, cases[i].writes_bos ? 2 : 1);
        ids.len = 0;
        assert_int_equal(rn_text_tokenize(t, "a", 1, true, &ids, &err), 0);
        assert_ids(&ids, &sa, 1); // raw text: BOS is the caller's
        assert_true(rn_text_adds_bos(t));
        assert_int_equal(rn_text_bos(t), 1);
        rn_ids_finish(&ids);
        rn_rendered_finish(&r);
        json_decref(variables);
        rn_text_destroy(t);
    }
    made_destroy(p.m);
}

static void long_runs_cost_linear_time(void **state)
{
    (void)state;
    static const char *const units[] = {"a", "\n", " ", "\u0301", "\u00E9", "\xFF", "\xE2\x82", "ab", "abc", " a", "<s", "x", SPACE};
    struct pieces p;
    pieces_init(&p, true);
    static const char *const words[] = {"aa",  "aaaa",    "aaaaaaaa",  "ab",           "abab", "bc",
                                        "abc", SPACE "a", SPACE SPACE, "\u00E9\u00E9", "\n\n"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        add(&p, words[i], RN_TOKEN_NORMAL, -(float)i);
    }
    struct rn_text *t = open_pieces(&p, true);
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        struct rn_buf text = {0};
        struct rn_ids ids = {0};
        while (text.len < 100000) {
            assert_int_equal(rn_buf_add_str(&text, units[u]), 0);
        }
        uint64_t start = rn_clock_ns();
        assert_int_equal(rn_text_tokenize(t, text.data, text.len, true, &ids, NULL), 0);
        // Quadratic work would be 10^10 steps; n log n takes about 20 ms, with sanitizers on a busy machine ten times that.
        assert_true(rn_clock_ms(start, rn_clock_ns()) < 8000);
        if (rn_unicode_valid_len(text.data, text.len) == text.len && strcmp(units[u], SPACE) != 0) {
            assert_says(t, &ids, text.data, text.len);
        }
        rn_ids_finish(&ids);
        rn_buf_finish(&text);
    }
    rn_text_destroy(t);
    made_destroy(p.m);
}

static void a_run_above_the_limit_is_cut(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint32_t aa = add(&p, "aa", RN_TOKEN_NORMAL, -1);
    struct rn_text *t = open_pieces(&p, false);
    struct rn_buf text = {0};
    struct rn_ids ids = {0};
    size_t n = RN_SPM_MAX_RUN + 1000;
    assert_int_equal(rn_buf_reserve(&text, n), 0);
    memset(text.data, 'a', n);
    assert_int_equal(rn_text_tokenize(t, text.data, n, false, &ids, NULL), 0);
    assert_int_equal(ids.len, n / 2);
    for (size_t i = 0; i < ids.len; i++) {
        assert_int_equal(ids.data[i], aa);
    }
    rn_ids_finish(&ids);
    rn_buf_finish(&text);
    rn_text_destroy(t);
    made_destroy(p.m);
}

static void damaged_scores_are_refused(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    static const char *const says[] = {"scores is missing", "scores has", "scores of token 5 is not a number", "add_space_prefix"};
    for (int what = 0; what < 4; what++) {
        struct gguf_build *b = gguf_build_create();
        gguf_build_str(b, "tokenizer.ggml.model", "llama");
        gguf_build_strs(b, "tokenizer.ggml.tokens", (const char *const *)p.m->texts, p.m->n);
        gguf_build_i32s(b, "tokenizer.ggml.token_type", p.m->types, p.m->n);
        p.scores[5] = what == 2 ? NAN : 0;
        if (what != 0) {
            gguf_build_f32s(b, "tokenizer.ggml.scores", p.scores, what == 1 ? p.m->n - 1 : p.m->n);
        }
        if (what == 3) {
            gguf_build_u32(b, "tokenizer.ggml.add_space_prefix", 1);
        }
        struct rn_text *t = NULL;
        struct rn_err err = {0};
        assert_int_equal(open_text(&t, b, &err), -EINVAL);
        assert_null(t);
        if (strstr(err.text, says[what]) == NULL) {
            fail_msg("'%s' does not say '%s'", err.text, says[what]);
        }
    }
    made_destroy(p.m);
}

static void fingerprint_knows_scores_and_prefix(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    uint64_t prints[4];
    for (int i = 0; i < 4; i++) {
        p.scores[7] = i == 1 ? -3 : 0;
        struct rn_text *t = open_pieces(&p, i != 2);
        prints[i] = rn_text_fingerprint(t);
        rn_text_destroy(t);
    }
    assert_true(prints[0] == prints[3] && prints[0] != prints[1] && prints[0] != prints[2]);
    made_destroy(p.m);
}

static void every_failing_allocation_is_an_error(void **state)
{
    (void)state;
    struct pieces p;
    pieces_init(&p, true);
    add(&p, SPACE "a", RN_TOKEN_NORMAL, -1);
    struct gguf_build *b = file_of(&p);
    struct gguf_bytes bytes = gguf_build_bytes(b);
    struct rn_gguf *g = NULL;
    assert_int_equal(rn_gguf_parse(&g, bytes.data, bytes.len, "made", NULL), 0);
    uint64_t n = 0;
    uint64_t n_allocs;
    int r;
    do {
        struct rn_text *t = NULL;
        struct rn_ids ids = {0};
        struct rn_err err = {0};
        assert_int_equal(rn_ids_add(&ids, 77), 0);
        rn_mem_fail_at(++n);
        r = rn_text_create(&t, g, &err);
        if (r == 0) {
            r = rn_text_tokenize(t, "a b<s>a\xFF", 8, true, &ids, &err);
            assert_true(r == 0 || ids.len == 1); // as it was
        }
        n_allocs = rn_mem_count();
        rn_mem_fail_at(0);
        assert_int_equal(r, n_allocs >= n ? -ENOMEM : 0);
        rn_text_destroy(t);
        rn_ids_finish(&ids);
    } while (r != 0);
    assert_true(n > 10);
    rn_gguf_close(g);
    gguf_build_destroy(b);
    made_destroy(p.m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spaces_are_pieces),
        cmocka_unit_test(best_score_merges_first_and_of_equal_ones_the_leftmost),
        cmocka_unit_test(merging_equals_the_definition),
        cmocka_unit_test(what_has_no_piece_becomes_bytes_or_unknown),
        cmocka_unit_test(literals_are_matched_before_anything_merges),
        cmocka_unit_test(control_tokens_never_come_from_text),
        cmocka_unit_test(the_text_of_ids_has_no_prefix),
        cmocka_unit_test(texts_come_back),
        cmocka_unit_test(bos_comes_once),
        cmocka_unit_test(long_runs_cost_linear_time),
        cmocka_unit_test(a_run_above_the_limit_is_cut),
        cmocka_unit_test(damaged_scores_are_refused),
        cmocka_unit_test(fingerprint_knows_scores_and_prefix),
        cmocka_unit_test(every_failing_allocation_is_an_error),
    };
    return cmocka_run_group_tests_name("text_spm", tests, NULL, NULL);
}
