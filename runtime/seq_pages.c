/* Pages of a sequence: the lists of each layer group, room for tokens to come, what may be dropped, shared or must be copied.
 *
 * A sliding-window group has one stream from index 0. In a re-read sequence (origin > S > 0) its tokens below S and those from the origin
 * on never see each other: they are two streams, `before` and `window`, and no page stands for the gap between them. */
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

/* A sliding group of a re-read sequence: two streams. */
static bool is_split(const struct rn_seq *s, const struct rn_seq_group *group)
{
    return group->sliding && s->s && s->origin > s->s;
}

int rn_seq_make_room(struct rn_seq *s, uint32_t n_tokens, struct rn_err *err)
{
    uint64_t n_pinned = s->head < s->s ? s->s - s->head : 0;
    n_pinned = n_pinned < n_tokens ? n_pinned : n_tokens;
    uint64_t n_rest = n_tokens - n_pinned, from = n_pinned ? s->origin : s->head, last = from + n_rest - 1; // of the unpinned ones
    uint64_t pinned_end = s->head + n_pinned;
    int r = 0;
    for (uint32_t g = 0; g < s->n_groups && r == 0; g++) {
        struct rn_seq_group *group = &s->groups[g];
        if (n_pinned && !group->sliding) {
            r = list_fill(s, &group->pinned, g, false, (size_t)((pinned_end + RN_PAGE_TOKENS - 1) / RN_PAGE_TOKENS), err);
        } else if (n_pinned && is_split(s, group)) {
            r = fill_stream(s, &group->before, &group->before_page, g, 0, s->head, pinned_end - 1, err);
        } else if (n_pinned) {
            r = fill_stream(s, &group->window, &group->first_page, g, 0, s->head, pinned_end - 1, err);
        }
        if (r == 0 && n_rest) {
            r = fill_stream(s, &group->window, &group->first_page, g, group->s, from, last, err);
        }
    }
    return r;
}

bool rn_seq_at_gap(const struct rn_seq *s)
{
    bool splits = false;
    for (uint32_t g = 0; g < s->n_groups; g++) {
        splits = splits || is_split(s, &s->groups[g]);
    }
    return splits && s->head == s->origin;
}

void rn_seq_view(const struct rn_seq *s, struct rn_step_pages *ret_pages, struct rn_step_view *ret)
{
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        bool before = is_split(s, group) && s->head < s->s;
        ret_pages[g] = (struct rn_step_pages){.n_pinned = group->s,
                                              .pinned = group->pinned.data,
                                              .window = before ? group->before.data : group->window.data,
                                              .first_page = before ? group->before_page : group->first_page};
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

/* Drops the pages of a stream that lie wholly below `low`, counted from its start. */
static void drop_below(struct rn_seq *s, struct rn_page_list *list, uint64_t *first_page, uint64_t low)
{
    uint64_t dead = low / RN_PAGE_TOKENS;
    if (dead > *first_page && list->n) {
        uint64_t n = dead - *first_page;
        n = n < list->n ? n : list->n;
        list_drop(s, list, 0, (size_t)n);
        *first_page += n;
    }
}

void rn_seq_drop_pages(struct rn_seq *s, uint64_t u)
{
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct rn_seq_group *group = &s->groups[g];
        uint64_t low = group_low(s, group, u);
        if (!is_split(s, group)) {
            drop_below(s, &group->window, &group->first_page, low > group->s ? low - group->s : 0);
        } else if (u < s->s) {
            drop_below(s, &group->before, &group->before_page, low);
        } else {
            list_drop(s, &group->before, 0, group->before.n);
            drop_below(s, &group->window, &group->first_page, u < s->origin ? 0 : low);
        }
    }
}

bool rn_seq_pages_alive(const struct rn_seq *s, uint64_t at, uint64_t next)
{
    if (at > s->s && at < s->low) {
        return false;
    }
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const struct rn_seq_group *group = &s->groups[g];
        if (next <= s->s && !group->sliding) {
            continue; // pinned pages never go
        }
        bool before = is_split(s, group) && next <= s->s;
        uint64_t first = before ? group->before_page : group->first_page;
        uint64_t low = group->sliding ? group_low(s, group, next) : rn_seq_base_of_next(s, next);
        bool gone = (before ? group->before.n : group->window.n) == 0 || (low - group->s) / RN_PAGE_TOKENS < first;
        if (low < next && gone) {
            return false;
        }
    }
    return true;
}

enum stream { PINNED, WINDOW, BEFORE, N_STREAMS };

static struct rn_page_list *list_of(struct rn_seq_group *group, enum stream stream)
{
    return stream == PINNED ? &group->pinned : stream == WINDOW ? &group->window : &group->before;
}

static uint64_t first_page_of(const struct rn_seq_group *group, enum stream stream)
{
    return stream == PINNED ? 0 : stream == WINDOW ? group->first_page : group->before_page;
}

