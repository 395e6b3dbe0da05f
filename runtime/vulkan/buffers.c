/* The buffers that a pass works on: its values, its tables, what the host writes and reads.
 *
 * Values are planned for the most rows at load. Tables and partial sums grow with the window; then recordings are dropped, and the new
 * addresses are written into the dispatches' arguments (bind_tables). */
#include "runtime/vulkan/plan_internal.h"

#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define FIRST_CHUNKS 64 /* per layer group, before anything grows */
#define FIRST_SPLIT 16
#define ALIGN 256

static uint32_t pad32(uint32_t n)
{
    return (n + 31) / 32 * 32;
}

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- values ------------------------------------------------------------------------------------------------------------ */

/* Places in the work buffer; *at moves behind them. */
static VkDeviceAddress take(size_t *at, size_t bytes)
{
    size_t start = *at;
    *at += align_up(bytes);
    return start;
}

static uint32_t widest(const struct rn_vk *vk)
{
    uint32_t n = 0;
    for (int v = 0; v < RN_VAL_COUNT; v++) {
        n = vk->ld[v] > n ? vk->ld[v] : n;
    }
    return n;
}

size_t rn_vk_acts_shares_at(uint32_t n_groups, uint32_t row)
{
    return (size_t)RN_STEP_ROWS * 2 * n_groups + (size_t)row * ((n_groups + 3) / 4 * 4);
}

size_t rn_vk_acts_d_floats(uint32_t n_groups)
{
    return rn_vk_acts_shares_at(n_groups, RN_STEP_ROWS);
}

static int make_work(struct rn_vk *vk, struct rn_err *err)
{
    const struct rn_program *p = vk->program;
    vk->ld_logits = pad32(p->n_vocab);
    size_t rows = vk->max_rows, at = 0;
    for (int v = 0; v < RN_VAL_COUNT; v++) {
        vk->ld[v] = pad32(p->width[v]);
        vk->values[v] = take(&at, rows * vk->ld[v] * sizeof(float));
    }
    vk->work_x = (size_t)vk->values[RN_VAL_X];
    VkDeviceAddress *others[] = {&vk->q_window,  &vk->q_pinned,  &vk->up,       &vk->acts[0].q,
                                 &vk->acts[0].d, &vk->acts[1].q, &vk->acts[1].d};
    size_t rows_q = rows * vk->ld[RN_VAL_Q] * sizeof(float), n = widest(vk), d = rn_vk_acts_d_floats((uint32_t)n / 32) * sizeof(float);
    size_t bytes[] = {rows_q, rows_q, rows * vk->ld[RN_VAL_F] * sizeof(float), rows * n, d, rows * n, d};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        *others[i] = take(&at, bytes[i]);
    }
    int r = rn_vk_buffer_create(&vk->work, vk->device, at, RN_VK_DEVICE, "a step's values", err);
    VkCommandBuffer commands;
    r = r < 0 ? r : rn_vk_commands_begin(vk->device, &commands, err);
    if (r < 0) {
        return r;
    }
    vkCmdFillBuffer(commands, vk->work.buffer, 0, VK_WHOLE_SIZE, 0); // padding columns are zero and stay so
    for (int v = 0; v < RN_VAL_COUNT; v++) {
        vk->values[v] += vk->work.address;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        *others[i] += vk->work.address;
    }
    return rn_vk_commands_run(vk->device, commands, err);
}

static int make_readback(struct rn_vk *vk, struct rn_err *err)
{
    size_t logits = vk->makes_logits ? (size_t)RN_VK_MAX_WANTED * vk->ld_logits * sizeof(float) : 0;
    size_t x = vk->makes_logits ? 0 : (size_t)vk->max_rows * vk->ld[RN_VAL_X] * sizeof(float);
    int r = logits ? rn_vk_buffer_create(&vk->logits, vk->device, logits, RN_VK_DEVICE, "logits", err) : 0;
    return r < 0 ? r : rn_vk_buffer_create(&vk->readback, vk->device, logits + x, RN_VK_READBACK, "results", err);
}

/* ---- tables of a step ------------------------------------------------------------------------------------------------------------------- */

static void place_tables(struct rn_vk *vk, struct rn_vk_places *pl)
{
    const struct rn_program *p = vk->program;
    size_t at = sizeof(struct rn_vk_step);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        pl->groups[g].indirect = at;
        at += 3 * 16;
    }
    pl->header_bytes = at;
    at = align_up(at);
    for (uint32_t g = 0; g < p->n_groups; g++) {
        struct rn_vk_group_place *to = &pl->groups[g];
        to->tiles = (size_t)take(&at, RN_STEP_ROWS * sizeof(struct rn_vk_tile));
        to->cells = (size_t)take(&at, RN_STEP_ROWS * sizeof(struct rn_vk_cell));
        to->chunks = (size_t)take(&at, pl->cap_chunks * sizeof(struct rn_vk_chunk));
    }
    pl->angles = (size_t)take(&at, (size_t)vk->max_rows * p->n_ropes * 2 * vk->angle_stride * sizeof(float));
    pl->x_in = (size_t)take(&at, vk->embeds ? 0 : (size_t)vk->max_rows * vk->ld[RN_VAL_X] * sizeof(float));
    pl->bytes = at;
}

