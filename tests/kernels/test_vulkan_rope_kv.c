/* rope_kv, and copies and poison of pages, on a Vulkan device, against plain references made from the contract.
 *
 * Tolerances: rotation 4e-6 of the largest element; f16 cells one unit in the last place, q8_0 cells one step. A software device divides
 * exactly: there v cells are exact. Whatever no cell of the step is stays as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "tests/gpu/gpu_kit.h"
#include "tests/kernels/vulkan_scene.h"

/* ---- rope_kv ----------------------------------------------------------------------------------------------------------------------------- */

struct rope_case {
    uint32_t n_rot;
    bool interleaved, norms;
    float eps;
    float *q, *k, *v, *angles, *norm_q, *norm_k, *q_window, *q_pinned;
    uint32_t angle_row, angle_at, angle_zone;
    uint8_t *before;               /* all pages */
};

static float *random_floats(size_t n, float size)
{
    float *x = scene_take(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = scene_normal() * size;
    }
    return x;
}

static void rope_case_init(struct rope_case *c, bool interleaved, bool norms)
{
    uint32_t n = scene.step.n_rows, hd = scene.m.p.head_dim;
    *c = (struct rope_case){.interleaved = interleaved, .norms = norms, .eps = 1e-5f};
    c->n_rot = scene_below(3) ? hd : 2 * scene_below(hd / 2 + 1);
    c->q = random_floats((size_t)n * scene.m.ld_q, 1.0f);
    c->k = random_floats((size_t)n * scene.m.ld_k, 1.0f);
    c->v = random_floats((size_t)n * scene.m.ld_k, 1.0f);
    static const float shapes_of_v[] = {1.0f, 1e-3f, 1e-6f, 1e-9f, 0.0f, 3e4f, 1e6f};
    for (size_t i = 0; i < (size_t)n * scene.m.ld_k; i++) { // groups of all sizes: normal, subnormal, zero, beyond f16; rounding halves
        uint32_t shape = (uint32_t)(i / 32) % 9;
        c->v[i] = shape < 7 ? c->v[i] * shapes_of_v[shape] : (float)((int)scene_below(255) - 127) * (shape == 7 ? 0.5f : 0x1.004p0f);
    }
    c->norm_q = random_floats(hd, 1.0f);
    c->norm_k = random_floats(hd, 1.0f);
    c->angle_at = 2 * scene_below(3);
    c->angle_zone = c->n_rot + 2;
    c->angle_row = 2 * c->angle_zone + 8;
    c->angles = scene_take((size_t)n * c->angle_row * sizeof(float));
    for (uint32_t i = 0; i + 1 < n * c->angle_row; i += 2) {
        float angle = scene_normal() * 3.0f;
        c->angles[i] = cosf(angle);
        c->angles[i + 1] = sinf(angle);
    }
    c->q_window = memset(scene_take((size_t)n * scene.m.ld_q * sizeof(float)), 0xff, (size_t)n * scene.m.ld_q * sizeof(float));
    c->q_pinned = memset(scene_take((size_t)n * scene.m.ld_q * sizeof(float)), 0xff, (size_t)n * scene.m.ld_q * sizeof(float));
}

static void run_rope(const struct rope_case *c, uint32_t bucket)
{
    const struct rn_program *p = &scene.m.p;
    size_t mark = scene_used;
    struct rn_vk_tables t = scene_tables(&scene.step);
    struct rn_vk_step *step = scene_take(sizeof *step);
    *step = (struct rn_vk_step){.n_rows = scene.step.n_rows};
    struct rn_args_rope_kv a = {
        .q = scene_address(c->q), .k = scene_address(c->k), .v = scene_address(c->v), .q_window = scene_address(c->q_window), .q_pinned = scene_address(c->q_pinned),
        .angles = scene_address(c->angles), .cells = scene_address(t.cells), .norm_q = scene_address(c->norm_q), .norm_k = scene_address(c->norm_k), .step = scene_address(step),
        .heads = p->n_heads | p->n_kv_heads << 16, .dims = p->head_dim | c->n_rot << 16, .ld_q = scene.m.ld_q, .ld_k = scene.m.ld_k,
        .flags = (c->interleaved ? RN_ROPE_INTERLEAVED : 0) | (c->norms ? RN_ROPE_NORMS : 0) | (scene.m.q8 ? RN_ROPE_Q8 : 0),
        .angle_row = c->angle_row, .angle_at = c->angle_at, .angle_zone = c->angle_zone, .at_pinned = scene_layer_at(&scene.m, true),
        .at_window = scene_layer_at(&scene.m, false), .eps = c->eps};
    const struct scene_dispatch d = {scene_kernel(RN_VK_ROPE_KV, 0), &a, sizeof a, 0, bucket, (p->n_heads + 2 * p->n_kv_heads + 1) / 2, 1, NULL};
    scene_run(&d, 1);
    scene_used = mark;
}

