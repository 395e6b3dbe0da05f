/* The start-up self-test: what the shaders of this device and driver give, against plain C, before a model is trusted to them.
 *
 * Every operation and type that the program uses runs on a small input that reaches all the bits of its formats. The reference is written
 * from runtime/tensor alone (the type's dequant, rn_quant_act, sums in double precision). A few milliseconds of work; where it takes longer
 * it is the driver that compiles, which it would do at the first step otherwise. */
#include "runtime/vulkan/selftest_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/quant.h"

#define MAX_COLS 2304     // 18 segments of 128: more than a workgroup has slices; a multiple of every block
#define MEMORY ((size_t)24 << 20)
#define ALIGN 256

/* ---- tools ---------------------------------------------------------------------------------------------------------------------------------- */

void *rn_vk_try_take(struct rn_vk_try *t, size_t bytes, VkDeviceAddress *ret)
{
    size_t at = t->used;
    if (bytes > t->memory.bytes || at > t->memory.bytes - bytes) {
        return NULL;
    }
    t->used = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
    *ret = t->memory.address + at;
    return memset((uint8_t *)t->memory.mapped + at, 0, bytes);
}

uint32_t rn_vk_try_bits(struct rn_vk_try *t)
{
    t->rng ^= t->rng << 13;
    t->rng ^= t->rng >> 7;
    t->rng ^= t->rng << 17;
    return (uint32_t)(t->rng >> 32);
}

float rn_vk_try_random(struct rn_vk_try *t)
{
    return (float)(int32_t)rn_vk_try_bits(t) * 0x1p-31f;
}

int rn_vk_try_run(struct rn_vk_try *t, const struct rn_vk_kernel *k, const union rn_vk_args *args, uint32_t n_rows, const uint32_t *groups)
{
    struct rn_vk_device *d = t->vk->device;
    struct rn_vk_shape shape;
    VkPipeline pipeline;
    VkCommandBuffer commands;
    rn_vk_shape_of(&shape, d, t->vk->program, k, args, n_rows);
    groups = groups ? groups : shape.groups;
    int r = rn_vk_pipeline(&pipeline, d, k, shape.specs, shape.n_specs, t->err);
    r = r < 0 ? r : rn_vk_commands_begin(d, &commands, t->err);
    if (r < 0) {
        return r;
    }
    VkMemoryBarrier done = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                            .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, rn_vk_layout(d), VK_SHADER_STAGE_COMPUTE_BIT, 0, k->args_bytes, args);
    vkCmdDispatch(commands, groups[0], groups[1], groups[2]);
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &done, 0, NULL, 0, NULL);
    return rn_vk_commands_run(d, commands, t->err);
}

bool rn_vk_try_same(const float *got, const double *want, size_t n, float tolerance)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fabs(want[i]) > largest ? fabs(want[i]) : largest;
    }
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)got[i] - want[i]) <= (double)tolerance * largest)) { // NaN too
            return false;
        }
    }
    return true;
}

struct rn_vk_step *rn_vk_try_step(struct rn_vk_try *t, uint32_t n_rows, VkDeviceAddress *ret)
{
    struct rn_vk_step *step = rn_vk_try_take(t, sizeof *step, ret);
    if (step) {
        step->n_rows = n_rows;
    }
    return step;
}

/* ---- norm and quantisation ---------------------------------------------------------------------------------------------------------------------- */

