/* The tokenizer side of runtime/text with vocabularies made here: byte alphabet, pre-tokenizers, merges, special tokens, the streaming
 * detokenizer. Hostile input is in test_text_hostile.c, reference texts and ids in test_text_model.c. */
#include "tests/unit/text_kit.h"

#include <stdio.h>

#include "runtime/base/clock.h"
#include "runtime/text/unicode.h"

/* ---- unicode ---- */

static void byte_alphabet_is_a_bijection(void **state)
{
    (void)state;
    unsigned n = 0;
    for (unsigned b = 0; b < 256; b++) {
        assert_int_equal(rn_unicode_byte_of(rn_unicode_of_byte((uint8_t)b)), b);
    }
    for (uint32_t cp = 0; cp < 0x11000; cp++) {
        n += rn_unicode_byte_of(cp) >= 0;
    }
    assert_int_equal(n, 256);
    assert_int_equal(rn_unicode_of_byte(' '), 0x120);
    assert_int_equal(rn_unicode_of_byte('\n'), 0x10A);
    assert_int_equal(rn_unicode_of_byte(0xAD), 0x143);
}

static void decoding_accepts_exactly_the_scalar_values(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x120000; cp++) {
        unsigned char s[4];
        unsigned n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        s[0] = (unsigned char)(n == 1 ? cp : (0xF00u >> n & 0xF0) | cp >> (6 * (n - 1)));
        for (unsigned i = 1; i < n; i++) {
            s[i] = (unsigned char)(0x80 | (cp >> (6 * (n - 1 - i)) & 0x3F));
        }
        uint32_t got = 0xFFFFFFFF;
        bool ok = cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF);
        unsigned decoded = rn_unicode_decode((const char *)s, n, &got);
        if (decoded != (ok ? n : 0) || (ok && got != cp)) {
            fail_msg("U+%04X: length %u, value %X", cp, decoded, got);
        }
        if (ok && n > 1 && rn_unicode_decode((const char *)s, n - 1, &got) != 0) {
            fail_msg("U+%04X: accepted without its last byte", cp);
        }
    }
    assert_int_equal(rn_unicode_valid_len("ab\xC0\x80", 4), 2);
    assert_int_equal(rn_unicode_valid_len("0123456789\xE2\x82\xAC\xE2\x82", 15), 13);
    assert_int_equal(rn_unicode_valid_len("\xE0\x80\x80", 3), 0);
    assert_int_equal(rn_unicode_valid_len("\xF0\x8F\xBF\xBF", 4), 0);
}

static void assert_nfc(const char *text, size_t len, const char *expected, size_t expected_len)
{
    struct rn_nfc_scratch scratch = {0};
    struct rn_buf out = {0};
    assert_int_equal(rn_nfc_add(&scratch, text, len, &out), 0);
    if (out.len != expected_len || memcmp(out.data, expected, expected_len) != 0) {
        fail_msg("'%.*s' became '%.*s', not '%.*s'", (int)len, text, (int)out.len, out.data, (int)expected_len, expected);
    }
    assert_true(!rn_nfc_is_normal(text, len) || (len == expected_len && memcmp(text, expected, len) == 0));
    rn_buf_finish(&out);
    rn_nfc_scratch_finish(&scratch);
}

