/* rope_kv, attend and combine on a Vulkan device, against plain references made from the contract (runtime/vulkan/vulkan_internal.h has the
 * layout of cells, runtime/cpu/kernels.h the sums).
 *
 * Bit for bit: split mode and loop mode; a row alone and among others; every kernel of an operation; buckets of any size. All cells that a row
 * does not see hold NaN or 65504, also those that its neighbours see.
 * Tolerances: attention as for the CPU's plain C (scores to 2e-6 of their terms, exp and sums 3e-5 in all); rotation 4e-6 of the largest element;
 * f16 cells one unit in the last place, q8_0 cells one step. A software device divides exactly: there v cells are exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/quant.h"
#include "tests/gpu/gpu_kit.h"

#define MAX_ROWS 24
#define MAX_VIEWS 3
#define MAX_PAGES 32
#define MAX_DIM 512
#define N_LAYERS 2     /* of the group; the second one is computed */
#define MEMORY ((size_t)96 << 20)

static struct rn_vk_device *device;
static struct rn_vk_buffer memory;
static size_t used;

static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static uint32_t random_u32(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}

static uint32_t random_below(uint32_t n)
{
    return random_u32() % n;
}

static float random_normal(void)
{
    float s = 0.0f;
    for (int i = 0; i < 12; i++) {
        s += (float)random_u32() * 0x1p-32f;
    }
    return s - 6.0f;
}

/* Memory that the device sees too, until the next test. */
static void *take(size_t bytes)
{
    used = (used + 255) & ~(size_t)255;
    if (bytes > MEMORY - used) {
        fail_msg("the test's memory is too small");
    }
    void *p = (char *)memory.mapped + used;
    used += bytes;
    return p;
}

static VkDeviceAddress address(const void *p)
{
    return memory.address + (VkDeviceSize)((const char *)p - (const char *)memory.mapped);
}

static void *host(VkDeviceAddress at)
{
    return (char *)memory.mapped + (at - memory.address);
}

/* ---- dispatches -------------------------------------------------------------------------------------------------------------------------- */

struct dispatch {
    const struct rn_vk_kernel *kernel;
    const void *args;
    uint32_t bytes, n_specs, x, y, z;
    const uint32_t *specs;
};

static void record(VkCommandBuffer commands, const struct dispatch *d)
{
    struct rn_err err = {0};
    VkPipeline pipeline;
    if (rn_vk_pipeline(&pipeline, device, d->kernel, d->specs, d->n_specs, &err) != 0) {
        fail_msg("%s", err.text);
    }
    const VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                 .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_HOST_READ_BIT};
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, rn_vk_layout(device), VK_SHADER_STAGE_COMPUTE_BIT, 0, d->bytes, d->args);
    vkCmdDispatch(commands, d->x, d->y, d->z);
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &all,
                         0, NULL, 0, NULL);
}

static void run(const struct dispatch *list, uint32_t n)
{
    struct rn_err err = {0};
    VkCommandBuffer commands;
    int r = rn_vk_commands_begin(device, &commands, &err);
    for (uint32_t i = 0; i < n && r == 0; i++) {
        record(commands, &list[i]);
    }
    r = r == 0 ? rn_vk_commands_run(device, commands, &err) : r;
    if (r != 0) {
        fail_msg("%s", err.text);
    }
}

/* The i-th kernel of an operation that this device can run; NULL: no more. */
static const struct rn_vk_kernel *kernel(enum rn_vk_op op, uint32_t i)
{
    size_t n;
    const struct rn_vk_kernel *rows = rn_vk_kernels(&n);
    for (size_t k = 0; k < n; k++) {
        if (rows[k].op == op && (rows[k].needs & ~device->features) == 0 && i-- == 0) {
            return &rows[k];
        }
    }
    return NULL;
}

/* ---- cells ------------------------------------------------------------------------------------------------------------------------------- */

struct model {
    struct rn_program p;
    struct rn_layer_group group;
    bool q8;                       /* window cells */
    uint32_t ld_q, ld_k;
};

static void model_init(struct model *m, uint32_t head_dim, uint32_t group_heads, uint32_t n_kv_heads, bool q8, uint32_t window)
{
    *m = (struct model){.q8 = q8, .group = {.n_layers = N_LAYERS, .window = window}};
    m->p = (struct rn_program){.n_heads = group_heads * n_kv_heads, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .n_groups = 1};
    m->p.groups = &m->group;
    m->p.attn_scale = 1.0f / sqrtf((float)head_dim);
    m->ld_q = (m->p.n_heads * head_dim + 31) / 32 * 32;
    m->ld_k = (n_kv_heads * head_dim + 31) / 32 * 32;
}

static uint32_t layer_at(const struct model *m, bool pinned)
{
    return (uint32_t)((N_LAYERS - 1) * m->p.n_kv_heads * 2 * rn_vk_part_bytes(m->q8 && !pinned, m->p.head_dim));
}

struct cell {
    uint8_t *k, *v; /* parts of the page */
    bool q8;
    uint32_t head_dim, slot;
};

