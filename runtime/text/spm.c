/* See spm.h.
 *
 * A run of characters is a linked list of symbols; a binary heap holds the merges that were possible when they were pushed, by the order
 * of the token they make, leftmost first. A symbol knows the token that it would make with its neighbour now (pair): an entry that comes
 * up is good if that token has the entry's order, whichever token it was pushed for, because both would stand at the same place of the
 * queue; else it is stale.
 *
 * Where a run ends: a merge across the border of two characters makes a token that holds both, side by side. If no token holds the last
 * byte of the one before the first byte of the other, no merge crosses, and both sides can be merged by themselves with the same result.
 * In vocabularies trained on words, each word with the space before it is a run. */
#include "runtime/text/spm.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/model/gguf.h"
#include "runtime/text/heap.h"
#include "runtime/text/unicode.h"

#define NONE UINT32_MAX
#define N_JOINS (65536 / 8)

struct rn_spm_symbol {
    uint32_t at;  /* first byte, counted from the run's */
    uint32_t len; /* 0: merged into its left neighbour */
    uint32_t prev;
    uint32_t next; /* indices, NONE at the ends */
    uint32_t id;   /* the token of these bytes, NONE if there is none */
    uint32_t pair; /* the token of these bytes and the next symbol's, NONE if there is none */
};

void rn_spm_finish(struct rn_spm *s)
{
    rn_mem_free(s->order);
    rn_mem_free(s->joins);
    *s = (struct rn_spm){0};
}

void rn_spm_scratch_finish(struct rn_spm_scratch *s)
{
    rn_mem_free(s->symbols);
    rn_mem_free(s->heap);
    rn_buf_finish(&s->text);
    *s = (struct rn_spm_scratch){0};
}

/* Bytes of the character at text; len > 0. */
static unsigned char_len(const char *text, size_t len)
{
    uint32_t cp;
    unsigned n = rn_unicode_decode(text, len, &cp);
    return n == 0 ? 1 : n;
}

static unsigned border(char last, char first)
{
    return (unsigned)(unsigned char)last << 8 | (unsigned char)first;
}

static bool joined(const struct rn_spm *s, char last, char first)
{
    unsigned b = border(last, first);
    return (s->joins[b / 8] >> b % 8 & 1) != 0;
}

/* A number that is smaller for a better score: floats are ordered as their bits are, negative ones in reverse. */
static uint32_t order_of_score(float score)
{
    float f = score + 0.0f; // -0 is 0
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

static int read_scores(struct rn_spm *s, const struct rn_gguf *g, struct rn_err *err)
{
    const char *key = "tokenizer.ggml.scores";
    struct rn_gguf_array a;
    int r = rn_gguf_get_array(g, key, RN_GGUF_F32, &a, err);
    if (r < 0) {
        return r;
    }
    if (r == 0) {
        return rn_err_set(err, -EINVAL, "%s is missing", key);
    }
    if (a.n != s->vocab->n_vocab) {
        return rn_err_set(err, -EINVAL, "%s has %" PRIu64 " entries, expected %" PRIu32 " (one per token)", key, a.n, s->vocab->n_vocab);
    }
    for (uint32_t id = 0; id < s->vocab->n_vocab; id++) {
        float score = rn_gguf_array_f32(&a, id);
        if (isnan(score)) {
            return rn_err_set(err, -EINVAL, "%s of token %" PRIu32 " is not a number", key, id);
        }
        s->order[id] = order_of_score(score);
    }
    return 0;
}

/* What runs and lookups need to know of the tokens that text can become. */
static void read_tokens(struct rn_spm *s)
{
    const struct rn_vocab *v = s->vocab;
    s->unknown = v->unknown;
    for (unsigned byte = 0; byte < 256; byte++) {
        s->byte_ids[byte] = -1;
    }
    for (uint32_t id = 0; id < v->n_vocab; id++) {
        size_t len;
        const char *bytes = rn_vocab_bytes(v, id, &len);
        if (v->types[id] == RN_TOKEN_BYTE && len == 1 && s->byte_ids[(unsigned char)bytes[0]] < 0) {
            s->byte_ids[(unsigned char)bytes[0]] = id;
        }
        if (v->types[id] == RN_TOKEN_UNUSED || rn_vocab_is_control(v, id)) {
            continue;
        }
        s->max_len = len > s->max_len ? len : s->max_len;
        for (size_t at = 0; at < len;) {
            at += char_len(bytes + at, len - at);
            if (at < len) {
                unsigned b = border(bytes[at - 1], bytes[at]);
                s->joins[b / 8] |= (uint8_t)(1u << b % 8);
            }
        }
    }
}

int rn_spm_init(struct rn_spm *ret, const struct rn_vocab *v, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_spm s = {.vocab = v, .space_prefix = true};
    int r = rn_gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &s.space_prefix, err);
    if (r < 0) {
        return r;
    }
    s.order = rn_mem_alloc(v->n_vocab, sizeof(*s.order));
    s.joins = rn_mem_alloc(N_JOINS, 1);
    if (s.order == NULL || s.joins == NULL) {
        r = rn_err_nomem(err, v->n_vocab * sizeof(*s.order), "scores");
    } else {
        r = read_scores(&s, g, err);
    }
    if (r < 0) {
        rn_spm_finish(&s);
        return r;
    }
    read_tokens(&s);
    *ret = s;
    return 0;
}

/* Pushes the merge of symbol i with the one after it, if there is one. */
static void offer(const struct rn_spm *s, const struct rn_spm_scratch *k, const char *run, size_t *n_heap, uint32_t i)
{
    if (i == NONE) {
        return;
    }
    struct rn_spm_symbol *sym = &k->symbols[i];
    sym->pair = NONE;
    if (sym->next == NONE) {
        return;
    }
    size_t len = (size_t)sym->len + k->symbols[sym->next].len;
    int64_t id = len > s->max_len ? -1 : rn_vocab_find(s->vocab, run + sym->at, len);
    if (id >= 0) {
        sym->pair = (uint32_t)id;
        rn_heap_push(k->heap, n_heap, (uint64_t)s->order[id] << 32 | i);
    }
}

