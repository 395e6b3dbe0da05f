/* Attention on the CPU: how a step's queries are cut into tasks, and the two operations RoPE + KV write and attention.
 *
 * A task is one KV head with up to 16 queries: the query heads of its group, for as many adjacent rows of one sequence as fit, so K and V
 * are read once for all of them. With enough tasks each is worked through by one thread, chunk after chunk. With few (decode) the chunks
 * of all tasks are handed out singly, their partial sums are stored and combined afterwards. Both ways compute the same partial sums over
 * the same 256-token chunks and combine them in the same order: pinned first, then window, ascending. */
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu_internal.h"
#include "runtime/cpu/fetch_internal.h"
#include "runtime/cpu/pool.h"
#include "runtime/tensor/sight.h"

#define KERNEL(c, type, op) ((type)(c)->kernels.row[op]->fn)
#define CHUNK_PAGES (RN_CHUNK_TOKENS / RN_PAGE_TOKENS)

/* ---- plan ---------------------------------------------------------------------------------------------------------------------------- */

static int grow(void **p, uint32_t *cap, uint32_t need, size_t size, struct rn_err *err)
{
    if (need <= *cap) {
        return 0;
    }
    uint32_t want = *cap ? 2 * *cap : 64;
    want = want < need ? need : want;
    void *grown = rn_mem_realloc(*p, want, size);
    if (!grown) {
        return rn_err_nomem(err, want * size, "the attention plan");
    }
    *p = grown;
    *cap = want;
    return 0;
}

static int add_chunk(struct rn_attn_plan *plan, uint32_t task, bool pinned, uint64_t chunk, struct rn_err *err)
{
    int r = grow((void **)&plan->chunks, &plan->cap_chunks, plan->n_chunks + 1, sizeof *plan->chunks, err);
    if (r == 0) {
        plan->chunks[plan->n_chunks++] = (struct rn_attn_chunk){.task = task, .pinned = pinned, .chunk = chunk};
    }
    return r;
}

/* The chunks that any row of the task sees. Its rows are adjacent and ascending, and so is what they see: the first and the last that see
 * something bound it (a pinned token sees nothing of the window, which may begin far along). */
static int add_task_chunks(struct rn_cpu *c, struct rn_attn_plan *plan, uint32_t group, uint32_t task, struct rn_err *err)
{
    const struct rn_attn_task *a = &plan->tasks[task];
    const struct rn_step_row *first = &c->step->rows[a->row0], *last = first + a->n_rows - 1;
    struct rn_sight low = rn_row_sight(c->program, group, c->step, first), high = rn_row_sight(c->program, group, c->step, last);
    while (first < last && low.window.from == low.window.to) {
        low = rn_row_sight(c->program, group, c->step, ++first);
    }
    int r = 0;
    for (uint64_t k = 0; k * RN_CHUNK_TOKENS < high.pinned.to && r == 0; k++) {
        r = add_chunk(plan, task, true, k, err);
    }
    for (uint64_t k = low.window.from / RN_CHUNK_TOKENS; k * RN_CHUNK_TOKENS < high.window.to && r == 0; k++) {
        r = add_chunk(plan, task, false, k, err);
    }
    return r;
}

static int add_task(struct rn_attn_plan *plan, const struct rn_attn_task *task, struct rn_err *err)
{
    int r = grow((void **)&plan->tasks, &plan->cap_tasks, plan->n_tasks + 1, sizeof *plan->tasks, err);
    if (r == 0) {
        plan->tasks[plan->n_tasks++] = *task;
    }
    return r;
}

