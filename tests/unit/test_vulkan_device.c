/* Devices, buffers, pipelines and their cache, on whatever Vulkan device there is. */
#define _GNU_SOURCE
#include <dirent.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "add.spv.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/vulkan/device_internal.h"
#include "tests/gpu/gpu_kit.h"

#define ROW(name, array, op, type, needs, tolerance) {#name, op, type, needs, 16, tolerance, array, sizeof array}
static const struct rn_vk_kernel add_kernel = RN_VK_KERNEL_ROWS(ROW);

/* ---- Devices ---------------------------------------------------------------------------------------------------------------------------- */

static void list_describes_each_device(void **state)
{
    (void)state;
    if (!gpu_kit_device()) {
        skip();
    }
    struct rn_err err = {0};
    struct rn_gpu_info *list;
    size_t n;
    assert_int_equal(rn_gpu_list(&list, &n, NULL, &err), 0);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        print_message("%u '%s' (%s) %s%s memory %llu budget %llu\n", list[i].index, list[i].name, list[i].driver, list[i].features, list[i].refused,
                      (unsigned long long)list[i].memory, (unsigned long long)list[i].budget);
        assert_int_equal(list[i].index, i);
        assert_true(list[i].name[0]);
        assert_true(list[i].refused[0] || (list[i].driver[0] && list[i].memory > 0 && list[i].budget > 0 && list[i].budget <= list[i].memory));
    }
    rn_gpu_list_free(list);
}

static void an_unknown_feature_is_an_error_that_names_the_known_ones(void **state)
{
    (void)state;
    struct rn_err err = {0};
    struct rn_gpu_info *list = NULL;
    struct rn_vk_device *d = NULL;
    size_t n;
    assert_int_equal(rn_gpu_list(&list, &n, "storage8,bogus", &err), -EINVAL);
    assert_non_null(strstr(err.text, "'bogus'"));
    assert_non_null(strstr(err.text, "integer-dot, storage8, subgroup, coopmat"));
    assert_int_equal(rn_vk_device_open(&d, 0, "integer", NULL, &err), -EINVAL);
    assert_null(d);
    uint32_t flags = 0;
    assert_int_equal(rn_vk_mask_parse(&flags, "coopmat,,integer-dot,", &err), 0);
    assert_int_equal(flags, RN_VK_COOPMAT | RN_VK_INTEGER_DOT);
}

static void a_mask_hides_features(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t flag;
    } masks[] = {{"integer-dot", RN_VK_INTEGER_DOT}, {"storage8", RN_VK_STORAGE8}, {"subgroup", RN_VK_SUBGROUP}, {"coopmat", RN_VK_COOPMAT}};
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    uint32_t all = d->features;
    rn_vk_device_close(d);
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        d = gpu_kit_open(masks[i].name, NULL);
        assert_int_equal(d->features, all & ~masks[i].flag);
        rn_vk_device_close(d);
    }
    d = gpu_kit_open("integer-dot,storage8,subgroup,coopmat", NULL);
    assert_int_equal(d->features, 0);
    assert_int_equal(d->coop_k, 0);
    rn_vk_device_close(d);
}

