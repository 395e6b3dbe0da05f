/* Sequences: the rolling rule, its history, pages that come and go, rewind and fork. See engine.h and seq_internal.h.
 *
 * The rule (policy token): base(t) = max(o, S + max(0, t + 1 - N)). Policy turn: base stays while S + t + 1 - base <= N; then it jumps to
 * the first turn start p with base < p <= t, t + 1 - p >= floor((N - S) / 4) and S + t + 1 - p <= N - floor(N / 8); if there is none, the
 * token rule holds at this t. */
#include "runtime/seq_internal.h"

#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

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

/* ---- pages --------------------------------------------------------------------------------------------------------------------------- */

static void list_drop(struct rn_seq *s, struct rn_page_list *list, size_t from, size_t to)
{
    if (from == to) {
        return;
    }
    for (size_t i = from; i < to; i++) {
        rn_kv_page_drop(rn_engine_pool(s->engine), list->pages[i]);
    }
    memmove(list->pages + from, list->pages + to, (list->n - to) * sizeof *list->pages);
    memmove(list->data + from, list->data + to, (list->n - to) * sizeof *list->data);
    list->n -= to - from;
}

static int list_reserve(struct rn_page_list *list, size_t n, struct rn_err *err)
{
    if (n <= list->cap) {
        return 0;
    }
    size_t cap = list->cap ? 2 * list->cap : 16;
    cap = cap < n ? n : cap;
    struct rn_kv_page **pages = rn_mem_realloc(list->pages, cap, sizeof *pages);
    if (pages) {
        list->pages = pages;
    }
    void **data = rn_mem_realloc(list->data, cap, sizeof *data);
    if (data) {
        list->data = data;
    }
    if (!pages || !data) {
        return rn_err_nomem(err, cap * sizeof *pages, "page table");
    }
    list->cap = cap;
    return 0;
}

static int list_add(struct rn_page_list *list, struct rn_kv_page *page, struct rn_err *err)
{
    int r = list_reserve(list, list->n + 1, err);
    if (r == 0) {
        list->pages[list->n] = page;
        list->data[list->n++] = page->data;
    }
    return r;
}

/* Takes pages until the list has n of them. */
static int list_fill(struct rn_seq *s, uint32_t group, bool window, size_t n, struct rn_err *err)
{
    struct rn_page_list *list = window ? &s->groups[group].window : &s->groups[group].pinned;
    struct rn_kv_pool *pool = rn_engine_pool(s->engine);
    while (list->n < n) {
        struct rn_kv_page *page = rn_kv_page_take(pool, group, window);
        if (!page) {
            return rn_err_set(err, -ENOMEM, "no free KV page: %llu of %llu bytes in use", (unsigned long long)pool->used,
                              (unsigned long long)pool->limit);
        }
        int r = list_add(list, page, err);
        if (r < 0) {
            rn_kv_page_drop(pool, page);
            return r;
        }
    }
    return 0;
}

/* Index of the last of the next n tokens, and of the first that is not pinned (UINT64_MAX = none). */
static void next_tokens(const struct rn_seq *s, uint32_t n, uint64_t *ret_last, uint64_t *ret_first_unpinned)
{
    uint64_t pinned = s->head < s->s ? s->s - s->head : 0;
    uint64_t rest = n > pinned ? n - pinned : 0;
    uint64_t from = pinned ? s->origin : s->head;
    *ret_first_unpinned = rest ? from : UINT64_MAX;
    *ret_last = rest ? from + rest - 1 : s->head + n - 1;
}

