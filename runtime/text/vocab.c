/* Vocabulary: see vocab.h.
 *
 * I1  Every id that comes from the file is < n_vocab.
 * I2  Control, unknown and unused tokens are not in the hash table: plain text can never become one of them.
 * I3  Of two plain tokens that stand for the same bytes, the table has the normal one, else the lower id. */
#include "runtime/text/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/model/gguf.h"
#include "runtime/text/unicode.h"

// End marks by name: many files name only one of theirs by key. Each is unlike anything that prose, code or markup contains.
static const char *const end_marks[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|endofturn|>",
    "<end_of_utterance>",
    "<|EOT|>",
    "<|eot|>",
    "_<EOT>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
};

void rn_vocab_finish(struct rn_vocab *v)
{
    rn_mem_free(v->arena);
    rn_mem_free(v->starts);
    rn_mem_free(v->types);
    rn_mem_free(v->is_end);
    rn_mem_free(v->slots);
    *v = (struct rn_vocab){.bos = -1, .eos = -1, .unknown = -1};
}

const char *rn_vocab_bytes(const struct rn_vocab *v, uint32_t id, size_t *ret_len)
{
    *ret_len = v->starts[id + 1] - v->starts[id];
    return v->arena + v->starts[id];
}

bool rn_vocab_is_control(const struct rn_vocab *v, uint32_t id)
{
    return v->types[id] == RN_TOKEN_CONTROL || v->types[id] == RN_TOKEN_UNKNOWN;
}

static uint32_t *find_slot(const struct rn_vocab *v, const char *bytes, size_t len)
{
    uint32_t i = (uint32_t)XXH3_64bits_withSeed(bytes, len, v->slot_seed) & v->slot_mask;
    while (v->slots[i] != 0) {
        size_t other_len;
        const char *other = rn_vocab_bytes(v, v->slots[i] - 1, &other_len);
        if (other_len == len && memcmp(other, bytes, len) == 0) {
            break;
        }
        i = (i + 1) & v->slot_mask;
    }
    return &v->slots[i];
}

int64_t rn_vocab_find(const struct rn_vocab *v, const char *bytes, size_t len)
{
    return (int64_t)*find_slot(v, bytes, len) - 1;
}

bool rn_vocab_decode_byte_level(const char *text, size_t len, char *out, size_t *ret_len)
{
    size_t n_out = 0;
    for (size_t at = 0; at < len;) {
        uint32_t cp = 0;
        unsigned n = rn_unicode_decode(text + at, len - at, &cp);
        int byte = n == 0 ? -1 : rn_unicode_byte_of(cp);
        if (byte < 0) {
            return false;
        }
        out[n_out++] = (char)byte;
        at += n;
    }
    *ret_len = n_out;
    return true;
}

size_t rn_vocab_read_spaces(const char *text, size_t len, char *out)
{
    size_t n_out = 0;
    for (size_t at = 0; at < len;) {
        if (len - at >= 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0) {
            out[n_out++] = ' ';
            at += 3;
        } else {
            out[n_out++] = text[at++];
        }
    }
    return n_out;
}

static int read_types(struct rn_vocab *v, const struct rn_gguf *g, struct rn_err *err)
{
    const char *key = "tokenizer.ggml.token_type";
    struct rn_gguf_array a;
    int r = rn_gguf_get_array(g, key, RN_GGUF_I32, &a, NULL);
    if (r < 0) {
        r = rn_gguf_get_array(g, key, RN_GGUF_U32, &a, err);
    }
    if (r < 0) {
        return r;
    }
    if (r == 0) {
        memset(v->types, RN_TOKEN_NORMAL, v->n_vocab);
        return 0;
    }
    if (a.n != v->n_vocab) {
        return rn_err_set(err, -EINVAL, "%s has %" PRIu64 " entries, expected %" PRIu32 " (one per token)", key, a.n, v->n_vocab);
    }
    for (uint32_t id = 0; id < v->n_vocab; id++) {
        uint32_t type = rn_gguf_array_u32(&a, id);
        if (type < RN_TOKEN_NORMAL || type > RN_TOKEN_BYTE) {
            return rn_err_set(err, -EINVAL, "%s of token %" PRIu32 " is %" PRId32 ", expected 1 to 6", key, id, (int32_t)type);
        }
        v->types[id] = (uint8_t)type;
    }
    return 0;
}

/* Converters fill gaps in a vocabulary with [PADnnn], some of them typed as user-defined: such a token must not be found in text. */
static bool is_filler(struct rn_gguf_str s, uint32_t id)
{
    char name[24];
    int n = snprintf(name, sizeof(name), "[PAD%" PRIu32 "]", id);
    return s.len == (size_t)n && memcmp(s.data, name, s.len) == 0;
}

