/* See sampler.h for the order and the promise. Probabilities are computed in double with the C library's exp: a pure function of its
 * argument on one machine, which is what the contract asks of a record's seed. Sums run in id order over the whole vocabulary, or in
 * (logit descending, id ascending) order over the candidates; both are fixed, so the same logits give the same token. */
#define _GNU_SOURCE
#include "runtime/sampler.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/random.h>

#include "runtime/base/mem.h"

struct rn_candidate {
    float logit;
    uint32_t id;
};

void rn_sampler_finish(struct rn_sampler *s)
{
    rn_mem_free(s->candidates);
    rn_mem_free(s->undo);
    *s = (struct rn_sampler){0};
}

void rn_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = 0xD2511F53ull * c0, b = 0xCD9E8D57ull * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)b;
        c2 = n2;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

uint64_t rn_seed_random(void)
{
    uint64_t bits = 0;
    while (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) {
    }
    return bits & RN_SEED_MAX;
}

/* u in [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint32_t choice, uint32_t rewinds, uint64_t t)
{
    uint32_t counter[4] = {choice, rewinds, (uint32_t)t, (uint32_t)(t >> 32)};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];
    rn_philox(counter, key, r);
    return (double)((((uint64_t)r[0] << 32) | r[1]) >> 11) * 0x1p-53;
}

static uint32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return best;
}

static bool before(struct rn_candidate a, struct rn_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int by_rank(const void *a, const void *b)
{
    const struct rn_candidate *x = a, *y = b;
    return before(*x, *y) ? -1 : before(*y, *x) ? 1 : 0;
}

/* Moves the k first candidates (by rank) to the front, unordered. Hoare's selection. */
static void select_first(struct rn_candidate *c, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        struct rn_candidate pivot = c[lo + (hi - lo - 1) / 2]; // never the last: each round cuts something off
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (before(c[i], pivot)) {
                i++;
            }
            while (before(pivot, c[j])) {
                j--;
            }
            if (i >= j) {
                break;
            }
            struct rn_candidate swap = c[i];
            c[i++] = c[j];
            c[j--] = swap;
        }
        size_t cut = j + 1;
        if (k <= cut) {
            hi = cut;
        } else {
            lo = cut;
        }
        if (k == lo || k == hi) {
            return;
        }
    }
}

/* Candidates in rank order, sorted a piece at a time: a draw rarely needs more than the first few. */
struct ranked {
    struct rn_candidate *c;
    size_t n, n_sorted;
};

static void sort_up_to(struct ranked *r, size_t k)
{
    while (r->n_sorted < k) {
        size_t rest = r->n - r->n_sorted, piece = r->n_sorted ? 7 * r->n_sorted : 128;
        if (piece > rest) {
            piece = rest;
        }
        struct rn_candidate *from = r->c + r->n_sorted;
        if (piece < rest) {
            select_first(from, rest, piece);
        }
        qsort(from, piece, sizeof *from, by_rank);
        r->n_sorted += piece;
    }
}

static double weight(float logit, float top, double inverse_temperature)
{
    return exp(((double)logit - (double)top) * inverse_temperature);
}

/* ---- Bias and penalties ------------------------------------------------------------------------------------------------------------ */

static bool has_repeat(const struct rn_sampling *p)
{
    return p->repeat_penalty != 0 && p->repeat_penalty != 1;
}

bool rn_sampling_counts(const struct rn_sampling *p)
{
    return has_repeat(p) || p->frequency_penalty != 0 || p->presence_penalty != 0;
}

// Room to remember n logits. 0 or -ENOMEM.
static int reserve_undo(struct rn_sampler *s, size_t n)
{
    if (n > s->cap_undo) {
        struct rn_logit_bias *grown = rn_mem_realloc(s->undo, 2 * n, sizeof *grown);
        if (!grown) {
            return -ENOMEM;
        }
        s->undo = grown;
        s->cap_undo = 2 * n;
    }
    return 0;
}

