/* Sequences: the rolling rule, its history, pages that come and go, rewind and fork. See engine.h and seq_internal.h.
 *
 * The rule (policy token): base(t) = max(o, S + max(0, t + 1 - N)). Policy turn: base stays while S + t + 1 - base <= N; then it jumps to
 * the first turn start p with base < p <= t, t + 1 - p >= floor((N - S) / 4) and S + t + 1 - p <= N - floor(N / 8); if there is none, the
 * token rule holds at this t. */
#include "runtime/seq_internal.h"

#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/rope.h"

/* ---- the rule ------------------------------------------------------------------------------------------------------------------------ */

/* What the history says about base at t (no new run yet). */
static uint64_t history_base(const struct rn_seq *s, uint64_t t)
{
    size_t lo = 0, hi = s->n_runs; // runs[lo] is the last with .t <= t
    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->runs[mid].t <= t) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    if (s->n_runs == 0 || s->runs[lo].t > t) {
        return s->origin;
    }
    return s->runs[lo].base + (s->runs[lo].rolling ? t - s->runs[lo].t : 0);
}

/* I1: base(t), given base(t - 1) and the turn starts up to t. */
static uint64_t rule_base(const struct rn_seq *s, uint64_t t, uint64_t before)
{
    if (t < s->s || s->s + t + 1 - before <= s->n) {
        return before;
    }
    for (size_t i = 0; s->evict == RN_EVICT_TURN && i < s->n_turns; i++) {
        uint64_t p = s->turns[i];
        if (p > before && p <= t && t + 1 - p >= (s->n - s->s) / 4 && s->s + t + 1 - p <= s->n - s->n / 8) {
            return p;
        }
    }
    return s->s + t + 1 - s->n;
}

static uint64_t last_base(const struct rn_seq *s)
{
    return s->head > s->origin ? history_base(s, s->head - 1) : s->origin;
}

uint64_t rn_seq_base(const struct rn_seq *s, uint64_t t)
{
    return history_base(s, t);
}

uint64_t rn_seq_next_base(const struct rn_seq *s)
{
    return rule_base(s, s->head, last_base(s));
}

uint64_t rn_seq_base_of_next(const struct rn_seq *s, uint64_t at)
{
    return rule_base(s, at, at > s->origin ? history_base(s, at - 1) : s->origin);
}

/* Records that base(t) = base, base(t - 1) = before. */
static int record_base(struct rn_seq *s, uint64_t t, uint64_t before, uint64_t base, struct rn_err *err)
{
    if (history_base(s, t) == base) {
        return 0;
    }
    if (s->n_runs == s->cap_runs) {
        size_t cap = s->cap_runs ? 2 * s->cap_runs : 16;
        struct rn_base_run *grown = rn_mem_realloc(s->runs, cap, sizeof *grown);
        if (!grown) {
            return rn_err_nomem(err, cap * sizeof *grown, "window history");
        }
        s->runs = grown;
        s->cap_runs = cap;
    }
    s->runs[s->n_runs++] = (struct rn_base_run){.t = t, .base = base, .rolling = base == before + 1};
    return 0;
}

static int add_turn(struct rn_seq *s, uint64_t t, struct rn_err *err)
{
    if (s->n_turns == s->cap_turns) {
        size_t cap = s->cap_turns ? 2 * s->cap_turns : 16;
        uint64_t *grown = rn_mem_realloc(s->turns, cap, sizeof *grown);
        if (!grown) {
            return rn_err_nomem(err, cap * sizeof *grown, "turn starts");
        }
        s->turns = grown;
        s->cap_turns = cap;
    }
    s->turns[s->n_turns++] = t;
    return 0;
}

int rn_seq_push(struct rn_seq *s, bool turn_start, uint64_t *ret_base, struct rn_err *err)
{
    uint64_t t = s->head, before = last_base(s);
    if (turn_start && t >= s->s) {
        int r = add_turn(s, t, err);
        if (r < 0) {
            return r;
        }
    }
    uint64_t base = rule_base(s, t, before);
    int r = record_base(s, t, before, base, err);
    if (r < 0) {
        return r;
    }
    s->head = t + 1 == s->s ? s->origin : t + 1;
    *ret_base = base;
    return 0;
}