static struct cell cell_of(const struct model *m, void *page, bool pinned, uint32_t kv_head, uint32_t slot)
{
    bool q8 = m->q8 && !pinned;
    size_t part = rn_vk_part_bytes(q8, m->p.head_dim);
    uint8_t *k = (uint8_t *)page + layer_at(m, pinned) + kv_head * 2 * part;
    return (struct cell){.k = k, .v = k + part, .q8 = q8, .head_dim = m->p.head_dim, .slot = slot};
}

static size_t k_index(const struct cell *c, uint32_t d)
{
    uint32_t unit = c->q8 ? 16 : 8;
    return (size_t)(d / unit * 64 + c->slot) * unit + d % unit;
}

static size_t v_index(const struct cell *c, uint32_t d)
{
    return (size_t)c->slot * c->head_dim + d;
}

static uint8_t *k_scale(const struct cell *c, uint32_t g)
{
    return c->k + (size_t)64 * c->head_dim + 2 * (g * 64 + c->slot);
}

static uint8_t *v_scale(const struct cell *c, uint32_t g)
{
    return c->v + (size_t)64 * c->head_dim + 2 * (c->slot * (c->head_dim / 32) + g);
}

static void put16(uint8_t *to, uint16_t value)
{
    memcpy(to, &value, 2);
}

static uint16_t get16(const uint8_t *from)
{
    uint16_t value;
    memcpy(&value, from, 2);
    return value;
}

static void put_cell(const struct cell *c, const float *k, const float *v)
{
    for (uint32_t d = 0; d < c->head_dim && !c->q8; d++) {
        put16(c->k + 2 * k_index(c, d), rn_f32_to_f16(k[d]));
        put16(c->v + 2 * v_index(c, d), rn_f32_to_f16(v[d]));
    }
    for (uint32_t g = 0; g < c->head_dim / 32 && c->q8; g++) {
        int8_t q[2][RN_GROUP];
        put16(k_scale(c, g), rn_quant_kv(k + g * RN_GROUP, q[0]));
        put16(v_scale(c, g), rn_quant_kv(v + g * RN_GROUP, q[1]));
        for (uint32_t d = 0; d < RN_GROUP; d++) {
            c->k[k_index(c, g * RN_GROUP + d)] = (uint8_t)q[0][d];
            c->v[v_index(c, g * RN_GROUP + d)] = (uint8_t)q[1][d];
        }
    }
}

/* Value and step (half of which is the rounding) of one element. */
static double element(const struct cell *c, bool of_v, uint32_t d, double *ret_step)
{
    const uint8_t *part = of_v ? c->v : c->k;
    size_t at = of_v ? v_index(c, d) : k_index(c, d);
    if (c->q8) {
        double scale = (double)rn_f16_to_f32(get16(of_v ? v_scale(c, d / 32) : k_scale(c, d / 32)));
        *ret_step = scale;
        return scale * (int8_t)part[at];
    }
    double value = (double)rn_f16_to_f32(get16(part + 2 * at));
    *ret_step = fmax(fabs(value) * 0x1p-10, 0x1p-24);
    return value;
}

static void poison_cell(const struct cell *c, uint16_t pattern)
{
    for (uint32_t d = 0; d < c->head_dim; d++) {
        if (c->q8) {
            c->k[k_index(c, d)] = c->v[v_index(c, d)] = (uint8_t)(pattern ^ d);
        } else {
            put16(c->k + 2 * k_index(c, d), pattern);
            put16(c->v + 2 * v_index(c, d), pattern);
        }
    }
    for (uint32_t g = 0; g < c->head_dim / 32 && c->q8; g++) {
        put16(k_scale(c, g), pattern);
        put16(v_scale(c, g), pattern);
    }
}

/* ---- scenes ------------------------------------------------------------------------------------------------------------------------------ */

struct scene {
    struct model m;
    struct rn_step step;
    struct rn_step_row rows[MAX_ROWS];
    struct rn_step_view views[MAX_VIEWS];
    struct rn_step_pages pages[MAX_VIEWS];
    void *handles[MAX_VIEWS][2][MAX_PAGES]; /* device addresses; [1]: pinned */
    float *q[2];                            /* [rows][ld_q]: pinned, window */
    float *sinks;                           /* [n_heads], or NULL */
};

static struct scene s;

static bool sees(uint32_t row, bool pinned, uint64_t at)
{
    const struct rn_step_row *r = &s.rows[row];
    uint64_t n = s.pages[r->view].n_pinned, low = r->base;
    if (s.m.group.window) {
        uint64_t first = s.views[r->view].first;
        low = r->t + 1 > s.m.group.window ? r->t + 1 - s.m.group.window : 0;
        low = low > first ? low : first;
    }
    return pinned ? at < n && at <= r->t : at + n <= r->t && at + n >= low;
}

