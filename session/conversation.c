#include "session/conversation.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "session/store.h"

#define KEEP_ON_DISK 256       // idle conversations kept although the disk has them
#define KEEP_TOKENS (8u << 20) // and tokens in their logs: 32 MiB
#define KEEP_LISTED 1024       // listed ones without a store
#define KEEP_PER_LANE 4        // unlisted ones of one lane: enough to step back and branch

uint32_t rn_auto_sinks(uint32_t n, uint64_t lead)
{
    uint64_t s = lead > 4 ? lead : 4;
    return s < n / 4 ? (uint32_t)s : n / 4;
}

struct rn_conversation *rn_conversation_create(void)
{
    struct rn_conversation *c = rn_mem_alloc(1, sizeof *c);
    if (c) {
        rn_id_new("sess_", c->id);
        c->created_at = c->last_used = rn_clock_unix();
    }
    return c;
}

void rn_conversation_drop_pages(struct rn_conversation *c)
{
    rn_seq_destroy(c->seq);
    c->seq = NULL;
}

void rn_conversation_destroy(struct rn_conversation *c)
{
    if (!c) {
        return;
    }
    rn_conversation_drop_pages(c);
    rn_timeline_finish(&c->timeline);
    rn_mem_free(c->title);
    rn_mem_free(c->instructions);
    rn_mem_free(c->answered);
    rn_mem_free(c);
}

int rn_conversation_fork(struct rn_conversation **ret, const struct rn_conversation *c, uint64_t at, size_t n_items, uint64_t base)
{
    struct rn_conversation *f = rn_conversation_create();
    if (!f) {
        return -ENOMEM;
    }
    f->n = c->n;
    f->sinks = c->sinks;
    f->evict = c->evict;
    f->rope = c->rope;
    f->lead = c->lead;
    f->tokenizer = c->tokenizer;
    f->at = f->head = at;
    f->origin = at > c->origin ? c->origin : c->sinks;
    f->share = at > 0;
    f->parent_origin = c->origin;
    memcpy(f->parent, c->id, sizeof f->parent);
    f->title = c->title ? rn_mem_strdup(c->title) : NULL;
    f->instructions = c->instructions ? rn_mem_strdup(c->instructions) : NULL;
    int r = (c->title && !f->title) || (c->instructions && !f->instructions) ? -ENOMEM : 0;
    if (r == 0) {
        r = rn_timeline_copy(&f->timeline, &c->timeline, at, n_items);
    }
    if (r < 0) {
        rn_conversation_destroy(f);
        return r;
    }
    f->base = base == RN_NOWHERE ? rn_conversation_guess_base(f) : base < f->origin ? f->origin : base;
    *ret = f;
    return 0;
}

// ---- Loading -----------------------------------------------------------------------------------------------------------------------

