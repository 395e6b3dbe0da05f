/* The interpreter: every thread walks the program; an operation is one loop or a few whose pieces threads take (pool.h).
 *
 * A product's input is prepared first (folded norm, quantisation): by every thread for itself when there is one token (a few hundred
 * nanoseconds, cheaper than a loop of its own), by rows otherwise. Threads write disjoint rows and column ranges, so results do not
 * depend on who does what. */
#include <string.h>

#include "runtime/cpu/cpu_internal.h"
#include "runtime/cpu/pool.h"

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/tensor/repack.h"

/* Pieces per thread and product: enough to even out a neighbour that steals time, few enough to keep streams long. */
#define PIECES 6

#define KERNEL(c, type, op) ((type)(c)->kernels.row[op]->fn)

/* Rows of the step that an operation works on: all, or those that want logits. */
static uint32_t op_rows(const struct rn_cpu *c, const struct rn_cpu_step_op *op)
{
    return op->kind == RN_OP_LOGITS ? c->n_wanted : c->step->n_rows;
}

/* What a product reads. */
struct input {
    const struct rn_acts *acts;
    const float *x;
    size_t ldx;
    uint32_t n_rows;
    bool ready; /* false: one token, which each thread prepares for itself with its first piece */
};

/* Prepares row m (0-based among the operation's rows): norm if folded, then int8. `out` receives the floats if a part wants them. */
static const float *prepare_row(const struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t m, const struct rn_acts *acts, float *out)
{
    uint32_t row = op->kind == RN_OP_LOGITS ? c->wanted[m] : m;
    const float *x = c->values[op->in] + row * c->ld[op->in];
    if (op->norm) {
        x = c->values[op->norm_in] + row * c->ld[op->norm_in];
        KERNEL(c, rn_norm_fn, RN_CPU_NORM)(x, op->norm, op->eps, c->program->width[op->norm_in], out);
        x = out;
    }
    if (op->wants_q8) {
        KERNEL(c, rn_quant_act_fn, RN_CPU_QUANT_ACT)(x, acts, m);
    }
    return x;
}

static struct rn_acts acts_for(const struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t n_rows)
{
    struct rn_acts a = c->acts;
    a.n_tok = n_rows;
    a.mb = n_rows < 16 ? n_rows : 16;
    a.n_groups = op->parts[0].w->cols / 32;
    return a;
}

/* Zeroes the padding tokens of the last block, so that the many-row kernels may read them. */
static void clear_padding(const struct rn_acts *a)
{
    uint32_t used = a->n_tok % a->mb;
    if (!used) {
        return;
    }
    size_t block = (size_t)(a->n_tok / a->mb) * a->n_groups * a->mb;
    for (uint32_t g = 0; g < a->n_groups; g++) {
        size_t at = block + (size_t)g * a->mb + used, n = a->mb - used;
        memset(a->q + at * 32, 0, n * 32);
        memset(a->d + at, 0, n * sizeof *a->d);
        memset(a->sd + at, 0, n * sizeof *a->sd);
        memset(a->sum + at, 0, n * sizeof *a->sum);
    }
}

/* Prepares the input of `op`, unless it is one token. *acts is the caller's; the result refers to it. */
static struct input prepare(struct rn_cpu *c, const struct rn_cpu_step_op *op, struct rn_acts *acts, uint32_t thread)
{
    uint32_t n = op_rows(c, op);
    if (n == 1) {
        return (struct input){.n_rows = 1};
    }
    *acts = acts_for(c, op, n);
    struct input in = {.acts = acts, .x = c->values[op->in], .ldx = c->ld[op->in], .n_rows = n, .ready = true};
    bool keeps_floats = op->norm && op->wants_f32; // into the input's own value: nobody else reads it
    if (!op->norm && !op->wants_q8) {
        return in;
    }
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, n, 1); rn_loop_next(&l);) {
        float *own = c->threads[thread].row;
        (void)prepare_row(c, op, l.at, acts, keeps_floats ? c->values[op->in] + l.at * c->ld[op->in] : own);
        if (op->wants_q8 && l.end == n) {
            clear_padding(acts);
        }
    }
    return in;
}

