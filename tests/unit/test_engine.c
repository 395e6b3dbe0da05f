/* The numerics contract: a token's logits are a pure function of the tokens up to it. Tiny random models in every weight type are run token
 * by token once; then the same tokens go through in every other way there is (chunks, rejected drafts, threads, neighbours, forks, rewinds,
 * trimmed and spoilt pages, other kernel rows), and every logit of every token must have the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/kernels.h"
#include "runtime/seq_internal.h"
#include "tests/unit/engine_kit.h"

static const struct gguf_llama shapes[] = {
    {.n_vocab = 264},
    {.n_layers = 1,
     .d_model = 96,
     .d_ff = 160,
     .n_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 64,
     .n_vocab = 275,
     .has_biases = true,
     .has_output = true},
    {.n_heads = 8, .n_kv_heads = 1, .n_vocab = 272, .has_rope_freqs = true, .rope_base = 1e6f},
    {.n_layers = 1, .n_heads = 20, .n_kv_heads = 1, .n_vocab = 260}, // more query heads per KV head than one kernel call takes
};

static const struct {
    uint32_t n, sinks;
} windows[] = {{64, 0}, {100, 4}, {160, 70}, {200, 70}};

struct world { // one model, one timeline, the logits that every way must give
    struct gguf_llama model;
    const char *kv;
    struct rn_seq_params seq;
    struct kit_timeline tl;
    uint64_t *bases;
    float *want; // [tl.n, n_vocab]
    uint64_t rng;
};

enum way {
    DRAFTS = 1,  // garbage is appended and taken back
    TRIM = 2,    // pages are freed as early as possible
    FORK = 4,    // goes on in a fork, or in the parent of a fork that was written to
    COMPANY = 8, // other sequences in the same steps
    REWIND = 16, // goes back further than a draft
    SPOIL = 32,  // dead cells hold NaN and infinities before every step
};

struct walk {
    struct world *w;
    struct rn_engine *e;
    struct rn_seq *s, *others[2];
    uint32_t chunk; // 0 = random
    unsigned ways;
    uint64_t floor;         // nothing goes back further: pages below were trimmed or spoilt
    struct kit_room *rooms; // 3
    float *logits;
};

static const struct rn_seq_params other_params[2] = {{.n = 48, .sinks = 9, .evict = RN_EVICT_TOKEN},
                                                     {.n = 80, .sinks = 0, .evict = RN_EVICT_TURN}};

static void step(struct rn_engine *e, struct rn_step_entry *entries, uint32_t n)
{
    struct rn_err err = {0};
    if (rn_engine_step(e, entries, n, &err) < 0) {
        fail_msg("%s", err.text);
    }
}

/* Appends n tokens of the timeline, perhaps beside others, and compares all their logits. */
static void advance(struct walk *k, uint32_t n)
{
    struct world *w = k->w;
    uint32_t n_vocab = w->model.n_vocab, n_entries = 0, mine = (k->ways & COMPANY) ? kit_below(&w->rng, 3) : 0;
    struct rn_step_entry entries[3];
    uint64_t head = rn_seq_head(k->s), next_base = rn_seq_next_base(k->s);
    for (uint32_t i = 0; i < ((k->ways & COMPANY) ? 3u : 1u); i++) {
        uint32_t other = i > mine ? i - 1 : i;
        if (i == mine) {
            kit_entry(&entries[n_entries++], &k->rooms[i], k->s, &w->seq, &w->tl, n, k->logits);
        } else {
            kit_garbage(&entries[n_entries++], &k->rooms[i], k->others[other], &other_params[other], n_vocab, 1 + kit_below(&w->rng, 20),
                        &w->rng);
        }
    }
    step(k->e, entries, n_entries);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t t = k->rooms[mine].index[i];
        assert_int_equal(rn_seq_base(k->s, t), w->bases[t]);
        if (memcmp(k->logits + (size_t)i * n_vocab, w->want + t * n_vocab, n_vocab * sizeof(float)) != 0) {
            fail_msg("other logits at %llu (head %llu, n %u, ways %u, chunk %u, N %u, S %u)", (unsigned long long)t,
                     (unsigned long long)head, n, k->ways, k->chunk, w->seq.n, w->seq.sinks);
        }
    }
    if (!w->tl.is_turn[head]) {
        assert_int_equal(next_base, w->bases[head]);
    }
}

static void reject_draft(struct walk *k)
{
    struct rn_step_entry entry;
    uint64_t head = rn_seq_head(k->s);
    kit_garbage(&entry, &k->rooms[0], k->s, &k->w->seq, k->w->model.n_vocab, 1 + kit_below(&k->w->rng, (k->ways & TRIM) ? 16 : 90),
                &k->w->rng);
    step(k->e, &entry, 1);
    assert_int_equal(rn_seq_rewind(k->s, head, NULL), 0);
    assert_int_equal(rn_seq_head(k->s), head);
}

/* An index that a sequence can have as its head: none between S and the origin. */
static uint64_t outside_gap(const struct rn_seq *s, uint64_t at)
{
    return at > s->s && at < s->origin ? s->origin : at;
}

