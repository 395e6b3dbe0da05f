/* Inside of a sequence: the rule base(t), its history, and the page table. Private to runtime/.
 *
 * Invariants
 *  I1  base(t) is a pure function of (turn starts, S, N, origin) up to t; it is computed in rule_base() and nowhere else.
 *  I2  base(t) never decreases with t.
 *  I3  a group's window pages first_page .. first_page + n - 1 are alive and cover every token that a row >= low can read.
 *  I4  a page with a second reference is never written (rewind copies it first).
 * owner: engine thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/engine.h"
#include "runtime/kv_internal.h"

/* base from t on, until the next run: constant, or advancing by one per token. */
struct rn_base_run {
    uint64_t t, base;
    bool rolling;
};

/* Pages of one stream in one layer group; the data pointers are kept beside each other so that a backend sees a plain array. */
struct rn_page_list {
    struct rn_kv_page **pages; /* owned references */
    void **data;               /* pages[i]->data */
    size_t n, cap;
};

/* One layer group's KV. Sliding-window groups know no pinned zone: s = 0 and one stream from 0, or two after a rebase, see `before`. */
struct rn_seq_group {
    uint64_t s;                       /* S here */
    uint32_t sliding;                 /* trained window; 0 = none */
    struct rn_page_list pinned, window;
    uint64_t first_page;              /* number of window.pages[0] */
    struct rn_page_list before;       /* sliding, origin > S: tokens below S, which those from the origin on (`window`) never see */
    uint64_t before_page;             /* number of before.pages[0] */
};

struct rn_seq {
    /* config */
    struct rn_engine *engine;
    uint32_t n, s;
    enum rn_evict evict;
    uint64_t origin;
    bool stored;
    struct rn_rope_scaling rope;
    struct rn_rope *ropes;            /* owned [n_ropes], with frequencies of their own, where there is a scaling; NULL: the program's */
    /* the rule */
    uint64_t head;                    /* index of the next token */
    struct rn_base_run *runs;         /* ascending t; the first covers `low` and everything kept */
    size_t n_runs, cap_runs;
    uint64_t *turns;                  /* turn starts that may still matter, ascending */
    size_t n_turns, cap_turns;
    /* pages */
    uint32_t n_groups;
    struct rn_seq_group *groups;
    uint64_t low;                     /* oldest row that a rewind may return to */
    /* life */
    uint64_t accepted;                /* c + 1 */
    uint64_t hold_h, hold_p;          /* h, p; 0 = none yet */
    uint64_t reserved;                /* bytes promised by the pool */
};

/* Makes room for token `head`, applies the rule and moves head by one. *ret_base = base(t). The page may be missing: see
 * rn_seq_make_room, which is called first for a whole entry. 0 or -ENOMEM. */
int rn_seq_push(struct rn_seq *s, bool turn_start, uint64_t *ret_base, struct rn_err *err);

/* Takes back tokens from `end` on without touching page contents (a step failed); end >= the head before the step. */
void rn_seq_unpush(struct rn_seq *s, uint64_t end);

/* base that a token at index `at` would get if it came next, given the history before it. */
uint64_t rn_seq_base_of_next(const struct rn_seq *s, uint64_t at);

/* ---- seq_pages.c --------------------------------------------------------------------------------------------------------------------- */

/* Pages for the next n_tokens tokens. 0 or -ENOMEM (what was taken stays in the lists and is used or freed later). */
int rn_seq_make_room(struct rn_seq *s, uint32_t n_tokens, struct rn_err *err);

/* True when head has reached an origin above S and a sliding group goes on in its other stream: rows before and rows from here on need
 * views of their own. */
bool rn_seq_at_gap(const struct rn_seq *s);

/* What the rows from head on see, up to the next gap. ret_pages [n_groups] is what ret->groups points to. Valid until pages are taken or
 * dropped. */
void rn_seq_view(const struct rn_seq *s, struct rn_step_pages *ret_pages, struct rn_step_view *ret);

/* Drops window pages that no row >= u reads. */
void rn_seq_drop_pages(struct rn_seq *s, uint64_t u);
/* True when all pages are there that rows from index `next` on can read, in a sequence that has the tokens below `at`. next > at only
 * where at = S and the origin lies above. */
bool rn_seq_pages_alive(const struct rn_seq *s, uint64_t at, uint64_t next);
/* Keeps the pages of the tokens below `end`, copying shared partial ones (I4). On failure (-ENOMEM) nothing is dropped. */
int rn_seq_cut_pages(struct rn_seq *s, uint64_t end, struct rn_err *err);
/* Gives `to`, which has none, the pages of the tokens below `at`. */
int rn_seq_share_pages(struct rn_seq *to, const struct rn_seq *from, uint64_t at, struct rn_err *err);
void rn_seq_finish_pages(struct rn_seq *s);

/* ---- engine.c ------------------------------------------------------------------------------------------------------------------------ */

struct rn_kv_pool *rn_engine_pool(struct rn_engine *e);
const struct rn_program *rn_engine_program(const struct rn_engine *e);
float rn_engine_rope_base(const struct rn_engine *e);