bool rn_vk_try_quantised(const float *y, const int8_t *q, const float *d, uint32_t n_groups)
{
    for (uint32_t g = 0; g < n_groups; g++) {
        float amax = 0;
        int32_t sum = 0;
        for (uint32_t c = 0; c < RN_GROUP; c++) {
            amax = fabsf(y[32 * g + c]) > amax ? fabsf(y[32 * g + c]) : amax;
            sum += q[32 * g + c];
        }
        bool ok = fabsf(d[2 * g] - amax / 127) <= 1e-5f * amax && fabsf(d[2 * g + 1] - d[2 * g] * (float)sum) <= 1e-5f * amax;
        for (uint32_t c = 0; c < RN_GROUP; c++) {
            ok = ok && fabsf((float)q[32 * g + c] * d[2 * g] - y[32 * g + c]) <= 0.501f * amax / 127;
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

/* All that it can do at once: a norm, added to a sum, weighed for the next product. */
static int try_prepare(struct rn_vk_try *t, uint32_t width)
{
    const uint32_t ld = (width + 31) / 32 * 32, n_groups = ld / 32;
    const float eps = 1e-5f;
    union rn_vk_args args = {0};
    struct rn_args_prepare *a = &args.prepare;
    *a = (struct rn_args_prepare){.width = width, .ld_x = ld, .ld_sum = ld, .ld_out = ld, .n_groups = n_groups, .eps = eps, .eps_next = eps,
                                  .flags = RN_PREPARE_NORM | RN_PREPARE_ADD | RN_PREPARE_WEIGH | RN_PREPARE_FLOATS | RN_PREPARE_QUANT};
    float *x = rn_vk_try_take(t, ld * sizeof *x, &a->x), *norm = rn_vk_try_take(t, ld * sizeof *norm, &a->norm);
    float *sum = rn_vk_try_take(t, ld * sizeof *sum, &a->sum), *next = rn_vk_try_take(t, ld * sizeof *next, &a->next);
    float *out = rn_vk_try_take(t, ld * sizeof *out, &a->out), *d = rn_vk_try_take(t, rn_vk_acts_d_floats(n_groups) * sizeof *d, &a->d);
    int8_t *q = rn_vk_try_take(t, ld, &a->q);
    double *want = rn_mem_alloc(ld, sizeof *want), square = 0, mean = 0, shares = 0;
    if (!x || !norm || !sum || !next || !out || !d || !q || !rn_vk_try_step(t, 1, &a->step) || !want) {
        rn_mem_free(want);
        return rn_err_nomem(t->err, ld, "the self-test");
    }
    for (uint32_t i = 0; i < width; i++) {
        x[i] = 3 * rn_vk_try_random(t);
        norm[i] = 1 + rn_vk_try_random(t);
        next[i] = 1 + rn_vk_try_random(t);
        sum[i] = rn_vk_try_random(t);
        square += (double)x[i] * (double)x[i] / width;
    }
    for (uint32_t i = 0; i < width; i++) {
        double y = (double)sum[i] + (double)x[i] / sqrt(square + (double)eps) * (double)norm[i];
        mean += y * y / width;
        want[i] = y * (double)next[i];
    }
    int r = rn_vk_try_run(t, t->kernel, &args, 1, NULL);
    for (uint32_t g = 0; g < n_groups; g++) {
        shares += (double)d[rn_vk_acts_shares_at(n_groups, 0) + g];
    }
    bool same = rn_vk_try_same(out, want, ld, 4 * t->kernel->tolerance) && rn_vk_try_quantised(out, q, d, n_groups) &&
                fabs(shares - mean - (double)eps) <= 1e-5 * mean;
    rn_mem_free(want);
    return r < 0 ? r : same;
}

/* ---- all of them ---------------------------------------------------------------------------------------------------------------------------------- */

static int try_kernel(struct rn_vk_try *t, uint32_t cols)
{
    switch (t->kernel->op) {
    case RN_VK_EMBED:
        return rn_vk_try_embed(t, cols);
    case RN_VK_PREPARE:
        return try_prepare(t, cols);
    case RN_VK_ROPE_KV:
        return rn_vk_try_rope_kv(t);
    case RN_VK_ATTEND:
        return rn_vk_try_attend(t);
    case RN_VK_COMBINE:
        return rn_vk_try_combine(t);
    default:
        return rn_vk_try_product(t, cols);
    }
}

/* Disables the kernels of an operation that fail, until one passes. */
static int settle(struct rn_vk_try *t, enum rn_vk_op op, uint32_t type, uint32_t cols, const char *what)
{
    struct rn_vk *vk = t->vk;
    const struct rn_dtype_info *info = type == RN_VK_ANY_TYPE ? NULL : rn_dtype_find(type);
    while ((t->kernel = rn_vk_kernel_find(vk->device, op, type))) {
        t->used = 0;
        t->rng = 88172645463325252u;
        int r = try_kernel(t, cols < MAX_COLS ? cols : MAX_COLS);
        if (r != 0) {
            return r < 0 ? rn_err_prefix(t->err, "self-test of %s", t->kernel->name) : 0;
        }
        rn_vk_kernel_disable(vk->device, t->kernel);
        if (vk->n_failed < RN_VK_MAX_CHOICES) {
            vk->failed[vk->n_failed++] = t->kernel;
        }
    }
    return rn_err_set(t->err, -ENOTSUP, "the GPU '%s' has no kernel for %s%s%s%s", vk->device->name, what, info ? " of type " : "",
                      info ? info->name : "", vk->n_failed ? " that passes the self-test" : "");
}

struct uses { // what was tested already
    struct {
        enum rn_vk_op op;
        uint32_t type;
    } done[64];
    uint32_t n;
};

static int settle_once(struct rn_vk_try *t, struct uses *u, enum rn_vk_op op, uint32_t type, uint32_t cols, const char *what)
{
    for (uint32_t i = 0; i < u->n; i++) {
        if (u->done[i].op == op && u->done[i].type == type) {
            return 0;
        }
    }
    if (u->n < sizeof u->done / sizeof u->done[0]) {
        u->done[u->n].op = op;
        u->done[u->n++].type = type;
    }
    return settle(t, op, type, cols, what);
}

static int settle_part(struct rn_vk_try *t, struct uses *u, const struct rn_op *op, const struct rn_tensor *w)
{
    const char *what = rn_op_kind_name(op->kind);
    if (op->kind == RN_OP_EMBED) {
        return settle_once(t, u, RN_VK_EMBED, w->type, w->cols, what);
    }
    int r = settle_once(t, u, RN_VK_PREPARE, RN_VK_ANY_TYPE, t->vk->program->width[RN_VAL_X], "norms");
    r = r < 0 ? r : settle_once(t, u, RN_VK_MATVEC, w->type, w->cols, what);
    return r < 0 ? r : settle_once(t, u, RN_VK_MATMAT, w->type, w->cols, what);
}

static int settle_all(struct rn_vk_try *t)
{
    const struct rn_program *p = t->vk->program;
    struct uses u = {.n = 0};
    int r = 0;
    for (uint32_t i = 0; i < p->n_ops && r == 0; i++) {
        const struct rn_op *op = &p->ops[i];
        for (uint32_t k = 0; rn_op_has_matrices(op->kind) && k < op->n_parts && r == 0; k++) {
            r = settle_part(t, &u, op, op->parts[k].weight);
        }
        if (op->kind == RN_OP_ATTENTION && r == 0) {
            r = settle_once(t, &u, RN_VK_ROPE_KV, RN_VK_ANY_TYPE, 0, "RoPE");
            r = r < 0 ? r : settle_once(t, &u, RN_VK_ATTEND, RN_VK_ANY_TYPE, 0, "attention");
            r = r < 0 ? r : settle_once(t, &u, RN_VK_COMBINE, RN_VK_ANY_TYPE, 0, "attention's partial sums");
        }
    }
    return r;
}

int rn_vk_selftest(struct rn_vk *vk, struct rn_err *err)
{
    struct rn_vk_try t = {.vk = vk, .err = err};
    int r = rn_vk_buffer_create(&t.memory, vk->device, MEMORY, RN_VK_READBACK, "the self-test", err);
    r = r < 0 ? r : settle_all(&t);
    rn_vk_buffer_destroy(vk->device, &t.memory);
    return r;
}
