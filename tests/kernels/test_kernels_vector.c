/* The rows of the vector kernels: plain C against a float64 reference, every other row against plain C bit for bit.
 *
 * Tolerances of plain C: norm 2e-6 relative (sum of n squares, root, two products), silu_mul 1e-6 relative (exp within 2 ulp), rope 2e-7 of
 * |a| + |b|. Lengths around multiples of 16, unaligned pointers, and guard cells that no row may touch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "runtime/cpu/flush_internal.h"
#include "runtime/tensor/fmath.h"
#include "tests/kernels/cpu_kit.h"

#define MAX_LEN 1600
#define GUARD 17

static const uint32_t lengths[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 576, 1000, 1536};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

static float x[MAX_LEN + 1], y[MAX_LEN + 1], want[MAX_LEN + GUARD + 1], got[MAX_LEN + GUARD + 1];

static float random_float(float scale)
{
    return ((float)(random_u32() >> 8) * 0x1p-23f - 1.0f) * scale;
}

enum shape { SHAPE_NORMAL, SHAPE_LARGE, SHAPE_TINY, SHAPE_OUTLIER, SHAPE_ZERO, SHAPE_DENORMAL, SHAPE_COUNT };

static void fill(float *a, uint32_t n, enum shape shape)
{
    static const float scales[SHAPE_COUNT] = {4.0f, 1e12f, 1e-12f, 0.01f, 0.0f, 1e-39f};
    for (uint32_t i = 0; i < n; i++) {
        a[i] = random_float(scales[shape]);
        if (shape == SHAPE_OUTLIER && i % 11 == 3) {
            a[i] = random_float(500.0f);
        }
    }
}

/* Same bits in [0, n), and nothing written beyond. */
static void same(const struct rn_cpu_row *r, uint32_t n, const float *a, const float *b)
{
    for (uint32_t i = 0; i < n + GUARD; i++) {
        if (memcmp(a + i, b + i, sizeof *a) != 0) {
            fail_msg("row %s, n %u: element %u is %a, expected %a", r->name, n, i, (double)b[i], (double)a[i]);
        }
    }
}

static void near(double expected, float have, double tolerance)
{
    if (!(fabs((double)have - expected) <= tolerance)) {
        fail_msg("%.9g, expected %.9g within %.3g", (double)have, expected, tolerance);
    }
}

static void guard(float *out)
{
    memset(out, 0xa5, (MAX_LEN + GUARD + 1) * sizeof *out);
}

static void norm_rows_agree(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < N_LENGTHS * SHAPE_COUNT * 2; t++) {
        uint32_t n = lengths[t / 2 % N_LENGTHS], off = t % 2;
        enum shape shape = (enum shape)(t / 2 / N_LENGTHS);
        float *xs = x + off, *ws = y + off, eps = t % 3 ? 1e-5f : 1e-6f;
        fill(xs, n, shape);
        fill(ws, n, SHAPE_NORMAL);
        guard(want);
        ((rn_norm_fn)row(RN_CPU_NORM, 0)->fn)(xs, ws, eps, n, want + off);
        double sum = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            sum += (double)xs[i] * (double)xs[i];
        }
        for (uint32_t i = 0; i < n; i++) {
            double expected = (double)xs[i] / sqrt(sum / n + (double)eps) * (double)ws[i];
            near(expected, want[off + i], 2e-6 * fabs(expected) + 1e-36);
        }
        for (size_t k = 1; row(RN_CPU_NORM, k); k++) {
            guard(got);
            ((rn_norm_fn)row(RN_CPU_NORM, k)->fn)(xs, ws, eps, n, got + off);
            same(row(RN_CPU_NORM, k), n, want + off, got + off);
        }
    }
}

static void add_rows_agree(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < N_LENGTHS * SHAPE_COUNT; t++) {
        uint32_t n = lengths[t % N_LENGTHS], off = t / N_LENGTHS % 2;
        fill(x, n, (enum shape)(t / N_LENGTHS));
        fill(y + off, n, SHAPE_OUTLIER);
        for (size_t k = 0; row(RN_CPU_ADD, k); k++) {
            float *out = k ? got : want;
            guard(out);
            memcpy(out + off, x, n * sizeof *x);
            ((rn_add_fn)row(RN_CPU_ADD, k)->fn)(out + off, y + off, n);
            same(row(RN_CPU_ADD, k), n, want + off, out + off);
        }
        for (uint32_t i = 0; i < n; i++) {
            near((double)x[i] + (double)y[off + i], want[off + i], 6e-8 * fabs((double)x[i] + (double)y[off + i]) + 2e-38);
        }
    }
}

/* exp is clamped at 88, so far below zero a gate is x / e^88 instead of zero: 1e-38 times |x|. */
static double silu_exact(double g)
{
    return g / (1.0 + exp(fmin(-g, 88.0)));
}