/* Answers by Python's unicodedata, which takes them from the Unicode database. */
static void form_c_is_unicodes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *expected;
    } cases[] = {
        {"abc \u00E9\n", "abc \u00E9\n"},
        {"e\u0301", "\u00E9"},
        {"a\u0302\u0323", "\u1EAD"},                                 // marks are ordered, then both compose
        {"a\u0315\u0300\u05AE\u0300b", "\u00E0\u05AE\u0300\u0315b"}, // from NormalizationTest.txt, part 1
        {"q\u0307\u0323", "q\u0323\u0307"},
        {"\u212B\u2126\u212A", "\u00C5\u03A9K"},      // look-alikes that are the same
        {"\u0958\u2ADC", "\u0915\u093C\u2ADD\u0338"}, // excluded from composition
        {"\u1112\u1161\u11AB\uAE00", "\uD55C\uAE00"}, // Hangul
        {"\uD558\u11AB\u11AB", "\uD55C\u11AB"},
        {"\u0B47\u0B3E\u09C7\u09D7", "\u0B4B\u09CC"}, // vowel signs of class 0
        {"\U0001D15E", "\U0001D157\U0001D165"},
        {"\u0344\u0301e\u0301", "\u0308\u0301\u0301\u00E9"},
        {"\uFB01\uFF21\u00BD", "\uFB01\uFF21\u00BD"}, // form C keeps what only looks alike
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_nfc(cases[i].text, strlen(cases[i].text), cases[i].expected, strlen(cases[i].expected));
    }
    assert_nfc("e\xFF\u0301\xC3", 5, "e\xFF\u0301\xC3", 5);
    assert_nfc("e\u0301\0e\u0301\xED\xA0\x80", 10, "\u00E9\0\u00E9\xED\xA0\x80", 8);
}

static void piles_of_marks_are_normalised_in_linear_time(void **state)
{
    (void)state;
    struct rn_buf text = {0};
    struct rn_buf out = {0};
    struct rn_nfc_scratch scratch = {0};
    assert_int_equal(rn_buf_add_char(&text, 'e'), 0);
    while (text.len < 400000) { // in the worst order
        assert_int_equal(rn_buf_add_str(&text, text.len < 200000 ? "\u0301" : "\u0323"), 0);
    }
    uint64_t start = rn_clock_ns();
    assert_int_equal(rn_nfc_add(&scratch, text.data, text.len, &out), 0);
    assert_true(rn_clock_ms(start, rn_clock_ns()) < 5000); // some 10^10 steps if marks were sorted by insertion
    assert_true(rn_unicode_valid_len(out.data, out.len) == out.len);
    assert_true(out.len >= text.len - 4 && out.len <= text.len);
    // A run below the limit is in the right order as a whole.
    rn_buf_clear(&text);
    rn_buf_clear(&out);
    for (unsigned i = 0; i < 1000; i++) {
        assert_int_equal(rn_buf_add_str(&text, i == 0 ? "q" : i < 500 ? "\u0301" : "\u0323"), 0);
    }
    assert_int_equal(rn_nfc_add(&scratch, text.data, text.len, &out), 0);
    assert_int_equal(out.len, text.len);
    assert_memory_equal(out.data, "q\u0323\u0323", 5);
    assert_memory_equal(out.data + 1 + 2 * 500, "\u0301", 2);
    rn_nfc_scratch_finish(&scratch);
    rn_buf_finish(&out);
    rn_buf_finish(&text);
}

/* ---- pre-tokenizers ---- */

struct pieces {
    const char *text;
    struct rn_buf joined; /* pieces with | between them */
    size_t n;
    size_t end;
};

static int note_piece(void *user, size_t at, size_t len)
{
    struct pieces *p = user;
    assert_true(len > 0);
    assert_int_equal(at, p->end);
    p->end = at + len;
    if (p->n++ > 0) {
        rn_buf_add_char(&p->joined, '|');
    }
    return rn_buf_add(&p->joined, p->text + at, len);
}

