#include "runtime/split.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

/* ---- Programs -------------------------------------------------------------------------------------------------------------------------- */

int rn_split_groups(struct rn_program *p, uint32_t n_first, struct rn_err *err)
{
    uint32_t cap = 2 * p->n_groups, n = 0;
    struct rn_layer_group *groups = rn_mem_alloc(cap, sizeof *groups);
    uint32_t *number = rn_mem_alloc(cap, sizeof *number); // [old group][side] -> new group + 1; 0 = none yet
    if (!groups || !number) {
        rn_mem_free(groups);
        rn_mem_free(number);
        return rn_err_nomem(err, cap * sizeof *groups, "layer groups");
    }
    for (uint32_t il = 0; il < p->n_layers; il++) {
        uint32_t key = 2 * p->layer_group[il] + (il >= n_first);
        if (!number[key]) {
            groups[n].window = p->groups[p->layer_group[il]].window;
            number[key] = ++n;
        }
        p->layer_group[il] = number[key] - 1;
        p->layer_slot[il] = groups[number[key] - 1].n_layers++;
    }
    rn_mem_free(number);
    rn_mem_free(p->groups);
    p->groups = groups;
    p->n_groups = n;
    return 0;
}

static bool writes_x(const struct rn_op *op)
{
    bool by_parts = op->kind == RN_OP_MATMUL;
    bool writes = !by_parts && op->kind != RN_OP_ROPE_KV && op->kind != RN_OP_LOGITS && op->out == RN_VAL_X;
    for (uint32_t k = 0; by_parts && k < op->n_parts; k++) {
        writes = writes || op->parts[k].out == RN_VAL_X;
    }
    return writes;
}

/* The first operation of a layer: the one behind the last write to X before the layer's keys are stored. n_ops: none. */
static uint32_t layer_start(const struct rn_program *p, uint32_t layer)
{
    uint32_t start = p->n_ops, after_x = p->n_ops;
    for (uint32_t i = 0; i < p->n_ops && start == p->n_ops; i++) {
        if (p->ops[i].kind == RN_OP_ROPE_KV && p->ops[i].layer == layer) {
            start = after_x;
        } else if (writes_x(&p->ops[i])) {
            after_x = i + 1;
        }
    }
    return start;
}

/* Values that operation op reads, as bits. */
static uint32_t values_read(const struct rn_op *op)
{
    uint32_t own = 0;
    for (uint32_t k = 0; op->accumulate && k < op->n_parts; k++) {
        own |= 1u << (op->kind == RN_OP_NORM ? op->out : op->parts[k].out);
    }
    switch (op->kind) {
    case RN_OP_EMBED:
        return 0;
    case RN_OP_ROPE_KV:
        return 1u << RN_VAL_Q | 1u << RN_VAL_K | 1u << RN_VAL_V;
    case RN_OP_ATTENTION:
        return 1u << RN_VAL_Q;
    default:
        return own | 1u << op->in;
    }
}

static uint32_t values_written(const struct rn_op *op)
{
    uint32_t bits = 0;
    for (uint32_t k = 0; op->kind == RN_OP_MATMUL && k < op->n_parts; k++) {
        bits |= 1u << op->parts[k].out;
    }
    switch (op->kind) {
    case RN_OP_MATMUL:
        return bits;
    case RN_OP_ROPE_KV:
    case RN_OP_LOGITS:
        return 0;
    default:
        return 1u << op->out;
    }
}

/* Only X may be alive at the cut, and every layer's operations must be on one side. */
static int check_cut(const struct rn_program *p, uint32_t at, uint32_t n_first, struct rn_err *err)
{
    uint32_t known = 1u << RN_VAL_X;
    bool fits = at < p->n_ops;
    for (uint32_t i = 0; i < p->n_ops && fits; i++) {
        const struct rn_op *op = &p->ops[i];
        bool has_layer = op->kind == RN_OP_ROPE_KV || op->kind == RN_OP_ATTENTION;
        fits = !has_layer || (op->layer < n_first) == (i < at);
        fits = fits && (i < at || (op->kind != RN_OP_EMBED && (values_read(op) & ~known) == 0));
        fits = fits && (i >= at || op->kind != RN_OP_LOGITS);
        known |= i < at ? 0 : values_written(op);
    }
    return fits ? 0 : rn_err_set(err, -ENOTSUP, "this model's program cannot be cut before layer %u", n_first);
}

