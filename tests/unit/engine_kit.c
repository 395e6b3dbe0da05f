#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/rows_internal.h"
#include "runtime/seq_internal.h"
#include "tests/unit/engine_kit.h"

uint64_t kit_next(uint64_t *rng)
{
    uint64_t z = *rng += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint32_t kit_below(uint64_t *rng, uint32_t n)
{
    return (uint32_t)(kit_next(rng) % n);
}

const char *kit_model(const struct gguf_llama *model)
{
    static char path[256];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/runnel-test-XXXXXX", dir ? dir : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct gguf_build *b = gguf_build_create();
    gguf_build_llama(b, model);
    assert_true(gguf_build_write(b, path));
    gguf_build_destroy(b);
    return path;
}

struct rn_engine *kit_engine(const struct gguf_llama *model, const struct rn_engine_params *params)
{
    struct rn_engine_params p = *params;
    struct rn_engine *e = NULL;
    struct rn_err err = {0};
    p.model = kit_model(model);
    int r = rn_engine_create(&e, &p, &err);
    unlink(p.model);
    if (r < 0) {
        fail_msg("%s", err.text);
    }
    return e;
}

void kit_engine_destroy(struct rn_engine *e)
{
    assert_int_equal(rn_engine_pool(e)->used, 0);
    assert_int_equal(rn_engine_pool(e)->reserved, 0);
    rn_engine_destroy(e);
}

struct rn_seq *kit_seq(struct rn_engine *e, const struct rn_seq_params *params)
{
    struct rn_seq *s = NULL;
    struct rn_err err = {0};
    if (rn_seq_create(&s, e, params, &err) < 0) {
        fail_msg("%s", err.text);
    }
    return s;
}

void kit_timeline_init(struct kit_timeline *tl, uint32_t n, uint32_t n_vocab, uint32_t mean_turn, uint64_t seed)
{
    *tl = (struct kit_timeline){.n = n, .ids = rn_mem_alloc(n, sizeof *tl->ids), .is_turn = rn_mem_alloc(n, sizeof *tl->is_turn)};
    assert_true(tl->ids && tl->is_turn);
    for (uint32_t t = 0; t < n; t++) {
        tl->ids[t] = kit_below(&seed, n_vocab);
        tl->is_turn[t] = mean_turn && kit_below(&seed, mean_turn) == 0;
    }
}

void kit_timeline_finish(struct kit_timeline *tl)
{
    rn_mem_free(tl->ids);
    rn_mem_free(tl->is_turn);
    *tl = (struct kit_timeline){0};
}

uint64_t kit_after(const struct rn_seq_params *p, uint64_t t)
{
    return t + 1 == p->sinks && p->origin > t ? p->origin : t + 1;
}

void kit_bases(const struct kit_timeline *tl, const struct rn_seq_params *p, uint64_t *bases)
{
    int64_t n = p->n, s = p->sinks, origin = p->origin ? (int64_t)p->origin : s, base = origin;
    for (int64_t t = 0; t < tl->n; t++) {
        if (t >= s && t < origin) {
            continue;
        }
        int64_t by_token = s + (t + 1 - n > 0 ? t + 1 - n : 0);
        if (t < s) {
            base = origin;
        } else if (p->evict == RN_EVICT_TOKEN) {
            base = origin > by_token ? origin : by_token;
        } else if (s + t + 1 - base > n) {
            int64_t to = by_token;
            for (int64_t q = t; q > base && q >= origin; q--) { // downwards: the last hit is the first turn start
                to = tl->is_turn[q] && t + 1 - q >= (n - s) / 4 && s + t + 1 - q <= n - n / 8 ? q : to;
            }
            base = to;
        }
        bases[t] = (uint64_t)base;
    }
}

static void fill_entry(struct rn_step_entry *entry, struct kit_room *room, struct rn_seq *s, const struct rn_seq_params *p, uint32_t n)
{
    assert_true(n >= 1 && n <= KIT_MAX_STEP);
    uint64_t t = rn_seq_head(s);
    for (uint32_t i = 0; i < n; i++) {
        room->index[i] = t;
        t = kit_after(p, t);
    }
    *entry = (struct rn_step_entry){.seq = s, .ids = room->ids, .n_ids = n, .turn_starts = room->turns};
}

void kit_entry(struct rn_step_entry *entry, struct kit_room *room, struct rn_seq *s, const struct rn_seq_params *p,
               const struct kit_timeline *tl, uint32_t n, float *logits)
{
    fill_entry(entry, room, s, p, n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t t = room->index[i];
        assert_true(t < tl->n);
        room->ids[i] = tl->ids[t];
        if (tl->is_turn[t]) {
            room->turns[entry->n_turn_starts++] = t;
        }
    }
    entry->logits = logits;
    entry->n_logits = logits ? n : 0;
}

void kit_garbage(struct rn_step_entry *entry, struct kit_room *room, struct rn_seq *s, const struct rn_seq_params *p, uint32_t n_vocab,
                 uint32_t n, uint64_t *rng)
{
    fill_entry(entry, room, s, p, n);
    for (uint32_t i = 0; i < n; i++) {
        room->ids[i] = kit_below(rng, n_vocab);
        if (kit_below(rng, 8) == 0) {
            room->turns[entry->n_turn_starts++] = room->index[i];
        }
    }
}

/* One token of a page, all layers and heads of its group. */
static void spoil_token(const struct rn_program *p, uint32_t group, bool q8, uint8_t *page, uint32_t slot)
{
    float bad[512];
    size_t bytes = rn_kv_part_bytes(q8, p->head_dim);
    for (uint32_t d = 0; d < p->head_dim; d++) {
        bad[d] = q8 ? (d % 32 ? 3e30f : -3e38f) : (d % 2 ? (float)__builtin_nanf("") : 65504.0f); // a q8_0 scale becomes infinite
    }
    for (uint32_t part = 0; part < p->groups[group].n_layers * p->n_kv_heads; part++) {
        uint8_t *k = page + (size_t)part * 2 * bytes;
        (q8 ? rn_kv_write_q8_0_c : rn_kv_write_f16_c)(bad, bad, p->head_dim, k, k + bytes, slot);
    }
}

/* The window pages of a group: all cells at or above `head`, or below `low`. */
static void spoil_window(const struct rn_program *p, uint32_t g, bool q8, const struct rn_page_list *list, uint64_t start, uint64_t low, uint64_t head)
{
    for (size_t i = 0; i < list->n * RN_PAGE_TOKENS; i++) {
        uint64_t t = start + i;
        if ((t >= head || t < low) && list->pages[i / RN_PAGE_TOKENS]->refs == 1) {
            spoil_token(p, g, q8, list->data[i / RN_PAGE_TOKENS], (uint32_t)(i % RN_PAGE_TOKENS));
        }
    }
}

void kit_spoil(struct rn_seq *s, uint64_t keep)
{
    const struct rn_program *p = rn_engine_program(s->engine);
    bool q8 = strcmp(rn_engine_info(s->engine)->kv, "q8_0") == 0;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        uint64_t slid = keep + 1 > group->sliding ? keep + 1 - group->sliding : 0, low = group->sliding ? slid : rn_seq_base(s, keep);
        for (size_t i = 0; i < group->pinned.n * RN_PAGE_TOKENS; i++) {
            if (i >= s->head && group->pinned.pages[i / RN_PAGE_TOKENS]->refs == 1) {
                spoil_token(p, g, false, group->pinned.data[i / RN_PAGE_TOKENS], (uint32_t)(i % RN_PAGE_TOKENS));
            }
        }
        bool split = group->sliding && s->origin > s->s;
        spoil_window(p, g, q8, &group->window, group->s + group->first_page * RN_PAGE_TOKENS, split && low < s->origin ? s->origin : low, s->head);
        spoil_window(p, g, q8, &group->before, group->before_page * RN_PAGE_TOKENS, low, s->head < s->s ? s->head : s->s);
    }
}