static void *page_of(uint32_t view, bool pinned, uint64_t at)
{
    const struct rn_step_pages *pages = &s.pages[view];
    return host((VkDeviceAddress)(uintptr_t)(pinned ? pages->pinned[at / 64] : pages->window[at / 64 - pages->first_page]));
}

static void make_stream(uint32_t view, bool pinned, uint64_t first, uint64_t tokens)
{
    size_t bytes = rn_vk_page_bytes(&s.m.p, 0, s.m.q8 && !pinned);
    for (uint64_t k = first; k * 64 < tokens; k++) {
        assert_true(k - first < MAX_PAGES);
        uint8_t *page = take(bytes);
        for (size_t i = 0; i < bytes; i += 2) {
            put16(page + i, i % 4 ? 0x7e00 : 0x7bff);
        }
        s.handles[view][pinned][k - first] = (void *)(uintptr_t)address(page);
    }
}

/* Rows of a view from t on, and its pages, all poison. */
static void add_view(uint32_t n_rows, uint64_t t, uint64_t n_pinned, uint64_t base, uint32_t gap)
{
    uint32_t view = s.step.n_views++, row0 = s.step.n_rows;
    for (uint32_t i = 0; i < n_rows; i++) {
        base = base < n_pinned ? n_pinned : base;
        s.rows[row0 + i] = (struct rn_step_row){.view = view, .t = t, .base = base};
        t += 1 + (gap ? random_below(gap) : 0);
        base += random_below(3) == 0 ? 1 : 0;
        base = base > t ? t : base;
    }
    s.step.n_rows += n_rows;
    s.views[view] = (struct rn_step_view){.first = s.m.group.window ? random_below(2) * 3 : 0, .groups = &s.pages[view]};
    uint64_t last = s.rows[row0 + n_rows - 1].t, low = s.rows[row0].base;
    if (s.m.group.window) {
        low = s.rows[row0].t + 1 > s.m.group.window ? s.rows[row0].t + 1 - s.m.group.window : 0;
    }
    s.pages[view] = (struct rn_step_pages){.n_pinned = n_pinned, .first_page = (low > n_pinned ? low - n_pinned : 0) / 64};
    s.pages[view].pinned = s.handles[view][1];
    s.pages[view].window = s.handles[view][0];
    make_stream(view, true, 0, n_pinned);
    make_stream(view, false, s.pages[view].first_page, last >= n_pinned ? last + 1 - n_pinned : 0);
}

static void scene_init(uint32_t head_dim, uint32_t group_heads, uint32_t n_kv_heads, bool q8, uint32_t window)
{
    memset(&s, 0, sizeof s);
    used = 0;
    model_init(&s.m, head_dim, group_heads, n_kv_heads, q8, window);
    s.step.rows = s.rows;
    s.step.views = s.views;
}

/* Calls fn for all cells of the streams that exist. */
typedef void (*cell_fn)(const struct cell *c, uint32_t view, bool pinned, uint64_t at);

static void for_cells(cell_fn fn)
{
    for (uint32_t view = 0; view < s.step.n_views; view++) {
        for (int pinned = 0; pinned < 2; pinned++) {
            const struct rn_step_pages *pages = &s.pages[view];
            uint64_t first = pinned ? 0 : pages->first_page * 64;
            for (uint64_t at = first; at < first + MAX_PAGES * 64; at++) {
                if (!s.handles[view][pinned][(at - first) / 64]) {
                    break;
                }
                for (uint32_t h = 0; h < s.m.p.n_kv_heads; h++) {
                    struct cell c = cell_of(&s.m, page_of(view, pinned, at), pinned, h, at % 64);
                    fn(&c, view, pinned, at);
                }
            }
        }
    }
}

static void fill_seen(const struct cell *c, uint32_t view, bool pinned, uint64_t at)
{
    bool seen = false;
    for (uint32_t row = 0; row < s.step.n_rows; row++) {
        seen = seen || (s.rows[row].view == view && sees(row, pinned, at));
    }
    if (seen) {
        float k[MAX_DIM], v[MAX_DIM];
        bool large = random_below(40) == 0; // outliers
        for (uint32_t d = 0; d < c->head_dim; d++) {
            k[d] = random_normal() * (large ? 6.0f : 1.0f);
            v[d] = random_normal() * (large ? 30.0f : 1.0f);
        }
        put_cell(c, k, v);
    }
}

static uint32_t lonely; /* the row whose cells stay */

static void poison_others(const struct cell *c, uint32_t view, bool pinned, uint64_t at)
{
    if (view != s.rows[lonely].view || !sees(lonely, pinned, at)) {
        poison_cell(c, at % 2 ? 0x7e00 : at % 3 ? 0xfc00 : 0x7bff);
    }
}

static void scene_fill(bool sinks)
{
    for_cells(fill_seen);
    for (int zone = 0; zone < 2; zone++) {
        s.q[zone] = take((size_t)s.step.n_rows * s.m.ld_q * sizeof(float));
        for (uint32_t i = 0; i < s.step.n_rows * s.m.ld_q; i++) {
            s.q[zone][i] = random_normal() * 1.5f;
        }
    }
    s.sinks = sinks ? take(s.m.p.n_heads * sizeof(float)) : NULL;
    for (uint32_t h = 0; h < s.m.p.n_heads && sinks; h++) {
        s.sinks[h] = random_normal() * 4.0f;
    }
}

