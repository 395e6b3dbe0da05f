/* The self-test of RoPE, the store of keys and values, and attention, with the heads of the model: two rows, one in the pinned zone and one
 * in the window, and a tile whose rows see different ranges of a pinned and a window chunk. Every other cell holds NaN. */
#include "runtime/vulkan/selftest_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/quant.h"

#define N_TOKENS 40   // of the pinned page and of the window page that a row may see
#define MAX_DIM 512

/* ---- cells: the layout that vulkan_internal.h tells ------------------------------------------------------------------------------------------- */

struct part { // K or V of one head in a page
    uint8_t *data;
    bool q8, key;
    uint32_t head_dim;
};

static struct part part_at(uint8_t *page, const struct rn_program *p, bool q8, uint32_t kv_head, bool key)
{
    size_t bytes = rn_kv_part_bytes(q8, p->head_dim);
    return (struct part){.data = page + (2 * (size_t)kv_head + !key) * bytes, .q8 = q8, .key = key, .head_dim = p->head_dim};
}

/* Byte offset of dimension d of a token. */
static size_t value_at(const struct part *p, uint32_t slot, uint32_t d)
{
    const uint32_t unit = p->q8 ? 16 : 8, size = p->q8 ? 1 : 2;
    return p->key ? ((size_t)d / unit * RN_PAGE_TOKENS + slot) * 16 + d % unit * size : ((size_t)slot * p->head_dim + d) * size;
}

static size_t scale_at(const struct part *p, uint32_t slot, uint32_t group)
{
    size_t index = p->key ? (size_t)group * RN_PAGE_TOKENS + slot : (size_t)slot * (p->head_dim / 32) + group;
    return (size_t)RN_PAGE_TOKENS * p->head_dim + 2 * index;
}

static double cell_value(const struct part *p, uint32_t slot, uint32_t d)
{
    uint16_t h;
    if (!p->q8) {
        memcpy(&h, p->data + value_at(p, slot, d), sizeof h);
        return (double)rn_f16_to_f32(h);
    }
    memcpy(&h, p->data + scale_at(p, slot, d / 32), sizeof h);
    return (double)rn_f16_to_f32(h) * (int8_t)p->data[value_at(p, slot, d)];
}

static void put_cell(const struct part *p, uint32_t slot, const float *x)
{
    for (uint32_t d = 0; d < p->head_dim && !p->q8; d++) {
        uint16_t h = rn_f32_to_f16(x[d]);
        memcpy(p->data + value_at(p, slot, d), &h, sizeof h);
    }
    for (uint32_t g = 0; p->q8 && g < p->head_dim / 32; g++) {
        int8_t q[RN_GROUP];
        uint16_t d16 = rn_quant_kv(x + g * RN_GROUP, q);
        memcpy(p->data + scale_at(p, slot, g), &d16, sizeof d16);
        for (uint32_t i = 0; i < RN_GROUP; i++) {
            p->data[value_at(p, slot, g * RN_GROUP + i)] = (uint8_t)q[i];
        }
    }
}

static uint8_t *take_page(struct rn_vk_try *t, bool q8, VkDeviceAddress *ret)
{
    const struct rn_program *p = t->vk->program;
    size_t bytes = 2 * (size_t)p->n_kv_heads * rn_kv_part_bytes(q8, p->head_dim);
    uint8_t *page = rn_vk_try_take(t, bytes, ret);
    for (size_t i = 0; page && i < bytes; i += 2) {
        memcpy(page + i, &(uint16_t){i % 4 ? 0x7e00 : 0x7bff}, 2); // NaN, 65504
    }
    return page;
}

/* ---- RoPE and the store -------------------------------------------------------------------------------------------------------------------------- */

struct rope_try {
    const struct rn_program *p;
    union rn_vk_args args;
    float *q, *k, *v, *q_window, *q_pinned, *angles, *norms[2];
    uint8_t *pages[2];
    uint32_t n_rot, stride;
    bool interleaved, q8;
};

