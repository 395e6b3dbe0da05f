/* Sequences without running the model: the rule base(t) against a plain reference, its history while pages come and go, rewinds, forks, what
 * a sequence may hold, the pool's limit and reservations. Then, with the model, what happens when each allocation fails in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/seq_internal.h"
#include "tests/unit/engine_kit.h"

static const struct gguf_llama tiny = {
    .n_layers = 1, .d_model = 32, .d_ff = 32, .n_heads = 1, .n_kv_heads = 1, .n_vocab = 260, .type = RN_DTYPE_Q8_0};

static struct rn_engine *engine(uint64_t max_resident)
{
    return kit_engine(&tiny, &(struct rn_engine_params){.n_threads = 1, .kv = "f16", .max_resident = max_resident});
}

/* ---- the rule ---------------------------------------------------------------------------------------------------------------------------- */

/* Every page that a row u >= from reads must be there, and those of the pinned zone below the head. */
static void check_pages(const struct rn_seq *s, uint64_t from)
{
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        uint64_t pinned = s->head < group->s ? s->head : group->s;
        assert_true(group->pinned.n * RN_PAGE_TOKENS >= pinned);
        uint64_t low = rn_seq_base(s, from < s->head ? from : s->head - 1);
        if (s->head > s->origin && low < s->head) {
            assert_true((low - group->s) / RN_PAGE_TOKENS >= group->first_page);
            assert_true((s->head - 1 - group->s) / RN_PAGE_TOKENS < group->first_page + group->window.n);
        }
        for (size_t i = 0; i < group->window.n; i++) {
            assert_ptr_equal(group->window.pages[i]->data, group->window.data[i]);
            assert_true(group->window.pages[i]->refs > 0);
        }
    }
}

/* Appends tokens up to `end` without running the model. */
static void push_to(struct rn_seq *s, const struct kit_timeline *tl, uint64_t end, const uint64_t *bases)
{
    while (rn_seq_head(s) < end) {
        uint64_t t = rn_seq_head(s), next = rn_seq_next_base(s), base = 0;
        assert_int_equal(rn_seq_make_room(s, 1, NULL), 0);
        assert_int_equal(rn_seq_push(s, tl->is_turn[t], &base, NULL), 0);
        if (base != bases[t]) {
            fail_msg("base(%llu) is %llu, expected %llu (N %u, S %u)", (unsigned long long)t, (unsigned long long)base,
                     (unsigned long long)bases[t], s->n, s->s);
        }
        assert_true(tl->is_turn[t] || next == base);
    }
}

/* Garbage with its own turn starts, taken back. */
static void push_and_forget(struct rn_seq *s, uint32_t n, uint64_t *rng)
{
    uint64_t head = rn_seq_head(s), base;
    assert_int_equal(rn_seq_make_room(s, n, NULL), 0);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(rn_seq_push(s, kit_below(rng, 5) == 0, &base, NULL), 0);
    }
    assert_int_equal(rn_seq_rewind(s, head, NULL), 0);
    assert_int_equal(rn_seq_head(s), head);
}

static void check_history(const struct rn_seq *s, const uint64_t *bases, uint64_t from)
{
    uint64_t s_or_from = from > s->s ? from : s->s;
    for (uint64_t t = s_or_from > s->origin ? s_or_from : s->origin; t < s->head; t++) {
        assert_int_equal(rn_seq_base(s, t), bases[t]);
    }
}

