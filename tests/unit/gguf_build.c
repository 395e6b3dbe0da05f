#include "tests/unit/gguf_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/mem.h"

struct gguf_build {
    struct rn_buf kvs, entries, data, whole;
    uint64_t n_kvs, n_tensors;
    bool has_counts;
    uint64_t count_tensors, count_kvs; // written instead when has_counts
    uint32_t version, alignment;
    uint64_t random;
};

static void put(struct rn_buf *b, const void *data, size_t len)
{
    if (rn_buf_add(b, data, len)) {
        fputs("gguf_build: out of memory\n", stderr);
        exit(99);
    }
}

static void put_u32(struct rn_buf *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static void put_u64(struct rn_buf *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static void put_str(struct rn_buf *b, const void *s, size_t len)
{
    put_u64(b, len);
    put(b, s, len);
}

static void pad(struct rn_buf *b, uint32_t alignment)
{
    while (b->len % alignment) {
        put(b, "", 1);
    }
}

struct gguf_build *gguf_build_create(void)
{
    struct gguf_build *b = rn_mem_alloc(1, sizeof *b);
    if (!b) {
        exit(99);
    }
    b->version = 3;
    b->alignment = 32;
    gguf_build_seed(b, 1);
    return b;
}

void gguf_build_destroy(struct gguf_build *b)
{
    if (b) {
        rn_buf_finish(&b->kvs);
        rn_buf_finish(&b->entries);
        rn_buf_finish(&b->data);
        rn_buf_finish(&b->whole);
        rn_mem_free(b);
    }
}

struct gguf_bytes gguf_build_bytes(struct gguf_build *b)
{
    struct rn_buf *w = &b->whole;
    rn_buf_clear(w);
    put(w, "GGUF", 4);
    put_u32(w, b->version);
    put_u64(w, b->has_counts ? b->count_tensors : b->n_tensors);
    put_u64(w, b->has_counts ? b->count_kvs : b->n_kvs);
    put(w, b->kvs.data, b->kvs.len);
    put(w, b->entries.data, b->entries.len);
    size_t header_len = w->len;
    pad(w, b->alignment);
    put(w, b->data.data, b->data.len);
    return (struct gguf_bytes){(const uint8_t *)w->data, w->len, header_len};
}

bool gguf_build_write(struct gguf_build *b, const char *path)
{
    struct gguf_bytes f = gguf_build_bytes(b);
    FILE *out = fopen(path, "wb");
    if (!out) {
        return false;
    }
    bool is_written = fwrite(f.data, 1, f.len, out) == f.len;
    return fclose(out) == 0 && is_written;
}

void gguf_build_raw(struct gguf_build *b, const char *key, uint32_t type, const void *value, size_t bytes)
{
    put_str(&b->kvs, key, strlen(key));
    put_u32(&b->kvs, type);
    put(&b->kvs, value, bytes);
    b->n_kvs++;
}

void gguf_build_u32(struct gguf_build *b, const char *key, uint32_t v)
{
    gguf_build_raw(b, key, RN_GGUF_U32, &v, sizeof v);
}

void gguf_build_f32(struct gguf_build *b, const char *key, float v)
{
    gguf_build_raw(b, key, RN_GGUF_F32, &v, sizeof v);
}

void gguf_build_bool(struct gguf_build *b, const char *key, bool v)
{
    gguf_build_raw(b, key, RN_GGUF_BOOL, &(uint8_t){v}, 1);
}

void gguf_build_str(struct gguf_build *b, const char *key, const char *s)
{
    gguf_build_raw(b, key, RN_GGUF_STR, NULL, 0);
    put_str(&b->kvs, s, strlen(s));
}

static void put_array(struct gguf_build *b, const char *key, uint32_t type, const void *v, uint64_t n, size_t each)
{
    gguf_build_raw(b, key, RN_GGUF_ARR, &type, sizeof type);
    put_u64(&b->kvs, n);
    put(&b->kvs, v, (size_t)n * each);
}

void gguf_build_u32s(struct gguf_build *b, const char *key, const uint32_t *v, uint64_t n)
{
    put_array(b, key, RN_GGUF_U32, v, n, sizeof *v);
}

void gguf_build_i32s(struct gguf_build *b, const char *key, const int32_t *v, uint64_t n)
{
    put_array(b, key, RN_GGUF_I32, v, n, sizeof *v);
}

void gguf_build_f32s(struct gguf_build *b, const char *key, const float *v, uint64_t n)
{
    put_array(b, key, RN_GGUF_F32, v, n, sizeof *v);
}

void gguf_build_strs(struct gguf_build *b, const char *key, const char *const *v, uint64_t n)
{
    put_array(b, key, RN_GGUF_STR, NULL, n, 0);
    for (uint64_t i = 0; i < n; i++) {
        put_str(&b->kvs, v[i], strlen(v[i]));
    }
}

void gguf_build_raw_tensor(struct gguf_build *b, const void *name, size_t name_len, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                           uint64_t offset, const void *data, size_t bytes)
{
    put_str(&b->entries, name, name_len);
    put_u32(&b->entries, n_dims);
    put(&b->entries, ne, n_dims * sizeof *ne);
    put_u32(&b->entries, type);
    put_u64(&b->entries, offset);
    put(&b->data, data, bytes);
    pad(&b->data, b->alignment);
    b->n_tensors++;
}

uint64_t gguf_build_next_offset(const struct gguf_build *b)
{
    return b->data.len;
}

void gguf_build_tensor(struct gguf_build *b, const char *name, enum rn_dtype type, uint32_t cols, uint32_t rows, const void *data)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    size_t bytes = (size_t)(cols / info->block_len) * info->block_bytes * (rows ? rows : 1);
    uint64_t ne[2] = {cols, rows};
    gguf_build_raw_tensor(b, name, strlen(name), rows ? 2 : 1, ne, type, b->data.len, data, bytes);
}

void gguf_build_seed(struct gguf_build *b, uint64_t seed)
{
    b->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
}

// splitmix64, 24 bits of it as a float in (0, 1).
static float uniform(struct gguf_build *b)
{
    uint64_t z = b->random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return ((float)((z ^ z >> 31) >> 40) + 0.5f) * 0x1p-24f;
}

// Sum of four uniforms, centred, variance 1: near enough to normal, and the same on every machine.
static float normal(struct gguf_build *b)
{
    return (uniform(b) + uniform(b) + uniform(b) + uniform(b) - 2.0f) * 1.7320508f;
}

static void put_f16(uint8_t *dst, float v)
{
    uint16_t h = rn_f32_to_f16(v);
    memcpy(dst, &h, sizeof h);
}

static uint8_t clamp_code(float v, int top)
{
    long q = lrintf(v);
    return (uint8_t)(q < 0 ? 0 : q > top ? top : q);
}

static float greatest(const float *x, uint32_t n)
{
    float amax = 0;
    for (uint32_t i = 0; i < n; i++) {
        amax = fmaxf(amax, fabsf(x[i]));
    }
    return amax;
}

static void range(const float *x, uint32_t n, float *ret_min, float *ret_max)
{
    *ret_min = *ret_max = x[0];
    for (uint32_t i = 0; i < n; i++) {
        *ret_min = fminf(*ret_min, x[i]);
        *ret_max = fmaxf(*ret_max, x[i]);
    }
}

static void quantise_f32(const float *x, uint8_t *dst)
{
    memcpy(dst, x, sizeof *x);
}

static void quantise_f16(const float *x, uint8_t *dst)
{
    put_f16(dst, *x);
}

static void quantise_bf16(const float *x, uint8_t *dst)
{
    memcpy(dst, (const uint8_t *)x + 2, 2); // the upper half
}

static void quantise_q8_0(const float *x, uint8_t *dst)
{
    float amax = greatest(x, 32);
    put_f16(dst, amax / 127);
    for (int i = 0; i < 32; i++) {
        dst[2 + i] = (uint8_t)(int8_t)(amax > 0 ? lrintf(x[i] / amax * 127) : 0);
    }
}

// 32 codes: fifth bits if there are any, then nibbles.
static void put_codes(const uint8_t *code, int bits, uint8_t *dst)
{
    uint8_t *high = dst, *qs = bits == 5 ? dst + 4 : dst;
    memset(high, 0, bits == 5 ? 4 : 0);
    for (int i = 0; i < 32 && bits == 5; i++) {
        high[i / 8] |= (uint8_t)(code[i] >> 4 << (i % 8));
    }
    for (int i = 0; i < 16; i++) {
        qs[i] = (uint8_t)((code[i] & 15) | code[i + 16] << 4);
    }
}

static void quantise_simple(const float *x, int bits, bool has_min, uint8_t *dst)
{
    uint8_t code[32];
    float min, max, steps = (float)(1 << bits);
    range(x, 32, &min, &max);
    float d = has_min ? (max - min) / (steps - 1) : greatest(x, 32) / (steps / 2), zero = has_min ? -min : steps / 2 * d;
    for (int i = 0; i < 32; i++) {
        code[i] = clamp_code(d > 0 ? (x[i] + zero) / d : 0, (1 << bits) - 1);
    }
    put_f16(dst, d);
    if (has_min) {
        put_f16(dst + 2, min);
    }
    put_codes(code, bits, dst + (has_min ? 4 : 2));
}

static void quantise_q4_0(const float *x, uint8_t *dst)
{
    quantise_simple(x, 4, false, dst);
}

static void quantise_q4_1(const float *x, uint8_t *dst)
{
    quantise_simple(x, 4, true, dst);
}

static void quantise_q5_0(const float *x, uint8_t *dst)
{
    quantise_simple(x, 5, false, dst);
}

static void quantise_q5_1(const float *x, uint8_t *dst)
{
    quantise_simple(x, 5, true, dst);
}

// Nibbles of the nearest values d * values[code].
static void put_nearest(const float *x, float d, const int8_t values[16], uint8_t *dst)
{
    uint8_t code[32] = {0};
    for (int i = 0; i < 32; i++) {
        for (uint8_t k = 1; k < 16; k++) {
            if (fabsf(x[i] - d * values[k]) < fabsf(x[i] - d * values[code[i]])) {
                code[i] = k;
            }
        }
    }
    put_codes(code, 4, dst);
}

static void quantise_iq4_nl(const float *x, uint8_t *dst)
{
    float d = greatest(x, 32) / 127;
    put_f16(dst, d);
    put_nearest(x, d, rn_iq4_nl_values, dst + 2);
}

static void quantise_mxfp4(const float *x, uint8_t *dst)
{
    int exponent;
    (void)frexpf(greatest(x, 32) / 12, &exponent);
    dst[0] = (uint8_t)(128 + exponent);
    put_nearest(x, ldexpf(1, exponent), rn_mxfp4_values, dst + 1);
}

// Q4_K and Q5_K: 8 groups, scales and minima of 6 bits.
static void quantise_k(const float *x, int bits, uint8_t *dst)
{
    const float top = (float)((1 << bits) - 1);
    float scale[8], min[8], max;
    uint8_t sc[8], mn[8], *packed = dst + 4, *high = dst + 16, *qs = bits == 5 ? high + 32 : high;
    for (int g = 0; g < 8; g++) {
        range(x + 32 * g, 32, &min[g], &max);
        min[g] = fmaxf(0, -min[g]);
        scale[g] = (max + min[g]) / top;
    }
    const float d = greatest(scale, 8) / 63, dmin = greatest(min, 8) / 63;
    put_f16(dst, d);
    put_f16(dst + 2, dmin);
    memset(packed, 0, (size_t)(qs - packed));
    for (int g = 0; g < 8; g++) {
        sc[g] = clamp_code(d > 0 ? scale[g] / d : 0, 63);
        mn[g] = clamp_code(dmin > 0 ? min[g] / dmin : 0, 63);
        for (int i = 0; i < 32; i++) {
            float step = d * sc[g];
            uint8_t code = clamp_code(step > 0 ? (x[32 * g + i] + dmin * mn[g]) / step : 0, (1 << bits) - 1), *q = &qs[g / 2 * 32 + i];
            *q = (uint8_t)(g % 2 ? *q | code << 4 : code & 15);
            high[bits == 5 ? i : 0] |= (uint8_t)(bits == 5 ? code >> 4 << g : 0);
        }
    }
    for (int g = 0; g < 4; g++) {
        packed[g] = (uint8_t)(sc[g] | sc[g + 4] >> 4 << 6);
        packed[g + 4] = (uint8_t)(mn[g] | mn[g + 4] >> 4 << 6);
        packed[g + 8] = (uint8_t)((sc[g + 4] & 15) | mn[g + 4] << 4);
    }
}

static void quantise_q4_k(const float *x, uint8_t *dst)
{
    quantise_k(x, 4, dst);
}

static void quantise_q5_k(const float *x, uint8_t *dst)
{
    quantise_k(x, 5, dst);
}

// 16 scales; every other one is negative.
static void quantise_q6_k(const float *x, uint8_t *dst)
{
    const float d = greatest(x, 256) / 32 / 127;
    memset(dst, 0, 192);
    put_f16(dst + 208, d);
    for (int c = 0; c < 256; c++) {
        float amax = greatest(x + c / 16 * 16, 16);
        long sc = (c / 16 % 2 ? -1 : 1) * (d > 0 ? lrintf(amax / 32 / d) : 1);
        uint8_t code = clamp_code(sc ? x[c] / (d * (float)sc) + 32 : 32, 63);
        int half = c / 128, k = c % 128 / 32, l = c % 32;
        dst[half * 64 + k % 2 * 32 + l] |= (uint8_t)((code & 15) << (k / 2 * 4));
        dst[128 + half * 32 + l] |= (uint8_t)(code >> 4 << (2 * k));
        dst[192 + c / 16] = (uint8_t)(int8_t)sc;
    }
}

// One block of the type from its elements.
static void (*const quantise[])(const float *x, uint8_t *dst) = {
    [RN_DTYPE_F32] = quantise_f32,     [RN_DTYPE_F16] = quantise_f16,   [RN_DTYPE_Q4_0] = quantise_q4_0,
    [RN_DTYPE_Q4_1] = quantise_q4_1,   [RN_DTYPE_Q5_0] = quantise_q5_0, [RN_DTYPE_Q5_1] = quantise_q5_1,
    [RN_DTYPE_Q8_0] = quantise_q8_0,   [RN_DTYPE_Q4_K] = quantise_q4_k, [RN_DTYPE_Q5_K] = quantise_q5_k,
    [RN_DTYPE_Q6_K] = quantise_q6_k,   [RN_DTYPE_BF16] = quantise_bf16, [RN_DTYPE_IQ4_NL] = quantise_iq4_nl,
    [RN_DTYPE_MXFP4] = quantise_mxfp4,
};

enum rn_dtype gguf_build_fitting(enum rn_dtype type, uint32_t cols)
{
    if (cols % rn_dtype_find(type)->block_len == 0) {
        return type;
    }
    return type == RN_DTYPE_Q4_K ? RN_DTYPE_Q5_0 : type == RN_DTYPE_Q5_K ? RN_DTYPE_Q5_1 : RN_DTYPE_Q8_0;
}

void gguf_build_random(struct gguf_build *b, const char *name, enum rn_dtype type, uint32_t cols, uint32_t rows, float scale)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    size_t n_blocks = (size_t)(cols / info->block_len) * (rows ? rows : 1);
    uint8_t *data = rn_mem_alloc(n_blocks, info->block_bytes);
    if (!data) {
        exit(99);
    }
    for (size_t i = 0; i < n_blocks; i++) {
        float x[256];
        for (uint32_t j = 0; j < info->block_len; j++) {
            x[j] = normal(b) * scale;
        }
        quantise[type](x, data + i * info->block_bytes);
    }
    gguf_build_tensor(b, name, type, cols, rows, data);
    rn_mem_free(data);
}