/* Inside a piece: the one token of `in`, if it is not prepared yet. */
static void prepare_own(struct rn_cpu *c, const struct rn_cpu_step_op *op, struct input *in, uint32_t thread)
{
    struct rn_cpu_thread *own = &c->threads[thread];
    if (!in->ready) {
        own->acts.n_groups = op->parts[0].w->cols / 32;
        in->acts = &own->acts;
        in->x = prepare_row(c, op, 0, &own->acts, own->row);
        in->ready = true;
    }
}

/* y[m * ldy + row] for the rows of blocks [b0, b1) of 16. */
static void multiply(const struct rn_cpu *c, const struct rn_cpu_weight *w, const struct input *in, float *y, size_t ldy, uint32_t b0, uint32_t b1)
{
    const enum rn_cpu_op op = w->product->op;
    if (w->product->is_float) {
        size_t element = rn_dtype_find(w->type)->block_bytes;
        struct rn_mmf_args args = {.w = w->data, .n_cols = w->cols, .ldw = w->stride / element, .x = in->x, .ldx = in->ldx,
                                   .n_tok = in->n_rows, .y = y, .ldy = ldy};
        KERNEL(c, rn_mmf_fn, op)(&args, 16 * b0, 16 * b1 < w->rows ? 16 * b1 : w->rows);
        return;
    }
    uint32_t shape = in->acts->mb == 1 ? 0 : in->acts->mb == in->acts->n_tok ? 1 : 2; // MM1, MMF, MMN
    struct rn_mm_args args = {.w = w->data, .n_groups = w->cols / 32, .a = in->acts, .y = y, .ldy = ldy};
    KERNEL(c, rn_mm_fn, op + shape)(&args, b0, b1);
}

static uint32_t n_blocks(const struct rn_cpu_weight *w)
{
    return (w->rows + 15) / 16;
}

static uint32_t piece_size(const struct rn_cpu *c, uint32_t total)
{
    uint32_t piece = total / (c->n_threads * PIECES);
    return piece < 2 ? 2 : (piece + 1) / 2 * 2; // even: the one-row kernels take two blocks at once
}

static void add_rows(const struct rn_cpu *c, float *y, size_t ldy, const float *x, size_t ldx, uint32_t n_rows, uint32_t n)
{
    for (uint32_t m = 0; m < n_rows; m++) {
        KERNEL(c, rn_add_fn, RN_CPU_ADD)(y + m * ldy, x + m * ldx, n);
    }
}

/* One part, blocks [b0, b1): product, bias, and the sum into its target. */
static void run_part(struct rn_cpu *c, const struct rn_cpu_step_op *op, const struct rn_cpu_part *part, const struct input *in, uint32_t b0,
                     uint32_t b1)
{
    float *out = c->values[part->out], *y = op->accumulate ? c->sum : out;
    size_t ld = c->ld[part->out];
    uint32_t r0 = 16 * b0, n = (16 * b1 < part->w->rows ? 16 * b1 : part->w->rows) - r0;
    multiply(c, part->w, in, y, ld, b0, b1);
    if (part->bias) {
        add_rows(c, y + r0, ld, part->bias + r0, 0, in->n_rows, n);
    }
    if (op->accumulate) {
        add_rows(c, out + r0, ld, y + r0, ld, in->n_rows, n);
    }
}

static void run_matmul(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread)
{
    struct rn_acts acts;
    struct input in = prepare(c, op, &acts, thread);
    uint32_t total = 0;
    for (uint32_t k = 0; k < op->n_parts; k++) {
        total += n_blocks(op->parts[k].w);
    }
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, total, piece_size(c, total)); rn_loop_next(&l);) {
        uint32_t start = 0;
        prepare_own(c, op, &in, thread);
        for (uint32_t k = 0; k < op->n_parts; k++) { // the piece may lie across parts
            uint32_t n = n_blocks(op->parts[k].w), b0 = l.at > start ? l.at - start : 0, b1 = l.end > start ? l.end - start : 0;
            b1 = b1 < n ? b1 : n;
            if (b0 < b1) {
                run_part(c, op, &op->parts[k], &in, b0, b1);
            }
            start += n;
        }
    }
}