/* A place up to `most` tokens back. */
static uint64_t back(struct walk *k, uint32_t most)
{
    uint64_t head = rn_seq_head(k->s), by = kit_below(&k->w->rng, most + 1), low = k->floor > k->s->low ? k->floor : k->s->low;
    uint64_t to = head > by ? head - by : 0;
    return outside_gap(k->s, to > low ? to : low);
}

/* Forks, writes into one of the two and goes on with the other. */
static void change_horses(struct walk *k)
{
    uint64_t at = back(k, 120);
    if (k->s->origin > k->s->s && at <= k->s->origin) {
        return; // of a re-read sequence: such a fork has another origin, so other logits
    }
    struct rn_seq *fork = NULL;
    struct rn_step_entry entry;
    assert_int_equal(rn_seq_fork(&fork, k->s, at, NULL), 0);
    assert_int_equal(rn_seq_head(fork), at);
    bool go_on_in_fork = kit_below(&k->w->rng, 2);
    struct rn_seq *spoilt = go_on_in_fork ? k->s : fork;
    uint64_t to = outside_gap(spoilt, at - kit_below(&k->w->rng, at - k->s->low < 6 ? 1 : 6));
    assert_int_equal(rn_seq_rewind(spoilt, to, NULL), 0); // into shared pages
    kit_garbage(&entry, &k->rooms[0], spoilt, &k->w->seq, k->w->model.n_vocab, 1 + kit_below(&k->w->rng, 80), &k->w->rng);
    step(k->e, &entry, 1);
    k->s = go_on_in_fork ? fork : k->s;
    rn_seq_destroy(spoilt);
}

static uint32_t next_chunk(struct walk *k)
{
    static const uint32_t most[] = {1, 4, 18, 70, 300};
    uint32_t n = k->chunk ? k->chunk : 1 + kit_below(&k->w->rng, most[kit_below(&k->w->rng, 5)]);
    uint64_t head = rn_seq_head(k->s), left = k->w->tl.n - head;
    if (head < k->s->s && k->s->origin > k->s->s) {
        left -= k->s->origin - k->s->s;
    }
    return n < left ? n : (uint32_t)left;
}

static void walk(struct world *w, struct rn_engine *e, uint32_t chunk, unsigned ways)
{
    struct walk k = {.w = w, .e = e, .s = kit_seq(e, &w->seq), .chunk = chunk, .ways = ways};
    k.rooms = rn_mem_alloc(3, sizeof *k.rooms);
    k.logits = rn_mem_alloc(KIT_MAX_STEP * (size_t)w->model.n_vocab, sizeof *k.logits);
    assert_true(k.rooms && k.logits);
    for (int i = 0; i < 2; i++) {
        k.others[i] = kit_seq(e, &other_params[i]);
    }
    for (int turn = 0; rn_seq_head(k.s) < w->tl.n; turn++) {
        if ((ways & DRAFTS) && kit_below(&w->rng, 2)) {
            reject_draft(&k);
        }
        if (ways & SPOIL) {
            uint64_t keep = rn_seq_head(k.s) > 100 ? rn_seq_head(k.s) - 100 : 0;
            k.floor = keep > k.floor ? keep : k.floor;
            kit_spoil(k.s, k.floor);
        }
        advance(&k, next_chunk(&k));
        if ((ways & REWIND) && turn < 40 && kit_below(&w->rng, 3) == 0) {
            assert_int_equal(rn_seq_rewind(k.s, back(&k, 150), NULL), 0);
        }
        rn_seq_accept(k.s, rn_seq_head(k.s));
        if (ways & TRIM) {
            rn_seq_trim(k.s);
        }
        if ((ways & FORK) && turn < 40 && kit_below(&w->rng, 3) == 0) {
            change_horses(&k);
        }
    }
    rn_seq_destroy(k.s);
    rn_seq_destroy(k.others[0]);
    rn_seq_destroy(k.others[1]);
    rn_mem_free(k.rooms);
    rn_mem_free(k.logits);
}

/* The truth of a world: one token after the other, nothing freed, nothing taken back. */
static void world_init(struct world *w, struct rn_engine *e, uint32_t n_tokens, uint64_t seed)
{
    w->rng = seed;
    kit_timeline_init(&w->tl, n_tokens, w->model.n_vocab, w->seq.evict == RN_EVICT_TURN ? 23 : 0, seed);
    w->bases = rn_mem_alloc(n_tokens, sizeof *w->bases);
    w->want = rn_mem_alloc((size_t)n_tokens * w->model.n_vocab, sizeof *w->want);
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    assert_true(w->bases && w->want && room);
    kit_bases(&w->tl, &w->seq, w->bases);
    struct rn_seq *s = kit_seq(e, &w->seq);
    for (uint64_t t; (t = rn_seq_head(s)) < n_tokens;) {
        struct rn_step_entry entry;
        kit_entry(&entry, room, s, &w->seq, &w->tl, 1, w->want + (size_t)t * w->model.n_vocab);
        step(e, &entry, 1);
        for (uint32_t i = 0; i < w->model.n_vocab; i++) {
            assert_true(isfinite(w->want[(size_t)t * w->model.n_vocab + i]));
        }
    }
    rn_seq_destroy(s);
    rn_mem_free(room);
}

