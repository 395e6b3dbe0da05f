/* Element types, elementary functions, quantisation and programs, against independent arithmetic in double or exact integers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/kv.h"
#include "runtime/tensor/program.h"
#include "runtime/tensor/quant.h"
#include "runtime/tensor/sight.h"

static const double pi = 3.14159265358979323846;

static uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

// A half by its definition, in double.
static double half_value(uint32_t h)
{
    int exp = (h >> 10) & 31;
    double man = h & 0x3ff, v = exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return h & 0x8000 ? -v : v;
}

static void every_half_converts_both_ways(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = rn_f16_to_f32((uint16_t)h);
        uint32_t man = h & 0x3ff;
        if ((h & 0x7c00) != 0x7c00) {
            assert_true((double)f == half_value(h));
            assert_int_equal(signbit(f) != 0, h >> 15);
            assert_int_equal(rn_f32_to_f16(f), h);
        } else if (man == 0) {
            assert_true(isinf(f) && (signbit(f) != 0) == (h >> 15));
            assert_int_equal(rn_f32_to_f16(f), h);
        } else {
            assert_true(isnan(f));
            assert_int_equal(float_bits(f), (h >> 15) << 31 | 0x7fc00000 | man << 13);
            assert_int_equal(rn_f32_to_f16(f), h | 0x200);
        }
    }
}

static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) { // between h and its upper neighbour; 0x7c00 stands for 65536
        float low = (float)half_value(h), high = h == 0x7bff ? 65536.0f : (float)half_value(h + 1);
        float middle = (low + high) / 2; // exact: 12 bits
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(rn_f32_to_f16(middle), even);
        assert_int_equal(rn_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(rn_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(rn_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(rn_f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(rn_f32_to_f16(-1e-45f), 0x8000);
    float signalling;
    memcpy(&signalling, &(uint32_t){0x7f800001}, sizeof signalling);
    assert_int_equal(rn_f32_to_f16(signalling), 0x7e00);
}

static void types_have_their_numbers(void **state)
{
    (void)state;
    static const struct {
        uint32_t id;
        const char *name;
    } expected[] = {{0, "F32"}, {1, "F16"}, {2, "Q4_0"}, {8, "Q8_0"}, {10, "Q2_K"}, {14, "Q6_K"}, {20, "IQ4_NL"}, {23, "IQ4_XS"},
                    {24, "I8"}, {29, "IQ1_M"}, {30, "BF16"}, {34, "TQ1_0"}, {39, "MXFP4"}, {42, "Q2_0"}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_string_equal(rn_dtype_find(expected[i].id)->name, expected[i].name);
    }
    for (uint32_t id = 0; id <= 42; id++) {
        const struct rn_dtype_info *info = rn_dtype_find(id);
        assert_non_null(info);
        assert_int_equal(info->id, id);
        assert_int_equal(info->block_len != 0, info->block_bytes != 0);
        assert_true(!info->dequant || info->block_len);
    }
    assert_null(rn_dtype_find(43));
    assert_null(rn_dtype_find(UINT32_MAX));
    assert_non_null(rn_dtype_find(RN_DTYPE_Q4_1)->dequant);
}

// tests/data/dequant.bin: see make_dequant.py.
static void blocks_dequantise_as_the_format_says(void **state)
{
    (void)state;
    char path[512];
    const char *dir = getenv("RUNNEL_TEST_DATA");
    assert_non_null(dir);
    snprintf(path, sizeof path, "%s/dequant.bin", dir);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint32_t head[4], n_checked = 0;
    while (fread(head, sizeof head, 1, f) == 1) {
        const struct rn_dtype_info *info = rn_dtype_find(head[0]);
        assert_non_null(info);
        assert_int_equal(info->block_bytes * head[1], head[2]);
        assert_int_equal(info->block_len * head[1], head[3]);
        uint8_t *raw = malloc(head[2] + 1);
        float *expected = malloc(4 * (size_t)head[3]), *got = malloc(4 * (size_t)head[3]);
        assert_true(raw && expected && got);
        assert_int_equal(fread(raw + 1, 1, head[2], f), head[2]); // + 1: blocks have no alignment
        assert_int_equal(fread(expected, 4, head[3], f), head[3]);
        if (info->dequant) {
            info->dequant(raw + 1, got, head[1]);
            for (uint32_t i = 0; i < head[3]; i++) {
                if (float_bits(got[i]) != float_bits(expected[i])) {
                    fail_msg("%s element %u: %.9g, expected %.9g", info->name, i, (double)got[i], (double)expected[i]);
                }
            }
            n_checked++;
        }
        free(raw);
        free(expected);
        free(got);
    }
    fclose(f);
    assert_int_equal(n_checked, 13);
}

static void exp_is_within_one_ulp(void **state)
{
    (void)state;
    double worst = 0;
    for (float x = RN_EXP_MIN; x <= RN_EXP_MAX; x += 0.000371f) {
        double exact = exp((double)x);
        float got = rn_expf(x);
        double ulp = (double)nextafterf((float)exact, INFINITY) - (double)(float)exact;
        worst = fmax(worst, fabs((double)got - exact) / ulp);
    }
    if (worst > 1) {
        fail_msg("worst error %.3f ulp", worst);
    }
    assert_true(rn_expf(0.0f) == 1.0f && rn_expf(-0.0f) == 1.0f && rn_expf(1e-30f) == 1.0f);
    assert_true(rn_expf(-87.1f) == 0.0f && rn_expf(-INFINITY) == 0.0f);
    assert_true(rn_expf(INFINITY) == rn_expf(RN_EXP_MAX) && isfinite(rn_expf(1e30f)));
    assert_true(isnan(rn_expf(NAN)));
}

static void silu_is_near_the_exact_one(void **state)
{
    (void)state;
    for (float x = -80.0f; x < 80.0f; x += 0.00317f) {
        double exact = (double)x / (1.0 + exp(-(double)x));
        assert_true(fabs((double)rn_siluf(x) - exact) <= 5e-7 * fabs(exact));
    }
    assert_true(rn_siluf(0.0f) == 0.0f && rn_siluf(1000.0f) == 1000.0f && fabsf(rn_siluf(-1000.0f)) < 1e-30f);
}

static void sincos_is_the_nearest_float(void **state)
{
    (void)state;
    double worst = 0;
    float c, s;
    for (uint64_t p = 0; p < UINT64_C(1) << 32; p += 4093) {
        int32_t phase = (int32_t)(uint32_t)p;
        double angle = 2 * pi * (double)phase / 4294967296.0;
        rn_sincos_phase(phase, &c, &s);
        worst = fmax(worst, fmax(fabs((double)c - cos(angle)), fabs((double)s - sin(angle))));
    }
    if (worst > 4e-8) {
        fail_msg("worst error %.3g", worst);
    }
    static const struct {
        int32_t phase;
        float c, s;
    } quarters[] = {{0, 1, 0}, {1 << 30, 0, 1}, {INT32_MIN, -1, 0}, {-(1 << 30), 0, -1}};
    for (int i = 0; i < 4; i++) {
        rn_sincos_phase(quarters[i].phase, &c, &s);
        assert_true(c == quarters[i].c && s == quarters[i].s);
    }
    rn_sincos_phase(INT32_MAX, &c, &s);
    assert_true(c == -1.0f && s > 0 && s < 2e-9f);
}

static void lanes_add_in_the_fixed_order(void **state)
{
    (void)state;
    // Values of very different size, so that any other order gives other bits.
    float a[37], b[37], lane[16] = {0};
    uint32_t seed = 7;
    for (int i = 0; i < 37; i++) {
        seed = seed * 1664525 + 1013904223;
        a[i] = ldexpf((float)(int32_t)seed, (int)(seed >> 8 & 15) - 40);
        seed = seed * 1664525 + 1013904223;
        b[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    for (int i = 0; i < 37; i++) {
        lane[i & 15] = fmaf(a[i], b[i], lane[i & 15]);
    }
    float e[8], f[4];
    for (int i = 0; i < 8; i++) {
        e[i] = lane[i] + lane[i + 8];
    }
    for (int i = 0; i < 4; i++) {
        f[i] = e[i] + e[i + 4];
    }
    float expected = (f[0] + f[2]) + (f[1] + f[3]);
    assert_int_equal(float_bits(rn_lane_dot(a, b, 37)), float_bits(expected));
    assert_int_equal(float_bits(rn_lane_sum(lane)), float_bits(expected));
    assert_true(rn_lane_dot(a, b, 0) == 0.0f);
}

static void activations_quantise_by_the_contract(void **state)
{
    (void)state;
    float x[RN_GROUP] = {0};
    int8_t q[RN_GROUP];
    int32_t sum;
    x[0] = -127.0f;
    x[1] = 0.5f;
    x[2] = 1.5f;
    x[3] = -2.5f;
    x[4] = 126.49f;
    assert_true(rn_quant_act(x, q, &sum) == 1.0f);
    assert_int_equal(q[0], -127);
    assert_int_equal(q[1], 0); // ties to even
    assert_int_equal(q[2], 2);
    assert_int_equal(q[3], -2);
    assert_int_equal(q[4], 126);
    assert_int_equal(sum, -127 + 0 + 2 - 2 + 126);

    memset(x, 0, sizeof x);
    x[31] = 0x1p-100f;
    assert_true(rn_quant_act(x, q, &sum) == 0x1p-100f / 127.0f);
    assert_int_equal(q[31], 127);
    x[31] = nextafterf(0x1p-100f, 0);
    memset(q, 1, sizeof q);
    sum = 5;
    assert_true(rn_quant_act(x, q, &sum) == 0.0f);
    assert_int_equal(q[31], 0);
    assert_int_equal(q[0], 0);
    assert_int_equal(sum, 0);
}

static void keys_and_values_quantise_with_the_rounded_scale(void **state)
{
    (void)state;
    float x[RN_GROUP];
    int8_t q[RN_GROUP];
    uint32_t seed = 3;
    for (int round = 0; round < 2000; round++) {
        float scale = ldexpf(1.0f, round % 40 - 24), amax = 0;
        for (int i = 0; i < RN_GROUP; i++) {
            seed = seed * 1664525 + 1013904223;
            x[i] = (float)(int32_t)seed * 0x1p-31f * scale;
            amax = fmaxf(amax, fabsf(x[i]));
        }
        uint16_t d16 = rn_quant_kv(x, q);
        assert_int_equal(d16, rn_f32_to_f16(amax / 127));
        float d = rn_f16_to_f32(d16);
        for (int i = 0; i < RN_GROUP; i++) {
            double v = d16 ? nearbyint((double)(x[i] / d)) : 0;
            assert_int_equal(q[i], v > 127 ? 127 : v < -127 ? -127 : (int)v);
        }
    }
    memset(x, 0, sizeof x);
    assert_int_equal(rn_quant_kv(x, q), 0);
    x[5] = 1e-8f; // the scale rounds to zero
    q[5] = 9;
    assert_int_equal(rn_quant_kv(x, q), 0);
    assert_int_equal(q[5], 0);
    x[5] = -3e38f; // the scale overflows: finite quants all the same
    x[6] = 3e38f;
    assert_int_equal(rn_quant_kv(x, q), 0x7c00);
    assert_int_equal(q[5], 0);
}

// A program of one layer over weights that have shapes only.
struct tiny {
    struct rn_program *p;
    struct rn_tensor embd, norm, q, k, v, o, gate, up, down, q_bias;
};

static struct rn_tensor shape(const char *name, uint32_t cols, uint32_t rows)
{
    return (struct rn_tensor){.name = name, .type = RN_DTYPE_F32, .cols = cols, .rows = rows, .data = "", .bytes = (size_t)cols * rows * 4};
}

static int build_tiny(struct tiny *t, struct rn_err *err)
{
    int e = rn_program_create(&t->p, 2, 16, err);
    if (e) {
        return e;
    }
    struct rn_program *p = t->p;
    p->n_heads = 4, p->n_kv_heads = 2, p->head_dim = 16, p->d_model = 32, p->d_ff = 96, p->n_vocab = 100;
    const uint32_t widths[RN_VAL_COUNT] = {32, 32, 64, 32, 32, 64, 96};
    memcpy(p->width, widths, sizeof widths);
    t->embd = shape("token_embd.weight", 32, 100);
    t->norm = shape("norm", 32, 1);
    t->q = shape("q", 32, 64);
    t->k = shape("k", 32, 32);
    t->v = shape("v", 32, 32);
    t->o = shape("o", 64, 32);
    t->gate = shape("gate", 32, 96);
    t->up = shape("up", 32, 96);
    t->down = shape("down", 96, 32);
    t->q_bias = shape("q.bias", 64, 1);
    const struct rn_op ops[] = {
        {.kind = RN_OP_EMBED, .out = RN_VAL_X, .n_parts = 1, .parts = {{&t->embd}}, .scale = 1},
        {.kind = RN_OP_NORM, .in = RN_VAL_X, .out = RN_VAL_H, .n_parts = 1, .parts = {{&t->norm}}, .eps = 1e-5f},
        {.kind = RN_OP_MATMUL, .in = RN_VAL_H, .n_parts = 3,
         .parts = {{&t->q, &t->q_bias, RN_VAL_Q}, {&t->k, NULL, RN_VAL_K}, {&t->v, NULL, RN_VAL_V}}},
        {.kind = RN_OP_ROPE_KV, .layer = 1},
        {.kind = RN_OP_ATTENTION, .layer = 1},
        {.kind = RN_OP_MATMUL, .in = RN_VAL_A, .n_parts = 1, .parts = {{&t->o, NULL, RN_VAL_X}}, .accumulate = true},
        {.kind = RN_OP_GATED, .in = RN_VAL_H, .out = RN_VAL_F, .n_parts = 2, .parts = {{&t->gate}, {&t->up}}},
        {.kind = RN_OP_MATMUL, .in = RN_VAL_F, .n_parts = 1, .parts = {{&t->down, NULL, RN_VAL_X}}, .accumulate = true},
        {.kind = RN_OP_LOGITS, .in = RN_VAL_H, .n_parts = 1, .parts = {{&t->embd}}},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops && !e; i++) {
        e = rn_program_add(p, &ops[i], err);
    }
    return e;
}

static void programs_start_with_one_global_group(void **state)
{
    (void)state;
    struct rn_program *p = NULL;
    assert_int_equal(rn_program_create(&p, 3, 8, NULL), 0);
    assert_int_equal(p->n_groups, 1);
    assert_int_equal(p->groups[0].n_layers, 3);
    assert_int_equal(p->groups[0].window, 0);
    assert_int_equal(p->layer_slot[2], 2);
    assert_int_equal(p->layer_group[2], 0);
    assert_int_equal(p->n_ropes, 1);
    assert_int_equal(p->ropes[0].n_rot, 8);
    assert_int_equal(p->ropes[0].freq[3], 0);
    struct rn_op op = {.kind = RN_OP_NORM};
    for (uint32_t i = 0; i < 1000; i++) {
        op.layer = i;
        assert_int_equal(rn_program_add(p, &op, NULL), 0);
    }
    assert_int_equal(p->n_ops, 1000);
    assert_int_equal(p->ops[999].layer, 999);
    rn_program_destroy(p);
    rn_program_destroy(NULL);
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct tiny t = {0};
        struct rn_err err = {0};
        rn_mem_fail_at(n);
        int e = build_tiny(&t, &err);
        rn_mem_fail_at(0);
        rn_program_destroy(t.p);
        if (e == 0) {
            assert_true(n > 6);
            return;
        }
        assert_int_equal(e, -ENOMEM);
        assert_non_null(strstr(err.text, "out of memory"));
    }
}

static void expect_refused(struct tiny *t, const char *text)
{
    struct rn_err err = {0};
    assert_int_equal(rn_program_check(t->p, &err), -EINVAL);
    assert_string_equal(err.text, text);
    assert_int_equal(rn_program_check(t->p, NULL), -EINVAL);
    rn_program_destroy(t->p);
    *t = (struct tiny){0};
    assert_int_equal(build_tiny(t, NULL), 0);
}

static void programs_with_wrong_shapes_are_refused(void **state)
{
    (void)state;
    struct tiny t = {0};
    struct rn_err err = {0};
    assert_int_equal(build_tiny(&t, NULL), 0);
    if (rn_program_check(t.p, &err)) {
        fail_msg("%s", err.text);
    }
    t.embd.rows = 99;
    expect_refused(&t, "operation 0 (embed): tensor 'token_embd.weight': shape 32 x 99, expected 32 x 100");
    t.norm.cols = 33;
    expect_refused(&t, "operation 1 (norm): tensor 'norm': shape 33 x 1, expected 32 x 1");
    t.norm.type = RN_DTYPE_F16;
    t.norm.bytes /= 2;
    expect_refused(&t, "operation 1 (norm): tensor 'norm': type F16, expected F32");
    t.k.rows = 64;
    expect_refused(&t, "operation 2 (matmul): tensor 'k': shape 32 x 64, expected 32 x 32");
    t.q_bias.cols = 32;
    expect_refused(&t, "operation 2 (matmul): tensor 'q.bias': shape 32 x 1, expected 64 x 1");
    t.q.bytes--;
    expect_refused(&t, "operation 2 (matmul): tensor 'q': 8191 bytes, expected 64 rows of 128");
    t.q.type = (enum rn_dtype)15;
    expect_refused(&t, "operation 2 (matmul): tensor 'q': type Q8_K cannot be loaded");
    t.p->ops[2].n_parts = 4;
    expect_refused(&t, "operation 2 (matmul): 4 weights, expected 1 to 3");
    t.p->ops[3].layer = 2;
    expect_refused(&t, "operation 3 (rope_kv): layer 2, expected 0 to 1");
    t.p->width[RN_VAL_A] = 32;
    expect_refused(&t, "operation 4 (attention): the attention output is 32 wide, expected 64");
    t.up.rows = 64;
    expect_refused(&t, "operation 6 (gated): tensor 'up': shape 32 x 64, expected 32 x 96");
    t.p->ops[6].n_parts = 1;
    expect_refused(&t, "operation 6 (gated): 1 weights, expected 2 to 2");
    t.p->ops[8].parts[0].weight = NULL;
    expect_refused(&t, "operation 8 (logits): a weight is missing, expected 32 x 100");
    t.p->ops[8].kind = RN_OP_COUNT;
    expect_refused(&t, "operation 8 (?): no such kind of operation");
    t.p->ropes[0].n_rot = 18;
    expect_refused(&t, "rope 0 rotates 18 dimensions, expected an even number up to 16");
    t.p->layer_group[1] = 1;
    expect_refused(&t, "layer 1: group 1, slot 1, rope 0 are not all there");
    t.p->n_kv_heads = 3;
    expect_refused(&t, "2 layers, 4 heads, 3 kv heads of 16 dimensions, 100 tokens: all must be at least 1, and heads a multiple of "
                       "kv heads");
    rn_program_destroy(t.p);
}

/* ---- KV and what a row sees ------------------------------------------------------------------------------------------------------------ */