static int hex_digit(char c)
{
    const char *digits = "0123456789ABCDEF";
    const char *at = c == 0 ? NULL : strchr(digits, c);
    return at == NULL ? -1 : (int)(at - digits);
}

/* "<0xNN>" -> the byte, else -1. */
static int byte_token(struct rn_gguf_str s)
{
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>') {
        return -1;
    }
    int high = hex_digit(s.data[3]);
    int low = hex_digit(s.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Writes the bytes that the token stands for to out, at most s.len of them. Returns whether plain text may become this token. */
static bool decode_token(struct rn_vocab *v, uint32_t id, struct rn_gguf_str s, char *out, size_t *ret_len)
{
    if (is_filler(s, id)) {
        v->types[id] = RN_TOKEN_UNUSED;
    }
    int byte = v->types[id] == RN_TOKEN_BYTE ? byte_token(s) : -1;
    if (byte >= 0) {
        out[0] = (char)byte;
        *ret_len = 1;
        return true;
    }
    bool normal = v->types[id] == RN_TOKEN_NORMAL || v->types[id] == RN_TOKEN_BYTE;
    if (v->writing == RN_VOCAB_PIECES && (normal || v->types[id] == RN_TOKEN_USER)) {
        *ret_len = rn_vocab_read_spaces(s.data, s.len, out);
        // A literal with spaces is for spaces in the text, which are cut out before; what merges may be U+2581 there.
        return *ret_len > 0 && (normal || memchr(out, ' ', *ret_len) == NULL);
    }
    if (normal && rn_vocab_decode_byte_level(s.data, s.len, out, ret_len)) {
        return *ret_len > 0;
    }
    // A name, or a "normal" token with characters outside the alphabet, which no merge can make: said as it is written.
    memcpy(out, s.data, s.len);
    *ret_len = s.len;
    return v->types[id] == RN_TOKEN_USER && s.len > 0;
}

static int read_tokens(struct rn_vocab *v, const struct rn_gguf_array *a, struct rn_err *err)
{
    size_t cursor = 0;
    uint32_t used = 0;
    for (uint32_t id = 0; id < v->n_vocab; id++) {
        struct rn_gguf_str s = rn_gguf_array_next_str(a, &cursor);
        size_t len = 0;
        bool plain = decode_token(v, id, s, v->arena + used, &len);
        v->starts[id] = used;
        used += (uint32_t)len;
        v->starts[id + 1] = used;
        if (!plain) {
            continue;
        }
        uint32_t *slot = find_slot(v, v->arena + v->starts[id], len);
        if (*slot == 0 || (v->types[*slot - 1] != RN_TOKEN_NORMAL && v->types[id] == RN_TOKEN_NORMAL)) {
            *slot = id + 1; // keeps I3
        }
    }
    char *fit = rn_mem_realloc(v->arena, (size_t)used + 1, 1);
    if (fit == NULL) {
        return rn_err_nomem(err, used, "the vocabulary");
    }
    v->arena = fit;
    return 0;
}

static int allocate(struct rn_vocab *v, const struct rn_gguf_array *a, struct rn_err *err)
{
    uint32_t n_slots = 64;
    while (n_slots < v->n_vocab * 2u) {
        n_slots *= 2;
    }
    v->slot_mask = n_slots - 1;
    v->slot_seed = XXH3_64bits(a->data, a->bytes);
    v->arena = rn_mem_alloc(a->bytes + 1, 1); // the file's bytes, lengths included, bound the decoded ones
    v->starts = rn_mem_alloc((size_t)v->n_vocab + 1, sizeof(*v->starts));
    v->types = rn_mem_alloc(v->n_vocab, 1);
    v->is_end = rn_mem_alloc(v->n_vocab, 1);
    v->slots = rn_mem_alloc(n_slots, sizeof(*v->slots));
    if (v->arena == NULL || v->starts == NULL || v->types == NULL || v->is_end == NULL || v->slots == NULL) {
        return rn_err_nomem(err, a->bytes, "the vocabulary");
    }
    return 0;
}

static int read_id(const struct rn_vocab *v, const struct rn_gguf *g, const char *key, int64_t *ret, struct rn_err *err)
{
    uint32_t id;
    int r = rn_gguf_get_u32(g, key, &id, err);
    if (r < 0) {
        return r;
    }
    if (r == 1 && id >= v->n_vocab) {
        return rn_err_set(err, -EINVAL, "%s is %" PRIu32 ", expected less than %" PRIu32, key, id, v->n_vocab);
    }
    *ret = r == 1 ? (int64_t)id : -1;
    return 0;
}

static int read_special_ids(struct rn_vocab *v, const struct rn_gguf *g, struct rn_err *err)
{
    int64_t padding;
    int64_t turn;
    int64_t message;
    const struct {
        const char *key;
        int64_t *to;
        bool is_end;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &v->bos, false},
        {"tokenizer.ggml.eos_token_id", &v->eos, true},
        {"tokenizer.ggml.eot_token_id", &turn, true},
        {"tokenizer.ggml.eom_token_id", &message, true},
        {"tokenizer.ggml.unknown_token_id", &v->unknown, false},
        {"tokenizer.ggml.padding_token_id", &padding, false},
    };
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        int r = read_id(v, g, ids[i].key, ids[i].to, err);
        if (r < 0) {
            return r;
        }
        if (ids[i].is_end && *ids[i].to >= 0) {
            v->is_end[*ids[i].to] = 1;
        }
    }
    return 0;
}