/* ---- attention on the device ------------------------------------------------------------------------------------------------------------- */

static struct rn_vk_tables tables_of(const struct rn_step *step)
{
    struct rn_vk_tables t = {.cap_chunks = rn_vk_tables_count(&s.m.p, 0, step)};
    t.cells = take(RN_STEP_ROWS * sizeof *t.cells);
    t.tiles = take(RN_STEP_ROWS * sizeof *t.tiles);
    t.chunks = take((t.cap_chunks + 1) * sizeof *t.chunks);
    rn_vk_tables_fill(&t, &s.m.p, 0, step);
    return t;
}

/* Rows [row0, row0 + n) of the scene as a step of their own; out [n][ld_q]. */
static void attend(float *out, const struct rn_vk_kernel *k, uint32_t row0, uint32_t n, bool split, uint32_t bucket)
{
    size_t mark = used;
    struct rn_step step = s.step;
    step.rows += row0;
    step.n_rows = n;
    struct rn_vk_tables t = tables_of(&step);
    const struct rn_program *p = &s.m.p;
    size_t partial_bytes = (size_t)(t.n_partials ? t.n_partials : 1) * p->n_heads * (p->head_dim + 2) * sizeof(float), out_bytes = (size_t)n * s.m.ld_q * sizeof(float);
    float *partial = memset(take(partial_bytes), 0xff, partial_bytes), *to = memset(take(out_bytes), 0xff, out_bytes);
    struct rn_args_attend a = {
        .q_window = address(s.q[1] + (size_t)row0 * s.m.ld_q), .q_pinned = address(s.q[0] + (size_t)row0 * s.m.ld_q), .tiles = address(t.tiles),
        .chunks = address(t.chunks), .partial = address(partial), .out = address(to), .heads = p->n_heads | p->n_kv_heads << 16,
        .head_dim = p->head_dim, .ld_q = s.m.ld_q, .ld_out = s.m.ld_q, .at_pinned = layer_at(&s.m, true), .at_window = layer_at(&s.m, false),
        .scale = p->attn_scale,
        .flags = (s.m.q8 ? RN_ATTEND_Q8 : 0) | (split ? RN_ATTEND_SPLIT : 0) | (s.sinks ? RN_ATTEND_SINKS : 0)};
    struct rn_args_combine c = {.tiles = a.tiles, .partial = a.partial, .out = a.out, .n_heads = p->n_heads, .head_dim = p->head_dim, .ld_out = s.m.ld_q,
                                .flags = a.flags};
    a.sinks = c.sinks = s.sinks ? address(s.sinks) : 0;
    uint32_t specs[RN_VK_ATTEND_SPECS];
    rn_vk_attend_specs(specs, p, bucket, a.flags);
    const struct dispatch list[2] = {
        {k, &a, sizeof a, RN_VK_ATTEND_SPECS, split ? t.n_chunks : t.n_tiles, p->n_kv_heads, rn_vk_head_slices(p), specs},
        {kernel(RN_VK_COMBINE, 0), &c, sizeof c, 0, t.n_tiles, p->n_heads, 1, NULL}};
    run(list, split ? 2 : 1);
    memcpy(out, to, out_bytes);
    used = mark;
}

/* ---- attention by the contract ------------------------------------------------------------------------------------------------------------- */

struct seen {
    struct cell cell;
    bool pinned;
    double score;
};

static void effective_query(double *ret, const float *q, uint32_t head_dim, bool q8)
{
    for (uint32_t d = 0; d < head_dim; d++) {
        ret[d] = (double)q[d];
    }
    for (uint32_t g = 0; q8 && g < head_dim / RN_GROUP; g++) {
        int8_t quant[RN_GROUP];
        int32_t sum;
        double scale = (double)rn_quant_act(q + g * RN_GROUP, quant, &sum);
        for (uint32_t d = 0; d < RN_GROUP; d++) {
            ret[g * RN_GROUP + d] = scale * quant[d];
        }
    }
}

static uint32_t seen_cells(struct seen *ret, uint32_t row, uint32_t kv_head)
{
    const struct rn_step_row *r = &s.rows[row];
    uint32_t n = 0;
    for (uint64_t j = 0; j <= r->t; j++) {
        bool pinned = j < s.pages[r->view].n_pinned;
        uint64_t at = pinned ? j : j - s.pages[r->view].n_pinned;
        if (sees(row, pinned, at)) {
            ret[n++] = (struct seen){.cell = cell_of(&s.m, page_of(r->view, pinned, at), pinned, kv_head, at % 64), .pinned = pinned};
        }
    }
    return n;
}