/* x rotated, into want [head_dim]. */
static void turn(const struct rope_try *r, const float *x, const float *angles, const float *norm, double *want)
{
    const uint32_t n = r->p->head_dim, half = r->n_rot / 2;
    double sum = 0, y[MAX_DIM];
    for (uint32_t d = 0; d < n; d++) {
        sum += (double)x[d] * (double)x[d];
    }
    for (uint32_t d = 0; d < n; d++) {
        y[d] = norm ? (double)x[d] / sqrt(sum / n + (double)r->args.rope_kv.eps) * (double)norm[d] : (double)x[d];
        want[d] = y[d];
    }
    for (uint32_t i = 0; i < half; i++) {
        uint32_t a = r->interleaved ? 2 * i : i, b = r->interleaved ? 2 * i + 1 : i + half;
        double co = (double)angles[2 * i], si = (double)angles[2 * i + 1];
        want[a] = y[a] * co - y[b] * si;
        want[b] = y[a] * si + y[b] * co;
    }
}

static bool rope_take(struct rn_vk_try *t, struct rope_try *r)
{
    const struct rn_program *p = r->p;
    struct rn_args_rope_kv *a = &r->args.rope_kv;
    const size_t q = 2 * (size_t)a->ld_q * sizeof(float), k = 2 * (size_t)a->ld_k * sizeof(float);
    VkDeviceAddress page_at[2];
    r->q = rn_vk_try_take(t, q, &a->q);
    r->k = rn_vk_try_take(t, k, &a->k);
    r->v = rn_vk_try_take(t, k, &a->v);
    r->q_window = rn_vk_try_take(t, q, &a->q_window);
    r->q_pinned = rn_vk_try_take(t, q, &a->q_pinned);
    r->angles = rn_vk_try_take(t, 4 * (size_t)(r->stride + 1) * sizeof(float), &a->angles);
    r->norms[0] = rn_vk_try_take(t, MAX_DIM * sizeof(float), &a->norm_q);
    r->norms[1] = rn_vk_try_take(t, MAX_DIM * sizeof(float), &a->norm_k);
    struct rn_vk_cell *cells = rn_vk_try_take(t, 2 * sizeof *cells, &a->cells);
    struct rn_vk_step *step = rn_vk_try_take(t, sizeof *step, &a->step);
    r->pages[0] = take_page(t, false, &page_at[0]);
    r->pages[1] = take_page(t, r->q8, &page_at[1]);
    if (!r->q || !r->k || !r->v || !r->q_window || !r->q_pinned || !r->angles || !r->norms[0] || !r->norms[1] || !cells || !step ||
        !r->pages[0] || !r->pages[1]) {
        return false;
    }
    step->n_rows = 2;
    cells[0] = (struct rn_vk_cell){.page = page_at[0], .slot = 3, .pinned = 1};
    cells[1] = (struct rn_vk_cell){.page = page_at[1], .slot = 61, .pinned = 0};
    for (uint32_t row = 0; row < 2; row++) {
        for (uint32_t i = 0; i < a->ld_q; i++) {
            r->q[row * a->ld_q + i] = 2 * rn_vk_try_random(t);
        }
        for (uint32_t i = 0; i < a->ld_k; i++) {
            r->k[row * a->ld_k + i] = 2 * rn_vk_try_random(t);
            r->v[row * a->ld_k + i] = 2 * rn_vk_try_random(t);
        }
        for (uint32_t i = 0; i < r->stride; i += 2) {
            for (uint32_t zone = 0; zone < 2; zone++) {
                float angle = 3 * rn_vk_try_random(t), *to = r->angles + (row * 2 + zone) * r->stride + i;
                to[0] = cosf(angle);
                to[1] = sinf(angle);
            }
        }
    }
    for (uint32_t d = 0; d < p->head_dim; d++) {
        r->norms[0][d] = 1 + rn_vk_try_random(t);
        r->norms[1][d] = 1 + rn_vk_try_random(t);
    }
    return true;
}

