/* The Vulkan backend: load, pages in device memory, and the table that the engine sees. */
#include "runtime/vulkan/gpu.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/vulkan/plan_internal.h"

#define SUBMIT_BUDGET_MS 250

/* ---- load -------------------------------------------------------------------------------------------------------------------------------- */

static void vk_destroy(struct rn_backend *backend)
{
    struct rn_vk *vk = (struct rn_vk *)backend;
    if (!vk) {
        return;
    }
    if (vk->device) {
        rn_vk_record_finish(vk);
        rn_vk_plan_finish(vk);
        rn_vk_weights_finish(vk);
        for (struct rn_vk_slab *slab; (slab = vk->slabs);) {
            vk->slabs = slab->next;
            rn_vk_buffer_destroy(vk->device, &slab->buffer);
            rn_mem_free(slab);
        }
        rn_vk_device_close(vk->device);
    }
    rn_mem_free(vk->wanted);
    rn_mem_free(vk->seen);
    rn_mem_free(vk);
}

static uint32_t bucket_of(uint32_t n_rows)
{
    uint32_t bucket = 1;
    while (bucket < n_rows) {
        bucket *= 2;
    }
    return bucket;
}

static void add_choice(struct rn_vk *vk, const char *op, const char *type, const char *row)
{
    char(*text)[64] = vk->choice_text[vk->n_choices];
    if (vk->n_choices == RN_VK_MAX_CHOICES) {
        return;
    }
    snprintf(text[0], sizeof text[0], "%s%s%s", op, type[0] ? " " : "", type);
    snprintf(text[1], sizeof text[1], "%s", row);
    for (uint32_t i = 0; i < vk->n_choices; i++) {
        if (strcmp(vk->choice_text[i][0], text[0]) == 0 && strcmp(vk->choice_text[i][1], text[1]) == 0) {
            return;
        }
    }
    vk->choices[vk->n_choices++] = (struct rn_kernel_choice){text[0], text[1]};
}

/* The kernels of every dispatch, once each; those that the self-test disabled come after them. */
static void list_choices(struct rn_vk *vk)
{
    static const char *const names[RN_VK_OP_COUNT] = {"embed", "prepare", "matvec", "matmat", "rope_kv", "attend", "combine"};
    for (uint32_t i = 0; i < vk->n_tasks; i++) {
        for (uint32_t rows = 1; rows <= vk->max_rows; rows *= 2) {
            const struct rn_vk_kernel *k = rn_vk_task_kernel(vk, &vk->tasks[i], rows);
            const char *type = k && k->type != RN_VK_ANY_TYPE ? rn_dtype_find(k->type)->name : "";
            if (k) {
                add_choice(vk, names[k->op], type, k->name);
            }
        }
    }
    for (uint32_t i = 0; i < vk->n_failed; i++) {
        add_choice(vk, "failed its self-test", "", vk->failed[i]->name);
    }
}

static int setup(struct rn_vk *vk, const struct rn_backend_params *params, struct rn_err *err)
{
    int r = rn_kv_check(params->kv, vk->program, err);
    r = r < 0 ? r : rn_vk_device_open(&vk->device, params->gpu, params->gpu_mask, params->cache_dir, err);
    r = r < 0 ? r : rn_vk_selftest(vk, err);
    r = r < 0 ? r : rn_vk_weights_load(vk, params, err);
    r = r < 0 ? r : rn_vk_vectors_load(vk, err);
    r = r < 0 ? r : rn_vk_plan(vk, err);
    r = r < 0 ? r : rn_vk_record_init(vk, err);
    if (r < 0) {
        return r;
    }
    for (uint32_t i = 0; i < vk->n_weights; i++) {
        vk->weights[i].src = NULL; // the file may be closed now
    }
    snprintf(vk->name, sizeof vk->name, "vulkan %s", vk->device->name);
    list_choices(vk);
    return 0;
}

static int vk_load(struct rn_backend **ret, const struct rn_program *program, const struct rn_backend_params *params, struct rn_err *err)
{
    if (params->max_rows == 0 || params->max_rows > RN_STEP_ROWS) {
        return rn_err_set(err, -EINVAL, "steps of %u rows, the Vulkan backend does 1 to %d", params->max_rows, RN_STEP_ROWS);
    }
    struct rn_vk *vk = rn_mem_alloc(1, sizeof *vk);
    if (!vk) {
        return rn_err_nomem(err, sizeof *vk, "the Vulkan backend");
    }
    vk->ops = &rn_vulkan_backend;
    vk->program = program;
    vk->kv = params->kv;
    vk->max_rows = bucket_of(params->max_rows);
    vk->poison = params->poison;
    vk->budget_ns = 1e6 * (params->submit_budget_ms ? params->submit_budget_ms : SUBMIT_BUDGET_MS);
    vk->wanted = rn_mem_alloc(RN_STEP_ROWS, sizeof *vk->wanted);
    vk->seen = rn_mem_alloc(program->n_groups, sizeof *vk->seen);
    int r = vk->wanted && vk->seen ? setup(vk, params, err) : rn_err_nomem(err, RN_STEP_ROWS * sizeof *vk->wanted, "the Vulkan backend");
    if (r < 0) {
        vk_destroy((struct rn_backend *)vk);
        return r;
    }
    *ret = (struct rn_backend *)vk;
    return 0;
}

/* ---- pages -------------------------------------------------------------------------------------------------------------------------------- */

static bool is_q8(const struct rn_vk *vk, bool pinned)
{
    return !pinned && vk->kv == RN_KV_Q8_0;
}

