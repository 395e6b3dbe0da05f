/* How often each token occurred, kept up while tokens come at the end and leave at the window's base. See sampler.h.
 *
 * I1. list has each id at most once, and slots (open addressing, linear probing) finds it.
 * I2. An entry whose counts fell to zero stays until the list must grow; then those go first. So memory follows the window's distinct ids
 *     and the answer's, not the length of the session.
 * Nothing depends on the order of the list: what is done with an entry is done to its own id alone. */
#include "runtime/sampler.h"

#include <errno.h>

#include "runtime/base/mem.h"

#define FIRST_CAP 256 // entries; a power of two

void rn_counts_finish(struct rn_counts *c)
{
    rn_mem_free(c->list);
    rn_mem_free(c->slots);
    *c = (struct rn_counts){0};
}

static void clear(struct rn_counts *c)
{
    for (size_t i = 0; i < c->n_slots; i++) {
        c->slots[i] = 0;
    }
    c->n = 0;
    c->pinned = c->base = c->end = c->output = 0;
}

// The slot that holds id, or the free one where it belongs.
static size_t slot_of(const struct rn_counts *c, uint32_t id)
{
    size_t mask = c->n_slots - 1, at = (id * 0x9E3779B1u) & mask;
    while (c->slots[at] && c->list[c->slots[at] - 1].id != id) {
        at = (at + 1) & mask;
    }
    return at;
}

const struct rn_count *rn_counts_find(const struct rn_counts *c, uint32_t id)
{
    uint32_t place = c->n ? c->slots[slot_of(c, id)] : 0;
    return place ? &c->list[place - 1] : NULL;
}

static void drop_zeros(struct rn_counts *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->list[i].seen || c->list[i].output) {
            c->list[kept++] = c->list[i];
        }
    }
    c->n = kept;
}

// Room for one more entry. 0 or -ENOMEM.
static int make_room(struct rn_counts *c)
{
    if (c->n < c->cap) {
        return 0;
    }
    drop_zeros(c);
    if (c->n * 4 >= c->cap * 3) { // less would make this happen again soon
        size_t cap = c->cap ? 2 * c->cap : FIRST_CAP;
        struct rn_count *list = rn_mem_realloc(c->list, cap, sizeof *list);
        c->list = list ? list : c->list;
        uint32_t *slots = list ? rn_mem_realloc(c->slots, 2 * cap, sizeof *slots) : NULL;
        if (!slots) {
            return -ENOMEM;
        }
        c->cap = cap;
        c->slots = slots;
        c->n_slots = 2 * cap;
    }
    for (size_t i = 0; i < c->n_slots; i++) {
        c->slots[i] = 0;
    }
    for (size_t i = 0; i < c->n; i++) {
        c->slots[slot_of(c, c->list[i].id)] = (uint32_t)i + 1;
    }
    return 0;
}

static struct rn_count *entry_of(struct rn_counts *c, uint32_t id)
{
    if (make_room(c) < 0) {
        return NULL;
    }
    size_t at = slot_of(c, id);
    if (!c->slots[at]) {
        c->list[c->n] = (struct rn_count){.id = id};
        c->slots[at] = (uint32_t)++c->n;
    }
    return &c->list[c->slots[at] - 1];
}

// Tokens [from, end) come.
static int come(struct rn_counts *c, const uint32_t *ids, size_t from, size_t end)
{
    for (size_t i = from; i < end; i++) {
        bool seen = i < c->pinned || i >= c->base, output = i >= c->output;
        if (!seen && !output) {
            continue;
        }
        struct rn_count *e = entry_of(c, ids[i]);
        if (!e) {
            return -ENOMEM;
        }
        e->seen += seen;
        e->output += output;
    }
    return 0;
}

// The base moves on: those below it are seen no more.
static void leave(struct rn_counts *c, const uint32_t *ids, size_t base)
{
    for (size_t i = c->base; i < base && i < c->end; i++) {
        c->list[c->slots[slot_of(c, ids[i])] - 1].seen--;
    }
    c->base = base;
}

int rn_counts_update(struct rn_counts *c, const uint32_t *ids, size_t pinned, size_t base, size_t end, size_t output)
{
    bool goes_on = c->n && pinned == c->pinned && output == c->output && base >= c->base && end >= c->end;
    if (!goes_on) {
        clear(c);
        c->pinned = pinned;
        c->base = base;
        c->output = output;
    }
    leave(c, ids, base);
    int r = come(c, ids, c->end, end);
    c->end = end;
    if (r < 0) {
        rn_counts_finish(c);
    }
    return r;
}