static void merge_all(const struct rn_spm *s, struct rn_spm_scratch *k, const char *run, uint32_t n)
{
    struct rn_spm_symbol *sym = k->symbols;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        offer(s, k, run, &n_heap, i);
    }
    while (n_heap > 0) {
        uint64_t entry = rn_heap_pop(k->heap, &n_heap);
        uint32_t i = (uint32_t)entry;
        if (sym[i].len == 0 || sym[i].pair == NONE || s->order[sym[i].pair] != entry >> 32) {
            continue; // stale
        }
        uint32_t right = sym[i].next;
        sym[i].id = sym[i].pair;
        sym[i].len += sym[right].len;
        sym[i].next = sym[right].next;
        sym[right].len = 0;
        if (sym[i].next != NONE) {
            sym[sym[i].next].prev = i;
        }
        offer(s, k, run, &n_heap, sym[i].prev);
        offer(s, k, run, &n_heap, i);
    }
}

static int reserve(struct rn_spm_scratch *k, size_t n)
{
    if (n <= k->cap) {
        return 0;
    }
    size_t cap = n < 256 ? 256 : n + n / 2 < RN_SPM_MAX_RUN ? n + n / 2 : RN_SPM_MAX_RUN;
    struct rn_spm_symbol *symbols = rn_mem_realloc(k->symbols, cap, sizeof(*symbols));
    if (symbols == NULL) {
        return -ENOMEM;
    }
    k->symbols = symbols;
    // n - 1 entries at first; each merge takes one out, puts at most two in, and there are at most n - 1 merges.
    uint64_t *heap = rn_mem_realloc(k->heap, cap, 2 * sizeof(*heap));
    if (heap == NULL) {
        return -ENOMEM;
    }
    k->heap = heap;
    k->cap = cap;
    return 0;
}

/* Bytes of the run at text, and its characters; len > 0. */
static size_t run_len(const struct rn_spm *s, const char *text, size_t len, uint32_t *ret_n)
{
    size_t at = char_len(text, len);
    uint32_t n = 1;
    while (at < len && n < RN_SPM_MAX_RUN && joined(s, text[at - 1], text[at])) {
        at += char_len(text + at, len - at);
        n++;
    }
    *ret_n = n;
    return at;
}

/* Appends what stands for one symbol. *unknown: the one before became the unknown token. */
static int put_symbol(const struct rn_spm *s, const char *bytes, const struct rn_spm_symbol *sym, bool *unknown, struct rn_ids *ids)
{
    if (sym->id != NONE) {
        *unknown = false;
        return rn_ids_add(ids, sym->id);
    }
    bool has_bytes = true;
    for (uint32_t i = 0; i < sym->len; i++) {
        has_bytes = has_bytes && s->byte_ids[(unsigned char)bytes[i]] >= 0;
    }
    int r = 0;
    if (has_bytes) {
        for (uint32_t i = 0; r == 0 && i < sym->len; i++) {
            r = rn_ids_add(ids, (uint32_t)s->byte_ids[(unsigned char)bytes[i]]);
        }
    } else if (!*unknown && s->unknown >= 0) {
        r = rn_ids_add(ids, (uint32_t)s->unknown);
    }
    *unknown = !has_bytes;
    return r;
}

static int encode_run(const struct rn_spm *s, struct rn_spm_scratch *k, const char *run, size_t len, uint32_t n, bool *unknown,
                      struct rn_ids *ids)
{
    if (reserve(k, n) < 0) {
        return -ENOMEM;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        unsigned c = char_len(run + at, len - at);
        int64_t id = rn_vocab_find(s->vocab, run + at, c);
        k->symbols[i] = (struct rn_spm_symbol){.at = (uint32_t)at,
                                               .len = c,
                                               .prev = i - 1u, // NONE for the first
                                               .next = i + 1 < n ? i + 1 : NONE,
                                               .id = id < 0 ? NONE : (uint32_t)id,
                                               .pair = NONE};
        at += c;
    }
    merge_all(s, k, run, n);
    int r = 0;
    for (uint32_t i = 0; r == 0 && i != NONE; i = k->symbols[i].next) {
        r = put_symbol(s, run + k->symbols[i].at, &k->symbols[i], unknown, ids);
    }
    return r;
}

/* k->text = the prefix and the text with spaces for U+2581, as SentencePiece sees no difference between the two. */
static int normalise(const struct rn_spm *s, struct rn_spm_scratch *k, const char *text, size_t len)
{
    rn_buf_clear(&k->text);
    if (rn_buf_reserve(&k->text, len + 1) < 0 || (s->space_prefix && rn_buf_add_char(&k->text, ' ') < 0)) {
        return -ENOMEM;
    }
    k->text.len += rn_vocab_read_spaces(text, len, k->text.data + k->text.len);
    return 0;
}

int rn_spm_encode(const struct rn_spm *s, struct rn_spm_scratch *scratch, const char *text, size_t len, struct rn_ids *ids)
{
    int r = normalise(s, scratch, text, len);
    bool unknown = false;
    for (size_t at = 0; r == 0 && at < scratch->text.len;) {
        const char *run = scratch->text.data + at;
        uint32_t n;
        size_t n_bytes = run_len(s, run, scratch->text.len - at, &n);
        r = encode_run(s, scratch, run, n_bytes, n, &unknown, ids);
        at += n_bytes;
    }
    return r;
}