static const enum rn_cpu_op gates[RN_ACT_COUNT] = {[RN_ACT_SILU] = RN_CPU_SILU_MUL, [RN_ACT_GELU_TANH] = RN_CPU_GELU_MUL};

static void run_gated(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread)
{
    struct rn_acts acts;
    struct input in = prepare(c, op, &acts, thread);
    const struct rn_cpu_part *gate = &op->parts[0], *up = &op->parts[1];
    float *f = c->values[op->out];
    size_t ld = c->ld[op->out];
    uint32_t total = n_blocks(gate->w);
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, total, piece_size(c, total)); rn_loop_next(&l);) {
        uint32_t r0 = 16 * l.at, n = (16 * l.end < gate->w->rows ? 16 * l.end : gate->w->rows) - r0;
        prepare_own(c, op, &in, thread);
        multiply(c, gate->w, &in, f, ld, l.at, l.end);
        multiply(c, up->w, &in, c->up, ld, l.at, l.end);
        if (gate->bias) {
            add_rows(c, f + r0, ld, gate->bias + r0, 0, in.n_rows, n);
        }
        if (up->bias) {
            add_rows(c, c->up + r0, ld, up->bias + r0, 0, in.n_rows, n);
        }
        for (uint32_t m = 0; m < in.n_rows; m++) {
            float *y = f + m * ld + r0;
            KERNEL(c, rn_gate_fn, gates[op->act])(y, c->up + m * ld + r0, y, n);
        }
    }
}

static void run_embed(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread)
{
    const struct rn_cpu_weight *w = op->parts[0].w;
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, c->step->n_rows, 1); rn_loop_next(&l);) {
        float *out = c->values[op->out] + l.at * c->ld[op->out];
        rn_repack_row(w->type, w->cols, w->data, c->step->rows[l.at].id, out);
        for (uint32_t i = 0; op->scale != 1 && i < w->cols; i++) {
            out[i] *= op->scale;
        }
    }
}

static void run_norm(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread)
{
    for (struct rn_loop l = rn_loop_begin(c->pool, thread, c->step->n_rows, 1); rn_loop_next(&l);) {
        uint32_t m = l.at, n = c->program->width[op->in];
        float *out = c->values[op->out] + m * c->ld[op->out], *y = op->accumulate ? c->threads[thread].row : out;
        KERNEL(c, rn_norm_fn, RN_CPU_NORM)(c->values[op->in] + m * c->ld[op->in], op->norm, op->eps, n, y);
        if (op->accumulate) {
            KERNEL(c, rn_add_fn, RN_CPU_ADD)(out, y, n);
        }
    }
}

/* The tokens m0 .. m0 + 15 of a prepared input: token blocks of 16 lie one after the other. One token that is not prepared stays so. */
static struct input token_block(const struct input *all, uint32_t m0, struct rn_acts *ret_acts)
{
    struct input in = *all;
    if (all->ready) {
        const struct rn_acts *a = all->acts;
        size_t skip = (size_t)(m0 / 16) * a->n_groups * a->mb;
        in.n_rows = all->n_rows - m0 < 16 ? all->n_rows - m0 : 16;
        in.x = all->x + m0 * all->ldx;
        in.acts = ret_acts;
        *ret_acts = (struct rn_acts){.n_tok = in.n_rows, .mb = a->mb, .n_groups = a->n_groups, .q = a->q + skip * 32, .d = a->d + skip,
                                     .sd = a->sd + skip, .sum = a->sum + skip};
    }
    return in;
}

