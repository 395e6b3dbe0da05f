/* A model file looked into without loading it: what its keys say, what its tensors add up to, and whether the loader would take it.
 *
 * Keys are read one by one and may be missing or of a wrong type: that member is left out. Whether the model runs is found by the steps of
 * the loader up to the weights, which are not touched. */
#include "runtime/info.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/arch.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/model/gguf.h"
#include "runtime/model/hparams.h"
#include "runtime/tensor/backend.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/kv.h"
#include "runtime/text.h"

#define WINDOW 4096u     // the default N
#define MAX_TEXT 256u    // bytes of a text from the file that are shown
#define MAX_LIST 1024u   // layers whose sizes are listed
#define MAX_TYPES 64u    // type numbers go up to 42

struct info {
    const struct rn_gguf *g;
    char arch[32];              // "" where the file names none
    json_t *o;
    bool failed;                // out of memory
    struct rn_program *program; // NULL: cannot be run
};

// Takes v; NULL is "no memory".
static void put(struct info *in, json_t *o, const char *key, json_t *v)
{
    in->failed = json_object_set_new(o, key, v) < 0 || in->failed;
}

static json_t *number(uint64_t v)
{
    return json_integer((json_int_t)v);
}

// Text from the file: what is not printable ASCII becomes '?'.
static json_t *shown(struct rn_gguf_str s)
{
    char text[MAX_TEXT];
    size_t n = s.len < MAX_TEXT ? s.len : MAX_TEXT;
    for (size_t i = 0; i < n; i++) {
        text[i] = s.data[i] >= ' ' && s.data[i] <= '~' ? s.data[i] : '?';
    }
    return json_stringn(text, n);
}

// The same for text of ours that may have a path in it: as it is if it is UTF-8.
static json_t *said(const char *text)
{
    json_t *v = json_string(text);
    return v ? v : shown((struct rn_gguf_str){text, strlen(text)});
}

static bool get_str(const struct info *in, const char *key, struct rn_gguf_str *ret)
{
    return rn_gguf_get_str(in->g, key, ret, /*err=*/NULL) == 1;
}

static const char *key_of(const struct info *in, char key[96], const char *suffix)
{
    snprintf(key, 96, "%s.%s", in->arch, suffix);
    return key;
}

/* ---- Numbers of the architecture --------------------------------------------------------------------------------------------------- */

// A number; a list where layers differ, one number where they do not. NULL: not there.
static json_t *read_number(const struct info *in, const char *suffix)
{
    char key[96];
    uint32_t v;
    struct rn_gguf_array a;
    if (rn_gguf_get_u32(in->g, key_of(in, key, suffix), &v, NULL) == 1) {
        return number(v);
    }
    if ((rn_gguf_get_array(in->g, key, RN_GGUF_U32, &a, NULL) != 1 && rn_gguf_get_array(in->g, key, RN_GGUF_I32, &a, NULL) != 1) ||
        a.n == 0) {
        return NULL;
    }
    json_t *list = json_array();
    bool differ = false;
    for (uint64_t i = 0; list && i < a.n && i < MAX_LIST; i++) {
        differ = differ || rn_gguf_array_u32(&a, i) != rn_gguf_array_u32(&a, 0);
        json_array_append_new(list, number(rn_gguf_array_u32(&a, i))); // one that is missing for want of memory shows below
    }
    if (list && !differ) {
        json_decref(list);
        return number(rn_gguf_array_u32(&a, 0));
    }
    return list;
}

static void put_number(struct info *in, json_t *o, const char *key, const char *suffix)
{
    json_t *v = read_number(in, suffix);
    if (v) {
        put(in, o, key, v);
    }
}

static void put_float(struct info *in, json_t *o, const char *name, const char *suffix)
{
    char key[96];
    float v;
    if (rn_gguf_get_f32(in->g, key_of(in, key, suffix), &v, NULL) == 1) {
        put(in, o, name, json_real((double)v));
    }
}