/* Norm and rotation in double. Returns the largest element. */
static double reference_head(double *ret, const struct rope_case *c, const float *x, const float *norm, uint32_t row, uint32_t zone)
{
    uint32_t hd = scene.m.p.head_dim;
    double in[SCENE_MAX_DIM], sum = 0, most = 0;
    for (uint32_t d = 0; d < hd; d++) {
        sum += (double)x[d] * (double)x[d];
    }
    for (uint32_t d = 0; d < hd; d++) {
        in[d] = (double)x[d] * (c->norms ? (double)norm[d] / sqrt(sum / hd + (double)c->eps) : 1.0);
        most = fmax(most, fabs(in[d]));
        ret[d] = in[d];
    }
    const float *cs = c->angles + (size_t)row * c->angle_row + c->angle_at + zone * c->angle_zone;
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        uint32_t a = c->interleaved ? 2 * i : i, b = c->interleaved ? 2 * i + 1 : i + c->n_rot / 2;
        ret[a] = in[a] * (double)cs[2 * i] - in[b] * (double)cs[2 * i + 1];
        ret[b] = in[a] * (double)cs[2 * i + 1] + in[b] * (double)cs[2 * i];
    }
    return most;
}

static void check_queries(const struct rope_case *c)
{
    double want[SCENE_MAX_DIM];
    for (uint32_t row = 0; row < scene.step.n_rows; row++) {
        for (uint32_t h = 0; h < scene.m.p.n_heads; h++) {
            size_t at = (size_t)row * scene.m.ld_q + (size_t)h * scene.m.p.head_dim;
            for (uint32_t zone = 0; zone < 2; zone++) {
                const float *got = (zone ? c->q_window : c->q_pinned) + at;
                double most = reference_head(want, c, c->q + at, c->norm_q, row, zone);
                for (uint32_t d = 0; d < scene.m.p.head_dim; d++) {
                    if (!(fabs((double)got[d] - want[d]) <= 4e-6 * most)) {
                        fail_msg("q zone %u, row %u, head %u, element %u: %.9g, expected %.9g", zone, row, h, d, (double)got[d], want[d]);
                    }
                }
            }
        }
    }
}

/* Takes the cell (of a page before the run) as the plain C of the contract writes it. */
static void check_cell(const struct rope_case *c, const struct scene_cell *got, uint32_t row, uint32_t kv_head)
{
    double want[SCENE_MAX_DIM];
    float k[SCENE_MAX_DIM], exact_v[SCENE_MAX_DIM];
    size_t at = (size_t)row * scene.m.ld_k + (size_t)kv_head * scene.m.p.head_dim;
    reference_head(want, c, c->k + at, c->norm_k, row, 1);
    for (uint32_t d = 0; d < got->head_dim; d++) {
        k[d] = (float)want[d];
        exact_v[d] = c->v[at + d];
    }
    static uint8_t parts[2][64 * SCENE_MAX_DIM * 2];
    struct scene_cell plain = *got;
    plain.k = parts[0];
    plain.v = parts[1];
    scene_put_cell(&plain, k, exact_v);
    for (uint32_t d = 0; d < got->head_dim; d++) {
        for (int of_v = 0; of_v < 2; of_v++) {
            double step, other, a = scene_element(got, of_v, d, &other), b = scene_element(&plain, of_v, d, &step);
            bool same = a == b || (isnan(a) && isnan(b)); // beyond the largest scale of f16 q8_0 is no number
            if (!(of_v && scene_device->is_cpu ? same : same || fabs(a - b) <= 1.01 * fmax(step, other) + 1e-6 * fabs(b))) {
                fail_msg("%s, head_dim %u, row %u, %c of head %u, element %u: %.9g, expected %.9g", got->q8 ? "q8_0" : "f16", got->head_dim, row,
                         of_v ? 'v' : 'k', kv_head, d, a, b);
            }
        }
    }
}

static uint8_t *all_pages(size_t *ret_bytes, size_t from)
{
    *ret_bytes = scene_used - from;
    return (uint8_t *)scene_memory.mapped + from;
}

