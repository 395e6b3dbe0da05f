/* The Vulkan backend against the CPU's, and against itself: on tiny random models of every weight type and family, logits agree with the
 * CPU's within a tolerance, and they are a pure function of the tokens up to them, bit for bit: whatever the chunks, the neighbours, rejected
 * drafts, poisoned cells, masked features and cuts of a step.
 *
 * RUNNEL_TEST_FULL=1 runs every type with both KV types instead of a selection. */
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

#include <vulkan/vulkan.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/unit/engine_kit.h"

/* Square of the relative error of a row of logits, mean and worst over the rows. Both backends round activations (and keys and values in
 * q8_0) to int8; sums of another order move a few of them to the neighbouring value, which is a 127th of the group's largest. Float weights
 * with f16 KV have no such steps, but for the last bit of a half. */
#define AGREE_MEAN 1e-4
#define AGREE_WORST 2e-3
#define AGREE_FLOATS 1e-6

static char device[192];

static struct rn_engine *gpu_engine(const struct gguf_llama *model, struct rn_engine_params params)
{
    params.device = device;
    params.n_threads = 1;
    return kit_engine(model, &params);
}

static bool full_matrix(void)
{
    const char *s = getenv("RUNNEL_TEST_FULL");
    return s && strcmp(s, "1") == 0;
}

/* ---- worlds ------------------------------------------------------------------------------------------------------------------------------ */

struct world { // one model, one timeline, the logits that every way must give
    struct gguf_llama model;
    const char *kv;
    struct rn_seq_params seq;
    struct kit_timeline tl;
    float *want; // [tl.n, n_vocab]
    uint64_t rng;
};

static void step(struct rn_engine *e, struct rn_step_entry *entries, uint32_t n)
{
    struct rn_err err = {0};
    if (rn_engine_step(e, entries, n, &err) < 0) {
        fail_msg("%s", err.text);
    }
}

static void world_init(struct world *w, uint64_t seed)
{
    w->model.n_vocab = w->model.n_vocab ? w->model.n_vocab : 264;
    w->model.seed = seed;
    w->rng = seed;
    kit_timeline_init(&w->tl, 3 * w->seq.n + 20, w->model.n_vocab, w->seq.evict == RN_EVICT_TURN ? 23 : 0, seed);
    w->want = rn_mem_alloc((size_t)w->tl.n * w->model.n_vocab, sizeof *w->want);
    assert_non_null(w->want);
}

static void world_finish(struct world *w)
{
    kit_timeline_finish(&w->tl);
    rn_mem_free(w->want);
}

/* Feeds the timeline in chunks (0 = random ones) and stores the logits, or compares them. */
static void feed(struct world *w, struct rn_engine *e, uint32_t chunk, bool compare, const char *how)
{
    struct rn_seq *s = kit_seq(e, &w->seq);
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    float *logits = rn_mem_alloc(KIT_MAX_STEP * (size_t)w->model.n_vocab, sizeof *logits);
    assert_true(room && logits);
    for (uint64_t t; (t = rn_seq_head(s)) < w->tl.n;) {
        uint32_t n = chunk ? chunk : 1 + kit_below(&w->rng, kit_below(&w->rng, 2) ? 8 : 90), left = w->tl.n - (uint32_t)t;
        n = n < left ? n : left;
        size_t bytes = (size_t)n * w->model.n_vocab * sizeof *logits;
        struct rn_step_entry entry;
        kit_entry(&entry, room, s, &w->seq, &w->tl, n, logits);
        step(e, &entry, 1);
        float *want = w->want + t * w->model.n_vocab;
        if (!compare) {
            memcpy(want, logits, bytes);
        } else if (memcmp(want, logits, bytes) != 0) {
            fail_msg("%s: other logits within %llu .. %llu (chunk %u)", how, (unsigned long long)t, (unsigned long long)t + n - 1, chunk);
        }
        rn_seq_accept(s, rn_seq_head(s));
    }
    rn_seq_destroy(s);
    rn_mem_free(room);
    rn_mem_free(logits);
}

