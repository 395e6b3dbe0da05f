/* A model on two devices: cutting the program, dividing the groups, the plan, the choice of a device. Two CPU parts must give the bits of one;
 * with a Vulkan device (a software one will do) a part on it must give its own bits whatever the chunks, and the CPU's within a tolerance. */
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
#include "runtime/cpu/cpu.h"
#include "runtime/engine_internal.h"
#include "runtime/split.h"
#include "tests/unit/engine_kit.h"

#define N_TOKENS 420
#define N_GPU_TOKENS 170 /* a software device is slow */
/* Of the largest logit: int8 activations may round the other way where float sums differ in their last bit, now and then several at once. */
#define TOLERANCE 5e-2
#define TOLERANCE_MEAN 1e-2

static const struct gguf_llama models[] = {
    {.n_layers = 3, .n_vocab = 264, .type = RN_DTYPE_Q4_0, .seed = 1},
    {.arch = "gemma3", .n_layers = 7, .n_heads = 2, .n_kv_heads = 1, .n_vocab = 260, .type = RN_DTYPE_Q8_0, .seed = 2},
    {.arch = "qwen3", .n_layers = 2, .n_heads = 6, .n_kv_heads = 3, .head_dim = 64, .n_vocab = 262, .has_output = true, .type = RN_DTYPE_F32, .seed = 3},
};

static const struct rn_seq_params seq_params = {.n = 150, .sinks = 70, .evict = RN_EVICT_TURN};

static struct rn_engine *load(const struct gguf_llama *model, const char *kv, uint32_t n_first)
{
    struct rn_engine_params p = {.model = kit_model(model), .n_threads = 1, .kv = kv, .poison = true};
    struct rn_engine *e = NULL;
    struct rn_err err = {0};
    int r = rn_engine_create_split(&e, &p, n_first, &rn_cpu_backend, &err);
    unlink(p.model);
    if (r < 0) {
        fail_msg("%s", err.text);
    }
    return e;
}

/* All logits of the timeline: [tl->n, n_vocab]. chunk 0: of changing sizes, with a fork, drafts that are taken back and a rewind. */
static void run(struct rn_engine *e, const struct kit_timeline *tl, uint32_t chunk, float *out)
{
    struct rn_seq *s = kit_seq(e, &seq_params);
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    struct rn_err err = {0};
    uint32_t n_vocab = rn_engine_info(e)->n_vocab;
    uint64_t rng = 5;
    assert_non_null(room);
    for (uint64_t t; (t = rn_seq_head(s)) < tl->n;) {
        struct rn_step_entry entry;
        uint32_t n = chunk ? chunk : 1 + kit_below(&rng, 90);
        if (!chunk && kit_below(&rng, 2)) {
            kit_garbage(&entry, room, s, &seq_params, n_vocab, 1 + kit_below(&rng, 70), &rng);
            assert_int_equal(rn_engine_step(e, &entry, 1, &err), 0);
            assert_int_equal(rn_seq_rewind(s, t, &err), 0);
        }
        kit_entry(&entry, room, s, &seq_params, tl, n < tl->n - t ? n : (uint32_t)(tl->n - t), out + (size_t)t * n_vocab);
        if (rn_engine_step(e, &entry, 1, &err) < 0) {
            fail_msg("%s", err.text);
        }
        if (!chunk && kit_below(&rng, 3) == 0) {
            struct rn_seq *fork = NULL;
            assert_int_equal(rn_seq_fork(&fork, s, rn_seq_head(s) - 1, &err), 0);
            rn_seq_destroy(s);
            s = fork;
        }
        rn_seq_accept(s, rn_seq_head(s));
    }
    rn_seq_destroy(s);
    rn_mem_free(room);
}

struct world {
    struct kit_timeline tl;
    float *want, *got;
    size_t n;
};

static void world_init(struct world *w, const struct gguf_llama *model, uint32_t n_tokens)
{
    kit_timeline_init(&w->tl, n_tokens, model->n_vocab, 23, model->seed);
    w->n = (size_t)n_tokens * model->n_vocab;
    w->want = rn_mem_alloc(w->n, sizeof(float));
    w->got = rn_mem_alloc(w->n, sizeof(float));
    assert_true(w->want && w->got);
}