static int copy_ropes(struct rn_program *to, const struct rn_program *p, struct rn_err *err)
{
    rn_mem_free(to->ropes[0].freq);
    rn_mem_free(to->ropes);
    to->n_ropes = 0;
    to->ropes = rn_mem_alloc(p->n_ropes, sizeof *to->ropes);
    for (uint32_t i = 0; to->ropes && i < p->n_ropes; i++) {
        uint32_t n = p->ropes[i].n_rot / 2;
        to->ropes[i] = p->ropes[i];
        to->ropes[i].freq = rn_mem_alloc(n, sizeof(uint64_t));
        to->n_ropes++;
        if (to->ropes[i].freq) {
            memcpy(to->ropes[i].freq, p->ropes[i].freq, n * sizeof(uint64_t));
        }
        if (!to->ropes[i].freq) {
            return rn_err_nomem(err, n * sizeof(uint64_t), "a part of the program");
        }
    }
    return to->ropes ? 0 : rn_err_nomem(err, sizeof *to->ropes, "a part of the program");
}

/* The layers from .. to - 1 and the operations at .. end - 1. group_of[g] tells the part's groups as the whole's. */
static int make_part(struct rn_program **ret, uint32_t *group_of, const struct rn_program *p, uint32_t from, uint32_t to, uint32_t at, uint32_t end,
                     struct rn_err *err)
{
    struct rn_program *part = NULL;
    int r = rn_program_create(&part, to - from, p->ropes[0].n_rot, err);
    if (r < 0) {
        return r;
    }
    *ret = part; // the caller's to destroy, also on failure
    part->n_heads = p->n_heads;
    part->n_kv_heads = p->n_kv_heads;
    part->head_dim = p->head_dim;
    part->d_model = p->d_model;
    part->d_ff = p->d_ff;
    part->n_vocab = p->n_vocab;
    part->attn_scale = p->attn_scale;
    memcpy(part->width, p->width, sizeof p->width);
    rn_mem_free(part->groups);
    part->n_groups = 0;
    part->groups = rn_mem_alloc(p->n_groups, sizeof *part->groups);
    r = part->groups ? copy_ropes(part, p, err) : rn_err_nomem(err, p->n_groups * sizeof *part->groups, "a part of the program");
    for (uint32_t g = 0; g < p->n_groups && r == 0; g++) {
        bool used = false;
        for (uint32_t il = from; il < to; il++) {
            if (p->layer_group[il] == g) {
                part->layer_group[il - from] = part->n_groups;
                part->layer_slot[il - from] = p->layer_slot[il];
                used = true;
            }
        }
        if (used) {
            group_of[part->n_groups] = g;
            part->groups[part->n_groups++] = p->groups[g];
        }
    }
    for (uint32_t il = from; il < to && r == 0; il++) {
        part->layer_rope[il - from] = p->layer_rope[il];
    }
    for (uint32_t i = at; i < end && r == 0; i++) {
        struct rn_op op = p->ops[i];
        bool has_layer = op.kind == RN_OP_ROPE_KV || op.kind == RN_OP_ATTENTION;
        op.layer = has_layer ? op.layer - from : op.layer;
        r = rn_program_add(part, &op, err);
    }
    return r;
}

/* ---- The backend ----------------------------------------------------------------------------------------------------------------------- */

struct rn_split {
    const struct rn_backend_ops *ops; /* first: a struct rn_backend */
    struct rn_program *programs[2];   /* owned */
    struct rn_backend *parts[2];      /* owned */
    uint32_t *group_of[2];            /* [n_groups of the part] -> group of the whole */
    uint32_t max_rows, n_groups;
    float *x;                         /* [max_rows][d_model] between the parts */
    struct rn_step_view *views;       /* [max_rows] of the part that runs */
    struct rn_step_pages *pages;      /* [max_rows][n_groups] */
    struct rn_kernel_choice *kernels; /* of both */
    size_t n_kernels;
    struct rn_op_cost costs[RN_OP_COUNT]; /* made when they are asked for */
    char device[288];
};

static void split_destroy(struct rn_backend *backend)
{
    struct rn_split *s = (struct rn_split *)backend;
    if (!s) {
        return;
    }
    for (int k = 0; k < 2; k++) {
        if (s->parts[k]) {
            rn_ops_of(s->parts[k])->destroy(s->parts[k]);
        }
        rn_program_destroy(s->programs[k]);
        rn_mem_free(s->group_of[k]);
    }
    rn_mem_free(s->x);
    rn_mem_free(s->views);
    rn_mem_free(s->pages);
    rn_mem_free(s->kernels);
    rn_mem_free(s);
}

static int make_programs(struct rn_split *s, const struct rn_program *p, uint32_t n_first, struct rn_err *err)
{
    uint32_t at = layer_start(p, n_first);
    int r = check_cut(p, at, n_first, err);
    for (int k = 0; k < 2 && r == 0; k++) {
        s->group_of[k] = rn_mem_alloc(p->n_groups, sizeof *s->group_of[k]);
        r = !s->group_of[k] ? rn_err_nomem(err, p->n_groups * sizeof *s->group_of[k], "a part of the program")
            : k == 0        ? make_part(&s->programs[0], s->group_of[0], p, 0, n_first, 0, at, err)
                            : make_part(&s->programs[1], s->group_of[1], p, n_first, p->n_layers, at, p->n_ops, err);
    }
    return r;
}