static int load_items(struct rn_conversation *c, const struct rn_store_job *job)
{
    for (size_t i = 0; i < job->n_items; i++) {
        const struct rn_store_item *from = &job->items[i];
        struct rn_item item = {
            .turn_start = from->turn_start,
            .answer = from->open,
            .first = from->first,
            .end = from->end,
            .json = from->item,
        };
        memcpy(item.id, from->id, sizeof item.id);
        memcpy(item.role, from->role, sizeof item.role);
        int r = rn_timeline_add_item(&c->timeline, &item);
        if (r == 0 && item.turn_start && item.first != RN_NOWHERE) {
            r = rn_timeline_add_turn(&c->timeline, item.first);
        }
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int load_answered(struct rn_conversation *c, const struct rn_store_job *job)
{
    for (size_t i = 0; i < job->n_responses; i++) {
        const struct rn_store_response *from = &job->responses[i];
        struct rn_answered a = {.head = from->head, .n_items = from->n_items, .base = from->head == c->head ? c->base : RN_NOWHERE};
        memcpy(a.id, from->id, sizeof a.id);
        int r = rn_conversation_add_answered(c, &a);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

int rn_conversation_load(struct rn_conversation **ret, struct rn_store_job *job)
{
    struct rn_conversation *c = rn_mem_alloc(1, sizeof *c);
    if (!c) {
        return -ENOMEM;
    }
    struct rn_store_session *s = &job->session;
    *c = (struct rn_conversation){
        .listed = true,
        .on_disk = true,
        .created_at = s->created_at,
        .last_used = s->last_used,
        .title = s->title,
        .n = s->n,
        .sinks = s->sinks,
        .evict = s->evict,
        .rope = s->rope,
        .lead = s->lead,
        .instructions = s->instructions,
        .tokenizer = s->tokenizer_fingerprint,
        .at = s->at,
        .origin = s->origin < s->sinks ? s->sinks : s->origin,
        .head = s->head,
    };
    s->title = s->instructions = NULL;
    c->base = s->sinks + s->evicted < c->origin ? c->origin : s->sinks + s->evicted;
    memcpy(c->id, s->id, sizeof c->id);
    memcpy(c->parent, s->parent, sizeof c->parent);
    memcpy(c->last_response_id, s->last_response_id, sizeof c->last_response_id);
    c->timeline.log = (struct rn_ids){.data = job->ids, .len = job->n_ids, .cap = job->n_ids};
    job->ids = NULL;
    job->n_ids = 0;
    int r = load_items(c, job);
    if (r == 0) {
        r = load_answered(c, job);
    }
    if (r < 0) {
        rn_conversation_destroy(c);
        return r;
    }
    *ret = c;
    return 0;
}

// ---- Changes -----------------------------------------------------------------------------------------------------------------------

int rn_conversation_add_answered(struct rn_conversation *c, const struct rn_answered *a)
{
    if (c->n_answered == c->cap_answered) {
        size_t cap = c->cap_answered ? c->cap_answered * 2 : 4;
        struct rn_answered *p = rn_mem_realloc(c->answered, cap, sizeof *p);
        if (!p) {
            return -ENOMEM;
        }
        c->answered = p;
        c->cap_answered = cap;
    }
    c->answered[c->n_answered++] = *a;
    return 0;
}

void rn_fresh_finish(struct rn_fresh *f)
{
    rn_timeline_finish(&f->timeline);
    rn_mem_free(f->instructions);
    *f = (struct rn_fresh){0};
}

uint32_t rn_fresh_sinks(const struct rn_conversation *c, const struct rn_fresh *f)
{
    bool automatic = c->sinks == rn_auto_sinks(c->n, c->lead); // what was chosen by the rule follows the new block
    return automatic ? rn_auto_sinks(c->n, f->lead) : c->sinks;
}

void rn_conversation_rebase(struct rn_conversation *c, struct rn_fresh *f)
{
    const struct rn_timeline *t = &f->timeline;
    for (size_t i = 0; i < c->n_answered; i++) {
        struct rn_answered *a = &c->answered[i];
        a->head = a->n_items == t->n_items ? t->log.len : a->n_items ? t->items[a->n_items - 1].end : 0;
        a->base = RN_NOWHERE;
    }
    c->rebased = c->head > 0 ? f->cause : c->rebased;
    rn_conversation_drop_pages(c);
    c->share = false;
    c->sinks = rn_fresh_sinks(c, f);
    c->lead = f->lead;
    rn_timeline_finish(&c->timeline);
    c->timeline = f->timeline;
    rn_mem_free(c->instructions);
    c->instructions = f->instructions;
    *f = (struct rn_fresh){0};
    c->origin = c->sinks;
    c->head = c->timeline.log.len;
    c->base = rn_conversation_guess_base(c);
}

uint64_t rn_conversation_guess_base(const struct rn_conversation *c)
{
    uint64_t base = c->sinks + (c->head > c->n ? c->head - c->n : 0);
    if (base <= c->origin) {
        return c->origin;
    }
    if (c->evict == RN_EVICT_TURN) {
        size_t n;
        const uint64_t *turns = rn_timeline_turns(&c->timeline, base, c->head, &n);
        base = n ? turns[0] : base;
    }
    return base;
}

// ---- The table ---------------------------------------------------------------------------------------------------------------------

void rn_conversations_finish(struct rn_conversations *all)
{
    for (size_t i = 0; i < all->n; i++) {
        rn_conversation_destroy(all->list[i]);
    }
    rn_mem_free(all->list);
    *all = (struct rn_conversations){0};
}

int rn_conversations_add(struct rn_conversations *all, struct rn_conversation *c)
{
    if (all->n == all->cap) {
        size_t cap = all->cap ? all->cap * 2 : 16;
        struct rn_conversation **p = rn_mem_realloc(all->list, cap, sizeof(void *));
        if (!p) {
            return -ENOMEM;
        }
        all->list = p;
        all->cap = cap;
    }
    all->list[all->n++] = c;
    rn_conversations_touch(all, c);
    return 0;
}

void rn_conversations_remove(struct rn_conversations *all, struct rn_conversation *c)
{
    for (size_t i = 0; i < all->n; i++) {
        if (all->list[i] == c) {
            all->list[i] = all->list[--all->n];
            break;
        }
    }
    rn_conversation_destroy(c);
}

void rn_conversations_touch(struct rn_conversations *all, struct rn_conversation *c)
{
    c->stamp = ++all->clock;
}

struct rn_conversation *rn_conversations_find(const struct rn_conversations *all, const char *id)
{
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->list[i]->id, id) == 0) {
            return all->list[i];
        }
    }
    return NULL;
}

struct rn_conversation *rn_conversations_find_response(const struct rn_conversations *all, const char *id, const struct rn_answered **ret)
{
    for (size_t i = 0; i < all->n; i++) {
        struct rn_conversation *c = all->list[i];
        for (size_t k = c->n_answered; k-- > 0;) {
            if (strcmp(c->answered[k].id, id) == 0) {
                *ret = &c->answered[k];
                return c;
            }
        }
    }
    return NULL;
}

enum group { ON_DISK, LISTED, UNLISTED };

static enum group group_of(const struct rn_conversation *c)
{
    return c->on_disk ? ON_DISK : c->listed ? LISTED : UNLISTED;
}

// Least used idle conversation of a group (of a lane), and how many the group has.
static struct rn_conversation *oldest(const struct rn_conversations *all, enum group group, uint64_t lane, size_t *ret_n,
                                      uint64_t *ret_tokens)
{
    struct rn_conversation *found = NULL;
    *ret_n = 0;
    *ret_tokens = 0;
    for (size_t i = 0; i < all->n; i++) {
        struct rn_conversation *c = all->list[i];
        if (group_of(c) != group || (group == UNLISTED && c->lane != lane)) {
            continue;
        }
        ++*ret_n;
        *ret_tokens += c->timeline.log.len;
        if (!c->run && (!found || c->stamp < found->stamp)) {
            found = c;
        }
    }
    return found;
}

static void trim_group(struct rn_conversations *all, enum group group, uint64_t lane, size_t keep, uint64_t keep_tokens)
{
    for (;;) {
        size_t n;
        uint64_t tokens;
        struct rn_conversation *c = oldest(all, group, lane, &n, &tokens);
        if (!c || n <= 1 || (n <= keep && tokens <= keep_tokens)) {
            return;
        }
        rn_conversations_remove(all, c);
    }
}

void rn_conversations_trim(struct rn_conversations *all)
{
    trim_group(all, ON_DISK, 0, KEEP_ON_DISK, KEEP_TOKENS);
    trim_group(all, LISTED, 0, KEEP_LISTED, UINT64_MAX);
    for (size_t i = 0; i < all->n; i++) {
        if (group_of(all->list[i]) == UNLISTED) {
            size_t before = all->n;
            trim_group(all, UNLISTED, all->list[i]->lane, KEEP_PER_LANE, UINT64_MAX);
            i = all->n == before ? i : SIZE_MAX; // the list has changed: from the start
        }
    }
}

bool rn_conversation_rereads(const struct rn_conversation *c, uint64_t limit)
{
    return c->head <= c->origin || c->head - c->origin <= (limit ? limit : 8 * (uint64_t)c->n);
}

struct rn_conversation *rn_conversations_victim(const struct rn_conversations *all, uint64_t reread_limit)
{
    struct rn_conversation *found = NULL;
    bool found_exact = false;
    for (size_t i = 0; i < all->n; i++) {
        struct rn_conversation *c = all->list[i];
        if (!c->seq || c->run) {
            continue;
        }
        bool exact = rn_conversation_rereads(c, reread_limit);
        if (!found || (exact && !found_exact) || (exact == found_exact && c->stamp < found->stamp)) {
            found = c;
            found_exact = exact;
        }
    }
    return found;
}