/* Garbage is appended and taken back between the steps, and pages are freed as early as may be. */
static void feed_with_drafts(struct world *w, struct rn_engine *e)
{
    struct rn_seq *s = kit_seq(e, &w->seq);
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    float *logits = rn_mem_alloc(KIT_MAX_STEP * (size_t)w->model.n_vocab, sizeof *logits);
    assert_true(room && logits);
    for (uint64_t t; (t = rn_seq_head(s)) < w->tl.n;) {
        struct rn_step_entry entry;
        if (kit_below(&w->rng, 2)) {
            kit_garbage(&entry, room, s, &w->seq, w->model.n_vocab, 1 + kit_below(&w->rng, 16), &w->rng);
            step(e, &entry, 1);
            assert_int_equal(rn_seq_rewind(s, t, NULL), 0);
        }
        uint32_t n = 1 + kit_below(&w->rng, 12), left = w->tl.n - (uint32_t)t;
        kit_entry(&entry, room, s, &w->seq, &w->tl, n < left ? n : left, logits);
        step(e, &entry, 1);
        assert_memory_equal(logits, w->want + t * w->model.n_vocab, entry.n_ids * (size_t)w->model.n_vocab * sizeof *logits);
        rn_seq_accept(s, rn_seq_head(s));
        rn_seq_trim(s);
    }
    rn_seq_destroy(s);
    rn_mem_free(room);
    rn_mem_free(logits);
}

#define MAX_BATCH 17
#define BATCH_STEPS 30

/* n sequences of the same timeline, each at another place, one token each per step. They are forks of one that runs ahead of them. */
static void feed_batch(struct world *w, struct rn_engine *e, uint32_t n)
{
    struct rn_seq *s[MAX_BATCH], *ahead = kit_seq(e, &w->seq);
    struct kit_room *rooms = rn_mem_alloc(n, sizeof *rooms);
    const size_t n_vocab = w->model.n_vocab;
    float *logits = rn_mem_alloc(n * n_vocab, sizeof *logits);
    assert_true(rooms && logits);
    struct rn_step_entry entries[MAX_BATCH];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t to = w->tl.n - BATCH_STEPS - 7 * (n - 1 - i); rn_seq_head(ahead) < to;) {
            uint32_t left = to - (uint32_t)rn_seq_head(ahead);
            kit_entry(&entries[0], &rooms[0], ahead, &w->seq, &w->tl, left < 100 ? left : 100, NULL);
            step(e, entries, 1);
            rn_seq_accept(ahead, rn_seq_head(ahead));
        }
        assert_int_equal(rn_seq_fork(&s[i], ahead, rn_seq_head(ahead), NULL), 0);
    }
    rn_seq_destroy(ahead);
    for (uint32_t k = 0; k < BATCH_STEPS; k++) {
        for (uint32_t i = 0; i < n; i++) {
            kit_entry(&entries[i], &rooms[i], s[i], &w->seq, &w->tl, 1, logits + i * n_vocab);
        }
        step(e, entries, n);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t t = rn_seq_head(s[i]) - 1;
            if (memcmp(logits + i * n_vocab, w->want + t * n_vocab, n_vocab * sizeof *logits) != 0) {
                fail_msg("sequence %u of %u: other logits at %llu", i, n, (unsigned long long)t);
            }
            rn_seq_accept(s[i], t + 1);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        rn_seq_destroy(s[i]);
    }
    rn_mem_free(rooms);
    rn_mem_free(logits);
}

/* ---- like the CPU --------------------------------------------------------------------------------------------------------------------------- */

static double row_error(const float *a, const float *b, uint32_t n)
{
    double diff = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        sum += (double)a[i] * (double)a[i];
    }
    return diff / sum;
}

static bool is_float(enum rn_dtype type)
{
    return type == RN_DTYPE_F32 || type == RN_DTYPE_F16 || type == RN_DTYPE_BF16;
}