/* Cuts the rows [row0, row1) of one view into tasks. */
static int add_view_tasks(struct rn_cpu *c, struct rn_attn_plan *plan, uint32_t row0, uint32_t row1, struct rn_err *err)
{
    uint32_t group_heads = c->program->n_heads / c->program->n_kv_heads;
    uint32_t heads = group_heads < RN_ATTN_MAX_Q ? group_heads : RN_ATTN_MAX_Q, rows = RN_ATTN_MAX_Q / heads;
    for (uint32_t kv = 0; kv < c->program->n_kv_heads; kv++) {
        for (uint32_t row = row0; row < row1; row += rows) {
            for (uint32_t h = 0; h < group_heads; h += heads) {
                struct rn_attn_task task = {.row0 = row, .n_rows = row1 - row < rows ? row1 - row : rows, .kv_head = kv,
                                            .head0 = kv * group_heads + h, .n_heads = group_heads - h < heads ? group_heads - h : heads};
                int r = add_task(plan, &task, err);
                if (r < 0) {
                    return r;
                }
            }
        }
    }
    return 0;
}

static int plan_group(struct rn_cpu *c, uint32_t group, struct rn_err *err)
{
    struct rn_attn_plan *plan = &c->plans[group];
    plan->n_tasks = 0;
    plan->n_chunks = 0;
    int r = 0;
    for (uint32_t row0 = 0, row1; row0 < c->step->n_rows && r == 0; row0 = row1) {
        row1 = row0 + 1;
        while (row1 < c->step->n_rows && c->step->rows[row1].view == c->step->rows[row0].view) {
            row1++;
        }
        r = add_view_tasks(c, plan, row0, row1, err);
    }
    r = r < 0 ? r : grow((void **)&plan->first_chunk, &plan->cap_first, plan->n_tasks + 1, sizeof *plan->first_chunk, err);
    for (uint32_t task = 0; task < plan->n_tasks && r == 0; task++) {
        plan->first_chunk[task] = plan->n_chunks;
        r = add_task_chunks(c, plan, group, task, err);
    }
    if (r < 0) {
        return r;
    }
    plan->first_chunk[plan->n_tasks] = plan->n_chunks;
    plan->split = c->n_threads > 1 && plan->n_tasks < 4 * c->n_threads && plan->n_chunks > plan->n_tasks;
    size_t need = plan->split ? (size_t)plan->n_chunks * RN_ATTN_MAX_Q * (c->program->head_dim + 2) : 0;
    if (need > plan->cap_partial) {
        rn_mem_free(plan->partial);
        plan->cap_partial = 0;
        plan->partial = rn_mem_alloc64(2 * need, sizeof *plan->partial);
        if (!plan->partial) {
            return rn_err_nomem(err, 2 * need * sizeof *plan->partial, "attention partial sums");
        }
        plan->cap_partial = 2 * need;
    }
    return 0;
}

int rn_cpu_attn_plan(struct rn_cpu *c, struct rn_err *err)
{
    int r = 0;
    for (uint32_t g = 0; g < c->program->n_groups && r == 0; g++) {
        r = plan_group(c, g, err);
    }
    return r;
}

/* ---- RoPE and KV write --------------------------------------------------------------------------------------------------------------- */

static const float *row_angles(const struct rn_cpu *c, uint32_t layer, uint32_t row, bool window)
{
    size_t at = ((size_t)row * c->program->n_ropes + c->program->layer_rope[layer]) * 2 + (window ? 1 : 0);
    return c->step->angles + at * c->step->angle_stride;
}

/* The K part of (layer, head) in a page; the V part follows it. */
static size_t part_offset(const struct rn_cpu *c, uint32_t layer, uint32_t kv_head, size_t part_bytes)
{
    return ((size_t)c->program->layer_slot[layer] * c->program->n_kv_heads + kv_head) * 2 * part_bytes;
}

