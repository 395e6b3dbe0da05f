/* attend and combine on a Vulkan device, against plain references made from the contract (runtime/vulkan/vulkan_internal.h has the
 * layout of cells, runtime/cpu/kernels.h the sums).
 *
 * Bit for bit: split mode and loop mode; a row alone and among others; every kernel of an operation; buckets of any size. All cells that a row
 * does not see hold NaN or 65504, also those that its neighbours see.
 * Tolerances: attention as for the CPU's plain C (scores to 2e-6 of their terms, exp and sums 3e-5 in all). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "runtime/tensor/quant.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/kernels/vulkan_scene.h"

static uint32_t lonely; /* the row whose cells stay */

static void poison_others(const struct scene_cell *c, uint32_t view, bool pinned, uint64_t at)
{
    if (view != scene.rows[lonely].view || !scene_sees(lonely, pinned, at)) {
        scene_poison_cell(c, at % 2 ? 0x7e00 : at % 3 ? 0xfc00 : 0x7bff);
    }
}

/* Rows [row0, row0 + n) of the scene as a step of their own; out [n][ld_q]. */
static void attend(float *out, const struct rn_vk_kernel *k, uint32_t row0, uint32_t n, bool split, uint32_t bucket)
{
    size_t mark = scene_used;
    struct rn_step step = scene.step;
    step.rows += row0;
    step.n_rows = n;
    struct rn_vk_tables t = scene_tables(&step);
    const struct rn_program *p = &scene.m.p;
    size_t partial_bytes = (size_t)(t.n_partials ? t.n_partials : 1) * p->n_heads * (p->head_dim + 2) * sizeof(float), out_bytes = (size_t)n * scene.m.ld_q * sizeof(float);
    float *partial = memset(scene_take(partial_bytes), 0xff, partial_bytes), *to = memset(scene_take(out_bytes), 0xff, out_bytes);
    struct rn_args_attend a = {
        .q_window = scene_address(scene.q[1] + (size_t)row0 * scene.m.ld_q), .q_pinned = scene_address(scene.q[0] + (size_t)row0 * scene.m.ld_q), .tiles = scene_address(t.tiles),
        .chunks = scene_address(t.chunks), .partial = scene_address(partial), .out = scene_address(to), .heads = p->n_heads | p->n_kv_heads << 16,
        .head_dim = p->head_dim, .ld_q = scene.m.ld_q, .ld_out = scene.m.ld_q, .at_pinned = scene_layer_at(&scene.m, true), .at_window = scene_layer_at(&scene.m, false),
        .scale = p->attn_scale,
        .flags = (scene.m.q8 ? RN_ATTEND_Q8 : 0) | (split ? RN_ATTEND_SPLIT : 0) | (scene.sinks ? RN_ATTEND_SINKS : 0)};
    struct rn_args_combine c = {.tiles = a.tiles, .partial = a.partial, .out = a.out, .n_heads = p->n_heads, .head_dim = p->head_dim, .ld_out = scene.m.ld_q,
                                .flags = a.flags};
    a.sinks = c.sinks = scene.sinks ? scene_address(scene.sinks) : 0;
    uint32_t specs[RN_VK_ATTEND_SPECS];
    rn_vk_attend_specs(specs, p, bucket, a.flags);
    const struct scene_dispatch list[2] = {
        {k, &a, sizeof a, RN_VK_ATTEND_SPECS, split ? t.n_chunks : t.n_tiles, p->n_kv_heads, rn_vk_head_slices(p), specs},
        {scene_kernel(RN_VK_COMBINE, 0), &c, sizeof c, 0, t.n_tiles, p->n_heads, 1, NULL}};
    scene_run(list, split ? 2 : 1);
    memcpy(out, to, out_bytes);
    scene_used = mark;
}

/* ---- attention by the contract ------------------------------------------------------------------------------------------------------------- */

struct seen {
    struct scene_cell cell;
    bool pinned;
    double score;
};

static void effective_query(double *ret, const float *q, uint32_t head_dim, bool q8)
{
    for (uint32_t d = 0; d < head_dim; d++) {
        ret[d] = (double)q[d];
    }
    for (uint32_t g = 0; q8 && g < head_dim / RN_GROUP; g++) {
        int8_t quant[RN_GROUP];
        int32_t sum;
        double scale = (double)rn_quant_act(q + g * RN_GROUP, quant, &sum);
        for (uint32_t d = 0; d < RN_GROUP; d++) {
            ret[g * RN_GROUP + d] = scale * quant[d];
        }
    }
}