/* The same timeline on both backends. The GPU's logits stay in w->want. */
static void agree(struct world *w, struct rn_engine *gpu, const char *what)
{
    struct rn_engine *cpu = kit_engine(&w->model, &(struct rn_engine_params){.n_threads = 1, .kv = w->kv});
    size_t n = (size_t)w->tl.n * w->model.n_vocab;
    double worst = 0, sum = 0;
    feed(w, cpu, 64, false, what);
    float *copy = rn_mem_alloc(n, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, w->want, n * sizeof *copy);
    feed(w, gpu, 64, false, what);
    for (uint32_t t = 0; t < w->tl.n; t++) {
        double error = row_error(copy + (size_t)t * w->model.n_vocab, w->want + (size_t)t * w->model.n_vocab, w->model.n_vocab);
        worst = error > worst || !(error >= 0) ? error : worst;
        sum += error;
    }
    bool exact = is_float(w->model.type) && !w->model.mixed && strcmp(w->kv, "f16") == 0;
    print_message("%s, %s: squared relative error %.1e, worst %.1e\n", what, w->kv, sum / w->tl.n, worst);
    assert_true(sum / w->tl.n < (exact ? AGREE_FLOATS : AGREE_MEAN));
    assert_true(worst < (exact ? AGREE_FLOATS : AGREE_WORST));
    rn_mem_free(copy);
    kit_engine_destroy(cpu);
}

static const struct {
    enum rn_dtype type;
    const char *name;
} types[] = {
    {RN_DTYPE_Q4_0, "Q4_0"}, {RN_DTYPE_Q4_1, "Q4_1"}, {RN_DTYPE_Q5_0, "Q5_0"},     {RN_DTYPE_Q5_1, "Q5_1"},   {RN_DTYPE_Q8_0, "Q8_0"},
    {RN_DTYPE_Q4_K, "Q4_K"}, {RN_DTYPE_Q5_K, "Q5_K"}, {RN_DTYPE_Q6_K, "Q6_K"},     {RN_DTYPE_IQ4_NL, "IQ4_NL"}, {RN_DTYPE_MXFP4, "MXFP4"},
    {RN_DTYPE_F32, "F32"},   {RN_DTYPE_F16, "F16"},   {RN_DTYPE_BF16, "BF16"},
};

/* Every type: as on the CPU, and in chunks of one row and of some as in chunks of many. */
static void every_weight_type(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        for (uint32_t k = full_matrix() ? 0 : i % 2; k < (full_matrix() ? 2 : i % 2 + 1); k++) {
            bool wide = types[i].type == RN_DTYPE_Q4_K || types[i].type == RN_DTYPE_Q5_K || types[i].type == RN_DTYPE_Q6_K;
            struct world w = {.model = {.type = types[i].type, .n_layers = 1, .d_model = wide ? 256 : 96, .d_ff = wide ? 288 : is_float(types[i].type) ? 176 : 160,
                                        .n_heads = 6, .n_kv_heads = 2, .head_dim = k ? 64 : 32, .has_output = true, .has_biases = i % 3 == 0},
                              .kv = k ? "f16" : "q8_0",
                              .seq = {.n = 48, .sinks = 5, .evict = i % 2 ? RN_EVICT_TOKEN : RN_EVICT_TURN}};
            world_init(&w, 100 + i);
            struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv});
            agree(&w, e, types[i].name);
            feed(&w, e, 7, true, types[i].name);
            feed(&w, e, 1, true, types[i].name);
            kit_engine_destroy(e);
            world_finish(&w);
        }
    }
}

