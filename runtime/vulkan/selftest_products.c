/* The self-test of what multiplies: weights of every type, products, embeddings. */
#include "runtime/vulkan/selftest_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/quant.h"
#include "runtime/tensor/repack.h"

#define ROWS 40           // of a matrix: two whole blocks of 16, and a half one
#define EPS 1e-5f
#define MATVEC_TOKENS 7   // at most: not a whole bucket of 8
#define MATMAT_TOKENS 11  // not a whole tile

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
            block[i] = (uint8_t)rn_vk_try_bits(t);
        }
        block[0] = type == RN_DTYPE_MXFP4 ? (uint8_t)(118 + rn_vk_try_bits(t) % 16) : block[0];
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
    float *out, *bias, *d;
    struct rn_vk_step *step;
    uint32_t ld;
    union rn_vk_args args;
};

/* Activations of one token, both as the shader reads them and as plain numbers. */
static void fill_token(struct rn_vk_try *t, struct product *p, uint32_t token, int8_t *q, float *floats)
{
    uint32_t n_groups = p->args.product.n_groups;
    float *shares = p->d + rn_vk_acts_shares_at(n_groups, token);
    for (uint32_t g = 0; g < n_groups; g++) {
        shares[g] = 2 + rn_vk_try_random(t);
        float x[RN_GROUP] = {0}, scale = 1;
        int8_t code[RN_GROUP];
        int32_t sum = 0;
        for (uint32_t c = 0; c < RN_GROUP && 32 * g + c < p->cols; c++) {
            x[c] = rn_vk_try_random(t);
        }
        if (q) {
            scale = rn_quant_act(x, code, &sum);
            memcpy(q + ((size_t)token * n_groups + g) * RN_GROUP, code, sizeof code);
            p->d[2 * ((size_t)token * n_groups + g)] = scale;
            p->d[2 * ((size_t)token * n_groups + g) + 1] = scale * (float)sum;
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
    *a = (struct rn_args_product){.w0 = p->m.address, .rows0 = ROWS, .ld0 = p->ld, .n_groups = (p->cols + 31) / 32,
                                    .flags = RN_PRODUCT_BIAS0 | RN_PRODUCT_NORMED};
    a->flags |= f && (p->cols + 15) / 16 % 2 ? RN_PRODUCT_HALF : 0;
    size_t n = (size_t)p->n_tokens * a->n_groups * RN_GROUP;
    void *q = rn_vk_try_take(t, n * (f ? sizeof(float) : 1), &a->q);
    p->d = rn_vk_try_take(t, rn_vk_acts_d_floats(a->n_groups) * sizeof(float), &a->d);
    p->out = rn_vk_try_take(t, (size_t)p->n_tokens * p->ld * sizeof(float), &a->out0);
    p->bias = rn_vk_try_take(t, p->ld * sizeof(float), &a->bias0);
    p->step = rn_vk_try_step(t, p->n_tokens, &a->step);
    p->x = rn_mem_alloc((size_t)p->n_tokens * p->cols, sizeof *p->x);
    p->want = rn_mem_alloc((size_t)p->n_tokens * ROWS, sizeof *p->want);
    if (r < 0 || !q || !p->d || !p->out || !p->bias || !p->step || !p->x || !p->want) {
        return r < 0 ? r : rn_err_nomem(t->err, n, "the self-test");
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        p->bias[i] = rn_vk_try_random(t);
    }
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        fill_token(t, p, i, f ? NULL : q, q);
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
    const uint32_t n_groups = p->args.product.n_groups;
    for (uint32_t token = 0; token < p->n_tokens; token++) {
        double square = 0;
        for (uint32_t g = 0; g < n_groups; g++) {
            square += (double)p->d[rn_vk_acts_shares_at(n_groups, token) + g];
        }
        for (uint32_t row = 0; row < ROWS; row++) {
            double sum = 0;
            for (uint32_t c = 0; c < p->cols; c++) {
                sum += (double)p->m.values[(size_t)row * p->cols + c] * p->x[(size_t)token * p->cols + c];
            }
            p->want[token * ROWS + row] = sum / sqrt(square) + (double)p->bias[row];
        }
    }
}

/* Runs the product for the first n tokens. 1: their sums are right. */
static int run_tokens(struct rn_vk_try *t, struct product *p, uint32_t bucket, uint32_t n)
{
    p->step->n_rows = n;
    memset(p->out, 0, (size_t)p->n_tokens * p->ld * sizeof *p->out); // nothing is right because an earlier run was
    int r = rn_vk_try_run(t, t->kernel, &p->args, bucket, NULL);
    bool same = true;
    for (uint32_t i = 0; i < n; i++) {
        same = same && rn_vk_try_same(p->out + (size_t)i * p->ld, p->want + (size_t)i * ROWS, ROWS, 4 * t->kernel->tolerance);
    }
    return r < 0 ? r : same;
}

/* The next product's input, which the product prepares too. */
struct then {
    int8_t *q;
    float *d, *norm;
};

enum { THEN_GROUPS = (ROWS + RN_GROUP - 1) / RN_GROUP };

static int then_init(struct rn_vk_try *t, struct product *p, struct then *then)
{
    struct rn_args_product *a = &p->args.product;
    const float eps = EPS;
    then->q = rn_vk_try_take(t, (size_t)p->n_tokens * THEN_GROUPS * RN_GROUP, &a->w2);
    then->d = rn_vk_try_take(t, rn_vk_acts_d_floats(THEN_GROUPS) * sizeof *then->d, &a->out2);
    then->norm = rn_vk_try_take(t, ROWS * sizeof *then->norm, &a->bias2);
    if (!then->q || !then->d || !then->norm) {
        return rn_err_nomem(t->err, ROWS, "the self-test");
    }
    a->flags |= RN_PRODUCT_THEN_QUANT | RN_PRODUCT_THEN_NORM;
    memcpy(&a->rows2, &eps, sizeof eps);
    for (uint32_t i = 0; i < ROWS; i++) {
        then->norm[i] = 1 + rn_vk_try_random(t);
    }
    return 0;
}

static bool then_same(const struct product *p, const struct then *then, uint32_t token)
{
    const float *out = p->out + (size_t)token * p->ld;
    float weighed[THEN_GROUPS * RN_GROUP] = {0};
    double square = 0, mean = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        weighed[i] = out[i] * then->norm[i];
        square += (double)out[i] * (double)out[i] / ROWS;
    }
    for (uint32_t g = 0; g < THEN_GROUPS; g++) {
        mean += (double)then->d[rn_vk_acts_shares_at(THEN_GROUPS, token) + g];
    }
    const size_t group = (size_t)token * THEN_GROUPS;
    return rn_vk_try_quantised(weighed, then->q + group * RN_GROUP, then->d + 2 * group, THEN_GROUPS) &&
           fabs(mean - square - (double)EPS) <= 1e-5 * (square + (double)EPS);
}

/* The product again in the buckets of a mat-vec, not full where it need not be; now it prepares the input of the next one. Each bucket is a
 * pipeline, and software compiles for seconds what a GPU's driver does in an instant: it tries one of several tokens only. */
static int try_then(struct rn_vk_try *t, struct product *p)
{
    static const uint32_t tokens[][2] = {{1, 1}, {4, 3}, {2, 2}, {RN_VK_FEW_ROWS, MATVEC_TOKENS}};
    const size_t n_buckets = t->vk->device->is_cpu ? 2 : sizeof tokens / sizeof tokens[0];
    struct then then;
    int r = then_init(t, p, &then);
    r = r < 0 ? r : 1;
    for (size_t i = 0; i < n_buckets && r == 1; i++) {
        memset(then.q, 0, (size_t)p->n_tokens * THEN_GROUPS * RN_GROUP);
        memset(then.d, 0, rn_vk_acts_d_floats(THEN_GROUPS) * sizeof *then.d);
        r = run_tokens(t, p, tokens[i][0], tokens[i][1]);
        for (uint32_t token = 0; token < tokens[i][1] && r == 1; token++) {
            r = then_same(p, &then, token);
        }
    }
    return r;
}

/* One token through matvec, then some; eleven (not a whole tile) through matmat. */
int rn_vk_try_product(struct rn_vk_try *t, uint32_t cols)
{
    const bool many = t->kernel->op == RN_VK_MATMAT;
    struct product p = {.cols = cols, .n_tokens = many ? MATMAT_TOKENS : MATVEC_TOKENS};
    int r = product_init(t, &p);
    if (r == 0) {
        product_want(&p);
        r = many ? run_tokens(t, &p, 16, MATMAT_TOKENS) : run_tokens(t, &p, 1, 1);
        r = r == 1 && !many ? try_then(t, &p) : r;
    }
    product_finish(&p);
    return r;
}

/* ---- embedding ---------------------------------------------------------------------------------------------------------------------------------- */

int rn_vk_try_embed(struct rn_vk_try *t, uint32_t cols)
{
    struct matrix m;
    union rn_vk_args args = {0};
    struct rn_args_embed *a = &args.embed;
    const uint32_t ids[3] = {0, 17, ROWS - 1}, ld = (cols + 31) / 32 * 32;
    int r = matrix_init(&m, t, t->kernel->type, cols);
    *a = (struct rn_args_embed){.w = m.address, .cols = cols, .ld = ld, .scale = 1.5f};
    float *out = rn_vk_try_take(t, 3 * (size_t)ld * sizeof *out, &a->out);
    struct rn_vk_step *step = rn_vk_try_step(t, 3, &a->step);
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
