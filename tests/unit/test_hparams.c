/* Hyper-parameters: what is read, what is assumed when a key is absent, and what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/model/hparams.h"
#include "tests/unit/gguf_build.h"

// A valid set of keys, in which a test leaves out one (skip) and puts in others of its own.
static struct gguf_build *keys(const char *skip)
{
    static const struct {
        const char *key;
        uint32_t value;
    } u32s[] = {{"llama.block_count", 2}, {"llama.context_length", 512}, {"llama.embedding_length", 64},
                {"llama.feed_forward_length", 96}, {"llama.attention.head_count", 4}};
    struct gguf_build *b = gguf_build_create();
    if (!skip || strcmp(skip, "general.architecture")) {
        gguf_build_str(b, "general.architecture", "llama");
    }
    for (size_t i = 0; i < sizeof u32s / sizeof *u32s; i++) {
        if (!skip || strcmp(skip, u32s[i].key)) {
            gguf_build_u32(b, u32s[i].key, u32s[i].value);
        }
    }
    if (!skip || strcmp(skip, "llama.attention.layer_norm_rms_epsilon")) {
        gguf_build_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    }
    if (!skip || strcmp(skip, "token_embd.weight")) {
        gguf_build_random(b, "token_embd.weight", RN_DTYPE_Q8_0, 64, 100, 1);
    }
    return b;
}

static int read(struct gguf_build *b, struct rn_hparams *ret, struct rn_err *err)
{
    struct gguf_bytes f = gguf_build_bytes(b);
    struct rn_gguf *g = NULL;
    int e = rn_gguf_parse(&g, f.data, f.len, "dir/m.gguf", err);
    assert_int_equal(e, 0);
    e = rn_hparams_read(ret, g, err);
    rn_gguf_close(g);
    gguf_build_destroy(b);
    return e;
}

static struct rn_hparams accepted(struct gguf_build *b)
{
    struct rn_hparams h;
    struct rn_err err = {0};
    if (read(b, &h, &err)) {
        fail_msg("refused: %s", err.text);
    }
    return h;
}

static void refused(struct gguf_build *b, int code, const char *text)
{
    struct rn_hparams h = {.n_layers = 77};
    struct rn_err err = {0};
    assert_int_equal(read(b, &h, &err), code);
    assert_string_equal(err.text, text);
    assert_int_equal(h.n_layers, 77); // untouched
}

static void absent_keys_take_their_defaults(void **state)
{
    (void)state;
    struct rn_hparams h = accepted(keys(NULL));
    assert_string_equal(h.arch, "llama");
    assert_string_equal(h.name, "m");
    assert_true(h.n_layers == 2 && h.d_model == 64 && h.d_ff == 96 && h.n_heads == 4 && h.n_kv_heads == 4 && h.head_dim == 16);
    assert_true(h.n_vocab == 100 && h.n_ctx_train == 512 && h.norm_eps == 1e-5f && h.n_rot == 16 && h.rope_base == 10000.0f);
    assert_string_equal(h.rope_scaling, "");
    assert_true(h.rope_factor == 1.0f);
}

static void keys_are_read(void **state)
{
    (void)state;
    struct gguf_build *b = keys(NULL);
    gguf_build_str(b, "general.name", "A m\xc3\xb6""del\n");
    gguf_build_u32(b, "llama.attention.head_count_kv", 2);
    gguf_build_u32(b, "llama.attention.key_length", 32);
    gguf_build_u32(b, "llama.attention.value_length", 32);
    gguf_build_u32(b, "llama.rope.dimension_count", 24);
    gguf_build_f32(b, "llama.rope.freq_base", 5e5f);
    gguf_build_str(b, "llama.rope.scaling.type", "yarn");
    gguf_build_f32(b, "llama.rope.scaling.factor", 4);
    gguf_build_u32(b, "llama.expert_count", 0);
    gguf_build_bool(b, "llama.attention.causal", true);
    struct rn_hparams h = accepted(b);
    assert_string_equal(h.name, "A m??del?");
    assert_true(h.n_kv_heads == 2 && h.head_dim == 32 && h.n_rot == 24 && h.rope_base == 5e5f && h.rope_factor == 4.0f);
    assert_string_equal(h.rope_scaling, "yarn");
}

static void long_names_are_cut(void **state)
{
    (void)state;
    struct gguf_build *b = keys(NULL);
    char name[201] = {0};
    memset(name, 'x', 200);
    gguf_build_str(b, "general.name", name);
    assert_int_equal(strlen(accepted(b).name), 127);
}

static void values_per_layer_may_be_an_array_of_equal_ones(void **state)
{
    (void)state;
    struct gguf_build *b = keys("llama.feed_forward_length");
    gguf_build_i32s(b, "llama.feed_forward_length", (int32_t[]){128, 128}, 2);
    gguf_build_u32s(b, "llama.attention.head_count_kv", (uint32_t[]){2, 2}, 2);
    struct rn_hparams h = accepted(b);
    assert_true(h.d_ff == 128 && h.n_kv_heads == 2);
    b = keys("llama.feed_forward_length");
    gguf_build_u32s(b, "llama.feed_forward_length", (uint32_t[]){128, 96}, 2);
    refused(b, -ENOTSUP, "dir/m.gguf: llama.feed_forward_length: 128 and 96, layers that differ cannot be run yet");
    b = keys(NULL);
    gguf_build_u32s(b, "llama.attention.head_count_kv", NULL, 0);
    refused(b, -EINVAL, "dir/m.gguf: llama.attention.head_count_kv: an empty array");
    b = keys(NULL);
    gguf_build_i32s(b, "llama.attention.head_count_kv", (int32_t[]){-1}, 1);
    refused(b, -EINVAL, "dir/m.gguf: llama.attention.head_count_kv: 4294967295, expected 1 to 1024");
    b = keys(NULL);
    gguf_build_f32s(b, "llama.attention.head_count_kv", (float[]){2}, 1);
    refused(b, -EINVAL, "dir/m.gguf: key 'llama.attention.head_count_kv': of type array of f32, expected array of i32");
}

static void older_scaling_keys_mean_linear(void **state)
{
    (void)state;
    struct gguf_build *b = keys(NULL);
    gguf_build_f32(b, "llama.rope.scale_linear", 2);
    struct rn_hparams h = accepted(b);
    assert_string_equal(h.rope_scaling, "linear");
    assert_true(h.rope_factor == 2.0f);
    b = keys(NULL);
    gguf_build_f32(b, "llama.rope.scaling.factor", 8);
    assert_string_equal(accepted(b).rope_scaling, "linear");
    b = keys(NULL);
    gguf_build_str(b, "llama.rope.scaling.type", "none");
    gguf_build_f32(b, "llama.rope.scaling.factor", 8);
    h = accepted(b);
    assert_string_equal(h.rope_scaling, "");
    assert_true(h.rope_factor == 1.0f);
}

static void missing_keys_are_named(void **state)
{
    (void)state;
    static const char *const required[] = {"general.architecture",       "llama.block_count",         "llama.context_length",
                                           "llama.feed_forward_length",  "llama.embedding_length",    "llama.attention.head_count",
                                           "llama.attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        char text[128] = "dir/m.gguf: ";
        strcat(strcat(text, required[i]), ": missing");
        refused(keys(required[i]), -EINVAL, text);
    }
    refused(keys("token_embd.weight"), -EINVAL, "dir/m.gguf: tensor 'token_embd.weight': missing");
}

static void values_out_of_range_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        const char *text;
    } cases[] = {
        {"llama.block_count", 0, "llama.block_count: 0, expected 1 to 1024"},
        {"llama.block_count", 1025, "llama.block_count: 1025, expected 1 to 1024"},
        {"llama.context_length", 0, "llama.context_length: 0, expected 1 to 1073741824"},
        {"llama.feed_forward_length", 0, "llama.feed_forward_length: 0, expected 1 to 1048576"},
        {"llama.embedding_length", 0, "llama.embedding_length: 0, expected 1 to 65536"},
        {"llama.embedding_length", 65568, "llama.embedding_length: 65568, expected 1 to 65536"},
        {"llama.embedding_length", 72, "llama.embedding_length: 72, expected a multiple of 32"},
        {"llama.embedding_length", 96, "tensor 'token_embd.weight': rows of 64 elements, expected 96 (embedding_length)"},
        {"llama.attention.head_count", 0, "llama.attention.head_count: 0, expected 1 to 1024"},
        {"llama.attention.head_count", 5,
         "llama.attention.key_length: missing, and 64 dimensions do not divide into 5 heads of at most 1024"},
        {"llama.attention.head_count_kv", 3, "llama.attention.head_count_kv: 3, expected a divisor of the 4 heads"},
        {"llama.attention.head_count_kv", 0, "llama.attention.head_count_kv: 0, expected 1 to 1024"},
        {"llama.attention.head_count_kv", 8, "llama.attention.head_count_kv: 8, expected a divisor of the 4 heads"},
        {"llama.attention.key_length", 2000, "llama.attention.key_length: 2000, expected 1 to 1024"},
        {"llama.rope.dimension_count", 17, "llama.rope.dimension_count: 17, expected 0 to 16"},
        {"llama.rope.dimension_count", 15, "llama.rope.dimension_count: 15, expected an even number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256] = "dir/m.gguf: ";
        struct gguf_build *b = keys(cases[i].key);
        gguf_build_u32(b, cases[i].key, cases[i].value);
        refused(b, -EINVAL, strcat(text, cases[i].text));
    }
    struct gguf_build *b = keys(NULL);
    gguf_build_u32(b, "llama.attention.value_length", 32);
    refused(b, -ENOTSUP, "dir/m.gguf: llama.attention.value_length: 32, expected 16 as the keys");
}

static void floats_out_of_range_are_refused(void **state)
{
    (void)state;
    static const char eps[] = "llama.attention.layer_norm_rms_epsilon";
    struct gguf_build *b = keys(eps);
    gguf_build_f32(b, eps, 0);
    refused(b, -EINVAL, "dir/m.gguf: llama.attention.layer_norm_rms_epsilon: 0, expected above 0 and at most 1");
    b = keys(eps);
    gguf_build_raw(b, eps, RN_GGUF_F32, "\0\0\xc0\x7f", 4); // NaN
    refused(b, -EINVAL, "dir/m.gguf: llama.attention.layer_norm_rms_epsilon: nan, expected above 0 and at most 1");
    b = keys(NULL);
    gguf_build_raw(b, "llama.rope.freq_base", RN_GGUF_F32, "\0\0\x80\x7f", 4); // infinity
    refused(b, -EINVAL, "dir/m.gguf: llama.rope.freq_base: inf, expected above 0 and at most 1e+12");
    b = keys(NULL);
    gguf_build_f32(b, "llama.rope.scaling.factor", -2);
    refused(b, -EINVAL, "dir/m.gguf: llama.rope.scaling.factor: -2, expected above 0 and at most 65536");
    b = keys(NULL);
    gguf_build_str(b, "llama.rope.freq_base", "big");
    refused(b, -EINVAL, "dir/m.gguf: key 'llama.rope.freq_base': of type string, expected f32 or f64");
}

static void unknown_features_are_refused_by_name(void **state)
{
    (void)state;
    struct gguf_build *b = keys(NULL);
    gguf_build_u32(b, "llama.expert_count", 8);
    refused(b, -ENOTSUP, "dir/m.gguf: llama.expert_count: 8, models with this cannot be run yet");
    b = keys(NULL);
    gguf_build_bool(b, "llama.attention.causal", false);
    refused(b, -ENOTSUP, "dir/m.gguf: llama.attention.causal: 0, models with this cannot be run yet");
    b = keys(NULL);
    gguf_build_f32(b, "llama.logit_scale", 0.5f);
    refused(b, -ENOTSUP, "dir/m.gguf: llama.logit_scale: 0.5, models with this cannot be run yet");
    b = keys(NULL);
    gguf_build_str(b, "llama.rope.scaling.type", "dynamic");
    refused(b, -ENOTSUP, "dir/m.gguf: llama.rope.scaling.type: 'dynamic', expected none, linear, yarn or longrope");
}

static void architectures_are_plain_words(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "a b", "ll\x01ma", "an-architecture-name-of-32-bytes"};
    static const char *const shown[] = {"", "a b", "ll?ma", "an-architecture-name-of-32-bytes"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[256] = "dir/m.gguf: general.architecture: '";
        struct gguf_build *b = keys("general.architecture");
        gguf_build_str(b, "general.architecture", bad[i]);
        refused(b, -EINVAL, strcat(strcat(text, shown[i]), "', expected 1 to 31 letters, digits, '-', '_' or '.'"));
    }
}

static void the_random_llama_is_a_valid_model(void **state)
{
    (void)state;
    for (uint32_t type = 0; rn_dtype_find(type); type++) {
        if (!rn_dtype_find(type)->dequant) {
            continue;
        }
        struct gguf_build *b = gguf_build_create();
        gguf_build_llama(b, &(struct gguf_llama){.type = (enum rn_dtype)type, .has_biases = true, .has_rope_freqs = true, .n_vocab = 320});
        struct rn_hparams h = accepted(b);
        assert_true(h.n_layers == 2 && h.d_model == 64 && h.n_vocab == 320 && h.head_dim == 32 && h.n_kv_heads == 2);
    }
}

static void the_real_model_has_its_sizes(void **state)
{
    (void)state;
    const char *path = getenv("RUNNEL_TEST_MODEL");
    if (!path || !*path) {
        print_message("skipped: RUNNEL_TEST_MODEL is not set\n");
        skip();
    }
    struct rn_gguf *g = NULL;
    struct rn_err err = {0};
    struct rn_hparams h;
    if (rn_gguf_open(&g, path, &err) || rn_hparams_read(&h, g, &err)) {
        fail_msg("%s", err.text);
    }
    assert_string_equal(h.arch, "llama");
    assert_true(h.n_layers == 30 && h.d_model == 576 && h.d_ff == 1536 && h.n_heads == 9 && h.n_kv_heads == 3 && h.head_dim == 64);
    assert_true(h.n_vocab == 49152 && h.n_ctx_train == 8192 && h.n_rot == 64 && h.rope_base == 100000.0f && h.rope_factor == 1.0f);
    rn_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_take_their_defaults),
        cmocka_unit_test(keys_are_read),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(values_per_layer_may_be_an_array_of_equal_ones),
        cmocka_unit_test(older_scaling_keys_mean_linear),
        cmocka_unit_test(missing_keys_are_named),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(floats_out_of_range_are_refused),
        cmocka_unit_test(unknown_features_are_refused_by_name),
        cmocka_unit_test(architectures_are_plain_words),
        cmocka_unit_test(the_random_llama_is_a_valid_model),
        cmocka_unit_test(the_real_model_has_its_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