static uint64_t number_in(const json_t *o, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(o, key));
    return v > 0 ? (uint64_t)v : 0;
}

static void put_sizes(struct info *in)
{
    json_t *o = json_object();
    put_number(in, o, "layers", "block_count");
    put_number(in, o, "d_model", "embedding_length");
    put_number(in, o, "d_ff", "feed_forward_length");
    put_number(in, o, "heads", "attention.head_count");
    put_number(in, o, "kv_heads", "attention.head_count_kv");
    put_number(in, o, "head_dim", "attention.key_length");
    uint64_t heads = number_in(o, "heads");
    if (heads && !json_object_get(o, "kv_heads")) {
        put(in, o, "kv_heads", number(heads));
    }
    if (heads && !json_object_get(o, "head_dim") && number_in(o, "d_model") % heads == 0) {
        put(in, o, "head_dim", number(number_in(o, "d_model") / heads));
    }
    put_number(in, o, "experts", "expert_count");
    put_number(in, o, "experts_used", "expert_used_count");
    const struct rn_tensor *t = rn_gguf_tensor(in->g, "token_embd.weight");
    if (t) {
        put(in, o, "vocabulary", number(t->rows));
    }
    put(in, in->o, "sizes", o);
    put_number(in, in->o, "context_length", "context_length");
    put_number(in, in->o, "sliding_window", "attention.sliding_window");
}

