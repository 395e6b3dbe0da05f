#include "session/timeline.h"

#include <errno.h>
#include <string.h>

static void drop_items(struct rn_timeline *t, size_t n)
{
    while (t->n_items > n) {
        json_decref(t->items[--t->n_items].json);
    }
}

void rn_timeline_finish(struct rn_timeline *t)
{
    drop_items(t, 0);
    rn_ids_finish(&t->log);
    rn_mem_free(t->turns);
    rn_mem_free(t->items);
    *t = (struct rn_timeline){0};
}

// Room for one more element; cap doubles.
static int grow(void **data, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) {
        return 0;
    }
    size_t more = *cap ? *cap * 2 : 8;
    void *p = rn_mem_realloc(*data, more, size);
    if (!p) {
        return -ENOMEM;
    }
    *data = p;
    *cap = more;
    return 0;
}

int rn_timeline_add_turn(struct rn_timeline *t, uint64_t index)
{
    void *p = t->turns;
    int r = grow(&p, t->n_turns, &t->cap_turns, sizeof *t->turns);
    t->turns = p;
    if (r == 0) {
        t->turns[t->n_turns++] = index;
    }
    return r;
}

int rn_timeline_add_item(struct rn_timeline *t, const struct rn_item *item)
{
    void *p = t->items;
    int r = grow(&p, t->n_items, &t->cap_items, sizeof *t->items);
    t->items = p;
    if (r == 0) {
        t->items[t->n_items] = *item;
        json_incref(t->items[t->n_items].json);
        t->n_items++;
    }
    return r;
}

int rn_timeline_copy(struct rn_timeline *ret, const struct rn_timeline *t, uint64_t at, size_t n_items)
{
    int r = rn_ids_append(&ret->log, t->log.data, (size_t)at);
    for (size_t i = 0; r == 0 && i < t->n_turns && t->turns[i] < at; i++) {
        r = rn_timeline_add_turn(ret, t->turns[i]);
    }
    for (size_t i = 0; r == 0 && i < n_items; i++) {
        r = rn_timeline_add_item(ret, &t->items[i]);
    }
    if (r < 0) {
        rn_timeline_finish(ret);
    }
    return r;
}

void rn_timeline_cut(struct rn_timeline *t, uint64_t end, size_t n_items)
{
    if (t->log.len > end) {
        t->log.len = (size_t)end;
    }
    while (t->n_turns > 0 && t->turns[t->n_turns - 1] >= end) {
        t->n_turns--;
    }
    drop_items(t, n_items);
}

const struct rn_item *rn_timeline_item_at(const struct rn_timeline *t, uint64_t index)
{
    for (size_t i = t->n_items; i-- > 0;) {
        if (t->items[i].first != RN_NOWHERE && t->items[i].first <= index) {
            return &t->items[i];
        }
    }
    return NULL;
}

const struct rn_item *rn_timeline_last(const struct rn_timeline *t)
{
    return rn_timeline_item_at(t, RN_NOWHERE - 1);
}

// Number of turn starts below `index`.
static size_t turns_below(const struct rn_timeline *t, uint64_t index)
{
    size_t low = 0, high = t->n_turns;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (t->turns[mid] < index) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

uint64_t rn_timeline_turn_of(const struct rn_timeline *t, uint64_t index)
{
    size_t n = turns_below(t, index + 1);
    return n ? t->turns[n - 1] : RN_NOWHERE;
}

const uint64_t *rn_timeline_turns(const struct rn_timeline *t, uint64_t from, uint64_t to, size_t *ret_n)
{
    size_t a = turns_below(t, from), b = turns_below(t, to);
    *ret_n = b - a;
    return b > a ? t->turns + a : NULL;
}

int rn_item_text(const json_t *item, struct rn_buf *out)
{
    json_t *content = json_object_get(item, "content");
    if (json_is_string(content)) {
        return rn_buf_add(out, json_string_value(content), json_string_length(content));
    }
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        json_t *text = json_object_get(part, "text");
        int r = json_is_string(text) ? rn_buf_add(out, json_string_value(text), json_string_length(text)) : 0;
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

const char *rn_item_role(const json_t *item)
{
    const char *role = json_string_value(json_object_get(item, "role"));
    return role ? role : "user";
}

bool rn_role_leads(const char *role)
{
    return strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
}
