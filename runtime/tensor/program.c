/* Building a program and checking that its shapes agree. A program that passed rn_program_check can be interpreted without further
 * checks of sizes: backends index weights and values by the widths alone. */
#include "runtime/tensor/program.h"

#include <inttypes.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define FIRST_OPS 64 // doubles from here

static const char *const kind_names[RN_OP_COUNT] = {
    [RN_OP_EMBED] = "embed",     [RN_OP_NORM] = "norm",           [RN_OP_MATMUL] = "matmul", [RN_OP_GATED] = "gated",
    [RN_OP_ROPE_KV] = "rope_kv", [RN_OP_ATTENTION] = "attention", [RN_OP_LOGITS] = "logits",
};

const char *rn_op_kind_name(enum rn_op_kind kind)
{
    return kind_names[kind];
}

int rn_program_create(struct rn_program **ret, uint32_t n_layers, uint32_t n_rot, struct rn_err *err)
{
    struct rn_program *p = rn_mem_alloc(1, sizeof *p);
    if (!p) {
        return rn_err_nomem(err, sizeof *p, "a program");
    }
    p->n_layers = n_layers;
    p->groups = rn_mem_alloc(1, sizeof *p->groups);
    p->layer_group = rn_mem_alloc(n_layers, sizeof *p->layer_group);
    p->layer_slot = rn_mem_alloc(n_layers, sizeof *p->layer_slot);
    p->layer_rope = rn_mem_alloc(n_layers, sizeof *p->layer_rope);
    p->ropes = rn_mem_alloc(1, sizeof *p->ropes);
    if (p->ropes) {
        p->n_ropes = 1;
        p->ropes[0] = (struct rn_rope){.n_rot = n_rot, .mscale = 1.0f, .freq = rn_mem_alloc(n_rot / 2, sizeof(uint64_t))};
    }
    if (!p->groups || !p->layer_group || !p->layer_slot || !p->layer_rope || !p->ropes || !p->ropes[0].freq) {
        rn_program_destroy(p);
        return rn_err_nomem(err, (size_t)n_layers * 3 * sizeof(uint32_t), "a program's layers");
    }
    p->n_groups = 1;
    p->groups[0].n_layers = n_layers;
    for (uint32_t il = 0; il < n_layers; il++) {
        p->layer_slot[il] = il;
    }
    *ret = p;
    return 0;
}

void rn_program_destroy(struct rn_program *p)
{
    if (!p) {
        return;
    }
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        rn_mem_free(p->ropes[i].freq);
    }
    rn_mem_free(p->ops);
    rn_mem_free(p->ropes);
    rn_mem_free(p->layer_rope);
    rn_mem_free(p->layer_slot);
    rn_mem_free(p->layer_group);
    rn_mem_free(p->groups);
    rn_mem_free(p);
}

int rn_program_add_windows(struct rn_program *p, uint32_t window, uint32_t period, struct rn_err *err)
{
    struct rn_layer_group *groups = rn_mem_alloc(2, sizeof *groups);
    struct rn_rope *ropes = rn_mem_alloc(2, sizeof *ropes);
    uint64_t *freq = rn_mem_alloc(p->ropes[0].n_rot / 2, sizeof *freq);
    if (!groups || !ropes || !freq) {
        rn_mem_free(groups);
        rn_mem_free(ropes);
        rn_mem_free(freq);
        return rn_err_nomem(err, sizeof *groups + sizeof *ropes, "a program's windows");
    }
    ropes[0] = p->ropes[0];
    ropes[1] = (struct rn_rope){.n_rot = ropes[0].n_rot, .interleaved = ropes[0].interleaved, .mscale = 1.0f, .freq = freq};
    groups[1].window = window;
    for (uint32_t il = 0; il < p->n_layers; il++) {
        uint32_t g = il % period < period - 1 ? 1 : 0;
        p->layer_group[il] = g;
        p->layer_rope[il] = g;
        p->layer_slot[il] = groups[g].n_layers++;
    }
    rn_mem_free(p->groups);
    rn_mem_free(p->ropes);
    p->groups = groups;
    p->ropes = ropes;
    p->n_groups = 2;
    p->n_ropes = 2;
    return 0;
}

int rn_program_add(struct rn_program *p, const struct rn_op *op, struct rn_err *err)
{
    if (p->n_ops == p->cap_ops) {
        uint32_t cap = p->cap_ops ? 2 * p->cap_ops : FIRST_OPS;
        struct rn_op *ops = cap > p->cap_ops ? rn_mem_realloc(p->ops, cap, sizeof *ops) : NULL;
        if (!ops) {
            return rn_err_nomem(err, (size_t)cap * sizeof *ops, "a program's operations");
        }
        p->ops = ops;
        p->cap_ops = cap;
    }
    p->ops[p->n_ops++] = *op;
    return 0;
}