static void world_finish(struct world *w)
{
    kit_timeline_finish(&w->tl);
    rn_mem_free(w->bases);
    rn_mem_free(w->want);
}

/* What hides the best rows, one after the other, until plain C is left. The names before a mask's last one hide nothing on other
 * architectures. */
static const struct {
    const char *name, *mask;
} masks[] = {
    {"avx512vnni", "avx512vnni"},
    {"avxvnni", "avx512vnni,avxvnni"},
    {"avx2", "avx512vnni,avxvnni,avx2"},
    {"neon_i8mm", "avx512vnni,avxvnni,avx2,neon_i8mm"},
    {"neon_dotprod", "avx512vnni,avxvnni,avx2,neon_i8mm,neon_dotprod"},
};

/* Does mask i leave another row than the mask before, for any operation? Some instruction sets have rows for some operations only. */
static bool mask_matters(size_t i)
{
    struct rn_cpu_kernels with, without;
    return rn_cpu_kernels_choose(&with, i ? masks[i - 1].mask : NULL, NULL) == 0 &&
           rn_cpu_kernels_choose(&without, masks[i].mask, NULL) == 0 && memcmp(with.row, without.row, sizeof with.row) != 0;
}

/* Was a row of that name compiled at all? */
static bool is_built(const char *name)
{
    for (uint32_t op = 0; op < RN_CPU_OP_COUNT; op++) {
        size_t n;
        const struct rn_cpu_row *rows = rn_cpu_rows((enum rn_cpu_op)op, &n);
        for (size_t k = 0; k < n; k++) {
            if (strcmp(rows[k].name, name) == 0) {
                return true;
            }
        }
    }
    return false;
}

static void run_world(struct world *w, uint32_t n_tokens, uint64_t seed, bool long_walks)
{
    struct rn_engine_params one = {.n_threads = 1, .kv = w->kv}, two = {.n_threads = 2, .kv = w->kv},
                            poisoned = {.n_threads = 1, .kv = w->kv, .poison = true};
    struct rn_engine *e = kit_engine(&w->model, &one);
    world_init(w, e, n_tokens, seed);
    for (uint32_t chunk = 0; chunk < 4 && !long_walks; chunk++) {
        walk(w, e, (const uint32_t[]){7, 64, 512, 16}[chunk], 0);
    }
    walk(w, e, 0, DRAFTS);
    walk(w, e, 0, DRAFTS | TRIM | FORK);
    walk(w, e, 0, FORK | REWIND | COMPANY);
    kit_engine_destroy(e);
    e = kit_engine(&w->model, &two);
    walk(w, e, 0, DRAFTS | COMPANY | TRIM);
    walk(w, e, 33, 0);
    kit_engine_destroy(e);
    e = kit_engine(&w->model, &poisoned);
    walk(w, e, 0, DRAFTS | SPOIL | REWIND);
    walk(w, e, 0, TRIM | FORK | SPOIL);
    kit_engine_destroy(e);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        if (mask_matters(i)) {
            e = kit_engine(&w->model, &(struct rn_engine_params){.n_threads = 1, .kv = w->kv, .cpu_mask = masks[i].mask});
            walk(w, e, 0, long_walks ? 0 : DRAFTS | COMPANY);
            walk(w, e, 45, SPOIL);
            kit_engine_destroy(e);
        }
    }
    world_finish(w);
}

static void run_type(enum rn_dtype type, uint64_t seed)
{
    for (uint32_t i = 0; i < 4; i++) { // both KV types with both policies
        uint32_t which = (uint32_t)((i + seed) % 4);
        struct world w = {.model = shapes[which], .kv = i % 2 ? "f16" : "q8_0"};
        w.model.type = type;
        w.model.seed = seed * 10 + i;
        w.seq = (struct rn_seq_params){.n = windows[(i + seed / 2) % 4].n,
                                       .sinks = windows[(i + seed / 2) % 4].sinks,
                                       .evict = i / 2 ? RN_EVICT_TOKEN : RN_EVICT_TURN};
        run_world(&w, 3 * w.seq.n + 20, seed * 100 + i, false);
    }
}

static void float32_weights(void **state)
{
    (void)state;
    run_type(RN_DTYPE_F32, 1);
}

static void float16_weights(void **state)
{
    (void)state;
    run_type(RN_DTYPE_F16, 2);
}

static void q4_0_weights(void **state)
{
    (void)state;
    run_type(RN_DTYPE_Q4_0, 3);
}

static void q4_1_weights(void **state)
{
    (void)state;
    run_type(RN_DTYPE_Q4_1, 4);
}

static void q8_0_weights(void **state)
{
    (void)state;
    run_type(RN_DTYPE_Q8_0, 5);
}