/* A cell holds x: exactly but for its own rounding. */
static bool stored_well(const struct part *part, uint32_t slot, const double *x)
{
    for (uint32_t g = 0; g < part->head_dim; g += 16) { // half a group of q8_0: the whole group's largest is at least as large
        double amax = 0;
        uint32_t from = part->q8 ? g / 32 * 32 : g, to = part->q8 ? from + 32 : g + 16;
        for (uint32_t d = from; d < to; d++) {
            amax = fabs(x[d]) > amax ? fabs(x[d]) : amax;
        }
        for (uint32_t d = g; d < g + 16; d++) {
            double bound = part->q8 ? amax * 0.51 / 127 : amax * 0x1p-11 * 1.01;
            if (!(fabs(cell_value(part, slot, d) - x[d]) <= bound + 1e-6 * amax)) {
                return false;
            }
        }
    }
    return true;
}

static bool rope_right(const struct rope_try *r, float tolerance)
{
    const struct rn_program *p = r->p;
    const struct rn_args_rope_kv *a = &r->args.rope_kv;
    const bool norms = a->flags & RN_ROPE_NORMS;
    double want[MAX_DIM], values[MAX_DIM];
    for (uint32_t row = 0; row < 2; row++) {
        const float *angles = r->angles + (size_t)row * 2 * r->stride;
        for (uint32_t h = 0; h < p->n_heads; h++) {
            size_t at = (size_t)row * a->ld_q + (size_t)h * p->head_dim;
            turn(r, r->q + at, angles, norms ? r->norms[0] : NULL, want);
            bool same = rn_vk_try_same(r->q_pinned + at, want, p->head_dim, tolerance);
            turn(r, r->q + at, angles + r->stride, norms ? r->norms[0] : NULL, want);
            if (!same || !rn_vk_try_same(r->q_window + at, want, p->head_dim, tolerance)) {
                return false;
            }
        }
        for (uint32_t h = 0; h < p->n_kv_heads; h++) {
            size_t at = (size_t)row * a->ld_k + (size_t)h * p->head_dim;
            uint32_t slot = row == 0 ? 3 : 61;
            struct part k = part_at(r->pages[row], p, row == 1 && r->q8, h, true), v = part_at(r->pages[row], p, row == 1 && r->q8, h, false);
            turn(r, r->k + at, angles + r->stride, norms ? r->norms[1] : NULL, want);
            for (uint32_t d = 0; d < p->head_dim; d++) {
                values[d] = (double)r->v[at + d];
            }
            if (!stored_well(&k, slot, want) || !stored_well(&v, slot, values)) {
                return false;
            }
        }
    }
    return true;
}

int rn_vk_try_rope_kv(struct rn_vk_try *t)
{
    const struct rn_program *p = t->vk->program;
    const struct rn_rope *rope = &p->ropes[0];
    bool norms = false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        norms |= p->ops[i].kind == RN_OP_ROPE_KV && p->ops[i].n_parts > 0;
    }
    struct rope_try r = {.p = p, .n_rot = rope->n_rot, .stride = rope->n_rot, .interleaved = rope->interleaved, .q8 = t->vk->kv == RN_KV_Q8_0};
    r.args.rope_kv = (struct rn_args_rope_kv){
        .heads = p->n_heads | p->n_kv_heads << 16, .dims = p->head_dim | rope->n_rot << 16, .ld_q = (p->n_heads * p->head_dim + 31) / 32 * 32,
        .ld_k = (p->n_kv_heads * p->head_dim + 31) / 32 * 32, .angle_row = 2 * r.stride, .angle_zone = r.stride, .eps = 1e-6f,
        .flags = (r.interleaved ? RN_ROPE_INTERLEAVED : 0) | (norms ? RN_ROPE_NORMS : 0) | (r.q8 ? RN_ROPE_Q8 : 0)};
    if (!rope_take(t, &r)) {
        return rn_err_nomem(t->err, t->memory.bytes, "the self-test");
    }
    int ret = rn_vk_try_run(t, t->kernel, &r.args, 2, NULL);
    return ret < 0 ? ret : rope_right(&r, 4 * t->kernel->tolerance);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------------------------- */

struct attend_try {
    const struct rn_program *p;
    union rn_vk_args args;
    float *q_window, *q_pinned, *out, *partial;
    uint8_t *pages[2]; // pinned, window
    struct rn_vk_chunk *chunks;
    uint32_t n_rows;
    bool q8;
};