/* One query; bound: of each result. */
static void check_query(const float *out, uint32_t row, uint32_t head)
{
    static struct seen list[MAX_PAGES * 128];
    const struct rn_program *p = &s.m.p;
    uint32_t n = seen_cells(list, row, head / (p->n_heads / p->n_kv_heads));
    double q[2][MAX_DIM], step, m = s.sinks ? (double)s.sinks[head] : -INFINITY, error = 0, l = 0;
    for (int zone = 0; zone < 2; zone++) {
        effective_query(q[zone], s.q[zone] + (size_t)row * s.m.ld_q + (size_t)head * p->head_dim, p->head_dim, zone == 1 && s.m.q8);
    }
    for (uint32_t i = 0; i < n; i++) {
        double size = 0;
        for (uint32_t d = 0; d < p->head_dim; d++) {
            double term = q[!list[i].pinned][d] * element(&list[i].cell, false, d, &step) * (double)p->attn_scale;
            list[i].score += term;
            size += fabs(term);
        }
        m = fmax(m, list[i].score);
        error = fmax(error, 2e-6 * size);
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i].score = exp(list[i].score - m);
        l += list[i].score;
    }
    l += s.sinks ? exp((double)s.sinks[head] - m) : 0;
    double tolerance = expm1(4.0 * error) + 3e-5;
    for (uint32_t d = 0; d < p->head_dim; d++) {
        double sum = 0, size = 0;
        for (uint32_t i = 0; i < n; i++) {
            double term = list[i].score / l * element(&list[i].cell, true, d, &step);
            sum += term;
            size += fabs(term);
        }
        if (!(fabs((double)out[d] - sum) <= tolerance * size + 1e-30)) {
            fail_msg("head_dim %u, %s, row %u (t %llu), head %u, element %u: %.9g, expected %.9g within %.3g", p->head_dim, s.m.q8 ? "q8_0" : "f16", row,
                     (unsigned long long)s.rows[row].t, head, d, (double)out[d], sum, tolerance * size);
        }
    }
}

static void same_rows(const char *what, const struct rn_vk_kernel *k, const float *a, const float *b, uint32_t n)
{
    for (uint32_t row = 0; row < n; row++) {
        for (uint32_t i = 0; i < s.m.p.n_heads * s.m.p.head_dim; i++) {
            size_t at = (size_t)row * s.m.ld_q + i;
            if (memcmp(&a[at], &b[at], sizeof *a) != 0) {
                fail_msg("%s, %s: head_dim %u, group of %u, %s, row %u, head %u, element %u: %a and %a", k->name, what, s.m.p.head_dim,
                         s.m.p.n_heads / s.m.p.n_kv_heads, s.m.q8 ? "q8_0" : "f16", row, i / s.m.p.head_dim, i % s.m.p.head_dim, (double)a[at],
                         (double)b[at]);
            }
        }
    }
}

static float results[3][MAX_ROWS * 33 * MAX_DIM];

/* All modes, kernels and companies of the scene's rows. Poisons it in the end. */
static void check_scene(void)
{
    uint32_t n = s.step.n_rows;
    const struct rn_vk_kernel *first = kernel(RN_VK_ATTEND, 0), *k;
    assert_non_null(first);
    assert_true((size_t)n * s.m.ld_q <= sizeof results[0] / sizeof **results);
    attend(results[0], first, 0, n, true, 16);
    for (uint32_t row = 0; row < n; row++) {
        for (uint32_t h = 0; h < s.m.p.n_heads; h++) {
            check_query(results[0] + (size_t)row * s.m.ld_q + (size_t)h * s.m.p.head_dim, row, h);
        }
    }
    for (uint32_t i = 0; (k = kernel(RN_VK_ATTEND, i)) && (i == 0 || s.m.q8); i++) { // they differ in the dot product of q8_0 only
        attend(results[1], k, 0, n, false, 16);
        same_rows("split and loop", k, results[0], results[1], n);
    }
    uint32_t from = random_below(n), some = 1 + random_below(n - from); // a step of some of the rows: other tiles
    attend(results[1], first, from, some, true, 16);
    same_rows("other tiles", first, results[0] + (size_t)from * s.m.ld_q, results[1], some);
    lonely = random_below(n);
    for_cells(poison_others);
    for (int split = 0; split < 2; split++) {
        attend(results[1], first, lonely, 1, split, s.m.p.head_dim == 64 ? 1 : 16); // a bucket's own pipeline costs a second on a CPU
        same_rows("alone", first, results[0] + (size_t)lonely * s.m.ld_q, results[1], 1);
    }
}

static const struct {
    uint32_t head_dim, group;
    bool full;                     /* only with --full: a CPU compiles a pipeline in half a second */
} shapes[] = {{64, 3, false}, {80, 4, false}, {128, 1, false}, {512, 16, false}, {96, 7, true}, {256, 4, true}, {16, 20, true}, {320, 2, true}};

static bool full;

