#include "session/answer.h"

#include <errno.h>
#include <string.h>

void rn_answer_finish(struct rn_answer *a)
{
    rn_buf_finish(&a->text);
    rn_ids_finish(&a->ids);
    rn_mem_free(a->ends);
    *a = (struct rn_answer){0};
}

int rn_answer_follow(struct rn_answer *a, const struct rn_text *text, const uint32_t *ids, size_t n)
{
    struct rn_buf said = {0};
    int r = 0;
    a->detok = (struct rn_detok){0};
    for (size_t i = 0; r == 0 && i < n; i++) {
        rn_buf_clear(&said);
        r = rn_detok_push(&a->detok, text, ids[i], /*special=*/false, &said);
    }
    rn_buf_finish(&said);
    return r;
}

static int add_id(struct rn_answer *a, uint32_t id, size_t end)
{
    if (a->ids.len == a->cap_ends) {
        size_t cap = a->cap_ends ? a->cap_ends * 2 : 256;
        size_t *p = rn_mem_realloc(a->ends, cap, sizeof *p);
        if (!p) {
            return -ENOMEM;
        }
        a->ends = p;
        a->cap_ends = cap;
    }
    a->ends[a->ids.len] = end;
    return rn_ids_add(&a->ids, id);
}

// First place at or after `from` where `word` stands in the text; SIZE_MAX = nowhere.
static size_t find(const struct rn_buf *text, size_t from, const char *word, size_t len)
{
    for (size_t i = from; i + len <= text->len; i++) {
        const char *p = memchr(text->data + i, word[0], text->len - len + 1 - i);
        if (!p) {
            return SIZE_MAX;
        }
        i = (size_t)(p - text->data);
        if (memcmp(p, word, len) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

// The first stop string in the text, of those that end behind `known` bytes.
static size_t find_stop(struct rn_answer *a, size_t known)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < a->n_stop; i++) {
        size_t len = strlen(a->stop[i]);
        if (len == 0) {
            continue;
        }
        size_t at = find(&a->text, known >= len ? known - len + 1 : 0, a->stop[i], len);
        if (at < best) {
            best = at;
            a->stopped = a->stop[i];
        }
    }
    return best;
}

static void cut(struct rn_answer *a, size_t at)
{
    a->text.len = at;
    a->text.data[at] = 0;
    a->detok = (struct rn_detok){0};
    size_t keep = 0;
    while (keep < a->ids.len && a->ends[keep] <= at) {
        keep++;
    }
    a->ids.len = keep;
}

int rn_answer_push(struct rn_answer *a, const struct rn_text *text, uint32_t id, enum rn_answer_result *ret)
{
    if (!a->ignore_eos && rn_text_is_end(text, id)) {
        *ret = RN_ANSWER_EOS;
        return 0;
    }
    size_t known = a->text.len;
    int r = rn_detok_push(&a->detok, text, id, /*special=*/false, &a->text);
    if (r == 0) {
        r = add_id(a, id, a->text.len + a->detok.n_held);
    }
    if (r < 0) {
        return r;
    }
    size_t at = a->text.len > known ? find_stop(a, known) : SIZE_MAX;
    if (at != SIZE_MAX) {
        cut(a, at);
        *ret = RN_ANSWER_STOP;
    } else {
        *ret = a->ids.len >= a->limit ? RN_ANSWER_LENGTH : RN_ANSWER_GOES_ON;
    }
    return 0;
}

int rn_answer_close(struct rn_answer *a)
{
    return a->stopped ? 0 : rn_detok_end(&a->detok, &a->text);
}

// Bytes at the end of the text that a stop string may begin with.
static size_t held_back(const struct rn_answer *a)
{
    size_t held = 0;
    for (size_t i = 0; i < a->n_stop; i++) {
        size_t len = strlen(a->stop[i]);
        size_t n = len ? len - 1 : 0;
        n = n < a->text.len ? n : a->text.len;
        while (n > held && memcmp(a->text.data + a->text.len - n, a->stop[i], n) != 0) {
            n--;
        }
        held = n > held ? n : held;
    }
    return held;
}

void rn_answer_take(struct rn_answer *a, bool closed, const char **ret_text, size_t *ret_len, const uint32_t **ret_ids, size_t *ret_n_ids)
{
    size_t to = a->text.len - (closed ? 0 : held_back(a));
    to = to > a->shown ? to : a->shown;
    size_t ids = a->shown_ids;
    while (ids < a->ids.len && (closed || a->ends[ids] <= to)) {
        ids++;
    }
    *ret_text = a->text.data ? a->text.data + a->shown : "";
    *ret_len = to - a->shown;
    *ret_ids = a->ids.data ? a->ids.data + a->shown_ids : NULL;
    *ret_n_ids = ids - a->shown_ids;
    a->shown = to;
    a->shown_ids = ids;
}