static void base_follows_the_definition(void **state)
{
    (void)state;
    struct rn_engine *e = engine(0);
    uint64_t rng = 1;
    for (int trial = 0; trial < 250; trial++) {
        uint32_t n = 16 + kit_below(&rng, 200), length = 6 * n + 100;
        struct rn_seq_params p = {.n = n,
                                  .sinks = kit_below(&rng, 4) ? kit_below(&rng, n / 2 + 1) : 0,
                                  .evict = kit_below(&rng, 4) ? RN_EVICT_TURN : RN_EVICT_TOKEN};
        p.origin = kit_below(&rng, 3) ? 0 : p.sinks + kit_below(&rng, 3 * n);
        struct kit_timeline tl;
        static const uint32_t turns[] = {0, 3, 17, 60, 200};
        kit_timeline_init(&tl, length, 260, turns[kit_below(&rng, 5)], kit_next(&rng));
        uint64_t *bases = rn_mem_alloc(length, sizeof *bases);
        assert_non_null(bases);
        kit_bases(&tl, &p, bases);
        struct rn_seq *s = kit_seq(e, &p);
        uint64_t kept = 0; // rows from here on must stay right
        while (rn_seq_head(s) < length) {
            uint64_t to = rn_seq_head(s) + 1 + kit_below(&rng, 90);
            push_to(s, &tl, to < length ? to : length, bases);
            if (kit_below(&rng, 3) == 0) {
                push_and_forget(s, 1 + kit_below(&rng, 120), &rng);
            }
            if (kit_below(&rng, 3) == 0) {
                rn_seq_accept(s, rn_seq_head(s));
                rn_seq_trim(s);
                kept = s->low;
            }
            check_history(s, bases, kept);
            check_pages(s, kept);
            if (kit_below(&rng, 5) == 0) { // back to any place that is kept
                uint64_t head = rn_seq_head(s), low = kept > p.origin ? kept : p.origin, span = head > low ? head - low : 0;
                uint64_t at = kit_below(&rng, 8) == 0 && head > p.sinks + 3 * n ? kit_below(&rng, p.sinks + 1)
                                                                                : low + kit_below(&rng, (uint32_t)span + 1);
                if (at <= head) {
                    assert_int_equal(rn_seq_rewind(s, at, NULL), 0);
                    kept = at <= p.sinks ? 0 : kept;
                }
            }
            if (kit_below(&rng, 5) == 0 && rn_seq_head(s) > p.origin) { // a fork goes on as its parent would have
                struct rn_seq *fork = NULL;
                assert_int_equal(rn_seq_fork(&fork, s, rn_seq_head(s), NULL), 0);
                check_history(fork, bases, kept);
                check_pages(fork, kept);
                rn_seq_destroy(s);
                s = fork;
            }
            if (rn_seq_head(s) > 4 * n && kit_below(&rng, 12) == 0) {
                break;
            }
        }
        rn_seq_destroy(s);
        kit_timeline_finish(&tl);
        rn_mem_free(bases);
    }
    kit_engine_destroy(e);
}

/* ---- what a sequence holds --------------------------------------------------------------------------------------------------------------- */

static uint64_t window_tokens(const struct rn_seq *s)
{
    return s->groups[0].window.n * RN_PAGE_TOKENS;
}

static void memory_is_bounded(void **state)
{
    (void)state;
    struct rn_engine *e = engine(0);
    for (int k = 0; k < 4; k++) {
        struct rn_seq_params p = {.n = 500, .sinks = 70, .evict = k % 2 ? RN_EVICT_TOKEN : RN_EVICT_TURN, .stored = k / 2};
        const uint32_t length = 4 * (2 * p.n + 2 * RN_SLACK);
        struct kit_timeline tl;
        kit_timeline_init(&tl, length, 260, 100, 8);
        uint64_t *bases = rn_mem_alloc(length, sizeof *bases), most = 0, turn = 0;
        assert_non_null(bases);
        kit_bases(&tl, &p, bases);
        struct rn_seq *s = kit_seq(e, &p);
        for (uint64_t end = 40; end <= length; end += 40) {
            push_to(s, &tl, end, bases);
            rn_seq_accept(s, end);
            if (end % 400 == 0 && end < length / 2) { // the newest response on disk; later the disk falls behind for good
                while (tl.is_turn[turn] == false || turn + 300 < end) {
                    turn++;
                }
                rn_seq_hold(s, end - 1, turn < end ? turn : end - 1);
            }
            most = window_tokens(s) > most ? window_tokens(s) : most;
            assert_true(window_tokens(s) <= (p.stored ? 2 * p.n + 2 * RN_SLACK : p.n + RN_SLACK) + 2 * RN_PAGE_TOKENS);
            // slack tokens may always be taken back
            uint64_t back = end > RN_SLACK + p.n ? end - RN_SLACK : 0;
            check_history(s, bases, back);
            check_pages(s, back);
        }
        assert_true(most > (p.stored ? p.n + RN_SLACK : RN_SLACK)); // it did hold what it promised
        assert_int_equal(rn_seq_rewind(s, length - RN_SLACK, NULL), 0);
        assert_int_equal(rn_seq_rewind(s, 71 + 64, NULL), -ENODATA);
        assert_int_equal(rn_seq_head(s), length - RN_SLACK);
        push_to(s, &tl, length, bases);
        rn_seq_accept(s, length);
        rn_seq_trim(s);
        assert_true(window_tokens(s) <= p.n + 16 + 2 * RN_PAGE_TOKENS);
        check_history(s, bases, length - 17);
        check_pages(s, length - 17);
        assert_true(rn_seq_bytes(s) >= 2 * rn_kv_page_bytes(rn_engine_pool(e), 0, false));
        assert_int_equal(rn_seq_rewind(s, 30, NULL), 0); // all over: pages are freed again from the start
        push_to(s, &tl, length / 2, bases);
        rn_seq_accept(s, length / 2);
        rn_seq_trim(s);
        assert_true(window_tokens(s) <= p.n + 16 + 2 * RN_PAGE_TOKENS);
        rn_seq_destroy(s);
        kit_timeline_finish(&tl);
        rn_mem_free(bases);
    }
    kit_engine_destroy(e);
}

