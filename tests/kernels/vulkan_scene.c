/* Sequences with pages of poison in memory that a Vulkan device sees, for the tests of attention: cells by the layout of
 * runtime/vulkan/vulkan_internal.h, and what each row sees, both written from the contract. One scene at a time. Everything fails the test that
 * calls it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/quant.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/kernels/vulkan_scene.h"

#define MEMORY ((size_t)96 << 20)

struct rn_vk_device *scene_device;
struct rn_vk_buffer scene_memory;
size_t scene_used;
struct scene scene;

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

uint32_t scene_random(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}

uint32_t scene_below(uint32_t n)
{
    return scene_random() % n;
}

float scene_normal(void)
{
    float s = 0.0f;
    for (int i = 0; i < 12; i++) {
        s += (float)scene_random() * 0x1p-32f;
    }
    return s - 6.0f;
}

void *scene_take(size_t bytes)
{
    scene_used = (scene_used + 255) & ~(size_t)255;
    if (bytes > MEMORY - scene_used) {
        fail_msg("the test's memory is too small");
    }
    void *p = (char *)scene_memory.mapped + scene_used;
    scene_used += bytes;
    return p;
}

VkDeviceAddress scene_address(const void *p)
{
    return scene_memory.address + (VkDeviceSize)((const char *)p - (const char *)scene_memory.mapped);
}

void *scene_host(VkDeviceAddress at)
{
    return (char *)scene_memory.mapped + (at - scene_memory.address);
}

/* ---- dispatches -------------------------------------------------------------------------------------------------------------------------- */

static void record(VkCommandBuffer commands, const struct scene_dispatch *d)
{
    struct rn_err err = {0};
    VkPipeline pipeline;
    if (rn_vk_pipeline(&pipeline, scene_device, d->kernel, d->specs, d->n_specs, &err) != 0) {
        fail_msg("%s", err.text);
    }
    const VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                 .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT};
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, rn_vk_layout(scene_device), VK_SHADER_STAGE_COMPUTE_BIT, 0, d->bytes, d->args);
    vkCmdDispatch(commands, d->x, d->y, d->z);
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &all,
                         0, NULL, 0, NULL);
}

void scene_run(const struct scene_dispatch *list, uint32_t n)
{
    struct rn_err err = {0};
    VkCommandBuffer commands;
    int r = rn_vk_commands_begin(scene_device, &commands, &err);
    for (uint32_t i = 0; i < n && r == 0; i++) {
        record(commands, &list[i]);
    }
    r = r == 0 ? rn_vk_commands_run(scene_device, commands, &err) : r;
    if (r != 0) {
        fail_msg("%s", err.text);
    }
}

const struct rn_vk_kernel *scene_kernel(enum rn_vk_op op, uint32_t i)
{
    size_t n;
    const struct rn_vk_kernel *rows = rn_vk_kernels(&n);
    for (size_t k = 0; k < n; k++) {
        if (rows[k].op == op && (rows[k].needs & ~scene_device->features) == 0 && i-- == 0) {
            return &rows[k];
        }
    }
    return NULL;
}

/* ---- cells ------------------------------------------------------------------------------------------------------------------------------- */

static void model_init(struct scene_model *m, uint32_t head_dim, uint32_t group_heads, uint32_t n_kv_heads, bool q8, uint32_t window)
{
    *m = (struct scene_model){.q8 = q8, .group = {.n_layers = SCENE_N_LAYERS, .window = window}};
    m->p = (struct rn_program){.n_heads = group_heads * n_kv_heads, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .n_groups = 1};
    m->p.groups = &m->group;
    m->p.attn_scale = 1.0f / sqrtf((float)head_dim);
    m->ld_q = (m->p.n_heads * head_dim + 31) / 32 * 32;
    m->ld_k = (n_kv_heads * head_dim + 31) / 32 * 32;
}

uint32_t scene_layer_at(const struct scene_model *m, bool pinned)
{
    return (uint32_t)((SCENE_N_LAYERS - 1) * m->p.n_kv_heads * 2 * rn_kv_part_bytes(m->q8 && !pinned, m->p.head_dim));
}

struct scene_cell scene_cell(const struct scene_model *m, void *page, bool pinned, uint32_t kv_head, uint32_t slot)
{
    bool q8 = m->q8 && !pinned;
    size_t part = rn_kv_part_bytes(q8, m->p.head_dim);
    uint8_t *k = (uint8_t *)page + scene_layer_at(m, pinned) + kv_head * 2 * part;
    return (struct scene_cell){.k = k, .v = k + part, .q8 = q8, .head_dim = m->p.head_dim, .slot = slot};
}

static size_t k_index(const struct scene_cell *c, uint32_t d)
{
    uint32_t unit = c->q8 ? 16 : 8;
    return (size_t)(d / unit * 64 + c->slot) * unit + d % unit;
}

static size_t v_index(const struct scene_cell *c, uint32_t d)
{
    return (size_t)c->slot * c->head_dim + d;
}

