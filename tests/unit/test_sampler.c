/* The sampler against a plain reference (go over the whole vocabulary and all tokens, sort everything, apply the rules one after the other)
 * and Philox against the published vectors (Random123, kat_vectors). */
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

static int sample(struct rn_sampler *s, const struct rn_sampling *p, float *logits, uint32_t n, uint64_t t, uint32_t *ret)
{
    struct rn_draw draw = {.t = t};
    return rn_sample(s, p, logits, n, &draw, ret);
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
                assert_int_equal(sample(&s, &p, logits, n, (uint64_t)draw << 31, &id), 0);
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
    float logits[] = {1, 3, -INFINITY, 3, 2};
    struct rn_sampler s = {0};
    struct rn_sampling p = {.temperature = 0, .top_p = 1};
    uint32_t id = 9;
    assert_int_equal(sample(&s, &p, logits, 5, 0, &id), 0);
    assert_int_equal(id, 1);
    p = (struct rn_sampling){.temperature = 1, .top_k = 1, .top_p = 1, .seed = 4};
    assert_int_equal(sample(&s, &p, logits, 5, 0, &id), 0);
    assert_int_equal(id, 1);
    rn_sampler_finish(&s);
}

/* Chi-square of 200,000 draws against the softmax: 7 degrees of freedom, 99.99 % quantile 29.9. */
static void frequencies_follow_the_softmax(void **state)
{
    (void)state;
    float logits[8] = {0, 0.5f, 1, -1, 2, 0.5f, -2, 1.5f};
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
        assert_int_equal(sample(&s, &p, logits, 8, (uint64_t)t, &id), 0);
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
    assert_int_equal(sample(&s, &p, logits, 512, 7, &a), 0);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        p.seed = variants[i][3];
        struct rn_draw draw = {.choice = (uint32_t)variants[i][0], .rewinds = (uint32_t)variants[i][1], .t = variants[i][2]};
        assert_int_equal(rn_sample(&s, &p, logits, 512, &draw, &b), 0);
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

/* ---- Bias and penalties ------------------------------------------------------------------------------------------------------------ */

struct history {
    uint32_t ids[600];
    size_t pinned, base, end, output;
};

/* logit_bias, then repetition over what is seen, then frequency and presence over the output: for each id, by counting all tokens. */
static void reference_adjust(const struct rn_sampling *p, const struct history *h, float *logits, uint32_t n)
{
    for (uint32_t id = 0; id < n; id++) {
        double z = (double)logits[id];
        for (size_t i = 0; i < p->n_bias; i++) {
            z = p->bias[i].id == id ? (double)(float)(z + (double)p->bias[i].value) : z;
        }
        unsigned seen = 0, output = 0;
        for (size_t i = 0; i < h->end; i++) {
            seen += h->ids[i] == id && (i < h->pinned || i >= h->base);
            output += h->ids[i] == id && i >= h->output;
        }
        if (seen && p->repeat_penalty != 0) {
            z = z < 0 ? z * (double)p->repeat_penalty : z / (double)p->repeat_penalty;
        }
        logits[id] = (float)(z - (double)p->frequency_penalty * output - (double)p->presence_penalty * (output > 0));
    }
}

/* One walk: tokens come, the window rolls, sometimes everything goes back; every draw as the reference says, and the logits untouched. */
static void walk(const struct rn_sampling *params, uint32_t n, uint64_t *rng)
{
    struct rn_sampler s = {0};
    struct rn_counts counts = {0};
    struct history h = {.pinned = 4, .base = 4, .end = 1 + *rng % 40, .output = 0};
    float logits[256], before[256], adjusted[256];
    h.output = h.end;
    for (size_t i = 0; i < h.end; i++) {
        h.ids[i] = (uint32_t)(i * i) % n;
    }
    while (h.end < 500) {
        for (uint32_t i = 0; i < n; i++) {
            logits[i] = random_logit(rng) / 4;
            logits[i] = (*rng >> 20) % 9 == 0 ? -INFINITY : logits[i]; // ties there are in plenty
        }
        logits[h.end % n] = 0;
        memcpy(before, logits, sizeof logits);
        memcpy(adjusted, logits, sizeof logits);
        reference_adjust(params, &h, adjusted, n);
        struct rn_sampling p = *params, plain = *params;
        p.seed = plain.seed = *rng >> 12;
        struct rn_draw draw = {.t = h.end, .counts = &counts};
        uint32_t id = 0, want = 0;
        assert_int_equal(rn_counts_update(&counts, h.ids, h.pinned, h.base, h.end, h.output), 0);
        assert_int_equal(rn_sample(&s, &p, logits, n, &draw, &id), 0);
        assert_memory_equal(logits, before, n * sizeof *logits);
        if (p.temperature > 0) {
            want = reference(&plain, adjusted, n, h.end);
        } else {
            for (uint32_t i = 1; i < n; i++) {
                want = adjusted[i] > adjusted[want] ? i : want;
            }
        }
        assert_int_equal(id, want);
        h.ids[h.end++] = id;
        if ((*rng >> 40) % 61 == 0 && h.end > h.output + 20) { // a rewind
            h.end -= 15;
            h.base = h.base > 20 ? h.base - 10 : 4;
        } else if (h.end > h.base + 60) {
            h.base += (*rng >> 30) % 2 ? 1 : 40; // by token or by turn
        }
    }
    rn_counts_finish(&counts);
    rn_sampler_finish(&s);
}

static void penalties_and_bias_equal_the_plain_reference(void **state)
{
    (void)state;
    static const struct rn_logit_bias bias[] = {{5, 3.5f}, {0, -100}, {17, 2}, {2, -1.25f}};
    static const struct rn_sampling params[] = {
        {.top_p = 1, .repeat_penalty = 1.3f},
        {.top_p = 1, .repeat_penalty = 1, .frequency_penalty = 0.7f},
        {.top_p = 1, .presence_penalty = 2},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1.2f, .frequency_penalty = 0.3f, .presence_penalty = -0.5f},
        {.temperature = 0.8f, .top_p = 0.9f, .top_k = 20, .min_p = 0.02f, .repeat_penalty = 0.8f, .bias = bias, .n_bias = 4},
        {.temperature = 1.5f, .top_p = 0.95f, .repeat_penalty = 3, .frequency_penalty = -1, .bias = bias, .n_bias = 3},
        {.top_p = 1, .bias = bias, .n_bias = 4},
        {.temperature = 1, .top_p = 1, .frequency_penalty = 1e-3f, .presence_penalty = 1, .bias = bias, .n_bias = 4},
    };
    uint64_t rng = 20260203;
    for (size_t k = 0; k < sizeof params / sizeof params[0]; k++) {
        for (uint32_t n = 18; n <= 256; n = n * 3 + 5) {
            walk(&params[k], n, &rng);
        }
    }
}