static void write_kv(struct rn_cpu *c, uint32_t layer, uint32_t row_index, uint32_t kv_head, const float *k)
{
    uint32_t group = c->program->layer_group[layer], hd = c->program->head_dim;
    struct rn_place place = rn_row_place(c->step, group, &c->step->rows[row_index]);
    bool q8 = !place.pinned && c->kv == RN_KV_Q8_0;
    size_t bytes = rn_kv_part_bytes(q8, hd);
    uint8_t *part = (uint8_t *)place.page + part_offset(c, layer, kv_head, bytes);
    const float *v = c->values[RN_VAL_V] + row_index * c->ld[RN_VAL_V] + (size_t)kv_head * hd;
    KERNEL(c, rn_kv_write_fn, q8 ? RN_CPU_KV_WRITE_Q8_0 : RN_CPU_KV_WRITE_F16)(k, v, hd, part, part + bytes, place.slot);
}

/* One head: its norm, if the model has one, then the rotation by each of the angles. scratch [head_dim]. */
static void turn_head(const struct rn_cpu *c, const struct rn_cpu_step_op *op, const float *norm, const float *x, const float *const angles[2],
                      float *const out[2], float *scratch)
{
    const struct rn_rope *rope = &c->program->ropes[c->program->layer_rope[op->layer]];
    uint32_t hd = c->program->head_dim;
    if (norm) {
        KERNEL(c, rn_norm_fn, RN_CPU_NORM)(x, norm, op->eps, hd, scratch);
        x = scratch;
    }
    for (int zone = 0; zone < 2; zone++) {
        if (out[zone]) {
            KERNEL(c, rn_rope_fn, RN_CPU_ROPE)(x, angles[zone], hd, rope->n_rot, rope->interleaved, out[zone]);
        }
    }
}

void rn_cpu_rope_kv(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread)
{
    const struct rn_program *p = c->program;
    uint32_t hd = p->head_dim, group_heads = p->n_heads / p->n_kv_heads, n = c->step->n_rows * p->n_kv_heads;
    float *scratch = c->threads[thread].row, *k = scratch + hd;
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, n, 1); rn_loop_next(&l);) {
        uint32_t row = l.at / p->n_kv_heads, kv = l.at % p->n_kv_heads;
        const float *const angles[2] = {row_angles(c, op->layer, row, false), row_angles(c, op->layer, row, true)};
        const float *keys = c->values[RN_VAL_K] + row * c->ld[RN_VAL_K] + (size_t)kv * hd;
        turn_head(c, op, op->head_norms[1], keys, angles, (float *const[2]){NULL, k}, scratch);
        write_kv(c, op->layer, row, kv, k);
        bool two = rn_row_pages(c->step, p->layer_group[op->layer], &c->step->rows[row])->n_pinned > 0;
        for (uint32_t h = kv * group_heads; h < (kv + 1) * group_heads; h++) {
            size_t at = row * c->ld[RN_VAL_Q] + (size_t)h * hd;
            turn_head(c, op, op->head_norms[0], c->values[RN_VAL_Q] + at, angles, (float *const[2]){two ? c->q_pinned + at : NULL, c->q_window + at},
                      scratch);
        }
    }
}

/* ---- attention ----------------------------------------------------------------------------------------------------------------------- */

size_t rn_cpu_attn_scratch(uint32_t head_dim)
{
    return RN_ATTN_SCRATCH(head_dim) + 2 * (size_t)RN_ATTN_MAX_Q * (head_dim + 2); // kernel, one chunk's sums, running sums
}

/* m, l, o of up to RN_ATTN_MAX_Q queries laid out in one piece of memory. */
struct sums {
    float *m, *l, *o;
};

/* Floats of one such piece. */
static size_t partial_stride(const struct rn_cpu *c)
{
    return (size_t)RN_ATTN_MAX_Q * (c->program->head_dim + 2);
}

static struct sums sums_at(float *memory)
{
    return (struct sums){.o = memory + 2 * RN_ATTN_MAX_Q, .m = memory, .l = memory + RN_ATTN_MAX_Q};
}

static bool chunk_is_q8(const struct rn_cpu *c, const struct rn_attn_chunk *chunk)
{
    return !chunk->pinned && c->kv == RN_KV_Q8_0;
}

