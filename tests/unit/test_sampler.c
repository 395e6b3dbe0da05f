/* The sampler against a plain reference (sort everything, then apply the rules one after the other) and Philox against the published
 * vectors (Random123, kat_vectors). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/sampler.h"

static void philox_gives_the_published_words(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t got[4];
        rn_philox(cases[i].counter, cases[i].key, got);
        assert_memory_equal(got, cases[i].want, sizeof got);
    }
}

struct ref {
    float logit;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : (x->id < y->id ? -1 : 1);
}

/* u of the contract: Philox with counter (choice, rewinds, t), 53 bits. */
static double reference_u(uint64_t seed, uint64_t t)
{
    uint32_t counter[4] = {0, 0, (uint32_t)t, (uint32_t)(t >> 32)}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, r[4];
    rn_philox(counter, key, r);
    return (double)((((uint64_t)r[0] << 32) | r[1]) >> 11) * 0x1p-53;
}

/* The order of algorithms 7.2: temperature, min_p, top_k, top_p, renormalise, inverse CDF. */
static uint32_t reference(const struct rn_sampling *p, const float *logits, uint32_t n, uint64_t t)
{
    struct ref *c = malloc(n * sizeof *c);
    for (uint32_t i = 0; i < n; i++) {
        c[i] = (struct ref){logits[i], i};
    }
    qsort(c, n, sizeof *c, by_rank);
    size_t keep = n;
    double *w = malloc(n * sizeof *w), total = 0;
    for (size_t i = 0; i < n; i++) {
        w[i] = exp(((double)c[i].logit - (double)c[0].logit) / (double)p->temperature);
    }
    while (keep > 1 && p->min_p > 0 && w[keep - 1] < (double)p->min_p) {
        keep--;
    }
    keep = p->top_k && p->top_k < keep ? p->top_k : keep;
    for (size_t i = 0; i < keep; i++) {
        total += w[i];
    }
    if (p->top_p < 1) {
        double mass = 0;
        size_t i = 0;
        while (i < keep && mass < (double)p->top_p * total) {
            mass += w[i++];
        }
        keep = i ? i : 1;
        total = mass;
    }
    double target = reference_u(p->seed, t) * total, mass = 0;
    size_t i = 0;
    while (i + 1 < keep && (mass += w[i]) <= target) {
        i++;
    }
    uint32_t id = c[i].id;
    free(c);
    free(w);
    return id;
}

static float random_logit(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (float)((int32_t)(*s >> 33) % 4000) / 300.0f; // many ties
}

static void draws_equal_the_plain_reference(void **state)
{
    (void)state;
    static const struct rn_sampling params[] = {
        {.temperature = 1, .top_p = 1}, {.temperature = 0.7f, .top_p = 0.9f}, {.temperature = 1.3f, .top_k = 40, .top_p = 1},
        {.temperature = 0.9f, .top_k = 7, .top_p = 0.5f, .min_p = 0.02f}, {.temperature = 2, .top_p = 1, .min_p = 0.1f},
        {.temperature = 1, .top_p = 1e-6f}, {.temperature = 5, .top_p = 0.999f, .top_k = 300},
    };
    struct rn_sampler s = {0};
    uint64_t rng = 1;
    for (uint32_t n = 1; n < 3000; n = n * 3 + 1) {
        float *logits = malloc(n * sizeof *logits);
        for (int draw = 0; draw < 60; draw++) {
            for (uint32_t i = 0; i < n; i++) {
                logits[i] = random_logit(&rng);
            }
            for (size_t k = 0; k < sizeof params / sizeof params[0]; k++) {
                struct rn_sampling p = params[k];
                p.seed = (uint64_t)draw * 77 + 5;
                uint32_t id;
                assert_int_equal(rn_sample(&s, &p, logits, n, 0, 0, (uint64_t)draw << 31, &id), 0);
                assert_int_equal(id, reference(&p, logits, n, (uint64_t)draw << 31));
            }
        }
        free(logits);
    }
    rn_sampler_finish(&s);
}