/* The other types, one world each. K types in rows of 256, with a second type where rows do not divide, as in people's files. */
static void bf16_and_other_blocks_of_32(void **state)
{
    (void)state;
    const enum rn_dtype types[] = {RN_DTYPE_BF16, RN_DTYPE_Q5_0, RN_DTYPE_Q5_1, RN_DTYPE_IQ4_NL, RN_DTYPE_MXFP4};
    for (uint32_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct world w = {.model = shapes[i % 4], .kv = i % 2 ? "f16" : "q8_0"};
        w.model.type = types[i];
        w.model.seed = 60 + i;
        w.seq = (struct rn_seq_params){.n = windows[i % 4].n, .sinks = windows[i % 4].sinks, .evict = i % 2 ? RN_EVICT_TURN : RN_EVICT_TOKEN};
        run_world(&w, 3 * w.seq.n + 20, 600 + i, false);
    }
}

static void k_types_mixed_with_others(void **state)
{
    (void)state;
    const enum rn_dtype types[] = {RN_DTYPE_Q4_K, RN_DTYPE_Q5_K, RN_DTYPE_Q6_K};
    for (uint32_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct world w = {.model = {.n_layers = 1, .d_model = 256, .d_ff = 288, .n_vocab = 262, .head_dim = 64, .has_output = true}};
        w.kv = i % 2 ? "f16" : "q8_0";
        w.model.type = types[i];
        w.model.seed = 70 + i;
        w.seq = (struct rn_seq_params){.n = windows[i].n, .sinks = windows[i].sinks, .evict = i % 2 ? RN_EVICT_TURN : RN_EVICT_TOKEN};
        run_world(&w, 2 * w.seq.n + 20, 700 + i, false);
    }
}

/* The other families. Gemma's sliding groups: a window smaller and larger than N and than a chunk of 256, at a page border and beside it. */
static void families(void **state)
{
    (void)state;
    const struct world worlds[] = {
        {.model = {.arch = "gemma3", .n_layers = 6, .n_heads = 2, .n_kv_heads = 1, .n_vocab = 260, .type = RN_DTYPE_Q4_0},
         .kv = "q8_0",
         .seq = {.n = 160, .sinks = 70, .evict = RN_EVICT_TURN}},
        {.model = {.arch = "gemma3", .sliding = 300, .n_layers = 7, .n_heads = 2, .n_vocab = 261, .type = RN_DTYPE_F32},
         .kv = "f16",
         .seq = {.n = 100, .sinks = 4, .evict = RN_EVICT_TOKEN}},
        {.model = {.arch = "gemma3", .sliding = 65, .n_layers = 6, .d_model = 256, .head_dim = 64, .n_heads = 3, .n_kv_heads = 1, .n_vocab = 264, .type = RN_DTYPE_Q5_K},
         .kv = "f16",
         .seq = {.n = 200, .sinks = 0, .evict = RN_EVICT_TURN}},
        {.model = {.arch = "qwen2", .n_vocab = 263, .has_output = true, .type = RN_DTYPE_Q5_1},
         .kv = "f16",
         .seq = {.n = 64, .sinks = 9, .evict = RN_EVICT_TURN}},
        {.model = {.arch = "qwen3", .n_heads = 6, .n_kv_heads = 3, .head_dim = 64, .n_vocab = 262, .type = RN_DTYPE_Q8_0},
         .kv = "q8_0",
         .seq = {.n = 200, .sinks = 70, .evict = RN_EVICT_TOKEN}},
    };
    for (uint32_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        struct world w = worlds[i];
        w.model.seed = 80 + i;
        run_world(&w, 2 * w.seq.n + 120, 800 + i, false);
    }
}

/* All of it in re-read sequences: the gap between S and the origin, which sliding groups see as two streams. */
static void across_the_gap(void **state)
{
    (void)state;
    const struct gguf_llama gemma = {.arch = "gemma3", .n_layers = 6, .n_heads = 2, .n_kv_heads = 1, .n_vocab = 260, .type = RN_DTYPE_Q8_0};
    const struct {
        uint32_t sinks, sliding;
        uint64_t origin;
        enum rn_evict evict;
    } gaps[] = {
        {70, 40, 313, RN_EVICT_TURN},  // the gap is wider than the sliding window
        {70, 100, 128, RN_EVICT_TOKEN}, // narrower; the origin begins a page
        {64, 64, 65, RN_EVICT_TURN},   // one token wide, at a page border
        {5, 300, 40, RN_EVICT_TOKEN},  // both sides in one page; wider than N
        {0, 40, 200, RN_EVICT_TURN},
    };
    for (uint32_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
        struct world w = {.model = gemma, .kv = i % 2 ? "f16" : "q8_0", .seq = {.n = 150, .sinks = gaps[i].sinks, .origin = gaps[i].origin, .evict = gaps[i].evict}};
        w.model.seed = 90 + i;
        w.model.sliding = gaps[i].sliding;
        run_world(&w, (uint32_t)gaps[i].origin + 250, 900 + i, false);
    }
    struct world w = {.model = shapes[1], .kv = "q8_0", .seq = {.n = 150, .sinks = 70, .origin = 313, .evict = RN_EVICT_TURN}};
    run_world(&w, 600, 990, false);
}