static void a_selector_means_an_index_or_a_part_of_a_name(void **state)
{
    (void)state;
    static const struct rn_gpu_info list[] = {{.index = 0, .name = "llvmpipe (LLVM 15.0.6, 256 bits)", .is_cpu = true},
                                              {.index = 1, .name = "Old GT 710", .refused = "it has Vulkan 1.1, 1.2 is needed"},
                                              {.index = 2, .name = "AMD Radeon RX 6600", .integrated = true},
                                              {.index = 3, .name = "NVIDIA GeForce RTX 3060"}};
    static const struct {
        const char *selector;
        int index; /* -1: none */
        uint64_t skip;
    } cases[] = {{"", 2, 0}, {"", 3, 1 << 2}, {"", -1, 1 << 2 | 1 << 3}, {"0", 0, 0}, {"2", 2, 0}, {"3", 3, 0}, {"1", -1, 0}, {"4", -1, 0},
                 {"99999999999999999999", -1, 0}, {"3x", -1, 0}, {"llvm", 0, 0}, {"LLVMpipe", 0, 0}, {"rtx", 3, 0}, {"radeon", 2, 0},
                 {"710", -1, 0}, {"old", -1, 0}, {"Arc", -1, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rn_err err = {0};
        const struct rn_gpu_info *found = NULL;
        int r = rn_gpu_select(&found, list, 4, cases[i].selector, cases[i].skip, &err);
        assert_int_equal(r, cases[i].index < 0 ? -ENODEV : 0);
        if (r == 0) {
            assert_int_equal(found->index, cases[i].index);
        } else {
            assert_null(found);
            assert_non_null(strstr(err.text, cases[i].selector));
            assert_non_null(strstr(err.text, "1 'Old GT 710': it has Vulkan 1.1, 1.2 is needed"));
            assert_non_null(strstr(err.text, "3 'NVIDIA GeForce RTX 3060'"));
        }
    }
    struct rn_err err = {0};
    const struct rn_gpu_info *found = NULL;
    assert_int_equal(rn_gpu_select(&found, list, 2, "", 0, &err), -ENODEV);
    assert_non_null(strstr(err.text, "taken only when named"));
    assert_int_equal(rn_gpu_select(&found, NULL, 0, "", 0, &err), -ENODEV);
    assert_non_null(strstr(err.text, "there is none"));
}

static void a_device_opens_twice_and_none_that_is_not_there(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL), *same = NULL;
    struct rn_err err = {0};
    assert_true(d->subgroup_size > 0 && d->max_allocation >= (size_t)1 << 30);
    assert_int_equal(rn_vk_device_open(&same, gpu_kit_device()->index, NULL, NULL, &err), 0);
    assert_string_equal(same->name, d->name);
    assert_memory_equal(same->cache_id, d->cache_id, sizeof d->cache_id);
    rn_vk_device_close(same);
    rn_vk_device_close(d);
    rn_vk_device_close(NULL);
    d = NULL;
    assert_int_equal(rn_vk_device_open(&d, 1000, NULL, NULL, &err), -ENODEV);
    assert_null(d);
    assert_non_null(strstr(err.text, "no Vulkan device 1000"));
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const struct rn_gpu_info *gpu = gpu_kit_device();
    if (!gpu) {
        skip();
    }
    int r = -ENOMEM;
    for (uint64_t n = 1; r != 0 && n < 100; n++) {
        struct rn_err err = {0};
        struct rn_vk_device *d = NULL;
        rn_mem_fail_at(n);
        r = rn_vk_device_open(&d, gpu->index, NULL, "/tmp", &err);
        rn_mem_fail_at(0);
        assert_true(r == 0 || r == -ENOMEM);
        assert_true((r == 0) == (d != NULL));
        rn_vk_device_close(d);
    }
    assert_int_equal(r, 0);
}

/* In a child, as a user without groups: root may do everything. Exit code: 0 as expected. */
static int look_without_rights(const char *dir)
{
    struct rn_err err = {0};
    if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0)) {
        return 2;
    }
    if (rn_vk_rights_in(dir, &err) != -EACCES) {
        return 3;
    }
    return strstr(err.text, "renderD128") && strstr(err.text, "group '") ? 0 : 4;
}

static void missing_rights_name_the_group(void **state)
{
    (void)state;
    char dir[] = "/tmp/runnel-dri-XXXXXX", node[64], other[64];
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0755), 0);
    snprintf(node, sizeof node, "%s/renderD128", dir);
    snprintf(other, sizeof other, "%s/card0", dir);
    fclose(fopen(other, "w"));
    assert_int_equal(chmod(other, 0), 0);
    assert_int_equal(rn_vk_rights_in(dir, NULL), 0); // nobody needs card0
    fclose(fopen(node, "w"));
    assert_int_equal(rn_vk_rights_in(dir, NULL), 0);
    assert_int_equal(chmod(node, 0), 0);
    pid_t child = fork();
    if (child == 0) {
        _exit(look_without_rights(dir));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    unlink(node);
    unlink(other);
    rmdir(dir);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(rn_vk_rights_in(dir, NULL), 0); // no such directory: no GPU
}

/* ---- Memory ----------------------------------------------------------------------------------------------------------------------------- */

static void fill(uint8_t *bytes, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(seed >> 24);
    }
}