/* As rn_text_tokenize does it; p->text is the text that was cut. */
static void split_with(const char *name, const char *text, size_t len, struct pieces *p)
{
    const struct rn_pretok_row *row = rn_pretok_find(name, strlen(name));
    struct rn_pretok *pretok = NULL;
    struct rn_pretok_run *run = NULL;
    struct rn_err err = {0};
    assert_non_null(row);
    assert_int_equal(rn_pretok_create(&pretok, row, &err), 0);
    assert_int_equal(rn_pretok_run_create(&run, pretok, &err), 0);
    struct rn_nfc_scratch nfc = {0};
    struct rn_buf normal = {0};
    if (row->nfc) {
        assert_int_equal(rn_nfc_add(&nfc, text, len, &normal), 0);
        text = normal.data;
        len = normal.len;
    }
    *p = (struct pieces){.text = text};
    int r = rn_pretok_split(run, text, len, note_piece, p, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(r, 0);
    assert_int_equal(p->end, len);
    rn_nfc_scratch_finish(&nfc);
    rn_buf_finish(&normal);
    rn_pretok_run_destroy(run);
    rn_pretok_destroy(pretok);
}

static void pretokenizers_cut_as_their_models_do(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *text;
        const char *pieces;
    } cases[] = {
        {"gpt-2", "", ""},
        {"gpt-2", "Hello world", "Hello| world"},
        {"gpt-2", "I'll don't it's WE'LL", "I|'ll| don|'t| it|'s| WE|'|LL"},
        {"gpt-2", "a  b   c ", "a| | b|  | c| "},
        {"gpt-2", "x=12345;  // 3.14", "x|=|12345|;| | //| 3|.|14"},
        {"gpt-2", "a\n\n b\t\tc", "a|\n\n| b|\t|\t|c"},
        {"gpt-2", "naïve 日本語、", "naïve| 日本語|、"},
        {"gpt-2", "a\u00A0\u3000b", "a|\u00A0|\u3000|b"},
        {"gpt-2", "a\u180Eb", "a|\u180E|b"},
        {"gpt-2", "\u180E\u180E!", "\u180E\u180E!"}, // no white space since Unicode 6.3
        {"gpt-2", "e\u0301", "e|\u0301"},
        {"smollm", "in 2024!", "in| |2|0|2|4|!"},
        {"smollm", "a  12", "a|  |1|2"},
        {"smollm", "x²½Ⅷ", "x|²|½|Ⅷ"},
        {"starcoder", "v10 beta", "v|1|0| beta"},
        {"llama-bpe", "1234567 it'S\n\nOK", "123|456|7| it|'S|\n\n|OK"},
        {"llama-bpe", "  \n \n  x(y)\n\n", "  \n \n| | x|(y|)\n\n"},
        {"llama-bpe", "We'LL a'\u017F", "We|'LL| a|'\u017F"}, // long s is an s too
        {"dbrx", "1234567 it'S", "123|456|7| it|'S"},
        {"mpt", "I'll 12345  x", "I|'ll| 12345| | x"},
        {"mpt", "e\u0301 x", "\u00E9| x"},
        {"command-r", "cafe\u0301 2024", "caf\u00E9| |2|0|2|4"},
        {"qwen2", "1234567 it'S\n\nOK", "1|2|3|4|5|6|7| it|'S|\n\n|OK"},
        {"qwen2", "e\u0301\u0323 \uAC00\u11A8", "\u1EB9|\u0301| \uAC01"},
        {"qwen2", "x(y)\n\n", "x|(y|)\n\n"},
        {"qwen35", "\u0915\u093F a\u0302b\u0301x", "\u0915\u093F| \u00E2b\u0301x"},
        {"stablelm2", "e\u0301 12", "e|\u0301| |1|2"},
        {"tekken", "HelloWorld HTTPServer iPhone", "Hello|World| HTTPServer| i|Phone"},
        {"tekken", "12 \u00C4\u00D6\u00DC\u00E4 \u0415\u0421\u0442\u044C it's",
         "1|2| \u00C4\u00D6\u00DC\u00E4| \u0415\u0421\u0442\u044C| it|'s"},
        {"tekken", "\u00E9\u00C9t\u00C9 \u65E5\u672CAb a//\n", "\u00E9|\u00C9t|\u00C9| \u65E5\u672CAb| a|//\n"},
        {"gpt-4o", "1234 HelloWorld's it'S IT'LL a'b", "123|4| Hello|World's| it'S| IT'LL| a|'b"},
        {"gpt-4o", "\u0391\u0392\u03B3\u0394 e\u0301E\u0301", "\u0391\u0392\u03B3|\u0394| e\u0301|E\u0301"},
        {"deepseek-llm", "Hello  world\n 12", "Hello| | world|\n| |1|2"},
        {"deepseek-llm", "a   ", "a|   "},
        {"deepseek-llm", " \u65E5\u672C\u3001\u3042!?", " |\u65E5\u672C|\u3001|\u3042|!?"},
        {"deepseek-coder", "x = y_1; \u65E5a", "x| =| y|_|1|;| |\u65E5|a"},
        {"deepseek-v3", "1234 .foo(bar) \u65E5\u672C a\u0301!\n", "123|4| .|foo|(bar|)| |\u65E5\u672C| a\u0301|!\n"},
        {"falcon", "a,b 12345", "a|,|b| |123|45"},
        {"falcon", "it 7 \u00BD", "it| |7| \xC2|\xBD"},
        {"default", "a+b 12345", "a|+|b| |123|45"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pieces p;
        split_with(cases[i].name, cases[i].text, strlen(cases[i].text), &p);
        assert_string_equal(p.joined.data == NULL ? "" : p.joined.data, cases[i].pieces);
        rn_buf_finish(&p.joined);
    }
}

static void bytes_that_are_not_utf8_are_single_other_characters(void **state)
{
    (void)state;
    struct pieces p;
    split_with("gpt-2", "ab\xFF\xFE c\xE2\x82", 8, &p);
    assert_string_equal(p.joined.data, "ab|\xFF\xFE| c|\xE2\x82");
    rn_buf_finish(&p.joined);
    split_with("gpt-2", "\xED\xA0\x80\xF4\x90\x80\x80 1", 9, &p);
    assert_string_equal(p.joined.data, "\xED\xA0\x80\xF4\x90\x80\x80| 1");
    rn_buf_finish(&p.joined);
    split_with("gpt-2", "\xFF!\xFFz7\xFF", 6, &p);
    assert_string_equal(p.joined.data, "\xFF!\xFF|z|7|\xFF");
    rn_buf_finish(&p.joined);
    split_with("gpt-2", "a\0b", 3, &p);
    assert_memory_equal(p.joined.data, "a|\0|b", 5);
    rn_buf_finish(&p.joined);
}

static void pretokenizer_names_are_found_exactly(void **state)
{
    (void)state;
    assert_non_null(rn_pretok_find("gpt-2", 5));
    assert_null(rn_pretok_find("gpt-", 4));
    assert_null(rn_pretok_find("gpt-22", 6));
    assert_null(rn_pretok_find("", 0));
}

/* ---- merges ---- */

/* Byte pair encoding as it is defined: while some adjacent pair has a rank, merge the lowest, of equal ones the leftmost. */
static size_t naive_bpe(const struct made *m, const struct rn_text *t, const char *piece, size_t len, uint32_t *ids)
{
    char texts[48][48];
    size_t n = len;
    assert_true(len < 48);
    for (size_t i = 0; i < len; i++) {
        texts[i][0] = piece[i];
        texts[i][1] = '\0';
    }
    for (;;) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (uint32_t rank = 0; rank < m->n_merges && rank < best; rank++) {
                if (strcmp(m->left[rank], texts[i]) == 0 && strcmp(m->right[rank], texts[i + 1]) == 0) {
                    best = rank;
                    at = i;
                }
            }
        }
        if (best == UINT32_MAX) {
            break;
        }
        size_t n_left = strlen(texts[at]);
        memmove(texts[at] + n_left, texts[at + 1], sizeof(texts[0]) - n_left); // a piece is shorter than a row
        memmove(texts[at + 1], texts[at + 2], (n - at - 2) * sizeof(texts[0]));
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        ids[i] = (uint32_t)rn_vocab_find(&t->vocab, texts[i], strlen(texts[i]));
    }
    return n;
}