/* Several chunks of 256 in both streams. */
static void many_chunks(void **state)
{
    (void)state;
    struct world a = {.model = shapes[0], .kv = "q8_0", .seq = {.n = 700, .sinks = 70, .evict = RN_EVICT_TURN}};
    a.model.type = RN_DTYPE_Q4_1;
    run_world(&a, 2150, 77, true);
    struct world b = {.model = shapes[2], .kv = "f16", .seq = {.n = 720, .sinks = 300, .evict = RN_EVICT_TOKEN}};
    b.model.type = RN_DTYPE_Q8_0;
    run_world(&b, 1500, 78, true);
}

static void wide_rows_are_there_to_compare(void **state)
{
    (void)state;
    struct rn_cpu_kernels least;
    assert_int_equal(rn_cpu_kernels_choose(&least, masks[sizeof masks / sizeof *masks - 1].mask, NULL), 0);
    for (uint32_t op = 0; op < RN_CPU_OP_COUNT; op++) { // a new instruction set belongs in the list
        assert_string_equal(least.row[op]->name, "c");
    }
    bool all = true;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        if (is_built(masks[i].name) && !mask_matters(i)) {
            print_message("--cpu-mask %s hides nothing here: one row fewer was compared\n", masks[i].mask);
            all = false;
        }
    }
    if (!all) {
        skip();
    }
}

/* ---- re-reading ------------------------------------------------------------------------------------------------------------------------- */

/* Feeds the timeline up to `end` in random chunks; logits of all tokens to out [tl->n, n_vocab] (may be NULL). */
static void feed(struct rn_engine *e, struct rn_seq *s, const struct rn_seq_params *p, const struct kit_timeline *tl, uint64_t end,
                 float *out, uint64_t *rng)
{
    uint32_t n_vocab = rn_engine_info(e)->n_vocab;
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    float *logits = rn_mem_alloc(KIT_MAX_STEP * (size_t)n_vocab, sizeof *logits);
    assert_true(room && logits);
    while (rn_seq_head(s) < end) {
        uint32_t n = 1 + kit_below(rng, 100);
        uint64_t left = end - rn_seq_head(s), to_pinned = rn_seq_head(s) < p->sinks ? p->sinks - rn_seq_head(s) : left;
        left = left < to_pinned ? left : to_pinned;
        struct rn_step_entry entry;
        kit_entry(&entry, room, s, p, tl, n < left ? n : (uint32_t)left, logits);
        step(e, &entry, 1);
        for (uint32_t i = 0; out && i < entry.n_ids; i++) {
            memcpy(out + room->index[i] * n_vocab, logits + (size_t)i * n_vocab, n_vocab * sizeof *out);
        }
        rn_seq_accept(s, rn_seq_head(s));
    }
    rn_mem_free(room);
    rn_mem_free(logits);
}

static const struct gguf_llama gemma = {.arch = "gemma3", .n_layers = 6, .n_heads = 2, .n_kv_heads = 1, .n_vocab = 275, .has_output = true};

