/* The start-up self-test: what the shaders of this device and driver give, against plain C, before a model is trusted to them.
 *
 * Every operation and type that the program uses runs once on a small input that reaches all the bits of its formats. The reference is
 * written from runtime/tensor alone (the type's dequant, rn_quant_act, sums in double precision). A few milliseconds of work; where it takes
 * longer it is the driver that compiles, which it would do at the first step otherwise. */
#include "runtime/vulkan/selftest_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/quant.h"
#include "runtime/tensor/repack.h"

#define ROWS 40           // of a matrix: two whole blocks of 16, and a half one
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

static uint32_t next(struct rn_vk_try *t)
{
    t->rng ^= t->rng << 13;
    t->rng ^= t->rng >> 7;
    t->rng ^= t->rng << 17;
    return (uint32_t)(t->rng >> 32);
}

float rn_vk_try_random(struct rn_vk_try *t)
{
    return (float)(int32_t)next(t) * 0x1p-31f;
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

static struct rn_vk_step *take_step(struct rn_vk_try *t, uint32_t n_rows, VkDeviceAddress *ret)
{
    struct rn_vk_step *step = rn_vk_try_take(t, sizeof *step, ret);
    if (step) {
        step->n_rows = n_rows;
    }
    return step;
}

/* ---- weights --------------------------------------------------------------------------------------------------------------------------------- */

struct matrix {
    struct rn_tensor tensor; // data owned
    VkDeviceAddress address; // repacked
    float *values;           // [ROWS][cols], owned
};

/* Where the f16 scales of a type's block are, so that random bytes do not make absurd ones. */
static const struct {
    uint32_t type;
    uint8_t n, at[2];
} scales[] = {
    {RN_DTYPE_Q4_0, 1, {0}},    {RN_DTYPE_Q4_1, 2, {0, 2}}, {RN_DTYPE_Q5_0, 1, {0}},   {RN_DTYPE_Q5_1, 2, {0, 2}}, {RN_DTYPE_Q8_0, 1, {0}},
    {RN_DTYPE_Q4_K, 2, {0, 2}}, {RN_DTYPE_Q5_K, 2, {0, 2}}, {RN_DTYPE_Q6_K, 1, {208}}, {RN_DTYPE_IQ4_NL, 1, {0}},
};

static void put_f16(uint8_t *to, float x)
{
    uint16_t h = rn_f32_to_f16(x);
    memcpy(to, &h, sizeof h);
}

static void random_block(struct rn_vk_try *t, uint32_t type, uint8_t *block, uint32_t bytes)
{
    float x = rn_vk_try_random(t);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (type == RN_DTYPE_F32) {
        memcpy(block, &x, sizeof x);
    } else if (type == RN_DTYPE_BF16) {
        memcpy(block, (uint8_t *)&bits + 2, 2); // the upper half, little-endian
    } else if (type == RN_DTYPE_F16) {
        put_f16(block, x);
    } else {
        for (uint32_t i = 0; i < bytes; i++) {
            block[i] = (uint8_t)next(t);
        }
        block[0] = type == RN_DTYPE_MXFP4 ? (uint8_t)(118 + next(t) % 16) : block[0];
    }
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        for (uint32_t k = 0; scales[i].type == type && k < scales[i].n; k++) {
            put_f16(block + scales[i].at[k], 0.02f * rn_vk_try_random(t));
        }
    }
}

static void matrix_finish(struct matrix *m)
{
    rn_mem_free((void *)(uintptr_t)m->tensor.data);
    rn_mem_free(m->values);
}

static int matrix_init(struct matrix *m, struct rn_vk_try *t, uint32_t type, uint32_t cols)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    const size_t n_blocks = (size_t)ROWS * cols / info->block_len, bytes = n_blocks * info->block_bytes;
    uint8_t *data = rn_mem_alloc(bytes, 1);
    *m = (struct matrix){.tensor = {.name = "self-test", .type = type, .cols = cols, .rows = ROWS, .data = data, .bytes = bytes}};
    m->values = rn_mem_alloc((size_t)ROWS * cols, sizeof *m->values);
    uint8_t *repacked = rn_vk_try_take(t, rn_repack_bytes(type, cols, ROWS), &m->address);
    if (!data || !m->values || !repacked) {
        return rn_err_nomem(t->err, bytes, "the self-test");
    }
    for (size_t i = 0; i < n_blocks; i++) {
        random_block(t, type, data + i * info->block_bytes, info->block_bytes);
    }
    info->dequant(data, m->values, n_blocks);
    rn_repack(&m->tensor, repacked, 0, (ROWS + 15) / 16);
    return 0;
}

