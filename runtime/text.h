/* Text on both sides of the model: tokenizer, streaming detokenizer, chat template. For the layers above.
 *
 * A struct rn_text is made from a model file and immutable afterwards: shared by all threads. The pieces live in runtime/text. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/mem.h"

struct rn_err;
struct rn_gguf;
struct rn_text;

/* Reads vocabulary, merges and chat template. The file may be closed afterwards. -EINVAL: damaged; -ENOTSUP: a tokenizer or
 * pre-tokenizer that we do not know (named). A template that does not parse is reported when it is used. */
int rn_text_create(struct rn_text **ret, const struct rn_gguf *g, struct rn_err *err);
/* The same straight from a file, without its weights; a file with nothing but a vocabulary will do. -ENOENT, -EACCES …: not readable. */
int rn_text_load(struct rn_text **ret, const char *path, struct rn_err *err);
void rn_text_destroy(struct rn_text *t);

uint32_t rn_text_n_vocab(const struct rn_text *t);
bool rn_text_is_end(const struct rn_text *t, uint32_t id);      /* end-of-generation marks */
bool rn_text_is_control(const struct rn_text *t, uint32_t id);
int64_t rn_text_bos(const struct rn_text *t);                   /* -1 = none */
/* The file's add_bos_token, and there is a BOS. Who feeds raw text puts rn_text_bos before its ids where this is true. A rendered
 * conversation has what the template wrote: BOS where it says so, and nothing is to be added, whatever this says. So BOS comes once. */
bool rn_text_adds_bos(const struct rn_text *t);
bool rn_text_has_template(const struct rn_text *t);
uint64_t rn_text_fingerprint(const struct rn_text *t);          /* XXH3 of vocabulary, merges, types, pre-tokenizer */

/* The bytes that a token stands for, control tokens as they are written; perhaps a piece of a character. NULL: no such id. Borrowed. */
const char *rn_text_token_bytes(const struct rn_text *t, uint32_t id, size_t *ret_len);

/* Appends the ids of text (UTF-8 or any bytes). special: control tokens written in the text are taken as such. No BOS is added.
 * Linear time, bounded memory. -E2BIG: longer than 64 MiB. */
int rn_text_tokenize(const struct rn_text *t, const char *text, size_t len, bool special, struct rn_ids *ids, struct rn_err *err);

/* A rendered conversation: text and, for each byte, whether the template itself wrote it (1) or it came from a message (0). Control
 * tokens are recognised only where every byte is the template's. */
struct rn_rendered {
    struct rn_buf text;
    struct rn_buf own; /* same length as text */
};
void rn_rendered_finish(struct rn_rendered *r);

/* Renders `variables`, a JSON object with at least "messages" ([{role, content, …}]) and "add_generation_prompt", through the model's
 * chat template (bos_token, eos_token are added). -ENOENT: the model has none. -EINVAL: the template refused (raise_exception) or does
 * something we do not know: err has line and column. */
int rn_text_render(const struct rn_text *t, json_t *variables, struct rn_rendered *ret, struct rn_err *err);
/* The same through the source of a template instead of a model's; bos_token and eos_token come from the variables, and so may "now", the
 * local time of strftime_now ("2026-11-29T10:15:00"). */
int rn_text_render_source(const char *source, size_t len, json_t *variables, struct rn_rendered *ret, struct rn_err *err);
int rn_text_tokenize_rendered(const struct rn_text *t, const struct rn_rendered *r, struct rn_ids *ids, struct rn_err *err);
/* Same for bytes [from, len) of a rendering: control tokens as above. from must lie on a token border of the template's text. */
int rn_text_tokenize_rendered_from(const struct rn_text *t, const struct rn_rendered *r, size_t from, struct rn_ids *ids, struct rn_err *err);

/* Streaming detokenizer: bytes come out in whole UTF-8 characters only; bytes that can never become valid come out as U+FFFD, so the
 * output is always valid UTF-8 and independent of how the ids are cut into calls. Zero is the start. owner: one thread. */
struct rn_detok {
    unsigned char held[4]; /* an unfinished character */
    unsigned n_held;
    bool inside; /* plain text came before: a first space is text. Set it where ids go on with a text whose ids were not pushed */
};

/* Appends what can be said after `id`. special: control tokens appear as text, else as nothing. */
int rn_detok_push(struct rn_detok *d, const struct rn_text *t, uint32_t id, bool special, struct rn_buf *out);
/* End of the text: an unfinished character becomes U+FFFD. */
int rn_detok_end(struct rn_detok *d, struct rn_buf *out);