void rn_seq_unpush(struct rn_seq *s, uint64_t end)
{
    while (s->n_runs && s->runs[s->n_runs - 1].t >= end) {
        s->n_runs--;
    }
    while (s->n_turns && s->turns[s->n_turns - 1] >= end) {
        s->n_turns--;
    }
    s->head = end == s->s ? s->origin : end;
    if (s->accepted > s->head) {
        s->accepted = s->head;
    }
}

/* Frees window pages that no row >= u reads, and forgets history before u. */
static void free_below(struct rn_seq *s, uint64_t u)
{
    if (u <= s->low) {
        return;
    }
    s->low = u;
    rn_seq_drop_pages(s, u);
    size_t keep = s->n_runs;
    while (keep > 1 && s->runs[keep - 1].t > u - 1) {
        keep--;
    }
    if (keep > 1) { // the run that covers u - 1 stays: row u starts from base(u - 1)
        memmove(s->runs, s->runs + keep - 1, (s->n_runs - keep + 1) * sizeof *s->runs);
        s->n_runs -= keep - 1;
    }
    uint64_t base = history_base(s, u - 1);
    size_t gone = 0;
    while (gone < s->n_turns && s->turns[gone] <= base) {
        gone++;
    }
    if (gone) {
        memmove(s->turns, s->turns + gone, (s->n_turns - gone) * sizeof *s->turns);
        s->n_turns -= gone;
    }
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

void rn_seq_accept(struct rn_seq *s, uint64_t end)
{
    if (end > s->head || end <= s->accepted) {
        return;
    }
    s->accepted = end;
    uint64_t c = end - 1, h = s->stored && s->hold_h < c ? s->hold_h : c; // after a rewind, h may lie beyond c
    uint64_t held = minus(h, RN_SLACK);
    if (s->stored && s->hold_p < held) {
        held = s->hold_p;
    }
    uint64_t far = minus(c, (uint64_t)s->n + 2 * RN_SLACK);
    free_below(s, far > held ? far : held);
}

void rn_seq_hold(struct rn_seq *s, uint64_t h, uint64_t p)
{
    s->hold_h = h;
    s->hold_p = p;
}

void rn_seq_trim(struct rn_seq *s)
{
    if (s->accepted) {
        free_below(s, minus(s->accepted - 1, 16));
    }
}

/* ---- rewind and fork ----------------------------------------------------------------------------------------------------------------- */

int rn_seq_rewind(struct rn_seq *s, uint64_t end, struct rn_err *err)
{
    if (end > s->head || (end > s->s && end < s->origin)) {
        return rn_err_set(err, -EINVAL, "rewind to %llu, expected at most %llu", (unsigned long long)end, (unsigned long long)s->head);
    }
    if (end == s->head) {
        return 0;
    }
    if (!rn_seq_pages_alive(s, end, end == s->s ? s->origin : end)) {
        return rn_err_set(err, -ENODATA, "rewind to %llu needs pages that are gone", (unsigned long long)end);
    }
    int r = rn_seq_cut_pages(s, end, err);
    if (r < 0) {
        return r;
    }
    if (end < s->low) { // back in the pinned zone: the rule and the window start anew
        s->low = 0;
    }
    rn_seq_unpush(s, end);
    return 0;
}

static int copy_history(struct rn_seq *to, const struct rn_seq *from, uint64_t at, struct rn_err *err)
{
    for (size_t i = 0; i < from->n_turns && from->turns[i] < at; i++) {
        int r = add_turn(to, from->turns[i], err);
        if (r < 0) {
            return r;
        }
    }
    to->runs = rn_mem_alloc(from->n_runs + 1, sizeof *to->runs);
    if (!to->runs) {
        return rn_err_nomem(err, (from->n_runs + 1) * sizeof *to->runs, "window history");
    }
    to->cap_runs = from->n_runs + 1;
    while (to->n_runs < from->n_runs && from->runs[to->n_runs].t < at) {
        to->runs[to->n_runs] = from->runs[to->n_runs];
        to->n_runs++;
    }
    return 0;
}

int rn_seq_fork(struct rn_seq **ret, const struct rn_seq *s, uint64_t at, struct rn_err *err)
{
    if (at > s->head) {
        return rn_err_set(err, -EINVAL, "fork at %llu, expected at most %llu", (unsigned long long)at, (unsigned long long)s->head);
    }
    bool lacks_tokens = at > s->s && at <= s->origin; // its origin would be S: tokens S..at-1 were never fed
    if (lacks_tokens || !rn_seq_pages_alive(s, at, at)) {
        return rn_err_set(err, -ENODATA, "fork at %llu needs pages that are gone", (unsigned long long)at);
    }
    struct rn_seq_params params = {
        .n = s->n, .sinks = s->s, .evict = s->evict, .origin = at > s->origin ? s->origin : s->s, .rope = s->rope, .stored = s->stored};
    struct rn_seq *fork;
    int r = rn_seq_create(&fork, s->engine, &params, err);
    if (r < 0) {
        return r;
    }
    r = rn_seq_share_pages(fork, s, at, err);
    r = r < 0 ? r : copy_history(fork, s, at, err);
    if (r < 0) {
        rn_seq_destroy(fork);
        return r;
    }
    fork->low = at > s->s ? s->low : 0;
    fork->head = at == fork->s ? fork->origin : at;
    fork->accepted = fork->head;
    *ret = fork;
    return 0;
}

/* ---- life ---------------------------------------------------------------------------------------------------------------------------- */

/* Bytes that a running sequence may need at once: pinned + N + 256 + one prefill chunk (256 rows at most). */
static uint64_t needed_bytes(const struct rn_engine *e, uint32_t n, uint32_t sinks)
{
    const struct rn_program *p = rn_engine_program(e);
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        uint32_t sliding = p->groups[g].window;
        uint64_t pinned = sliding ? 0 : (sinks + RN_PAGE_TOKENS - 1) / RN_PAGE_TOKENS;
        uint64_t tokens = (sliding ? sliding : n) + 256 + 256; // a sliding window may be larger than N
        uint64_t window = tokens / RN_PAGE_TOKENS + 2; // a border at each end
        struct rn_kv_pool *pool = rn_engine_pool((struct rn_engine *)e);
        bytes += pinned * rn_kv_page_bytes(pool, g, false) + window * rn_kv_page_bytes(pool, g, true);
    }
    return bytes;
}