static int make_buffers(struct rn_split *s, const struct rn_program *p, struct rn_err *err)
{
    size_t rows = s->max_rows;
    s->x = rn_mem_alloc64(rows * p->d_model, sizeof *s->x);
    s->views = rn_mem_alloc(rows, sizeof *s->views);
    s->pages = rn_mem_alloc(rows * p->n_groups, sizeof *s->pages);
    return s->x && s->views && s->pages ? 0 : rn_err_nomem(err, rows * p->d_model * sizeof *s->x, "what goes from device to device");
}

static int list_kernels(struct rn_split *s, struct rn_err *err)
{
    for (int k = 0; k < 2; k++) {
        size_t n = 0;
        const struct rn_kernel_choice *list = rn_ops_of(s->parts[k])->kernels(s->parts[k], &n);
        struct rn_kernel_choice *all = rn_mem_realloc(s->kernels, s->n_kernels + n + 1, sizeof *all);
        if (!all) {
            return rn_err_nomem(err, n * sizeof *all, "kernel names");
        }
        memcpy(all + s->n_kernels, list, n * sizeof *all);
        s->kernels = all;
        s->n_kernels += n;
    }
    return 0;
}

/* Progress of a part as its share of the whole, by layers. */
struct progress {
    const struct rn_backend_params *params;
    double from, share;
};

static void on_progress(void *user, double share)
{
    const struct progress *p = user;
    p->params->progress(p->params->user, p->from + p->share * share);
}

static int load_parts(struct rn_split *s, const struct rn_split_params *split, const struct rn_backend_params *params, struct rn_err *err)
{
    uint32_t n_layers = s->programs[0]->n_layers + s->programs[1]->n_layers;
    int r = 0;
    for (int k = 0; k < 2 && r == 0; k++) {
        double share = (double)s->programs[k]->n_layers / n_layers;
        struct progress progress = {params, k ? 1 - share : 0, share};
        struct rn_backend_params own = *params;
        own.progress = params->progress ? on_progress : NULL;
        own.user = &progress;
        r = (k ? split->last : split->first)->load(&s->parts[k], s->programs[k], &own, err);
    }
    return r;
}

int rn_split_load(struct rn_backend **ret, const struct rn_program *p, const struct rn_split_params *split, const struct rn_backend_params *params,
                  struct rn_err *err)
{
    struct rn_split *s = rn_mem_alloc(1, sizeof *s);
    if (!s) {
        return rn_err_nomem(err, sizeof *s, "the two devices");
    }
    s->ops = &rn_split_backend;
    s->max_rows = params->max_rows;
    s->n_groups = p->n_groups;
    int r = make_programs(s, p, split->n_first, err);
    r = r < 0 ? r : make_buffers(s, p, err);
    r = r < 0 ? r : load_parts(s, split, params, err);
    r = r < 0 ? r : list_kernels(s, err);
    if (r < 0) {
        split_destroy((struct rn_backend *)s);
        return r;
    }
    snprintf(s->device, sizeof s->device, "%.63s + from layer %u %.191s", rn_ops_of(s->parts[0])->device(s->parts[0]), split->n_first,
             rn_ops_of(s->parts[1])->device(s->parts[1]));
    *ret = (struct rn_backend *)s;
    return 0;
}

static int run_part(struct rn_split *s, int k, const struct rn_step *step, struct rn_err *err)
{
    const struct rn_program *p = s->programs[k];
    for (uint32_t v = 0; v < step->n_views; v++) {
        struct rn_step_pages *pages = s->pages + (size_t)v * s->n_groups;
        for (uint32_t g = 0; g < p->n_groups; g++) {
            pages[g] = step->views[v].groups[s->group_of[k][g]];
        }
        s->views[v] = (struct rn_step_view){.first = step->views[v].first, .groups = pages};
    }
    struct rn_step own = *step;
    own.views = s->views;
    own.x_in = k ? s->x : NULL;
    own.x_out = k ? NULL : s->x;
    return rn_ops_of(s->parts[k])->step(s->parts[k], &own, err);
}

static int split_step(struct rn_backend *backend, const struct rn_step *step, struct rn_err *err)
{
    struct rn_split *s = (struct rn_split *)backend;
    if (step->n_rows == 0 || step->n_rows > s->max_rows || step->n_views > s->max_rows) {
        return rn_err_set(err, -EINVAL, "a step of %u rows, expected 1 to %u", step->n_rows, s->max_rows);
    }
    int r = run_part(s, 0, step, err);
    return r < 0 ? r : run_part(s, 1, step, err);
}

