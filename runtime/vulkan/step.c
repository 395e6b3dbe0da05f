/* A step: fill the tables, submit the recordings of its buckets, wait, hand out what came back.
 *
 * Work of the host does not depend on the model's size, and nothing is allocated or recorded once a bucket has run, unless a table must
 * grow or a step took longer than a submit may: then it is cut into more pieces from the next one on. */
#include "runtime/vulkan/plan_internal.h"

#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"

#define GUESS_GPU_MACS_PER_NS 50.0 // before anything was measured: a slow integrated GPU
#define GUESS_CPU_MACS_PER_NS 1.0  // a software device on a few cores
#define CALM_STEPS 50              // in a row that half the pieces would do for

static struct rn_vk_recording *main_bucket(struct rn_vk *vk, uint32_t n_rows)
{
    uint32_t i = 0;
    while (vk->main[i].n_rows < n_rows) {
        i++;
    }
    return &vk->main[i];
}

static struct rn_vk_recording *last_bucket(struct rn_vk *vk, uint32_t n_wanted)
{
    uint32_t i = 0;
    while (i + 1 < RN_VK_WANTED_BUCKETS && vk->last[i].n_rows < n_wanted) {
        i++;
    }
    return &vk->last[i];
}

/* ---- tables ------------------------------------------------------------------------------------------------------------------------------ */

static int make_room(struct rn_vk *vk, const struct rn_step *step, bool split, struct rn_err *err)
{
    uint32_t most = 0;
    for (uint32_t g = 0; g < vk->program->n_groups; g++) {
        uint32_t n = rn_vk_tables_count(vk->program, g, step);
        most = n > most ? n : most;
    }
    return rn_vk_buffers_grow(vk, most, split, err);
}

/* What the attention of a group reads and multiplies. */
static void see(struct rn_vk *vk, uint32_t g, const struct rn_vk_tables *t)
{
    const struct rn_program *p = vk->program;
    struct rn_vk_seen *seen = &vk->seen[g];
    *seen = (struct rn_vk_seen){0};
    for (uint32_t i = 0; i < t->n_chunks; i++) {
        const struct rn_vk_chunk *chunk = &t->chunks[i];
        uint32_t low = RN_CHUNK_TOKENS, high = 0;
        for (uint32_t k = 0; k < RN_TILE_ROWS; k++) {
            uint32_t lo = chunk->span[k] & 0xffff, hi = chunk->span[k] >> 16;
            seen->pairs += hi - lo;
            low = lo < hi && lo < low ? lo : low;
            high = lo < hi && hi > high ? hi : high;
        }
        size_t part = rn_kv_part_bytes(!chunk->pinned && vk->kv == RN_KV_Q8_0, p->head_dim);
        seen->bytes += high > low ? (double)(high - low) / RN_PAGE_TOKENS * 2 * (double)part * p->n_kv_heads : 0;
    }
}

/* One layer group's tables and the sizes of its dispatches. Returns how many places its partial sums take. */
static uint32_t fill_group(struct rn_vk *vk, uint32_t g, const struct rn_step *step)
{
    const struct rn_vk_group_place *at = &vk->places.groups[g];
    uint8_t *to = vk->upload.mapped;
    struct rn_vk_tables t = {.cells = (void *)(to + at->cells), .tiles = (void *)(to + at->tiles), .chunks = (void *)(to + at->chunks),
                             .cap_chunks = vk->places.cap_chunks};
    rn_vk_tables_fill(&t, vk->program, g, step);
    const struct rn_program *p = vk->program;
    const uint32_t slices = rn_vk_head_slices(p);
    const VkDispatchIndirectCommand sizes[3] = {{t.n_chunks, p->n_kv_heads, slices}, {t.n_tiles, p->n_kv_heads, slices}, {t.n_tiles, p->n_heads, 1}};
    for (uint32_t i = 0; i < 3; i++) {
        memcpy(to + at->indirect + 16 * (size_t)i, &sizes[i], sizeof sizes[i]);
    }
    if (vk->profiling) {
        see(vk, g, &t);
    }
    return t.n_partials;
}