static uint32_t seen_cells(struct seen *ret, uint32_t row, uint32_t kv_head)
{
    const struct rn_step_row *r = &scene.rows[row];
    uint32_t n = 0;
    for (uint64_t j = 0; j <= r->t; j++) {
        bool pinned = j < scene.pages[r->view].n_pinned;
        uint64_t at = pinned ? j : j - scene.pages[r->view].n_pinned;
        if (scene_sees(row, pinned, at)) {
            ret[n++] = (struct seen){.cell = scene_cell(&scene.m, scene_page(r->view, pinned, at), pinned, kv_head, at % 64), .pinned = pinned};
        }
    }
    return n;
}

/* One query; bound: of each result. */
static void check_query(const float *out, uint32_t row, uint32_t head)
{
    static struct seen list[SCENE_MAX_PAGES * 128];
    const struct rn_program *p = &scene.m.p;
    uint32_t n = seen_cells(list, row, head / (p->n_heads / p->n_kv_heads));
    double q[2][SCENE_MAX_DIM], step, m = scene.sinks ? (double)scene.sinks[head] : -INFINITY, error = 0, l = 0;
    for (int zone = 0; zone < 2; zone++) {
        effective_query(q[zone], scene.q[zone] + (size_t)row * scene.m.ld_q + (size_t)head * p->head_dim, p->head_dim, zone == 1 && scene.m.q8);
    }
    for (uint32_t i = 0; i < n; i++) {
        double size = 0;
        for (uint32_t d = 0; d < p->head_dim; d++) {
            double term = q[!list[i].pinned][d] * scene_element(&list[i].cell, false, d, &step) * (double)p->attn_scale;
            list[i].score += term;
            size += fabs(term);
        }
        m = fmax(m, list[i].score);
        error = fmax(error, 2e-6 * size);
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i].score = exp(list[i].score - m);
        l += list[i].score;
    }
    l += scene.sinks ? exp((double)scene.sinks[head] - m) : 0;
    double tolerance = expm1(4.0 * error) + 3e-5;
    for (uint32_t d = 0; d < p->head_dim; d++) {
        double sum = 0, size = 0;
        for (uint32_t i = 0; i < n; i++) {
            double term = list[i].score / l * scene_element(&list[i].cell, true, d, &step);
            sum += term;
            size += fabs(term);
        }
        if (!(fabs((double)out[d] - sum) <= tolerance * size + 1e-30)) {
            fail_msg("head_dim %u, %s, row %u (t %llu), head %u, element %u: %.9g, expected %.9g within %.3g", p->head_dim, scene.m.q8 ? "q8_0" : "f16", row,
                     (unsigned long long)scene.rows[row].t, head, d, (double)out[d], sum, tolerance * size);
        }
    }
}

static void same_rows(const char *what, const struct rn_vk_kernel *k, const float *a, const float *b, uint32_t n)
{
    for (uint32_t row = 0; row < n; row++) {
        for (uint32_t i = 0; i < scene.m.p.n_heads * scene.m.p.head_dim; i++) {
            size_t at = (size_t)row * scene.m.ld_q + i;
            if (memcmp(&a[at], &b[at], sizeof *a) != 0) {
                fail_msg("%s, %s: head_dim %u, group of %u, %s, row %u, head %u, element %u: %a and %a", k->name, what, scene.m.p.head_dim,
                         scene.m.p.n_heads / scene.m.p.n_kv_heads, scene.m.q8 ? "q8_0" : "f16", row, i / scene.m.p.head_dim, i % scene.m.p.head_dim, (double)a[at],
                         (double)b[at]);
            }
        }
    }
}

static float results[3][SCENE_MAX_ROWS * 33 * SCENE_MAX_DIM];

