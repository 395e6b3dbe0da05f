#include "tests/unit/fake_engine.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

struct rn_text {
    struct fake *fake;
};

struct rn_engine {
    struct fake fake;
    struct rn_engine_info info;
    struct rn_text text;
    struct rn_seq *seqs;
    bool down;
};

struct rn_seq {
    struct rn_engine *e;
    struct rn_seq *next;
    struct rn_seq_params p;
    uint64_t origin;
    uint32_t *ids; /* by place: index i < S at place i, index i >= origin at S + i - origin */
    uint64_t *values, *bases;
    bool *turns;
    size_t len, cap;
    uint64_t accepted, h, turn, low;
    bool reserved;
};

struct rn_engine *fake_engine_create(void)
{
    struct rn_engine *e = calloc(1, sizeof *e);
    e->fake = (struct fake){.tokenizer_fingerprint = 77, .n_ctx_train = 8192};
    e->text.fake = &e->fake;
    return e;
}

struct fake *fake_of(struct rn_engine *e)
{
    return &e->fake;
}

void fake_engine_destroy(struct rn_engine *e)
{
    if (e->seqs) {
        abort(); // the service must have destroyed them all
    }
    free(e);
}

const struct rn_engine_info *rn_engine_info(const struct rn_engine *e)
{
    struct rn_engine_info *info = &((struct rn_engine *)e)->info;
    *info = (struct rn_engine_info){.model_id = "fake",
                                    .arch = "fake",
                                    .device = "none",
                                    .fingerprint = "fake-1",
                                    .kv = "f16",
                                    .n_vocab = FAKE_VOCAB,
                                    .n_ctx_train = e->fake.n_ctx_train,
                                    .n_layers = 1,
                                    .n_threads = 1,
                                    .tokenizer_fingerprint = e->fake.tokenizer_fingerprint};
    return info;
}

const struct rn_text *rn_engine_text(const struct rn_engine *e)
{
    return &e->text;
}

/* ---- sequences ---- */

int rn_seq_create(struct rn_seq **ret, struct rn_engine *e, const struct rn_seq_params *p, struct rn_err *err)
{
    double most = e->fake.n_ctx_train * (p->rope.kind ? (double)p->rope.factor : 1);
    if (p->n < 16 || p->n > most || (p->rope.kind && p->rope.factor < 1) || p->sinks > p->n / 2 || (p->origin && p->origin < p->sinks)) {
        return rn_err_set(err, -EINVAL, "bad parameters");
    }
    struct rn_seq *s = calloc(1, sizeof *s);
    s->e = e;
    s->p = *p;
    s->origin = p->origin ? p->origin : p->sinks;
    s->next = e->seqs;
    e->seqs = s;
    *ret = s;
    return 0;
}

void rn_seq_destroy(struct rn_seq *s)
{
    if (!s) {
        return;
    }
    for (struct rn_seq **at = &s->e->seqs; *at; at = &(*at)->next) {
        if (*at == s) {
            *at = s->next;
            break;
        }
    }
    free(s->ids);
    free(s->values);
    free(s->bases);
    free(s->turns);
    free(s);
}

static uint64_t index_of(const struct rn_seq *s, size_t place)
{
    return place < s->p.sinks ? place : s->origin + (place - s->p.sinks);
}

static size_t place_of(const struct rn_seq *s, uint64_t index)
{
    return (size_t)(index < s->p.sinks ? index : index - s->origin + s->p.sinks);
}

uint64_t rn_seq_head(const struct rn_seq *s)
{
    return index_of(s, s->len);
}

uint64_t rn_seq_origin(const struct rn_seq *s)
{
    return s->origin;
}

static uint64_t rule(const struct rn_seq *s, uint64_t t, uint64_t before, bool turn_at_t)
{
    uint64_t n = s->p.n, k = s->p.sinks;
    if (t < k || k + t + 1 - before <= n) {
        return before;
    }
    for (uint64_t p = before + 1; s->p.evict == RN_EVICT_TURN && p <= t; p++) {
        bool turn = p == t ? turn_at_t : s->turns[place_of(s, p)];
        if (turn && t + 1 - p >= (n - k) / 4 && k + t + 1 - p <= n - n / 8) {
            return p;
        }
    }
    return k + t + 1 - n;
}