/* Rows wanted[from ..], at most RN_VK_MAX_WANTED, become those of the next logits. */
static uint32_t fill_wanted(struct rn_vk *vk, uint32_t from, uint32_t n_all)
{
    struct rn_vk_step *header = vk->upload.mapped;
    uint32_t n = n_all - from < RN_VK_MAX_WANTED ? n_all - from : RN_VK_MAX_WANTED;
    header->n_wanted = n;
    memcpy(header->wanted, vk->wanted + from, n * sizeof *header->wanted);
    return n;
}

static void fill_rows(struct rn_vk *vk, const struct rn_step *step)
{
    struct rn_vk_step *header = vk->upload.mapped;
    uint8_t *to = vk->upload.mapped;
    header->n_rows = step->n_rows;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        header->id[i] = step->rows[i].id;
    }
    if (vk->angle_stride) {
        size_t pairs = (size_t)step->n_rows * vk->program->n_ropes * 2;
        float *angles = (float *)(void *)(to + vk->places.angles);
        for (size_t i = 0; i < pairs && step->angle_stride != vk->angle_stride; i++) {
            memcpy(angles + i * vk->angle_stride, step->angles + i * step->angle_stride, vk->angle_stride * sizeof *angles);
        }
        if (step->angle_stride == vk->angle_stride) {
            memcpy(angles, step->angles, pairs * vk->angle_stride * sizeof *angles);
        }
    }
    const size_t width = vk->program->width[RN_VAL_X], ld = vk->ld[RN_VAL_X];
    for (uint32_t i = 0; step->x_in && !vk->embeds && i < step->n_rows; i++) {
        memcpy(to + vk->places.x_in + i * ld * sizeof(float), step->x_in + i * width, width * sizeof(float));
    }
}