void gguf_build_random_vector(struct gguf_build *b, const char *name, uint32_t len, float centre, float scale)
{
    float *x = rn_mem_alloc(len, sizeof *x);
    if (!x) {
        exit(99);
    }
    for (uint32_t i = 0; i < len; i++) {
        x[i] = centre + normal(b) * scale;
    }
    gguf_build_tensor(b, name, RN_DTYPE_F32, len, 0, x);
    rn_mem_free(x);
}

void gguf_build_version(struct gguf_build *b, uint32_t version)
{
    b->version = version;
}

void gguf_build_counts(struct gguf_build *b, uint64_t n_tensors, uint64_t n_kvs)
{
    b->has_counts = true;
    b->count_tensors = n_tensors;
    b->count_kvs = n_kvs;
}

void gguf_build_alignment(struct gguf_build *b, uint32_t alignment)
{
    b->alignment = alignment;
}

static bool is_arch(const struct gguf_llama *p, const char *arch)
{
    return strcmp(p->arch, arch) == 0;
}

static void add_norm(struct gguf_build *b, uint32_t layer, const char *what, uint32_t len)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, what);
    gguf_build_random_vector(b, name, len, 1.0f, 0.1f);
}

// The matrix of one projection with its bias.
static void add_projection(struct gguf_build *b, const struct gguf_llama *p, uint32_t layer, const char *what, uint32_t cols, uint32_t rows)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, what);
    enum rn_dtype type = p->mixed && strstr("attn_v ffn_up", what) ? p->mixed : p->type;
    gguf_build_random(b, name, gguf_build_fitting(type, cols), cols, rows, 1.0f / sqrtf((float)cols));
    if (p->has_biases || (is_arch(p, "qwen2") && strstr("attn_q attn_k attn_v", what))) {
        snprintf(name, sizeof name, "blk.%u.%s.bias", layer, what);
        gguf_build_random_vector(b, name, rows, 0.0f, 0.1f);
    }
}

