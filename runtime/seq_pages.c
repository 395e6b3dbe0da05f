/* Pages of a sequence: the lists of each layer group, room for tokens to come, what may be dropped, shared or must be copied.
 *
 * A sliding-window group has one stream from index 0. In a re-read sequence (origin > S) its tokens below S and those from the origin on
 * never see each other, so at the jump the stream starts anew: `after` is filled beforehand and takes the place of `window` then. */
#include "runtime/seq_internal.h"

#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

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

/* Takes pages of a stream until the list has n of them. */
static int list_fill(struct rn_seq *s, struct rn_page_list *list, uint32_t group, bool window, size_t n, struct rn_err *err)
{
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

/* Pages for the indices [from, last] of a stream that begins at `start`; an empty list begins at from's page. */
static int fill_stream(struct rn_seq *s, struct rn_page_list *list, uint64_t *first_page, uint32_t g, uint64_t start, uint64_t from, uint64_t last,
                       struct rn_err *err)
{
    if (list->n == 0) {
        *first_page = (from - start) / RN_PAGE_TOKENS;
    }
    return list_fill(s, list, g, true, (size_t)((last - start) / RN_PAGE_TOKENS + 1 - *first_page), err);
}

int rn_seq_make_room(struct rn_seq *s, uint32_t n_tokens, struct rn_err *err)
{
    uint64_t n_pinned = s->head < s->s ? s->s - s->head : 0;
    n_pinned = n_pinned < n_tokens ? n_pinned : n_tokens;
    uint64_t n_rest = n_tokens - n_pinned, from = n_pinned ? s->origin : s->head, last = from + n_rest - 1; // of the unpinned ones
    bool jumps = n_pinned && s->origin > s->s;
    int r = 0;
    for (uint32_t g = 0; g < s->n_groups && r == 0; g++) {
        struct rn_seq_group *group = &s->groups[g];
        uint64_t pinned_end = s->head + n_pinned;
        if (n_pinned && !group->sliding) {
            r = list_fill(s, &group->pinned, g, false, (size_t)((pinned_end + RN_PAGE_TOKENS - 1) / RN_PAGE_TOKENS), err);
        } else if (n_pinned) {
            r = fill_stream(s, &group->window, &group->first_page, g, 0, s->head, pinned_end - 1, err);
        }
        if (r == 0 && n_rest && group->sliding && jumps) {
            r = fill_stream(s, &group->after, &group->after_page, g, 0, from, last, err);
        } else if (r == 0 && n_rest) {
            r = fill_stream(s, &group->window, &group->first_page, g, group->s, from, last, err);
        }
    }
    return r;
}

bool rn_seq_at_gap(const struct rn_seq *s)
{
    bool waits = false;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        waits = waits || s->groups[g].after.n;
    }
    return waits && s->head == s->origin;
}

void rn_seq_jump(struct rn_seq *s)
{
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct rn_seq_group *group = &s->groups[g];
        if (group->sliding) {
            list_drop(s, &group->window, 0, group->window.n);
            struct rn_page_list empty = group->window;
            group->window = group->after;
            group->first_page = group->after_page;
            group->after = empty;
        }
    }
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
        return rn_seq_base(s, u);
    }
    uint64_t first = s->origin > s->s && u >= s->origin ? s->origin : 0;
    uint64_t low = u + 1 > group->sliding ? u + 1 - group->sliding : 0;
    return low > first ? low : first;
}

void rn_seq_drop_pages(struct rn_seq *s, uint64_t u)
{
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
}

bool rn_seq_pages_alive(const struct rn_seq *s, uint64_t at)
{
    if (at > s->s && at < s->low) {
        return false;
    }
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        if (at <= s->s && !group->sliding) {
            continue; // pinned pages never go
        }
        uint64_t low = group->sliding ? group_low(s, group, at) : rn_seq_base_of_next(s, at);
        bool jumped = group->sliding && at <= s->s && s->origin > s->s && s->head >= s->origin;
        bool gone = group->window.n == 0 || (low - group->s) / RN_PAGE_TOKENS < group->first_page;
        if (low < at && (jumped || gone)) {
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

int rn_seq_cut_pages(struct rn_seq *s, uint64_t end, struct rn_err *err)
{
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
        list_drop(s, &group->after, 0, group->after.n);
    }
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

int rn_seq_share_pages(struct rn_seq *to, const struct rn_seq *from, uint64_t at, struct rn_err *err)
{
    int r = 0;
    for (uint32_t g = 0; g < from->n_groups && r == 0; g++) {
        const struct rn_seq_group *group = &from->groups[g];
        to->groups[g].first_page = group->first_page;
        r = share_stream(to, from, g, false, stream_end(from, group, false, at), err);
        r = r < 0 ? r : share_stream(to, from, g, true, stream_end(from, group, true, at), err);
    }
    return r;
}

void rn_seq_finish_pages(struct rn_seq *s)
{
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct rn_page_list *lists[] = {&s->groups[g].pinned, &s->groups[g].window, &s->groups[g].after};
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
            list_drop(s, lists[i], 0, lists[i]->n);
            rn_mem_free(lists[i]->pages);
            rn_mem_free(lists[i]->data);
        }
    }
}