static void bytes_go_up_and_come_back(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    static const size_t sizes[] = {1, 3, 4, 4096, 65537, ((size_t)16 << 20) + 5}; // the last takes three staging buffers
    uint64_t used = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        struct rn_vk_buffer a, b;
        struct rn_err err = {0};
        uint8_t *from = malloc(n), *to = malloc(n);
        fill(from, n, (uint32_t)n);
        assert_int_equal(rn_vk_buffer_create(&a, d, n, RN_VK_DEVICE, "a", &err), 0);
        assert_int_equal(rn_vk_buffer_create(&b, d, n, RN_VK_DEVICE, "b", &err), 0);
        assert_true(a.address != 0 && b.address != 0 && a.address != b.address);
        assert_true(a.charged >= n && d->memory_used >= 2 * n);
        assert_int_equal(rn_vk_upload(d, &a, 0, from, n, &err), 0);
        assert_int_equal(rn_vk_copy(d, &b, 0, &a, 0, n, &err), 0);
        assert_int_equal(rn_vk_download(d, to, &b, 0, n, &err), 0);
        assert_memory_equal(to, from, n);
        assert_int_equal(rn_vk_upload(d, &b, n - 1, from, 1, &err), 0);
        assert_int_equal(rn_vk_download(d, to, &b, n - 1, 1, &err), 0);
        assert_int_equal(to[0], from[0]);
        rn_vk_buffer_destroy(d, &a);
        rn_vk_buffer_destroy(d, &b);
        rn_vk_buffer_destroy(d, &b); // zeroed by now
        assert_true(i == 0 || d->memory_used == used);
        used = d->memory_used;
        free(from);
        free(to);
    }
    rn_vk_device_close(d);
}

static void mapped_buffers_need_no_staging(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_vk_buffer up, down;
    struct rn_err err = {0};
    uint32_t value = 42, back = 0;
    assert_int_equal(rn_vk_buffer_create(&up, d, 64, RN_VK_UPLOAD, "up", &err), 0);
    assert_int_equal(rn_vk_buffer_create(&down, d, 64, RN_VK_READBACK, "down", &err), 0);
    assert_non_null(up.mapped);
    assert_non_null(down.mapped);
    uint64_t calls = d->n_calls;
    assert_int_equal(rn_vk_upload(d, &up, 60, &value, 4, &err), 0);
    assert_int_equal(d->n_calls, calls);
    assert_int_equal(rn_vk_copy(d, &down, 8, &up, 60, 4, &err), 0);
    assert_int_equal(d->n_calls, calls + 2); // a submit and a wait
    assert_int_equal(rn_vk_download(d, &back, &down, 8, 4, &err), 0);
    assert_int_equal(back, 42);
    assert_null(d->staging_up.buffer);
    rn_vk_buffer_destroy(d, &up);
    rn_vk_buffer_destroy(d, &down);
    rn_vk_device_close(d);
}

static void a_copy_stays_in_its_buffer(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_vk_buffer b;
    struct rn_err err = {0};
    char bytes[32] = {0};
    assert_int_equal(rn_vk_buffer_create(&b, d, 16, RN_VK_DEVICE, "b", &err), 0);
    assert_int_equal(rn_vk_upload(d, &b, 0, bytes, 17, &err), -EINVAL);
    assert_int_equal(rn_vk_upload(d, &b, 17, bytes, 0, &err), -EINVAL);
    assert_int_equal(rn_vk_upload(d, &b, SIZE_MAX, bytes, 2, &err), -EINVAL);
    assert_int_equal(rn_vk_download(d, bytes, &b, 1, 16, &err), -EINVAL);
    assert_int_equal(rn_vk_copy(d, &b, 8, &b, 0, 9, &err), -EINVAL);
    assert_int_equal(rn_vk_copy(d, &b, 16, &b, 0, 0, &err), 0);
    rn_vk_buffer_destroy(d, &b);
    rn_vk_device_close(d);
}