static void every_family(void **state)
{
    (void)state;
    const struct {
        struct world w;
        const char *name;
    } worlds[] = {
        {{.model = {.arch = "gemma3", .n_layers = 6, .n_heads = 2, .n_kv_heads = 1, .type = RN_DTYPE_Q4_0},
          .kv = "q8_0", .seq = {.n = 96, .sinks = 20}}, "gemma3"},
        {{.model = {.arch = "gemma3", .sliding = 65, .n_layers = 6, .d_model = 256, .head_dim = 64, .n_heads = 3, .n_kv_heads = 1,
                    .type = RN_DTYPE_Q5_K}, .kv = "f16", .seq = {.n = 64, .sinks = 0, .evict = RN_EVICT_TOKEN}}, "gemma3, Q5_K"},
        {{.model = {.arch = "qwen2", .has_output = true, .type = RN_DTYPE_Q5_1}, .kv = "f16", .seq = {.n = 64, .sinks = 9}}, "qwen2"},
        {{.model = {.arch = "qwen3", .n_heads = 6, .n_kv_heads = 3, .head_dim = 64, .type = RN_DTYPE_Q8_0},
          .kv = "q8_0", .seq = {.n = 100, .sinks = 50, .evict = RN_EVICT_TOKEN}}, "qwen3"},
        {{.model = {.n_heads = 20, .n_kv_heads = 1, .n_layers = 1, .has_rope_freqs = true, .type = RN_DTYPE_Q4_1},
          .kv = "q8_0", .seq = {.n = 64, .sinks = 4}}, "llama, 20 query heads to one"},
        {{.model = {.type = RN_DTYPE_Q4_0, .mixed = RN_DTYPE_Q8_0, .has_biases = true}, .kv = "q8_0", .seq = {.n = 64, .sinks = 4}},
         "two types in a product"},
        {{.model = {.type = RN_DTYPE_F16, .mixed = RN_DTYPE_Q5_1}, .kv = "f16", .seq = {.n = 64, .sinks = 4}},
         "floats and integers in a product"},
    };
    for (uint32_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        struct world w = worlds[i].w;
        world_init(&w, 200 + i);
        struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv});
        agree(&w, e, worlds[i].name);
        feed(&w, e, 0, true, worlds[i].name);
        feed_with_drafts(&w, e);
        kit_engine_destroy(e);
        world_finish(&w);
    }
}

/* ---- pure ------------------------------------------------------------------------------------------------------------------------------------ */

static struct world pure_world(uint32_t i)
{
    return (struct world){.model = {.type = i ? RN_DTYPE_Q4_0 : RN_DTYPE_Q5_0, .n_heads = 6, .n_kv_heads = 2, .head_dim = 32},
                          .kv = i ? "f16" : "q8_0",
                          .seq = {.n = i ? 300 : 72, .sinks = i ? 20 : 9, .evict = i ? RN_EVICT_TOKEN : RN_EVICT_TURN}};
}

static void the_same_in_every_way(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {7, 64, 512}, batches[] = {1, 2, 3, 8, 17};
    for (uint32_t i = 0; i < 2; i++) {
        struct world w = pure_world(i);
        world_init(&w, 300 + i);
        struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv});
        feed(&w, e, 1, false, "one by one");
        for (uint32_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
            feed(&w, e, chunks[k], true, "chunks");
        }
        for (uint32_t k = i ? 3 : 0; k < sizeof batches / sizeof batches[0]; k++) { // many sequences of the long one as well
            feed_batch(&w, e, batches[k]);
        }
        feed_with_drafts(&w, e);
        kit_engine_destroy(e);
        e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv, .poison = true});
        feed_with_drafts(&w, e);
        feed(&w, e, 0, true, "poisoned cells");
        kit_engine_destroy(e);
        world_finish(&w);
    }
}

static void the_same_without_features(void **state)
{
    (void)state;
    static const char *const masks[] = {"integer-dot", "storage8", "subgroup", "coopmat", "integer-dot,storage8,subgroup,coopmat"};
    struct world w = pure_world(0);
    world_init(&w, 400);
    struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv});
    feed(&w, e, 64, false, "no mask");
    kit_engine_destroy(e);
    for (uint32_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv, .gpu_mask = masks[i]});
        feed(&w, e, 64, true, masks[i]);
        feed(&w, e, 3, true, masks[i]);
        kit_engine_destroy(e);
    }
    world_finish(&w);
}