static bool attend_take(struct rn_vk_try *t, struct attend_try *r)
{
    const struct rn_program *p = r->p;
    struct rn_args_attend *a = &r->args.attend;
    VkDeviceAddress page_at[2];
    size_t n = (size_t)r->n_rows * a->ld_q * sizeof(float);
    r->q_window = rn_vk_try_take(t, n, &a->q_window);
    r->q_pinned = rn_vk_try_take(t, n, &a->q_pinned);
    r->out = rn_vk_try_take(t, n, &a->out);
    r->partial = rn_vk_try_take(t, 2 * (size_t)r->n_rows * p->n_heads * (p->head_dim + 2) * sizeof(float), &a->partial);
    struct rn_vk_tile *tile = rn_vk_try_take(t, sizeof *tile, &a->tiles);
    r->chunks = rn_vk_try_take(t, 2 * sizeof *r->chunks, &a->chunks);
    struct rn_vk_step *step = rn_vk_try_take(t, sizeof *step, &a->step);
    r->pages[0] = take_page(t, false, &page_at[0]);
    r->pages[1] = take_page(t, r->q8, &page_at[1]);
    if (!r->q_window || !r->q_pinned || !r->out || !r->partial || !tile || !r->chunks || !step || !r->pages[0] || !r->pages[1]) {
        return false;
    }
    step->n_rows = r->n_rows;
    *tile = (struct rn_vk_tile){.n_rows = r->n_rows, .n_chunks = 2};
    for (uint32_t c = 0; c < 2; c++) { // row i sees tokens i .. of the window, and the pinned ones up to a place of its own
        r->chunks[c] = (struct rn_vk_chunk){.pages = {page_at[c]}, .pinned = c == 0};
        for (uint32_t i = 0; i < r->n_rows; i++) {
            r->chunks[c].span[i] = c == 0 ? (N_TOKENS - 2 * i) << 16 : (2 + i) | N_TOKENS << 16;
        }
    }
    for (uint32_t i = 0; i < r->n_rows * a->ld_q; i++) {
        r->q_window[i] = 2 * rn_vk_try_random(t);
        r->q_pinned[i] = 2 * rn_vk_try_random(t);
    }
    for (uint32_t i = 0; i < 2 * p->n_kv_heads * 2 * N_TOKENS; i++) {
        float x[MAX_DIM];
        uint32_t slot = i / 2 % N_TOKENS, head = i / 2 / N_TOKENS % p->n_kv_heads, zone = i / 2 / N_TOKENS / p->n_kv_heads;
        struct part part = part_at(r->pages[zone], p, zone == 1 && r->q8, head, i % 2);
        for (uint32_t d = 0; d < p->head_dim; d++) {
            x[d] = 2 * rn_vk_try_random(t);
        }
        if (zone == 0 || slot >= 2) { // the rest stays NaN
            put_cell(&part, slot, x);
        }
    }
    return true;
}

/* q of one head as the scores use it. */
static void score_query(const struct attend_try *r, bool window, const float *q, double *ret)
{
    for (uint32_t g = 0; g < r->p->head_dim; g += 16) {
        int8_t code[RN_GROUP];
        int32_t sum;
        bool q8 = window && r->q8;
        float d = q8 ? rn_quant_act(q + g / 32 * 32, code, &sum) : 0;
        for (uint32_t i = 0; i < 16; i++) {
            ret[g + i] = q8 ? (double)d * code[g % 32 + i] : (double)q[g + i];
        }
    }
}

/* Attention of one row and head, by the definition. */
static void attend_want(const struct attend_try *r, uint32_t row, uint32_t head, double *want)
{
    const struct rn_program *p = r->p;
    const uint32_t kv = head / (p->n_heads / p->n_kv_heads);
    double score[2][N_TOKENS], q[MAX_DIM], top = -INFINITY, l = 0;
    for (uint32_t pass = 0; pass < 2; pass++) { // scores, then sums
        for (uint32_t zone = 0; zone < 2; zone++) {
            const float *from = (zone ? r->q_window : r->q_pinned) + (size_t)row * r->args.attend.ld_q + (size_t)head * p->head_dim;
            struct part k = part_at(r->pages[zone], p, zone && r->q8, kv, true), v = part_at(r->pages[zone], p, zone && r->q8, kv, false);
            uint32_t span = r->chunks[zone].span[row];
            score_query(r, zone, from, q);
            for (uint32_t j = span & 0xffff; j < span >> 16; j++) {
                double sum = 0, weight = pass ? exp(score[zone][j] - top) : 0;
                for (uint32_t d = 0; d < p->head_dim; d++) {
                    sum += pass ? 0 : q[d] * cell_value(&k, j, d);
                    want[d] = (pass ? want[d] : 0) + (pass ? weight * cell_value(&v, j, d) : 0);
                }
                score[zone][j] = pass ? score[zone][j] : sum * (double)p->attn_scale;
                top = score[zone][j] > top ? score[zone][j] : top;
                l += weight;
            }
        }
    }
    for (uint32_t d = 0; d < p->head_dim; d++) {
        want[d] /= l;
    }
}

