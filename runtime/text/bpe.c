/* See bpe.h.
 *
 * A piece is a linked list of symbols; a binary heap holds the merges that were possible when they were pushed, as rank << 32 | index of
 * the left symbol, so the smallest is the lowest rank and, among equals, the leftmost. An entry whose symbols have changed since is
 * recognised when it comes up, because a rank names one pair of ids. */
#include "runtime/text/bpe.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/base/err.h"
#include "runtime/model/gguf.h"
#include "runtime/text/heap.h"
#include "runtime/text/unicode.h"

#define NONE UINT32_MAX

struct rn_bpe_merge {
    uint32_t left; /* ids */
    uint32_t right;
    uint32_t result;
};

struct rn_bpe_symbol {
    uint32_t id; /* NONE: merged into its left neighbour */
    uint32_t prev;
    uint32_t next; /* indices, NONE at the ends */
};

void rn_bpe_finish(struct rn_bpe *b)
{
    rn_mem_free(b->merges);
    rn_mem_free(b->slots);
    *b = (struct rn_bpe){0};
}

void rn_bpe_scratch_finish(struct rn_bpe_scratch *s)
{
    rn_mem_free(s->symbols);
    rn_mem_free(s->heap);
    *s = (struct rn_bpe_scratch){0};
}

static uint32_t *find_slot(const struct rn_bpe *b, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t i = (uint32_t)(pair * b->slot_factor >> b->slot_shift); // multiply-shift (Dietzfelbinger et al. 1997)
    while (b->slots[i] != 0) {
        const struct rn_bpe_merge *m = &b->merges[b->slots[i] - 1];
        if (m->left == left && m->right == right) {
            break;
        }
        i = (i + 1) & b->slot_mask;
    }
    return &b->slots[i];
}

/* One line "LEFT RIGHT" of the file; buffer has room for s.len bytes. */
static int read_merge(const struct rn_bpe *b, struct rn_gguf_str s, char *buffer, struct rn_bpe_merge *ret, struct rn_err *err)
{
    const char *space = memchr(s.data, ' ', s.len);
    size_t n_left = space == NULL ? 0 : (size_t)(space - s.data);
    size_t left = 0;
    size_t right = 0;
    if (n_left == 0 || n_left + 1 == s.len || !rn_vocab_decode_byte_level(s.data, n_left, buffer, &left) ||
        !rn_vocab_decode_byte_level(space + 1, s.len - n_left - 1, buffer + left, &right)) {
        return rn_err_set(err, -EINVAL, "%zu bytes that are not two byte-level texts with a space between them", s.len);
    }
    int64_t ids[3] = {rn_vocab_find(b->vocab, buffer, left), rn_vocab_find(b->vocab, buffer + left, right),
                      rn_vocab_find(b->vocab, buffer, left + right)};
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
        int shown = (int)rn_unicode_valid_len(s.data, s.len < 80 ? s.len : 80);
        return rn_err_set(err, -EINVAL, "'%.*s': the %s is not a token that text can become", shown, s.data,
                          ids[0] < 0   ? "left part"
                          : ids[1] < 0 ? "right part"
                                       : "result");
    }
    *ret = (struct rn_bpe_merge){(uint32_t)ids[0], (uint32_t)ids[1], (uint32_t)ids[2]};
    return 0;
}

static int read_merges(struct rn_bpe *b, const struct rn_gguf_array *a, struct rn_err *err)
{
    uint32_t n_slots = 64;
    b->slot_shift = 64 - 6;
    while (n_slots < a->n * 2) {
        n_slots *= 2;
        b->slot_shift--;
    }
    b->slot_mask = n_slots - 1;
    b->slot_factor = XXH3_64bits(a->data, a->bytes) | 1;
    b->merges = rn_mem_alloc(a->n, sizeof(*b->merges));
    b->slots = rn_mem_alloc(n_slots, sizeof(*b->slots));
    char *buffer = rn_mem_alloc(a->bytes, 1); // longer than any one merge
    int r = 0;
    if (b->merges == NULL || b->slots == NULL || buffer == NULL) {
        r = rn_err_nomem(err, n_slots * sizeof(*b->slots), "merges");
    }
    size_t cursor = 0;
    for (uint64_t rank = 0; r == 0 && rank < a->n; rank++) {
        struct rn_gguf_str s = rn_gguf_array_next_str(a, &cursor);
        r = read_merge(b, s, buffer, &b->merges[rank], err);
        if (r < 0) {
            (void)rn_err_prefix(err, "tokenizer.ggml.merges, entry %" PRIu64, rank); // r has the code
            break;
        }
        uint32_t *slot = find_slot(b, b->merges[rank].left, b->merges[rank].right);
        *slot = *slot == 0 ? (uint32_t)rank + 1 : *slot; // of a pair that comes twice the first rank counts
    }
    b->n_merges = (uint32_t)a->n;
    rn_mem_free(buffer);
    return r;
}

