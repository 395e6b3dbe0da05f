/* The CPU backend: load (repack, plan, buffers), pages, and the table that the engine sees. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/cpu_internal.h"
#include "runtime/cpu/pool.h"
#include "runtime/tensor/repack.h"

static size_t pad16(size_t n)
{
    return (n + 15) / 16 * 16;
}

/* ---- weights ------------------------------------------------------------------------------------------------------------------------- */

static struct rn_cpu_weight *find_weight(struct rn_cpu *c, const struct rn_tensor *src)
{
    for (uint32_t i = 0; i < c->n_weights; i++) {
        if (c->weights[i].src == src) {
            return &c->weights[i];
        }
    }
    return NULL;
}

/* Allocates the matrix of `src`, unless it is there (tied). */
static int add_weight(struct rn_cpu *c, const struct rn_tensor *src, struct rn_err *err)
{
    if (find_weight(c, src)) {
        return 0;
    }
    size_t bytes = rn_repack_bytes(src->type, src->cols, src->rows);
    const struct rn_cpu_product *product = rn_cpu_product_find(src->type);
    if (!bytes || !product) {
        return rn_err_set(err, -ENOTSUP, "tensor '%s': type %s with rows of %u cannot run on the CPU", src->name, rn_dtype_find(src->type)->name,
                          src->cols);
    }
    uint8_t *data = rn_mem_region_alloc(bytes);
    if (!data) {
        return rn_err_nomem(err, bytes, src->name);
    }
    c->weights[c->n_weights++] = (struct rn_cpu_weight){.src = src, .type = src->type, .product = product, .cols = src->cols,
                                                        .rows = src->rows, .stride = rn_repack_stride(src->type, src->cols),
                                                        .data = data, .bytes = bytes};
    c->weight_bytes += bytes;
    return 0;
}

static int add_weights(struct rn_cpu *c, struct rn_err *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->program->n_ops; i++) {
        n += c->program->ops[i].n_parts;
    }
    c->weights = rn_mem_alloc(n, sizeof *c->weights);
    if (!c->weights) {
        return rn_err_nomem(err, n * sizeof *c->weights, "weights");
    }
    for (uint32_t i = 0; i < c->program->n_ops; i++) {
        const struct rn_op *op = &c->program->ops[i];
        for (uint32_t k = 0; rn_op_has_matrices(op->kind) && k < op->n_parts; k++) {
            int r = add_weight(c, op->parts[k].weight, err);
            if (r < 0) {
                return r;
            }
        }
    }
    return 0;
}

struct repack_job {
    struct rn_cpu *c;
    const struct rn_backend_params *params;
    uint64_t start_ns;
    size_t done_bytes;
};

#define REPACK_PIECE 64 /* blocks of 16 rows */

static void repack_all(void *arg, uint32_t thread)
{
    struct repack_job *job = arg;
    struct rn_cpu *c = job->c;
    for (uint32_t i = 0; i < c->n_weights; i++) {
        struct rn_cpu_weight *w = &c->weights[i];
        for (struct rn_loop l = rn_loop_begin(c->pool, thread, (w->rows + 15) / 16, REPACK_PIECE); rn_loop_next(&l);) {
            rn_repack(w->src, w->data, l.at, l.end);
        }
        if (thread == 0) {
            job->done_bytes += w->bytes;
            bool slow = rn_clock_ms(job->start_ns, rn_clock_ns()) > 1000; // a fast load says nothing
            if (slow && job->params->progress) {
                job->params->progress(job->params->user, (double)job->done_bytes / (double)c->weight_bytes);
            }
        }
    }
}

/* Norm weights and biases as one array of floats. */
static int add_vectors(struct rn_cpu *c, struct rn_err *err)
{
    size_t n = 0;
    for (uint32_t i = 0; i < c->program->n_ops; i++) {
        const struct rn_op *op = &c->program->ops[i];
        for (uint32_t k = 0; k < op->n_parts; k++) {
            n += rn_op_has_matrices(op->kind) ? 0 : op->parts[k].weight->cols;
            n += op->parts[k].bias ? op->parts[k].bias->cols : 0;
        }
    }
    c->vectors = rn_mem_alloc64(n, sizeof *c->vectors);
    return c->vectors ? 0 : rn_err_nomem(err, n * sizeof *c->vectors, "norm weights");
}

