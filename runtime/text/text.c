/* runtime/text.h: a model file's tokenizer and template put together, and the way of a text through them.
 *
 * A text is cut three times: special tokens first (special.c), what lies between them by the pre-tokenizer (pretok.c), each piece by BPE
 * (bpe.c). SentencePiece-style vocabularies have no pre-tokenizer: spm.c merges what lies between special tokens. A failed call leaves
 * the caller's list of ids as it was. */
#include "runtime/text.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/model/gguf.h"
#include "runtime/text/text_internal.h"

#define MAX_TEXT ((size_t)64 << 20) /* bytes of one call; runtime/text.h */

/* How much of a name from the file an error may print: bytes that no terminal minds. */
static int shown(struct rn_gguf_str s)
{
    int n = 0;
    while (n < 64 && (size_t)n < s.len && s.data[n] >= 0x20 && s.data[n] < 0x7F) {
        n++;
    }
    return n;
}

static bool is_name(struct rn_gguf_str s, const char *name)
{
    return s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

/* The tokenizer model has a name of its own, beside the pre-tokenizer's: "gpt2" is BPE, "llama" is SentencePiece-style. */
static int read_model(const struct rn_gguf *g, bool *ret_by_score, struct rn_err *err)
{
    struct rn_gguf_str model;
    int r = rn_gguf_get_str(g, "tokenizer.ggml.model", &model, err);
    if (r < 0) {
        return r;
    }
    if (r == 0) {
        return rn_err_set(err, -ENOTSUP, "the file has no tokenizer (tokenizer.ggml.model is missing)");
    }
    if (!is_name(model, "gpt2") && !is_name(model, "llama")) {
        return rn_err_set(err, -ENOTSUP, "tokenizer.ggml.model '%.*s' is not supported, expected 'gpt2' or 'llama'", shown(model),
                          model.data);
    }
    *ret_by_score = is_name(model, "llama");
    return 0;
}

static int find_pretok(const struct rn_gguf *g, const struct rn_pretok_row **ret, struct rn_err *err)
{
    struct rn_gguf_str name = {"default", 7};
    int r = rn_gguf_get_str(g, "tokenizer.ggml.pre", &name, err);
    if (r < 0) {
        return r;
    }
    *ret = rn_pretok_find(name.data, name.len);
    if (*ret == NULL) {
        return rn_err_set(err, -ENOTSUP, "tokenizer.ggml.pre '%.*s' is not a pre-tokenizer we know", shown(name), name.data);
    }
    return 0;
}

static uint64_t hash_array(const struct rn_gguf *g, const char *key, enum rn_gguf_type type, uint64_t hash)
{
    struct rn_gguf_array a;
    return rn_gguf_get_array(g, key, type, &a, NULL) == 1 ? XXH3_64bits_withSeed(a.data, a.bytes, hash) : hash;
}

static uint64_t fingerprint(const struct rn_text *t, const struct rn_gguf *g, const char *name)
{
    // Both arrays were read already; their bytes in the file hold the lengths too.
    uint64_t hash = hash_array(g, "tokenizer.ggml.tokens", RN_GGUF_STR, 0);
    hash = hash_array(g, "tokenizer.ggml.merges", RN_GGUF_STR, hash);
    hash = XXH3_64bits_withSeed(t->vocab.types, t->vocab.n_vocab, hash);
    if (t->by_score) {
        hash = hash_array(g, "tokenizer.ggml.scores", RN_GGUF_F32, hash) + t->spm.space_prefix;
    }
    return XXH3_64bits_withSeed(name, strlen(name), hash);
}

/* A NUL-terminated copy of a token's name; id -1: NULL. */
static int name_of(const struct rn_vocab *v, int64_t id, char **ret, struct rn_err *err)
{
    if (id < 0) {
        return 0;
    }
    size_t len;
    const char *bytes = rn_vocab_bytes(v, (uint32_t)id, &len);
    *ret = rn_mem_strndup(bytes, len);
    return *ret == NULL ? rn_err_nomem(err, len, "a token's name") : 0;
}

static int read_template(struct rn_text *t, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_gguf_str source;
    int r = rn_gguf_get_str(g, "tokenizer.chat_template", &source, err);
    if (r <= 0) {
        return r;
    }
    t->has_template = true;
    r = rn_template_create(&t->tmpl, source.data, source.len, &t->template_err);
    if (r == -ENOMEM) {
        return rn_err_set(err, r, "%s", t->template_err.text);
    }
    return 0; // one that does not parse is reported when it is used
}

/* What cuts the text between special tokens, by pre-tokenizer and merges. */
static int create_merging(struct rn_text *t, const struct rn_gguf *g, const struct rn_pretok_row *row, struct rn_err *err)
{
    t->nfc = row->nfc;
    t->add_bos = row->add_bos;
    int r = rn_bpe_init(&t->bpe, &t->vocab, g, row->ignore_merges, err);
    return r == 0 ? rn_pretok_create(&t->pretok, row, err) : r;
}

static int create_tokenizer(struct rn_text *t, const struct rn_gguf *g, struct rn_err *err)
{
    const struct rn_pretok_row *row = NULL;
    int r = read_model(g, &t->by_score, err);
    if (r == 0 && !t->by_score) {
        r = find_pretok(g, &row, err);
    }
    if (r == 0) {
        r = rn_vocab_init(&t->vocab, g, t->by_score ? RN_VOCAB_PIECES : RN_VOCAB_BYTE_LEVEL, err);
    }
    if (r == 0) {
        r = rn_special_init(&t->special, &t->vocab, err);
    }
    if (r == 0 && t->by_score) {
        t->add_bos = true;
        r = rn_spm_init(&t->spm, &t->vocab, g, err);
    } else if (r == 0) {
        r = create_merging(t, g, row, err);
    }
    if (r == 0) {
        r = rn_gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err);
    }
    if (r < 0) {
        return r;
    }
    t->fingerprint = fingerprint(t, g, t->by_score ? "llama" : row->names[0]);
    return 0;
}