/* ---- products -------------------------------------------------------------------------------------------------------------------------------- */

struct product {
    uint32_t cols, n_tokens;
    struct matrix m;
    double *x, *want; // what the shader multiplies by, [n_tokens][cols]; results, [n_tokens][ROWS]
    float *out, *bias;
    uint32_t ld;
    union rn_vk_args args;
};

/* Activations of one token, both as the shader reads them and as plain numbers. */
static void fill_token(struct rn_vk_try *t, struct product *p, uint32_t token, int8_t *q, float *d, float *floats)
{
    uint32_t n_groups = p->args.product.n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        float x[RN_GROUP] = {0}, scale = 1;
        int8_t code[RN_GROUP];
        int32_t sum = 0;
        for (uint32_t c = 0; c < RN_GROUP && 32 * g + c < p->cols; c++) {
            x[c] = rn_vk_try_random(t);
        }
        if (q) {
            scale = rn_quant_act(x, code, &sum);
            memcpy(q + ((size_t)token * n_groups + g) * RN_GROUP, code, sizeof code);
            d[2 * ((size_t)token * n_groups + g)] = scale;
            d[2 * ((size_t)token * n_groups + g) + 1] = scale * (float)sum;
        } else {
            memcpy(floats + ((size_t)token * n_groups + g) * RN_GROUP, x, sizeof x);
        }
        for (uint32_t c = 0; c < RN_GROUP && 32 * g + c < p->cols; c++) {
            p->x[(size_t)token * p->cols + 32 * g + c] = q ? (double)scale * code[c] : (double)x[c];
        }
    }
}

static int product_init(struct rn_vk_try *t, struct product *p)
{
    struct rn_args_product *a = &p->args.product;
    const bool f = rn_dtype_is_float(t->kernel->type);
    int r = matrix_init(&p->m, t, t->kernel->type, p->cols);
    p->ld = (ROWS + 31) / 32 * 32;
    *a = (struct rn_args_product){.w0 = p->m.address, .rows0 = ROWS, .ld0 = p->ld, .n_groups = (p->cols + 31) / 32, .flags = RN_PRODUCT_BIAS0};
    a->flags |= f && (p->cols + 15) / 16 % 2 ? RN_PRODUCT_HALF : 0;
    size_t n = (size_t)p->n_tokens * a->n_groups * RN_GROUP;
    void *q = rn_vk_try_take(t, n * (f ? sizeof(float) : 1), &a->q), *d = rn_vk_try_take(t, n / 4, &a->d);
    p->out = rn_vk_try_take(t, (size_t)p->n_tokens * p->ld * sizeof(float), &a->out0);
    p->bias = rn_vk_try_take(t, p->ld * sizeof(float), &a->bias0);
    struct rn_vk_step *step = take_step(t, p->n_tokens, &a->step);
    p->x = rn_mem_alloc((size_t)p->n_tokens * p->cols, sizeof *p->x);
    p->want = rn_mem_alloc((size_t)p->n_tokens * ROWS, sizeof *p->want);
    if (r < 0 || !q || !d || !p->out || !p->bias || !step || !p->x || !p->want) {
        return r < 0 ? r : rn_err_nomem(t->err, n, "the self-test");
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        p->bias[i] = rn_vk_try_random(t);
    }
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        fill_token(t, p, i, f ? NULL : q, d, q);
    }
    return 0;
}

static void product_finish(struct product *p)
{
    matrix_finish(&p->m);
    rn_mem_free(p->x);
    rn_mem_free(p->want);
}

static void product_want(struct product *p)
{
    for (uint32_t token = 0; token < p->n_tokens; token++) {
        for (uint32_t row = 0; row < ROWS; row++) {
            double sum = 0;
            for (uint32_t c = 0; c < p->cols; c++) {
                sum += (double)p->m.values[(size_t)row * p->cols + c] * p->x[(size_t)token * p->cols + c];
            }
            p->want[token * ROWS + row] = sum + (double)p->bias[row];
        }
    }
}

/* One token through matvec, eleven (not a whole tile) through matmat. */
static int try_product(struct rn_vk_try *t, uint32_t cols)
{
    const bool many = t->kernel->op == RN_VK_MATMAT;
    struct product p = {.cols = cols, .n_tokens = many ? 11 : 1};
    int r = product_init(t, &p);
    r = r < 0 ? r : rn_vk_try_run(t, t->kernel, &p.args, many ? 16 : 1, NULL);
    if (r == 0) {
        product_want(&p);
        r = 1;
        for (uint32_t token = 0; token < p.n_tokens; token++) {
            r = r && rn_vk_try_same(p.out + (size_t)token * p.ld, p.want + (size_t)token * ROWS, ROWS, 4 * t->kernel->tolerance);
        }
    }
    product_finish(&p);
    return r;
}