/* Three sequences, with and without a pinned zone, at and around borders of chunks. */
static void scene_of_many(uint32_t head_dim, uint32_t group, bool q8, uint32_t n_rows)
{
    static const uint16_t ends[] = {0, 1, 62, 63, 64, 65, 254, 255, 256, 257, 300, 511, 512, 513, 600};
    const uint32_t n_ends = sizeof ends / sizeof *ends;
    scene_init(head_dim, group, 1 + random_below(2), q8, 0);
    uint32_t left = n_rows;
    for (uint32_t v = 0; v < MAX_VIEWS && left > 0; v++) {
        uint32_t n = v + 1 == MAX_VIEWS ? left : 1 + random_below(left);
        uint64_t pinned = v == 1 ? 0 : 1 + random_below(v == 0 ? 70 : 300), t = ends[random_below(n_ends)] + (random_below(4) ? pinned : 0);
        add_view(n, t, pinned, pinned + (random_below(2) && t > pinned ? random_below((uint32_t)(t - pinned)) : 0), random_below(3) ? 0 : 90);
        left -= n;
    }
    scene_fill(random_below(3) == 0);
}

static void attention_is_right_and_pure(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int q8 = 0; q8 < 2; q8++) {
            if ((q8 && shapes[i].head_dim % 32) || (shapes[i].full && !full)) {
                continue;
            }
            for (uint32_t round = 0; round < 2; round++) {
                scene_of_many(shapes[i].head_dim, shapes[i].group, q8, round == 0 ? 1 + random_below(17) : 3);
                check_scene();
            }
        }
    }
}

static void every_number_of_rows(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 17; n++) {
        scene_init(64, 3, 1, n % 2, 0);
        add_view(n, 250, 5, 7, 0); // across the first border of a chunk
        scene_fill(n % 3 == 0);
        check_scene();
    }
}

static void sliding_windows(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 16, 64, 200, 256, 257, 400};
    for (uint32_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        scene_init(64, 3, 2, i % 2, windows[i]);
        add_view(7, 3, 0, 0, 0);
        add_view(6, 250 + 40 * i, 0, 0, i % 2 ? 120 : 0);
        scene_fill(false);
        check_scene();
    }
}

/* ---- rope_kv ----------------------------------------------------------------------------------------------------------------------------- */

struct rope_case {
    uint32_t n_rot;
    bool interleaved, norms;
    float eps;
    float *q, *k, *v, *angles, *norm_q, *norm_k, *q_window, *q_pinned;
    uint32_t angle_row, angle_at, angle_zone;
    uint8_t *before;               /* all pages */
};

static float *random_floats(size_t n, float size)
{
    float *x = take(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = random_normal() * size;
    }
    return x;
}

static void rope_case_init(struct rope_case *c, bool interleaved, bool norms)
{
    uint32_t n = s.step.n_rows, hd = s.m.p.head_dim;
    *c = (struct rope_case){.interleaved = interleaved, .norms = norms, .eps = 1e-5f};
    c->n_rot = random_below(3) ? hd : 2 * random_below(hd / 2 + 1);
    c->q = random_floats((size_t)n * s.m.ld_q, 1.0f);
    c->k = random_floats((size_t)n * s.m.ld_k, 1.0f);
    c->v = random_floats((size_t)n * s.m.ld_k, 1.0f);
    static const float shapes_of_v[] = {1.0f, 1e-3f, 1e-6f, 1e-9f, 0.0f, 3e4f, 1e6f};
    for (size_t i = 0; i < (size_t)n * s.m.ld_k; i++) { // groups of all sizes: normal, subnormal, zero, beyond f16; rounding halves
        uint32_t shape = (uint32_t)(i / 32) % 9;
        c->v[i] = shape < 7 ? c->v[i] * shapes_of_v[shape] : (float)((int)random_below(255) - 127) * (shape == 7 ? 0.5f : 0x1.004p0f);
    }
    c->norm_q = random_floats(hd, 1.0f);
    c->norm_k = random_floats(hd, 1.0f);
    c->angle_at = 2 * random_below(3);
    c->angle_zone = c->n_rot + 2;
    c->angle_row = 2 * c->angle_zone + 8;
    c->angles = take((size_t)n * c->angle_row * sizeof(float));
    for (uint32_t i = 0; i + 1 < n * c->angle_row; i += 2) {
        float angle = random_normal() * 3.0f;
        c->angles[i] = cosf(angle);
        c->angles[i + 1] = sinf(angle);
    }
    c->q_window = memset(take((size_t)n * s.m.ld_q * sizeof(float)), 0xff, (size_t)n * s.m.ld_q * sizeof(float));
    c->q_pinned = memset(take((size_t)n * s.m.ld_q * sizeof(float)), 0xff, (size_t)n * s.m.ld_q * sizeof(float));
}