static void bias_bans_and_forces(void **state)
{
    (void)state;
    float logits[4] = {9, 8, -12, 9};
    struct rn_sampler s = {0};
    uint32_t id;
    struct rn_logit_bias bias[2] = {{0, -100}, {3, -100}};
    struct rn_sampling p = {.temperature = 2, .top_p = 1, .bias = bias, .n_bias = 2};
    for (uint64_t t = 0; t < 2000; t++) {
        assert_int_equal(sample(&s, &p, logits, 4, t, &id), 0);
        assert_true(id == 1 || id == 2);
    }
    bias[0] = (struct rn_logit_bias){2, 100};
    p.n_bias = 1;
    for (uint64_t t = 0; t < 2000; t++) {
        assert_int_equal(sample(&s, &p, logits, 4, t, &id), 0);
        assert_int_equal(id, 2);
    }
    rn_sampler_finish(&s);
}

static void extremes_stay_numbers(void **state)
{
    (void)state;
    struct rn_sampler s = {0};
    uint32_t id = 9;
    float none[3] = {-INFINITY, -INFINITY, -INFINITY}, huge[3] = {3e38f, -3e38f, 1};
    struct rn_sampling p = {.temperature = 1, .top_p = 1, .seed = 3};
    assert_int_equal(sample(&s, &p, none, 3, 0, &id), 0);
    assert_int_equal(id, 0);
    struct rn_counts counts = {0};
    const uint32_t ids[] = {0, 1};
    assert_int_equal(rn_counts_update(&counts, ids, 0, 0, 2, 0), 0);
    struct rn_draw draw = {.counts = &counts};
    p.repeat_penalty = 0.1f; // 3e39 and -3e37
    assert_int_equal(rn_sample(&s, &p, huge, 3, &draw, &id), 0);
    assert_int_equal(id, 0);
    p.repeat_penalty = 10; // 3e37 and -inf
    assert_int_equal(rn_sample(&s, &p, huge, 3, &draw, &id), 0);
    assert_int_equal(id, 0);
    assert_true(huge[0] == 3e38f && huge[1] == -3e38f && huge[2] == 1);
    rn_counts_finish(&counts);
    rn_sampler_finish(&s);
}