static void merging_equals_the_definition(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        rng_seed(seed);
        struct made *m = made_create();
        made_random_merges(m, 10 + rng(80));
        struct rn_text *t = text_of(m, "gpt-2");
        for (unsigned i = 0; i < 100; i++) {
            char piece[40];
            size_t len = 1 + rng(39);
            for (size_t k = 0; k < len; k++) {
                piece[k] = (char)('a' + rng(3));
            }
            uint32_t expected[48];
            size_t n = naive_bpe(m, t, piece, len, expected);
            struct rn_ids ids = {0};
            assert_int_equal(rn_text_tokenize(t, piece, len, false, &ids, NULL), 0);
            if (ids.len != n || memcmp(ids.data, expected, n * sizeof(expected[0])) != 0) {
                fail_msg("seed %u, text %u '%.*s' differs", (unsigned)seed, i, (int)len, piece);
            }
            rn_ids_finish(&ids);
        }
        rn_text_destroy(t);
        made_destroy(m);
    }
}

static void of_equal_merges_and_tokens_the_first_counts(void **state)
{
    (void)state;
    struct made *m = made_create();
    uint32_t ab = made_merge(m, "a", "b");
    made_merge(m, "b", "c");
    made_merge(m, "a", "b");
    struct rn_text *t = text_of(m, "gpt-2");
    ASSERT_TOKENS(t, "abc", false, ab, 'c');
    rn_text_destroy(t);
    made_destroy(m);
}