int rn_seq_make_room(struct rn_seq *s, uint32_t n_tokens, struct rn_err *err)
{
    uint64_t last, first;
    next_tokens(s, n_tokens, &last, &first);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct rn_seq_group *group = &s->groups[g];
        uint64_t pinned_end = last + 1 < group->s ? last + 1 : group->s;
        uint64_t begin = group->sliding ? s->head : first; // a sliding group takes every token into its one stream
        int r = s->head < group->s ? list_fill(s, g, false, (size_t)((pinned_end + RN_PAGE_TOKENS - 1) / RN_PAGE_TOKENS), err) : 0;
        if (r == 0 && begin != UINT64_MAX) {
            if (group->window.n == 0) {
                group->first_page = (begin - group->s) / RN_PAGE_TOKENS;
            }
            r = list_fill(s, g, true, (size_t)((last - group->s) / RN_PAGE_TOKENS + 1 - group->first_page), err);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

void rn_seq_view(const struct rn_seq *s, struct rn_step_pages *ret_pages, struct rn_step_view *ret)
{
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        ret_pages[g] = (struct rn_step_pages){
            .n_pinned = group->s, .pinned = group->pinned.data, .window = group->window.data, .first_page = group->first_page};
    }
    *ret = (struct rn_step_view){.first = s->origin > s->s ? s->origin : 0, .groups = ret_pages};
}

/* First index that row u reads in a group's window stream. */
static uint64_t group_low(const struct rn_seq *s, const struct rn_seq_group *group, uint64_t u)
{
    if (!group->sliding) {
        return history_base(s, u);
    }
    uint64_t first = s->origin > s->s ? s->origin : 0;
    uint64_t low = u + 1 > group->sliding ? u + 1 - group->sliding : 0;
    return low > first ? low : first;
}

/* Frees window pages that no row >= u reads, and forgets history before u. */
static void free_below(struct rn_seq *s, uint64_t u)
{
    if (u <= s->low) {
        return;
    }
    s->low = u;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct rn_seq_group *group = &s->groups[g];
        uint64_t low = group_low(s, group, u);
        uint64_t dead = low > group->s ? (low - group->s) / RN_PAGE_TOKENS : 0; // pages below are wholly below low
        if (dead > group->first_page && group->window.n) {
            uint64_t n = dead - group->first_page;
            n = n < group->window.n ? n : group->window.n;
            list_drop(s, &group->window, 0, (size_t)n);
            group->first_page += n;
        }
    }
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

/* True when all pages that a row at index >= at can read are there. */
static bool pages_alive(const struct rn_seq *s, uint64_t at)
{
    if (at <= s->s) {
        return true;
    }
    if (at < s->low) {
        return false;
    }
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        uint64_t before = at > s->origin ? history_base(s, at - 1) : s->origin;
        uint64_t low = group->sliding ? group_low(s, group, at) : rule_base(s, at, before);
        if (low < at && (group->window.n == 0 || (low - group->s) / RN_PAGE_TOKENS < group->first_page)) {
            return false;
        }
    }
    return true;
}

/* Replaces page i of a list by a copy of its first n_tokens tokens when someone else reads it too (I4). */
static int own_page(struct rn_seq *s, uint32_t g, bool window, size_t i, uint32_t n_tokens, struct rn_err *err)
{
    struct rn_page_list *list = window ? &s->groups[g].window : &s->groups[g].pinned;
    struct rn_kv_page *page = list->pages[i];
    if (page->refs == 1) {
        return 0;
    }
    struct rn_kv_page *copy = rn_kv_page_take(rn_engine_pool(s->engine), g, window);
    if (!copy) {
        return rn_err_set(err, -ENOMEM, "no free KV page for the copy of a shared one");
    }
    rn_engine_copy_page(s->engine, g, !window, copy->data, page->data, n_tokens);
    rn_kv_page_drop(rn_engine_pool(s->engine), page);
    list->pages[i] = copy;
    list->data[i] = copy->data;
    return 0;
}

/* Pages of a stream that hold tokens below `end`, and how many tokens the last of them then holds (0 = all 64). */
static size_t pages_below(uint64_t end, uint64_t first_page, uint32_t *ret_partial)
{
    *ret_partial = (uint32_t)(end % RN_PAGE_TOKENS);
    uint64_t n = (end + RN_PAGE_TOKENS - 1) / RN_PAGE_TOKENS;
    return n > first_page ? (size_t)(n - first_page) : 0;
}

/* The end of one stream, counted from its start, when the sequence ends at `end`. */
static uint64_t stream_end(const struct rn_seq *s, const struct rn_seq_group *group, bool window, uint64_t end)
{
    if (!window) {
        return end < group->s ? end : group->s;
    }
    return end > group->s && (group->sliding || end >= s->origin) ? end - group->s : 0;
}

int rn_seq_rewind(struct rn_seq *s, uint64_t end, struct rn_err *err)
{
    if (end > s->head || (end > s->s && end < s->origin)) {
        return rn_err_set(err, -EINVAL, "rewind to %llu, expected at most %llu", (unsigned long long)end, (unsigned long long)s->head);
    }
    if (end == s->head) {
        return 0;
    }
    if (!pages_alive(s, end)) {
        return rn_err_set(err, -ENODATA, "rewind to %llu needs pages that are gone", (unsigned long long)end);
    }
    // First what can fail, then what cannot: without a page for a copy the sequence stays as it was, so copies are whole.
    for (uint32_t i = 0; i < 2 * s->n_groups; i++) {
        struct rn_seq_group *group = &s->groups[i / 2];
        bool window = i % 2;
        uint32_t partial;
        size_t keep = pages_below(stream_end(s, group, window, end), window ? group->first_page : 0, &partial);
        int r = keep && partial ? own_page(s, i / 2, window, keep - 1, RN_PAGE_TOKENS, err) : 0;
        if (r < 0) {
            return r;
        }
    }
    for (uint32_t i = 0; i < 2 * s->n_groups; i++) {
        struct rn_seq_group *group = &s->groups[i / 2];
        bool window = i % 2;
        struct rn_page_list *list = window ? &group->window : &group->pinned;
        uint32_t partial;
        size_t keep = pages_below(stream_end(s, group, window, end), window ? group->first_page : 0, &partial);
        list_drop(s, list, keep < list->n ? keep : list->n, list->n);
    }
    if (end < s->low) { // back in the pinned zone: the rule and the window start anew
        s->low = 0;
    }
    rn_seq_unpush(s, end);
    return 0;
}