/* ---- replay ---------------------------------------------------------------------------------------------------------------------------------- */

static void a_decode_step_costs_few_calls(void **state)
{
    (void)state;
    struct world w = pure_world(0);
    world_init(&w, 500);
    struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv});
    struct rn_seq *s = kit_seq(e, &w.seq);
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    float *logits = rn_mem_alloc(w.model.n_vocab, sizeof *logits);
    assert_true(room && logits);
    struct rn_engine_host_cost before = {0}, after = {0};
    for (uint32_t k = 0; k < 150; k++) {
        struct rn_step_entry entry;
        kit_entry(&entry, room, s, &w.seq, &w.tl, 1, logits);
        if (k == 100) {
            assert_true(rn_engine_host_cost(e, &before));
            rn_mem_fail_at(0); // counts from here
        }
        step(e, &entry, 1);
        rn_seq_accept(s, rn_seq_head(s));
    }
    assert_true(rn_engine_host_cost(e, &after));
    assert_int_equal(after.steps - before.steps, 50);
    print_message("%.1f calls, %.0f us of the host per decode step\n", (double)(after.calls - before.calls) / 50, (after.ns - before.ns) / 50e3);
    assert_true(after.calls - before.calls <= 5 * 50);
    rn_seq_destroy(s);
    rn_mem_free(room);
    rn_mem_free(logits);
    kit_engine_destroy(e);
    world_finish(&w);
}

/* A budget of a millisecond cuts steps of many rows of this model, at every layer or at some of them. */
#define LARGE_ENOUGH {.type = RN_DTYPE_Q8_0, .n_layers = 7, .d_model = 192, .d_ff = 512, .n_heads = 6, .n_kv_heads = 2}

static void cuts_change_nothing(void **state)
{
    (void)state;
    struct world w = {.model = LARGE_ENOUGH,
                      .kv = "q8_0",
                      .seq = {.n = 300, .sinks = 9, .evict = RN_EVICT_TOKEN}};
    struct rn_engine_host_cost whole = {0}, cut = {0};
    world_init(&w, 600);
    struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv, .submit_budget_ms = 1000000});
    feed(&w, e, 200, false, "whole steps");
    assert_true(rn_engine_host_cost(e, &whole));
    kit_engine_destroy(e);
    e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv, .submit_budget_ms = 1});
    feed(&w, e, 200, true, "steps in pieces");
    assert_true(rn_engine_host_cost(e, &cut));
    print_message("%.1f calls per step whole, %.1f in pieces\n", (double)whole.calls / (double)whole.steps, (double)cut.calls / (double)cut.steps);
    assert_true(cut.calls > whole.calls);
    kit_engine_destroy(e);
    world_finish(&w);
}

/* The linker sends vkGetQueryPoolResults here too: a device whose times never come. */
static bool has_no_times;
VKAPI_ATTR VkResult VKAPI_CALL __real_vkGetQueryPoolResults(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n, size_t bytes, void *to,
                                                            VkDeviceSize stride, VkQueryResultFlags flags);
VKAPI_ATTR VkResult VKAPI_CALL __wrap_vkGetQueryPoolResults(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n, size_t bytes, void *to,
                                                            VkDeviceSize stride, VkQueryResultFlags flags);
VKAPI_ATTR VkResult VKAPI_CALL __wrap_vkGetQueryPoolResults(VkDevice d, VkQueryPool pool, uint32_t first, uint32_t n, size_t bytes, void *to,
                                                            VkDeviceSize stride, VkQueryResultFlags flags)
{
    return has_no_times ? VK_NOT_READY : __real_vkGetQueryPoolResults(d, pool, first, n, bytes, to, stride, flags);
}

