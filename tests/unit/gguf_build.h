/* Builds GGUF files in memory, right ones and broken ones, for tests.
 *
 *   struct gguf_build *b = gguf_build_create();
 *   gguf_build_str(b, "general.architecture", "llama");
 *   gguf_build_random(b, "token_embd.weight", RN_DTYPE_Q4_1, 64, 512, 0.05f);
 *   struct gguf_bytes f = gguf_build_bytes(b);          // valid until the next call on b
 *   gguf_build_destroy(b);
 *
 * Pairs and tensors appear in the order of the calls. Out of memory ends the test program. Not thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/model/gguf.h"

struct gguf_build;

struct gguf_bytes {
    const uint8_t *data;
    size_t len;
    size_t header_len; /* up to the end of the tensor table, before the padding */
};

struct gguf_build *gguf_build_create(void);
void gguf_build_destroy(struct gguf_build *b);

struct gguf_bytes gguf_build_bytes(struct gguf_build *b);
/* Writes the file; false: it could not be written. */
bool gguf_build_write(struct gguf_build *b, const char *path);

/* Pairs. */
void gguf_build_u32(struct gguf_build *b, const char *key, uint32_t v);
void gguf_build_f32(struct gguf_build *b, const char *key, float v);
void gguf_build_bool(struct gguf_build *b, const char *key, bool v);
void gguf_build_str(struct gguf_build *b, const char *key, const char *s);
void gguf_build_u32s(struct gguf_build *b, const char *key, const uint32_t *v, uint64_t n);
void gguf_build_i32s(struct gguf_build *b, const char *key, const int32_t *v, uint64_t n);
void gguf_build_f32s(struct gguf_build *b, const char *key, const float *v, uint64_t n);
void gguf_build_strs(struct gguf_build *b, const char *key, const char *const *v, uint64_t n);
/* A pair of any type number with the bytes of its value as they shall lie in the file. */
void gguf_build_raw(struct gguf_build *b, const char *key, uint32_t type, const void *value, size_t bytes);

/* Tensors. rows = 0: a vector (one dimension). The bytes are those of the type. */
void gguf_build_tensor(struct gguf_build *b, const char *name, enum rn_dtype type, uint32_t cols, uint32_t rows, const void *data);
/* The type, or what people's files hold in its place where rows do not divide by its block: Q5_0, Q5_1 or Q8_0. */
enum rn_dtype gguf_build_fitting(enum rn_dtype type, uint32_t cols);
/* Random normal values times scale, quantised to the type (any that can be loaded). The sequence of a builder is always the same
 * unless gguf_build_seed is called. */
void gguf_build_random(struct gguf_build *b, const char *name, enum rn_dtype type, uint32_t cols, uint32_t rows, float scale);
/* Random values around a centre, F32: norms, biases. */
void gguf_build_random_vector(struct gguf_build *b, const char *name, uint32_t len, float centre, float scale);
void gguf_build_seed(struct gguf_build *b, uint64_t seed);
/* An entry with fields of the caller's choice, followed by `bytes` bytes of data (padded). */
void gguf_build_raw_tensor(struct gguf_build *b, const void *name, size_t name_len, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                           uint64_t offset, const void *data, size_t bytes);
/* Offset that the next tensor must have. */
uint64_t gguf_build_next_offset(const struct gguf_build *b);

/* Header fields, for broken files. Defaults: 3, the numbers of calls, 32 (and no general.alignment key). */
void gguf_build_version(struct gguf_build *b, uint32_t version);
void gguf_build_counts(struct gguf_build *b, uint64_t n_tensors, uint64_t n_kvs);
/* Pads by this; the caller adds the key general.alignment. Before the first tensor. */
void gguf_build_alignment(struct gguf_build *b, uint32_t alignment);

/* A whole random model of family llama, or of one that differs by the traits below. Zero fields take the values in the comments. */
struct gguf_llama {
    const char *arch;       /* "llama"; or "gemma3": head norms, post-norms, sliding window; "qwen2": q, k, v biases; "qwen3": head norms */
    uint32_t sliding;       /* gemma3: 40; every sixth layer is global */
    uint32_t n_layers;      /* 2 */
    uint32_t d_model;       /* 64 */
    uint32_t d_ff;          /* 96 */
    uint32_t n_heads;       /* 4 */
    uint32_t n_kv_heads;    /* 2 */
    uint32_t head_dim;      /* 32 */
    uint32_t n_vocab;       /* 288; with a tokenizer at least 260 */
    uint32_t n_ctx;         /* 8192 */
    float rope_base;        /* 10000 */
    enum rn_dtype type;     /* of the matrices, or gguf_build_fitting; RN_DTYPE_F32 is 0 */
    enum rn_dtype mixed;    /* of attn_v and ffn_up instead; 0: the same as all */
    bool has_biases;        /* q, k, v, o, gate, up, down */
    bool has_rope_freqs;    /* rope_freqs.weight with divisors 1..8 */
    bool has_output;        /* output.weight; else tied to token_embd */
    bool has_no_tokenizer;  /* leave the tokenizer's keys out */
    uint64_t seed;
};
void gguf_build_llama(struct gguf_build *b, const struct gguf_llama *params);

/* Byte-level BPE without merges, pre-tokenizer gpt-2: ids 0..255 are the bytes in GPT-2's order of characters ('!' is 0), then
 * 256 <|endoftext|> (bos), 257 <|im_start|>, 258 <|im_end|> (eos), then unused ones up to n_vocab. Chat template: ChatML. */
void gguf_build_tokenizer(struct gguf_build *b, uint32_t n_vocab);