/* What is on disk may lie beyond the head after a rewind: pages that the next row reads must not go for it. */
static void a_stale_hold_frees_nothing_that_is_read(void **state)
{
    (void)state;
    struct rn_engine *e = engine(0);
    struct rn_seq_params p = {.n = 64, .sinks = 4, .evict = RN_EVICT_TOKEN, .stored = true};
    struct kit_timeline tl;
    uint64_t bases[6000];
    kit_timeline_init(&tl, 6000, 260, 0, 1);
    kit_bases(&tl, &p, bases);
    struct rn_seq *s = kit_seq(e, &p);
    push_to(s, &tl, 6000, bases);
    rn_seq_hold(s, 5999, 5990);
    assert_int_equal(rn_seq_rewind(s, 3000, NULL), 0);
    push_to(s, &tl, 3001, bases);
    rn_seq_accept(s, 3001);
    check_pages(s, 3000);
    push_to(s, &tl, 3100, bases);
    check_history(s, bases, 3000);
    rn_seq_destroy(s);
    kit_timeline_finish(&tl);
    kit_engine_destroy(e);
}

static void bad_parameters_are_refused(void **state)
{
    (void)state;
    struct rn_engine *e = engine(0);
    struct rn_seq *s = NULL;
    struct rn_err err = {0};
    static const struct {
        struct rn_seq_params p;
        const char *name;
    } bad[] = {{{.n = 15}, "window"},
               {{.n = 8193}, "8192"},
               {{.n = 0}, "window"},
               {{.n = 64, .sinks = 33}, "sinks"},
               {{.n = 64, .sinks = 10, .origin = 9}, "origin"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rn_seq_create(&s, e, &bad[i].p, &err), -EINVAL);
        assert_non_null(strstr(err.text, bad[i].name));
        assert_null(s);
    }
    s = kit_seq(e, &(struct rn_seq_params){.n = 16, .sinks = 8});
    assert_int_equal(rn_seq_rewind(s, 1, &err), -EINVAL);
    struct rn_seq *fork = NULL;
    assert_int_equal(rn_seq_fork(&fork, s, 1, &err), -EINVAL);
    assert_null(fork);
    rn_seq_accept(s, 5); // beyond the head: nothing
    assert_int_equal(s->accepted, 0);
    rn_seq_destroy(s);
    rn_seq_destroy(NULL);
    kit_engine_destroy(e);
}

/* ---- RoPE scaling ------------------------------------------------------------------------------------------------------------------------ */

static void last_logits(struct rn_engine *e, struct rn_seq *s, const uint32_t *ids, uint32_t n, float *ret)
{
    struct rn_step_entry entry = {.seq = s, .ids = ids, .n_ids = n, .n_logits = 1, .logits = ret};
    assert_int_equal(rn_engine_step(e, &entry, 1, NULL), 0);
}