static void heads_suit_a_type_by_its_unit(void **state)
{
    (void)state;
    static const struct {
        uint32_t head_dim;
        bool f16, q8_0;
    } cases[] = {{0, false, false}, {16, true, false}, {24, false, false}, {32, true, true}, {48, true, false}, {512, true, true}, {544, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(rn_kv_suits(RN_KV_F16, cases[i].head_dim), cases[i].f16);
        assert_int_equal(rn_kv_suits(RN_KV_Q8_0, cases[i].head_dim), cases[i].q8_0);
    }
    struct rn_err err = {0};
    struct rn_layer_group group = {.n_layers = 3};
    struct rn_program p = {.head_dim = 48, .n_kv_heads = 2, .groups = &group};
    assert_int_equal(rn_kv_check(RN_KV_Q8_0, &p, &err), -ENOTSUP);
    assert_string_equal(err.text, "heads of 48 dimensions cannot be kept as q8_0 KV, which needs a multiple of 32 up to 512");
    assert_int_equal(rn_kv_check(RN_KV_F16, &p, &err), 0);
    assert_int_equal(rn_kv_parts_bytes(false, &p, 0), 3 * 2 * 2 * 64 * 48 * 2);
}

static void a_row_sees_the_pinned_stream_and_its_window(void **state)
{
    (void)state;
    struct rn_layer_group groups[] = {{.window = 0}, {.window = 100}};
    const struct rn_program p = {.n_groups = 2, .groups = groups};
    void *pinned[] = {&groups[0]}, *window[] = {&groups[0], &groups[1]};
    // Group 0: 40 tokens pinned, pages of the window from 40 + 64 * 3 on. Group 1 has all in the window.
    const struct rn_step_pages pages[] = {{.n_pinned = 40, .pinned = pinned, .window = window, .first_page = 3}, {.window = window, .first_page = 4}};
    const struct rn_step_view view = {.first = 230, .groups = pages};
    const struct rn_step step = {.n_views = 1, .views = &view};
    static const struct {
        uint64_t t, base;
        uint32_t group;
        struct rn_range pinned, window;
    } cases[] = {
        {9, 40, 0, {0, 10}, {0, 0}},       {39, 40, 0, {0, 40}, {0, 0}},   {40, 40, 0, {0, 40}, {0, 1}}, {300, 240, 0, {0, 40}, {200, 261}},
        {50, 50, 1, {0, 0}, {0, 51}},      {150, 40, 1, {0, 0}, {51, 151}}, // pinned, of a sequence that was read again from 230 on
        {300, 40, 1, {0, 0}, {230, 301}},  {329, 40, 1, {0, 0}, {230, 330}}, {330, 40, 1, {0, 0}, {231, 331}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct rn_step_row row = {.t = cases[i].t, .base = cases[i].base};
        struct rn_sight sight = rn_row_sight(&p, cases[i].group, &step, &row);
        assert_int_equal(sight.pinned.from, cases[i].pinned.from);
        assert_int_equal(sight.pinned.to, cases[i].pinned.to);
        assert_int_equal(sight.window.from, cases[i].window.from);
        assert_int_equal(sight.window.to, cases[i].window.to);
    }
    struct rn_place place = rn_row_place(&step, 0, &(struct rn_step_row){.t = 39});
    assert_true(place.pinned && place.page == pinned[0] && place.slot == 39);
    place = rn_row_place(&step, 0, &(struct rn_step_row){.t = 40 + 64 * 4 + 5});
    assert_true(!place.pinned && place.page == window[1] && place.slot == 5);
}

static void a_chunk_has_a_part_of_a_range(void **state)
{
    (void)state;
    static const struct {
        struct rn_range range;
        uint64_t chunk;
        struct rn_range part;
    } cases[] = {{{0, 0}, 0, {0, 0}},     {{10, 20}, 0, {10, 20}}, {{10, 20}, 1, {0, 0}},     {{200, 600}, 0, {200, 256}},
                 {{200, 600}, 1, {0, 256}}, {{200, 600}, 2, {0, 88}}, {{300, 301}, 0, {256, 256}}, {{256, 512}, 1, {0, 256}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rn_range part = rn_range_in_chunk(cases[i].range, cases[i].chunk);
        assert_int_equal(part.from, cases[i].part.from);
        assert_int_equal(part.to, cases[i].part.to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_converts_both_ways),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(types_have_their_numbers),
        cmocka_unit_test(blocks_dequantise_as_the_format_says),
        cmocka_unit_test(exp_is_within_one_ulp),
        cmocka_unit_test(silu_is_near_the_exact_one),
        cmocka_unit_test(sincos_is_the_nearest_float),
        cmocka_unit_test(lanes_add_in_the_fixed_order),
        cmocka_unit_test(activations_quantise_by_the_contract),
        cmocka_unit_test(keys_and_values_quantise_with_the_rounded_scale),
        cmocka_unit_test(programs_start_with_one_global_group),
        cmocka_unit_test(a_failed_allocation_is_an_error),
        cmocka_unit_test(programs_with_wrong_shapes_are_refused),
        cmocka_unit_test(heads_suit_a_type_by_its_unit),
        cmocka_unit_test(a_row_sees_the_pinned_stream_and_its_window),
        cmocka_unit_test(a_chunk_has_a_part_of_a_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