static void bind_tables(struct rn_vk *vk)
{
    VkDeviceAddress step = vk->step.address;
    for (uint32_t i = 0; i < vk->n_tasks; i++) {
        struct rn_vk_task *t = &vk->tasks[i];
        const struct rn_vk_group_place *g = &vk->places.groups[t->group];
        switch (t->op) {
        case RN_VK_EMBED:
            t->args.embed.step = step;
            break;
        case RN_VK_PREPARE:
            t->args.prepare.step = step;
            break;
        case RN_VK_ROPE_KV:
            t->args.rope_kv.step = step;
            t->args.rope_kv.cells = step + g->cells;
            t->args.rope_kv.angles = step + vk->places.angles;
            break;
        case RN_VK_ATTEND:
            t->args.attend.step = step;
            t->args.attend.tiles = step + g->tiles;
            t->args.attend.chunks = step + g->chunks;
            t->args.attend.partial = vk->partial.address;
            break;
        case RN_VK_COMBINE:
            t->args.combine.step = step;
            t->args.combine.tiles = step + g->tiles;
            t->args.combine.partial = vk->partial.address;
            break;
        default:
            t->args.product.step = step;
            break;
        }
    }
}

static int make_partial(struct rn_vk *vk, uint32_t places, struct rn_err *err)
{
    const struct rn_program *p = vk->program;
    size_t bytes = (size_t)places * p->n_heads * (p->head_dim + 2) * sizeof(float);
    struct rn_vk_buffer partial = {0};
    int r = rn_vk_buffer_create(&partial, vk->device, bytes, RN_VK_DEVICE, "attention partial sums", err);
    if (r < 0) {
        return r;
    }
    rn_vk_record_drop_all(vk);
    rn_vk_buffer_destroy(vk->device, &vk->partial);
    vk->partial = partial;
    vk->cap_partials = places;
    bind_tables(vk);
    return 0;
}

/* Makes buffers for so many chunks; the old ones go when the new ones are there. */
static int make_tables(struct rn_vk *vk, uint32_t cap_chunks, uint32_t cap_split, struct rn_err *err)
{
    const uint32_t n_groups = vk->program->n_groups;
    struct rn_vk_places pl = {.cap_chunks = cap_chunks, .cap_split = cap_split};
    struct rn_vk_buffer upload = {0}, step = {0};
    pl.groups = rn_mem_alloc(n_groups, sizeof *pl.groups);
    int r = pl.groups ? 0 : rn_err_nomem(err, n_groups * sizeof *pl.groups, "a step's tables");
    if (r == 0) {
        place_tables(vk, &pl);
    }
    r = r < 0 ? r : rn_vk_buffer_create(&upload, vk->device, pl.bytes, RN_VK_UPLOAD, "a step's tables", err);
    r = r < 0 ? r : rn_vk_buffer_create(&step, vk->device, pl.bytes, RN_VK_DEVICE, "a step's tables", err);
    if (r < 0) {
        rn_vk_buffer_destroy(vk->device, &upload);
        rn_vk_buffer_destroy(vk->device, &step);
        rn_mem_free(pl.groups);
        return r;
    }
    rn_vk_record_drop_all(vk);
    rn_vk_buffer_destroy(vk->device, &vk->upload);
    rn_vk_buffer_destroy(vk->device, &vk->step);
    rn_mem_free(vk->places.groups);
    vk->upload = upload;
    vk->step = step;
    vk->places = pl;
    memset(upload.mapped, 0, pl.bytes);
    bind_tables(vk);
    return 0;
}

static uint32_t grown(uint32_t cap, uint32_t need)
{
    while (cap < need) {
        cap *= 2;
    }
    return cap;
}

int rn_vk_buffers_grow(struct rn_vk *vk, uint32_t n_chunks, bool split, struct rn_err *err)
{
    const struct rn_vk_places *pl = &vk->places;
    if (n_chunks <= pl->cap_chunks && (!split || n_chunks <= pl->cap_split)) {
        return 0;
    }
    uint32_t cap_split = split ? grown(pl->cap_split, n_chunks) : pl->cap_split;
    uint32_t cap_chunks = grown(pl->cap_chunks, n_chunks > cap_split ? n_chunks : cap_split);
    return make_tables(vk, cap_chunks, cap_split, err);
}

int rn_vk_buffers_grow_partial(struct rn_vk *vk, uint32_t places, struct rn_err *err)
{
    return places <= vk->cap_partials ? 0 : make_partial(vk, grown(vk->cap_partials, places), err);
}

int rn_vk_buffers_make_values(struct rn_vk *vk, struct rn_err *err)
{
    int r = make_work(vk, err);
    return r < 0 ? r : make_readback(vk, err);
}

int rn_vk_buffers_make_tables(struct rn_vk *vk, struct rn_err *err)
{
    int r = make_tables(vk, FIRST_CHUNKS, FIRST_SPLIT, err);
    return r < 0 ? r : make_partial(vk, FIRST_SPLIT, err);
}

void rn_vk_buffers_finish(struct rn_vk *vk)
{
    struct rn_vk_buffer *buffers[] = {&vk->work, &vk->logits, &vk->partial, &vk->upload, &vk->step, &vk->readback};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        rn_vk_buffer_destroy(vk->device, buffers[i]);
    }
    rn_mem_free(vk->places.groups);
}