/* Shares the pages of `from` below `end` with `to`; the partial last one is copied. */
static int share_stream(struct rn_seq *to, const struct rn_seq *from, uint32_t g, bool window, uint64_t end, struct rn_err *err)
{
    const struct rn_page_list *list = window ? &from->groups[g].window : &from->groups[g].pinned;
    uint32_t partial;
    size_t n = pages_below(end, window ? from->groups[g].first_page : 0, &partial);
    n = n < list->n ? n : list->n;
    for (size_t i = 0; i < n; i++) {
        int r = list_add(window ? &to->groups[g].window : &to->groups[g].pinned, list->pages[i], err);
        if (r < 0) {
            return r;
        }
        rn_kv_page_share(list->pages[i]);
    }
    return n && partial ? own_page(to, g, window, n - 1, partial, err) : 0;
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
    if (lacks_tokens || !pages_alive(s, at)) {
        return rn_err_set(err, -ENODATA, "fork at %llu needs pages that are gone", (unsigned long long)at);
    }
    struct rn_seq_params params = {
        .n = s->n, .sinks = s->s, .evict = s->evict, .origin = at > s->origin ? s->origin : s->s, .stored = s->stored};
    struct rn_seq *fork;
    int r = rn_seq_create(&fork, s->engine, &params, err);
    if (r < 0) {
        return r;
    }
    for (uint32_t g = 0; g < s->n_groups && r == 0; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        fork->groups[g].first_page = group->first_page;
        r = share_stream(fork, s, g, false, at < group->s ? at : group->s, err);
        if (r == 0 && at > group->s && at > s->origin) {
            r = share_stream(fork, s, g, true, at - group->s, err);
        }
    }
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
        uint64_t tokens = (sliding && sliding < n ? sliding : n) + 256 + 256;
        uint64_t window = tokens / RN_PAGE_TOKENS + 2; // a border at each end
        struct rn_kv_pool *pool = rn_engine_pool((struct rn_engine *)e);
        bytes += pinned * rn_kv_page_bytes(pool, g, false) + window * rn_kv_page_bytes(pool, g, true);
    }
    return bytes;
}

static int check_params(const struct rn_engine *e, const struct rn_seq_params *params, struct rn_err *err)
{
    uint32_t trained = rn_engine_info(e)->n_ctx_train;
    if (params->n < 16 || params->n > trained) {
        return rn_err_set(err, -EINVAL, "window is %u, expected 16 to %u (the trained length)", params->n, trained);
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

int rn_seq_create(struct rn_seq **ret, struct rn_engine *e, const struct rn_seq_params *params, struct rn_err *err)
{
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
    *s = (struct rn_seq){.engine = e, .n = params->n, .s = params->sinks, .evict = params->evict, .origin = origin, .stored = params->stored,
                         .head = params->sinks ? 0 : origin, .n_groups = p->n_groups, .groups = groups};
    s->accepted = s->head;
    for (uint32_t g = 0; g < p->n_groups; g++) {
        groups[g].sliding = p->groups[g].window;
        groups[g].s = groups[g].sliding ? 0 : s->s;
    }
    *ret = s;
    return 0;
}

void rn_seq_destroy(struct rn_seq *s)
{
    if (!s) {
        return;
    }
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct rn_page_list *lists[] = {&s->groups[g].pinned, &s->groups[g].window};
        for (int i = 0; i < 2; i++) {
            list_drop(s, lists[i], 0, lists[i]->n);
            rn_mem_free(lists[i]->pages);
            rn_mem_free(lists[i]->data);
        }
    }
    rn_seq_unreserve(s);
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
        const struct rn_page_list *lists[] = {&s->groups[g].pinned, &s->groups[g].window};
        for (int w = 0; w < 2; w++) {
            for (size_t i = 0; i < lists[w]->n; i++) {
                bytes += lists[w]->pages[i]->refs == 1 ? rn_kv_page_bytes(pool, g, w == 1) : 0;
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