static const float *take_vector(const struct rn_tensor *t, float **next)
{
    const struct rn_dtype_info *type = rn_dtype_find(t->type);
    float *v = *next;
    type->dequant(t->data, v, t->cols / type->block_len);
    *next += t->cols;
    return v;
}

/* ---- plan ---------------------------------------------------------------------------------------------------------------------------- */

static void bind_part(struct rn_cpu *c, struct rn_cpu_step_op *to, uint32_t k, const struct rn_part *part, float **next)
{
    to->parts[k] = (struct rn_cpu_part){.w = find_weight(c, part->weight), .out = part->out};
    to->parts[k].bias = part->bias ? take_vector(part->bias, next) : NULL;
    to->wants_f32 |= to->parts[k].w->product->is_float;
    to->wants_q8 |= !to->parts[k].w->product->is_float;
}

static int plan_ops(struct rn_cpu *c, struct rn_err *err)
{
    const struct rn_program *p = c->program;
    c->step_ops = rn_mem_alloc(p->n_ops, sizeof *c->step_ops);
    if (!c->step_ops) {
        return rn_err_nomem(err, p->n_ops * sizeof *c->step_ops, "the plan");
    }
    float *next = c->vectors;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct rn_op *op = &p->ops[i];
        struct rn_cpu_step_op *to = &c->step_ops[c->n_step_ops++];
        if (rn_program_norm_folds(p, i)) {
            to->norm = take_vector(op->parts[0].weight, &next);
            to->norm_in = op->in;
            to->eps = op->eps;
            op = &p->ops[++i];
        }
        to->kind = op->kind;
        to->in = op->in;
        to->out = op->out;
        to->layer = op->layer;
        to->scale = op->scale;
        to->act = op->act;
        to->accumulate = op->accumulate;
        to->n_parts = rn_op_has_matrices(op->kind) ? op->n_parts : 0;
        for (uint32_t k = 0; k < to->n_parts; k++) {
            bind_part(c, to, k, &op->parts[k], &next);
        }
        if (op->kind == RN_OP_NORM) {
            to->norm = take_vector(op->parts[0].weight, &next);
            to->eps = op->eps;
        }
        for (uint32_t k = 0; op->kind == RN_OP_ROPE_KV && k < op->n_parts; k++) {
            to->head_norms[k] = take_vector(op->parts[k].weight, &next);
            to->eps = op->eps;
        }
        bool adds_elsewhere = op->accumulate && c->program->width[op->parts[0].out] > c->program->width[RN_VAL_X];
        if ((op->kind == RN_OP_LOGITS && !to->norm) || adds_elsewhere) {
            return rn_err_set(err, -ENOTSUP, "operation %u of the model's program has a form that the CPU backend does not know", i);
        }
    }
    return 0;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------------------------- */

static int acts_init(struct rn_acts *a, uint32_t n_tok, uint32_t n_groups)
{
    size_t n = (size_t)n_tok * n_groups;
    *a = (struct rn_acts){.n_tok = n_tok, .mb = 1, .n_groups = n_groups};
    a->q = rn_mem_alloc64(n, 32);
    a->d = rn_mem_alloc64(n, sizeof *a->d);
    a->sd = rn_mem_alloc64(n, sizeof *a->sd);
    a->sum = rn_mem_alloc64(n, sizeof *a->sum);
    return a->q && a->d && a->sd && a->sum ? 0 : -ENOMEM;
}

static void acts_finish(struct rn_acts *a)
{
    rn_mem_free(a->q);
    rn_mem_free(a->d);
    rn_mem_free(a->sd);
    rn_mem_free(a->sum);
}