int rn_bpe_init(struct rn_bpe *ret, const struct rn_vocab *v, const struct rn_gguf *g, bool ignore_merges, struct rn_err *err)
{
    struct rn_bpe b = {.vocab = v, .ignore_merges = ignore_merges};
    struct rn_gguf_array a;
    int r = rn_gguf_get_array(g, "tokenizer.ggml.merges", RN_GGUF_STR, &a, err);
    if (r < 0) {
        return r;
    }
    if (r == 0) {
        return rn_err_set(err, -EINVAL, "tokenizer.ggml.merges is missing");
    }
    if (a.n > RN_BPE_MAX_MERGES || a.bytes > 2 * (size_t)RN_VOCAB_MAX_BYTES) {
        return rn_err_set(err, -E2BIG, "tokenizer.ggml.merges has %" PRIu64 " entries in %zu bytes, expected at most %u in %u", a.n,
                          a.bytes, RN_BPE_MAX_MERGES, 2 * RN_VOCAB_MAX_BYTES);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        b.byte_ids[byte] = rn_vocab_find(v, &c, 1);
    }
    r = read_merges(&b, &a, err);
    if (r < 0) {
        rn_bpe_finish(&b);
        return r;
    }
    *ret = b;
    return 0;
}

/* Pushes the merge of symbol i with the one after it, if there is one. */
static void offer(const struct rn_bpe *b, const struct rn_bpe_scratch *s, size_t *n_heap, uint32_t i)
{
    if (i == NONE || s->symbols[i].next == NONE) {
        return;
    }
    uint32_t rank = *find_slot(b, s->symbols[i].id, s->symbols[s->symbols[i].next].id);
    if (rank != 0) {
        rn_heap_push(s->heap, n_heap, (uint64_t)(rank - 1) << 32 | i);
    }
}

static void merge_all(const struct rn_bpe *b, struct rn_bpe_scratch *s, uint32_t n)
{
    struct rn_bpe_symbol *sym = s->symbols;
    size_t n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        offer(b, s, &n_heap, i);
    }
    while (n_heap > 0) {
        uint64_t entry = rn_heap_pop(s->heap, &n_heap);
        const struct rn_bpe_merge *m = &b->merges[entry >> 32];
        uint32_t i = (uint32_t)entry;
        uint32_t right = sym[i].next;
        if (sym[i].id != m->left || right == NONE || sym[right].id != m->right) {
            continue; // stale
        }
        sym[i].id = m->result;
        sym[i].next = sym[right].next;
        sym[right].id = NONE;
        if (sym[i].next != NONE) {
            sym[sym[i].next].prev = i;
        }
        offer(b, s, &n_heap, sym[i].prev);
        offer(b, s, &n_heap, i);
    }
}

static int reserve(struct rn_bpe_scratch *s, size_t n)
{
    if (n <= s->cap) {
        return 0;
    }
    size_t cap = n < 256 ? 256 : n + n / 2 < RN_BPE_MAX_PIECE ? n + n / 2 : RN_BPE_MAX_PIECE;
    struct rn_bpe_symbol *symbols = rn_mem_realloc(s->symbols, cap, sizeof(*symbols));
    if (symbols == NULL) {
        return -ENOMEM;
    }
    s->symbols = symbols;
    // n - 1 entries at first; each merge takes one out, puts at most two in, and there are at most n - 1 merges.
    uint64_t *heap = rn_mem_realloc(s->heap, cap, 2 * sizeof(*heap));
    if (heap == NULL) {
        return -ENOMEM;
    }
    s->heap = heap;
    s->cap = cap;
    return 0;
}

static int encode_part(const struct rn_bpe *b, struct rn_bpe_scratch *s, const char *part, size_t len, struct rn_ids *ids)
{
    if (reserve(s, len) < 0) {
        return -ENOMEM;
    }
    uint32_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int64_t id = b->byte_ids[(unsigned char)part[i]];
        if (id >= 0) {
            s->symbols[n] = (struct rn_bpe_symbol){(uint32_t)id, n - 1u, n + 1}; // n - 1u is NONE for the first
            n++;
        }
    }
    if (n == 0) {
        return 0;
    }
    s->symbols[n - 1].next = NONE;
    merge_all(b, s, n);
    for (uint32_t i = 0; i != NONE; i = s->symbols[i].next) {
        if (rn_ids_add(ids, s->symbols[i].id) < 0) {
            return -ENOMEM;
        }
    }
    return 0;
}

int rn_bpe_encode(const struct rn_bpe *b, struct rn_bpe_scratch *scratch, const char *piece, size_t len, struct rn_ids *ids)
{
    int64_t whole = len == 1 ? b->byte_ids[(unsigned char)piece[0]] : b->ignore_merges ? rn_vocab_find(b->vocab, piece, len) : -1;
    if (whole >= 0) {
        return rn_ids_add(ids, (uint32_t)whole);
    }
    int r = 0;
    while (r == 0 && len > 0) {
        size_t n = len;
        if (n > RN_BPE_MAX_PIECE) {
            n = RN_BPE_MAX_PIECE;
            while (n > RN_BPE_MAX_PIECE - 3 && ((unsigned char)piece[n] & 0xC0) == 0x80) {
                n--; // not inside a character
            }
        }
        r = encode_part(b, scratch, piece, n, ids);
        piece += n;
        len -= n;
    }
    return r;
}