static int check_tensor(const struct rn_tensor *t, uint32_t cols, uint32_t rows, struct rn_err *err)
{
    if (!t) {
        return rn_err_set(err, -EINVAL, "a weight is missing, expected %u x %u", cols, rows);
    }
    if (t->cols != cols || t->rows != rows) {
        return rn_err_set(err, -EINVAL, "tensor '%s': shape %u x %u, expected %u x %u", t->name, t->cols, t->rows, cols, rows);
    }
    const struct rn_dtype_info *info = rn_dtype_find(t->type);
    if (!info || !info->dequant) {
        return rn_err_set(err, -EINVAL, "tensor '%s': type %s cannot be loaded", t->name, info ? info->name : "?");
    }
    uint64_t row_bytes = (uint64_t)(cols / info->block_len) * info->block_bytes;
    if (cols % info->block_len || t->bytes / rows != row_bytes || t->bytes % rows) {
        return rn_err_set(err, -EINVAL, "tensor '%s': %zu bytes, expected %u rows of %" PRIu64, t->name, t->bytes, rows, row_bytes);
    }
    return 0;
}

static int check_vector(const struct rn_tensor *t, uint32_t len, struct rn_err *err)
{
    int e = check_tensor(t, len, 1, err);
    if (!e && t->type != RN_DTYPE_F32) {
        return rn_err_set(err, -EINVAL, "tensor '%s': type %s, expected F32", t->name, rn_dtype_find(t->type)->name);
    }
    return e;
}

// A weight matrix from a value of `cols` to one of `rows`, and its bias.
static int check_part(const struct rn_part *part, uint32_t cols, uint32_t rows, struct rn_err *err)
{
    int e = check_tensor(part->weight, cols, rows, err);
    return e || !part->bias ? e : check_vector(part->bias, rows, err);
}

static int check_n_parts(const struct rn_op *op, uint32_t min, uint32_t max, struct rn_err *err)
{
    if (op->n_parts < min || op->n_parts > max) {
        return rn_err_set(err, -EINVAL, "%u weights, expected %u to %u", op->n_parts, min, max);
    }
    return 0;
}

static int check_width(const struct rn_program *p, enum rn_value v, const char *what, uint64_t expected, struct rn_err *err)
{
    if (p->width[v] != expected) {
        return rn_err_set(err, -EINVAL, "%s is %u wide, expected %" PRIu64, what, p->width[v], expected);
    }
    return 0;
}

static int check_matmul(const struct rn_program *p, const struct rn_op *op, struct rn_err *err)
{
    int e = check_n_parts(op, 1, 3, err);
    for (uint32_t i = 0; i < op->n_parts && !e; i++) {
        const struct rn_part *part = &op->parts[i];
        if ((uint32_t)part->out >= RN_VAL_COUNT) {
            return rn_err_set(err, -EINVAL, "part %u writes value %u, expected 0 to %u", i, (uint32_t)part->out, RN_VAL_COUNT - 1);
        }
        e = check_part(part, p->width[op->in], p->width[part->out], err);
    }
    return e;
}

static int check_gated(const struct rn_program *p, const struct rn_op *op, struct rn_err *err)
{
    int e = check_n_parts(op, 2, 2, err);
    e = e ? e : check_width(p, op->out, "its output", p->d_ff, err);
    e = e ? e : check_part(&op->parts[0], p->width[op->in], p->d_ff, err);
    return e ? e : check_part(&op->parts[1], p->width[op->in], p->d_ff, err);
}

static int check_norm(const struct rn_program *p, const struct rn_op *op, struct rn_err *err)
{
    int e = check_n_parts(op, 1, 1, err);
    e = e ? e : check_vector(op->parts[0].weight, p->width[op->in], err);
    return e ? e : check_width(p, op->out, "its output", p->width[op->in], err);
}

static int check_heads(const struct rn_program *p, const struct rn_op *op, struct rn_err *err)
{
    uint64_t q = (uint64_t)p->n_heads * p->head_dim, kv = (uint64_t)p->n_kv_heads * p->head_dim;
    if (op->layer >= p->n_layers) {
        return rn_err_set(err, -EINVAL, "layer %u, expected 0 to %u", op->layer, p->n_layers - 1);
    }
    int e = check_width(p, RN_VAL_Q, "the query", q, err);
    e = e ? e : check_width(p, RN_VAL_K, "the key", kv, err);
    e = e ? e : check_width(p, RN_VAL_V, "the value", kv, err);
    if (e || op->kind == RN_OP_ATTENTION) {
        return e ? e : check_width(p, RN_VAL_A, "the attention output", q, err);
    }
    if (op->n_parts != 0 && op->n_parts != 2) {
        return rn_err_set(err, -EINVAL, "%u head norms, expected none or two", op->n_parts);
    }
    for (uint32_t i = 0; i < op->n_parts && !e; i++) {
        e = check_vector(op->parts[i].weight, p->head_dim, err);
    }
    return e;
}

