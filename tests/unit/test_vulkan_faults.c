/* A Vulkan device that is lost, hangs, has no memory or damages its cache (tests/gpu/fault_shim.h): an error each time, never a wrong
 * byte, and another device afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "add.spv.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/vulkan/device_internal.h"
#include "tests/gpu/fault_shim.h"
#include "tests/gpu/gpu_kit.h"

#define ROW(name, array, op, type, needs, tolerance) {#name, op, type, needs, 16, tolerance, array, sizeof array}
static const struct rn_vk_kernel add_kernel = RN_VK_KERNEL_ROWS(ROW);

#define N_WORDS 1000
#define N_RUNS 3
#define N_SUBMITS (1 + N_RUNS + 1) /* of work() */

static int no_faults(void **state)
{
    (void)state;
    return rn_fault_set(NULL);
}

static int dispatch_add(struct rn_vk_device *d, const struct rn_vk_buffer *b, uint32_t addend, struct rn_err *err)
{
    const struct {
        VkDeviceAddress words;
        uint32_t n, padding;
    } args = {b->address, N_WORDS, 0};
    VkPipeline pipeline;
    VkCommandBuffer commands;
    int r = rn_vk_pipeline(&pipeline, d, &add_kernel, &addend, 1, err);
    r = r == 0 ? rn_vk_commands_begin(d, &commands, err) : r;
    if (r != 0) {
        return r;
    }
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, rn_vk_layout(d), VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof args, &args);
    vkCmdDispatch(commands, (N_WORDS + 63) / 64, 1, 1);
    return rn_vk_commands_run(d, commands, err);
}

/* Words go up, N_RUNS kernels add to them, they come back and are right, or there is an error. */
static int work(struct rn_vk_device *d, struct rn_err *err)
{
    struct rn_vk_buffer b = {0};
    uint32_t words[N_WORDS], back[N_WORDS];
    for (uint32_t i = 0; i < N_WORDS; i++) {
        words[i] = i * 7;
    }
    int r = rn_vk_buffer_create(&b, d, sizeof words, RN_VK_DEVICE, "words", err);
    r = r == 0 ? rn_vk_upload(d, &b, 0, words, sizeof words, err) : r;
    for (uint32_t run = 0; r == 0 && run < N_RUNS; run++) {
        r = dispatch_add(d, &b, run + 1, err);
    }
    r = r == 0 ? rn_vk_download(d, back, &b, 0, sizeof back, err) : r;
    for (uint32_t i = 0; r == 0 && i < N_WORDS; i++) {
        assert_int_equal(back[i], words[i] + 1 + 2 + 3);
    }
    rn_vk_buffer_destroy(d, &b);
    return r;
}

static void set(const char *format, uint64_t n)
{
    char spec[64];
    snprintf(spec, sizeof spec, format, (unsigned long long)n);
    assert_int_equal(rn_fault_set(spec), 0);
}

/* A device that failed says so at once, without a call to it, and goes quietly. */
static void is_dead(struct rn_vk_device *d)
{
    struct rn_err err = {0};
    struct rn_vk_buffer b = {0};
    VkCommandBuffer commands;
    VkPipeline pipeline;
    uint32_t addend = 99;
    uint64_t submits = rn_fault_submits(), calls = d->n_calls;
    assert_true(d->lost);
    assert_int_equal(rn_vk_submit(d, NULL, 0, &err), -EIO);
    assert_int_equal(rn_vk_wait(d, &err), -EIO);
    assert_non_null(strstr(err.text, d->name));
    assert_int_equal(rn_vk_commands_begin(d, &commands, &err), -EIO);
    assert_int_equal(rn_vk_buffer_create(&b, d, 64, RN_VK_DEVICE, "b", &err), -EIO);
    assert_int_equal(rn_vk_pipeline(&pipeline, d, &add_kernel, &addend, 1, &err), -EIO);
    assert_int_equal(work(d, &err), -EIO);
    assert_int_equal(rn_fault_submits(), submits);
    assert_int_equal(d->n_calls, calls);
    rn_vk_device_close(d);
}

