/* Answers that go on with raw ids, on a SentencePiece-style vocabulary: prompt and answer detokenise as one text. A tiny random model whose
 * next token is chosen by a bias. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/session_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/text/text_internal.h"
#include "tests/unit/gguf_build.h"

#define SPACE "\u2581"

enum { UNKNOWN, BOS, EOS, BYTES, A = BYTES + 256, SPACE_A, MARK, N_VOCAB };
#define BYTE(b) (BYTES + (b))

static void add_vocabulary(struct gguf_build *b)
{
    static char bytes[256][8];
    const char *texts[N_VOCAB] = {"<unk>", "<s>", "</s>", [A] = "a", [SPACE_A] = SPACE "a", [MARK] = "<b>"};
    int32_t types[N_VOCAB] = {RN_TOKEN_UNKNOWN, RN_TOKEN_CONTROL, RN_TOKEN_CONTROL, [A] = RN_TOKEN_NORMAL, RN_TOKEN_NORMAL, RN_TOKEN_USER};
    float scores[N_VOCAB] = {[A] = -1, -2, -3};
    for (int i = 0; i < 256; i++) {
        snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", i);
        texts[BYTE(i)] = bytes[i];
        types[BYTE(i)] = RN_TOKEN_BYTE;
    }
    gguf_build_str(b, "tokenizer.ggml.model", "llama");
    gguf_build_strs(b, "tokenizer.ggml.tokens", texts, N_VOCAB);
    gguf_build_i32s(b, "tokenizer.ggml.token_type", types, N_VOCAB);
    gguf_build_f32s(b, "tokenizer.ggml.scores", scores, N_VOCAB);
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", BOS);
    gguf_build_u32(b, "tokenizer.ggml.eos_token_id", EOS);
    gguf_build_u32(b, "tokenizer.ggml.unknown_token_id", UNKNOWN);
}

static struct rn_engine *make_engine(void)
{
    char dir[64], path[128];
    struct rn_err err = {0};
    struct rn_engine *e = NULL;
    struct gguf_build *b = gguf_build_create();
    gguf_build_llama(b, &(struct gguf_llama){.n_vocab = N_VOCAB, .n_layers = 1, .has_no_tokenizer = true});
    add_vocabulary(b);
    kit_temp_dir(dir);
    snprintf(path, sizeof path, "%s/pieces.gguf", dir);
    assert_true(gguf_build_write(b, path));
    gguf_build_destroy(b);
    int r = rn_engine_create(&e, &(struct rn_engine_params){.model = path, .n_threads = 1}, &err);
    kit_remove_dir(dir);
    if (r < 0) {
        fail_msg("%s", err.text);
    }
    return e;
}

static void prompt_and_answer_are_one_text(void **state)
{
    (void)state;
    static const struct {
        uint32_t prompt[3];
        size_t n;
        uint32_t token; // the answer: three of it
        const char *text;
    } rows[] = {
        {{SPACE_A, A}, 2, SPACE_A, " a a a"},           // inside a text a space is a space
        {{BOS, A}, 2, SPACE_A, " a a a"},
        {{A, BOS}, 2, SPACE_A, "a a a"},                // behind a control token a text begins
        {{A, MARK}, 2, SPACE_A, "a a a"},               // and behind one that the user defined
        {{BOS}, 1, SPACE_A, "a a a"},
        {{A, BYTE(0xE2), BYTE(0x82)}, 3, BYTE(0xAC), "\u20AC\uFFFD\uFFFD"}, // the answer ends a character of the prompt
    };
    struct rn_engine *e = make_engine();
    struct kit k;
    kit_init(&k, e);
    kit_start(&k, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rn_request *req = kit_request(NULL, NULL);
        struct rn_logit_bias *bias = rn_mem_alloc(1, sizeof *bias);
        req->raw_ids = rn_mem_alloc(rows[i].n, sizeof *req->raw_ids);
        assert_true(bias && req->raw_ids);
        memcpy(req->raw_ids, rows[i].prompt, rows[i].n * sizeof *req->raw_ids);
        req->n_raw_ids = rows[i].n;
        req->store = false;
        req->max_output_tokens = 3;
        *bias = (struct rn_logit_bias){.id = rows[i].token, .value = 1000};
        rn_request_bias(req, bias, 1);
        struct kit_reply *r = kit_wait(&k, kit_send(&k, req));
        assert_int_equal(r->last->n_ids, 3);
        assert_int_equal(r->last->ids[0], rows[i].token);
        assert_string_equal(r->last->text, rows[i].text);
        assert_string_equal(r->text, rows[i].text);
    }
    kit_finish(&k);
    rn_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompt_and_answer_are_one_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