/* Replaces page i of a list by a copy of its first n_tokens tokens when someone else reads it too (I4). */
static int own_page(struct rn_seq *s, uint32_t g, enum stream stream, size_t i, uint32_t n_tokens, struct rn_err *err)
{
    struct rn_page_list *list = list_of(&s->groups[g], stream);
    struct rn_kv_page *page = list->pages[i];
    if (page->refs == 1) {
        return 0;
    }
    struct rn_kv_page *copy = rn_kv_page_take(rn_engine_pool(s->engine), g, /*window=*/stream != PINNED);
    if (!copy) {
        return rn_err_set(err, -ENOMEM, "no free KV page for the copy of a shared one");
    }
    rn_kv_page_copy(rn_engine_pool(s->engine), g, /*window=*/stream != PINNED, copy->data, page->data, n_tokens);
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
static uint64_t stream_end(const struct rn_seq *s, const struct rn_seq_group *group, enum stream stream, uint64_t end)
{
    switch (stream) {
    case PINNED:
        return end < group->s ? end : group->s;
    case BEFORE:
        return !is_split(s, group) ? 0 : end < s->s ? end : s->s;
    default:
        return end > group->s && (end >= s->origin || (group->sliding && !is_split(s, group))) ? end - group->s : 0;
    }
}

int rn_seq_cut_pages(struct rn_seq *s, uint64_t end, struct rn_err *err)
{
    // First what can fail, then what cannot: without a page for a copy the sequence stays as it was, so copies are whole.
    for (uint32_t i = 0; i < N_STREAMS * s->n_groups; i++) {
        struct rn_seq_group *group = &s->groups[i / N_STREAMS];
        enum stream stream = i % N_STREAMS;
        uint32_t partial;
        size_t keep = pages_below(stream_end(s, group, stream, end), first_page_of(group, stream), &partial);
        bool writes = keep && keep <= list_of(group, stream)->n && partial;
        int r = writes ? own_page(s, i / N_STREAMS, stream, keep - 1, RN_PAGE_TOKENS, err) : 0;
        if (r < 0) {
            return r;
        }
    }
    for (uint32_t i = 0; i < N_STREAMS * s->n_groups; i++) {
        struct rn_seq_group *group = &s->groups[i / N_STREAMS];
        enum stream stream = i % N_STREAMS;
        struct rn_page_list *list = list_of(group, stream);
        uint32_t partial;
        size_t keep = pages_below(stream_end(s, group, stream, end), first_page_of(group, stream), &partial);
        list_drop(s, list, keep < list->n ? keep : list->n, list->n);
    }
    return 0;
}

/* Shares the pages of from's stream below `end` with to's; the partial last one is copied. */
static int share_stream(struct rn_seq *to, enum stream to_stream, struct rn_seq_group *from, enum stream stream, uint32_t g, uint64_t end,
                        struct rn_err *err)
{
    const struct rn_page_list *list = list_of(from, stream);
    uint32_t partial;
    size_t wanted = pages_below(end, first_page_of(from, stream), &partial), n = wanted < list->n ? wanted : list->n;
    for (size_t i = 0; i < n; i++) {
        int r = list_add(list_of(&to->groups[g], to_stream), list->pages[i], err);
        if (r < 0) {
            return r;
        }
        rn_kv_page_share(list->pages[i]);
    }
    return n && n == wanted && partial ? own_page(to, g, to_stream, n - 1, partial, err) : 0;
}

int rn_seq_share_pages(struct rn_seq *to, const struct rn_seq *from, uint64_t at, struct rn_err *err)
{
    int r = 0;
    for (uint32_t g = 0; g < from->n_groups && r == 0; g++) {
        struct rn_seq_group *group = &from->groups[g];
        bool unsplit = is_split(from, group) && at <= from->s; // the fork goes on behind S: one stream
        enum stream window = unsplit ? BEFORE : WINDOW;
        to->groups[g].first_page = first_page_of(group, window);
        to->groups[g].before_page = group->before_page;
        r = share_stream(to, PINNED, group, PINNED, g, stream_end(from, group, PINNED, at), err);
        r = r < 0 ? r : share_stream(to, WINDOW, group, window, g, stream_end(from, group, window, at), err);
        r = r < 0 || unsplit ? r : share_stream(to, BEFORE, group, BEFORE, g, stream_end(from, group, BEFORE, at), err);
    }
    return r;
}

void rn_seq_finish_pages(struct rn_seq *s)
{
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct rn_page_list *lists[] = {&s->groups[g].pinned, &s->groups[g].window, &s->groups[g].before};
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
            list_drop(s, lists[i], 0, lists[i]->n);
            rn_mem_free(lists[i]->pages);
            rn_mem_free(lists[i]->data);
        }
    }
}