int rn_text_create(struct rn_text **ret, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_text *t = rn_mem_alloc(1, sizeof(*t));
    if (t == NULL) {
        return rn_err_nomem(err, sizeof(*t), "the tokenizer");
    }
    int r = create_tokenizer(t, g, err);
    if (r == 0) {
        r = name_of(&t->vocab, t->vocab.bos, &t->bos_token, err);
    }
    if (r == 0) {
        r = name_of(&t->vocab, t->vocab.eos, &t->eos_token, err);
    }
    if (r == 0) {
        r = read_template(t, g, err);
    }
    if (r < 0) {
        (void)rn_err_prefix(err, "'%s'", rn_gguf_name(g)); // r has the code
        rn_text_destroy(t);
        return r;
    }
    *ret = t;
    return 0;
}

void rn_text_destroy(struct rn_text *t)
{
    if (t == NULL) {
        return;
    }
    rn_template_destroy(t->tmpl);
    rn_mem_free(t->eos_token);
    rn_mem_free(t->bos_token);
    rn_pretok_destroy(t->pretok);
    rn_bpe_finish(&t->bpe);
    rn_spm_finish(&t->spm);
    rn_special_finish(&t->special);
    rn_vocab_finish(&t->vocab);
    rn_mem_free(t);
}

uint32_t rn_text_n_vocab(const struct rn_text *t)
{
    return t->vocab.n_vocab;
}

bool rn_text_is_end(const struct rn_text *t, uint32_t id)
{
    return id < t->vocab.n_vocab && t->vocab.is_end[id] != 0;
}

bool rn_text_is_control(const struct rn_text *t, uint32_t id)
{
    return id < t->vocab.n_vocab && rn_vocab_is_control(&t->vocab, id);
}

int64_t rn_text_bos(const struct rn_text *t)
{
    return t->vocab.bos;
}

bool rn_text_adds_bos(const struct rn_text *t)
{
    return t->add_bos && t->vocab.bos >= 0;
}

bool rn_text_has_template(const struct rn_text *t)
{
    return t->has_template;
}

uint64_t rn_text_fingerprint(const struct rn_text *t)
{
    return t->fingerprint;
}

int rn_text_render(const struct rn_text *t, json_t *variables, struct rn_rendered *ret, struct rn_err *err)
{
    if (!t->has_template) {
        return rn_err_set(err, -ENOENT, "the model has no chat template");
    }
    if (t->tmpl == NULL) {
        return rn_err_set(err, t->template_err.code, "chat template: %s", t->template_err.text);
    }
    int r = rn_template_render(t->tmpl, variables, t->bos_token, t->eos_token, ret, err);
    if (r < 0) {
        (void)rn_err_prefix(err, "chat template"); // r has the code
    }
    return r;
}

