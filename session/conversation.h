/* Conversations in memory: one line of tokens with its items, its responses (places to continue or fork from), its KV.
 *
 *   new --> [run on it] --> idle --> run ... --> dropped (on disk: loaded again when asked for; unlisted: gone for good)
 *
 * I1. head is the log's length at the end of the newest response that counts; tokens beyond it belong to `run`. What is on disk agrees with
 *     head, answered and timeline whenever run == NULL.
 * I2. A listed conversation (store: true) is only moved by requests that store; an unlisted one lives on its lane and dies with it.
 * I3. seq may be NULL at any time that no run is in the engine: its pages are re-read from the log (design: re-reading).
 * I4. n, evict, rope never change; sinks, lead, instructions and the log only by rn_conversation_rebase (a new timeline).
 * owner: engine thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/engine.h"
#include "session/service.h"
#include "session/timeline.h"

struct rn_err;
struct rn_run;
struct rn_store_job;

/* A response that ended: a position. */
struct rn_answered {
    char id[RN_ID_BYTES];
    uint64_t head;  /* log length at its end; RN_NOWHERE: a rebase left it outside the timeline */
    size_t n_items; /* the conversation up to its end */
    uint64_t base;  /* base of its last token; RN_NOWHERE = not known (loaded from disk) */
};

struct rn_conversation {
    char id[RN_ID_BYTES];
    bool listed;   /* store: true */
    bool on_disk;  /* listed, and there is a store */
    uint64_t lane; /* unlisted: its lane; 0 = ends with its response */
    int64_t created_at, last_used;
    char *title; /* owned; NULL = none yet */
    uint32_t n, sinks;
    enum rn_evict evict;
    struct rn_rope_scaling rope; /* zero = none */
    uint64_t lead;            /* B */
    char *instructions;       /* owned; NULL = absent */
    uint64_t tokenizer;       /* fingerprint that the log's ids belong to */
    char parent[RN_ID_BYTES]; /* fork: where from, and at which token */
    uint64_t at;

    uint64_t origin;
    struct rn_timeline timeline;
    uint64_t head;
    uint64_t base; /* base of token head - 1; origin when there is none */
    struct rn_answered *answered;
    size_t n_answered, cap_answered;
    char last_response_id[RN_ID_BYTES];

    struct rn_seq *seq;     /* owned; NULL = no pages */
    bool share;             /* a fork whose pages may still be taken from its parent's seq */
    uint64_t parent_origin; /* with share: the parent's origin then */
    const char *rebased;    /* cause that the next record tells; NULL = none */
    struct rn_run *run;     /* NULL = idle */
    uint64_t stamp;         /* of its last use; grows */
    bool ended;             /* its lane is gone: destroyed when its run ends */
};

/* S for a session whose leading block has `lead` tokens. */
uint32_t rn_auto_sinks(uint32_t n, uint64_t lead);

struct rn_conversation *rn_conversation_create(void); /* with a new id and the time; NULL = no memory */
void rn_conversation_destroy(struct rn_conversation *c);
/* A fork of `c` at token `at` with its first n_items items. base: of token at - 1, RN_NOWHERE = not known. 0 or -ENOMEM. */
int rn_conversation_fork(struct rn_conversation **ret, const struct rn_conversation *c, uint64_t at, size_t n_items, uint64_t base);
/* From a LOAD that succeeded; takes what the job holds. 0 or -ENOMEM. */
int rn_conversation_load(struct rn_conversation **ret, struct rn_store_job *job);

/* A new timeline of the same conversation. Zero is empty. */
struct rn_fresh {
    struct rn_timeline timeline; /* all items of the old one in order; those that are left out are RN_NOWHERE */
    char *instructions;          /* owned; NULL = none */
    uint64_t lead;               /* B */
    const char *cause;           /* static; NULL = there is no new timeline */
};
void rn_fresh_finish(struct rn_fresh *f);
/* S that the new timeline will have. */
uint32_t rn_fresh_sinks(const struct rn_conversation *c, const struct rn_fresh *f);
/* Takes what f holds. Responses move with their items; pages are dropped. */
void rn_conversation_rebase(struct rn_conversation *c, struct rn_fresh *f);
/* base(head - 1) as the token rule has it, at a turn start where the policy is by turn: for positions whose own base is not known. */
uint64_t rn_conversation_guess_base(const struct rn_conversation *c);
int rn_conversation_add_answered(struct rn_conversation *c, const struct rn_answered *a);
/* Gives its pages up. */
void rn_conversation_drop_pages(struct rn_conversation *c);

/* All conversations in memory. */
struct rn_conversations {
    struct rn_conversation **list;
    size_t n, cap;
    uint64_t clock; /* of stamps */
};
void rn_conversations_finish(struct rn_conversations *all);
int rn_conversations_add(struct rn_conversations *all, struct rn_conversation *c);     /* takes c; 0 or -ENOMEM */
void rn_conversations_remove(struct rn_conversations *all, struct rn_conversation *c); /* destroys it */
void rn_conversations_touch(struct rn_conversations *all, struct rn_conversation *c);
struct rn_conversation *rn_conversations_find(const struct rn_conversations *all, const char *id);
/* The conversation that a response belongs to, and the response; NULL when it is not in memory. */
struct rn_conversation *rn_conversations_find_response(const struct rn_conversations *all, const char *id, const struct rn_answered **ret);
/* Keeps memory bounded: idle conversations that can be loaded again go, the least used first; then the oldest unlisted ones of a lane
 * that has more than a few; without a store the oldest listed ones beyond a larger bound. */
void rn_conversations_trim(struct rn_conversations *all);
/* Whether lost pages are read again from the origin, which gives the same bits: the log is not longer than limit (0 = 8 N). */
bool rn_conversation_rereads(const struct rn_conversation *c, uint64_t limit);
/* Idle conversation whose pages should go next: those that re-reading gives back exactly first, then the least used; NULL = none. */
struct rn_conversation *rn_conversations_victim(const struct rn_conversations *all, uint64_t reread_limit);
