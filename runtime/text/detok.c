/* Streaming detokenizer: the bytes of tokens, made well-formed UTF-8.
 *
 * I1  What is held is a proper prefix of a character, so at most three bytes.
 * I2  Output depends on the bytes so far, never on how they were cut into tokens: one step per byte.
 * I3  Where the tokenizer puts a space before a text, and before what follows a special token, that space is taken away again: the text
 *     of a text's ids is that text.
 * An ill-formed sequence becomes one U+FFFD per maximal subpart (Unicode Standard 3.9, the WHATWG Encoding Standard's decoder): what
 * browsers and Python's errors="replace" give for the same bytes. */
#include <errno.h>
#include <string.h>

#include "runtime/text/text_internal.h"
#include "runtime/text/unicode.h"

#define REPLACEMENT_BYTES (sizeof(RN_UNICODE_REPLACEMENT) - 1)

/* out has room. */
static void put(struct rn_buf *out, const void *data, size_t len)
{
    memcpy(out->data + out->len, data, len);
    out->len += len;
}

static void push_byte(struct rn_detok *d, unsigned char byte, struct rn_buf *out)
{
    enum rn_unicode_state state = rn_unicode_step(d->held, d->n_held, byte);
    if (state == RN_UNICODE_BAD && d->n_held > 0) {
        put(out, RN_UNICODE_REPLACEMENT, REPLACEMENT_BYTES);
        d->n_held = 0;
        state = rn_unicode_step(d->held, 0, byte); // the byte may begin the next character
    }
    switch (state) {
    case RN_UNICODE_BAD:
        put(out, RN_UNICODE_REPLACEMENT, REPLACEMENT_BYTES);
        break;
    case RN_UNICODE_MORE:
        d->held[d->n_held++] = byte;
        break;
    case RN_UNICODE_DONE:
        put(out, d->held, d->n_held);
        put(out, &byte, 1);
        d->n_held = 0;
        break;
    }
}

const char *rn_text_token_bytes(const struct rn_text *t, uint32_t id, size_t *ret_len)
{
    *ret_len = 0;
    return id < t->vocab.n_vocab ? rn_vocab_bytes(&t->vocab, id, ret_len) : NULL;
}

int rn_detok_push(struct rn_detok *d, const struct rn_text *t, uint32_t id, bool special, struct rn_buf *out)
{
    if (id >= t->vocab.n_vocab) {
        return -EINVAL;
    }
    bool control = rn_vocab_is_control(&t->vocab, id);
    bool plain = !control && t->vocab.types[id] != RN_TOKEN_USER;
    if (control || t->vocab.types[id] == RN_TOKEN_USER) {
        d->inside = false;
    }
    if (t->vocab.types[id] == RN_TOKEN_UNUSED || (control && !special)) {
        return 0;
    }
    size_t len;
    const char *bytes = rn_vocab_bytes(&t->vocab, id, &len);
    if (plain && len > 0) {
        size_t prefix = t->by_score && t->spm.space_prefix && !d->inside && bytes[0] == ' '; // keeps I3
        bytes += prefix;
        len -= prefix;
        d->inside = true;
    }
    // A byte becomes at most one replacement character of its own and releases at most one for what was held.
    if (rn_buf_reserve(out, (len + d->n_held) * REPLACEMENT_BYTES) < 0) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < len; i++) {
        push_byte(d, (unsigned char)bytes[i], out);
    }
    if (out->data != NULL) {
        out->data[out->len] = '\0';
    }
    return 0;
}

int rn_detok_end(struct rn_detok *d, struct rn_buf *out)
{
    if (d->n_held == 0) {
        return 0;
    }
    if (rn_buf_add(out, RN_UNICODE_REPLACEMENT, REPLACEMENT_BYTES) < 0) {
        return -ENOMEM;
    }
    d->n_held = 0;
    return 0;
}