static int fill(struct rn_vk *vk, const struct rn_step *step, const struct rn_vk_recording *rec, struct rn_err *err)
{
    bool split = rec->n_rows <= RN_VK_FEW_ROWS;
    int r = make_room(vk, step, split, err);
    if (r < 0) {
        return r;
    }
    uint32_t partials = 0;
    for (uint32_t g = 0; g < vk->program->n_groups; g++) {
        uint32_t n = fill_group(vk, g, step);
        partials = n > partials ? n : partials;
    }
    fill_rows(vk, step);
    return split ? rn_vk_buffers_grow_partial(vk, partials, err) : 0;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------------------------------ */

static double guess_ns(const struct rn_vk *vk, const struct rn_vk_recording *rec)
{
    double macs = 0;
    for (ptrdiff_t i = rec - vk->main; i-- > 0;) {
        const struct rn_vk_recording *smaller = &vk->main[i];
        if (smaller->ns > 0) { // measured: twice the rows take twice as long at most
            return smaller->ns * rec->n_rows / smaller->n_rows;
        }
    }
    for (uint32_t i = 0; i < vk->n_main; i++) {
        macs += vk->tasks[i].macs * rec->n_rows;
    }
    return macs / (vk->device->is_cpu ? GUESS_CPU_MACS_PER_NS : GUESS_GPU_MACS_PER_NS);
}

static uint32_t pieces_for(const struct rn_vk *vk, double ns)
{
    double n = ns / vk->budget_ns;
    return n >= vk->n_borders ? vk->n_borders : (uint32_t)n + 1;
}

/* Cuts a step that took too long into more pieces, from its next run on. The logits' part is a piece of its own then; it has no border
 * inside. A step that stays far below the budget is joined again: another program may have had the GPU for a while. */
static void cut(struct rn_vk *vk, struct rn_vk_recording *main, const struct rn_vk_recording *last, double longest)
{
    const double ns = main->n_pieces == 1 && last ? main->ns + last->ns : longest;
    const uint32_t n = pieces_for(vk, 1.25 * main->ns), more = main->n_pieces + 1;
    main->n_calm = main->n_pieces > 1 && 2 * n <= main->n_pieces ? main->n_calm + 1 : 0;
    if (ns > vk->budget_ns && main->n_pieces < vk->n_borders) {
        main->n_pieces = n > more ? n : more;
        rn_vk_record_drop(vk, main);
    } else if (main->n_calm == CALM_STEPS) {
        main->n_pieces = n;
        main->n_calm = 0;
        rn_vk_record_drop(vk, main);
    }
}

/* ---- running ------------------------------------------------------------------------------------------------------------------------------- */

struct run {
    uint64_t waited_ns; // by the host
    double longest;     // piece of the main part
};

/* The deadline is that of one submit. */
static int wait_for(struct rn_vk *vk, uint32_t n_submits, struct run *run, struct rn_err *err)
{
    const uint32_t deadline_ms = vk->device->deadline_ms;
    uint64_t from = rn_clock_ns();
    vk->device->deadline_ms = n_submits * deadline_ms;
    int r = rn_vk_wait(vk->device, err);
    vk->device->deadline_ms = deadline_ms;
    run->waited_ns += rn_clock_ns() - from;
    return r;
}

static uint32_t submits_of(const struct rn_vk_recording *main, const struct rn_vk_recording *last)
{
    return main->n_commands + (main->n_commands > 1 && last);
}

/* Everything in one submit, or each piece in one of its own. last: NULL, no logits are wanted. After a failure nothing is at work. */
static int submit(struct rn_vk *vk, const struct rn_vk_recording *main, const struct rn_vk_recording *last, struct run *run, struct rn_err *err)
{
    if (main->n_commands == 1 && last) {
        const VkCommandBuffer both[2] = {main->commands[0], last->commands[0]};
        return rn_vk_submit(vk->device, both, 2, err);
    }
    int r = 0;
    for (uint32_t i = 0; i < main->n_commands && r == 0; i++) {
        r = rn_vk_submit(vk->device, &main->commands[i], 1, err);
    }
    r = r == 0 && last ? rn_vk_submit(vk->device, &last->commands[0], 1, err) : r;
    if (r < 0) {
        (void)wait_for(vk, submits_of(main, last), run, NULL); // pieces before it went; their pages and commands may be freed next
    }
    return r;
}

static void add_cost(struct rn_vk *vk, uint32_t task, double ns, uint32_t n_rows)
{
    const struct rn_vk_task *t = &vk->tasks[task];
    struct rn_op_cost *cost = &vk->costs[t->kind];
    cost->ns += ns;
    cost->bytes += t->bytes;
    cost->macs += t->macs * n_rows;
    if (t->op == RN_VK_ATTEND) {
        cost->bytes += vk->seen[t->group].bytes;
        cost->macs += vk->seen[t->group].pairs * 2 * vk->program->n_heads * vk->program->head_dim;
    }
}

/* Time of one recording, and of its longest piece; while profiling, of every dispatch. */
static void read_marks(struct rn_vk *vk, struct rn_vk_recording *rec, uint32_t n_rows, double *ret_longest)
{
    const uint64_t *ticks = vk->ticks + rec->query0;
    uint64_t start = 0, before = 0;
    rec->ns = 0;
    for (uint32_t i = 0; i < rec->n_queries; i++) {
        if (rec->marks[i] == RN_VK_MARK_START) {
            start = before = ticks[i];
        } else if (rec->marks[i] == RN_VK_MARK_END) {
            double ns = ticks[i] > start ? (double)(ticks[i] - start) * (double)vk->device->ns_per_tick : 0;
            rec->ns += ns;
            *ret_longest = ns > *ret_longest ? ns : *ret_longest;
        } else {
            double ns = ticks[i] > before ? (double)(ticks[i] - before) * (double)vk->device->ns_per_tick : 0;
            add_cost(vk, rec->marks[i], ns, n_rows);
            before = ticks[i];
        }
    }
}

/* All timestamps of the pass by one call: the logits' lie right in front of the main part's. */
static int read_times(struct rn_vk *vk, struct rn_vk_recording *main, struct rn_vk_recording *last, uint32_t n_rows, uint32_t n_wanted,
                      double *ret_longest, struct rn_err *err)
{
    const uint32_t from = last ? last->query0 : main->query0, n = main->query0 + main->n_queries - from;
    if (!vk->queries) {
        return 0;
    }
    vk->device->n_calls++;
    VkResult result = vkGetQueryPoolResults(vk->device->device, vk->queries, from, n, n * sizeof *vk->ticks, vk->ticks + from,
                                            sizeof *vk->ticks, VK_QUERY_RESULT_64_BIT);
    int r = result == VK_NOT_READY ? 0 : rn_vk_check(vk->device, result, "reading timestamps", err);
    if (result == VK_SUCCESS) {
        double ignored = 0;
        read_marks(vk, main, n_rows, ret_longest);
        if (last) {
            read_marks(vk, last, n_wanted, &ignored);
        }
    }
    return r;
}

static void hand_out(const struct rn_vk *vk, const struct rn_step *step, uint32_t from, uint32_t n)
{
    const float *logits = vk->readback.mapped;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(step->rows[vk->wanted[from + i]].logits, logits + (size_t)i * vk->ld_logits, vk->program->n_vocab * sizeof(float));
    }
}