static void put_rope(struct info *in)
{
    json_t *o = json_object();
    char key[96];
    struct rn_gguf_str scaling;
    put_float(in, o, "base", "rope.freq_base");
    put_float(in, o, "base_window", "rope.freq_base_swa");
    put_number(in, o, "dimensions", "rope.dimension_count");
    put_float(in, o, "factor", "rope.scaling.factor");
    put_number(in, o, "original_context_length", "rope.scaling.original_context_length");
    if (get_str(in, key_of(in, key, "rope.scaling.type"), &scaling)) {
        put(in, o, "scaling", shown(scaling));
    }
    put(in, o, "divisors", json_boolean(rn_gguf_tensor(in->g, "rope_freqs.weight") != NULL));
    put(in, in->o, "rope", o);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------------------------- */

struct type_sum {
    const char *name;
    uint64_t n_tensors, n_params, bytes;
};

static int most_bytes_first(const void *a, const void *b)
{
    const struct type_sum *x = a, *y = b;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static void put_tensors(struct info *in)
{
    struct type_sum types[MAX_TYPES] = {{0}}, all = {0};
    size_t n = 0;
    for (size_t i = 0; i < rn_gguf_n_tensors(in->g); i++) {
        const struct rn_tensor *t = rn_gguf_tensor_at(in->g, i);
        const struct rn_dtype_info *type = rn_dtype_find(t->type);
        uint64_t params = (uint64_t)t->cols * t->rows;
        struct type_sum *sum = &types[t->type % MAX_TYPES];
        *sum = (struct type_sum){type ? type->name : "?", sum->n_tensors + 1, sum->n_params + params, sum->bytes + t->bytes};
        all = (struct type_sum){NULL, all.n_tensors + 1, all.n_params + params, all.bytes + t->bytes};
    }
    qsort(types, MAX_TYPES, sizeof types[0], most_bytes_first);
    json_t *list = json_array();
    for (; n < MAX_TYPES && types[n].n_tensors; n++) {
        json_t *row = json_pack("{s:s, s:I, s:I, s:I}", "type", types[n].name, "tensors", (json_int_t)types[n].n_tensors, "parameters",
                                (json_int_t)types[n].n_params, "bytes", (json_int_t)types[n].bytes);
        in->failed = json_array_append_new(list, row) < 0 || in->failed;
    }
    put(in, in->o, "parameters", number(all.n_params));
    put(in, in->o, "tensors", json_pack("{s:I, s:I, s:o}", "count", (json_int_t)all.n_tensors, "bytes", (json_int_t)all.bytes, "types", list));
}

/* ---- Text -------------------------------------------------------------------------------------------------------------------------- */

static void put_special(struct info *in, json_t *o)
{
    static const char *const names[] = {"bos", "eos", "eot", "eom", "unknown", "padding"};
    struct rn_gguf_array tokens = {0};
    bool has_tokens = rn_gguf_get_array(in->g, "tokenizer.ggml.tokens", RN_GGUF_STR, &tokens, NULL) == 1;
    json_t *special = json_object();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char key[64];
        uint32_t id;
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", names[i]);
        if (rn_gguf_get_u32(in->g, key, &id, NULL) != 1) {
            continue;
        }
        struct rn_gguf_str text = {"", 0};
        size_t cursor = 0;
        for (uint64_t k = 0; has_tokens && id < tokens.n && k <= id; k++) {
            text = rn_gguf_array_next_str(&tokens, &cursor);
        }
        put(in, special, names[i], json_pack("{s:I, s:o}", "id", (json_int_t)id, "text", shown(text)));
    }
    put(in, o, "special", special);
}

static void put_text(struct info *in)
{
    struct rn_gguf_str s;
    struct rn_gguf_array a;
    bool adds_bos;
    if (get_str(in, "tokenizer.ggml.model", &s)) {
        json_t *o = json_object();
        put(in, o, "model", shown(s));
        if (get_str(in, "tokenizer.ggml.pre", &s)) {
            put(in, o, "pre", shown(s));
        }
        if (rn_gguf_get_array(in->g, "tokenizer.ggml.tokens", RN_GGUF_STR, &a, NULL) == 1) {
            put(in, o, "tokens", number(a.n));
        }
        if (rn_gguf_get_array(in->g, "tokenizer.ggml.merges", RN_GGUF_STR, &a, NULL) == 1) {
            put(in, o, "merges", number(a.n));
        }
        if (rn_gguf_get_bool(in->g, "tokenizer.ggml.add_bos_token", &adds_bos, NULL) == 1) {
            put(in, o, "add_bos", json_boolean(adds_bos));
        }
        put_special(in, o);
        put(in, in->o, "tokenizer", o);
    }
    put(in, in->o, "chat_template", get_str(in, "tokenizer.chat_template", &s) ? number(s.len) : json_null());
}

/* ---- Running it -------------------------------------------------------------------------------------------------------------------- */

static int try_to_run(struct info *in, struct rn_err *err)
{
    struct rn_hparams hp;
    struct rn_text *text = NULL;
    const struct rn_arch *arch = rn_arch_find(in->arch);
    if (!arch) {
        return rn_err_set(err, -ENOTSUP, "the architecture is '%s', known are %s", in->arch, rn_arch_names());
    }
    int r = rn_hparams_read(&hp, in->g, err);
    r = r < 0 ? r : arch->build(&in->program, in->g, &hp, err);
    r = r < 0 ? r : rn_text_create(&text, in->g, err);
    rn_text_destroy(text);
    if (r < 0) {
        rn_program_destroy(in->program);
        in->program = NULL;
    }
    return r;
}

static void put_runs(struct info *in)
{
    struct rn_err err = {0};
    int r = try_to_run(in, &err);
    in->failed = r == -ENOMEM || in->failed;
    put(in, in->o, "runs", json_boolean(r == 0));
    if (r < 0) {
        put(in, in->o, "reason", said(err.text));
    }
}

// Bytes of one token's keys and values in `layers` layers; 0: the heads do not suit the type.
static uint64_t kv_bytes(uint64_t layers, uint64_t kv_heads, uint64_t head_dim, bool q8)
{
    bool suits = rn_kv_suits(q8 ? RN_KV_Q8_0 : RN_KV_F16, head_dim);
    return suits ? layers * kv_heads * 2 * rn_kv_part_bytes(q8, (uint32_t)head_dim) / RN_PAGE_TOKENS : 0;
}

static json_t *null_or_number(uint64_t v)
{
    return v ? number(v) : json_null();
}

/* From the program where there is one, as it knows which layers have a window of their own; else as if all were alike. */
static void put_memory(struct info *in)
{
    const json_t *sizes = json_object_get(in->o, "sizes");
    const struct rn_program *p = in->program;
    uint64_t heads = p ? p->n_kv_heads : number_in(sizes, "kv_heads"), dim = p ? p->head_dim : number_in(sizes, "head_dim");
    uint64_t trained = number_in(in->o, "context_length"), window = trained && trained < WINDOW ? trained : WINDOW, each[2], kv[2] = {0, 0};
    for (int q8 = 0; q8 < 2; q8++) {
        each[q8] = kv_bytes(p ? p->n_layers : number_in(sizes, "layers"), heads, dim, q8);
        for (uint32_t g = 0; p && g < p->n_groups; g++) {
            uint64_t seen = p->groups[g].window && p->groups[g].window < window ? p->groups[g].window : window;
            kv[q8] += seen * kv_bytes(p->groups[g].n_layers, heads, dim, q8);
        }
        kv[q8] = p ? kv[q8] : window * each[q8];
    }
    if (!each[0]) { // sizes that differ between layers, or are not there
        return;
    }
    put(in, in->o, "kv_bytes_per_token", json_pack("{s:o, s:o}", "f16", number(each[0]), "q8_0", null_or_number(each[1])));
    put(in, in->o, "memory",
        json_pack("{s:I, s:I, s:{s:o, s:o}}", "window", (json_int_t)window, "weights",
                  (json_int_t)number_in(json_object_get(in->o, "tensors"), "bytes"), "kv", "f16", number(kv[0]), "q8_0",
                  null_or_number(kv[1])));
}

static void put_decode(struct info *in)
{
    const struct rn_program *p = in->program;
    double bytes = 0, macs = 0;
    for (uint32_t i = 0; p && i < p->n_ops; i++) {
        const struct rn_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->n_parts && op->kind != RN_OP_EMBED; k++) { // of the embedding one row is read
            const struct rn_tensor *w = op->parts[k].weight;
            bytes += (double)w->bytes;
            macs += op->kind == RN_OP_NORM || op->kind == RN_OP_ROPE_KV ? 0 : (double)w->cols * w->rows;
        }
    }
    if (p) {
        put(in, in->o, "decode", json_pack("{s:f, s:f}", "bytes", bytes, "macs", macs));
    }
}

