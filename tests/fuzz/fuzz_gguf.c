/* A model file: the reader, its hyper-parameters, the vocabulary and the family's program. */
#include <string.h>

#include "runtime/arch.h"
#include "runtime/model/gguf.h"
#include "runtime/model/hparams.h"
#include "runtime/model/weights.h"
#include "runtime/tensor/program.h"
#include "runtime/text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/gguf_build.h"

const char *const fuzz_words[] = {"general.architecture", "llama", "gemma3", "qwen2", "qwen3", "general.alignment", "tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.merges",
                                  "tokenizer.ggml.token_type", "tokenizer.ggml.model", "gpt2", "split.count", "split.no", "block_count", "\xe2\x96\x81", "<0x0A>", NULL};

static void add_model(void (*add)(const void *, size_t), const struct gguf_llama *model)
{
    struct gguf_build *b = gguf_build_create();
    gguf_build_llama(b, model);
    struct gguf_bytes f = gguf_build_bytes(b);
    add(f.data, f.len);
    add(f.data, f.header_len);
    gguf_build_destroy(b);
}

void fuzz_seeds(void (*add)(const void *data, size_t len))
{
    const struct gguf_llama common = {.n_layers = 1, .d_model = 32, .d_ff = 32, .n_heads = 1, .n_kv_heads = 1, .n_vocab = 260, .type = RN_DTYPE_Q4_0};
    static const char *const archs[] = {"llama", "gemma3", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        struct gguf_llama model = common;
        model.arch = archs[i];
        add_model(add, &model);
        model.has_rope_freqs = true;
        model.has_output = true;
        add_model(add, &model);
    }
    static const char *const pieces[] = {"<unk>", "<s>", "</s>", "<0x00>", "a", "b", "ab", "\xe2\x96\x81", "\xe2\x96\x81"
                                                                                                       "a"};
    struct gguf_build *b = gguf_build_create();
    gguf_build_str(b, "general.architecture", "gemma3");
    gguf_build_str(b, "tokenizer.ggml.model", "llama");
    gguf_build_strs(b, "tokenizer.ggml.tokens", pieces, 9);
    gguf_build_i32s(b, "tokenizer.ggml.token_type", (const int32_t[]){2, 3, 3, 6, 1, 1, 1, 1, 1}, 9);
    gguf_build_f32s(b, "tokenizer.ggml.scores", (const float[]){0, 0, 0, 0, -1, -2, -3, -4, -5}, 9);
    add(gguf_build_bytes(b).data, gguf_build_bytes(b).len);
    gguf_build_destroy(b);
}

static void use_text(const struct rn_gguf *g)
{
    static const char sample[] = "Hello w\xc3\xb6rld 123 \xf0\x9f\x98\x80\xff\n  a ab <|im_end|>";
    struct rn_text *t = NULL;
    if (rn_text_create(&t, g, NULL) < 0) {
        return;
    }
    struct rn_ids ids = {0};
    struct rn_buf out = {0};
    struct rn_detok d = {0};
    if (rn_text_tokenize(t, sample, sizeof sample - 1, true, &ids, NULL) == 0) {
        for (size_t i = 0; i < ids.len; i++) {
            FUZZ_CHECK(ids.data[i] < rn_text_n_vocab(t));
            FUZZ_CHECK(rn_detok_push(&d, t, ids.data[i], true, &out) == 0);
        }
    }
    rn_buf_finish(&out);
    rn_ids_finish(&ids);
    rn_text_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct rn_gguf *g = NULL;
    if (rn_gguf_parse(&g, data, len, "fuzz", NULL) < 0) {
        return 0;
    }
    for (size_t i = 0; i < rn_gguf_n_tensors(g); i++) { // every byte that a tensor claims is there
        const struct rn_tensor *t = rn_gguf_tensor_at(g, i);
        const uint8_t *first = t->data;
        FUZZ_CHECK(first >= data && t->bytes <= len && (size_t)(first - data) <= len - t->bytes);
    }
    (void)rn_weights_fingerprint(g);
    struct rn_gguf_str name = {"", 0};
    struct rn_hparams hp;
    char arch_name[32] = "";
    if (rn_gguf_get_str(g, "general.architecture", &name, NULL) == 1 && name.len < sizeof arch_name) {
        memcpy(arch_name, name.data, name.len);
    }
    const struct rn_arch *arch = rn_arch_find(arch_name);
    struct rn_program *p = NULL;
    if (arch && rn_hparams_read(&hp, g, NULL) == 0 && arch->build(&p, g, &hp, NULL) == 0) {
        rn_program_destroy(p);
    }
    use_text(g);
    rn_gguf_close(g);
    return 0;
}