static struct rn_backend *split_part(struct rn_backend *backend, uint32_t group, uint32_t *ret_group)
{
    struct rn_split *s = (struct rn_split *)backend;
    for (int k = 0; k < 2; k++) {
        for (uint32_t g = 0; g < s->programs[k]->n_groups; g++) {
            if (s->group_of[k][g] == group) {
                *ret_group = g;
                return s->parts[k];
            }
        }
    }
    return NULL; // no such group: the engine asks for those of its program
}

static size_t split_page_bytes(const struct rn_backend *backend, uint32_t group, bool pinned)
{
    uint32_t own = 0;
    struct rn_backend *part = split_part((struct rn_backend *)(uintptr_t)backend, group, &own);
    return part ? rn_ops_of(part)->page_bytes(part, own, pinned) : 0;
}

/* The largest share of a sequence's pages that part k has: with windows that reach as far as everywhere, or in the global groups alone. */
static double page_share(const struct rn_split *s, int k)
{
    double mine[2] = {0, 0}, all[2] = {0, 0};
    for (int part = 0; part < 2; part++) {
        const struct rn_program *p = s->programs[part];
        for (uint32_t g = 0; g < p->n_groups; g++) {
            double bytes = (double)rn_ops_of(s->parts[part])->page_bytes(s->parts[part], g, false);
            for (int only_global = 0; only_global < 2; only_global++) {
                double counted = only_global && p->groups[g].window ? 0 : bytes;
                all[only_global] += counted;
                mine[only_global] += part == k ? counted : 0;
            }
        }
    }
    double whole = mine[0] / all[0], global = all[1] > 0 ? mine[1] / all[1] : 0;
    return whole > global ? whole : global;
}

static uint64_t split_page_budget(const struct rn_backend *backend)
{
    const struct rn_split *s = (const struct rn_split *)backend;
    uint64_t least = UINT64_MAX;
    for (int k = 0; k < 2; k++) {
        const struct rn_backend_ops *ops = rn_ops_of(s->parts[k]);
        if (ops->page_budget) {
            double whole = (double)ops->page_budget(s->parts[k]) / page_share(s, k);
            least = whole < (double)least ? (uint64_t)whole : least;
        }
    }
    return least;
}

static const struct rn_kernel_choice *split_kernels(const struct rn_backend *backend, size_t *ret_n)
{
    const struct rn_split *s = (const struct rn_split *)backend;
    *ret_n = s->n_kernels;
    return s->kernels;
}

static const char *split_device(const struct rn_backend *backend)
{
    return ((const struct rn_split *)backend)->device;
}

static size_t split_weight_bytes(const struct rn_backend *backend)
{
    const struct rn_split *s = (const struct rn_split *)backend;
    return rn_ops_of(s->parts[0])->weight_bytes(s->parts[0]) + rn_ops_of(s->parts[1])->weight_bytes(s->parts[1]);
}

static void split_profile(struct rn_backend *backend, bool on)
{
    struct rn_split *s = (struct rn_split *)backend;
    for (int k = 0; k < 2; k++) {
        rn_ops_of(s->parts[k])->profile(s->parts[k], on);
    }
}

static const struct rn_op_cost *split_costs(const struct rn_backend *backend)
{
    struct rn_split *s = (struct rn_split *)(uintptr_t)backend;
    const struct rn_op_cost *a = rn_ops_of(s->parts[0])->costs(s->parts[0]), *b = rn_ops_of(s->parts[1])->costs(s->parts[1]);
    for (int kind = 0; kind < RN_OP_COUNT; kind++) {
        s->costs[kind] = (struct rn_op_cost){a[kind].ns + b[kind].ns, a[kind].bytes + b[kind].bytes, a[kind].macs + b[kind].macs};
    }
    return s->costs;
}

static struct rn_host_cost split_host_cost(const struct rn_backend *backend)
{
    const struct rn_split *s = (const struct rn_split *)backend;
    struct rn_host_cost sum = {0};
    for (int k = 0; k < 2; k++) {
        const struct rn_backend_ops *ops = rn_ops_of(s->parts[k]);
        struct rn_host_cost one = ops->host_cost ? ops->host_cost(s->parts[k]) : (struct rn_host_cost){0};
        sum = (struct rn_host_cost){sum.steps + one.steps, sum.calls + one.calls, sum.dispatches + one.dispatches, sum.ns + one.ns};
    }
    return sum;
}

const struct rn_backend_ops rn_split_backend = {
    .name = "split", .destroy = split_destroy, .page_bytes = split_page_bytes, .step = split_step, .kernels = split_kernels,
    .device = split_device, .weight_bytes = split_weight_bytes, .profile = split_profile, .costs = split_costs, .host_cost = split_host_cost,
    .page_budget = split_page_budget, .part = split_part,
};
