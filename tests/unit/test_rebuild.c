/* An engine that is brought up again after a loss: the same bits, the same names, or a reason why not. */
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
#include "runtime/cpu/cpu.h"
#include "runtime/engine_internal.h"
#include "tests/unit/engine_kit.h"

#define N_TOKENS 150

static const struct gguf_llama model = {.n_layers = 3, .n_vocab = 264, .type = RN_DTYPE_Q4_0, .seed = 1},
                               other = {.n_layers = 3, .n_vocab = 264, .type = RN_DTYPE_Q4_0, .seed = 2};
static const struct rn_seq_params seq_params = {.n = 100, .sinks = 20, .evict = RN_EVICT_TOKEN};

static struct rn_engine *load(const char *path, uint32_t n_first)
{
    struct rn_engine *e = NULL;
    struct rn_err err = {0};
    if (rn_engine_create_split(&e, &(struct rn_engine_params){.model = path, .n_threads = 1}, n_first, &rn_cpu_backend, &err) < 0) {
        fail_msg("%s", err.text);
    }
    return e;
}

static void name_model(char *ret, size_t size)
{
    const char *dir = getenv("TMPDIR");
    snprintf(ret, size, "%s/runnel-rebuild-%d.gguf", dir ? dir : "/tmp", (int)getpid());
}

/* A file that stays: kit_model's path is overwritten by its next call. */
static void write_model(const struct gguf_llama *what, const char *path)
{
    const char *made = kit_model(what);
    assert_int_equal(rename(made, path), 0);
}

static void run(struct rn_engine *e, const struct kit_timeline *tl, float *out)
{
    struct rn_seq *s = kit_seq(e, &seq_params);
    struct kit_room *room = rn_mem_alloc(1, sizeof *room);
    struct rn_step_entry entry;
    struct rn_err err = {0};
    assert_non_null(room);
    kit_entry(&entry, room, s, &seq_params, tl, N_TOKENS, out);
    if (rn_engine_step(e, &entry, 1, &err) < 0) {
        fail_msg("%s", err.text);
    }
    rn_seq_destroy(s);
    rn_mem_free(room);
}

static void expect_names(const struct rn_engine *e, const char *device, const char *last_row)
{
    const struct rn_engine_info *info = rn_engine_info(e);
    assert_string_equal(info->device, device);
    assert_string_equal(info->kernels[info->n_kernels - 1].row, last_row);
}

static void the_same_bits_come_back(void **state)
{
    (void)state;
    char path[256];
    struct kit_timeline tl;
    size_t n = (size_t)N_TOKENS * model.n_vocab;
    float *want = rn_mem_alloc(n, sizeof *want), *got = rn_mem_alloc(n, sizeof *got);
    struct rn_err err = {0};
    assert_true(want && got);
    kit_timeline_init(&tl, N_TOKENS, model.n_vocab, 0, 7);
    name_model(path, sizeof path);
    write_model(&model, path);
    for (uint32_t n_first = 0; n_first < 3; n_first++) {
        struct rn_engine *e = load(path, n_first);
        char *device = strdup(rn_engine_info(e)->device), *row = strdup(rn_engine_info(e)->kernels[rn_engine_info(e)->n_kernels - 1].row);
        run(e, &tl, want);
        for (int times = 0; times < 2; times++) {
            uint32_t id = 1;
            struct rn_seq *s = kit_seq(e, &seq_params);
            struct rn_step_entry entry = {.seq = s, .ids = &id, .n_ids = 1};
            e->down = true; // as after a step that failed with -EIO
            assert_int_equal(rn_engine_step(e, &entry, 1, &err), -EIO);
            assert_int_equal(rn_seq_head(s), 0);
            rn_seq_destroy(s);
            assert_int_equal(rn_engine_probe(e, &err), -EIO);
            assert_int_equal(rn_engine_rebuild(e, &err), 0);
            assert_int_equal(rn_engine_probe(e, &err), 0);
            run(e, &tl, got);
            assert_memory_equal(want, got, n * sizeof *want);
            expect_names(e, device, row);
        }
        kit_engine_destroy(e);
        free(device);
        free(row);
    }
    unlink(path);
    kit_timeline_finish(&tl);
    rn_mem_free(want);
    rn_mem_free(got);
}

static void another_file_is_refused_until_the_first_is_back(void **state)
{
    (void)state;
    char path[256];
    struct rn_err err = {0};
    name_model(path, sizeof path);
    write_model(&model, path);
    struct rn_engine *e = load(path, 0);
    write_model(&other, path);
    assert_int_equal(rn_engine_rebuild(e, &err), -ESTALE);
    assert_non_null(strstr(err.text, "have changed"));
    assert_int_equal(rn_engine_probe(e, &err), -EIO);
    unlink(path);
    assert_int_equal(rn_engine_rebuild(e, &err), -ENOENT);
    assert_non_null(rn_engine_info(e)->device); // what is told does not go with the device
    struct rn_engine_cost costs[RN_ENGINE_COSTS];
    struct rn_engine_host_cost host;
    rn_engine_profile(e, true);
    assert_int_equal(rn_engine_costs(e, costs), 0);
    assert_false(rn_engine_host_cost(e, &host));
    write_model(&model, path);
    assert_int_equal(rn_engine_rebuild(e, &err), 0);
    assert_int_equal(rn_engine_probe(e, &err), 0);
    kit_engine_destroy(e);
    unlink(path);
}

static void no_memory_leaves_it_down(void **state)
{
    (void)state;
    char path[256];
    struct rn_err err = {0};
    name_model(path, sizeof path);
    write_model(&model, path);
    struct rn_engine *e = load(path, 1);
    int r = -ENOMEM;
    for (uint64_t i = 1; r < 0; i++) {
        rn_mem_fail_at(i);
        r = rn_engine_rebuild(e, &err);
        rn_mem_fail_at(0);
        assert_true(r == 0 || r == -ENOMEM);
        assert_int_equal(rn_engine_probe(e, &err), r == 0 ? 0 : -EIO);
    }
    kit_engine_destroy(e);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits_come_back),
        cmocka_unit_test(another_file_is_refused_until_the_first_is_back),
        cmocka_unit_test(no_memory_leaves_it_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
