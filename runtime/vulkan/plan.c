/* From the program to a list of dispatches.
 *
 * The parts of one type make one dispatch. A product's input is weighed (the norm in front of it, shaders/lib/norm.glsl) and quantised by
 * the dispatch that makes it where that can be, else by one of its own. The dispatches of LOGITS come last, they work on the rows that want
 * logits. Addresses are written into the arguments once; only those of buffers that grow are renewed (buffers.c). */
#include "runtime/vulkan/plan_internal.h"

#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define RES(value) (1u << (value))

struct planner {
    struct rn_vk *vk;
    const struct rn_program *p;
    VkDeviceAddress next_vector; /* vectors are taken in the order of rn_vk_vectors_load */
    uint32_t acts;               /* the place of the last input: the next one gets the other, for its maker may still read this one */
    struct rn_err *err;
};

static int add(struct planner *pl, const struct rn_vk_task *task)
{
    struct rn_vk *vk = pl->vk;
    if (vk->n_tasks == vk->cap_tasks) {
        uint32_t cap = vk->cap_tasks ? 2 * vk->cap_tasks : 64;
        struct rn_vk_task *more = rn_mem_realloc(vk->tasks, cap, sizeof *more);
        if (!more) {
            return rn_err_nomem(pl->err, cap * sizeof *more, "the plan");
        }
        vk->tasks = more;
        vk->cap_tasks = cap;
    }
    vk->tasks[vk->n_tasks++] = *task;
    return 0;
}

static VkDeviceAddress take_vector(struct planner *pl, const struct rn_tensor *v)
{
    VkDeviceAddress at = pl->next_vector;
    pl->next_vector += rn_vk_vector_bytes(v->cols);
    return at;
}

static int add_embed(struct planner *pl, const struct rn_op *op)
{
    const struct rn_vk_weight *w = rn_vk_weight_find(pl->vk, op->parts[0].weight);
    struct rn_vk_task t = {.kind = op->kind, .op = RN_VK_EMBED, .type = w->type, .writes = RES(op->out)};
    t.args.embed = (struct rn_args_embed){.w = w->address, .out = pl->vk->values[op->out], .cols = w->cols, .ld = pl->vk->ld[op->out],
                                          .scale = op->scale};
    return add(pl, &t);
}

/* A norm of its own. */
static int add_norm(struct planner *pl, const struct rn_op *op)
{
    struct rn_vk *vk = pl->vk;
    struct rn_vk_task t = {.kind = op->kind, .op = RN_VK_PREPARE, .type = RN_VK_ANY_TYPE, .writes = RES(op->out)};
    t.reads = RES(op->in) | (op->accumulate ? RES(op->out) : 0);
    t.args.prepare = (struct rn_args_prepare){
        .x = vk->values[op->in], .norm = take_vector(pl, op->parts[0].weight), .sum = vk->values[op->out], .out = vk->values[op->out],
        .width = pl->p->width[op->in], .ld_x = vk->ld[op->in], .ld_sum = vk->ld[op->out], .ld_out = vk->ld[op->out],
        .n_groups = vk->ld[op->in] / 32, .eps = op->eps, .flags = RN_PREPARE_NORM | (op->accumulate ? RN_PREPARE_ADD : RN_PREPARE_FLOATS)};
    return add(pl, &t);
}

struct input { /* what a product reads once it is prepared */
    VkDeviceAddress q, d; /* int8; d has the norm's shares too */
    VkDeviceAddress floats;
    uint32_t res_acts, res_floats;
    bool normed;
};

/* Lets a combine kernel quantise what it makes. */
static bool combine_does(const struct planner *pl, struct rn_vk_task *last, const struct rn_args_prepare *a)
{
    if (a->flags != RN_PREPARE_QUANT || pl->p->head_dim % 32) {
        return false;
    }
    last->args.combine.q = a->q;
    last->args.combine.d = a->d;
    last->args.combine.flags |= RN_COMBINE_QUANT;
    return true;
}

/* Lets a product of one result quantise it. */
static bool product_does(struct rn_vk_task *last, const struct rn_args_prepare *a)
{
    struct rn_args_product *p = &last->args.product;
    if ((a->flags & ~(uint32_t)RN_PREPARE_WEIGH) != RN_PREPARE_QUANT || (!(p->flags & RN_PRODUCT_GATED) && p->rows1)) {
        return false;
    }
    p->flags |= RN_PRODUCT_THEN_QUANT | (a->next ? RN_PRODUCT_THEN_NORM : 0);
    p->w2 = a->q;
    p->out2 = a->d;
    p->bias2 = a->next;
    memcpy(&p->rows2, &a->eps_next, sizeof p->rows2);
    return true;
}