static int check_params(const struct rn_engine *e, const struct rn_seq_params *params, struct rn_err *err)
{
    uint32_t trained = rn_engine_info(e)->n_ctx_train;
    bool scaled = params->rope.kind != RN_ROPE_AS_TRAINED;
    if (scaled && !(params->rope.factor >= 1 && params->rope.factor <= RN_ROPE_FACTOR_MAX)) {
        return rn_err_set(err, -EINVAL, "the factor of the RoPE scaling is %g, expected 1 to %d", (double)params->rope.factor,
                          RN_ROPE_FACTOR_MAX);
    }
    double most = (double)trained * (scaled ? (double)params->rope.factor : 1);
    if (params->n < 16 || params->n > most) {
        return rn_err_set(err, -EINVAL, "window is %u, expected 16 to %.0f (the trained length%s)", params->n, most,
                          scaled ? " times the factor of the RoPE scaling" : "");
    }
    if (params->sinks > params->n / 2) {
        return rn_err_set(err, -EINVAL, "sinks is %u, expected 0 to %u (half the window)", params->sinks, params->n / 2);
    }
    if (params->origin && params->origin < params->sinks) {
        return rn_err_set(err, -EINVAL, "origin is %llu, expected at least %u (the sinks)", (unsigned long long)params->origin, params->sinks);
    }
    uint64_t need = needed_bytes(e, params->n, params->sinks), limit = rn_engine_pool((struct rn_engine *)e)->limit;
    if (need > limit) {
        return rn_err_set(err, -E2BIG, "a window of %u tokens needs %llu bytes of KV, the limit is %llu", params->n, (unsigned long long)need,
                          (unsigned long long)limit);
    }
    return 0;
}

/* Ropes of its own for a sequence with a scaling. Layers with a window of their own never look further than they were trained to: their
 * rope stays as it is. */