static void a_scaling_reaches_beyond_the_trained_length(void **state)
{
    (void)state;
    struct rn_engine *e = engine(0);
    struct rn_seq *s = NULL;
    struct rn_err err = {0};
    static const struct {
        struct rn_seq_params p;
        const char *said; // NULL: accepted
    } cases[] = {
        {{.n = 16384, .rope = {RN_ROPE_LINEAR, 2}}, NULL},
        {{.n = 10240, .rope = {RN_ROPE_YARN, 1.25f}}, NULL},
        {{.n = 8192, .rope = {RN_ROPE_YARN, 1}}, NULL},
        {{.n = 16385, .rope = {RN_ROPE_LINEAR, 2}}, "window is 16385, expected 16 to 16384 (the trained length times the factor"},
        {{.n = 64, .rope = {RN_ROPE_LINEAR, 0}}, "the factor of the RoPE scaling is 0"},
        {{.n = 64, .rope = {RN_ROPE_YARN, 0.5f}}, "the factor of the RoPE scaling is 0.5"},
        {{.n = 64, .rope = {RN_ROPE_YARN, 1001}}, "the factor of the RoPE scaling is 1001"},
        {{.n = 16384, .rope = {RN_ROPE_AS_TRAINED, 2}}, "window is 16384, expected 16 to 8192 (the trained length)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(rn_seq_create(&s, e, &cases[i].p, &err), cases[i].said ? -EINVAL : 0);
        if (cases[i].said) {
            assert_non_null(strstr(err.text, cases[i].said));
        } else {
            rn_seq_destroy(s);
        }
    }
    kit_engine_destroy(e);
}

/* A scaled sequence differs, and keeps its scaling through a fork and beside an unscaled one in the same step. */
static void a_scaling_belongs_to_its_sequence(void **state)
{
    (void)state;
    struct rn_engine *e = engine(0);
    uint32_t ids[120];
    uint64_t rng = 11;
    float got[4][260], plain[260];
    for (size_t i = 0; i < 120; i++) {
        ids[i] = kit_below(&rng, 260);
    }
    struct rn_seq_params p = {.n = 64, .sinks = 10, .evict = RN_EVICT_TOKEN};
    struct rn_seq *s = kit_seq(e, &p), *fork = NULL;
    last_logits(e, s, ids, 120, plain);
    rn_seq_destroy(s);
    static const struct rn_rope_scaling kinds[] = {{RN_ROPE_LINEAR, 2}, {RN_ROPE_YARN, 4}};
    for (size_t k = 0; k < 2; k++) {
        p.rope = kinds[k];
        s = kit_seq(e, &p);
        last_logits(e, s, ids, 110, got[0]);
        assert_int_equal(rn_seq_fork(&fork, s, 110, NULL), 0);
        last_logits(e, s, ids + 110, 10, got[0]);
        p.rope = (struct rn_rope_scaling){0};
        struct rn_seq *other = kit_seq(e, &p);
        struct rn_step_entry both[2] = {{.seq = fork, .ids = ids + 110, .n_ids = 10, .n_logits = 1, .logits = got[1]},
                                        {.seq = other, .ids = ids, .n_ids = 120, .n_logits = 1, .logits = got[2]}};
        assert_int_equal(rn_engine_step(e, both, 2, NULL), 0);
        assert_memory_equal(got[0], got[1], sizeof got[0]);
        assert_memory_equal(got[2], plain, sizeof plain);
        assert_true(memcmp(got[0], plain, sizeof plain) != 0);
        rn_seq_destroy(other);
        rn_seq_destroy(fork);
        rn_seq_destroy(s);
    }
    kit_engine_destroy(e);
}

/* gemma3: the layers with a window of their own keep their angles, the global ones get others. */
static void windowed_layers_keep_their_angles(void **state)
{
    (void)state;
    struct gguf_llama gemma = tiny;
    gemma.arch = "gemma3";
    gemma.n_layers = 6;
    struct rn_engine *e = kit_engine(&gemma, &(struct rn_engine_params){.n_threads = 1, .kv = "f16"});
    const struct rn_program *p = rn_engine_program(e);
    struct rn_seq *s = kit_seq(e, &(struct rn_seq_params){.n = 64, .rope = {RN_ROPE_LINEAR, 4}});
    assert_int_equal(p->n_ropes, 2);
    for (uint32_t il = 0; il < 6; il++) {
        uint32_t i = p->layer_rope[il];
        bool same = memcmp(s->ropes[i].freq, p->ropes[i].freq, p->ropes[i].n_rot / 2 * sizeof(uint64_t)) == 0;
        assert_int_equal(same, il < 5);
        assert_true(s->ropes[i].mscale == p->ropes[i].mscale && s->ropes[i].interleaved == p->ropes[i].interleaved);
    }
    rn_seq_destroy(s);
    kit_engine_destroy(e);
}

/* ---- the pool ---------------------------------------------------------------------------------------------------------------------------- */

/* Appends n given tokens; logits of the last. */
static int append(struct rn_engine *e, struct rn_seq *s, const uint32_t *ids, uint32_t n, float *logits, struct rn_err *err)
{
    struct rn_step_entry entry = {.seq = s, .ids = ids, .n_ids = n, .n_logits = logits ? 1 : 0, .logits = logits};
    return rn_engine_step(e, &entry, 1, err);
}

static uint64_t page_bytes(void)
{
    struct rn_engine *e = engine(0);
    uint64_t bytes = rn_kv_page_bytes(rn_engine_pool(e), 0, true);
    kit_engine_destroy(e);
    return bytes;
}

static void a_full_pool_is_an_error_that_passes(void **state)
{
    (void)state;
    uint64_t page = page_bytes();
    uint32_t ids[1000];
    float want[260], got[260];
    uint64_t rng = 4;
    for (int i = 0; i < 1000; i++) {
        ids[i] = kit_below(&rng, 260);
    }
    struct rn_seq_params p = {.n = 16, .sinks = 4, .evict = RN_EVICT_TOKEN};
    struct rn_engine *e = engine(0);
    struct rn_seq *s = kit_seq(e, &p);
    assert_int_equal(append(e, s, ids, 500, NULL, NULL), 0);
    assert_int_equal(append(e, s, ids + 500, 200, want, NULL), 0);
    rn_seq_destroy(s);
    kit_engine_destroy(e);

    e = engine(17 * page);
    struct rn_err err = {0};
    struct rn_seq *a = kit_seq(e, &p), *b = kit_seq(e, &p), *none = NULL;
    assert_int_equal(rn_seq_create(&none, e, &(struct rn_seq_params){.n = 600}, &err), -E2BIG);
    assert_non_null(strstr(err.text, "600"));
    assert_null(none);
    assert_int_equal(append(e, a, ids, 300, NULL, &err), 0); // 1 + 5 pages
    assert_int_equal(append(e, b, ids, 500, NULL, &err), 0); // 1 + 8
    assert_int_equal(append(e, b, ids + 500, 200, got, &err), -ENOMEM);
    assert_non_null(strstr(err.text, "page"));
    struct rn_step_entry both[2] = {{.seq = a, .ids = ids + 300, .n_ids = 1}, {.seq = b, .ids = ids + 500, .n_ids = 200}};
    assert_int_equal(rn_engine_step(e, both, 2, &err), -ENOMEM);
    assert_int_equal(rn_seq_head(a), 300);
    assert_int_equal(rn_seq_head(b), 500);
    assert_true(rn_engine_pool(e)->used <= 17 * page);
    rn_seq_destroy(a);
    assert_int_equal(append(e, b, ids + 500, 200, got, &err), 0);
    assert_memory_equal(got, want, sizeof want);

    // A fork that needs a page for its partial copy, and a rewind into a shared page, leave all as it was.
    struct rn_seq *filler = kit_seq(e, &p), *fork = NULL;
    assert_int_equal(rn_seq_fork(&fork, b, 640, &err), 0);
    assert_int_equal(rn_seq_head(fork), 640);
    assert_int_equal(append(e, filler, ids, 4, NULL, &err), 0);
    while (rn_engine_pool(e)->used + page <= rn_engine_pool(e)->limit) {
        assert_int_equal(append(e, filler, ids, 64, NULL, &err), 0);
    }
    assert_int_equal(rn_seq_rewind(b, 500, &err), -ENOMEM);
    assert_int_equal(rn_seq_head(b), 700);
    none = NULL;
    assert_int_equal(rn_seq_fork(&none, b, 500, &err), -ENOMEM);
    assert_null(none);
    assert_int_equal(append(e, b, ids, 1, want, &err), 0); // there is room in its last page
    rn_seq_destroy(filler);
    assert_int_equal(rn_seq_rewind(b, 500, &err), 0);
    assert_int_equal(append(e, b, ids + 500, 200, got, &err), 0);
    assert_int_equal(append(e, b, ids, 1, got, &err), 0);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(append(e, fork, ids + 640, 60, NULL, &err), 0);
    assert_int_equal(append(e, fork, ids, 1, got, &err), 0);
    assert_memory_equal(got, want, sizeof want);
    rn_seq_destroy(fork);
    rn_seq_destroy(b);
    kit_engine_destroy(e);
}

static void reservations_add_up(void **state)
{
    (void)state;
    struct rn_engine *e = engine(25 * page_bytes());
    struct rn_seq_params p = {.n = 16};
    struct rn_seq *a = kit_seq(e, &p), *b = kit_seq(e, &p), *c = kit_seq(e, &p);
    struct rn_err err = {0};
    assert_int_equal(rn_seq_reserve(a, &err), 0);
    assert_int_equal(rn_seq_reserve(a, &err), 0); // once only
    uint64_t one = rn_engine_pool(e)->reserved;
    assert_int_equal(one, 10 * page_bytes());
    assert_int_equal(rn_seq_reserve(b, &err), 0);
    assert_int_equal(rn_seq_reserve(c, &err), -EAGAIN);
    assert_int_equal(rn_engine_pool(e)->reserved, 2 * one);
    rn_seq_unreserve(a);
    rn_seq_unreserve(a);
    assert_int_equal(rn_seq_reserve(c, &err), 0);
    rn_seq_destroy(b); // gives its promise back
    assert_int_equal(rn_engine_pool(e)->reserved, one);
    rn_seq_destroy(a);
    rn_seq_destroy(c);
    kit_engine_destroy(e);
}

/* Sharing: a fork costs its partial page; what is written to one never shows in the other; pages go with their last reader. */
static void forks_share_whole_pages(void **state)
{
    (void)state;
    struct rn_engine *e = engine(0);
    struct rn_kv_pool *pool = rn_engine_pool(e);
    uint64_t page = rn_kv_page_bytes(pool, 0, true);
    uint32_t ids[400];
    for (uint32_t i = 0; i < 400; i++) {
        ids[i] = i % 260;
    }
    struct rn_seq_params p = {.n = 400, .sinks = 100};
    struct rn_seq *s = kit_seq(e, &p), *f1 = NULL, *f2 = NULL;
    assert_int_equal(append(e, s, ids, 330, NULL, NULL), 0); // pinned 64 + 36, window 3 * 64 + 38
    assert_int_equal(pool->used, 6 * page);
    assert_int_equal(rn_seq_fork(&f1, s, 330, NULL), 0); // the partial pages of both streams are copied
    assert_int_equal(pool->used, 8 * page);
    assert_int_equal(rn_seq_fork(&f2, s, 100 + 128, NULL), 0); // ends with a whole window page
    assert_int_equal(pool->used, 9 * page);
    assert_int_equal(rn_seq_bytes(s), 2 * page);
    unsigned char before[3][64];
    memcpy(before[0], s->groups[0].window.data[0], 64);
    memcpy(before[1], s->groups[0].window.data[1], 64);
    memcpy(before[2], s->groups[0].pinned.data[0], 64);
    assert_int_equal(rn_seq_rewind(f1, 100 + 70, NULL), 0); // into a page that three share
    assert_int_equal(append(e, f1, ids + 200, 100, NULL, NULL), 0);
    assert_int_equal(rn_seq_rewind(f2, 17, NULL), 0);
    assert_int_equal(append(e, f2, ids + 300, 100, NULL, NULL), 0);
    assert_memory_equal(before[0], s->groups[0].window.data[0], 64);
    assert_memory_equal(before[1], s->groups[0].window.data[1], 64);
    assert_memory_equal(before[2], s->groups[0].pinned.data[0], 64);
    rn_seq_destroy(s);
    rn_seq_destroy(f2);
    rn_seq_destroy(f1);
    kit_engine_destroy(e);
}

/* ---- no memory --------------------------------------------------------------------------------------------------------------------------- */

static void engines_survive_failed_allocations(void **state)
{
    (void)state;
    const char *path = kit_model(&tiny);
    struct rn_engine_params params = {.model = path, .n_threads = 2, .poison = true};
    int n_did_without = 0; // the pre-tokenizer's regular expression also runs without the memory of its JIT
    for (uint64_t n = 1;; n++) {
        struct rn_engine *e = NULL;
        struct rn_err err = {0};
        rn_mem_fail_at(n);
        int r = rn_engine_create(&e, &params, &err);
        bool failed = rn_mem_count() >= n;
        rn_mem_fail_at(0);
        if (r == 0) {
            rn_engine_destroy(e);
            assert_true(n > 20);
            if (!failed) {
                break;
            }
            assert_true(++n_did_without <= 40);
            continue;
        }
        if (r != -ENOMEM || e || !err.text[0]) {
            fail_msg("allocation %llu: %d '%s'", (unsigned long long)n, r, err.text);
        }
    }
    unlink(path);
}

/* A little life with forks and rewinds. Whatever fails is done again without failure: the bits must not show it. */
struct life {
    struct rn_engine *e;
    uint32_t ids[300];
    float got[4][260];
    bool has_failed;
};

#define TRY(life, what)                                                                                                                    \
    do {                                                                                                                                   \
        int tried = (what);                                                                                                                \
        if (tried < 0) {                                                                                                                   \
            rn_mem_fail_at(0);                                                                                                             \
            assert_int_equal(tried, -ENOMEM);                                                                                              \
            assert_true(err.text[0] != 0);                                                                                                 \
            assert_false((life)->has_failed);                                                                                              \
            (life)->has_failed = true;                                                                                                     \
            assert_int_equal((what), 0);                                                                                                   \
        }                                                                                                                                  \
    } while (0)

static void live(struct life *l)
{
    struct rn_seq_params p = {.n = 150, .sinks = 70, .evict = RN_EVICT_TURN, .rope = {RN_ROPE_YARN, 2}};
    struct rn_seq *s = NULL, *fork = NULL, *copy = NULL;
    struct rn_err err = {0};
    uint64_t turns[] = {75, 90, 110, 150, 200};
    TRY(l, rn_seq_create(&s, l->e, &p, &err));
    struct rn_step_entry entry = {
        .seq = s, .ids = l->ids, .n_ids = 280, .turn_starts = turns, .n_turn_starts = 5, .n_logits = 1, .logits = l->got[0]};
    TRY(l, rn_engine_step(l->e, &entry, 1, &err)); // two passes
    assert_int_equal(rn_seq_head(s), 280);
    TRY(l, rn_seq_fork(&fork, s, 270, &err));
    TRY(l, rn_seq_fork(&copy, s, 280, &err));
    TRY(l, rn_seq_rewind(s, 250, &err));
    struct rn_step_entry three[3] = {{.seq = s, .ids = l->ids + 250, .n_ids = 30, .n_logits = 1, .logits = l->got[1]},
                                     {.seq = fork, .ids = l->ids + 270, .n_ids = 10, .n_logits = 1, .logits = l->got[2]},
                                     {.seq = copy, .ids = l->ids, .n_ids = 150, .n_logits = 1, .logits = l->got[3]}};
    TRY(l, rn_engine_step(l->e, three, 3, &err));
    rn_seq_destroy(copy);
    rn_seq_destroy(fork);
    rn_seq_destroy(s);
}

static void sequences_survive_failed_allocations(void **state)
{
    (void)state;
    struct life first = {0};
    uint64_t rng = 6;
    for (int i = 0; i < 300; i++) {
        first.ids[i] = kit_below(&rng, 260);
    }
    for (uint64_t n = 0;; n++) {
        struct life l = first;
        l.has_failed = false;
        l.e = engine(0);
        rn_mem_fail_at(n);
        live(&l);
        rn_mem_fail_at(0);
        kit_engine_destroy(l.e);
        if (n == 0) {
            first = l;
            assert_memory_equal(l.got[0], l.got[1], sizeof l.got[0]); // the same 280 tokens, three times
            assert_memory_equal(l.got[0], l.got[2], sizeof l.got[0]);
            continue;
        }
        assert_memory_equal(l.got, first.got, sizeof l.got);
        if (!l.has_failed) {
            assert_true(n > 15);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base_follows_the_definition),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(a_stale_hold_frees_nothing_that_is_read),
        cmocka_unit_test(bad_parameters_are_refused),
        cmocka_unit_test(a_scaling_reaches_beyond_the_trained_length),
        cmocka_unit_test(a_scaling_belongs_to_its_sequence),
        cmocka_unit_test(windowed_layers_keep_their_angles),
        cmocka_unit_test(a_full_pool_is_an_error_that_passes),
        cmocka_unit_test(reservations_add_up),
        cmocka_unit_test(forks_share_whole_pages),
        cmocka_unit_test(engines_survive_failed_allocations),
        cmocka_unit_test(sequences_survive_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