/* Lets the dispatch that made a value prepare it for the product that comes next, with few rows. */
static bool maker_does(struct planner *pl, const struct rn_vk_task *prepare)
{
    struct rn_vk_task *last = pl->vk->n_tasks ? &pl->vk->tasks[pl->vk->n_tasks - 1] : NULL;
    if (!last || !(last->writes & prepare->reads)) {
        return false;
    }
    const struct rn_args_prepare *a = &prepare->args.prepare;
    bool does = last->op == RN_VK_COMBINE ? combine_does(pl, last, a) : last->op == RN_VK_MATVEC && product_does(last, a);
    last->writes |= does ? prepare->writes : 0;
    return does;
}

/* Prepares the sum of a norm of its own in the same dispatch, with any number of rows. */
static bool norm_does(struct planner *pl, const struct rn_vk_task *prepare)
{
    struct rn_vk_task *last = pl->vk->n_tasks ? &pl->vk->tasks[pl->vk->n_tasks - 1] : NULL;
    const struct rn_args_prepare *from = &prepare->args.prepare;
    if (!last || last->op != RN_VK_PREPARE || !(last->args.prepare.flags & RN_PREPARE_ADD) || !(last->writes & prepare->reads) ||
        (from->flags & RN_PREPARE_WANTED)) {
        return false;
    }
    struct rn_args_prepare *a = &last->args.prepare;
    a->flags |= from->flags;
    a->next = from->next;
    a->eps_next = from->eps_next;
    a->out = from->out;
    a->ld_out = from->ld_out;
    a->q = from->q;
    a->d = from->d;
    last->writes |= prepare->writes;
    return true;
}

/* What stands in front of a product: the norm that folds into it, what the types of its parts want. norm: NULL, or the operation. */
static int add_prepare(struct planner *pl, const struct rn_op *op, const struct rn_op *norm, struct input *ret)
{
    struct rn_vk *vk = pl->vk;
    bool wants_q = false, wants_floats = false;
    for (uint32_t k = 0; k < op->n_parts; k++) {
        bool f = rn_dtype_is_float(op->parts[k].weight->type);
        wants_floats |= f;
        wants_q |= !f;
    }
    enum rn_value from = norm ? norm->in : op->in;
    bool wanted = op->kind == RN_OP_LOGITS, writes_floats = wants_floats && (norm || wanted);
    const uint32_t k = pl->acts ^= 1;
    *ret = (struct input){.q = vk->acts[k].q, .d = vk->acts[k].d, .floats = vk->values[op->in], .res_acts = RN_VK_RES_ACTS << k,
                          .res_floats = RES(op->in), .normed = norm};
    if (!wants_q && !writes_floats) {
        return 0; // as it is
    }
    struct rn_vk_task t = {.kind = op->kind, .op = RN_VK_PREPARE, .type = RN_VK_ANY_TYPE, .reads = RES(from)};
    t.writes = (wants_q || norm ? ret->res_acts : 0) | (writes_floats ? RES(op->in) : 0);
    t.args.prepare = (struct rn_args_prepare){
        .x = vk->values[from], .next = norm ? take_vector(pl, norm->parts[0].weight) : 0, .out = writes_floats ? vk->values[op->in] : 0,
        .q = ret->q, .d = ret->d, .width = pl->p->width[from], .ld_x = vk->ld[from], .ld_out = vk->ld[op->in],
        .n_groups = vk->ld[from] / 32, .eps_next = norm ? norm->eps : 0};
    t.args.prepare.flags = (norm ? RN_PREPARE_WEIGH : 0) | (wants_q ? RN_PREPARE_QUANT : 0) | (writes_floats ? RN_PREPARE_FLOATS : 0) |
                           (wanted ? RN_PREPARE_WANTED : 0);
    if (norm_does(pl, &t)) {
        return 0;
    }
    t.many_only = maker_does(pl, &t);
    return add(pl, &t);
}

