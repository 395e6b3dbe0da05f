/* How many layers go to the GPU: weights as the backends keep them, the values of a step, and KV for one session of the usual window must
 * fit what the device has free. Nothing is allocated here. */
#include "runtime/split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/tensor/kv.h"
#include "runtime/tensor/repack.h"

#define WINDOW 4096u            // the usual N
#define SLACK 2048u             // tokens behind it that a session may keep twice (engine.h: RN_SLACK)
#define STEP_ROWS 256u          // rows of a step
#define LOGITS_ROWS 16u
#define RESERVE (64ull << 20)   // pipelines, staging, tables, what the driver keeps for itself

static uint64_t op_bytes(const struct rn_op *op)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < op->n_parts; k++) {
        const struct rn_tensor *w = op->parts[k].weight;
        bytes += rn_op_has_matrices(op->kind) ? rn_repack_bytes(w->type, w->cols, w->rows) : w->cols * sizeof(float);
        bytes += op->parts[k].bias ? op->parts[k].bias->cols * sizeof(float) : 0;
    }
    return bytes;
}

static uint64_t kv_bytes(const struct rn_program *p, enum rn_kv_type kv)
{
    return (uint64_t)p->n_kv_heads * 2 * rn_kv_part_bytes(kv == RN_KV_Q8_0, p->head_dim) / RN_PAGE_TOKENS;
}

static uint64_t scratch_bytes(const struct rn_program *p)
{
    uint64_t widths = 0;
    for (int v = 0; v < RN_VAL_COUNT; v++) {
        widths += p->width[v];
    }
    return RESERVE + (uint64_t)STEP_ROWS * 2 * widths * sizeof(float) + (uint64_t)LOGITS_ROWS * p->n_vocab * sizeof(float);
}

/* The program with its last n layers on the GPU. What comes before a layer's keys are stored belongs to that layer, what ends a block to the
 * one that is on; the embedding goes to the GPU with all layers only. */
static void fill(struct rn_split_plan *plan, const struct rn_program *p, enum rn_kv_type kv, uint32_t n)
{
    uint32_t n_first = p->n_layers - n, layer = 0;
    const struct rn_tensor *embedding = NULL;
    plan->sides[0] = (struct rn_split_side){.n_layers = n_first, .kv_per_token = n_first * kv_bytes(p, kv)};
    plan->sides[1] = (struct rn_split_side){.n_layers = n, .kv_per_token = n * kv_bytes(p, kv), .scratch = scratch_bytes(p)};
    uint64_t pending = 0; // of operations whose layer is not known yet
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct rn_op *op = &p->ops[i];
        if (op->kind == RN_OP_EMBED) {
            embedding = op->parts[0].weight;
            plan->sides[n_first == 0].weights += op_bytes(op);
        } else if (op->kind == RN_OP_LOGITS) {
            bool tied = op->parts[0].weight == embedding && n_first == 0;
            plan->sides[1].weights += pending + (tied ? 0 : op_bytes(op));
            pending = 0;
        } else {
            pending += op_bytes(op);
        }
        if (op->kind == RN_OP_ROPE_KV) {
            layer = op->layer;
        }
        bool ends_block = op->kind == RN_OP_MATMUL && op->n_parts == 1;
        if (ends_block || op->kind == RN_OP_ROPE_KV || op->kind == RN_OP_GATED) {
            plan->sides[layer >= n_first].weights += pending;
            pending = 0;
        }
    }
}

static uint64_t needed(const struct rn_split_plan *plan)
{
    const struct rn_split_side *gpu = &plan->sides[1];
    return gpu->weights + gpu->scratch + gpu->kv_per_token * plan->kv_tokens;
}

static int read_count(const char *text, uint32_t n_layers, uint32_t *ret, struct rn_err *err)
{
    char *end = NULL;
    unsigned long n = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;
    if (!end || *end) {
        return rn_err_set(err, -EINVAL, "gpu layers are '%s', expected auto or a number from 1 to %u", text, n_layers);
    }
    if (n == 0) {
        return rn_err_set(err, -EINVAL, "gpu layers are 0, expected 1 to %u; to leave the GPU out, choose the device cpu", n_layers);
    }
    if (n > n_layers) {
        return rn_err_set(err, -EINVAL, "gpu layers are %s, the model has %u", text, n_layers);
    }
    *ret = (uint32_t)n;
    return 0;
}

static double mb(uint64_t bytes)
{
    return (double)bytes / 1e6;
}

int rn_split_plan_make(struct rn_split_plan *ret, const struct rn_program *p, const char *gpu_layers, enum rn_kv_type kv, uint32_t n_ctx_train,
                       uint64_t budget, struct rn_err *err)
{
    bool automatic = !gpu_layers || strcmp(gpu_layers, "auto") == 0;
    uint32_t n = p->n_layers;
    int r = automatic ? 0 : read_count(gpu_layers, p->n_layers, &n, err);
    if (r < 0) {
        return r;
    }
    struct rn_split_plan plan = {.kv_tokens = (n_ctx_train < WINDOW ? n_ctx_train : WINDOW) + 2 * SLACK, .budget = budget};
    fill(&plan, p, kv, n);
    while (automatic && n > 1 && needed(&plan) > budget) {
        fill(&plan, p, kv, --n);
    }
    if (needed(&plan) > budget) {
        const struct rn_split_side *gpu = &plan.sides[1];
        return rn_err_set(err, -ENOMEM, "%u layer%s and the logits need %.1f MB on the GPU (weights %.1f, a step %.1f, KV for %llu tokens %.1f), which has %.1f MB free",
                          n, n == 1 ? "" : "s", mb(needed(&plan)), mb(gpu->weights), mb(gpu->scratch), (unsigned long long)plan.kv_tokens,
                          mb(gpu->kv_per_token * plan.kv_tokens), mb(budget));
    }
    *ret = plan;
    return 0;
}

void rn_split_plan_say(const struct rn_split_plan *plan, int side, const char *gpu, char *ret, size_t size)
{
    const struct rn_split_side *s = &plan->sides[side];
    uint32_t n_first = plan->sides[0].n_layers, n_layers = n_first + plan->sides[1].n_layers;
    if (side == 0 && n_first == 0) {
        snprintf(ret, size, "%s", "");
        return;
    }
    if (side == 0) {
        snprintf(ret, size, "layers 0 to %u on the CPU: %.1f MB of weights, %.1f kB of KV per token", n_first - 1, mb(s->weights),
                 (double)s->kv_per_token / 1e3);
        return;
    }
    char which[64];
    if (n_first == 0) {
        snprintf(which, sizeof which, "all %u layers", n_layers);
    } else {
        snprintf(which, sizeof which, "layers %u to %u and the logits", n_first, n_layers - 1);
    }
    snprintf(ret, size, "%s on '%s': %.1f MB of weights, %.1f kB of KV per token, %.1f MB for a step; %.1f MB free", which, gpu, mb(s->weights),
             (double)s->kv_per_token / 1e3, mb(s->scratch), mb(plan->budget));
}