static size_t vk_page_bytes(const struct rn_backend *backend, uint32_t group, bool pinned)
{
    const struct rn_vk *vk = (const struct rn_vk *)backend;
    return rn_kv_parts_bytes(is_q8(vk, pinned), vk->program, group);
}

/* The slab that an address lies in. A handle is an address of the device, not of the host. */
static struct rn_vk_slab **find_slab(struct rn_vk *vk, const void *pages)
{
    VkDeviceAddress at = (VkDeviceAddress)(uintptr_t)pages;
    struct rn_vk_slab **slab = &vk->slabs;
    while (*slab && (at < (*slab)->buffer.address || at - (*slab)->buffer.address >= (*slab)->buffer.bytes)) {
        slab = &(*slab)->next;
    }
    return slab;
}

static size_t place_in(const struct rn_vk_slab *slab, const void *page)
{
    return (size_t)((VkDeviceAddress)(uintptr_t)page - slab->buffer.address);
}

static void *vk_page_alloc(struct rn_backend *backend, size_t bytes)
{
    struct rn_vk *vk = (struct rn_vk *)backend;
    struct rn_vk_slab *slab = rn_mem_alloc(1, sizeof *slab);
    if (!slab) {
        return NULL;
    }
    int r = rn_vk_buffer_create(&slab->buffer, vk->device, bytes, RN_VK_DEVICE, "KV pages", NULL);
    if (r == 0 && vk->poison) {
        r = rn_vk_page_poison(vk->device, &slab->buffer, 0, bytes, NULL);
    }
    if (r < 0) {
        rn_vk_buffer_destroy(vk->device, &slab->buffer);
        rn_mem_free(slab);
        return NULL;
    }
    slab->next = vk->slabs;
    vk->slabs = slab;
    return (void *)(uintptr_t)slab->buffer.address;
}

static void vk_page_free(struct rn_backend *backend, void *pages, size_t bytes)
{
    struct rn_vk *vk = (struct rn_vk *)backend;
    struct rn_vk_slab **at = find_slab(vk, pages), *slab = *at;
    (void)bytes;
    if (slab) {
        *at = slab->next;
        rn_vk_buffer_destroy(vk->device, &slab->buffer);
        rn_mem_free(slab);
    }
}

/* A failure here is one of the device, which the next step reports. */
static void vk_page_clear(struct rn_backend *backend, void *page, size_t bytes)
{
    struct rn_vk *vk = (struct rn_vk *)backend;
    const struct rn_vk_slab *slab = vk->poison ? *find_slab(vk, page) : NULL;
    if (slab) {
        (void)rn_vk_page_poison(vk->device, &slab->buffer, place_in(slab, page), bytes, NULL);
    }
}

static void vk_page_copy(struct rn_backend *backend, uint32_t group, bool pinned, void *dst, const void *src, uint32_t n_tokens)
{
    struct rn_vk *vk = (struct rn_vk *)backend;
    const struct rn_vk_slab *to = *find_slab(vk, dst), *from = *find_slab(vk, src);
    if (to && from && n_tokens) {
        int r = rn_vk_page_copy(vk->device, vk->program, group, is_q8(vk, pinned), &to->buffer, place_in(to, dst), &from->buffer,
                                place_in(from, src), n_tokens, NULL);
        vk->device->lost |= r < 0; // a page with wrong bytes must not be read
    }
}

static uint64_t vk_page_budget(const struct rn_backend *backend)
{
    const struct rn_vk_device *d = ((const struct rn_vk *)backend)->device;
    return d->memory_budget > d->memory_used ? d->memory_budget - d->memory_used : 0;
}

/* ---- what it says about itself ---------------------------------------------------------------------------------------------------------- */

static const struct rn_kernel_choice *vk_kernels(const struct rn_backend *backend, size_t *ret_n)
{
    const struct rn_vk *vk = (const struct rn_vk *)backend;
    *ret_n = vk->n_choices;
    return vk->choices;
}

static const char *vk_device(const struct rn_backend *backend)
{
    return ((const struct rn_vk *)backend)->name;
}

static size_t vk_weight_bytes(const struct rn_backend *backend)
{
    return ((const struct rn_vk *)backend)->weight_bytes;
}

/* Timestamps around every dispatch want command buffers of their own. */
static void vk_profile(struct rn_backend *backend, bool on)
{
    struct rn_vk *vk = (struct rn_vk *)backend;
    if (on) {
        memset(vk->costs, 0, sizeof vk->costs);
        vk->host = (struct rn_host_cost){0};
    }
    if (on != vk->profiling) {
        rn_vk_record_drop_all(vk);
        vk->profiling = on;
    }
}

static const struct rn_op_cost *vk_costs(const struct rn_backend *backend)
{
    return ((const struct rn_vk *)backend)->costs;
}

static struct rn_host_cost vk_host_cost(const struct rn_backend *backend)
{
    return ((const struct rn_vk *)backend)->host;
}

const struct rn_backend_ops rn_vulkan_backend = {
    .name = "vulkan", .load = vk_load, .destroy = vk_destroy, .page_bytes = vk_page_bytes, .page_alloc = vk_page_alloc,
    .page_free = vk_page_free, .page_clear = vk_page_clear, .page_copy = vk_page_copy, .step = rn_vk_step, .kernels = vk_kernels,
    .device = vk_device, .weight_bytes = vk_weight_bytes, .profile = vk_profile, .costs = vk_costs, .host_cost = vk_host_cost,
    .page_budget = vk_page_budget,
};