static void the_budget_is_kept_and_named(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_vk_buffer small, large = {0};
    struct rn_err err = {0};
    d->memory_budget = 1 << 20;
    assert_int_equal(rn_vk_buffer_create(&small, d, 4096, RN_VK_DEVICE, "pages", &err), 0);
    uint64_t used = d->memory_used;
    assert_int_equal(rn_vk_buffer_create(&large, d, 1 << 20, RN_VK_DEVICE, "the weights", &err), -ENOMEM);
    assert_non_null(strstr(err.text, "the weights: 1048576 bytes"));
    assert_non_null(strstr(err.text, "its budget of 1048576"));
    assert_null(large.buffer);
    assert_int_equal(d->memory_used, used);
    assert_int_equal(rn_vk_buffer_create(&large, d, d->max_allocation + 1, RN_VK_DEVICE, "the weights", &err), -ENOMEM);
    assert_int_equal(rn_vk_buffer_create(&large, d, 0, RN_VK_DEVICE, "nothing", &err), -ENOMEM);
    assert_int_equal(rn_vk_buffer_create(&large, d, 512 << 10, RN_VK_DEVICE, "the weights", &err), 0);
    rn_vk_buffer_destroy(d, &large);
    rn_vk_buffer_destroy(d, &small);
    assert_int_equal(d->memory_used, 0);
    rn_vk_device_close(d);
}

/* ---- Pipelines ---------------------------------------------------------------------------------------------------------------------------- */

static void run_add(struct rn_vk_device *d, const struct rn_vk_buffer *b, uint32_t n, uint32_t addend)
{
    const struct {
        VkDeviceAddress words;
        uint32_t n, padding;
    } args = {b->address, n, 0};
    struct rn_err err = {0};
    VkPipeline pipeline;
    VkCommandBuffer commands;
    assert_int_equal(rn_vk_pipeline(&pipeline, d, &add_kernel, &addend, 1, &err), 0);
    assert_int_equal(rn_vk_commands_begin(d, &commands, &err), 0);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, rn_vk_layout(d), VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof args, &args);
    vkCmdDispatch(commands, (n + 63) / 64, 1, 1);
    assert_int_equal(rn_vk_commands_run(d, commands, &err), 0);
}

static void a_row_becomes_a_pipeline_per_constant(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    struct rn_vk_buffer b;
    struct rn_err err = {0};
    uint32_t values[100], specs[RN_VK_MAX_SPECS + 1] = {1, 2};
    for (uint32_t i = 0; i < 100; i++) {
        values[i] = i;
    }
    assert_int_equal(rn_vk_buffer_create(&b, d, sizeof values, RN_VK_DEVICE, "b", &err), 0);
    assert_int_equal(rn_vk_upload(d, &b, 0, values, sizeof values, &err), 0);
    run_add(d, &b, 99, 5);
    run_add(d, &b, 99, 700);
    assert_int_equal(rn_vk_download(d, values, &b, 0, sizeof values, &err), 0);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(values[i], i < 99 ? i + 705 : i);
    }
    assert_int_equal(d->n_unsaved, 2);
    VkPipeline five, again, other;
    uint32_t addend = 5;
    assert_int_equal(rn_vk_pipeline(&five, d, &add_kernel, &addend, 1, &err), 0);
    assert_int_equal(rn_vk_pipeline(&again, d, &add_kernel, &addend, 1, &err), 0);
    assert_true(five == again);
    assert_int_equal(d->n_unsaved, 2);
    assert_int_equal(rn_vk_pipeline(&other, d, &add_kernel, NULL, 0, &err), 0);
    assert_true(other != five);
    assert_int_equal(rn_vk_pipeline(&other, d, &add_kernel, specs, RN_VK_MAX_SPECS + 1, &err), -EINVAL);
    rn_vk_buffer_destroy(d, &b);
    rn_vk_device_close(d);
}

static void rows_are_found_by_what_the_device_can_do(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    size_t n;
    const struct rn_vk_kernel *rows = rn_vk_kernels(&n);
    for (size_t i = 0; i < n; i++) {
        uint32_t type = rows[i].type == RN_VK_ANY_TYPE ? 0 : rows[i].type;
        d->features = rows[i].needs;
        const struct rn_vk_kernel *first = rn_vk_kernel_find(d, rows[i].op, type);
        assert_non_null(first);
        assert_int_equal(first->needs & ~rows[i].needs, 0);
        d->features = 0;
        const struct rn_vk_kernel *plain = rn_vk_kernel_find(d, rows[i].op, type);
        if (!plain) {
            fail_msg("%s: no row of this op and type does without features", rows[i].name);
        }
        rn_vk_kernel_disable(d, plain);
        assert_true(rn_vk_kernel_find(d, rows[i].op, type) != plain);
        memset(d->disabled, 0, n * sizeof *d->disabled);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(rows[i].name, rows[j].name);
        }
        assert_true(rows[i].args_bytes > 0 && rows[i].args_bytes <= RN_VK_PUSH_BYTES);
    }
    rn_vk_kernel_disable(d, &add_kernel); // not of the table: nothing happens
    rn_vk_device_close(d);
}