/* The K parts of a chunk's pages between tokens lo and hi of it; the others may not exist and stay as they are. */
static void point_at_keys(const struct rn_cpu *c, uint32_t layer, uint32_t kv_head, const struct rn_step_pages *pages,
                          const struct rn_attn_chunk *chunk, uint32_t lo, uint32_t hi, const uint8_t **k)
{
    size_t offset = part_offset(c, layer, kv_head, rn_kv_part_bytes(chunk_is_q8(c, chunk), c->program->head_dim));
    for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
        if ((i + 1) * RN_PAGE_TOKENS > lo && i * RN_PAGE_TOKENS < hi) {
            uint64_t number = chunk->chunk * CHUNK_PAGES + i;
            const uint8_t *page = chunk->pinned ? pages->pinned[number] : pages->window[number - pages->first_page];
            k[i] = page + offset;
        }
    }
}

/* The part of a chunk that one row sees. */
static struct rn_range visible(const struct rn_cpu *c, uint32_t group, const struct rn_step_row *row, const struct rn_attn_chunk *chunk)
{
    struct rn_sight sight = rn_row_sight(c->program, group, c->step, row);
    return rn_range_in_chunk(chunk->pinned ? sight.pinned : sight.window, chunk->chunk);
}

/* A call of the kernel. */
struct call {
    const struct rn_cpu_step_op *op;
    const struct rn_attn_chunk *chunk;
    const struct rn_attn_chunk *next; /* what this thread will probably do next and has in no cache, or NULL */
    bool cold;                        /* the chunk is probably in no cache */
    float *scratch;
    struct sums out;
};

/* The K parts that the last row of a chunk's task sees, all pages of which exist. */
static void keys_of(const struct rn_cpu *c, const struct rn_cpu_step_op *op, const struct rn_attn_chunk *chunk, const uint8_t **k)
{
    uint32_t group = c->program->layer_group[op->layer];
    const struct rn_attn_task *task = &c->plans[group].tasks[chunk->task];
    const struct rn_step_row *row = &c->step->rows[task->row0 + task->n_rows - 1];
    struct rn_range part = visible(c, group, row, chunk);
    if (part.from < part.to) {
        point_at_keys(c, op->layer, task->kv_head, rn_row_pages(c->step, group, row), chunk, (uint32_t)part.from, (uint32_t)part.to, k);
    }
}

static uint32_t clamp(uint32_t x, uint32_t low, uint32_t high)
{
    return x < low ? low : x < high ? x : high;
}

/* Asks for the next keys as far as the kernel did not: it does so while it reads values, and those of tokens [lo, hi) may be few.
 * part_bytes: of a part of the next keys. */
static void fetch_rest(const struct rn_attn_args *args, size_t part_bytes, uint32_t lo, uint32_t hi)
{
    size_t each = part_bytes / RN_PAGE_TOKENS;
    for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
        uint32_t first = i * RN_PAGE_TOKENS, end = first + RN_PAGE_TOKENS, from = clamp(lo, first, end), to = clamp(hi, from, end);
        if (args->next_k[i]) {
            rn_fetch(args->next_k[i], (from - first) * each);
            rn_fetch(args->next_k[i] + (to - first) * each, (end - to) * each);
        }
    }
}

