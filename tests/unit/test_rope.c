/* Positions stay exact however far out: scores of rotated float32 vectors against a float64 oracle that rotates by the difference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/engine.h"
#include "runtime/model/hparams.h"
#include "runtime/rope.h"
#include "runtime/tensor/program.h"

#define HALF 32

static double uniform(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(*s >> 11) * 0x1p-52 - 1;
}

static void rotate(const struct rn_rope *rope, uint64_t pos, const float *x, float *out)
{
    float cs[2 * HALF];
    rn_rope_angles(rope, pos, cs);
    for (int i = 0; i < HALF; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cs[2 * i], s = cs[2 * i + 1];
        out[2 * i] = fmaf(a, c, -(b * s));
        out[2 * i + 1] = fmaf(a, s, b * c);
    }
}

/* <R(delta) q, k> in float64: what the score of a query delta tokens after the key must be. */
static double oracle(const struct rn_hparams *hp, uint64_t delta, const float *q, const float *k)
{
    double sum = 0;
    for (int i = 0; i < HALF; i++) {
        double angle = (double)delta * pow((double)hp->rope_base, -(double)i / HALF), c = cos(angle), s = sin(angle);
        sum += (q[2 * i] * c - q[2 * i + 1] * s) * k[2 * i] + (q[2 * i] * s + q[2 * i + 1] * c) * k[2 * i + 1];
    }
    return sum;
}

static void scores_depend_on_the_distance_alone(void **state)
{
    (void)state;
    static const uint64_t starts[] = {4095, (1ull << 24) + 1 + 4095, (1ull << 33) + 4095, (1ull << 40) + 4095};
    static const float bases[] = {1e4f, 1e5f, 1e6f};
    uint64_t freq[HALF], rng = 7;
    for (size_t b = 0; b < 3; b++) {
        struct rn_hparams hp = {.rope_base = bases[b], .rope_factor = 1};
        struct rn_rope rope = {.n_rot = 2 * HALF, .interleaved = true, .mscale = 1, .freq = freq};
        assert_int_equal(rn_rope_setup(&rope, &hp, NULL, NULL), 0);
        for (int trial = 0; trial < 300; trial++) {
            float q[2 * HALF], k[2 * HALF], rq[2 * HALF], rk[2 * HALF];
            double nq = 0, nk = 0;
            for (int i = 0; i < 2 * HALF; i++) {
                q[i] = (float)uniform(&rng);
                k[i] = (float)uniform(&rng);
                nq += (double)q[i] * (double)q[i];
                nk += (double)k[i] * (double)k[i];
            }
            uint64_t delta = (uint64_t)((uniform(&rng) + 1) * 2047);
            for (size_t i = 0; i < 4; i++) {
                rotate(&rope, starts[i], q, rq);
                rotate(&rope, starts[i] - delta, k, rk);
                double score = 0;
                for (int j = 0; j < 2 * HALF; j++) {
                    score += (double)rq[j] * (double)rk[j];
                }
                assert_true(fabs(score - oracle(&hp, delta, q, k)) <= 2e-6 * sqrt(nq * nk));
            }
        }
    }
}

/* The mutation that float positions would be: position times frequency in float32 is far outside the bound at 2^24 + 1. */
static void float_positions_would_fail(void **state)
{
    (void)state;
    uint64_t freq[HALF];
    struct rn_hparams hp = {.rope_base = 1e4f, .rope_factor = 1};
    struct rn_rope rope = {.n_rot = 2 * HALF, .interleaved = true, .mscale = 1, .freq = freq};
    assert_int_equal(rn_rope_setup(&rope, &hp, NULL, NULL), 0);
    float cs[2 * HALF], worst = 0;
    rn_rope_angles(&rope, (1ull << 24) + 1, cs);
    for (int i = 0; i < HALF; i++) {
        float angle = (float)((1 << 24) + 1) * powf(1e4f, -(float)i / HALF);
        worst = fmaxf(worst, fabsf(cosf(angle) - cs[2 * i]));
    }
    assert_true(worst > 1e-2f);
}