static void world_finish(struct world *w)
{
    kit_timeline_finish(&w->tl);
    rn_mem_free(w->want);
    rn_mem_free(w->got);
}

static void two_cpus_equal_one_at_every_cut(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct world w;
        world_init(&w, &models[m], N_TOKENS);
        const char *kv = m % 2 ? "f16" : "q8_0";
        struct rn_engine *e = load(&models[m], kv, 0);
        run(e, &w.tl, 64, w.want);
        kit_engine_destroy(e);
        for (uint32_t cut = 1; cut < models[m].n_layers; cut++) {
            e = load(&models[m], kv, cut);
            for (uint32_t chunk = 0; chunk < 2; chunk++) {
                run(e, &w.tl, chunk * 33, w.got);
                if (memcmp(w.want, w.got, w.n * sizeof(float)) != 0) {
                    fail_msg("other logits: model %zu cut before layer %u, chunk %u", m, cut, chunk * 33);
                }
            }
            assert_non_null(strstr(rn_engine_info(e)->device, "+ from layer"));
            kit_engine_destroy(e);
        }
        world_finish(&w);
    }
}

/* A page of the whole is a page of one part; the numbers add up. */
static void pages_belong_to_one_part(void **state)
{
    (void)state;
    const struct gguf_llama *gemma = &models[1]; // layer 5 is global, the others have windows
    struct rn_engine *whole = load(gemma, "q8_0", 0), *cut = load(gemma, "q8_0", 3), *at_global = load(gemma, "q8_0", 6);
    assert_int_equal(rn_engine_program(whole)->n_groups, 2);
    assert_int_equal(rn_engine_program(cut)->n_groups, 3);       // windows on both sides
    assert_int_equal(rn_engine_program(at_global)->n_groups, 3);
    size_t sum = 0, want = 0;
    for (uint32_t g = 0; g < 3; g++) {
        sum += rn_kv_page_bytes(rn_engine_pool(cut), g, true);
        want += g < 2 ? rn_kv_page_bytes(rn_engine_pool(whole), g, true) : 0;
    }
    assert_int_equal(sum, want);
    assert_true(rn_engine_pool(cut)->classes[1].backend != rn_engine_pool(cut)->classes[3].backend ||
                rn_engine_pool(cut)->classes[1].backend != rn_engine_pool(cut)->classes[5].backend);
    kit_engine_destroy(whole);
    kit_engine_destroy(cut);
    kit_engine_destroy(at_global);
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    const char *path = kit_model(&models[0]);
    struct rn_engine_params p = {.model = path, .n_threads = 1};
    struct rn_engine *e = NULL;
    for (uint64_t i = 1; !e; i++) {
        struct rn_err err = {0};
        rn_mem_fail_at(i);
        int r = rn_engine_create_split(&e, &p, 1, &rn_cpu_backend, &err);
        rn_mem_fail_at(0);
        assert_true(r == 0 || (r == -ENOMEM && !e));
    }
    rn_engine_destroy(e);
    unlink(path);
}

/* ---- The plan -------------------------------------------------------------------------------------------------------------------------- */