static void change(struct rn_sampler *s, float *logits, uint32_t id, double z)
{
    s->undo[s->n_undo++] = (struct rn_logit_bias){id, logits[id]};
    // A sum beyond float32 must not make inf - inf later.
    logits[id] = z > (double)FLT_MAX ? FLT_MAX : z < -(double)FLT_MAX ? -INFINITY : (float)z;
}

static double penalised(const struct rn_sampling *p, const struct rn_count *c, double z)
{
    if (c->seen && has_repeat(p)) {
        z = z < 0 ? z * (double)p->repeat_penalty : z / (double)p->repeat_penalty;
    }
    if (c->output) {
        z -= (double)p->frequency_penalty * c->output + (double)p->presence_penalty;
    }
    return z;
}

static int adjust(struct rn_sampler *s, const struct rn_sampling *p, float *logits, const struct rn_counts *counts)
{
    size_t n_counts = counts && rn_sampling_counts(p) ? counts->n : 0;
    if (reserve_undo(s, p->n_bias + n_counts) < 0) {
        return -ENOMEM;
    }
    for (size_t i = 0; i < p->n_bias; i++) {
        change(s, logits, p->bias[i].id, (double)logits[p->bias[i].id] + (double)p->bias[i].value);
    }
    for (size_t i = 0; i < n_counts; i++) {
        const struct rn_count *c = &counts->list[i];
        change(s, logits, c->id, penalised(p, c, (double)logits[c->id]));
    }
    return 0;
}

// Backwards: an id may have been changed twice.
static void put_back(struct rn_sampler *s, float *logits)
{
    while (s->n_undo) {
        s->n_undo--;
        logits[s->undo[s->n_undo].id] = s->undo[s->n_undo].value;
    }
}

/* ---- The draw ---------------------------------------------------------------------------------------------------------------------- */

// The candidates of one draw, as the filters leave them: the first n_keep in rank order, of weight `total` together.
struct choice {
    struct ranked ranked;
    size_t n_keep;
    double total;
    float top;
    double inverse; // 1 / temperature
};

static double weight_at(const struct choice *c, size_t i)
{
    return weight(c->ranked.c[i].logit, c->top, c->inverse);
}

// min_p keeps p_i >= min_p * p_max; beyond 2^-60 of the top a candidate could not move a 53-bit draw.
static void keep_min_p(struct choice *c, const struct rn_sampling *p, const float *logits, uint32_t n_vocab)
{
    const double floor_weight = p->min_p > 0 ? (double)p->min_p : 0x1p-60;
    const float cut = (float)((double)c->top + log(floor_weight) * (double)p->temperature);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (logits[i] < cut) {
            continue;
        }
        double w = weight(logits[i], c->top, c->inverse);
        if (w >= floor_weight) {
            c->ranked.c[c->ranked.n++] = (struct rn_candidate){logits[i], i};
            c->total += w;
        }
    }
    c->n_keep = c->ranked.n;
}

static void keep_top_k(struct choice *c, uint32_t top_k)
{
    if (!top_k || top_k >= c->n_keep) {
        return;
    }
    c->n_keep = top_k;
    sort_up_to(&c->ranked, c->n_keep);
    c->total = 0;
    for (size_t i = 0; i < c->n_keep; i++) {
        c->total += weight_at(c, i);
    }
}

static void keep_top_p(struct choice *c, double top_p)
{
    if (top_p >= 1) {
        return;
    }
    double mass = 0, want = top_p * c->total;
    size_t i = 0;
    do {
        sort_up_to(&c->ranked, i + 1);
        mass += weight_at(c, i++);
    } while (i < c->n_keep && mass < want);
    c->n_keep = i;
    c->total = mass;
}