static uint8_t *k_scale(const struct scene_cell *c, uint32_t g)
{
    return c->k + (size_t)64 * c->head_dim + 2 * (g * 64 + c->slot);
}

static uint8_t *v_scale(const struct scene_cell *c, uint32_t g)
{
    return c->v + (size_t)64 * c->head_dim + 2 * (c->slot * (c->head_dim / 32) + g);
}

void scene_put16(uint8_t *to, uint16_t value)
{
    memcpy(to, &value, 2);
}

uint16_t scene_get16(const uint8_t *from)
{
    uint16_t value;
    memcpy(&value, from, 2);
    return value;
}

void scene_put_cell(const struct scene_cell *c, const float *k, const float *v)
{
    for (uint32_t d = 0; d < c->head_dim && !c->q8; d++) {
        scene_put16(c->k + 2 * k_index(c, d), rn_f32_to_f16(k[d]));
        scene_put16(c->v + 2 * v_index(c, d), rn_f32_to_f16(v[d]));
    }
    for (uint32_t g = 0; g < c->head_dim / 32 && c->q8; g++) {
        int8_t q[2][RN_GROUP];
        scene_put16(k_scale(c, g), rn_quant_kv(k + g * RN_GROUP, q[0]));
        scene_put16(v_scale(c, g), rn_quant_kv(v + g * RN_GROUP, q[1]));
        for (uint32_t d = 0; d < RN_GROUP; d++) {
            c->k[k_index(c, g * RN_GROUP + d)] = (uint8_t)q[0][d];
            c->v[v_index(c, g * RN_GROUP + d)] = (uint8_t)q[1][d];
        }
    }
}

double scene_element(const struct scene_cell *c, bool of_v, uint32_t d, double *ret_step)
{
    const uint8_t *part = of_v ? c->v : c->k;
    size_t at = of_v ? v_index(c, d) : k_index(c, d);
    if (c->q8) {
        double scale = (double)rn_f16_to_f32(scene_get16(of_v ? v_scale(c, d / 32) : k_scale(c, d / 32)));
        *ret_step = scale;
        return scale * (int8_t)part[at];
    }
    double value = (double)rn_f16_to_f32(scene_get16(part + 2 * at));
    *ret_step = fmax(fabs(value) * 0x1p-10, 0x1p-24);
    return value;
}

void scene_poison_cell(const struct scene_cell *c, uint16_t pattern)
{
    for (uint32_t d = 0; d < c->head_dim; d++) {
        if (c->q8) {
            c->k[k_index(c, d)] = c->v[v_index(c, d)] = (uint8_t)(pattern ^ d);
        } else {
            scene_put16(c->k + 2 * k_index(c, d), pattern);
            scene_put16(c->v + 2 * v_index(c, d), pattern);
        }
    }
    for (uint32_t g = 0; g < c->head_dim / 32 && c->q8; g++) {
        scene_put16(k_scale(c, g), pattern);
        scene_put16(v_scale(c, g), pattern);
    }
}

/* ---- scenes ------------------------------------------------------------------------------------------------------------------------------ */

bool scene_sees(uint32_t row, bool pinned, uint64_t at)
{
    const struct rn_step_row *r = &scene.rows[row];
    uint64_t n = scene.pages[r->view].n_pinned, low = r->base;
    if (scene.m.group.window) {
        uint64_t first = scene.views[r->view].first;
        low = r->t + 1 > scene.m.group.window ? r->t + 1 - scene.m.group.window : 0;
        low = low > first ? low : first;
    }
    return pinned ? at < n && at <= r->t : at + n <= r->t && at + n >= low;
}

void *scene_page(uint32_t view, bool pinned, uint64_t at)
{
    const struct rn_step_pages *pages = &scene.pages[view];
    return scene_host((VkDeviceAddress)(uintptr_t)(pinned ? pages->pinned[at / 64] : pages->window[at / 64 - pages->first_page]));
}

static void make_stream(uint32_t view, bool pinned, uint64_t first, uint64_t tokens)
{
    size_t bytes = rn_kv_parts_bytes(scene.m.q8 && !pinned, &scene.m.p, 0);
    for (uint64_t k = first; k * 64 < tokens; k++) {
        assert_true(k - first < SCENE_MAX_PAGES);
        uint8_t *page = scene_take(bytes);
        for (size_t i = 0; i < bytes; i += 2) {
            scene_put16(page + i, i % 4 ? 0x7e00 : 0x7bff);
        }
        scene.handles[view][pinned][k - first] = (void *)(uintptr_t)scene_address(page);
    }
}