static void check_rope(uint32_t head_dim, uint32_t group, bool q8, uint32_t n_rows, bool interleaved, bool norms)
{
    scene_init(head_dim, group, 1 + scene_below(3), q8, 0);
    scene_add_view(1 + n_rows / 2, scene_below(2) ? 60 : 2, 1 + scene_below(90), 0, 0);
    if (n_rows / 2 + 1 < n_rows) {
        scene_add_view(n_rows - n_rows / 2 - 1, 255 + scene_below(3), 0, 0, 3);
    }
    size_t bytes;
    uint8_t *pages = all_pages(&bytes, 0), *before = rn_mem_alloc(bytes, 1);
    assert_non_null(before);
    memcpy(before, pages, bytes);
    struct rope_case c;
    rope_case_init(&c, interleaved, norms);
    run_rope(&c, n_rows + scene_below(4)); // surplus rows of the bucket do nothing
    check_queries(&c);
    for (uint32_t row = 0; row < scene.step.n_rows; row++) {
        const struct rn_step_row *r = &scene.rows[row];
        bool pinned = r->t < scene.pages[r->view].n_pinned;
        uint64_t at = pinned ? r->t : r->t - scene.pages[r->view].n_pinned;
        for (uint32_t h = 0; h < scene.m.p.n_kv_heads; h++) {
            struct scene_cell got = scene_cell(&scene.m, scene_page(r->view, pinned, at), pinned, h, at % 64), was = got;
            check_cell(&c, &got, row, h);
            was.k = before + (got.k - pages);
            was.v = before + (got.v - pages);
            scene_poison_cell(&got, 0); // what is left must be as it was
            scene_poison_cell(&was, 0);
        }
    }
    assert_memory_equal(pages, before, bytes);
    rn_mem_free(before);
}

static const struct {
    uint32_t head_dim, group;
} shapes[] = {{64, 3}, {80, 4}, {96, 7}, {128, 1}, {256, 4}, {512, 16}, {16, 20}, {320, 2}};

static void heads_turn_and_cells_are_written(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (uint32_t variant = 0; variant < 8; variant++) {
            if (!(variant & 1) || shapes[i].head_dim % 32 == 0) {
                check_rope(shapes[i].head_dim, shapes[i].group, variant & 1, 1 + scene_below(17), variant & 2, variant & 4);
            }
        }
    }
}

/* ---- pages -------------------------------------------------------------------------------------------------------------------------------- */

static void a_page_copies_its_first_tokens(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 7, 16, 63, 64};
    for (uint32_t i = 0; i < 2 * sizeof counts / sizeof counts[0]; i++) {
        uint32_t n = counts[i / 2];
        bool q8 = i % 2;
        scene_init(96, 2, 2, q8, 0);
        scene_add_view(1, 255, 0, 0, 0);
        scene_fill(false);
        struct rn_err err = {0};
        size_t bytes = rn_kv_parts_bytes(q8, &scene.m.p, 0);
        uint8_t *from = scene_page(0, false, 0), *to = scene_page(0, false, 64), *was = rn_mem_alloc(bytes, 1);
        assert_non_null(was);
        memcpy(was, to, bytes);
        size_t from_at = (size_t)(from - (uint8_t *)scene_memory.mapped), to_at = (size_t)(to - (uint8_t *)scene_memory.mapped);
        assert_int_equal(rn_vk_page_copy(scene_device, &scene.m.p, 0, q8, &scene_memory, to_at, &scene_memory, from_at, n, &err), 0);
        for (uint32_t slot = 0; slot < 64; slot++) {
            for (uint32_t h = 0; h < scene.m.p.n_kv_heads; h++) {
                struct scene_cell a = scene_cell(&scene.m, to, false, h, slot), b = scene_cell(&scene.m, slot < n ? from : was, false, h, slot);
                for (uint32_t d = 0; d < 2 * 96; d++) {
                    double step;
                    assert_true(scene_element(&a, d >= 96, d % 96, &step) == scene_element(&b, d >= 96, d % 96, &step));
                }
            }
        }
        assert_int_equal(rn_vk_page_poison(scene_device, &scene_memory, to_at, bytes, &err), 0);
        for (size_t k = 0; k < bytes; k += 2) {
            assert_int_equal(scene_get16(to + k), k % 4 ? 0x7bff : 0x7e00);
        }
        rn_mem_free(was);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_turn_and_cells_are_written),
        cmocka_unit_test(a_page_copies_its_first_tokens),
    };
    return gpu_kit_run_group_tests(tests, scene_setup, scene_teardown);
}