static void run_chunk(struct rn_cpu *c, const struct call *call)
{
    const struct rn_attn_chunk *chunk = call->chunk;
    uint32_t group = c->program->layer_group[call->op->layer], hd = c->program->head_dim, lo = RN_CHUNK_TOKENS, hi = 0, n = 0;
    const struct rn_attn_task *task = &c->plans[group].tasks[chunk->task];
    struct rn_attn_args args = {.head_dim = hd, .scale = c->program->attn_scale, .m = call->out.m, .l = call->out.l, .o = call->out.o,
                                .scratch = call->scratch, .cold = call->cold};
    const float *q = chunk->pinned ? c->q_pinned : c->q_window;
    for (uint32_t row = task->row0; row < task->row0 + task->n_rows; row++) {
        struct rn_range part = visible(c, group, &c->step->rows[row], chunk);
        for (uint32_t h = task->head0; h < task->head0 + task->n_heads; h++, n++) {
            args.q[n] = q + row * c->ld[RN_VAL_Q] + (size_t)h * hd;
            args.lo[n] = (uint16_t)part.from;
            args.hi[n] = (uint16_t)part.to;
        }
        if (part.from < part.to) {
            lo = part.from < lo ? (uint32_t)part.from : lo;
            hi = part.to > hi ? (uint32_t)part.to : hi;
        }
    }
    args.n_q = n;
    bool q8 = chunk_is_q8(c, chunk);
    point_at_keys(c, call->op->layer, task->kv_head, rn_row_pages(c->step, group, &c->step->rows[task->row0]), chunk, lo, hi, args.k);
    for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
        args.v[i] = args.k[i] ? args.k[i] + rn_kv_part_bytes(q8, hd) : NULL;
    }
    if (call->next) {
        keys_of(c, call->op, call->next, args.next_k);
    }
    KERNEL(c, rn_attn_fn, q8 ? RN_CPU_ATTN_Q8_0 : RN_CPU_ATTN_F16)(&args);
    if (call->next) {
        fetch_rest(&args, rn_kv_part_bytes(chunk_is_q8(c, call->next), hd), lo, hi);
    }
}

/* Asks for the keys of the first chunk of a thread: no earlier chunk could. */
static void fetch_keys(const struct rn_cpu *c, const struct rn_cpu_step_op *op, const struct rn_attn_chunk *chunk)
{
    size_t bytes = rn_kv_part_bytes(chunk_is_q8(c, chunk), c->program->head_dim);
    const uint8_t *k[CHUNK_PAGES] = {0};
    keys_of(c, op, chunk, k);
    for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
        if (k[i]) {
            rn_fetch(k[i], bytes);
        }
    }
}

static void combine(const struct rn_cpu *c, struct sums to, struct sums from, uint32_t n_q)
{
    uint32_t hd = c->program->head_dim;
    for (uint32_t i = 0; i < n_q; i++) {
        KERNEL(c, rn_attn_combine_fn, RN_CPU_ATTN_COMBINE)(&to.m[i], &to.l[i], to.o + (size_t)i * hd, from.m[i], from.l[i], from.o + (size_t)i * hd, hd);
    }
}

/* out = o / l, as o * (1 / l). */
static void finish(struct rn_cpu *c, const struct rn_cpu_step_op *op, const struct rn_attn_task *task, struct sums sums)
{
    uint32_t hd = c->program->head_dim, n = 0;
    for (uint32_t row = task->row0; row < task->row0 + task->n_rows; row++) {
        for (uint32_t h = task->head0; h < task->head0 + task->n_heads; h++, n++) {
            float *out = c->values[op->out] + row * c->ld[op->out] + (size_t)h * hd, inverse = 1.0f / sums.l[n];
            for (uint32_t d = 0; d < hd; d++) {
                out[d] = sums.o[(size_t)n * hd + d] * inverse;
            }
        }
    }
}

static void clear(struct sums sums, uint32_t n_q, uint32_t hd)
{
    memset(sums.m, 0, n_q * sizeof(float));
    memset(sums.l, 0, n_q * sizeof(float));
    memset(sums.o, 0, (size_t)n_q * hd * sizeof(float));
}

/* The chunks of all tasks, each by whoever asks first; their sums go to plan->partial. */
static void run_split(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread, const struct rn_attn_plan *plan)
{
    size_t stride = partial_stride(c);
    bool first = true;
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, plan->n_chunks, 1); rn_loop_next(&l); first = false) {
        const struct rn_attn_chunk *chunk = &plan->chunks[l.at], *next = l.at + c->n_threads < plan->n_chunks ? chunk + c->n_threads : NULL;
        if (first) {
            fetch_keys(c, op, chunk);
        }
        run_chunk(c, &(struct call){.op = op, .chunk = chunk, .next = next, .cold = true, .scratch = c->threads[thread].attn,
                                    .out = sums_at(plan->partial + l.at * stride)});
    }
}