void scene_add_view(uint32_t n_rows, uint64_t t, uint64_t n_pinned, uint64_t base, uint32_t gap)
{
    uint32_t view = scene.step.n_views++, row0 = scene.step.n_rows;
    for (uint32_t i = 0; i < n_rows; i++) {
        base = base < n_pinned ? n_pinned : base;
        scene.rows[row0 + i] = (struct rn_step_row){.view = view, .t = t, .base = base};
        t += 1 + (gap ? scene_below(gap) : 0);
        base += scene_below(3) == 0 ? 1 : 0;
        base = base > t ? t : base;
    }
    scene.step.n_rows += n_rows;
    scene.views[view] = (struct rn_step_view){.first = scene.m.group.window ? scene_below(2) * 3 : 0, .groups = &scene.pages[view]};
    uint64_t last = scene.rows[row0 + n_rows - 1].t, low = scene.rows[row0].base;
    if (scene.m.group.window) {
        low = scene.rows[row0].t + 1 > scene.m.group.window ? scene.rows[row0].t + 1 - scene.m.group.window : 0;
    }
    scene.pages[view] = (struct rn_step_pages){.n_pinned = n_pinned, .first_page = (low > n_pinned ? low - n_pinned : 0) / 64};
    scene.pages[view].pinned = scene.handles[view][1];
    scene.pages[view].window = scene.handles[view][0];
    make_stream(view, true, 0, n_pinned);
    make_stream(view, false, scene.pages[view].first_page, last >= n_pinned ? last + 1 - n_pinned : 0);
}

void scene_init(uint32_t head_dim, uint32_t group_heads, uint32_t n_kv_heads, bool q8, uint32_t window)
{
    memset(&scene, 0, sizeof scene);
    scene_used = 0;
    model_init(&scene.m, head_dim, group_heads, n_kv_heads, q8, window);
    scene.step.rows = scene.rows;
    scene.step.views = scene.views;
}

void scene_for_cells(scene_cell_fn fn)
{
    for (uint32_t view = 0; view < scene.step.n_views; view++) {
        for (int pinned = 0; pinned < 2; pinned++) {
            const struct rn_step_pages *pages = &scene.pages[view];
            uint64_t first = pinned ? 0 : pages->first_page * 64;
            for (uint64_t at = first; at < first + SCENE_MAX_PAGES * 64; at++) {
                if (!scene.handles[view][pinned][(at - first) / 64]) {
                    break;
                }
                for (uint32_t h = 0; h < scene.m.p.n_kv_heads; h++) {
                    struct scene_cell c = scene_cell(&scene.m, scene_page(view, pinned, at), pinned, h, at % 64);
                    fn(&c, view, pinned, at);
                }
            }
        }
    }
}

static void fill_seen(const struct scene_cell *c, uint32_t view, bool pinned, uint64_t at)
{
    bool seen = false;
    for (uint32_t row = 0; row < scene.step.n_rows; row++) {
        seen = seen || (scene.rows[row].view == view && scene_sees(row, pinned, at));
    }
    if (seen) {
        float k[SCENE_MAX_DIM], v[SCENE_MAX_DIM];
        bool large = scene_below(40) == 0; // outliers
        for (uint32_t d = 0; d < c->head_dim; d++) {
            k[d] = scene_normal() * (large ? 6.0f : 1.0f);
            v[d] = scene_normal() * (large ? 30.0f : 1.0f);
        }
        scene_put_cell(c, k, v);
    }
}

void scene_fill(bool sinks)
{
    scene_for_cells(fill_seen);
    for (int zone = 0; zone < 2; zone++) {
        scene.q[zone] = scene_take((size_t)scene.step.n_rows * scene.m.ld_q * sizeof(float));
        for (uint32_t i = 0; i < scene.step.n_rows * scene.m.ld_q; i++) {
            scene.q[zone][i] = scene_normal() * 1.5f;
        }
    }
    scene.sinks = sinks ? scene_take(scene.m.p.n_heads * sizeof(float)) : NULL;
    for (uint32_t h = 0; h < scene.m.p.n_heads && sinks; h++) {
        scene.sinks[h] = scene_normal() * 4.0f;
    }
}

struct rn_vk_tables scene_tables(const struct rn_step *step)
{
    struct rn_vk_tables t = {.cap_chunks = rn_vk_tables_count(&scene.m.p, 0, step)};
    t.cells = scene_take(RN_STEP_ROWS * sizeof *t.cells);
    t.tiles = scene_take(RN_STEP_ROWS * sizeof *t.tiles);
    t.chunks = scene_take((t.cap_chunks + 1) * sizeof *t.chunks);
    rn_vk_tables_fill(&t, &scene.m.p, 0, step);
    return t;
}

int scene_setup(void **state)
{
    (void)state;
    struct rn_err err = {0};
    scene_device = gpu_kit_open(NULL, NULL);
    scene_device->deadline_ms = 120000; // a software device compiles at the first dispatch, on a machine that may be busy
    return rn_vk_buffer_create(&scene_memory, scene_device, MEMORY, RN_VK_READBACK, "the test's memory", &err);
}

int scene_teardown(void **state)
{
    (void)state;
    if (scene_device) { // not when the setup failed
        rn_vk_buffer_destroy(scene_device, &scene_memory);
        rn_vk_device_close(scene_device);
    }
    return 0;
}