/* ---- The cache on disk -------------------------------------------------------------------------------------------------------------------- */

struct cache_file {
    char dir[32];
    char path[320];
    uint8_t *bytes;
    size_t len;
    ino_t inode;
};

static void read_cache(struct cache_file *f)
{
    DIR *dir = opendir(f->dir);
    size_t n = 0;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] != '.') {
            snprintf(f->path, sizeof f->path, "%s/%s", f->dir, e->d_name);
            n++;
        }
    }
    closedir(dir);
    assert_int_equal(n, 1); // and no temporary file stays
    struct stat st;
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    f->inode = st.st_ino;
    f->len = (size_t)st.st_size;
    free(f->bytes);
    f->bytes = malloc(f->len);
    FILE *file = fopen(f->path, "rb");
    assert_int_equal(fread(f->bytes, 1, f->len, file), f->len);
    fclose(file);
}

static void write_cache(const struct cache_file *f, const uint8_t *bytes, size_t len)
{
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, len, file), len);
    fclose(file);
}

static void need_caches(void)
{
    struct rn_vk_device *d = gpu_kit_open(NULL, NULL);
    bool has = gpu_kit_keeps_pipelines(d);
    rn_vk_device_close(d);
    if (!has) {
        print_message("this driver keeps no pipelines\n");
        skip();
    }
}

/* A cache of one pipeline in a new directory. */
static void make_cache(struct cache_file *f)
{
    *f = (struct cache_file){.dir = "/tmp/runnel-cache-XXXXXX"};
    need_caches();
    assert_non_null(mkdtemp(f->dir));
    struct rn_vk_device *d = gpu_kit_open(NULL, f->dir);
    struct rn_err err = {0};
    VkPipeline pipeline;
    assert_false(d->cache_loaded);
    assert_int_equal(rn_vk_pipeline(&pipeline, d, &add_kernel, NULL, 0, &err), 0);
    rn_vk_device_close(d);
    read_cache(f);
}

static void drop_cache(struct cache_file *f)
{
    unlink(f->path);
    assert_int_equal(rmdir(f->dir), 0);
    free(f->bytes);
}

/* Does the device take the file as it is now? */
static bool loads(struct rn_vk_device *d, const struct cache_file *f)
{
    struct rn_err err = {0};
    vkDestroyPipelineCache(d->device, d->pipeline_cache, NULL);
    d->pipeline_cache = VK_NULL_HANDLE;
    rn_mem_free(d->cache_path);
    d->cache_path = NULL;
    assert_int_equal(rn_vk_cache_open(d, f->dir, &err), 0);
    return d->cache_loaded;
}

static void pipelines_come_back_from_the_cache(void **state)
{
    (void)state;
    struct cache_file f;
    make_cache(&f);
    ino_t inode = f.inode;
    struct rn_vk_device *d = gpu_kit_open(NULL, f.dir);
    assert_true(d->cache_loaded);
    rn_vk_device_close(d);
    read_cache(&f);
    assert_int_equal(f.inode, inode); // nothing made, nothing written
    d = gpu_kit_open(NULL, f.dir);
    struct rn_err err = {0};
    VkPipeline pipeline;
    assert_int_equal(rn_vk_pipeline(&pipeline, d, &add_kernel, NULL, 0, &err), 0);
    rn_vk_cache_save(d);
    assert_int_equal(d->n_unsaved, 0);
    rn_vk_device_close(d);
    read_cache(&f);
    assert_true(f.inode != inode);
    drop_cache(&f);
}