static void whole_pieces_are_taken_where_merges_are_ignored(void **state)
{
    (void)state;
    struct made *m = made_create();
    uint32_t ab = made_merge(m, "a", "b");
    uint32_t abc = made_bytes(m, "abc", 3); // no merge makes it
    struct rn_text *t = text_of(m, "gpt-2");
    ASSERT_TOKENS(t, "abc", false, ab, 'c');
    assert_false(rn_text_adds_bos(t));
    rn_text_destroy(t);
    t = text_of(m, "llama-bpe");
    ASSERT_TOKENS(t, "abc", false, abc);
    ASSERT_TOKENS(t, "abcab", false, ab, 'c', ab);
    assert_false(rn_text_adds_bos(t)); // the row says yes, but the file has none
    rn_text_destroy(t);
    made_destroy(m);
}

static void bytes_without_token_are_left_out(void **state)
{
    (void)state;
    struct made *m = made_create_empty();
    made_bytes(m, "a", 1);
    made_bytes(m, "b", 1);
    uint32_t ab = made_merge(m, "a", "b");
    struct rn_text *t = text_of(m, "gpt-2");
    ASSERT_TOKENS(t, "aXb", false, ab); // as if X were not there
    struct rn_ids ids = {0};
    assert_int_equal(rn_text_tokenize(t, "XY", 2, false, &ids, NULL), 0);
    assert_int_equal(ids.len, 0);
    rn_text_destroy(t);
    made_destroy(m);
}

/* ---- special tokens ---- */