/* One task's chunks, one after the other. cold: this thread has read none of them in this operation. */
static void run_task(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread, const struct rn_attn_chunk *chunk,
                     const struct rn_attn_chunk *end, bool cold, uint32_t n_q, struct sums running)
{
    float *scratch = c->threads[thread].attn;
    struct sums sums = sums_at(scratch + RN_ATTN_SCRATCH(c->program->head_dim));
    if (cold && chunk < end) {
        fetch_keys(c, op, chunk);
    }
    for (; chunk < end; chunk++) {
        const struct rn_attn_chunk *next = cold && chunk + 1 < end ? chunk + 1 : NULL;
        run_chunk(c, &(struct call){.op = op, .chunk = chunk, .next = next, .cold = cold, .scratch = scratch, .out = sums});
        combine(c, running, sums, n_q);
    }
}

static bool same_keys(const struct rn_cpu *c, const struct rn_attn_task *a, const struct rn_attn_task *b)
{
    return a->kv_head == b->kv_head && c->step->rows[a->row0].view == c->step->rows[b->row0].view;
}

void rn_cpu_attention(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread)
{
    const struct rn_attn_plan *plan = &c->plans[c->program->layer_group[op->layer]];
    uint32_t hd = c->program->head_dim;
    size_t stride = partial_stride(c);
    struct sums running = sums_at(c->threads[thread].attn + RN_ATTN_SCRATCH(hd) + stride);
    if (plan->split) {
        run_split(c, op, thread, plan);
    }
    const struct rn_attn_task *last = NULL; // of this thread
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, plan->n_tasks, 1); rn_loop_next(&l);) {
        const struct rn_attn_task *task = &plan->tasks[l.at];
        uint32_t n_q = task->n_rows * task->n_heads, from = plan->first_chunk[l.at], to = plan->first_chunk[l.at + 1];
        clear(running, n_q, hd);
        if (plan->split) {
            for (uint32_t i = from; i < to; i++) {
                combine(c, running, sums_at(plan->partial + i * stride), n_q);
            }
        } else {
            run_task(c, op, thread, plan->chunks + from, plan->chunks + to, !last || !same_keys(c, last, task), n_q, running);
        }
        finish(c, op, task, running);
        last = task;
    }
}

void rn_cpu_attn_cost(const struct rn_cpu *c, const struct rn_cpu_step_op *op, double *ret_bytes, double *ret_macs)
{
    uint32_t group = c->program->layer_group[op->layer], hd = c->program->head_dim;
    double window_cell = 2.0 * (double)rn_kv_part_bytes(c->kv == RN_KV_Q8_0, hd) / RN_PAGE_TOKENS * c->program->n_kv_heads;
    double pinned_cell = 2.0 * (double)rn_kv_part_bytes(false, hd) / RN_PAGE_TOKENS * c->program->n_kv_heads;
    *ret_bytes = *ret_macs = 0;
    for (uint32_t m = 0; m < c->step->n_rows; m++) {
        const struct rn_step_row *row = &c->step->rows[m];
        struct rn_sight sight = rn_row_sight(c->program, group, c->step, row);
        uint64_t pinned = sight.pinned.to, window = sight.window.to - sight.window.from;
        bool last = m + 1 == c->step->n_rows || c->step->rows[m + 1].view != row->view;
        *ret_macs += 2.0 * (double)(pinned + window) * c->program->n_heads * hd;
        *ret_bytes += last ? (double)pinned * pinned_cell + (double)window * window_cell : 0; // what its last row sees, a sequence reads once
    }
}