static void reading_again_is_exact(void **state)
{
    (void)state;
    for (int run = 0; run < 4; run++) {
        int policy = run % 2;
        struct gguf_llama model = run < 2 ? shapes[1] : gemma;
        struct rn_engine *e = kit_engine(&model, &(struct rn_engine_params){.n_threads = 1});
        struct rn_seq_params p = {.n = 90, .sinks = 20, .evict = policy ? RN_EVICT_TOKEN : RN_EVICT_TURN};
        struct kit_timeline tl;
        uint64_t rng = 5, bases[600];
        kit_timeline_init(&tl, 600, model.n_vocab, 17, 3);
        size_t n = 600 * (size_t)model.n_vocab;
        float *a = rn_mem_alloc(n, sizeof *a), *b = rn_mem_alloc(n, sizeof *b), *c = rn_mem_alloc(n, sizeof *c);
        assert_true(a && b && c);
        struct rn_seq *s = kit_seq(e, &p);
        feed(e, s, &p, &tl, 600, a, &rng);
        rn_seq_destroy(s);
        p.origin = p.sinks; // origin S by name: the uninterrupted run
        s = kit_seq(e, &p);
        feed(e, s, &p, &tl, 600, b, &rng);
        rn_seq_destroy(s);
        assert_memory_equal(a, b, n * sizeof *a);
        p.origin = 313;
        kit_bases(&tl, &p, bases);
        memset(b, 0, n * sizeof *b);
        s = kit_seq(e, &p);
        feed(e, s, &p, &tl, 600, b, &rng);
        for (uint64_t t = 313; t < 600; t++) {
            assert_int_equal(rn_seq_base(s, t), bases[t]);
        }
        assert_int_equal(rn_seq_rewind(s, 313, NULL), 0); // to its origin, into the pinned zone, and all over
        feed(e, s, &p, &tl, 600, c, &rng);
        assert_memory_equal(b + 313 * model.n_vocab, c + 313 * model.n_vocab, (600 - 313) * model.n_vocab * sizeof *b);
        assert_int_equal(rn_seq_rewind(s, 200, NULL), -EINVAL);
        assert_int_equal(rn_seq_rewind(s, 13, NULL), 0);
        feed(e, s, &p, &tl, 600, c, &rng);
        assert_memory_equal(b + 313 * model.n_vocab, c + 313 * model.n_vocab, (600 - 313) * model.n_vocab * sizeof *b);
        rn_seq_destroy(s);
        s = kit_seq(e, &p);
        memset(c, 0, n * sizeof *c);
        feed(e, s, &p, &tl, 600, c, &rng);
        assert_memory_equal(b, c, n * sizeof *b);
        struct rn_seq *fork = NULL; // of a rebased sequence: its origin, or S
        assert_int_equal(rn_seq_fork(&fork, s, 300, NULL), -ENODATA);
        assert_int_equal(rn_seq_fork(&fork, s, 313, NULL), -ENODATA);
        assert_int_equal(rn_seq_fork(&fork, s, 500, NULL), 0);
        assert_int_equal(rn_seq_origin(fork), 313);
        feed(e, fork, &p, &tl, 600, c, &rng);
        assert_memory_equal(b, c, n * sizeof *b);
        rn_seq_destroy(fork);
        assert_int_equal(rn_seq_fork(&fork, s, 20, NULL), 0);
        assert_int_equal(rn_seq_origin(fork), 20);
        p.origin = 0;
        feed(e, fork, &p, &tl, 600, c, &rng); // as if there had been no rebase
        assert_memory_equal(a + 20 * model.n_vocab, c + 20 * model.n_vocab, (600 - 20) * model.n_vocab * sizeof *a);
        rn_seq_destroy(fork);
        rn_seq_destroy(s);
        rn_mem_free(a);
        rn_mem_free(b);
        rn_mem_free(c);
        kit_timeline_finish(&tl);
        kit_engine_destroy(e);
    }
}

/* Steps of one token, and whole ones, over an origin so far that no page may stand for the gap. */
static void a_far_origin_costs_no_pages(void **state)
{
    (void)state;
    struct rn_engine *e = kit_engine(&gemma, &(struct rn_engine_params){.n_threads = 1, .poison = true});
    struct rn_seq_params p = {.n = 64, .sinks = 4, .origin = 1ull << 33};
    uint32_t ids[100];
    uint64_t rng = 4;
    size_t bytes = 0;
    float *first = rn_mem_alloc(100 * (size_t)gemma.n_vocab, sizeof *first), *logits = rn_mem_alloc(100 * (size_t)gemma.n_vocab, sizeof *logits);
    assert_true(first && logits);
    for (int i = 0; i < 100; i++) {
        ids[i] = kit_below(&rng, gemma.n_vocab);
    }
    for (uint32_t chunk = 1; chunk <= 100; chunk = chunk < 5 ? chunk + 1 : chunk * 20) { // 1, 2, 3, 4 (up to the gap), 5, 100
        struct rn_seq *s = kit_seq(e, &p);
        for (uint32_t i = 0; i < 100; i += chunk) {
            uint32_t n = chunk < 100 - i ? chunk : 100 - i;
            step(e, &(struct rn_step_entry){.seq = s, .ids = ids + i, .n_ids = n, .n_logits = n, .logits = logits + (size_t)i * gemma.n_vocab}, 1);
        }
        assert_int_equal(rn_seq_head(s), (1ull << 33) + 96);
        bytes = chunk == 1 ? rn_seq_bytes(s) : bytes;
        assert_int_equal(rn_seq_bytes(s), bytes);
        memcpy(chunk == 1 ? first : logits, logits, 100 * (size_t)gemma.n_vocab * sizeof *logits);
        assert_memory_equal(logits, first, 100 * (size_t)gemma.n_vocab * sizeof *logits);
        rn_seq_destroy(s);
    }
    rn_mem_free(first);
    rn_mem_free(logits);
    kit_engine_destroy(e);
}

