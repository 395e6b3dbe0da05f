/* Text through each kind of tokenizer and back. Byte 0 of an input picks the tokenizer, bit 7 of it whether control tokens count. */
#include "tests/fuzz/fuzz.h"
#include "tests/unit/text_kit.h"

#include "runtime/text/unicode.h"

const char *const fuzz_words[] = {"<|end|>", "<|", "|>", "a", "abcab", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "123", "0", "\xc3\xa9", "e\xcc\x81", "\xf0\x9f\x98\x80", "\xe2\x96\x81", "\xe6\xbc\xa2", "\xff", "\xc3", "\xf0\x9f",
                                  "\xd7\xa9\xd6\xb8", "\xe0\xb8\x81\xe0\xb8\xb3", "\xc2\xa0", "\xe2\x80\xa8", "A", "Aa", "\xd0\x96", "_", "$", NULL};

// The first N_NORMALISING bring text to form C first.
static const char *const pres[] = {"mpt", "qwen2", "command-r", "gpt-2", "smollm", "llama-bpe", "tekken", "gpt-4o", "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "default", "starcoder"};
#define N_NORMALISING 3
#define N_PRES (sizeof pres / sizeof *pres)
#define N_TEXTS (N_PRES + 1) // and one with pieces and scores

static struct rn_text *texts[N_TEXTS];

static void make_texts(void)
{
    struct made *m = made_create();
    rng_seed(7);
    made_random_merges(m, 60);
    made_name(m, "<|end|>", RN_TOKEN_CONTROL);
    for (size_t i = 0; i < N_PRES; i++) {
        texts[i] = text_of(m, pres[i]);
    }
    made_destroy(m);
    struct made *pieces = made_create_empty();
    float scores[MAX_TOKENS] = {0};
    static const char *const names[] = {"a", "b", "c", "ab", "bc", "abc", "aa", "aaaa", "\xe2\x96\x81", "\xe2\x96\x81\xe2\x96\x81", "\xe2\x96\x81"
                                                                                                                            "a", "\xc3\xa9", "\n", "\n\n", "12"};
    made_name(pieces, "<unk>", RN_TOKEN_UNKNOWN);
    made_name(pieces, "<|end|>", RN_TOKEN_CONTROL);
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        made_name(pieces, name, RN_TOKEN_BYTE);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        scores[made_name(pieces, names[i], RN_TOKEN_NORMAL)] = -(float)(i * 7 % 11);
    }
    FUZZ_CHECK(open_text(&texts[N_PRES], made_pieces_file(pieces, scores), NULL) == 0);
    made_destroy(pieces);
}

void fuzz_seeds(void (*add)(const void *data, size_t len))
{
    static const char sample[] = "?Hello abcab w\xc3\xb6rld, it's 1234 o'clock!\r\n\n  \xf0\x9f\x98\x80<|end|> e\xcc\x81\xe6\xbc\xa2";
    for (size_t i = 0; i < 2 * N_TEXTS; i++) {
        char x[sizeof sample];
        memcpy(x, sample, sizeof sample);
        x[0] = (char)(i / 2 | (i % 2 ? 0x80 : 0));
        add(x, sizeof x - 1);
    }
}

/* The ids say the text again, byte for byte. */
static void check_bytes(const struct rn_text *t, const struct rn_ids *ids, const uint8_t *text, size_t len)
{
    size_t at = 0;
    for (size_t i = 0; i < ids->len; i++) {
        size_t n = 0;
        const char *bytes = rn_text_token_bytes(t, ids->data[i], &n);
        FUZZ_CHECK(bytes && n <= len - at && memcmp(bytes, text + at, n) == 0);
        at += n;
    }
    FUZZ_CHECK(at == len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (!texts[0]) {
        make_texts();
    }
    if (len == 0) {
        return 0;
    }
    size_t which = (data[0] & 0x7f) % N_TEXTS;
    bool special = data[0] & 0x80;
    const struct rn_text *t = texts[which];
    const uint8_t *text = data + 1;
    len--;
    struct rn_ids ids = {0};
    struct rn_buf out = {0};
    struct rn_detok d = {0};
    FUZZ_CHECK(rn_text_tokenize(t, (const char *)text, len, special, &ids, NULL) == 0);
    if (which < N_PRES && (which >= N_NORMALISING || rn_nfc_is_normal((const char *)text, len))) {
        check_bytes(t, &ids, text, len);
    }
    for (size_t i = 0; i < ids.len; i++) {
        FUZZ_CHECK(ids.data[i] < rn_text_n_vocab(t));
        FUZZ_CHECK(special || !rn_text_is_control(t, ids.data[i]));
        FUZZ_CHECK(rn_detok_push(&d, t, ids.data[i], true, &out) == 0);
    }
    FUZZ_CHECK(rn_detok_end(&d, &out) == 0);
    FUZZ_CHECK(rn_unicode_valid_len(out.data, out.len) == out.len);
    rn_buf_finish(&out);
    rn_ids_finish(&ids);
    return 0;
}