/* ---- embedding ---------------------------------------------------------------------------------------------------------------------------------- */

static int try_embed(struct rn_vk_try *t, uint32_t cols)
{
    struct matrix m;
    union rn_vk_args args = {0};
    struct rn_args_embed *a = &args.embed;
    const uint32_t ids[3] = {0, 17, ROWS - 1}, ld = (cols + 31) / 32 * 32;
    int r = matrix_init(&m, t, t->kernel->type, cols);
    *a = (struct rn_args_embed){.w = m.address, .cols = cols, .ld = ld, .scale = 1.5f};
    float *out = rn_vk_try_take(t, 3 * (size_t)ld * sizeof *out, &a->out);
    struct rn_vk_step *step = take_step(t, 3, &a->step);
    double *want = rn_mem_alloc(cols, sizeof *want);
    r = r < 0 || (out && step && want) ? r : rn_err_nomem(t->err, ld, "the self-test");
    if (r == 0) {
        memcpy(step->id, ids, sizeof ids);
        r = rn_vk_try_run(t, t->kernel, &args, 4, NULL);
    }
    for (uint32_t i = 0; i < 3 && (r == 0 || r == 1); i++) {
        for (uint32_t c = 0; c < cols; c++) {
            want[c] = 1.5 * (double)m.values[(size_t)ids[i] * cols + c];
        }
        r = rn_vk_try_same(out + (size_t)i * ld, want, cols, 4 * t->kernel->tolerance) && (i == 0 || r == 1);
        if (r == 0) {
            break;
        }
    }
    rn_mem_free(want);
    matrix_finish(&m);
    return r;
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

static int try_prepare(struct rn_vk_try *t, uint32_t width)
{
    enum { N = 2 };
    union rn_vk_args args = {0};
    struct rn_args_prepare *a = &args.prepare;
    const uint32_t ld = (width + 31) / 32 * 32;
    *a = (struct rn_args_prepare){.width = width, .ld_x = ld, .ld_out = ld, .n_groups = ld / 32, .eps = 1e-5f,
                                  .flags = RN_PREPARE_NORM | RN_PREPARE_QUANT | RN_PREPARE_FLOATS};
    float *x = rn_vk_try_take(t, N * (size_t)ld * sizeof *x, &a->x), *norm = rn_vk_try_take(t, ld * sizeof *norm, &a->norm);
    float *out = rn_vk_try_take(t, N * (size_t)ld * sizeof *out, &a->out), *d = rn_vk_try_take(t, N * (size_t)ld / 4, &a->d);
    int8_t *q = rn_vk_try_take(t, N * (size_t)ld, &a->q);
    struct rn_vk_step *step = take_step(t, N, &a->step);
    double *want = rn_mem_alloc(ld, sizeof *want);
    int r = x && norm && out && d && q && step && want ? 0 : rn_err_nomem(t->err, ld, "the self-test");
    for (uint32_t i = 0; i < N * width && r == 0; i++) {
        x[i / width * ld + i % width] = 3 * rn_vk_try_random(t);
        norm[i % width] = 1 + rn_vk_try_random(t);
    }
    r = r < 0 ? r : rn_vk_try_run(t, t->kernel, &args, N, NULL);
    bool same = r == 0;
    for (uint32_t row = 0; row < N && same; row++) {
        double sum = 0;
        for (uint32_t c = 0; c < width; c++) {
            sum += (double)x[row * ld + c] * (double)x[row * ld + c];
        }
        for (uint32_t c = 0; c < width; c++) {
            want[c] = (double)x[row * ld + c] / sqrt(sum / width + 1e-5) * (double)norm[c];
        }
        same = rn_vk_try_same(out + row * ld, want, ld, 4 * t->kernel->tolerance) &&
               rn_vk_try_quantised(out + row * ld, q + row * ld, d + row * ld / 16, ld / 32);
    }
    rn_mem_free(want);
    return r < 0 ? r : same;
}

/* ---- all of them ---------------------------------------------------------------------------------------------------------------------------------- */

static int try_kernel(struct rn_vk_try *t, uint32_t cols)
{
    switch (t->kernel->op) {
    case RN_VK_EMBED:
        return try_embed(t, cols);
    case RN_VK_PREPARE:
        return try_prepare(t, cols);
    case RN_VK_ROPE_KV:
        return rn_vk_try_rope_kv(t);
    case RN_VK_ATTEND:
        return rn_vk_try_attend(t);
    case RN_VK_COMBINE:
        return rn_vk_try_combine(t);
    default:
        return try_product(t, cols);
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