static void works_again(void)
{
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_err err = {0};
    if (work(d, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(d->memory_used, d->staging_up.charged + d->staging_down.charged);
    rn_vk_device_close(d);
}

static void work_takes_a_submit_per_piece(void **state)
{
    (void)state;
    works_again();
    assert_int_equal(rn_fault_submits(), N_SUBMITS);
}

static void a_loss_at_any_submit_is_an_error(void **state)
{
    (void)state;
    static const char *const kinds[] = {"lost=%llu", "lost-wait=%llu"};
    for (size_t k = 0; k < 2; k++) {
        for (uint64_t n = 1; n <= N_SUBMITS; n++) {
            struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
            struct rn_err err = {0};
            set(kinds[k], n);
            assert_int_equal(work(d, &err), -EIO);
            assert_non_null(strstr(err.text, "was lost"));
            assert_int_equal(rn_fault_submits(), n);
            assert_false(d->abandoned);
            is_dead(d);
            works_again(); // once
        }
    }
}

static void a_loss_for_good_meets_the_next_device_too(void **state)
{
    (void)state;
    set("lost-always=%llu", 2);
    for (int i = 0; i < 3; i++) {
        struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
        struct rn_err err = {0};
        assert_int_equal(work(d, &err), -EIO);
        is_dead(d);
    }
    assert_int_equal(rn_fault_set(NULL), 0);
    works_again();
}

static void a_device_that_is_gone_does_not_open(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL), *next = NULL;
    struct rn_err err = {0};
    set("lost=%llu,gone", 1);
    assert_int_equal(work(d, &err), -EIO);
    is_dead(d);
    assert_int_equal(rn_vk_device_open(&next, gpu_kit_device()->index, NULL, NULL, &err), -EIO);
    assert_null(next);
    assert_non_null(strstr(err.text, "VK_ERROR_INITIALIZATION_FAILED"));
    assert_int_equal(rn_fault_set(NULL), 0);
    works_again();
}

static void a_device_that_hangs_is_left_alone(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= N_SUBMITS; n++) {
        struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
        struct rn_err err = {0};
        d->deadline_ms = 1234;
        set("hang=%llu", n);
        assert_int_equal(work(d, &err), -EIO); // destroys its buffer: the shim would end us if that reached the device
        assert_non_null(strstr(err.text, "1234 ms"));
        assert_true(d->abandoned);
        is_dead(d);
        works_again();
    }
}

static void a_device_that_hangs_at_the_end_is_left_alone(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_err err = {0};
    set("hang=%llu", 1);
    assert_int_equal(rn_vk_submit(d, NULL, 0, &err), 0); // nobody waits for it but close
    rn_vk_device_close(d);
    works_again();
}

static void no_memory_is_an_error_and_the_device_goes_on(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_err err = {0};
    struct rn_vk_buffer b = {0};
    set("memory=%llu", 1 << 20);
    assert_int_equal(rn_vk_buffer_create(&b, d, 2 << 20, RN_VK_DEVICE, "the weights", &err), -ENOMEM);
    assert_non_null(strstr(err.text, "the weights (2097152 bytes)"));
    assert_null(b.buffer);
    assert_int_equal(d->memory_used, 0);
    assert_int_equal(work(d, &err), -ENOMEM); // the words fit, a staging buffer does not
    assert_non_null(strstr(err.text, "a staging buffer"));
    assert_false(d->lost);
    assert_int_equal(rn_fault_set(NULL), 0);
    assert_int_equal(work(d, &err), 0);
    rn_vk_device_close(d);
}

static void any_allocation_may_fail_once(void **state)
{
    (void)state;
    int r = -ENOMEM;
    for (uint64_t n = 1; r != 0 && n < 20; n++) {
        struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
        struct rn_err err = {0};
        set("alloc=%llu", n);
        r = work(d, &err);
        assert_true(r == 0 || r == -ENOMEM);
        assert_int_equal(rn_fault_set(NULL), 0);
        assert_int_equal(work(d, &err), 0);
        rn_vk_device_close(d);
    }
    assert_int_equal(r, 0);
}