static int plan_buffers(struct rn_cpu *c, struct rn_err *err)
{
    const struct rn_program *p = c->program;
    size_t widest = 0, rows = c->max_rows;
    bool ok = true;
    for (int v = 0; v < RN_VAL_COUNT; v++) {
        c->ld[v] = pad16(p->width[v]);
        widest = c->ld[v] > widest ? c->ld[v] : widest;
        c->values[v] = rn_mem_alloc64(rows * c->ld[v], sizeof(float));
        ok = ok && c->values[v];
    }
    c->q_pinned = rn_mem_alloc64(rows * c->ld[RN_VAL_Q], sizeof(float));
    c->q_window = rn_mem_alloc64(rows * c->ld[RN_VAL_Q], sizeof(float));
    c->up = rn_mem_alloc64(rows * c->ld[RN_VAL_F], sizeof(float));
    c->sum = rn_mem_alloc64(rows * c->ld[RN_VAL_X], sizeof(float));
    c->logits = rn_mem_alloc64(16 * pad16(p->n_vocab), sizeof(float));
    c->wanted = rn_mem_alloc(rows, sizeof *c->wanted);
    c->plans = rn_mem_alloc(p->n_groups, sizeof *c->plans);
    c->threads = rn_mem_alloc(c->n_threads, sizeof *c->threads);
    ok = ok && c->q_pinned && c->q_window && c->up && c->sum && c->logits && c->wanted && c->plans && c->threads;
    ok = ok && acts_init(&c->acts, (uint32_t)rows, (uint32_t)(widest / 16 + 1) / 2) == 0;
    for (uint32_t i = 0; ok && i < c->n_threads; i++) {
        struct rn_cpu_thread *t = &c->threads[i];
        t->row = rn_mem_alloc64(widest > 2 * (size_t)p->head_dim ? widest : 2 * (size_t)p->head_dim, sizeof(float));
        t->attn = rn_mem_alloc64(rn_cpu_attn_scratch(p->head_dim), sizeof(float));
        ok = t->row && t->attn && acts_init(&t->acts, 1, (uint32_t)(widest / 16 + 1) / 2) == 0;
    }
    return ok ? 0 : rn_err_nomem(err, rows * widest * sizeof(float), "a step's values");
}

/* ---- the table ----------------------------------------------------------------------------------------------------------------------- */

static void cpu_destroy(struct rn_backend *backend)
{
    struct rn_cpu *c = (struct rn_cpu *)backend;
    if (!c) {
        return;
    }
    rn_pool_destroy(c->pool);
    for (uint32_t i = 0; i < c->n_weights; i++) {
        rn_mem_region_free(c->weights[i].data, c->weights[i].bytes);
    }
    for (int v = 0; v < RN_VAL_COUNT; v++) {
        rn_mem_free(c->values[v]);
    }
    for (uint32_t i = 0; c->threads && i < c->n_threads; i++) {
        rn_mem_free(c->threads[i].row);
        rn_mem_free(c->threads[i].attn);
        acts_finish(&c->threads[i].acts);
    }
    for (uint32_t g = 0; c->plans && g < c->program->n_groups; g++) {
        rn_mem_free(c->plans[g].tasks);
        rn_mem_free(c->plans[g].chunks);
        rn_mem_free(c->plans[g].first_chunk);
        rn_mem_free(c->plans[g].partial);
    }
    acts_finish(&c->acts);
    void *owned[] = {c->weights, c->vectors, c->step_ops, c->q_pinned, c->q_window, c->up, c->sum, c->logits, c->wanted, c->plans, c->threads};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        rn_mem_free(owned[i]);
    }
    rn_mem_free(c);
}

/* The row of the small-batch 4-bit product stands for the machine. */
static void name_device(struct rn_cpu *c)
{
    for (int op = 0; op < RN_CPU_OP_COUNT; op++) {
        c->choices[op] = (struct rn_kernel_choice){rn_cpu_op_name((enum rn_cpu_op)op), c->kernels.row[op]->name};
    }
    snprintf(c->device, sizeof c->device, "cpu %s %u thread%s", c->kernels.row[RN_CPU_MM1_Q4_0]->name, c->n_threads, c->n_threads == 1 ? "" : "s");
}

