#include "session/logprobs.h"

#include <errno.h>
#include <math.h>

#include "runtime/base/mem.h"
#include "runtime/text.h"

#define IMPOSSIBLE (-9999.0) // JSON has no -inf; the number that the OpenAI API uses

void rn_logprobs_finish(struct rn_logprobs *l)
{
    rn_mem_free(l->rows);
    rn_mem_free(l->n_likely);
    *l = (struct rn_logprobs){0};
}

int rn_logprobs_add(struct rn_logprobs *l, size_t place, const float *logits, uint32_t n_vocab, uint32_t id)
{
    size_t width = 1 + (size_t)l->n_top;
    if (place >= l->cap) {
        size_t cap = place < 64 ? 128 : 2 * place;
        struct rn_logprob *rows = rn_mem_realloc(l->rows, cap, width * sizeof *rows);
        l->rows = rows ? rows : l->rows;
        uint8_t *n = rows ? rn_mem_realloc(l->n_likely, cap, sizeof *n) : NULL;
        if (!n) {
            return -ENOMEM;
        }
        l->n_likely = n;
        l->cap = cap;
    }
    l->n_likely[place] = (uint8_t)rn_logprobs(logits, n_vocab, id, l->n_top, l->rows + place * width);
    return 0;
}

// "bytes" are the token's own; "token" is the same made well-formed: a piece of a character reads U+FFFD.
static json_t *entry(const struct rn_text *text, const struct rn_logprob *p)
{
    struct rn_detok detok = {.inside = true};
    struct rn_buf token = {0};
    size_t len = 0;
    const char *data = rn_text_token_bytes(text, p->id, &len);
    json_t *bytes = json_array();
    int r = rn_detok_push(&detok, text, p->id, /*special=*/true, &token);
    r = r < 0 ? r : rn_detok_end(&detok, &token);
    for (size_t i = 0; r == 0 && data && i < len; i++) {
        r = json_array_append_new(bytes, json_integer((unsigned char)data[i]));
    }
    json_t *v = r < 0 ? NULL
                      : json_pack("{s:i, s:s%, s:O, s:f}", "id", (int)p->id, "token", token.data ? token.data : "", token.len, "bytes",
                                  bytes, "logprob", isfinite(p->logprob) ? p->logprob : IMPOSSIBLE);
    json_decref(bytes);
    rn_buf_finish(&token);
    return v;
}

json_t *rn_logprobs_json(const struct rn_logprobs *l, const struct rn_text *text, size_t from, size_t end)
{
    json_t *list = json_array();
    int r = list ? 0 : -1;
    for (size_t i = from; r == 0 && i < end; i++) {
        const struct rn_logprob *row = l->rows + i * (1 + (size_t)l->n_top);
        json_t *top = json_array(), *v = entry(text, row);
        for (size_t k = 0; r == 0 && k < l->n_likely[i]; k++) {
            r = json_array_append_new(top, entry(text, &row[1 + k]));
        }
        r |= json_object_set_new(v, "top_logprobs", top);
        r |= json_array_append_new(list, v);
    }
    if (r < 0) {
        json_decref(list);
        return NULL;
    }
    return list;
}