static void put_name(struct info *in, const char *path)
{
    struct rn_gguf_str s;
    put(in, in->o, "file", said(path));
    put(in, in->o, "files", number(rn_gguf_n_parts(in->g)));
    put(in, in->o, "bytes", number(rn_gguf_bytes(in->g)));
    if (get_str(in, "general.architecture", &s)) {
        json_t *arch = shown(s);
        snprintf(in->arch, sizeof in->arch, "%s", arch ? json_string_value(arch) : "");
        put(in, in->o, "architecture", arch);
    }
    if (get_str(in, "general.name", &s)) {
        put(in, in->o, "name", shown(s));
    }
}

int rn_info_model(json_t **ret, const char *path, struct rn_err *err)
{
    struct rn_gguf *g = NULL;
    int r = rn_gguf_open(&g, path, err);
    if (r < 0) {
        return r;
    }
    struct info in = {.g = g, .o = json_object()};
    put_name(&in, path);
    put_runs(&in);
    put_sizes(&in);
    put_rope(&in);
    put_tensors(&in);
    put_text(&in);
    put_memory(&in);
    put_decode(&in);
    rn_program_destroy(in.program);
    rn_gguf_close(g);
    if (in.failed) {
        json_decref(in.o);
        return rn_err_nomem(err, sizeof(json_t *), "what the file says");
    }
    *ret = in.o;
    return 0;
}