// The candidate at share u of the weight, 0 <= u < 1.
static uint32_t pick(struct choice *c, double u)
{
    double target = u * c->total, mass = 0;
    for (size_t i = 0;; i++) {
        sort_up_to(&c->ranked, i + 1);
        mass += weight_at(c, i);
        if (mass > target || i + 1 == c->n_keep) {
            return c->ranked.c[i].id;
        }
    }
}

static int reserve(struct rn_sampler *s, uint32_t n_vocab)
{
    if (s->cap >= n_vocab) {
        return 0;
    }
    struct rn_candidate *grown = rn_mem_realloc(s->candidates, n_vocab, sizeof *grown);
    if (!grown) {
        return -ENOMEM;
    }
    s->candidates = grown;
    s->cap = n_vocab;
    return 0;
}

static int draw_one(struct rn_sampler *s, const struct rn_sampling *p, const float *logits, uint32_t n_vocab, const struct rn_draw *draw,
                    uint32_t *ret_id)
{
    uint32_t best = argmax(logits, n_vocab);
    if (p->temperature < 1e-5f || p->top_k == 1 || logits[best] == -INFINITY) { // where nothing is possible no draw is either
        *ret_id = best;
        return 0;
    }
    if (reserve(s, n_vocab) < 0) {
        return -ENOMEM;
    }
    struct choice c = {.ranked = {.c = s->candidates}, .top = logits[best], .inverse = 1 / (double)p->temperature};
    keep_min_p(&c, p, logits, n_vocab);
    keep_top_k(&c, p->top_k);
    keep_top_p(&c, (double)p->top_p);
    *ret_id = pick(&c, uniform(p->seed, draw->choice, draw->rewinds, draw->t));
    return 0;
}

int rn_sample(struct rn_sampler *s, const struct rn_sampling *p, float *logits, uint32_t n_vocab, const struct rn_draw *draw,
              uint32_t *ret_id)
{
    int r = adjust(s, p, logits, draw->counts);
    if (r == 0) {
        r = draw_one(s, p, logits, n_vocab, draw, ret_id);
        put_back(s, logits);
    }
    return r;
}

/* ---- Log-probabilities ------------------------------------------------------------------------------------------------------------- */

// log of the sum over exp(z).
static double log_sum(const float *logits, uint32_t n_vocab, float top)
{
    double sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += exp((double)logits[i] - (double)top);
    }
    return log(sum);
}

double rn_logprob(const float *logits, uint32_t n_vocab, uint32_t id)
{
    float top = logits[argmax(logits, n_vocab)];
    return (double)logits[id] - (double)top - log_sum(logits, n_vocab, top);
}

// The n likeliest ids, in order; returns their number.
static uint32_t best_ids(const float *logits, uint32_t n_vocab, uint32_t n, uint32_t *ids)
{
    uint32_t have = 0;
    for (uint32_t i = 0; n && i < n_vocab; i++) {
        if (logits[i] == -INFINITY || (have == n && logits[i] <= logits[ids[n - 1]])) {
            continue;
        }
        uint32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && logits[ids[at - 1]] < logits[i]; at--) {
            ids[at] = ids[at - 1];
        }
        ids[at] = i;
    }
    return have;
}

uint32_t rn_logprobs(const float *logits, uint32_t n_vocab, uint32_t id, uint32_t n_top, struct rn_logprob *ret)
{
    uint32_t ids[RN_TOP_LOGPROBS_MAX];
    float top = logits[argmax(logits, n_vocab)];
    double sum = log_sum(logits, n_vocab, top);
    uint32_t n = best_ids(logits, n_vocab, n_top < RN_TOP_LOGPROBS_MAX ? n_top : RN_TOP_LOGPROBS_MAX, ids);
    ret[0] = (struct rn_logprob){(double)logits[id] - (double)top - sum, id};
    for (uint32_t i = 0; i < n; i++) {
        ret[1 + i] = (struct rn_logprob){(double)logits[ids[i]] - (double)top - sum, ids[i]};
    }
    return n;
}