static int scale_ropes(struct rn_seq *s, struct rn_err *err)
{
    const struct rn_program *p = rn_engine_program(s->engine);
    uint32_t trained = rn_engine_info(s->engine)->n_ctx_train;
    size_t n_freq = 0;
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        n_freq += p->ropes[i].n_rot / 2;
    }
    s->ropes = rn_mem_alloc(p->n_ropes, sizeof *s->ropes);
    uint64_t *freq = rn_mem_alloc(n_freq, sizeof *freq);
    if (!s->ropes || !freq) {
        rn_mem_free(freq);
        return rn_err_nomem(err, n_freq * sizeof *freq, "RoPE scaling");
    }
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        s->ropes[i].freq = freq;
        rn_rope_extend(&s->ropes[i], &p->ropes[i], &s->rope, rn_engine_rope_base(s->engine), trained);
        freq += p->ropes[i].n_rot / 2;
    }
    for (uint32_t il = 0; il < p->n_layers; il++) {
        uint32_t i = p->layer_rope[il];
        if (p->groups[p->layer_group[il]].window) {
            memcpy(s->ropes[i].freq, p->ropes[i].freq, p->ropes[i].n_rot / 2 * sizeof *freq);
            s->ropes[i].mscale = p->ropes[i].mscale;
        }
    }
    return 0;
}

int rn_seq_create(struct rn_seq **ret, struct rn_engine *e, const struct rn_seq_params *params, struct rn_err *err)
{
    if (!rn_engine_pool(e)->classes) { // after a rebuild that failed
        return rn_err_set(err, -EIO, "the device is lost");
    }
    int r = check_params(e, params, err);
    if (r < 0) {
        return r;
    }
    const struct rn_program *p = rn_engine_program(e);
    struct rn_seq *s = rn_mem_alloc(1, sizeof *s);
    struct rn_seq_group *groups = rn_mem_alloc(p->n_groups, sizeof *groups);
    if (!s || !groups) {
        rn_mem_free(s);
        rn_mem_free(groups);
        return rn_err_nomem(err, sizeof *s, "sequence");
    }
    uint64_t origin = params->origin ? params->origin : params->sinks;
    *s = (struct rn_seq){.engine = e, .rope = params->rope, .n = params->n, .s = params->sinks, .evict = params->evict, .origin = origin, .stored = params->stored,
                         .head = params->sinks ? 0 : origin, .n_groups = p->n_groups, .groups = groups};
    s->accepted = s->head;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        groups[g].sliding = p->groups[g].window;
        groups[g].s = groups[g].sliding ? 0 : s->s;
    }
    r = s->rope.kind == RN_ROPE_AS_TRAINED ? 0 : scale_ropes(s, err);
    if (r < 0) {
        rn_seq_destroy(s);
        return r;
    }
    *ret = s;
    return 0;
}

void rn_seq_destroy(struct rn_seq *s)
{
    if (!s) {
        return;
    }
    rn_seq_finish_pages(s);
    rn_seq_unreserve(s);
    if (s->ropes) {
        rn_mem_free(s->ropes[0].freq); // one block for all
    }
    rn_mem_free(s->ropes);
    rn_mem_free(s->groups);
    rn_mem_free(s->runs);
    rn_mem_free(s->turns);
    rn_mem_free(s);
}

uint64_t rn_seq_head(const struct rn_seq *s)
{
    return s->head;
}

uint64_t rn_seq_origin(const struct rn_seq *s)
{
    return s->origin;
}

size_t rn_seq_bytes(const struct rn_seq *s)
{
    size_t bytes = 0;
    struct rn_kv_pool *pool = rn_engine_pool(s->engine);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_page_list *lists[] = {&s->groups[g].pinned, &s->groups[g].window, &s->groups[g].before};
        for (int w = 0; w < 3; w++) {
            for (size_t i = 0; i < lists[w]->n; i++) {
                bytes += lists[w]->pages[i]->refs == 1 ? rn_kv_page_bytes(pool, g, w > 0) : 0;
            }
        }
    }
    return bytes;
}

int rn_seq_reserve(struct rn_seq *s, struct rn_err *err)
{
    struct rn_kv_pool *pool = rn_engine_pool(s->engine);
    uint64_t need = needed_bytes(s->engine, s->n, s->s);
    if (s->reserved == 0) {
        if (pool->reserved + need > pool->limit) {
            return rn_err_set(err, -EAGAIN, "%llu bytes of KV are promised, %llu more do not fit into %llu", (unsigned long long)pool->reserved,
                              (unsigned long long)need, (unsigned long long)pool->limit);
        }
        s->reserved = need;
        pool->reserved += need;
    }
    return 0;
}

void rn_seq_unreserve(struct rn_seq *s)
{
    rn_engine_pool(s->engine)->reserved -= s->reserved;
    s->reserved = 0;
}
