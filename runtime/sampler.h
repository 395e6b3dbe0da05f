/* Choosing the next token: a pure function of (logits, parameters, tokens so far, seed, choice, rewinds, t). No state, no hidden stream.
 *
 * Order: logit bias, repetition penalty, frequency and presence penalty, [temperature < 1e-5: the highest, ties to the lowest id],
 * temperature, min_p, top_k, top_p (smallest prefix with at least that mass, at least one token), renormalise, inverse CDF over
 * (logit descending, id ascending). Everything is off by default; what is off costs nothing.
 *   bias        z + b
 *   repetition  z < 0 ? z * r : z / r, once for each id that is seen (visible prompt and output)
 *   frequency, presence   z - (f * c + p * [c > 0]), c = how often the id is in the output
 * Each line is computed in double and rounded to float32 once (the two penalties of an id together); what the bias or the penalties
 * would raise beyond the largest float32 stays there.
 * u comes from Philox4x32-10 (Salmon et al. 2011): key = seed, counter = (choice, rewinds, t low, t high). Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RN_SEED_MAX ((1ull << 53) - 1) /* survives JSON numbers */

/* Ranges that adapters allow. */
#define RN_LOGIT_BIAS_MAX 1024  /* entries: each costs a little in every step */
#define RN_LOGIT_BIAS_LIMIT 100 /* -100..100; the ends ban or force: they outweigh any model's differences */
#define RN_REPEAT_PENALTY_MIN 0.1
#define RN_REPEAT_PENALTY_MAX 10
#define RN_PENALTY_LIMIT 2 /* frequency, presence: -2..2 */
#define RN_TOP_LOGPROBS_MAX 20

struct rn_logit_bias {
    uint32_t id;
    float value;
};

struct rn_sampling {
    float temperature;                         /* >= 0; 0 = greedy */
    uint32_t top_k;                            /* 0 = off */
    float top_p;                               /* (0, 1]; 1 = off */
    float min_p;                               /* [0, 1); 0 = off */
    uint64_t seed;                             /* 0 .. RN_SEED_MAX */
    float repeat_penalty;                      /* > 0; 1 and 0 = off */
    float frequency_penalty, presence_penalty; /* 0 = off */
    const struct rn_logit_bias *bias;          /* [n_bias] borrowed; each id at most once, below n_vocab */
    size_t n_bias;
};

/* ---- The tokens so far ---- */

/* How often each id occurs: `seen` in what the row sees, `output` in the answer. Made by rn_counts_update alone, so always a function of
 * the arguments of the last call; kept by the caller only so that a step need not count everything again. Zero is empty. */
struct rn_count {
    uint32_t id, seen, output;
};
struct rn_counts {
    struct rn_count *list; /* [n] in no order that matters; entries may have become zero */
    size_t n, cap;
    uint32_t *slots; /* [n_slots] hash of ids: place in list + 1; 0 = free */
    size_t n_slots;
    size_t pinned, base, end, output; /* of the last call */
};

/* Counts what the row before token `end` sees, ids[0, pinned) and ids[base, end), and the answer so far, ids[output, end).
 * pinned <= base. Goes on from the last call where only `base` and `end` grew, else starts anew. Between two calls ids below the smaller
 * `end` must not change. 0 or -ENOMEM (then it is empty). Cost: tokens that came or went. */
int rn_counts_update(struct rn_counts *c, const uint32_t *ids, size_t pinned, size_t base, size_t end, size_t output);
const struct rn_count *rn_counts_find(const struct rn_counts *c, uint32_t id); /* NULL: it never occurred */
void rn_counts_finish(struct rn_counts *c);

/* Whether rn_sample wants to know the tokens so far. */
bool rn_sampling_counts(const struct rn_sampling *p);

/* ---- Drawing ---- */

/* Scratch of one caller; zero is empty. */
struct rn_sampler {
    struct rn_candidate *candidates;
    size_t cap;
    struct rn_logit_bias *undo; /* logits as they were */
    size_t n_undo, cap_undo;
};
void rn_sampler_finish(struct rn_sampler *s);

/* Which draw it is. */
struct rn_draw {
    uint32_t choice, rewinds;
    uint64_t t;
    const struct rn_counts *counts; /* borrowed; NULL = no tokens so far */
};

/* logits [n_vocab], finite or -inf; those that bias and penalties are about are changed during the call and put back.
 * *ret_id: the choice. Returns 0 or -ENOMEM. Cost beside the draw itself: biased and counted ids. */
int rn_sample(struct rn_sampler *s, const struct rn_sampling *p, float *logits, uint32_t n_vocab, const struct rn_draw *draw,
              uint32_t *ret_id);

/* Four words of Philox4x32-10. */
void rn_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

/* 53 random bits from the system, for a request without a seed. */
uint64_t rn_seed_random(void);

/* ---- Log-probabilities ---- */

struct rn_logprob {
    double logprob; /* -inf: impossible */
    uint32_t id;
};

/* log softmax(logits)[id], computed in double: of the model's logits, before bias, penalties and temperature. */
double rn_logprob(const float *logits, uint32_t n_vocab, uint32_t id);
/* The same for id (ret[0]) and for the n_top <= RN_TOP_LOGPROBS_MAX likeliest ids (ret[1] on), the likeliest first, ties to the lowest id.
 * Returns how many of the latter there are: fewer than n_top where fewer are possible. */
uint32_t rn_logprobs(const float *logits, uint32_t n_vocab, uint32_t id, uint32_t n_top, struct rn_logprob *ret);