static uint64_t newest_base(const struct rn_seq *s)
{
    return s->len ? s->bases[s->len - 1] : s->origin;
}

uint64_t rn_seq_base(const struct rn_seq *s, uint64_t t)
{
    size_t place = place_of(s, t);
    return place < s->len ? s->bases[place] : s->origin;
}

uint64_t rn_seq_next_base(const struct rn_seq *s)
{
    return rule(s, rn_seq_head(s), newest_base(s), false);
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void drop_below(struct rn_seq *s, uint64_t u)
{
    if (u > s->origin && place_of(s, u) < s->len) {
        uint64_t low = rn_seq_base(s, u);
        s->low = low > s->low ? low : s->low;
    }
}

void rn_seq_accept(struct rn_seq *s, uint64_t end)
{
    if (end > rn_seq_head(s) || (s->p.stored && s->h >= end)) {
        abort(); // c beyond the tokens, or h beyond c
    }
    s->accepted = end;
    uint64_t c = end - 1, held = minus(s->p.stored ? s->h : c, RN_SLACK);
    held = s->p.stored && s->turn < held ? s->turn : held;
    uint64_t far = minus(c, s->p.n + 2 * RN_SLACK);
    drop_below(s, far > held ? far : held);
}

void rn_seq_hold(struct rn_seq *s, uint64_t h, uint64_t p)
{
    s->h = h;
    s->turn = p;
}

void rn_seq_trim(struct rn_seq *s)
{
    if (s->accepted) {
        drop_below(s, minus(s->accepted - 1, 16));
    }
}

static bool alive(const struct rn_seq *s, uint64_t end)
{
    uint64_t base = end > s->p.sinks && place_of(s, end) ? s->bases[place_of(s, end) - 1] : s->origin;
    return end <= s->p.sinks || base >= s->low;
}

int rn_seq_rewind(struct rn_seq *s, uint64_t end, struct rn_err *err)
{
    if (end > rn_seq_head(s) || (end > s->p.sinks && end < s->origin)) {
        return rn_err_set(err, -EINVAL, "bad rewind");
    }
    if (!alive(s, end)) {
        return rn_err_set(err, -ENODATA, "gone");
    }
    s->len = place_of(s, end);
    return 0;
}

static void push(struct rn_seq *s, uint32_t id, uint64_t value, uint64_t base, bool turn)
{
    if (s->len == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 64;
        s->ids = realloc(s->ids, s->cap * sizeof *s->ids);
        s->values = realloc(s->values, s->cap * sizeof *s->values);
        s->bases = realloc(s->bases, s->cap * sizeof *s->bases);
        s->turns = realloc(s->turns, s->cap * sizeof *s->turns);
    }
    s->ids[s->len] = id;
    s->values[s->len] = value;
    s->bases[s->len] = base;
    s->turns[s->len++] = turn;
}

int rn_seq_fork(struct rn_seq **ret, const struct rn_seq *s, uint64_t at, struct rn_err *err)
{
    if (at > rn_seq_head(s)) {
        abort();
    }
    if (!alive(s, at)) {
        return rn_err_set(err, -ENODATA, "gone");
    }
    struct rn_seq_params p = s->p;
    p.origin = at > s->origin ? s->origin : 0;
    int r = rn_seq_create(ret, s->e, &p, err);
    for (size_t i = 0; r == 0 && i < place_of(s, at); i++) {
        push(*ret, s->ids[i], s->values[i], s->bases[i], s->turns[i]);
    }
    if (r == 0) {
        (*ret)->low = s->low;
    }
    return r;
}

static uint64_t holds(const struct rn_seq *s)
{
    return s->reserved ? (uint64_t)s->p.n + 256 + 128 : s->len;
}

size_t rn_seq_bytes(const struct rn_seq *s)
{
    return (size_t)minus(s->len, s->low);
}

int rn_seq_reserve(struct rn_seq *s, struct rn_err *err)
{
    uint64_t sum = (uint64_t)s->p.n + 256 + 128;
    for (const struct rn_seq *o = s->e->seqs; o; o = o->next) {
        sum += o == s ? 0 : holds(o);
    }
    if (s->e->fake.pool && sum > s->e->fake.pool) {
        return rn_err_set(err, -EAGAIN, "the pool is full");
    }
    s->reserved = true;
    return 0;
}

void rn_seq_unreserve(struct rn_seq *s)
{
    s->reserved = false;
}

/* ---- steps ---- */

static uint64_t mix(uint64_t h)
{
    h ^= h >> 31;
    h *= 0x9E3779B97F4A7C15ull;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9ull;
    return h ^ (h >> 32);
}

static void run_token(struct rn_seq *s, uint32_t id, bool turn)
{
    const struct rn_rope_scaling *p = &s->p.rope; // a token is another one at other angles
    uint64_t t = rn_seq_head(s), base = rule(s, t, newest_base(s), turn);
    uint64_t value = mix(id + 1 + 1000 * (uint64_t)p->kind + 10000 * (uint64_t)(p->factor * 100));
    for (size_t i = 0; i < s->p.sinks && i < s->len; i++) {
        value = mix(value ^ s->values[i]);
    }
    if (t >= s->p.sinks) {
        if (base < s->low) {
            abort(); // a dead page
        }
        for (size_t i = place_of(s, base); i < s->len; i++) {
            value = mix(value + s->values[i]);
        }
    }
    push(s, id, value, base, turn);
}

static void make_logits(const struct fake *f, uint64_t value, float *logits)
{
    static const char likely[] = "abcdefghijklmnopqrstuvwxyz    .,";
    for (uint32_t i = 0; i < FAKE_VOCAB; i++) {
        logits[i] = -30.0f;
    }
    for (size_t i = 0; likely[i]; i++) {
        logits[(unsigned char)likely[i]] = (float)(mix(value + 3 * i) % 1000) / 100.0f;
    }
    if (f->halves) {
        logits[0xC3] = 6.0f + (float)(mix(value + 1000) % 1000) / 200.0f;
        logits[0xA9] = 6.0f + (float)(mix(value + 1001) % 1000) / 200.0f;
    }
    logits[FAKE_END] = f->no_end ? -30.0f : (float)(mix(value + 1002) % 1000) / 100.0f;
}

int rn_engine_step(struct rn_engine *e, struct rn_step_entry *entries, uint32_t n, struct rn_err *err)
{
    if (e->fake.on_step) {
        e->fake.on_step(e->fake.user, entries, n);
    }
    e->fake.steps++;
    if (e->down || (e->fake.fail_step && --e->fake.fail_step == 0)) {
        e->down = e->down || e->fake.fail_code == -EIO;
        return rn_err_set(err, e->fake.fail_code, "the device is lost");
    }
    for (uint32_t k = 0; k < n; k++) {
        struct rn_step_entry *entry = &entries[k];
        uint32_t turn = 0;
        for (uint32_t i = 0; i < entry->n_ids; i++) {
            bool starts = turn < entry->n_turn_starts && entry->turn_starts[turn] == rn_seq_head(entry->seq);
            turn += starts;
            if (entry->ids[i] >= FAKE_VOCAB) {
                abort();
            }
            run_token(entry->seq, entry->ids[i], starts);
            if (entry->n_logits && i + entry->n_logits >= entry->n_ids) {
                make_logits(&e->fake, entry->seq->values[entry->seq->len - 1],
                            entry->logits + (size_t)(i + entry->n_logits - entry->n_ids) * FAKE_VOCAB);
            }
        }
        if (turn != entry->n_turn_starts) {
            abort();
        }
        e->fake.rows += entry->n_ids;
    }
    return 0;
}

int rn_engine_rebuild(struct rn_engine *e, struct rn_err *err)
{
    if (e->seqs) {
        abort(); // the pages are gone: so must be the sequences
    }
    e->fake.rebuilds++;
    if (e->fake.fail_rebuild > 0) {
        e->fake.fail_rebuild--;
        return rn_err_set(err, -ENODEV, "there is no device");
    }
    e->fake.fail_step = e->fake.fail_again;
    e->fake.fail_again = 0;
    e->down = false;
    return 0;
}

int rn_engine_probe(struct rn_engine *e, struct rn_err *err)
{
    uint32_t id = 0;
    struct rn_seq *s = NULL;
    struct rn_step_entry entry = {.ids = &id, .n_ids = 1};
    void (*on_step)(void *, const struct rn_step_entry *, uint32_t) = e->fake.on_step;
    int r = rn_seq_create(&s, e, &(struct rn_seq_params){.n = 16}, err);
    entry.seq = s;
    e->fake.on_step = NULL; // not the test's business
    r = r < 0 ? r : rn_engine_step(e, &entry, 1, err);
    e->fake.on_step = on_step;
    rn_seq_destroy(s);
    return r;
}

size_t fake_answer(struct rn_engine *e, const struct rn_seq_params *params, const uint32_t *ids, size_t n_ids, uint32_t *ret, size_t n)
{
    struct rn_engine own = {.fake = {.n_ctx_train = e->fake.n_ctx_train, .no_end = e->fake.no_end, .halves = e->fake.halves}};
    struct rn_seq *s; // beside the service's: on an engine of its own
    if (rn_seq_create(&s, &own, params, NULL) < 0) {
        abort();
    }
    float logits[FAKE_VOCAB];
    size_t made = 0;
    for (size_t i = 0; i < n_ids; i++) {
        run_token(s, ids[i], ids[i] == FAKE_START && i + 1 < n_ids && ids[i + 1] == 'u');
    }
    while (made < n) {
        make_logits(&own.fake, s->values[s->len - 1], logits);
        uint32_t best = 0;
        for (uint32_t i = 1; i < FAKE_VOCAB; i++) {
            best = logits[i] > logits[best] ? i : best;
        }
        if (best == FAKE_END) {
            break;
        }
        ret[made++] = best;
        run_token(s, best, false);
    }
    rn_seq_destroy(s);
    return made;
}

/* ---- text ---- */

static const struct {
    const char *text;
    uint32_t id;
} controls[] = {{"<|im_start|>", FAKE_START}, {"<|im_end|>", FAKE_END}, {"<|bos|>", FAKE_BOS}};

uint32_t rn_text_n_vocab(const struct rn_text *t)
{
    (void)t;
    return FAKE_VOCAB;
}

bool rn_text_is_end(const struct rn_text *t, uint32_t id)
{
    (void)t;
    return id == FAKE_END;
}

bool rn_text_is_control(const struct rn_text *t, uint32_t id)
{
    (void)t;
    return id >= FAKE_START && id <= FAKE_BOS;
}

const char *rn_text_token_bytes(const struct rn_text *t, uint32_t id, size_t *ret_len)
{
    static const char *const names[] = {"<|im_start|>", "<|im_end|>", "<|bos|>", "\n\n"};
    static char bytes[256];
    (void)t;
    if (id >= 256) {
        *ret_len = id <= FAKE_BREAKS ? strlen(names[id - 256]) : 0;
        return id <= FAKE_BREAKS ? names[id - 256] : "";
    }
    bytes[id] = (char)id;
    *ret_len = 1;
    return &bytes[id];
}

int64_t rn_text_bos(const struct rn_text *t)
{
    (void)t;
    return FAKE_BOS;
}

void rn_rendered_finish(struct rn_rendered *r)
{
    rn_buf_finish(&r->text);
    rn_buf_finish(&r->own);
}

static void put(struct rn_rendered *r, const char *text, bool own)
{
    rn_buf_add_str(&r->text, text);
    while (r->own.len < r->text.len) {
        rn_buf_add_char(&r->own, (char)own);
    }
}

static const char *field(const json_t *list, size_t i, const char *name)
{
    const char *s = json_string_value(json_object_get(json_array_get(list, i), name));
    return s ? s : "";
}

static void put_message(struct rn_rendered *r, const char *role, const char *before, const char *text)
{
    put(r, "<|im_start|>", true);
    put(r, role, false);
    put(r, "\n", true);
    put(r, before, true);
    put(r, text, false);
    put(r, "<|im_end|>\n", true);
}

int rn_text_render(const struct rn_text *t, json_t *variables, struct rn_rendered *ret, struct rn_err *err)
{
    enum fake_template kind = t->fake->template;
    json_t *list = json_object_get(variables, "messages");
    size_t n = json_array_size(list);
    if (kind == FAKE_NO_TEMPLATE) {
        return rn_err_set(err, -ENOENT, "the model has no chat template");
    }
    const char *system = n && strcmp(field(list, 0, "role"), "system") == 0 ? field(list, 0, "content") : NULL;
    size_t i = 0;
    if (kind == FAKE_SYSTEM_IN_USER) {
        put(ret, "<|bos|>", true);
        i = system != NULL;
    } else if (!system && n) {
        put_message(ret, "system", "Be good.", "");
    }
    for (; i < n; i++) {
        const char *role = field(list, i, "role"), *text = field(list, i, "content");
        if (strstr(text, "REFUSE")) {
            return rn_err_set(err, -EINVAL, "line 1, column 2: the template refuses");
        }
        bool first_user = kind == FAKE_SYSTEM_IN_USER && system && i == 1;
        bool thinks = kind == FAKE_REWRITES && i + 1 == n && strcmp(role, "assistant") == 0;
        if (first_user) {
            struct rn_buf both = {0};
            rn_buf_printf(&both, "%s\n\n%s", system, text);
            put_message(ret, role, "", both.data);
            rn_buf_finish(&both);
        } else {
            put_message(ret, role, thinks ? "<think></think>" : "", text);
        }
    }
    if (json_is_true(json_object_get(variables, "add_generation_prompt"))) {
        put(ret, "<|im_start|>assistant\n", true);
    }
    return 0;
}

int rn_text_tokenize_rendered_from(const struct rn_text *t, const struct rn_rendered *r, size_t from, struct rn_ids *ids,
                                   struct rn_err *err)
{
    (void)t;
    (void)err;
    for (size_t i = from; i < r->text.len;) {
        size_t len = 1;
        uint32_t id = (unsigned char)r->text.data[i];
        for (size_t k = 0; k < 3; k++) {
            size_t n = strlen(controls[k].text);
            if (i + n <= r->text.len && memcmp(r->text.data + i, controls[k].text, n) == 0 && !memchr(r->own.data + i, 0, n)) {
                len = n;
                id = controls[k].id;
            }
        }
        if (len == 1 && i + 2 <= r->text.len && memcmp(r->text.data + i, "\n\n", 2) == 0) {
            len = 2;
            id = FAKE_BREAKS;
        }
        rn_ids_add(ids, id);
        i += len;
    }
    return 0;
}

int rn_detok_push(struct rn_detok *d, const struct rn_text *t, uint32_t id, bool special, struct rn_buf *out)
{
    (void)t;
    (void)special;
    if (d->n_held && id == 0xA9) {
        d->n_held = 0;
        return rn_buf_add_str(out, "\xC3\xA9");
    }
    int r = d->n_held ? rn_buf_add_str(out, "\xEF\xBF\xBD") : 0;
    d->n_held = id == 0xC3;
    if (r < 0 || d->n_held) {
        return r;
    }
    if (id == FAKE_BREAKS) {
        return rn_buf_add_str(out, "\n\n");
    }
    return id >= 256 ? 0 : id >= 128 ? rn_buf_add_str(out, "\xEF\xBF\xBD") : rn_buf_add_char(out, (char)id);
}

int rn_detok_end(struct rn_detok *d, struct rn_buf *out)
{
    bool held = d->n_held != 0;
    d->n_held = 0;
    return held ? rn_buf_add_str(out, "\xEF\xBF\xBD") : 0;
}