static void plans_fit_or_say_why(void **state)
{
    (void)state;
    struct rn_engine *e = load(&models[0], "q8_0", 0);
    const struct rn_program *p = rn_engine_program(e); // its tensors are gone, so the plan is made of a program of our own
    struct rn_tensor matrix = {.name = "m", .type = RN_DTYPE_F16, .cols = 1024, .rows = 1 << 16, .bytes = (size_t)1 << 27};
    struct rn_program *own = NULL;
    struct rn_err err = {0};
    assert_int_equal(rn_program_create(&own, 4, 32, NULL), 0);
    own->n_heads = own->n_kv_heads = 1;
    own->head_dim = 64;
    own->n_vocab = 1 << 16;
    memcpy(own->width, p->width, sizeof own->width);
    const struct rn_part part = {.weight = &matrix};
    struct rn_op embed = {.kind = RN_OP_EMBED, .n_parts = 1, .parts = {part}}, logits = {.kind = RN_OP_LOGITS, .n_parts = 1, .parts = {part}};
    assert_int_equal(rn_program_add(own, &embed, NULL), 0);
    for (uint32_t il = 0; il < 4; il++) {
        struct rn_op rope = {.kind = RN_OP_ROPE_KV, .layer = il}, down = {.kind = RN_OP_MATMUL, .n_parts = 1, .parts = {part}};
        assert_int_equal(rn_program_add(own, &rope, NULL), 0);
        assert_int_equal(rn_program_add(own, &down, NULL), 0);
    }
    assert_int_equal(rn_program_add(own, &logits, NULL), 0);

    struct rn_split_plan plan;
    const uint64_t layer = (uint64_t)1 << 27; // f16: as it is
    assert_int_equal(rn_split_plan_make(&plan, own, "auto", RN_KV_F16, 4096, 100 * layer, &err), 0);
    assert_int_equal(plan.sides[1].n_layers, 4);
    assert_int_equal(plan.sides[1].weights, 5 * layer); // tied: once
    assert_int_equal(plan.sides[0].weights, 0);
    uint64_t beside = plan.sides[1].scratch + 4 * plan.kv_tokens * plan.sides[1].kv_per_token;
    assert_int_equal(rn_split_plan_make(&plan, own, NULL, RN_KV_F16, 4096, 4 * layer + beside, &err), 0);
    assert_int_equal(plan.sides[1].n_layers, 3);
    assert_int_equal(plan.sides[1].weights, 4 * layer);
    assert_int_equal(plan.sides[0].weights, 2 * layer); // a layer and the embedding
    char line[320];
    rn_split_plan_say(&plan, 0, "X", line, sizeof line);
    assert_non_null(strstr(line, "layers 0 to 0 on the CPU"));
    rn_split_plan_say(&plan, 1, "X", line, sizeof line);
    assert_non_null(strstr(line, "layers 1 to 3 and the logits on 'X'"));
    assert_int_equal(rn_split_plan_make(&plan, own, "1", RN_KV_F16, 4096, 2 * layer + beside, &err), 0);
    assert_int_equal(plan.sides[0].n_layers, 3);

    const struct {
        const char *layers;
        uint64_t budget;
        int code;
        const char *says;
    } bad[] = {
        {"0", UINT64_MAX, -EINVAL, "choose the device cpu"}, {"5", UINT64_MAX, -EINVAL, "the model has 4"},
        {"-1", UINT64_MAX, -EINVAL, "expected auto or a number from 1 to 4"}, {"3x", UINT64_MAX, -EINVAL, "expected auto"},
        {"99999999999999999999", UINT64_MAX, -EINVAL, "the model has 4"}, {"", UINT64_MAX, -EINVAL, "expected auto"},
        {"4", 4 * layer, -ENOMEM, "MB free"}, {"auto", layer, -ENOMEM, "1 layer and the logits need"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rn_split_plan_make(&plan, own, bad[i].layers, RN_KV_F16, 4096, bad[i].budget, &err), bad[i].code);
        if (!strstr(err.text, bad[i].says)) {
            fail_msg("'%s' does not say '%s'", err.text, bad[i].says);
        }
    }
    rn_program_destroy(own);
    kit_engine_destroy(e);
}

/* ---- Devices --------------------------------------------------------------------------------------------------------------------------- */

static void device_names_are_checked(void **state)
{
    (void)state;
    const char *good[] = {NULL, "cpu", "auto", "vulkan", "vulkan:0", "vulkan:x y"}, *bad[] = {"", "gpu", "vulkan:", "vulkan0", "CPU", "cuda"};
    struct rn_err err = {0};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(rn_device_parse(good[i], &err), 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rn_device_parse(bad[i], &err), -EINVAL);
    }
    const char *path = kit_model(&models[0]);
    struct rn_engine *e = NULL;
    int r = rn_engine_create(&e, &(struct rn_engine_params){.model = path, .device = "vulkan:no such device"}, &err);
    assert_true(r == -ENODEV || r == -ENOTSUP); // the latter without any Vulkan
    assert_non_null(strstr(err.text, "no such device"));
    assert_int_equal(rn_engine_create(&e, &(struct rn_engine_params){.model = path, .device = "cpu", .gpu_layers = "1"}, &err), -EINVAL);
    assert_non_null(strstr(err.text, "the device is the CPU"));
    assert_null(e);
    unlink(path);
}