static void add_layer(struct gguf_build *b, const struct gguf_llama *p, uint32_t layer)
{
    uint32_t q = p->n_heads * p->head_dim, kv = p->n_kv_heads * p->head_dim;
    add_norm(b, layer, "attn_norm", p->d_model);
    add_projection(b, p, layer, "attn_q", p->d_model, q);
    add_projection(b, p, layer, "attn_k", p->d_model, kv);
    add_projection(b, p, layer, "attn_v", p->d_model, kv);
    if (is_arch(p, "gemma3") || is_arch(p, "qwen3")) {
        add_norm(b, layer, "attn_q_norm", p->head_dim);
        add_norm(b, layer, "attn_k_norm", p->head_dim);
    }
    add_projection(b, p, layer, "attn_output", q, p->d_model);
    add_norm(b, layer, "ffn_norm", p->d_model);
    add_projection(b, p, layer, "ffn_gate", p->d_model, p->d_ff);
    add_projection(b, p, layer, "ffn_up", p->d_model, p->d_ff);
    add_projection(b, p, layer, "ffn_down", p->d_ff, p->d_model);
    if (is_arch(p, "gemma3")) {
        add_norm(b, layer, "post_attention_norm", p->d_model);
        add_norm(b, layer, "post_ffw_norm", p->d_model);
    }
}

