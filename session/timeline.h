/* One line of tokens and what it consists of: the log, the items in it, the turn starts.
 *
 * I1. The log is append-only except for the tokens of the request that runs on it: those may be cut off again.
 * I2. Items are in conversation order; those inside the timeline have ascending ranges. An answer's range starts with the generation
 *     prompt. Tokens between two ranges (the end mark and newline that an answer lacked) belong to the item before them.
 * I3. turns is strictly ascending and below log.len: the first token of each user message.
 * owner: engine thread. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/mem.h"
#include "session/service.h"

#define RN_NOWHERE UINT64_MAX /* an item that a rebase left outside the timeline */

struct rn_item {
    char id[RN_ID_BYTES];
    char role[16];
    bool turn_start;     /* its first token opens a turn */
    bool answer;         /* sampled: the log up to `end` lacks what closes it, but maybe for an end mark */
    uint64_t first, end; /* [first, end), or RN_NOWHERE both */
    json_t *json;        /* owned reference; never changed once it is here */
};

/* Zero is empty. */
struct rn_timeline {
    struct rn_ids log;
    uint64_t *turns;
    size_t n_turns, cap_turns;
    struct rn_item *items;
    size_t n_items, cap_items;
};

void rn_timeline_finish(struct rn_timeline *t);
/* *ret (empty) becomes the first `at` tokens and n_items items of t. 0 or -ENOMEM. */
int rn_timeline_copy(struct rn_timeline *ret, const struct rn_timeline *t, uint64_t at, size_t n_items);
/* Forgets tokens from `end` and items from n_items on. */
void rn_timeline_cut(struct rn_timeline *t, uint64_t end, size_t n_items);
int rn_timeline_add_turn(struct rn_timeline *t, uint64_t index);
/* Copies *item; shares item->json. */
int rn_timeline_add_item(struct rn_timeline *t, const struct rn_item *item);

/* The item that token `index` belongs to, or NULL. */
const struct rn_item *rn_timeline_item_at(const struct rn_timeline *t, uint64_t index);
/* The newest item inside the timeline, or NULL. */
const struct rn_item *rn_timeline_last(const struct rn_timeline *t);
/* First token of the turn that `index` lies in; RN_NOWHERE: before the first turn. */
uint64_t rn_timeline_turn_of(const struct rn_timeline *t, uint64_t index);
/* The turn starts in [from, to): borrowed until the timeline changes. */
const uint64_t *rn_timeline_turns(const struct rn_timeline *t, uint64_t from, uint64_t to, size_t *ret_n);

/* Text of an item's content (a string, or parts with "text"). 0 or -ENOMEM. */
int rn_item_text(const json_t *item, struct rn_buf *out);
/* Role of an item, "user" if it names none. */
const char *rn_item_role(const json_t *item);
/* System and developer messages: instructions, not turns. */
bool rn_role_leads(const char *role);