static double gelu_exact(double g)
{
    double u = 2.0 * 0.79788456080286535588 * (g + 0.044715 * g * g * g);
    return g / (1.0 + exp(fmin(-u, 88.0)));
}

static void gate_rows_agree_on(enum rn_cpu_op op, double (*exact)(double), double tolerance)
{
    static const float special[] = {0.0f, -0.0f, 87.0f, -87.0f, 87.01f, -87.01f, 88.0f, -88.0f, 88.5f, -88.5f,
                                    1e30f, -1e30f, 1e-30f, 0.5f, -17.3f};
    const uint32_t n_special = sizeof special / sizeof *special;
    for (uint32_t t = 0; t < N_LENGTHS * SHAPE_COUNT * 2; t++) {
        uint32_t n = lengths[t / 2 % N_LENGTHS], off = t % 2;
        fill(x + off, n, (enum shape)(t / 2 / N_LENGTHS));
        fill(y + off, n, SHAPE_NORMAL);
        for (uint32_t i = 0; i < n; i += 3) {
            x[off + i] = special[i / 3 % n_special];
        }
        guard(want);
        ((rn_gate_fn)row(op, 0)->fn)(x + off, y + off, want + off, n);
        for (uint32_t i = 0; i < n; i++) {
            double expected = exact((double)x[off + i]) * (double)y[off + i];
            near(expected, want[off + i], tolerance * fabs(expected) + 1e-37);
        }
        for (size_t k = 1; row(op, k); k++) {
            const struct rn_cpu_row *r = row(op, k);
            guard(got);
            ((rn_gate_fn)r->fn)(x + off, y + off, got + off, n);
            same(r, n, want + off, got + off);
            memcpy(got + off, x + off, n * sizeof *x);
            ((rn_gate_fn)r->fn)(got + off, y + off, got + off, n); // out is gate
            same(r, n, want + off, got + off);
            memcpy(got + off, y + off, n * sizeof *y);
            ((rn_gate_fn)r->fn)(x + off, got + off, got + off, n); // out is up
            same(r, n, want + off, got + off);
        }
    }
}

static void silu_rows_agree(void **state)
{
    (void)state;
    gate_rows_agree_on(RN_CPU_SILU_MUL, silu_exact, 1e-6);
}

/* u up to 88 in float32 is off by 88 * 2^-23, and so is its exponential, relatively. */
static void gelu_rows_agree(void **state)
{
    (void)state;
    gate_rows_agree_on(RN_CPU_GELU_MUL, gelu_exact, 3e-5);
}

static void rope_rows_agree_in_both_pairings(void **state)
{
    (void)state;
    static const uint32_t dims[][2] = {{64, 64}, {128, 128}, {80, 80}, {96, 96}, {16, 16}, {256, 256}, {64, 32},
                                      {80, 20}, {128, 64}, {96, 2}, {48, 34}, {64, 0}, {62, 62}};
    for (uint32_t t = 0; t < 4 * sizeof dims / sizeof *dims; t++) {
        uint32_t dim = dims[t / 4][0], n_rot = dims[t / 4][1], off = t % 2;
        bool interleaved = t / 2 % 2;
        float *cs = y + off;
        fill(x + off, dim, t % 3 ? SHAPE_NORMAL : SHAPE_OUTLIER);
        for (uint32_t i = 0; i < n_rot / 2; i++) {
            rn_sincos_phase((int32_t)(2654435761u * (i + 1) + t), &cs[2 * i], &cs[2 * i + 1]);
        }
        guard(want);
        ((rn_rope_fn)row(RN_CPU_ROPE, 0)->fn)(x + off, cs, dim, n_rot, interleaved, want + off);
        for (uint32_t i = 0; i < n_rot / 2; i++) {
            uint32_t ia = interleaved ? 2 * i : i, ib = interleaved ? 2 * i + 1 : i + n_rot / 2;
            double a = (double)x[off + ia], b = (double)x[off + ib], c = (double)cs[2 * i], s = (double)cs[2 * i + 1];
            near(a * c - b * s, want[off + ia], 2e-7 * (fabs(a) + fabs(b)));
            near(a * s + b * c, want[off + ib], 2e-7 * (fabs(a) + fabs(b)));
        }
        assert_memory_equal(x + off + n_rot, want + off + n_rot, (dim - n_rot) * sizeof *x);
        for (size_t k = 1; row(RN_CPU_ROPE, k); k++) {
            guard(got);
            ((rn_rope_fn)row(RN_CPU_ROPE, k)->fn)(x + off, cs, dim, n_rot, interleaved, got + off);
            same(row(RN_CPU_ROPE, k), dim, want + off, got + off);
        }
    }
}

int main(void)
{
    (void)rn_flush_denormals(); // as in the pool's threads
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_rows_agree),
        cmocka_unit_test(add_rows_agree),
        cmocka_unit_test(silu_rows_agree),
        cmocka_unit_test(gelu_rows_agree),
        cmocka_unit_test(rope_rows_agree_in_both_pairings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