/* Puts part k of a product's dispatch: weight, bias, target. */
static void set_part(struct rn_vk_task *t, uint32_t k, const struct rn_vk_weight *w, VkDeviceAddress bias, VkDeviceAddress out, uint32_t ld)
{
    struct rn_args_product *a = &t->args.product;
    VkDeviceAddress *const weights[] = {&a->w0, &a->w1, &a->w2}, *const biases[] = {&a->bias0, &a->bias1, &a->bias2},
                                                               *const outs[] = {&a->out0, &a->out1, &a->out2};
    uint32_t *const rows[] = {&a->rows0, &a->rows1, &a->rows2}, *const lds[] = {&a->ld0, &a->ld1, &a->ld2};
    *weights[k] = w->address;
    *biases[k] = bias;
    *outs[k] = out;
    *rows[k] = w->rows;
    *lds[k] = ld;
    a->flags |= bias ? RN_PRODUCT_BIAS0 << k : 0;
    t->bytes += (double)w->bytes;
    t->macs += (double)w->cols * w->rows;
}

static struct rn_vk_task product_task(const struct rn_op *op, uint32_t type, const struct input *in)
{
    bool f = rn_dtype_is_float(type);
    const bool acts = !f || in->normed; // the norm's shares lie there for float weights too
    struct rn_vk_task t = {.kind = op->kind, .op = RN_VK_MATVEC, .type = type, .reads = (f ? in->res_floats : 0) | (acts ? in->res_acts : 0)};
    const uint32_t cols = op->parts[0].weight->cols;
    t.args.product = (struct rn_args_product){.q = f ? in->floats : in->q, .d = in->d, .n_groups = (cols + 31) / 32};
    t.args.product.flags = (f && (cols + 15) / 16 % 2 ? RN_PRODUCT_HALF : 0) | (in->normed ? RN_PRODUCT_NORMED : 0);
    return t;
}

static void take_biases(struct planner *pl, const struct rn_op *op, VkDeviceAddress ret[3])
{
    for (uint32_t k = 0; k < op->n_parts; k++) {
        ret[k] = op->parts[k].bias ? take_vector(pl, op->parts[k].bias) : 0;
    }
}