// EMBED and LOGITS: one matrix with a row per token.
static int check_vocab(const struct rn_program *p, const struct rn_op *op, enum rn_value v, struct rn_err *err)
{
    int e = check_n_parts(op, 1, 1, err);
    return e ? e : check_part(&op->parts[0], p->width[v], p->n_vocab, err);
}

static int check_op(const struct rn_program *p, const struct rn_op *op, struct rn_err *err)
{
    if ((uint32_t)op->in >= RN_VAL_COUNT || (uint32_t)op->out >= RN_VAL_COUNT) {
        return rn_err_set(err, -EINVAL, "values %u and %u, expected 0 to %u", (uint32_t)op->in, (uint32_t)op->out, RN_VAL_COUNT - 1);
    }
    switch (op->kind) {
    case RN_OP_EMBED:
        return check_vocab(p, op, op->out, err);
    case RN_OP_NORM:
        return check_norm(p, op, err);
    case RN_OP_MATMUL:
        return check_matmul(p, op, err);
    case RN_OP_GATED:
        return check_gated(p, op, err);
    case RN_OP_ROPE_KV:
    case RN_OP_ATTENTION:
        return check_heads(p, op, err);
    case RN_OP_LOGITS:
        return check_vocab(p, op, op->in, err);
    case RN_OP_COUNT:
        break;
    }
    return rn_err_set(err, -EINVAL, "no such kind of operation");
}

static int check_layers(const struct rn_program *p, struct rn_err *err)
{
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        if (p->ropes[i].n_rot % 2 || p->ropes[i].n_rot > p->head_dim) {
            return rn_err_set(err, -EINVAL, "rope %u rotates %u dimensions, expected an even number up to %u", i, p->ropes[i].n_rot,
                              p->head_dim);
        }
    }
    for (uint32_t il = 0; il < p->n_layers; il++) {
        uint32_t group = p->layer_group[il];
        if (group >= p->n_groups || p->layer_slot[il] >= p->groups[group].n_layers || p->layer_rope[il] >= p->n_ropes) {
            return rn_err_set(err, -EINVAL, "layer %u: group %u, slot %u, rope %u are not all there", il, group, p->layer_slot[il],
                              p->layer_rope[il]);
        }
    }
    return 0;
}

int rn_program_check(const struct rn_program *p, struct rn_err *err)
{
    if (!p->n_layers || !p->n_heads || !p->n_kv_heads || !p->head_dim || !p->n_vocab || p->n_heads % p->n_kv_heads) {
        return rn_err_set(err, -EINVAL, "%u layers, %u heads, %u kv heads of %u dimensions, %u tokens: all must be at least 1, and "
                          "heads a multiple of kv heads", p->n_layers, p->n_heads, p->n_kv_heads, p->head_dim, p->n_vocab);
    }
    int e = check_layers(p, err);
    for (uint32_t i = 0; i < p->n_ops && !e; i++) {
        const struct rn_op *op = &p->ops[i];
        e = check_op(p, op, err);
        if (e && err) {
            (void)rn_err_prefix(err, "operation %u (%s)", i, (uint32_t)op->kind < RN_OP_COUNT ? kind_names[op->kind] : "?");
        }
    }
    return e;
}

bool rn_op_has_matrices(enum rn_op_kind kind)
{
    return kind == RN_OP_EMBED || kind == RN_OP_MATMUL || kind == RN_OP_GATED || kind == RN_OP_LOGITS;
}

static bool reads(const struct rn_op *op, enum rn_value v)
{
    return op->kind != RN_OP_EMBED && op->kind != RN_OP_ROPE_KV && op->in == v;
}

bool rn_program_norm_folds(const struct rn_program *p, uint32_t i)
{
    const struct rn_op *norm = &p->ops[i];
    if (norm->kind != RN_OP_NORM || norm->accumulate || norm->in == norm->out || i + 1 == p->n_ops) {
        return false;
    }
    const struct rn_op *next = &p->ops[i + 1];
    bool is_product = rn_op_has_matrices(next->kind) && next->kind != RN_OP_EMBED;
    if (!is_product || next->in != norm->out) {
        return false;
    }
    for (uint32_t k = i + 2; k < p->n_ops; k++) {
        if (reads(&p->ops[k], norm->out)) {
            return false;
        }
        if (p->ops[k].kind == RN_OP_NORM && p->ops[k].out == norm->out) {
            return true;
        }
    }
    return true;
}
