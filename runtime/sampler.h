/* Choosing the next token: a pure function of (logits, parameters, seed, choice, rewinds, t). No state, no hidden stream.
 *
 * Order: temperature, min_p, top_k, top_p (smallest prefix with at least that mass, at least one token), renormalise, inverse CDF over
 * (logit descending, id ascending). temperature < 1e-5: the highest logit, ties to the lowest id.
 * u comes from Philox4x32-10 (Salmon et al. 2011): key = seed, counter = (choice, rewinds, t low, t high). Thread: any. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RN_SEED_MAX ((1ull << 53) - 1) /* survives JSON numbers */

struct rn_sampling {
    float temperature; /* >= 0; 0 = greedy */
    uint32_t top_k;    /* 0 = off */
    float top_p;       /* (0, 1]; 1 = off */
    float min_p;       /* [0, 1); 0 = off */
    uint64_t seed;     /* 0 .. RN_SEED_MAX */
};

/* Scratch of one caller; zero is empty. */
struct rn_sampler {
    struct rn_candidate *candidates;
    size_t cap;
};
void rn_sampler_finish(struct rn_sampler *s);

/* logits [n_vocab], finite or -inf. *ret_id: the choice. Returns 0 or -ENOMEM. */
int rn_sample(struct rn_sampler *s, const struct rn_sampling *p, const float *logits, uint32_t n_vocab, uint32_t choice, uint32_t rewinds,
              uint64_t t, uint32_t *ret_id);

/* Four words of Philox4x32-10. */
void rn_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

/* 53 random bits from the system, for a request without a seed. */
uint64_t rn_seed_random(void);

/* log softmax(logits)[id], computed in double. */
double rn_logprob(const float *logits, uint32_t n_vocab, uint32_t id);