/* One call of tokenize: scratch and where ids go. owner: the calling thread. */
struct work {
    const struct rn_text *t;
    struct rn_pretok_run *run; /* NULL where t has none */
    struct rn_bpe_scratch bpe;
    struct rn_spm_scratch spm;
    struct rn_nfc_scratch nfc;
    struct rn_buf normal; /* form C of the part */
    const char *part;     /* the text between two special tokens that is being cut */
    struct rn_ids *ids;
};

static void work_finish(struct work *w)
{
    rn_buf_finish(&w->normal);
    rn_nfc_scratch_finish(&w->nfc);
    rn_spm_scratch_finish(&w->spm);
    rn_bpe_scratch_finish(&w->bpe);
    rn_pretok_run_destroy(w->run);
}

static int encode_piece(void *user, size_t at, size_t len)
{
    struct work *w = user;
    return rn_bpe_encode(&w->t->bpe, &w->bpe, w->part + at, len, w->ids);
}

static int cut_and_merge(struct work *w, const char *part, size_t len, struct rn_err *err)
{
    if (w->t->nfc && !rn_nfc_is_normal(part, len)) {
        rn_buf_clear(&w->normal);
        int r = rn_nfc_add(&w->nfc, part, len, &w->normal);
        if (r < 0) {
            return r;
        }
        part = w->normal.data;
        len = w->normal.len;
    }
    w->part = part;
    return rn_pretok_split(w->run, part, len, encode_piece, w, err);
}

static int encode_part(struct work *w, const char *part, size_t len, struct rn_err *err)
{
    if (len == 0) { // SentencePiece's prefix too is for text only
        return 0;
    }
    int r = w->t->by_score ? rn_spm_encode(&w->t->spm, &w->spm, part, len, w->ids) : cut_and_merge(w, part, len, err);
    return r == -ENOMEM ? rn_err_nomem(err, len, "token ids") : r;
}

/* own: see rn_special_find. */
static int tokenize(const struct rn_text *t, const char *text, const char *own, size_t len, bool control, struct rn_ids *ids,
                    struct rn_err *err)
{
    if (len > MAX_TEXT) {
        return rn_err_set(err, -E2BIG, "the text has %zu bytes, expected at most %zu", len, MAX_TEXT);
    }
    if (len == 0) {
        return 0;
    }
    struct work w = {.t = t, .ids = ids};
    int r = t->by_score ? 0 : rn_pretok_run_create(&w.run, t->pretok, err);
    size_t n_before = ids->len;
    size_t at = 0;
    struct rn_special_hit hit;
    while (r == 0 && rn_special_find(&t->special, text, own, len, at, control, &hit)) {
        r = encode_part(&w, text + at, hit.at - at, err);
        if (r == 0 && rn_ids_add(ids, hit.id) < 0) {
            r = rn_err_nomem(err, sizeof(hit.id), "token ids");
        }
        at = hit.at + hit.len;
    }
    if (r == 0) {
        r = encode_part(&w, text + at, len - at, err);
    }
    ids->len = r == 0 ? ids->len : n_before;
    work_finish(&w);
    return r;
}

int rn_text_tokenize(const struct rn_text *t, const char *text, size_t len, bool special, struct rn_ids *ids, struct rn_err *err)
{
    return tokenize(t, text, /*own=*/NULL, len, special, ids, err);
}

int rn_text_tokenize_rendered_from(const struct rn_text *t, const struct rn_rendered *r, size_t from, struct rn_ids *ids,
                                   struct rn_err *err)
{
    if (r->own.len != r->text.len || from > r->text.len) {
        return rn_err_set(err, -EINVAL, "rendering of %zu bytes with %zu marks, from byte %zu", r->text.len, r->own.len, from);
    }
    if (from == r->text.len) { // perhaps nothing was rendered: no data
        return 0;
    }
    return tokenize(t, r->text.data + from, r->own.data + from, r->text.len - from, /*control=*/true, ids, err);
}

int rn_text_tokenize_rendered(const struct rn_text *t, const struct rn_rendered *r, struct rn_ids *ids, struct rn_err *err)
{
    return rn_text_tokenize_rendered_from(t, r, 0, ids, err);
}