static bool says(const struct rn_vocab *v, int64_t id, const char *name)
{
    size_t len;
    const char *bytes = id < 0 ? NULL : rn_vocab_bytes(v, (uint32_t)id, &len);
    return bytes != NULL && len == strlen(name) && memcmp(bytes, name, len) == 0;
}

/* Takes a token out of the hash table, closing the gap in the probe sequence. */
static void forget(struct rn_vocab *v, uint32_t id)
{
    size_t len;
    const char *bytes = rn_vocab_bytes(v, id, &len);
    uint32_t *slot = len == 0 ? NULL : find_slot(v, bytes, len);
    if (slot == NULL || *slot != id + 1) {
        return;
    }
    *slot = 0;
    for (uint32_t i = ((uint32_t)(slot - v->slots) + 1) & v->slot_mask; v->slots[i] != 0; i = (i + 1) & v->slot_mask) {
        uint32_t moved = v->slots[i];
        v->slots[i] = 0;
        bytes = rn_vocab_bytes(v, moved - 1, &len);
        *find_slot(v, bytes, len) = moved;
    }
}

/* Finds the end marks by name. One that the file calls normal or user-defined is a control token all the same: no user text may
 * contain it. */
static void mark_ends_by_name(struct rn_vocab *v)
{
    int64_t end = -1; // <|end|>
    unsigned harmony = 0;
    for (uint32_t id = 0; id < v->n_vocab; id++) {
        size_t len;
        const char *bytes = rn_vocab_bytes(v, id, &len);
        if (len < 3 || (bytes[0] != '<' && bytes[0] != '_')) {
            continue;
        }
        for (size_t i = 0; i < sizeof(end_marks) / sizeof(end_marks[0]); i++) {
            if (v->types[id] != RN_TOKEN_UNUSED && says(v, id, end_marks[i])) {
                forget(v, id);
                v->types[id] = RN_TOKEN_CONTROL; // keeps I2
                v->is_end[id] = 1;
            }
        }
        end = says(v, id, "<|end|>") ? (int64_t)id : end;
        harmony |= (says(v, id, "<|return|>") ? 1u : 0) | (says(v, id, "<|call|>") ? 2u : 0);
    }
    // Where <|return|> and <|call|> end an answer (gpt-oss), <|end|> only closes a message inside it.
    if (harmony == 3 && end >= 0 && end != v->eos) {
        v->is_end[end] = 0;
    }
}

int rn_vocab_init(struct rn_vocab *ret, const struct rn_gguf *g, enum rn_vocab_writing writing, struct rn_err *err)
{
    struct rn_vocab v = {.writing = writing, .bos = -1, .eos = -1, .unknown = -1};
    struct rn_gguf_array tokens;
    int r = rn_gguf_get_array(g, "tokenizer.ggml.tokens", RN_GGUF_STR, &tokens, err);
    if (r < 0) {
        return r;
    }
    if (r == 0 || tokens.n == 0) {
        return rn_err_set(err, -EINVAL, "tokenizer.ggml.tokens is missing or empty");
    }
    if (tokens.n > RN_VOCAB_MAX_TOKENS || tokens.bytes > RN_VOCAB_MAX_BYTES) {
        return rn_err_set(err, -E2BIG, "tokenizer.ggml.tokens has %" PRIu64 " tokens in %zu bytes, expected at most %u in %u", tokens.n,
                          tokens.bytes, RN_VOCAB_MAX_TOKENS, RN_VOCAB_MAX_BYTES);
    }
    v.n_vocab = (uint32_t)tokens.n;
    r = allocate(&v, &tokens, err);
    if (r == 0) {
        r = read_types(&v, g, err);
    }
    if (r == 0) {
        r = read_tokens(&v, &tokens, err);
    }
    if (r == 0) {
        r = read_special_ids(&v, g, err);
    }
    if (r < 0) {
        rn_vocab_finish(&v);
        return r;
    }
    mark_ends_by_name(&v);
    *ret = v;
    return 0;
}