static void special_tokens_are_cut_out_longest_first(void **state)
{
    (void)state;
    struct made *m = made_create();
    uint32_t x = made_name(m, "<|x|>", RN_TOKEN_CONTROL);
    uint32_t xy = made_name(m, "<|x|>y", RN_TOKEN_CONTROL);
    uint32_t lines = made_name(m, "\n\n\n", RN_TOKEN_USER);
    uint32_t two = made_name(m, "\n\n", RN_TOKEN_USER);
    uint32_t unknown = made_name(m, "<unk>", RN_TOKEN_UNKNOWN);
    made_name(m, "[PAD261]", RN_TOKEN_USER); // a filler: never found
    struct rn_text *t = text_of(m, "gpt-2");
    ASSERT_TOKENS(t, "a<|x|>b", true, 'a', x, 'b');
    ASSERT_TOKENS(t, "<|x|>y<|x|>", true, xy, x);
    ASSERT_TOKENS(t, "<|x|<unk>", true, '<', '|', 'x', '|', unknown);
    ASSERT_TOKENS(t, "<|x|>", false, '<', '|', 'x', '|', '>');
    ASSERT_TOKENS(t, "a\n\n\n\n\nb", false, 'a', lines, two, 'b');
    ASSERT_TOKENS(t, "[PAD261]", true, '[', 'P', 'A', 'D', '2', '6', '1', ']');
    assert_true(rn_text_is_control(t, x));
    assert_true(rn_text_is_control(t, unknown));
    assert_false(rn_text_is_control(t, lines));
    assert_false(rn_text_is_control(t, UINT32_MAX));
    rn_text_destroy(t);
    made_destroy(m);
}

static void render_by_hand(struct rn_rendered *r, const char *text, const char *own)
{
    *r = (struct rn_rendered){0};
    assert_int_equal(strlen(text), strlen(own));
    assert_int_equal(rn_buf_add_str(&r->text, text), 0);
    for (size_t i = 0; own[i] != '\0'; i++) {
        assert_int_equal(rn_buf_add_char(&r->own, own[i] == '1'), 0);
    }
}