static uint32_t or_default(uint32_t v, uint32_t otherwise)
{
    return v ? v : otherwise;
}

static void put_arch_u32(struct gguf_build *b, const struct gguf_llama *p, const char *suffix, uint32_t v)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", p->arch, suffix);
    gguf_build_u32(b, key, v);
}

static void put_arch_f32(struct gguf_build *b, const struct gguf_llama *p, const char *suffix, float v)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", p->arch, suffix);
    gguf_build_f32(b, key, v);
}

void gguf_build_llama(struct gguf_build *b, const struct gguf_llama *params)
{
    struct gguf_llama p = *params;
    p.arch = p.arch ? p.arch : "llama";
    p.n_layers = or_default(p.n_layers, 2);
    p.d_model = or_default(p.d_model, 64);
    p.d_ff = or_default(p.d_ff, 96);
    p.n_heads = or_default(p.n_heads, 4);
    p.n_kv_heads = or_default(p.n_kv_heads, 2);
    p.head_dim = or_default(p.head_dim, 32);
    p.n_vocab = or_default(p.n_vocab, 288);
    gguf_build_seed(b, p.seed);
    gguf_build_str(b, "general.architecture", p.arch);
    gguf_build_str(b, "general.name", "tiny random llama");
    put_arch_u32(b, &p, "block_count", p.n_layers);
    put_arch_u32(b, &p, "context_length", or_default(p.n_ctx, 8192));
    put_arch_u32(b, &p, "embedding_length", p.d_model);
    put_arch_u32(b, &p, "feed_forward_length", p.d_ff);
    put_arch_u32(b, &p, "attention.head_count", p.n_heads);
    put_arch_u32(b, &p, "attention.head_count_kv", p.n_kv_heads);
    put_arch_u32(b, &p, "attention.key_length", p.head_dim);
    put_arch_u32(b, &p, "attention.value_length", p.head_dim);
    put_arch_u32(b, &p, "rope.dimension_count", p.head_dim);
    put_arch_f32(b, &p, "rope.freq_base", p.rope_base > 0 ? p.rope_base : 10000.0f);
    put_arch_f32(b, &p, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (is_arch(&p, "gemma3")) {
        put_arch_u32(b, &p, "attention.sliding_window", or_default(p.sliding, 40));
        put_arch_f32(b, &p, "rope.freq_base_swa", 1000.0f);
    }
    if (!p.has_no_tokenizer) {
        gguf_build_tokenizer(b, p.n_vocab);
    }
    gguf_build_random(b, "token_embd.weight", gguf_build_fitting(p.type, p.d_model), p.d_model, p.n_vocab, 1.0f);
    if (p.has_rope_freqs) {
        float freqs[512];
        for (uint32_t i = 0; i < p.head_dim / 2 && i < 512; i++) {
            freqs[i] = 1.0f + 7.0f * (float)i / (float)(p.head_dim / 2);
        }
        gguf_build_tensor(b, "rope_freqs.weight", RN_DTYPE_F32, p.head_dim / 2, 0, freqs);
    }
    for (uint32_t il = 0; il < p.n_layers; il++) {
        add_layer(b, &p, il);
    }
    gguf_build_random_vector(b, "output_norm.weight", p.d_model, 1.0f, 0.1f);
    if (p.has_output) {
        gguf_build_random(b, "output.weight", gguf_build_fitting(p.type, p.d_model), p.d_model, p.n_vocab, 1.0f / sqrtf((float)p.d_model));
    }
}

// GPT-2 writes printable bytes as themselves and the other 68 as U+0100 and up, in byte order.
static bool is_printable(uint32_t byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static void put_token(struct rn_buf *b, uint32_t code_point)
{
    char utf8[2] = {(char)(0xc0 | code_point >> 6), (char)(0x80 | (code_point & 63))};
    if (code_point < 0x80) {
        put_str(b, &(char){(char)code_point}, 1);
    } else {
        put_str(b, utf8, 2);
    }
}

void gguf_build_tokenizer(struct gguf_build *b, uint32_t n_vocab)
{
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    gguf_build_str(b, "tokenizer.ggml.model", "gpt2");
    gguf_build_str(b, "tokenizer.ggml.pre", "gpt-2");
    put_array(b, "tokenizer.ggml.tokens", RN_GGUF_STR, NULL, n_vocab, 0);
    for (uint32_t byte = 0; byte < 256; byte++) {
        if (is_printable(byte)) {
            put_token(&b->kvs, byte);
        }
    }
    for (uint32_t i = 0; i < 68; i++) {
        put_token(&b->kvs, 0x100 + i);
    }
    for (uint32_t id = 256; id < n_vocab; id++) {
        char unused[32];
        const char *text = unused;
        snprintf(unused, sizeof unused, "<|unused_%u|>", id);
        text = id < 259 ? specials[id - 256] : text;
        put_str(&b->kvs, text, strlen(text));
    }
    put_array(b, "tokenizer.ggml.token_type", RN_GGUF_I32, NULL, n_vocab, 0);
    for (uint32_t id = 0; id < n_vocab; id++) {
        put_u32(&b->kvs, id < 256 ? 1 : id < 259 ? 3 : 5);
    }
    gguf_build_strs(b, "tokenizer.ggml.merges", NULL, 0);
    gguf_build_u32(b, "tokenizer.ggml.bos_token_id", 256);
    gguf_build_u32(b, "tokenizer.ggml.eos_token_id", 258);
    gguf_build_bool(b, "tokenizer.ggml.add_bos_token", false);
    gguf_build_str(b, "tokenizer.chat_template",
                   "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
                   "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
}