/* A step that fails behind the gap leaves the sequence in the pinned zone, with all it had. */
static void a_step_that_fails_behind_the_gap_changes_nothing(void **state)
{
    (void)state;
    const struct rn_seq_params p = {.n = 200, .sinks = 70, .origin = 400};
    uint32_t ids[250];
    uint64_t rng = 4;
    float want[275], got[275];
    int n_failed = 0;
    for (int i = 0; i < 250; i++) {
        ids[i] = kit_below(&rng, gemma.n_vocab);
    }
    for (uint64_t k = 0; k < 100; k++) {
        struct rn_engine *e = kit_engine(&gemma, &(struct rn_engine_params){.n_threads = 1});
        struct rn_seq *s = kit_seq(e, &p);
        struct rn_step_entry rest = {.seq = s, .ids = ids + 30, .n_ids = 220, .n_logits = 1, .logits = k ? got : want};
        step(e, &(struct rn_step_entry){.seq = s, .ids = ids, .n_ids = 30}, 1);
        rn_mem_fail_at(k);
        int r = rn_engine_step(e, &rest, 1, NULL);
        rn_mem_fail_at(0);
        if (r < 0) {
            assert_int_equal(r, -ENOMEM);
            assert_int_equal(rn_seq_head(s), 30);
            n_failed++;
            step(e, &(struct rn_step_entry){.seq = s, .ids = ids + 30, .n_ids = 25}, 1); // on in the pinned zone
            rest.ids += 25;
            rest.n_ids -= 25;
            step(e, &rest, 1);
        }
        assert_memory_equal(rest.logits, want, sizeof want);
        rn_seq_destroy(s);
        kit_engine_destroy(e);
        if (k && r == 0) {
            break;
        }
    }
    print_message("%d failed allocations in a step across the gap\n", n_failed);
    assert_true(n_failed > 3);
}

/* What a sequence was promised is enough for any length, one prefill chunk at a time, even when nothing more is free. */
static void a_promise_is_enough(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, sinks, sliding;
        uint64_t origin;
    } cases[] = {{64, 4, 300, 0}, {64, 32, 1000, 0}, {200, 70, 40, 0}, {400, 200, 40, 500}, {400, 200, 300, 5000}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_llama model = gemma;
        model.sliding = cases[i].sliding;
        struct rn_seq_params p = {.n = cases[i].n, .sinks = cases[i].sinks, .origin = cases[i].origin, .evict = RN_EVICT_TOKEN};
        struct rn_engine *e = kit_engine(&model, &(struct rn_engine_params){.n_threads = 1});
        struct rn_seq *s = kit_seq(e, &p);
        assert_int_equal(rn_seq_reserve(s, NULL), 0);
        uint64_t promised = rn_engine_pool(e)->reserved;
        rn_seq_destroy(s);
        kit_engine_destroy(e);
        e = kit_engine(&model, &(struct rn_engine_params){.n_threads = 1, .max_resident = promised});
        s = kit_seq(e, &p);
        assert_int_equal(rn_seq_reserve(s, NULL), 0);
        uint32_t ids[256] = {0};
        for (int chunk = 0; chunk < 12; chunk++) {
            struct rn_step_entry entry = {.seq = s, .ids = ids, .n_ids = chunk == 5 ? 77 : 256};
            struct rn_err err = {0};
            int r = rn_engine_step(e, &entry, 1, &err);
            if (r == -ENOMEM) {
                rn_seq_trim(s);
                r = rn_engine_step(e, &entry, 1, &err);
            }
            if (r < 0) {
                fail_msg("N %u, S %u, sliding window %u, chunk %d: %s", p.n, p.sinks, model.sliding, chunk, err.text);
            }
            rn_seq_accept(s, rn_seq_head(s));
        }
        rn_seq_destroy(s);
        kit_engine_destroy(e);
    }
}

/* ---- far positions -------------------------------------------------------------------------------------------------------------------- */