/* ---- With a Vulkan device -------------------------------------------------------------------------------------------------------------- */

/* As --device: the one that RUNNEL_TEST_GPU names, else a GPU, else whatever is there. */
static const char *gpu_name(void)
{
    static char name[80];
    const char *wanted = getenv("RUNNEL_TEST_GPU");
    struct rn_device device;
    bool has_gpu = rn_device_choose(&device, "vulkan", NULL, 0, NULL) == 0;
    snprintf(name, sizeof name, "vulkan%s%.60s", wanted || !has_gpu ? ":" : "", wanted ? wanted : has_gpu ? "" : "0");
    return name;
}

static int load_gpu(struct rn_engine **ret, const struct gguf_llama *model, const char *kv, const char *layers, struct rn_err *err)
{
    struct rn_engine_params p = {.model = kit_model(model), .n_threads = 1, .kv = kv, .poison = true, .gpu_layers = layers,
                                 .device = gpu_name()};
    int r = rn_engine_create(ret, &p, err);
    unlink(p.model);
    return r;
}

static void expect_close(const struct world *w, uint32_t n_vocab, uint32_t cut)
{
    double sum = 0;
    for (uint32_t t = 0; t < w->tl.n; t++) {
        const float *a = w->want + (size_t)t * n_vocab, *b = w->got + (size_t)t * n_vocab;
        float most = 0, off = 0;
        for (uint32_t i = 0; i < n_vocab; i++) {
            most = fmaxf(most, fabsf(a[i]));
            off = fmaxf(off, isfinite(b[i]) ? fabsf(a[i] - b[i]) : INFINITY);
        }
        if (!((double)off <= TOLERANCE * (double)most)) {
            fail_msg("token %u, %u layers on the GPU: off by %g of %g", t, cut, (double)off, (double)most);
        }
        sum += (double)off / (double)most;
    }
    if (!(sum <= TOLERANCE_MEAN * w->tl.n)) {
        fail_msg("%u layers on the GPU: off by %g of the largest logit in the mean", cut, sum / w->tl.n);
    }
}

static void part_on_a_gpu_is_pure_and_near(void **state)
{
    (void)state;
    struct rn_device device;
    struct rn_err why = {0};
    if (rn_device_choose(&device, gpu_name(), NULL, 0, &why) < 0) {
        print_message("skipped: %s\n", why.text);
        skip();
    }
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        struct world w;
        const char *kv = m % 2 ? "f16" : "q8_0";
        struct rn_engine *cpu = load(&models[m], kv, 0), *e = NULL;
        world_init(&w, &models[m], N_GPU_TOKENS);
        run(cpu, &w.tl, 64, w.want);
        kit_engine_destroy(cpu);
        float *first = rn_mem_alloc(w.n, sizeof *first);
        assert_non_null(first);
        for (uint32_t n = models[m].n_layers; n > 0; n = n == models[m].n_layers ? n / 2 : 0) { // all, and half of them
            char layers[16];
            struct rn_err err = {0};
            snprintf(layers, sizeof layers, "%u", n);
            if (load_gpu(&e, &models[m], kv, layers, &err) < 0) {
                fail_msg("%s", err.text);
            }
            run(e, &w.tl, 64, first);
            memcpy(w.got, first, w.n * sizeof *first);
            expect_close(&w, models[m].n_vocab, n);
            run(e, &w.tl, 0, w.got);
            if (memcmp(first, w.got, w.n * sizeof *first) != 0) {
                fail_msg("other logits in other chunks: model %zu, %u layers on the GPU", m, n);
            }
            kit_engine_destroy(e);
            e = NULL;
        }
        rn_mem_free(first);
        world_finish(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_cpus_equal_one_at_every_cut), cmocka_unit_test(pages_belong_to_one_part),
        cmocka_unit_test(no_memory_is_an_error),           cmocka_unit_test(plans_fit_or_say_why),
        cmocka_unit_test(device_names_are_checked),        cmocka_unit_test(part_on_a_gpu_is_pure_and_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