/* MATMUL and LOGITS: one dispatch per type. */
static int add_products(struct planner *pl, const struct rn_op *op, const struct input *in)
{
    struct rn_vk *vk = pl->vk;
    const bool logits = op->kind == RN_OP_LOGITS;
    VkDeviceAddress biases[3] = {0};
    take_biases(pl, op, biases);
    for (uint32_t k = 0, done = 0; k < op->n_parts; k++) {
        if (done >> k & 1) {
            continue;
        }
        const uint32_t type = op->parts[k].weight->type;
        struct rn_vk_task t = product_task(op, type, in);
        t.args.product.flags |= (op->accumulate ? RN_PRODUCT_ADD : 0) | (logits ? RN_PRODUCT_WANTED : 0);
        for (uint32_t i = k, at = 0; i < op->n_parts; i++) {
            const struct rn_part *part = &op->parts[i];
            if (part->weight->type == type) {
                set_part(&t, at++, rn_vk_weight_find(vk, part->weight), biases[i], logits ? vk->logits.address : vk->values[part->out],
                         logits ? vk->ld_logits : vk->ld[part->out]);
                t.writes |= logits ? (uint32_t)RN_VK_RES_LOGITS : RES(part->out);
                t.reads |= op->accumulate ? RES(part->out) : 0;
                done |= 1u << i;
            }
        }
        int r = add(pl, &t);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

/* GATED. Two types: the second part goes into a place of its own first, and the first part's dispatch multiplies by it. */
static int add_gated(struct planner *pl, const struct rn_op *op, const struct input *in)
{
    struct rn_vk *vk = pl->vk;
    const struct rn_vk_weight *gate = rn_vk_weight_find(vk, op->parts[0].weight), *up = rn_vk_weight_find(vk, op->parts[1].weight);
    const uint32_t ld = vk->ld[op->out];
    VkDeviceAddress biases[3] = {0};
    take_biases(pl, op, biases);
    struct rn_vk_task t = product_task(op, gate->type, in);
    t.writes = RES(op->out);
    t.args.product.flags |= RN_PRODUCT_GATED | (op->act == RN_ACT_GELU_TANH ? RN_PRODUCT_GELU : 0);
    set_part(&t, 0, gate, biases[0], vk->values[op->out], ld);
    if (gate->type == up->type) {
        set_part(&t, 1, up, biases[1], vk->values[op->out], ld);
        return add(pl, &t);
    }
    struct rn_vk_task first = product_task(op, up->type, in);
    first.writes = RN_VK_RES_UP;
    set_part(&first, 0, up, biases[1], vk->up, ld);
    t.reads |= RN_VK_RES_UP;
    t.args.product.flags = (t.args.product.flags & ~RN_PRODUCT_GATED) | RN_PRODUCT_TIMES;
    t.args.product.out1 = vk->up;
    t.args.product.ld1 = ld;
    int r = add(pl, &first);
    return r < 0 ? r : add(pl, &t);
}

static int add_rope_kv(struct planner *pl, const struct rn_op *op)
{
    const struct rn_vk *vk = pl->vk;
    const struct rn_program *p = pl->p;
    const uint32_t rope = p->layer_rope[op->layer], slot = p->layer_slot[op->layer];
    struct rn_vk_task t = {.kind = op->kind, .op = RN_VK_ROPE_KV, .type = RN_VK_ANY_TYPE, .layer = op->layer, .group = p->layer_group[op->layer]};
    t.reads = RES(RN_VAL_Q) | RES(RN_VAL_K) | RES(RN_VAL_V);
    t.writes = RN_VK_RES_Q_WINDOW | RN_VK_RES_Q_PINNED | RN_VK_RES_KV;
    bool q8 = vk->kv == RN_KV_Q8_0;
    t.args.rope_kv = (struct rn_args_rope_kv){
        .q = vk->values[RN_VAL_Q], .k = vk->values[RN_VAL_K], .v = vk->values[RN_VAL_V], .q_window = vk->q_window, .q_pinned = vk->q_pinned,
        .heads = p->n_heads | p->n_kv_heads << 16, .dims = p->head_dim | p->ropes[rope].n_rot << 16, .ld_q = vk->ld[RN_VAL_Q],
        .ld_k = vk->ld[RN_VAL_K], .angle_row = p->n_ropes * 2 * vk->angle_stride, .angle_at = rope * 2 * vk->angle_stride,
        .angle_zone = vk->angle_stride, .eps = op->eps,
        .at_pinned = (uint32_t)(slot * p->n_kv_heads * 2 * rn_kv_part_bytes(false, p->head_dim)),
        .at_window = (uint32_t)(slot * p->n_kv_heads * 2 * rn_kv_part_bytes(q8, p->head_dim))};
    t.args.rope_kv.norm_q = op->n_parts ? take_vector(pl, op->parts[0].weight) : 0;
    t.args.rope_kv.norm_k = op->n_parts ? take_vector(pl, op->parts[1].weight) : 0;
    t.args.rope_kv.flags = (p->ropes[rope].interleaved ? RN_ROPE_INTERLEAVED : 0) | (op->n_parts ? RN_ROPE_NORMS : 0) | (q8 ? RN_ROPE_Q8 : 0);
    return add(pl, &t);
}

static int add_attention(struct planner *pl, const struct rn_op *op)
{
    const struct rn_vk *vk = pl->vk;
    const struct rn_program *p = pl->p;
    const uint32_t slot = p->layer_slot[op->layer];
    struct rn_vk_task t = {.kind = op->kind, .op = RN_VK_ATTEND, .type = RN_VK_ANY_TYPE, .layer = op->layer, .group = p->layer_group[op->layer]};
    bool q8 = vk->kv == RN_KV_Q8_0;
    t.reads = RN_VK_RES_Q_WINDOW | RN_VK_RES_Q_PINNED | RN_VK_RES_KV;
    t.writes = RN_VK_RES_PARTIAL | RES(op->out);
    t.args.attend = (struct rn_args_attend){
        .q_window = vk->q_window, .q_pinned = vk->q_pinned, .out = vk->values[op->out], .heads = p->n_heads | p->n_kv_heads << 16,
        .head_dim = p->head_dim, .ld_q = vk->ld[RN_VAL_Q], .ld_out = vk->ld[op->out], .flags = q8 ? RN_ATTEND_Q8 : 0, .scale = p->attn_scale,
        .at_pinned = (uint32_t)(slot * p->n_kv_heads * 2 * rn_kv_part_bytes(false, p->head_dim)),
        .at_window = (uint32_t)(slot * p->n_kv_heads * 2 * rn_kv_part_bytes(q8, p->head_dim))};
    int r = add(pl, &t);
    t = (struct rn_vk_task){.kind = op->kind, .op = RN_VK_COMBINE, .type = RN_VK_ANY_TYPE, .layer = op->layer, .group = t.group,
                            .reads = RN_VK_RES_PARTIAL, .writes = RES(op->out)};
    t.args.combine = (struct rn_args_combine){.out = vk->values[op->out], .n_heads = p->n_heads, .head_dim = p->head_dim,
                                              .ld_out = vk->ld[op->out]};
    return r < 0 ? r : add(pl, &t);
}

static int add_product(struct planner *pl, const struct rn_op *op, const struct rn_op *norm)
{
    struct input in;
    int r = add_prepare(pl, op, norm, &in);
    if (r < 0) {
        return r;
    }
    return op->kind == RN_OP_GATED ? add_gated(pl, op, &in) : add_products(pl, op, &in);
}

static int add_op(struct planner *pl, const struct rn_op *op)
{
    switch (op->kind) {
    case RN_OP_EMBED:
        return add_embed(pl, op);
    case RN_OP_NORM:
        return add_norm(pl, op);
    case RN_OP_ROPE_KV:
        return add_rope_kv(pl, op);
    case RN_OP_ATTENTION:
        return add_attention(pl, op);
    default:
        return add_product(pl, op, NULL);
    }
}

/* The first task of each layer: what follows the last one before its attention that changed X. */
static int find_borders(struct rn_vk *vk, struct rn_err *err)
{
    vk->borders = rn_mem_alloc(vk->program->n_layers + 1, sizeof *vk->borders);
    if (!vk->borders) {
        return rn_err_nomem(err, (vk->program->n_layers + 1) * sizeof *vk->borders, "the plan");
    }
    vk->borders[vk->n_borders++] = 0;
    uint32_t after_x = 0;
    for (uint32_t i = 0; i < vk->n_main; i++) {
        if (vk->tasks[i].op == RN_VK_ROPE_KV && after_x > vk->borders[vk->n_borders - 1] && vk->n_borders < vk->program->n_layers) {
            vk->borders[vk->n_borders++] = after_x;
        }
        after_x = vk->tasks[i].writes & RES(RN_VAL_X) ? i + 1 : after_x;
    }
    vk->borders[0] = 0; // the embedding belongs to the first
    return 0;
}

static int plan_tasks(struct rn_vk *vk, struct rn_err *err)
{
    struct planner pl = {.vk = vk, .p = vk->program, .next_vector = vk->vectors.address, .err = err};
    for (uint32_t i = 0; i < vk->program->n_ops; i++) {
        const struct rn_op *op = &vk->program->ops[i];
        const struct rn_op *norm = rn_program_norm_folds(vk->program, i) ? op : NULL;
        op = norm ? &vk->program->ops[++i] : op;
        if (op->kind == RN_OP_LOGITS) {
            vk->n_main = vk->n_tasks;
        }
        int r = norm ? add_product(&pl, op, norm) : add_op(&pl, op);
        if (r < 0) {
            return r;
        }
        if ((op->kind == RN_OP_LOGITS) != (i + 1 == vk->program->n_ops && vk->makes_logits) || (op->kind == RN_OP_LOGITS && !norm)) {
            return rn_err_set(err, -ENOTSUP, "operation %u of the model's program has a form that the Vulkan backend does not know", i);
        }
    }
    vk->n_main = vk->makes_logits ? vk->n_main : vk->n_tasks;
    return find_borders(vk, err);
}

static void look_at_program(struct rn_vk *vk)
{
    const struct rn_program *p = vk->program;
    vk->embeds = p->n_ops && p->ops[0].kind == RN_OP_EMBED;
    vk->makes_logits = p->n_ops && p->ops[p->n_ops - 1].kind == RN_OP_LOGITS;
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        vk->angle_stride = p->ropes[i].n_rot > vk->angle_stride ? p->ropes[i].n_rot : vk->angle_stride;
    }
}

int rn_vk_plan(struct rn_vk *vk, struct rn_err *err)
{
    look_at_program(vk);
    int r = rn_vk_buffers_make_values(vk, err);
    r = r < 0 ? r : plan_tasks(vk, err);
    return r < 0 ? r : rn_vk_buffers_make_tables(vk, err);
}

void rn_vk_plan_finish(struct rn_vk *vk)
{
    rn_vk_buffers_finish(vk);
    rn_mem_free(vk->tasks);
    rn_mem_free(vk->borders);
}