static void run_rope(const struct rope_case *c, uint32_t bucket)
{
    const struct rn_program *p = &s.m.p;
    size_t mark = used;
    struct rn_vk_tables t = tables_of(&s.step);
    struct rn_vk_step *step = take(sizeof *step);
    *step = (struct rn_vk_step){.n_rows = s.step.n_rows};
    struct rn_args_rope_kv a = {
        .q = address(c->q), .k = address(c->k), .v = address(c->v), .q_window = address(c->q_window), .q_pinned = address(c->q_pinned),
        .angles = address(c->angles), .cells = address(t.cells), .norm_q = address(c->norm_q), .norm_k = address(c->norm_k), .step = address(step),
        .heads = p->n_heads | p->n_kv_heads << 16, .dims = p->head_dim | c->n_rot << 16, .ld_q = s.m.ld_q, .ld_k = s.m.ld_k,
        .flags = (c->interleaved ? RN_ROPE_INTERLEAVED : 0) | (c->norms ? RN_ROPE_NORMS : 0) | (s.m.q8 ? RN_ROPE_Q8 : 0),
        .angle_row = c->angle_row, .angle_at = c->angle_at, .angle_zone = c->angle_zone, .at_pinned = layer_at(&s.m, true),
        .at_window = layer_at(&s.m, false), .eps = c->eps};
    const struct dispatch d = {kernel(RN_VK_ROPE_KV, 0), &a, sizeof a, 0, bucket, (p->n_heads + 2 * p->n_kv_heads + 1) / 2, 1, NULL};
    run(&d, 1);
    used = mark;
}

/* Norm and rotation in double. Returns the largest element. */
static double reference_head(double *ret, const struct rope_case *c, const float *x, const float *norm, uint32_t row, uint32_t zone)
{
    uint32_t hd = s.m.p.head_dim;
    double in[MAX_DIM], sum = 0, most = 0;
    for (uint32_t d = 0; d < hd; d++) {
        sum += (double)x[d] * (double)x[d];
    }
    for (uint32_t d = 0; d < hd; d++) {
        in[d] = (double)x[d] * (c->norms ? (double)norm[d] / sqrt(sum / hd + (double)c->eps) : 1.0);
        most = fmax(most, fabs(in[d]));
        ret[d] = in[d];
    }
    const float *cs = c->angles + (size_t)row * c->angle_row + c->angle_at + zone * c->angle_zone;
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        uint32_t a = c->interleaved ? 2 * i : i, b = c->interleaved ? 2 * i + 1 : i + c->n_rot / 2;
        ret[a] = in[a] * (double)cs[2 * i] - in[b] * (double)cs[2 * i + 1];
        ret[b] = in[a] * (double)cs[2 * i + 1] + in[b] * (double)cs[2 * i];
    }
    return most;
}

static void check_queries(const struct rope_case *c)
{
    double want[MAX_DIM];
    for (uint32_t row = 0; row < s.step.n_rows; row++) {
        for (uint32_t h = 0; h < s.m.p.n_heads; h++) {
            size_t at = (size_t)row * s.m.ld_q + (size_t)h * s.m.p.head_dim;
            for (uint32_t zone = 0; zone < 2; zone++) {
                const float *got = (zone ? c->q_window : c->q_pinned) + at;
                double most = reference_head(want, c, c->q + at, c->norm_q, row, zone);
                for (uint32_t d = 0; d < s.m.p.head_dim; d++) {
                    if (!(fabs((double)got[d] - want[d]) <= 4e-6 * most)) {
                        fail_msg("q zone %u, row %u, head %u, element %u: %.9g, expected %.9g", zone, row, h, d, (double)got[d], want[d]);
                    }
                }
            }
        }
    }
}

/* Takes the cell (of a page before the run) as the plain C of the contract writes it. */
static void check_cell(const struct rope_case *c, const struct cell *got, uint32_t row, uint32_t kv_head)
{
    double want[MAX_DIM];
    float k[MAX_DIM], exact_v[MAX_DIM];
    size_t at = (size_t)row * s.m.ld_k + (size_t)kv_head * s.m.p.head_dim;
    reference_head(want, c, c->k + at, c->norm_k, row, 1);
    for (uint32_t d = 0; d < got->head_dim; d++) {
        k[d] = (float)want[d];
        exact_v[d] = c->v[at + d];
    }
    static uint8_t parts[2][64 * MAX_DIM * 2];
    struct cell plain = *got;
    plain.k = parts[0];
    plain.v = parts[1];
    put_cell(&plain, k, exact_v);
    for (uint32_t d = 0; d < got->head_dim; d++) {
        for (int of_v = 0; of_v < 2; of_v++) {
            double step, other, a = element(got, of_v, d, &other), b = element(&plain, of_v, d, &step);
            bool same = a == b || (isnan(a) && isnan(b)); // beyond the largest scale of f16 q8_0 is no number
            if (!(of_v && device->is_cpu ? same : same || fabs(a - b) <= 1.01 * fmax(step, other) + 1e-6 * fabs(b))) {
                fail_msg("%s, head_dim %u, row %u, %c of head %u, element %u: %.9g, expected %.9g", got->q8 ? "q8_0" : "f16", got->head_dim, row,
                         of_v ? 'v' : 'k', kv_head, d, a, b);
            }
        }
    }
}

static uint8_t *all_pages(size_t *ret_bytes, size_t from)
{
    *ret_bytes = used - from;
    return (uint8_t *)memory.mapped + from;
}