static void only_the_template_writes_control_tokens(void **state)
{
    (void)state;
    struct made *m = made_create();
    uint32_t x = made_name(m, "<|x|>", RN_TOKEN_CONTROL);
    uint32_t u = made_name(m, "@@", RN_TOKEN_USER);
    uint32_t ab = made_merge(m, "a", "b");
    struct rn_text *t = text_of(m, "gpt-2");
    static const struct {
        const char *text;
        const char *own;
        size_t from;
        bool is_token;
    } cases[] = {
        {"<|x|>", "11111", 0, true},  {"<|x|>", "00000", 0, false},  {"<|x|>", "11101", 0, false},   {"<|x|>", "01111", 0, false},
        {"<|x|>", "11110", 0, false}, {"q<|x|>", "011111", 1, true}, {"q<|x|>", "100000", 1, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rn_rendered r;
        struct rn_ids ids = {0};
        render_by_hand(&r, cases[i].text, cases[i].own);
        assert_int_equal(rn_text_tokenize_rendered_from(t, &r, cases[i].from, &ids, NULL), 0);
        const uint32_t letters[] = {'<', '|', 'x', '|', '>'};
        assert_ids(&ids, cases[i].is_token ? &x : letters, cases[i].is_token ? 1 : 5);
        rn_ids_finish(&ids);
        rn_rendered_finish(&r);
    }
    // The border between template and message is no border for merges; user-defined literals do not care either.
    struct rn_rendered r;
    struct rn_ids ids = {0};
    render_by_hand(&r, "ab@@<|x|>", "100111111");
    const uint32_t expected[] = {ab, u, x};
    assert_int_equal(rn_text_tokenize_rendered(t, &r, &ids, NULL), 0);
    assert_ids(&ids, expected, 3);
    struct rn_err err = {0};
    assert_int_equal(rn_text_tokenize_rendered_from(t, &r, 10, &ids, &err), -EINVAL);
    assert_int_equal(rn_text_tokenize_rendered_from(t, &r, 9, &ids, &err), 0);
    r.own.len--;
    assert_int_equal(rn_text_tokenize_rendered(t, &r, &ids, &err), -EINVAL);
    assert_ids(&ids, expected, 3);
    r.own.len++;
    rn_rendered_finish(&r);
    rn_ids_finish(&ids);
    rn_text_destroy(t);
    made_destroy(m);
}

static void end_marks_are_found_by_key_and_by_name(void **state)
{
    (void)state;
    struct made *m = made_create();
    uint32_t eos = made_name(m, "<stop>", RN_TOKEN_CONTROL);
    uint32_t end = made_name(m, "<|im_end|>", RN_TOKEN_NORMAL); // mistyped in the file
    uint32_t message = made_name(m, "<|end|>", RN_TOKEN_CONTROL);
    uint32_t start = made_name(m, "<|im_start|>", RN_TOKEN_CONTROL);
    struct gguf_build *b = made_file(m, "gpt-2");
    gguf_build_u32(b, "tokenizer.ggml.eos_token_id", eos);
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", start);
    gguf_build_bool(b, "tokenizer.ggml.add_bos_token", true);
    struct rn_text *t = NULL;
    assert_int_equal(open_text(&t, b, NULL), 0);
    assert_true(rn_text_is_end(t, eos) && rn_text_is_end(t, end) && rn_text_is_end(t, message));
    assert_false(rn_text_is_end(t, start) || rn_text_is_end(t, 'a') || rn_text_is_end(t, UINT32_MAX));
    assert_true(rn_text_is_control(t, end));
    assert_int_equal(rn_vocab_find(&t->vocab, "<|im_end|>", 10), -1); // text can no longer become it
    assert_int_equal(rn_text_bos(t), start);
    assert_true(rn_text_adds_bos(t));
    assert_int_equal(rn_text_n_vocab(t), 260);
    ASSERT_TOKENS(t, "<|im_end|>", true, end);
    rn_text_destroy(t);
    made_name(m, "<|return|>", RN_TOKEN_CONTROL);
    made_name(m, "<|call|>", RN_TOKEN_CONTROL);
    t = text_of(m, "gpt-2");
    assert_false(rn_text_is_end(t, message)); // closes a message only, where answers end in <|return|> or <|call|>
    assert_true(rn_text_is_end(t, message + 2) && rn_text_is_end(t, message + 3));
    assert_int_equal(rn_text_bos(t), -1);
    rn_text_destroy(t);
    made_destroy(m);
}

/* ---- detokenizer ---- */

static void broken_bytes_become_one_replacement_per_maximal_subpart(void **state)
{
    (void)state;
#define R RN_UNICODE_REPLACEMENT
    static const char *const cases[][2] = {
        {"abc", "abc"},
        {"\xE2\x82\xAC", "\u20AC"},
        {"\xF0\x9F\x98\x80", "\U0001F600"},
        {"\xF0\x9F\x98", R},
        {"\xE2\x82(", R "("},
        {"\xE2\x28\xA1", R "(" R},
        {"\xC0\xAF", R R},
        {"\xED\xA0\x80", R R R},
        {"\xF4\x90\x80\x80", R R R R},
        {"\xF0\x80\x80\x41", R R R "A"},
        {"\xF1\x80\x41\x42", R "AB"},
        {"\x80\xBF", R R},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A"}, // Unicode Standard, table 3-11
        {"\xC3\xC3\xA9", R "\u00E9"},
        {"\xFE\xFF", R R},
    };
#undef R
    struct made *m = made_create();
    struct rn_text *t = text_of(m, "gpt-2");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t ids[16];
        struct rn_buf out = {0};
        size_t n = strlen(cases[i][0]);
        for (size_t k = 0; k < n; k++) {
            ids[k] = (unsigned char)cases[i][0][k];
        }
        push_all(t, ids, n, false, &out);
        assert_string_equal(out.data, cases[i][1]);
        rn_buf_finish(&out);
    }
    rn_text_destroy(t);
    made_destroy(m);
}