/* Steps that are cut by a guess stay cut where nothing tells that they need not be. */
static void without_times_the_guess_stands(void **state)
{
    (void)state;
    struct world w = {.model = LARGE_ENOUGH, .kv = "f16", .seq = {.n = 300, .sinks = 4}};
    struct rn_engine_host_cost half = {0}, whole = {0};
    world_init(&w, 610);
    has_no_times = true;
    struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv, .submit_budget_ms = 1});
    feed(&w, e, 32, false, "the first steps"); // 29 of them
    assert_true(rn_engine_host_cost(e, &half));
    feed(&w, e, 32, true, "later ones");
    assert_true(rn_engine_host_cost(e, &whole));
    has_no_times = false;
    print_message("%llu calls in %llu steps, then %llu in %llu\n", (unsigned long long)half.calls, (unsigned long long)half.steps,
                  (unsigned long long)whole.calls, (unsigned long long)whole.steps);
    assert_true(half.calls > half.steps * 6); // uncut: submit, wait, times, and two for the logits beyond 16
    assert_int_equal(whole.calls, 2 * half.calls);
    kit_engine_destroy(e);
    world_finish(&w);
}

/* One submit is refused for want of memory, by the linker again; those that nobody has waited for are at work. */
static int n_submits, refused, at_work;
VKAPI_ATTR VkResult VKAPI_CALL __real_vkQueueSubmit(VkQueue queue, uint32_t n, const VkSubmitInfo *infos, VkFence fence);
VKAPI_ATTR VkResult VKAPI_CALL __wrap_vkQueueSubmit(VkQueue queue, uint32_t n, const VkSubmitInfo *infos, VkFence fence);
VKAPI_ATTR VkResult VKAPI_CALL __wrap_vkQueueSubmit(VkQueue queue, uint32_t n, const VkSubmitInfo *infos, VkFence fence)
{
    if (++n_submits == refused) {
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    at_work++;
    return __real_vkQueueSubmit(queue, n, infos, fence);
}
VKAPI_ATTR VkResult VKAPI_CALL __real_vkWaitSemaphores(VkDevice d, const VkSemaphoreWaitInfo *info, uint64_t ns);
VKAPI_ATTR VkResult VKAPI_CALL __wrap_vkWaitSemaphores(VkDevice d, const VkSemaphoreWaitInfo *info, uint64_t ns);
VKAPI_ATTR VkResult VKAPI_CALL __wrap_vkWaitSemaphores(VkDevice d, const VkSemaphoreWaitInfo *info, uint64_t ns)
{
    at_work = 0;
    return __real_vkWaitSemaphores(d, info, ns);
}

/* Who meets -ENOMEM frees pages and tries again: nothing may be at work on them, whichever piece was refused. */
static void a_refused_piece_leaves_nothing_at_work(void **state)
{
    (void)state;
    enum { N = 40 };
    struct world w = {.model = LARGE_ENOUGH, .kv = "f16", .seq = {.n = 300, .sinks = 4}};
    world_init(&w, 620);
    struct rn_engine *e = gpu_engine(&w.model, (struct rn_engine_params){.kv = w.kv, .submit_budget_ms = 1});
    feed(&w, e, N, false, "no refusal");
    struct rn_seq *s = kit_seq(e, &w.seq);
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    float *logits = rn_mem_alloc(KIT_MAX_STEP * (size_t)w.model.n_vocab, sizeof *logits);
    assert_true(room && logits);
    struct rn_step_entry entry;
    kit_entry(&entry, room, s, &w.seq, &w.tl, N, logits);
    int r = -ENOMEM;
    for (refused = 1; r < 0; refused++) {
        struct rn_err err = {0};
        n_submits = 0;
        r = rn_engine_step(e, &entry, 1, &err);
        assert_true(r == 0 || r == -ENOMEM);
        assert_int_equal(at_work, 0);
    }
    print_message("%d submits\n", n_submits);
    assert_true(n_submits > 5 && refused == n_submits + 2);
    refused = 0;
    assert_memory_equal(logits, w.want, (size_t)N * w.model.n_vocab * sizeof *logits);
    rn_seq_destroy(s);
    rn_mem_free(room);
    rn_mem_free(logits);
    kit_engine_destroy(e);
    world_finish(&w);
}

/* ---- self-test ------------------------------------------------------------------------------------------------------------------------------- */

/* The linker sends vkCmdDispatch here (meson.build): one dispatch of the self-test is left out, as if its kernel computed nothing. */
static int n_dispatches, left_out;
VKAPI_ATTR void VKAPI_CALL __real_vkCmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z);
VKAPI_ATTR void VKAPI_CALL __wrap_vkCmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z);
VKAPI_ATTR void VKAPI_CALL __wrap_vkCmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z)
{
    if (++n_dispatches != left_out) {
        __real_vkCmdDispatch(commands, x, y, z);
    }
}