static void check_rope(uint32_t head_dim, uint32_t group, bool q8, uint32_t n_rows, bool interleaved, bool norms)
{
    scene_init(head_dim, group, 1 + random_below(3), q8, 0);
    add_view(1 + n_rows / 2, random_below(2) ? 60 : 2, 1 + random_below(90), 0, 0);
    if (n_rows / 2 + 1 < n_rows) {
        add_view(n_rows - n_rows / 2 - 1, 255 + random_below(3), 0, 0, 3);
    }
    size_t bytes;
    uint8_t *pages = all_pages(&bytes, 0), *before = rn_mem_alloc(bytes, 1);
    assert_non_null(before);
    memcpy(before, pages, bytes);
    struct rope_case c;
    rope_case_init(&c, interleaved, norms);
    run_rope(&c, n_rows + random_below(4)); // surplus rows of the bucket do nothing
    check_queries(&c);
    for (uint32_t row = 0; row < s.step.n_rows; row++) {
        const struct rn_step_row *r = &s.rows[row];
        bool pinned = r->t < s.pages[r->view].n_pinned;
        uint64_t at = pinned ? r->t : r->t - s.pages[r->view].n_pinned;
        for (uint32_t h = 0; h < s.m.p.n_kv_heads; h++) {
            struct cell got = cell_of(&s.m, page_of(r->view, pinned, at), pinned, h, at % 64), was = got;
            check_cell(&c, &got, row, h);
            was.k = before + (got.k - pages);
            was.v = before + (got.v - pages);
            poison_cell(&got, 0); // what is left must be as it was
            poison_cell(&was, 0);
        }
    }
    assert_memory_equal(pages, before, bytes);
    rn_mem_free(before);
}

static void heads_turn_and_cells_are_written(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (uint32_t variant = 0; variant < 8; variant++) {
            if (!(variant & 1) || shapes[i].head_dim % 32 == 0) {
                check_rope(shapes[i].head_dim, shapes[i].group, variant & 1, 1 + random_below(17), variant & 2, variant & 4);
            }
        }
    }
}

/* ---- pages -------------------------------------------------------------------------------------------------------------------------------- */

static void a_page_copies_its_first_tokens(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 7, 16, 63, 64};
    for (uint32_t i = 0; i < 2 * sizeof counts / sizeof counts[0]; i++) {
        uint32_t n = counts[i / 2];
        bool q8 = i % 2;
        scene_init(96, 2, 2, q8, 0);
        add_view(1, 255, 0, 0, 0);
        scene_fill(false);
        struct rn_err err = {0};
        size_t bytes = rn_vk_page_bytes(&s.m.p, 0, q8);
        uint8_t *from = page_of(0, false, 0), *to = page_of(0, false, 64), *was = rn_mem_alloc(bytes, 1);
        assert_non_null(was);
        memcpy(was, to, bytes);
        size_t from_at = (size_t)(from - (uint8_t *)memory.mapped), to_at = (size_t)(to - (uint8_t *)memory.mapped);
        assert_int_equal(rn_vk_page_copy(device, &s.m.p, 0, q8, &memory, to_at, &memory, from_at, n, &err), 0);
        for (uint32_t slot = 0; slot < 64; slot++) {
            for (uint32_t h = 0; h < s.m.p.n_kv_heads; h++) {
                struct cell a = cell_of(&s.m, to, false, h, slot), b = cell_of(&s.m, slot < n ? from : was, false, h, slot);
                for (uint32_t d = 0; d < 2 * 96; d++) {
                    double step;
                    assert_true(element(&a, d >= 96, d % 96, &step) == element(&b, d >= 96, d % 96, &step));
                }
            }
        }
        assert_int_equal(rn_vk_page_poison(device, &memory, to_at, bytes, &err), 0);
        for (size_t k = 0; k < bytes; k += 2) {
            assert_int_equal(get16(to + k), k % 4 ? 0x7bff : 0x7e00);
        }
        rn_mem_free(was);
    }
}

/* ---- all ----------------------------------------------------------------------------------------------------------------------------------- */

static int group_setup(void **state)
{
    (void)state;
    struct rn_err err = {0};
    if (!gpu_kit_selector()) {
        return 0;
    }
    device = gpu_kit_open(NULL, NULL);
    device->deadline_ms = 120000; // a software device compiles at the first dispatch, on a machine that may be busy
    return rn_vk_buffer_create(&memory, device, MEMORY, RN_VK_READBACK, "the test's memory", &err);
}

static int group_teardown(void **state)
{
    (void)state;
    if (device) {
        rn_vk_buffer_destroy(device, &memory);
        rn_vk_device_close(device);
    }
    return 0;
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "--full") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_turn_and_cells_are_written),
        cmocka_unit_test(attention_is_right_and_pure),
        cmocka_unit_test(every_number_of_rows),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(a_page_copies_its_first_tokens),
    };
    if (!gpu_kit_selector()) {
        return 77;
    }
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