static void detokenizing_does_not_depend_on_the_cut(void **state)
{
    (void)state;
    static const unsigned char lively[] = {'a', 0x80, 0xBF, 0xA0, 0x9F, 0x8F, 0x90, 0xC1, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF1, 0xF4, 0xF5};
    rng_seed(7);
    struct made *m = made_create();
    char bytes[300][8];
    size_t lens[300];
    for (unsigned i = 0; i < 300; i++) { // tokens of 2 to 7 bytes that cut characters anywhere
        lens[i] = 2 + rng(6);
        for (size_t k = 0; k < lens[i]; k++) {
            bytes[i][k] = (char)(rng(4) == 0 ? rng(256) : lively[rng(sizeof(lively))]);
        }
        made_bytes(m, bytes[i], lens[i]);
    }
    struct rn_text *t = text_of(m, "gpt-2");
    for (unsigned round = 0; round < 300; round++) {
        uint32_t whole[20];
        uint32_t single[140];
        size_t n_single = 0;
        for (unsigned i = 0; i < 20; i++) {
            uint32_t pick = rng(300);
            whole[i] = 256 + pick;
            for (size_t k = 0; k < lens[pick]; k++) {
                single[n_single++] = (unsigned char)bytes[pick][k];
            }
        }
        struct rn_buf a = {0};
        struct rn_buf b = {0};
        push_all(t, whole, 20, false, &a);
        push_all(t, single, n_single, false, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        rn_buf_finish(&a);
        rn_buf_finish(&b);
    }
    rn_text_destroy(t);
    made_destroy(m);
}

static void detokenizer_hides_what_is_not_text(void **state)
{
    (void)state;
    struct made *m = made_create();
    uint32_t x = made_name(m, "<|x|>", RN_TOKEN_CONTROL);
    uint32_t unused = made_name(m, "unused", RN_TOKEN_UNUSED);
    uint32_t byte = made_name(m, "<0x41>", RN_TOKEN_BYTE);
    uint32_t foreign = made_name(m, "\u65E5", RN_TOKEN_NORMAL); // not in the byte alphabet: said as written, never made
    struct rn_text *t = text_of(m, "gpt-2");
    const uint32_t ids[] = {'a', x, unused, byte, foreign, 0xE2, x, 0x82, 0xAC};
    struct rn_buf out = {0};
    push_all(t, ids, 9, false, &out);
    assert_string_equal(out.data, "aA\u65E5\u20AC");
    rn_buf_clear(&out);
    push_all(t, ids, 9, true, &out);
    assert_string_equal(out.data, "a<|x|>A\u65E5\uFFFD<|x|>\uFFFD\uFFFD");
    struct rn_detok d = {0};
    assert_int_equal(rn_detok_push(&d, t, m->n, true, &out), -EINVAL);
    assert_int_equal(rn_detok_push(&d, t, UINT32_MAX, true, &out), -EINVAL);
    ASSERT_TOKENS(t, "\u65E5A", false, 0xE6, 0x97, 0xA5, 'A');
    rn_buf_finish(&out);
    rn_text_destroy(t);
    made_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_alphabet_is_a_bijection),
        cmocka_unit_test(decoding_accepts_exactly_the_scalar_values),
        cmocka_unit_test(form_c_is_unicodes),
        cmocka_unit_test(piles_of_marks_are_normalised_in_linear_time),
        cmocka_unit_test(pretokenizers_cut_as_their_models_do),
        cmocka_unit_test(bytes_that_are_not_utf8_are_single_other_characters),
        cmocka_unit_test(pretokenizer_names_are_found_exactly),
        cmocka_unit_test(merging_equals_the_definition),
        cmocka_unit_test(of_equal_merges_and_tokens_the_first_counts),
        cmocka_unit_test(whole_pieces_are_taken_where_merges_are_ignored),
        cmocka_unit_test(bytes_without_token_are_left_out),
        cmocka_unit_test(special_tokens_are_cut_out_longest_first),
        cmocka_unit_test(only_the_template_writes_control_tokens),
        cmocka_unit_test(end_marks_are_found_by_key_and_by_name),
        cmocka_unit_test(broken_bytes_become_one_replacement_per_maximal_subpart),
        cmocka_unit_test(detokenizing_does_not_depend_on_the_cut),
        cmocka_unit_test(detokenizer_hides_what_is_not_text),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