static double kl(const float *p, const float *q, uint32_t n)
{
    double zp = 0, zq = 0, sum = 0, top_p = (double)p[0], top_q = (double)q[0];
    for (uint32_t i = 1; i < n; i++) {
        top_p = fmax(top_p, (double)p[i]);
        top_q = fmax(top_q, (double)q[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        zp += exp((double)p[i] - top_p);
        zq += exp((double)q[i] - top_q);
    }
    for (uint32_t i = 0; i < n; i++) {
        double lp = (double)p[i] - top_p - log(zp), lq = (double)q[i] - top_q - log(zq);
        sum += exp(lp) * (lp - lq);
    }
    return sum;
}

/* Every unpinned index moved by 2^33: the same text up to rounding of the stored keys. A 64-bit index cut to 32 bits, or float positions,
 * would not come near. */
static void far_positions_are_as_good(void **state)
{
    (void)state;
    const uint64_t shift = 1ull << 33;
    for (int k = 0; k < 4; k++) {
        bool q8 = k % 2, slides = k / 2;
        struct gguf_llama model = slides ? gemma : shapes[0];
        struct rn_engine *e = kit_engine(&model, &(struct rn_engine_params){.n_threads = 1, .kv = q8 ? "q8_0" : "f16"});
        struct rn_seq_params p = {.n = 128, .sinks = slides ? 0 : 4, .evict = RN_EVICT_TURN}, far = p; // sliding groups see sinks, unless far
        far.origin = shift + p.sinks;
        struct rn_seq *near_seq = kit_seq(e, &p), *far_seq = kit_seq(e, &far);
        double sum = 0;
        uint64_t rng = 9;
        float *a = rn_mem_alloc(model.n_vocab, sizeof *a), *b = rn_mem_alloc(model.n_vocab, sizeof *b);
        assert_true(a && b);
        for (uint64_t t = 0; t < 500; t++) {
            uint32_t id = kit_below(&rng, model.n_vocab);
            uint64_t turn[2] = {t, t + shift};
            bool is_turn = kit_below(&rng, 20) == 0;
            struct rn_step_entry entries[2] = {
                {.seq = near_seq, .ids = &id, .n_ids = 1, .n_logits = 1, .logits = a, .turn_starts = turn, .n_turn_starts = is_turn},
                {.seq = far_seq, .ids = &id, .n_ids = 1, .n_logits = 1, .logits = b, .turn_starts = turn + 1, .n_turn_starts = is_turn}};
            step(e, entries, 2);
            if (t >= p.sinks) {
                assert_int_equal(rn_seq_base(near_seq, t) + shift, rn_seq_base(far_seq, t + shift));
                rn_seq_accept(near_seq, t + 1);
                rn_seq_accept(far_seq, t + shift + 1);
            }
            sum += kl(a, b, model.n_vocab);
        }
        print_message("mean KL, indices moved by 2^33, %s %s: %.2e\n", slides ? "gemma3" : "llama", q8 ? "q8_0" : "f16", sum / 500);
        assert_true(sum / 500 < (q8 ? 1e-2 : 1e-5));
        rn_seq_destroy(near_seq);
        rn_seq_destroy(far_seq);
        rn_mem_free(a);
        rn_mem_free(b);
        kit_engine_destroy(e);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------------------------------------------ */

static void bad_steps_are_refused(void **state)
{
    (void)state;
    struct rn_engine *e = kit_engine(&shapes[0], &(struct rn_engine_params){.n_threads = 1});
    struct rn_seq *s = kit_seq(e, &(struct rn_seq_params){.n = 64, .sinks = 4});
    uint32_t ids[2] = {1, 264};
    struct rn_err err = {0};
    struct rn_step_entry entry = {.seq = s, .ids = ids, .n_ids = 2},
                         twice[2] = {{.seq = s, .ids = ids, .n_ids = 1}, {.seq = s, .ids = ids, .n_ids = 1}};
    assert_int_equal(rn_engine_step(e, &entry, 1, &err), -EINVAL);
    assert_non_null(strstr(err.text, "264"));
    entry.n_ids = 0;
    assert_int_equal(rn_engine_step(e, &entry, 1, &err), -EINVAL);
    entry.n_ids = 1;
    entry.n_logits = 2;
    assert_int_equal(rn_engine_step(e, &entry, 1, &err), -EINVAL);
    assert_int_equal(rn_engine_step(e, twice, 2, &err), -EINVAL);
    assert_int_equal(rn_seq_head(s), 0);
    rn_seq_destroy(s);
    kit_engine_destroy(e);
}

static void bad_engines_are_refused(void **state)
{
    (void)state;
    struct rn_engine *e = NULL;
    struct rn_err err = {0};
    const char *path = kit_model(&shapes[0]);
    assert_int_equal(rn_engine_create(&e, &(struct rn_engine_params){.model = path, .kv = "q3", .n_threads = 1}, &err), -EINVAL);
    assert_non_null(strstr(err.text, "q3"));
    assert_non_null(strstr(err.text, path));
    assert_int_equal(rn_engine_create(&e, &(struct rn_engine_params){.model = path, .cpu_mask = "nosuch", .n_threads = 1}, &err), -EINVAL);
    unlink(path);
    assert_int_equal(rn_engine_create(&e, &(struct rn_engine_params){.model = path, .n_threads = 1}, &err), -ENOENT);
    struct gguf_llama thin = {.head_dim = 16, .n_vocab = 260};
    path = kit_model(&thin);
    assert_int_equal(rn_engine_create(&e, &(struct rn_engine_params){.model = path, .n_threads = 1}, &err), -ENOTSUP); // q8_0 needs 32
    assert_int_equal(rn_engine_create(&e, &(struct rn_engine_params){.model = path, .kv = "f16", .n_threads = 1}, &err), 0);
    rn_engine_destroy(e);
    unlink(path);
}

/* An argument is the pattern ("q4_*") of the cases to run: all of them take long in an emulator. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_rows_are_there_to_compare),
        cmocka_unit_test(float32_weights),
        cmocka_unit_test(float16_weights),
        cmocka_unit_test(q4_0_weights),
        cmocka_unit_test(q4_1_weights),
        cmocka_unit_test(q8_0_weights),
        cmocka_unit_test(bf16_and_other_blocks_of_32),
        cmocka_unit_test(k_types_mixed_with_others),
        cmocka_unit_test(families),
        cmocka_unit_test(across_the_gap),
        cmocka_unit_test(many_chunks),
        cmocka_unit_test(reading_again_is_exact),
        cmocka_unit_test(a_far_origin_costs_no_pages),
        cmocka_unit_test(a_step_that_fails_behind_the_gap_changes_nothing),
        cmocka_unit_test(a_promise_is_enough),
        cmocka_unit_test(far_positions_are_as_good),
        cmocka_unit_test(bad_steps_are_refused),
        cmocka_unit_test(bad_engines_are_refused),
    };
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