static void a_small_heap_is_a_small_budget(void **state)
{
    (void)state;
    set("heap=%llu", 3 << 20);
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_err err = {0};
    struct rn_vk_buffer b = {0};
    assert_true(d->memory_budget <= 3 << 20);
    assert_int_equal(rn_vk_buffer_create(&b, d, 4 << 20, RN_VK_DEVICE, "the weights", &err), -ENOMEM);
    assert_non_null(strstr(err.text, "budget"));
    rn_vk_device_close(d);
}

static void a_cache_damaged_on_disk_or_by_the_driver_is_not_used(void **state)
{
    (void)state;
    static const char *const kinds[] = {"cache=file", "cache=driver"};
    char dir[] = "/tmp/runnel-faults-XXXXXX", command[64];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(rn_fault_set(kinds[i]), 0);
        for (int run = 0; run < 3; run++) {
            struct rn_vk_device *d = gpu_kit_open(NULL, dir); // the shim ends us if the driver gets such data
            struct rn_err err = {0};
            assert_false(d->cache_loaded);
            assert_int_equal(work(d, &err), 0);
            rn_vk_device_close(d);
        }
    }
    assert_int_equal(rn_fault_set(NULL), 0);
    for (int run = 0; run < 2; run++) { // it heals
        struct rn_vk_device *d = gpu_kit_open(NULL, dir);
        struct rn_err err = {0};
        assert_int_equal(d->cache_loaded, run && gpu_kit_keeps_pipelines(d));
        assert_int_equal(work(d, &err), 0);
        rn_vk_device_close(d);
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static void fifty_random_faults(void **state)
{
    (void)state;
    static const char *const kinds[] = {"lost=%llu", "lost-wait=%llu", "hang=%llu", "alloc=%llu", "lost=%llu,alloc=2", "hang=%llu,memory=20000000"};
    const char *given = getenv("RUNNEL_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)time(NULL);
    print_message("RUNNEL_TEST_SEED=%u\n", seed);
    for (int i = 0; i < 50; i++) {
        seed = seed * 1664525u + 1013904223u;
        struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
        set(kinds[(seed >> 16) % 6], 1 + (seed >> 24) % (2 * N_SUBMITS));
        for (int run = 0; run < 2; run++) {
            struct rn_err err = {0};
            int r = work(d, &err);
            assert_true(r == 0 || r == -EIO || r == -ENOMEM);
            assert_true(r != -EIO || d->lost);
        }
        rn_vk_device_close(d);
        assert_int_equal(rn_fault_set(NULL), 0);
    }
    works_again();
}

static void an_unknown_fault_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"lost", "lost=", "lost=x", "lost=1x", "cache=", "LOST=1", "memory=-1", "lost=99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(rn_fault_set(wrong[i]), -1);
    }
    assert_int_equal(rn_fault_set("lost=3,gone,cache=file"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(work_takes_a_submit_per_piece, no_faults),
        cmocka_unit_test_setup(a_loss_at_any_submit_is_an_error, no_faults),
        cmocka_unit_test_setup(a_loss_for_good_meets_the_next_device_too, no_faults),
        cmocka_unit_test_setup(a_device_that_is_gone_does_not_open, no_faults),
        cmocka_unit_test_setup(a_device_that_hangs_is_left_alone, no_faults),
        cmocka_unit_test_setup(a_device_that_hangs_at_the_end_is_left_alone, no_faults),
        cmocka_unit_test_setup(no_memory_is_an_error_and_the_device_goes_on, no_faults),
        cmocka_unit_test_setup(any_allocation_may_fail_once, no_faults),
        cmocka_unit_test_setup(a_small_heap_is_a_small_budget, no_faults),
        cmocka_unit_test_setup(a_cache_damaged_on_disk_or_by_the_driver_is_not_used, no_faults),
        cmocka_unit_test_setup(fifty_random_faults, no_faults),
        cmocka_unit_test_setup(an_unknown_fault_is_refused, no_faults),
    };
    return cmocka_run_group_tests(tests, NULL, no_faults);
}