/* The wanted rows behind the first RN_VK_MAX_WANTED: X is still there. */
static int more_logits(struct rn_vk *vk, const struct rn_step *step, uint32_t from, uint32_t n_all, struct run *run, struct rn_err *err)
{
    int r = rn_vk_record_refresh(vk, err);
    while (from < n_all && r == 0) {
        uint32_t n = fill_wanted(vk, from, n_all);
        struct rn_vk_recording *last = last_bucket(vk, n);
        r = rn_vk_record_last(vk, last, err);
        if (r == 0) {
            const VkCommandBuffer both[2] = {vk->refresh, last->commands[0]};
            r = rn_vk_submit(vk->device, both, 2, err);
            vk->host.dispatches += r == 0 ? last->n_dispatches : 0;
        }
        r = r < 0 ? r : wait_for(vk, 1, run, err);
        if (r == 0) {
            hand_out(vk, step, from, n);
        }
        from += n;
    }
    return r;
}

static int record(struct rn_vk *vk, struct rn_vk_recording *main, struct rn_vk_recording *last, struct rn_err *err)
{
    if (main->n_pieces == 0) {
        main->n_pieces = pieces_for(vk, guess_ns(vk, main));
    }
    int r = rn_vk_record_main(vk, main, err);
    return r < 0 || !last ? r : rn_vk_record_last(vk, last, err);
}

static int run_step(struct rn_vk *vk, const struct rn_step *step, uint32_t n_wanted, struct run *run, struct rn_err *err)
{
    struct rn_vk_recording *main = main_bucket(vk, step->n_rows), *last = n_wanted ? last_bucket(vk, n_wanted) : NULL;
    int r = fill(vk, step, main, err);
    if (r < 0) {
        return r;
    }
    uint32_t n = fill_wanted(vk, 0, n_wanted);
    r = record(vk, main, last, err);
    r = r < 0 ? r : submit(vk, main, last, run, err);
    vk->host.dispatches += r < 0 ? 0 : main->n_dispatches + (last ? last->n_dispatches : 0);
    r = r < 0 ? r : wait_for(vk, submits_of(main, last), run, err);
    r = r < 0 ? r : read_times(vk, main, last, step->n_rows, n, &run->longest, err);
    if (r < 0) {
        return r;
    }
    hand_out(vk, step, 0, n);
    const size_t width = vk->program->width[RN_VAL_X];
    for (uint32_t i = 0; step->x_out && !vk->makes_logits && i < step->n_rows; i++) {
        memcpy(step->x_out + i * width, (const float *)vk->readback.mapped + (size_t)i * vk->ld[RN_VAL_X], width * sizeof(float));
    }
    if (run->longest > 0) { // else no times came, and the guess stands
        cut(vk, main, last, run->longest);
    }
    return n < n_wanted ? more_logits(vk, step, n, n_wanted, run, err) : 0;
}

int rn_vk_step(struct rn_backend *backend, const struct rn_step *step, struct rn_err *err)
{
    struct rn_vk *vk = (struct rn_vk *)backend;
    const uint64_t start = rn_clock_ns(), calls = vk->device->n_calls;
    if (step->n_rows == 0 || step->n_rows > vk->max_rows) {
        return rn_err_set(err, -EINVAL, "a step of %u rows, expected 1 to %u", step->n_rows, vk->max_rows);
    }
    if (vk->device->lost) {
        return rn_err_set(err, -EIO, "the GPU '%s' was lost", vk->device->name);
    }
    uint32_t n_wanted = 0;
    for (uint32_t i = 0; vk->makes_logits && i < step->n_rows; i++) {
        if (step->rows[i].logits) {
            vk->wanted[n_wanted++] = i;
        }
    }
    struct run run = {0};
    int r = run_step(vk, step, n_wanted, &run, err);
    vk->host.steps++;
    vk->host.calls += vk->device->n_calls - calls;
    vk->host.ns += (double)(rn_clock_ns() - start - run.waited_ns);
    return r;
}