static void greedy_breaks_ties_by_the_lowest_id(void **state)
{
    (void)state;
    const float logits[] = {1, 3, -INFINITY, 3, 2};
    struct rn_sampler s = {0};
    struct rn_sampling p = {.temperature = 0, .top_p = 1};
    uint32_t id = 9;
    assert_int_equal(rn_sample(&s, &p, logits, 5, 0, 0, 0, &id), 0);
    assert_int_equal(id, 1);
    p = (struct rn_sampling){.temperature = 1, .top_k = 1, .top_p = 1, .seed = 4};
    assert_int_equal(rn_sample(&s, &p, logits, 5, 0, 0, 0, &id), 0);
    assert_int_equal(id, 1);
    rn_sampler_finish(&s);
}

/* Chi-square of 200,000 draws against the softmax: 7 degrees of freedom, 99.99 % quantile 29.9. */
static void frequencies_follow_the_softmax(void **state)
{
    (void)state;
    const float logits[8] = {0, 0.5f, 1, -1, 2, 0.5f, -2, 1.5f};
    double expected[8], total = 0, chi = 0;
    int count[8] = {0};
    const int n = 200000;
    for (int i = 0; i < 8; i++) {
        total += expected[i] = exp((double)logits[i]);
    }
    struct rn_sampler s = {0};
    struct rn_sampling p = {.temperature = 1, .top_p = 1, .seed = 20260101};
    for (int t = 0; t < n; t++) {
        uint32_t id;
        assert_int_equal(rn_sample(&s, &p, logits, 8, 0, 0, (uint64_t)t, &id), 0);
        count[id]++;
    }
    for (int i = 0; i < 8; i++) {
        double e = expected[i] / total * n;
        chi += (count[i] - e) * (count[i] - e) / e;
    }
    assert_true(chi < 29.9);
    rn_sampler_finish(&s);
}

static void choice_rewinds_seed_and_t_all_matter(void **state)
{
    (void)state;
    float logits[512];
    memset(logits, 0, sizeof logits);
    struct rn_sampler s = {0};
    struct rn_sampling p = {.temperature = 1, .top_p = 1, .seed = 1};
    uint32_t a, b;
    const uint64_t variants[][4] = {{0, 0, 8, 1}, {1, 0, 7, 1}, {0, 1, 7, 1}, {0, 0, 7, 2}, {0, 0, 7 + (1ull << 32), 1}, {0, 0, 7, 1 + (1ull << 40)}};
    assert_int_equal(rn_sample(&s, &p, logits, 512, 0, 0, 7, &a), 0);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        p.seed = variants[i][3];
        assert_int_equal(rn_sample(&s, &p, logits, 512, (uint32_t)variants[i][0], (uint32_t)variants[i][1], variants[i][2], &b), 0);
        assert_int_not_equal(a, b); // one in 512 would be chance; these do not collide
    }
    rn_sampler_finish(&s);
}

static void logprob_is_the_log_of_the_softmax(void **state)
{
    (void)state;
    const float logits[3] = {100, 101, 99};
    double z = exp(-1) + 1 + exp(-2);
    assert_true(fabs(rn_logprob(logits, 3, 0) - log(exp(-1) / z)) < 1e-12);
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    const float logits[3] = {1, 2, 3};
    struct rn_sampler s = {0};
    struct rn_sampling p = {.temperature = 1, .top_p = 1};
    uint32_t id = 77;
    rn_mem_fail_at(1);
    assert_int_equal(rn_sample(&s, &p, logits, 3, 0, 0, 0, &id), -ENOMEM);
    rn_mem_fail_at(0);
    assert_int_equal(id, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_words), cmocka_unit_test(draws_equal_the_plain_reference),
        cmocka_unit_test(greedy_breaks_ties_by_the_lowest_id), cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(choice_rewinds_seed_and_t_all_matter), cmocka_unit_test(logprob_is_the_log_of_the_softmax),
        cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