/* All modes, kernels and companies of the scene's rows. Poisons it in the end. */
static void check_scene(void)
{
    uint32_t n = scene.step.n_rows;
    const struct rn_vk_kernel *first = scene_kernel(RN_VK_ATTEND, 0), *k;
    assert_non_null(first);
    assert_true((size_t)n * scene.m.ld_q <= sizeof results[0] / sizeof **results);
    attend(results[0], first, 0, n, true, 16);
    for (uint32_t row = 0; row < n; row++) {
        for (uint32_t h = 0; h < scene.m.p.n_heads; h++) {
            check_query(results[0] + (size_t)row * scene.m.ld_q + (size_t)h * scene.m.p.head_dim, row, h);
        }
    }
    for (uint32_t i = 0; (k = scene_kernel(RN_VK_ATTEND, i)) && (i == 0 || scene.m.q8); i++) { // they differ in the dot product of q8_0 only
        attend(results[1], k, 0, n, false, 16);
        same_rows("split and loop", k, results[0], results[1], n);
    }
    uint32_t from = scene_below(n), some = 1 + scene_below(n - from); // a step of some of the rows: other tiles
    attend(results[1], first, from, some, true, 16);
    same_rows("other tiles", first, results[0] + (size_t)from * scene.m.ld_q, results[1], some);
    lonely = scene_below(n);
    scene_for_cells(poison_others);
    for (int split = 0; split < 2; split++) {
        attend(results[1], first, lonely, 1, split, scene.m.p.head_dim == 64 ? 1 : 16); // a bucket's own pipeline costs a second on a CPU
        same_rows("alone", first, results[0] + (size_t)lonely * scene.m.ld_q, results[1], 1);
    }
}

static const struct {
    uint32_t head_dim, group;
    bool full;                     /* only with --full: a CPU compiles a pipeline in half a second */
} shapes[] = {{64, 3, false}, {80, 4, false}, {128, 1, false}, {512, 16, false}, {96, 7, true}, {256, 4, true}, {16, 20, true}, {320, 2, true}};

static bool full;

/* Three sequences, with and without a pinned zone, at and around borders of chunks. */
static void scene_of_many(uint32_t head_dim, uint32_t group, bool q8, uint32_t n_rows)
{
    static const uint16_t ends[] = {0, 1, 62, 63, 64, 65, 254, 255, 256, 257, 300, 511, 512, 513, 600};
    const uint32_t n_ends = sizeof ends / sizeof *ends;
    scene_init(head_dim, group, 1 + scene_below(2), q8, 0);
    uint32_t left = n_rows;
    for (uint32_t v = 0; v < SCENE_MAX_VIEWS && left > 0; v++) {
        uint32_t n = v + 1 == SCENE_MAX_VIEWS ? left : 1 + scene_below(left);
        uint64_t pinned = v == 1 ? 0 : 1 + scene_below(v == 0 ? 70 : 300), t = ends[scene_below(n_ends)] + (scene_below(4) ? pinned : 0);
        scene_add_view(n, t, pinned, pinned + (scene_below(2) && t > pinned ? scene_below((uint32_t)(t - pinned)) : 0), scene_below(3) ? 0 : 90);
        left -= n;
    }
    scene_fill(scene_below(3) == 0);
}

static void attention_is_right_and_pure(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int q8 = 0; q8 < 2; q8++) {
            if ((q8 && shapes[i].head_dim % 32) || (shapes[i].full && !full)) {
                continue;
            }
            for (uint32_t round = 0; round < 2; round++) {
                scene_of_many(shapes[i].head_dim, shapes[i].group, q8, round == 0 ? 1 + scene_below(17) : 3);
                check_scene();
            }
        }
    }
}

static void every_number_of_rows(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 17; n++) {
        scene_init(64, 3, 1, n % 2, 0);
        scene_add_view(n, 250, 5, 7, 0); // across the first border of a chunk
        scene_fill(n % 3 == 0);
        check_scene();
    }
}

static void sliding_windows(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 16, 64, 200, 256, 257, 400};
    for (uint32_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        scene_init(64, 3, 2, i % 2, windows[i]);
        scene_add_view(7, 3, 0, 0, 0);
        scene_add_view(6, 250 + 40 * i, 0, 0, i % 2 ? 120 : 0);
        scene_fill(false);
        check_scene();
    }
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "--full") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_right_and_pure),
        cmocka_unit_test(every_number_of_rows),
        cmocka_unit_test(sliding_windows),
    };
    return gpu_kit_run_group_tests(tests, scene_setup, scene_teardown);
}
