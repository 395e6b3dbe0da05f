/* Rolling against the float64 reference that knows only slots (oracle_llama.h): the engine must agree with it across evictions, and must
 * disagree clearly with the same reference when its rule is bent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "tests/unit/engine_kit.h"
#include "tests/unit/oracle_llama.h"

/* KL(oracle || engine) of one token, in float64. */
static double kl(const double *p, const float *q, uint32_t n)
{
    double zp = 0, zq = 0, sum = 0, top_p = p[0], top_q = (double)q[0];
    for (uint32_t i = 1; i < n; i++) {
        top_p = fmax(top_p, p[i]);
        top_q = fmax(top_q, (double)q[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        zp += exp(p[i] - top_p);
        zq += exp((double)q[i] - top_q);
    }
    for (uint32_t i = 0; i < n; i++) {
        double lp = p[i] - top_p - log(zp), lq = (double)q[i] - top_q - log(zq);
        sum += exp(lp) * (lp - lq);
    }
    return sum;
}

struct result {
    double before, after, first, last; // mean KL before the first eviction, after it, over the first and the last N tokens of these
    uint32_t n_evictions, n_other_bases;
};

static struct result compare(const struct gguf_llama *model, const char *kv, const struct rn_seq_params *p, enum oracle_mutation mutation,
                             uint32_t n_tokens)
{
    const char *path = kit_model(model);
    struct oracle *o = oracle_create(&(struct oracle_params){
        .model = path, .n = p->n, .sinks = p->sinks, .by_turn = p->evict == RN_EVICT_TURN, .origin = p->origin, .mutation = mutation});
    struct rn_engine *e = NULL;
    assert_int_equal(rn_engine_create(&e, &(struct rn_engine_params){.model = path, .n_threads = 1, .kv = kv}, NULL), 0);
    unlink(path);
    struct rn_seq *s = kit_seq(e, p);
    float *got = rn_mem_alloc(model->n_vocab, sizeof *got);
    double *want = rn_mem_alloc(model->n_vocab, sizeof *want);
    assert_true(got && want);
    struct result r = {0};
    uint64_t rng = 42, last = p->origin ? p->origin : p->sinks;
    uint32_t n_before = 0, n_after = 0;
    for (uint32_t i = 0; i < n_tokens; i++) {
        uint32_t id = kit_below(&rng, model->n_vocab);
        bool is_turn = kit_below(&rng, 15) == 0;
        uint64_t t = rn_seq_head(s), base = oracle_step(o, id, is_turn, want);
        struct rn_step_entry entry = {
            .seq = s, .ids = &id, .n_ids = 1, .turn_starts = &t, .n_turn_starts = is_turn, .n_logits = 1, .logits = got};
        assert_int_equal(rn_engine_step(e, &entry, 1, NULL), 0);
        rn_seq_accept(s, t + 1);
        rn_seq_trim(s);
        double d = kl(want, got, model->n_vocab);
        r.n_evictions += base != last;
        r.n_other_bases += base != rn_seq_base(s, t);
        last = base;
        r.last += i >= n_tokens - p->n ? d / p->n : 0;
        if (r.n_evictions) {
            r.first += n_after < p->n ? d / p->n : 0;
            n_after++;
            r.after += d;
        } else {
            n_before++;
            r.before += d;
        }
    }
    r.before /= n_before;
    r.after /= n_after ? n_after : 1;
    rn_seq_destroy(s);
    kit_engine_destroy(e);
    oracle_destroy(o);
    rn_mem_free(got);
    rn_mem_free(want);
    return r;
}

static const struct gguf_llama models[] = {
    {.n_layers = 2, .n_vocab = 260, .seed = 1},
    {.n_layers = 1,
     .d_model = 96,
     .n_heads = 6,
     .n_kv_heads = 2,
     .head_dim = 64,
     .n_vocab = 260,
     .has_biases = true,
     .has_output = true,
     .has_rope_freqs = true,
     .rope_base = 1e5f,
     .seed = 2},
};

static const struct rn_seq_params cases[] = {
    {.n = 64, .sinks = 4, .evict = RN_EVICT_TOKEN},
    {.n = 64, .sinks = 0, .evict = RN_EVICT_TURN},
    {.n = 100, .sinks = 40, .evict = RN_EVICT_TURN},
    {.n = 140, .sinks = 70, .evict = RN_EVICT_TOKEN},
    {.n = 100, .sinks = 10, .evict = RN_EVICT_TURN, .origin = 1000},
};

static void agrees_with_the_slots(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t m = 0; m < 2; m++) {
            for (int q8 = 0; q8 < 2; q8++) {
                struct result r = compare(&models[m], q8 ? "q8_0" : "f16", &cases[i], ORACLE_RIGHT, 5 * cases[i].n);
                print_message(
                    "N %u, S %u, model %zu, %s: mean KL %.1e before the first eviction, then %.1e, %.1e at the end; %u evictions\n",
                    cases[i].n, cases[i].sinks, m, q8 ? "q8_0" : "f16", r.before, r.first, r.last, r.n_evictions);
                assert_int_equal(r.n_other_bases, 0);
                assert_true(r.n_evictions >= 2);
                assert_true(r.before < (q8 ? 5e-5 : 5e-8) && r.after < (q8 ? 5e-5 : 5e-8));
                assert_true(r.last < 4 * r.first + 1e-8); // no drift
            }
        }
    }
}

static void bent_rules_are_seen(void **state)
{
    (void)state;
    static const enum oracle_mutation mutations[] = {ORACLE_ONE_ROTATION, ORACLE_ONE_LATE, ORACLE_KEEPS_ONE};
    for (size_t k = 0; k < 3; k++) {
        for (int q8 = 0; q8 < 2; q8++) {
            struct result r = compare(&models[1], q8 ? "q8_0" : "f16", &cases[3], mutations[k], 3 * cases[3].n);
            print_message("mutation %zu, %s: mean KL %.1e before, %.1e after, %u other bases\n", k, q8 ? "q8_0" : "f16", r.before, r.after,
                          r.n_other_bases);
            assert_true(r.before < 2e-5 && r.after > 1e-4);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_the_slots), cmocka_unit_test(bent_rules_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