/* At most 16 rows at a time pass through the logits buffer: it has one row's size per token of the block, not of the step. */
static void run_logits(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread)
{
    if (c->n_wanted == 0) {
        return;
    }
    struct rn_acts acts;
    struct input all = prepare(c, op, &acts, thread);
    const struct rn_cpu_weight *w = op->parts[0].w;
    uint32_t total = n_blocks(w);
    size_t ld = (size_t)total * 16;
    for (uint32_t m0 = 0; m0 < all.n_rows; m0 += 16) {
        struct rn_acts block;
        struct input in = token_block(&all, m0, &block);
        for (struct rn_loop l = rn_loop_begin(c->pool, thread, total, piece_size(c, total)); rn_loop_next(&l);) {
            uint32_t r0 = 16 * l.at, n = (16 * l.end < w->rows ? 16 * l.end : w->rows) - r0;
            prepare_own(c, op, &in, thread);
            multiply(c, w, &in, c->logits, ld, l.at, l.end);
            for (uint32_t m = 0; m < in.n_rows; m++) {
                memcpy(c->step->rows[c->wanted[m0 + m]].logits + r0, c->logits + m * ld + r0, n * sizeof(float));
            }
        }
    }
}

typedef void (*op_fn)(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread);

static const op_fn op_table[RN_OP_COUNT] = {
    [RN_OP_EMBED] = run_embed, [RN_OP_NORM] = run_norm, [RN_OP_MATMUL] = run_matmul, [RN_OP_GATED] = run_gated,
    [RN_OP_ROPE_KV] = rn_cpu_rope_kv, [RN_OP_ATTENTION] = rn_cpu_attention, [RN_OP_LOGITS] = run_logits,
};

static void add_cost(struct rn_cpu *c, const struct rn_cpu_step_op *op, double ns)
{
    struct rn_op_cost *cost = &c->costs[op->kind];
    uint32_t n_rows = op_rows(c, op);
    double bytes = 0, macs = 0;
    if (op->kind == RN_OP_ATTENTION) {
        rn_cpu_attn_cost(c, op, &bytes, &macs);
    } else if (op->kind != RN_OP_EMBED) {
        for (uint32_t k = 0; k < op->n_parts && n_rows; k++) {
            const struct rn_cpu_weight *w = op->parts[k].w;
            bytes += (double)w->bytes;
            macs += (double)w->cols * w->rows * n_rows;
        }
    }
    cost->ns += ns;
    cost->bytes += bytes;
    cost->macs += macs;
}

static void walk(void *arg, uint32_t thread)
{
    struct rn_cpu *c = arg;
    bool timed = c->profiling && thread == 0;
    for (uint32_t i = 0; i < c->n_step_ops; i++) {
        const struct rn_cpu_step_op *op = &c->step_ops[i];
        uint64_t from = timed ? rn_clock_ns() : 0;
        op_table[op->kind](c, op, thread);
        if (timed) {
            add_cost(c, op, (double)(rn_clock_ns() - from));
        }
    }
}

int rn_cpu_step(struct rn_backend *backend, const struct rn_step *step, struct rn_err *err)
{
    struct rn_cpu *c = (struct rn_cpu *)backend;
    if (step->n_rows == 0 || step->n_rows > c->max_rows) {
        return rn_err_set(err, -EINVAL, "a step of %u rows, expected 1 to %u", step->n_rows, c->max_rows);
    }
    c->step = step;
    c->n_wanted = 0;
    for (uint32_t m = 0; m < step->n_rows; m++) {
        if (step->rows[m].logits) {
            c->wanted[c->n_wanted++] = m;
        }
    }
    uint32_t d_model = c->program->d_model;
    for (uint32_t m = 0; m < step->n_rows && step->x_in; m++) {
        memcpy(c->values[RN_VAL_X] + m * c->ld[RN_VAL_X], step->x_in + (size_t)m * d_model, d_model * sizeof(float));
    }
    int r = rn_cpu_attn_plan(c, err);
    if (r == 0) {
        rn_pool_run(c->pool, walk, c);
    }
    for (uint32_t m = 0; m < step->n_rows && step->x_out && r == 0; m++) {
        memcpy(step->x_out + (size_t)m * d_model, c->values[RN_VAL_X] + m * c->ld[RN_VAL_X], d_model * sizeof(float));
    }
    c->step = NULL;
    return r;
}
