/* See special.h. The names are a sorted array; walking it byte by byte narrows the range of names that still fit, as a trie would,
 * without the trie's memory. */
#include "runtime/text/special.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

struct rn_special_name {
    const char *bytes; /* borrowed from the vocabulary */
    uint32_t len;
    uint32_t id;
    bool is_control;
};

static int compare_names(const void *pa, const void *pb)
{
    const struct rn_special_name *a = pa;
    const struct rn_special_name *b = pb;
    int c = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);
    if (c != 0) {
        return c;
    }
    if (a->len != b->len) {
        return a->len < b->len ? -1 : 1;
    }
    return a->id < b->id ? -1 : a->id > b->id;
}

static bool is_special(const struct rn_vocab *v, uint32_t id)
{
    return (rn_vocab_is_control(v, id) || v->types[id] == RN_TOKEN_USER) && v->starts[id + 1] > v->starts[id];
}

int rn_special_init(struct rn_special *ret, const struct rn_vocab *v, struct rn_err *err)
{
    struct rn_special s = {0};
    for (uint32_t id = 0; id < v->n_vocab; id++) {
        s.n_names += is_special(v, id);
    }
    s.names = rn_mem_alloc(s.n_names, sizeof(*s.names));
    if (s.names == NULL) {
        return rn_err_nomem(err, s.n_names * sizeof(*s.names), "special tokens");
    }
    uint32_t n = 0;
    for (uint32_t id = 0; id < v->n_vocab; id++) {
        if (is_special(v, id)) {
            size_t len;
            const char *bytes = rn_vocab_bytes(v, id, &len);
            s.names[n++] = (struct rn_special_name){bytes, (uint32_t)len, id, rn_vocab_is_control(v, id)};
            s.first[(unsigned char)bytes[0] + 1]++;
        }
    }
    for (unsigned b = 0; b < 256; b++) {
        s.first[b + 1] += s.first[b];
    }
    qsort(s.names, s.n_names, sizeof(*s.names), compare_names);
    *ret = s;
    return 0;
}

void rn_special_finish(struct rn_special *s)
{
    rn_mem_free(s->names);
    *s = (struct rn_special){0};
}

/* First index in [lo, hi) whose byte k is at least `byte` (257: the end); all names there are longer than k. */
static uint32_t lower_bound(const struct rn_special *s, uint32_t lo, uint32_t hi, size_t k, unsigned byte)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)s->names[mid].bytes[k] < byte) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest name that text begins with. own: as in rn_special_find, at the same place as text, or NULL. */
static bool match_here(const struct rn_special *s, const char *text, const char *own, size_t len, bool control, struct rn_special_hit *ret)
{
    bool found = false;
    uint32_t lo = s->first[(unsigned char)text[0]];
    uint32_t hi = s->first[(unsigned char)text[0] + 1];
    for (size_t k = 0; k < len && lo < hi; k++) {
        // Here the names in [lo, hi) agree with the first k bytes of text and are longer than k.
        uint32_t first = lower_bound(s, lo, hi, k, (unsigned char)text[k]);
        hi = lower_bound(s, first, hi, k, (unsigned char)text[k] + 1u);
        lo = first;
        control = control && (own == NULL || own[k] != 0);
        for (bool taken = false; lo < hi && s->names[lo].len == k + 1; lo++) {
            if (!taken && (control || !s->names[lo].is_control)) {
                ret->len = k + 1;
                ret->id = s->names[lo].id;
                found = taken = true;
            }
        }
    }
    return found;
}

bool rn_special_find(const struct rn_special *s, const char *text, const char *own, size_t len, size_t from, bool control,
                     struct rn_special_hit *ret)
{
    for (size_t at = from; at < len; at++) {
        unsigned char byte = (unsigned char)text[at];
        if (s->first[byte] != s->first[byte + 1] && match_here(s, text + at, own == NULL ? NULL : own + at, len - at, control, ret)) {
            ret->at = at;
            return true;
        }
    }
    return false;
}