static void divisors_divide_and_bad_ones_are_refused(void **state)
{
    (void)state;
    uint64_t plain[HALF], divided[HALF];
    float factors[HALF];
    for (int i = 0; i < HALF; i++) {
        factors[i] = i < 16 ? 1 : 8;
    }
    struct rn_hparams hp = {.rope_base = 5e5f, .rope_factor = 1};
    struct rn_tensor t = {.name = "rope_freqs.weight", .type = RN_DTYPE_F32, .cols = HALF, .rows = 1, .data = factors, .bytes = sizeof factors};
    struct rn_rope a = {.n_rot = 2 * HALF, .mscale = 1, .freq = plain}, b = {.n_rot = 2 * HALF, .mscale = 1, .freq = divided};
    assert_int_equal(rn_rope_setup(&a, &hp, NULL, NULL), 0);
    assert_int_equal(rn_rope_setup(&b, &hp, &t, NULL), 0);
    assert_true(plain[15] == divided[15]);
    assert_true(fabs((double)plain[20] / (double)divided[20] - 8) < 1e-9);
    struct rn_err err = {0};
    factors[3] = 0;
    assert_int_equal(rn_rope_setup(&b, &hp, &t, &err), -EINVAL);
    assert_non_null(strstr(err.text, "rope_freqs.weight"));
    strcpy(hp.rope_scaling, "longrope");
    assert_int_equal(rn_rope_setup(&a, &hp, NULL, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "longrope"));
}

/* What the user adds must be what a file would have declared, up to the rounding of 64-bit phases. */
static void user_scaling_is_the_files_scaling(void **state)
{
    (void)state;
    static const struct rn_rope_scaling cases[] = {{RN_ROPE_LINEAR, 2}, {RN_ROPE_LINEAR, 1.25f}, {RN_ROPE_YARN, 4}, {RN_ROPE_YARN, 1.5f}};
    uint64_t freq[HALF], declared[HALF], added[HALF];
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        struct rn_hparams hp = {.rope_base = 1e5f, .rope_factor = 1, .rope_ctx_original = 8192, .yarn_beta_fast = 32, .yarn_beta_slow = 1,
                                .yarn_attn_factor = 1};
        struct rn_rope plain = {.n_rot = 2 * HALF, .freq = freq}, file = {.n_rot = 2 * HALF, .freq = declared}, user = {.freq = added};
        assert_int_equal(rn_rope_setup(&plain, &hp, NULL, NULL), 0);
        strcpy(hp.rope_scaling, cases[k].kind == RN_ROPE_YARN ? "yarn" : "linear");
        hp.rope_factor = cases[k].factor;
        assert_int_equal(rn_rope_setup(&file, &hp, NULL, NULL), 0);
        rn_rope_extend(&user, &plain, &cases[k], hp.rope_base, 8192);
        assert_int_equal(user.n_rot, 2 * HALF);
        assert_true(user.mscale == file.mscale);
        bool differs = false;
        for (int i = 0; i < HALF; i++) {
            uint64_t d = added[i] > declared[i] ? added[i] - declared[i] : declared[i] - added[i];
            assert_true(d <= 4);
            differs = differs || added[i] != freq[i];
        }
        assert_true(differs);
        if (cases[k].kind == RN_ROPE_YARN) { // what turns often stays, what never turns is stretched
            assert_true(added[0] == freq[0]);
            assert_true(fabs((double)freq[HALF - 1] / (double)added[HALF - 1] - (double)cases[k].factor) < 1e-6);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_depend_on_the_distance_alone), cmocka_unit_test(float_positions_would_fail),
        cmocka_unit_test(divisors_divide_and_bad_ones_are_refused), cmocka_unit_test(user_scaling_is_the_files_scaling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