/* However the calls were cut, the counts are those of one call. */
static void counts_depend_on_the_tokens_alone(void **state)
{
    (void)state;
    enum { N = 20000 };
    uint32_t *ids = malloc(N * sizeof *ids);
    uint64_t rng = 5;
    for (size_t i = 0; i < N; i++) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        ids[i] = (uint32_t)((rng >> 33) % (i < N / 2 ? 50000 : 900));
    }
    struct rn_counts grown = {0}, fresh = {0};
    size_t base = 7, end = 3;
    while (end < N) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        end += 1 + (rng >> 40) % 700;
        end = end < N ? end : N;
        base = end > 2000 ? end - 1500 + (rng >> 20) % 1000 : base;
        assert_int_equal(rn_counts_update(&grown, ids, 7, base, end, 12000), 0);
        assert_int_equal(rn_counts_update(&fresh, ids, 7, 7, 7, 12000), 0);
        assert_int_equal(rn_counts_update(&fresh, ids, 7, base, end, 12000), 0);
        size_t seen = 0, output = 0;
        for (size_t i = 0; i < grown.n; i++) {
            struct rn_count c = grown.list[i];
            const struct rn_count *o = rn_counts_find(&fresh, c.id);
            assert_int_equal(c.seen, o ? o->seen : 0);
            assert_int_equal(c.output, o ? o->output : 0);
            seen += c.seen;
            output += c.output;
        }
        assert_int_equal(seen, 7 < base ? (end < 7 ? end : 7) + (end > base ? end - base : 0) : end);
        assert_int_equal(output, end > 12000 ? end - 12000 : 0);
        assert_true(grown.cap <= 4096); // follows what is seen, not what ever was
    }
    assert_null(rn_counts_find(&grown, 4000000000u));
    rn_counts_finish(&grown);
    rn_counts_finish(&fresh);
    free(ids);
}

/* ---- Log-probabilities ------------------------------------------------------------------------------------------------------------- */

static void the_likeliest_come_in_order(void **state)
{
    (void)state;
    uint64_t rng = 9;
    for (int round = 0; round < 200; round++) {
        float logits[300];
        struct ref c[300];
        uint32_t n = 1 + (uint32_t)round, possible = 0, n_top = (uint32_t)round % (RN_TOP_LOGPROBS_MAX + 1);
        for (uint32_t i = 0; i < n; i++) {
            logits[i] = random_logit(&rng);
            logits[i] = i && (rng >> 20) % 3 == 0 ? -INFINITY : floorf(logits[i]); // ties
            possible += logits[i] > -INFINITY;
            c[i] = (struct ref){logits[i], i};
        }
        qsort(c, n, sizeof *c, by_rank);
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            sum += exp((double)c[i].logit);
        }
        struct rn_logprob got[1 + RN_TOP_LOGPROBS_MAX];
        uint32_t id = (uint32_t)(rng >> 50) % n, want = n_top < possible ? n_top : possible;
        assert_int_equal(rn_logprobs(logits, n, id, n_top, got), want);
        assert_int_equal(got[0].id, id);
        assert_true(got[0].logprob == rn_logprob(logits, n, id));
        for (uint32_t i = 1; i <= want; i++) {
            assert_int_equal(got[i].id, c[i - 1].id);
            assert_true(got[i].logprob == rn_logprob(logits, n, got[i].id));
            assert_true(fabs(got[i].logprob - ((double)c[i - 1].logit - log(sum))) < 1e-9);
        }
    }
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    float logits[3] = {1, 2, 3};
    struct rn_sampler s = {0};
    struct rn_sampling p = {.temperature = 1, .top_p = 1};
    uint32_t id = 77;
    rn_mem_fail_at(1);
    assert_int_equal(sample(&s, &p, logits, 3, 0, &id), -ENOMEM);
    rn_mem_fail_at(0);
    assert_int_equal(id, 77);
    const struct rn_logit_bias bias = {1, 5};
    p = (struct rn_sampling){.top_p = 1, .bias = &bias, .n_bias = 1};
    rn_mem_fail_at(1);
    assert_int_equal(sample(&s, &p, logits, 3, 0, &id), -ENOMEM);
    assert_int_equal(id, 77);
    assert_true(logits[1] == 2);
    const uint32_t ids[2] = {1, 2};
    for (uint64_t n = 1; n <= 2; n++) {
        struct rn_counts counts = {0};
        rn_mem_fail_at(n);
        assert_int_equal(rn_counts_update(&counts, ids, 0, 0, 2, 1), -ENOMEM);
        rn_mem_fail_at(0);
        assert_int_equal(counts.n, 0);
        assert_int_equal(rn_counts_update(&counts, ids, 0, 0, 2, 1), 0);
        assert_int_equal(counts.n, 2);
        rn_counts_finish(&counts);
    }
    rn_sampler_finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_words), cmocka_unit_test(draws_equal_the_plain_reference),
        cmocka_unit_test(greedy_breaks_ties_by_the_lowest_id), cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(choice_rewinds_seed_and_t_all_matter), cmocka_unit_test(logprob_is_the_log_of_the_softmax),
        cmocka_unit_test(penalties_and_bias_equal_the_plain_reference), cmocka_unit_test(bias_bans_and_forces),
        cmocka_unit_test(extremes_stay_numbers), cmocka_unit_test(counts_depend_on_the_tokens_alone),
        cmocka_unit_test(the_likeliest_come_in_order), cmocka_unit_test(no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