static const char *failed_kernel(const struct rn_engine *e)
{
    const struct rn_engine_info *info = rn_engine_info(e);
    for (size_t i = 0; i < info->n_kernels; i++) {
        if (strcmp(info->kernels[i].op, "failed its self-test") == 0) {
            return info->kernels[i].row;
        }
    }
    return NULL;
}

/* A kernel that fails is named, and another one takes its place with the same bits; without another one the device is refused. */
static void kernels_that_fail_are_not_used(void **state)
{
    (void)state;
    struct world w = {.model = {.type = RN_DTYPE_Q4_0}, .kv = "q8_0", .seq = {.n = 24, .sinks = 4}};
    world_init(&w, 700);
    const char *path = kit_model(&w.model);
    int n_replaced = 0, n_refused = 0;
    for (int k = 0;; k++) {
        struct rn_engine *e = NULL;
        struct rn_err err = {0};
        n_dispatches = 0;
        left_out = k;
        int r = rn_engine_create(&e, &(struct rn_engine_params){.model = path, .device = device, .n_threads = 1}, &err);
        left_out = 0;
        if (r == 0) {
            feed(&w, e, 30, k > 0, "another kernel");
            const char *failed = failed_kernel(e);
            n_replaced += failed != NULL;
            kit_engine_destroy(e);
            if (k && !failed) {
                break; // that was a dispatch behind the self-test, if there was one at all
            }
        } else {
            assert_int_equal(r, -ENOTSUP);
            assert_non_null(strstr(err.text, "passes the self-test"));
            n_refused++;
        }
    }
    unlink(path);
    world_finish(&w);
    print_message("%d kernels replaced, %d without which the device is refused\n", n_replaced, n_refused);
    assert_true(n_replaced + n_refused >= 8); // embed, prepare, matvec, matmat, rope_kv, attend, combine: two dispatches
}

static int name_device(void **state)
{
    (void)state;
    snprintf(device, sizeof device, "vulkan:%u", gpu_kit_device()->index);
    return 0;
}

#ifdef __SANITIZE_ADDRESS__
#define SANITIZED true
#else
#define SANITIZED false
#endif

int main(void)
{
    const struct CMUnitTest paths[] = {
        cmocka_unit_test(every_family),        cmocka_unit_test(a_decode_step_costs_few_calls),
        cmocka_unit_test(cuts_change_nothing), cmocka_unit_test(without_times_the_guess_stands),
        cmocka_unit_test(kernels_that_fail_are_not_used), cmocka_unit_test(a_refused_piece_leaves_nothing_at_work),
    };
    const struct CMUnitTest bits[] = {
        cmocka_unit_test(every_weight_type),
        cmocka_unit_test(the_same_in_every_way),
        cmocka_unit_test(the_same_without_features),
    };
    int failed = gpu_kit_run_group_tests(paths, name_device, NULL);
    // A sanitizer sees nothing of the shaders, and a software device takes minutes in its build for what only they do differently.
    return failed || SANITIZED ? failed : gpu_kit_run_group_tests(bits, name_device, NULL);
}