static void a_damaged_cache_is_dropped(void **state)
{
    (void)state;
    struct cache_file f;
    make_cache(&f);
    struct rn_vk_device *d = gpu_kit_open(NULL, f.dir);
    assert_true(d->cache_loaded);
    size_t step = f.len / 150 + 1;
    for (size_t at = 0; at < f.len; at += at < 128 ? 1 : step) {
        f.bytes[at] ^= 0x40;
        write_cache(&f, f.bytes, f.len);
        assert_false(loads(d, &f));
        f.bytes[at] ^= 0x40;
    }
    for (size_t len = 0; len < f.len; len += len < 128 ? 1 : step) {
        write_cache(&f, f.bytes, len);
        assert_false(loads(d, &f));
    }
    uint8_t *longer = calloc(1, f.len + 1);
    memcpy(longer, f.bytes, f.len);
    write_cache(&f, longer, f.len + 1);
    assert_false(loads(d, &f));
    free(longer);
    write_cache(&f, f.bytes, f.len);
    assert_true(loads(d, &f));
    // A directory in its place, or nothing to write to: no cache, no error.
    unlink(f.path);
    assert_int_equal(mkdir(f.path, 0700), 0);
    assert_false(loads(d, &f));
    d->n_unsaved = 1;
    rn_vk_device_close(d);
    assert_int_equal(rmdir(f.path), 0);
    drop_cache(&f);
}

/* Offsets in the file's header (runtime/vulkan/pipeline_cache.c). */
enum { AT_ID = 8, AT_KERNELS = 40, AT_CHECKSUM = 56, AT_DATA = 64 };

static void a_foreign_cache_is_dropped(void **state)
{
    (void)state;
    static const size_t places[] = {AT_ID, AT_ID + VK_UUID_SIZE, AT_KERNELS, AT_DATA + 4 /* version */, AT_DATA + 8 /* vendor */, AT_DATA + 12 /* device */,
                                    AT_DATA + 16 /* UUID */};
    struct cache_file f;
    make_cache(&f);
    struct rn_vk_device *d = gpu_kit_open(NULL, f.dir);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        uint8_t *copy = malloc(f.len);
        memcpy(copy, f.bytes, f.len);
        copy[places[i]] ^= 1;
        uint64_t sum = XXH64(copy + AT_DATA, f.len - AT_DATA, 0);
        memcpy(copy + AT_CHECKSUM, &sum, sizeof sum); // whole, but of another device, driver or build
        write_cache(&f, copy, f.len);
        assert_false(loads(d, &f));
        free(copy);
    }
    write_cache(&f, f.bytes, f.len);
    assert_true(loads(d, &f));
    rn_vk_device_close(d);
    drop_cache(&f);
}

static void the_cache_directory_is_made(void **state)
{
    (void)state;
    struct cache_file f = {0};
    char parent[] = "/tmp/runnel-cache-XXXXXX";
    need_caches();
    assert_non_null(mkdtemp(parent));
    snprintf(f.dir, sizeof f.dir, "%s/new", parent);
    struct rn_vk_device *d = gpu_kit_open(NULL, f.dir);
    struct rn_err err = {0};
    VkPipeline pipeline;
    assert_int_equal(rn_vk_pipeline(&pipeline, d, &add_kernel, NULL, 0, &err), 0);
    rn_vk_device_close(d);
    read_cache(&f);
    drop_cache(&f);
    assert_int_equal(rmdir(parent), 0);
}

static void a_missing_cache_directory_is_no_error(void **state)
{
    (void)state;
    struct rn_vk_device *d = gpu_kit_open(NULL, "/nonexistent/cache");
    struct rn_err err = {0};
    VkPipeline pipeline;
    assert_int_equal(rn_vk_pipeline(&pipeline, d, &add_kernel, NULL, 0, &err), 0);
    rn_vk_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_describes_each_device),
        cmocka_unit_test(an_unknown_feature_is_an_error_that_names_the_known_ones),
        cmocka_unit_test(a_mask_hides_features),
        cmocka_unit_test(a_selector_means_an_index_or_a_part_of_a_name),
        cmocka_unit_test(a_device_opens_twice_and_none_that_is_not_there),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(missing_rights_name_the_group),
        cmocka_unit_test(bytes_go_up_and_come_back),
        cmocka_unit_test(mapped_buffers_need_no_staging),
        cmocka_unit_test(a_copy_stays_in_its_buffer),
        cmocka_unit_test(the_budget_is_kept_and_named),
        cmocka_unit_test(a_row_becomes_a_pipeline_per_constant),
        cmocka_unit_test(rows_are_found_by_what_the_device_can_do),
        cmocka_unit_test(pipelines_come_back_from_the_cache),
        cmocka_unit_test(a_damaged_cache_is_dropped),
        cmocka_unit_test(a_foreign_cache_is_dropped),
        cmocka_unit_test(the_cache_directory_is_made),
        cmocka_unit_test(a_missing_cache_directory_is_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