static int setup(struct rn_cpu *c, const struct rn_backend_params *params, struct rn_err *err)
{
    int r = rn_kv_check(params->kv, c->program, err);
    r = r < 0 ? r : rn_cpu_kernels_choose(&c->kernels, params->cpu_mask, err);
    r = r < 0 ? r : rn_pool_create(&c->pool, c->n_threads, err);
    r = r < 0 ? r : add_weights(c, err);
    r = r < 0 ? r : add_vectors(c, err);
    r = r < 0 ? r : plan_ops(c, err);
    r = r < 0 ? r : plan_buffers(c, err);
    if (r < 0) {
        return r;
    }
    struct repack_job job = {.c = c, .params = params, .start_ns = rn_clock_ns()};
    rn_pool_run(c->pool, repack_all, &job);
    for (uint32_t i = 0; i < c->n_weights; i++) {
        c->weights[i].src = NULL; // the file may be closed now
    }
    name_device(c);
    return 0;
}

static int cpu_load(struct rn_backend **ret, const struct rn_program *program, const struct rn_backend_params *params, struct rn_err *err)
{
    struct rn_cpu *c = rn_mem_alloc(1, sizeof *c);
    if (!c) {
        return rn_err_nomem(err, sizeof *c, "the CPU backend");
    }
    c->ops = &rn_cpu_backend;
    c->program = program;
    c->n_threads = params->n_threads ? params->n_threads : rn_cpu_threads_default();
    c->max_rows = (uint32_t)pad16(params->max_rows);
    c->kv = params->kv;
    c->poison = params->poison;
    int r = setup(c, params, err);
    if (r < 0) {
        cpu_destroy((struct rn_backend *)c);
        return r;
    }
    *ret = (struct rn_backend *)c;
    return 0;
}

static size_t cpu_page_bytes(const struct rn_backend *backend, uint32_t group, bool pinned)
{
    const struct rn_cpu *c = (const struct rn_cpu *)backend;
    return rn_kv_parts_bytes(!pinned && c->kv == RN_KV_Q8_0, c->program, group);
}

/* NaN and the largest finite half, in turn: whatever reads a dead cell shows it. */
static void cpu_page_clear(struct rn_backend *backend, void *page, size_t bytes)
{
    if (((struct rn_cpu *)backend)->poison) {
        uint16_t *cells = page;
        for (size_t i = 0; i < bytes / 2; i++) {
            cells[i] = i % 2 ? 0x7bff : 0x7e00;
        }
    }
}

static void *cpu_page_alloc(struct rn_backend *backend, size_t bytes)
{
    void *pages = rn_mem_region_alloc(bytes);
    if (pages) {
        cpu_page_clear(backend, pages, bytes);
    }
    return pages;
}

static void cpu_page_free(struct rn_backend *backend, void *pages, size_t bytes)
{
    (void)backend;
    rn_mem_region_free(pages, bytes);
}

/* The whole page: the tokens behind n_tokens are dead cells, which nothing reads. */
static void cpu_page_copy(struct rn_backend *backend, uint32_t group, bool pinned, void *dst, const void *src, uint32_t n_tokens)
{
    (void)n_tokens;
    memcpy(dst, src, cpu_page_bytes(backend, group, pinned));
}

static const struct rn_kernel_choice *cpu_kernels(const struct rn_backend *backend, size_t *ret_n)
{
    *ret_n = RN_CPU_OP_COUNT;
    return ((const struct rn_cpu *)backend)->choices;
}

static const char *cpu_device(const struct rn_backend *backend)
{
    return ((const struct rn_cpu *)backend)->device;
}

static size_t cpu_weight_bytes(const struct rn_backend *backend)
{
    return ((const struct rn_cpu *)backend)->weight_bytes;
}

static void cpu_profile(struct rn_backend *backend, bool on)
{
    struct rn_cpu *c = (struct rn_cpu *)backend;
    c->profiling = on;
    if (on) {
        memset(c->costs, 0, sizeof c->costs);
    }
}

static const struct rn_op_cost *cpu_costs(const struct rn_backend *backend)
{
    return ((const struct rn_cpu *)backend)->costs;
}

const struct rn_backend_ops rn_cpu_backend = {
    .name = "cpu", .load = cpu_load, .destroy = cpu_destroy, .page_bytes = cpu_page_bytes, .page_alloc = cpu_page_alloc,
    .page_free = cpu_page_free, .page_clear = cpu_page_clear, .page_copy = cpu_page_copy, .step = rn_cpu_step, .kernels = cpu_kernels,
    .device = cpu_device, .weight_bytes = cpu_weight_bytes, .profile = cpu_profile, .costs = cpu_costs,
};