static bool attend_right(const struct attend_try *r, float tolerance)
{
    double want[MAX_DIM];
    for (uint32_t row = 0; row < r->n_rows; row++) {
        for (uint32_t head = 0; head < r->p->n_heads; head++) {
            attend_want(r, row, head, want);
            if (!rn_vk_try_same(r->out + (size_t)row * r->args.attend.ld_out + (size_t)head * r->p->head_dim, want, r->p->head_dim, tolerance)) {
                return false;
            }
        }
    }
    return true;
}

/* One mode: few rows are split and combined, many are looped. */
static int attend_mode(struct rn_vk_try *t, const struct rn_vk_kernel *attend, const struct rn_vk_kernel *combine, uint32_t n_rows, bool split)
{
    const struct rn_program *p = t->vk->program;
    struct attend_try r = {.p = p, .n_rows = n_rows, .q8 = t->vk->kv == RN_KV_Q8_0};
    const uint32_t ld = (p->n_heads * p->head_dim + 31) / 32 * 32, slices = rn_vk_head_slices(p);
    r.args.attend = (struct rn_args_attend){.heads = p->n_heads | p->n_kv_heads << 16, .head_dim = p->head_dim, .ld_q = ld, .ld_out = ld,
                                            .flags = (r.q8 ? RN_ATTEND_Q8 : 0) | (split ? RN_ATTEND_SPLIT : 0), .scale = p->attn_scale};
    t->used = 0;
    if (!attend_take(t, &r)) {
        return rn_err_nomem(t->err, t->memory.bytes, "the self-test");
    }
    const struct rn_args_attend *a = &r.args.attend;
    union rn_vk_args sum = {.combine = {.tiles = a->tiles, .partial = a->partial, .out = a->out, .step = a->step, .n_heads = p->n_heads,
                                        .head_dim = p->head_dim, .ld_out = ld}};
    int8_t *q = rn_vk_try_take(t, ld, &sum.combine.q);
    float *d = rn_vk_try_take(t, ld / 4, &sum.combine.d);
    const bool quantises = split && p->head_dim % 32 == 0;
    sum.combine.flags = quantises ? RN_COMBINE_QUANT : 0;
    if (!q || !d) {
        return rn_err_nomem(t->err, t->memory.bytes, "the self-test");
    }
    const uint32_t groups[3] = {split ? 2 : 1, p->n_kv_heads, slices}, combine_groups[3] = {1, p->n_heads, 1};
    int ret = rn_vk_try_run(t, attend, &r.args, split ? 1 : RN_STEP_ROWS, groups);
    ret = ret < 0 || !split ? ret : rn_vk_try_run(t, combine, &sum, 1, combine_groups);
    if (ret < 0) {
        return ret;
    }
    return attend_right(&r, 4 * attend->tolerance) && (!quantises || rn_vk_try_quantised(r.out, q, d, ld / 32));
}

int rn_vk_try_attend(struct rn_vk_try *t)
{
    return attend_mode(t, t->kernel, /*combine=*/NULL, rn_vk_tile_rows(t->vk->program), /*split=*/false);
}

int rn_vk_try_combine(struct rn_vk_try *t)
{
    const struct rn_vk_kernel *attend = rn_vk_kernel_find(t->vk->device, RN_VK_ATTEND, RN_VK_ANY_TYPE);
    return attend_mode(t, attend, t->kernel, 1, /*split=*/true);
}
