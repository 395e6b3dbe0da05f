/* The store: conversations on disk (STATE_DIR/runnel.db), behind a thread of its own.
 *
 *   engine thread: rn_store_submit(job) --> [bounded queue] --> store thread: one transaction or one read --> job->done(user, job)
 *
 * The store thread owns the only writer connection and a read-only one that serves LOAD, LIST, SHOW between two writes. Jobs are done
 * in the order they were submitted. A job is lent to the store from submit until its `done` is called, on the store thread; from then on
 * it is its maker's again (who typically pushes it into his own queue and frees it there). A job owns all that it points to; JSON
 * values in it may be shared (json_incref) as long as nobody changes them while the job is out. A write job that fails has changed
 * nothing, and the next job finds the store usable.
 *
 * The life of a response, and what a crash leaves of it:
 *
 *   BEGIN  transaction (1): in_progress, input items and their ids    -- crash --> incomplete, cause "interrupted", head = head_before
 *     |
 *     +--> END      transaction (2): output items, ids, status, head
 *     +--> ABANDON  head, items and log go back to where BEGIN found them
 *
 * I1. The log of a session holds exactly `head` ids: blocks of 1024, all full but the last. An append rewrites the last block only.
 * I2. A session has at most one response in progress, and only that one's items and ids lie beyond its head_before.
 * I3. Items are numbered 0, 1, 2 … without gaps; their token ranges ascend and lie below head, or are RN_STORE_NOWHERE both.
 * I4. Everything read back is checked (types, ranges, lengths, I1..I3). Damage is -EBADMSG and names table and row; never a crash.
 *
 * If END or ABANDON failed (disk full), the response stays in progress on disk. LOAD then gives the session as of head_before, and
 * the next BEGIN in that session first closes it (failed, cause "storage"), in its own transaction. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/err.h"
#include "session/service.h"

struct rn_store;

#define RN_STORE_NOWHERE UINT64_MAX        /* no token index: the item is not part of the present timeline */
#define RN_STORE_MAX_ITEMS (1u << 20)      /* per session */
#define RN_STORE_MAX_RESPONSES (1u << 20)  /* per session */
#define RN_STORE_MAX_TOKENS (1ull << 30)   /* per session: 4 GiB of ids in memory when loaded */
#define RN_STORE_MAX_JSON (16u << 20)      /* bytes of one JSON value or text */
#define RN_STORE_MAX_JOB_ITEMS 4096u       /* items in one BEGIN or END */
#define RN_STORE_MAX_LIST 10000u           /* sessions in one LIST */
#define RN_STORE_TITLE_CHARS 60u           /* longer titles are cut by the store, at a character */
#define RN_STORE_WORD_BYTES 16             /* role, cause: short words */
#define RN_STORE_QUEUE 256u                /* jobs waiting */

enum rn_store_status { RN_STORE_IN_PROGRESS, RN_STORE_COMPLETED, RN_STORE_INCOMPLETE, RN_STORE_FAILED, RN_STORE_STATUS_COUNT };

/* One line of conversation. Zero is valid (empty). Free what it owns with rn_store_session_finish. */
struct rn_store_session {
    char id[RN_ID_BYTES];
    int64_t created_at, last_used;         /* unix seconds */
    char *title;                           /* owned; NULL = none yet */
    uint32_t n, sinks;                     /* N, S */
    enum rn_evict evict;
    struct rn_rope_scaling rope;           /* zero = none */
    uint64_t origin;                       /* o */
    uint64_t lead;                         /* B: tokens of the leading block */
    char *instructions;                    /* owned; NULL = absent */
    uint64_t tokenizer_fingerprint;
    char *model_id;                        /* owned */
    char parent[RN_ID_BYTES];              /* fork: the session it left ("" = none, or deleted since) and where */
    uint64_t at;
    uint64_t head;                         /* tokens in the log */
    uint64_t evicted;                      /* E at head, for lists */
    char last_response_id[RN_ID_BYTES];    /* newest terminal response; "" = none */
};

/* One message (later: tool call, result). Free what it owns with rn_store_item_finish. */
struct rn_store_item {
    char id[RN_ID_BYTES];
    char response_id[RN_ID_BYTES];         /* the response it came with, as input or output (set by the store in BEGIN and END) */
    char role[RN_STORE_WORD_BYTES];        /* "user", "assistant", "system", "developer" */
    bool turn_start;                       /* token `first` opens a turn */
    bool open;                             /* a sampled answer: the log up to `end` lacks what closes it, but maybe for an end mark */
    uint64_t first, end;                   /* its tokens [first, end), or RN_STORE_NOWHERE both */
    json_t *item;                          /* owned: the whole item as clients see it ({"id", "type", "role", "content"}) */
};

/* Free what it owns with rn_store_response_finish. */
struct rn_store_response {
    char id[RN_ID_BYTES];
    char parent_id[RN_ID_BYTES];           /* previous response, maybe of another session; "" = none */
    enum rn_store_status status;
    int64_t created_at, completed_at;      /* completed_at: 0 while in progress */
    uint64_t seed;                         /* 0 .. 2^53-1 */
    bool generate;                         /* false: input only */
    uint64_t head_before;                  /* log length that BEGIN found */
    uint64_t head;                         /* where it ends in the log; its position for previous_response_id. head_before when in
                                              progress, interrupted or abandoned. RN_STORE_NOWHERE: a REBASE left it outside the timeline */
    uint32_t n_items;                      /* the first n_items items of the session are the conversation up to its end */
    char cause[RN_STORE_WORD_BYTES];       /* "eos", "stop", "length", "cancelled", "interrupted", "storage", "error"; "" in progress */
    json_t *echo;                          /* owned, may be NULL: the request as the adapter wants it back */
    json_t *sampling;                      /* owned, may be NULL: effective parameters */
    json_t *usage;                         /* owned, may be NULL */
    json_t *record;                        /* owned, may be NULL: the `runnel` object */
    json_t *output_ids;                    /* owned: ids of its output items, an array. Read only (RESPONSE); END makes it from `items` */
    json_t *input;                         /* owned, NULL unless interrupted by a crash: the input items (whole, an array) that left the
                                              timeline then, so that it can be generated again. Read only (LOAD, RESPONSE) */
};

enum rn_store_op {
    /* Writes. */
    RN_STORE_BEGIN,
    /* Transaction (1). In: response (id, parent_id, created_at, seed, generate, echo, sampling), items (input), ids, from; session:
     *   create = true: a new session with all its fields; `from` must be 0;
     *   create and fork_of: the new session starts with fork_of's first fork_items items and its log up to session.at; from = at;
     *   otherwise session.id must exist; last_used is written, and title if there was none.
     * `from` must equal the head of the session (-ESTALE otherwise): head_before = from, head = from + n_ids. -EEXIST: response or
     * session id in use. -ENOENT: no such session or parent. -EINVAL: items out of order or out of range. -E2BIG: a limit. */
    RN_STORE_END,
    /* Transaction (2). In: response (id, status: not in progress, cause, completed_at, echo, sampling, usage, record: NULL leaves what
     * is stored), items (output), ids, from (head_before <= from <= head: the log is cut there first), session (id, last_used,
     * evicted, origin). head = from + n_ids; last_response_id = response.id. -ENOENT: no such response in this session. -EALREADY: it
     * is not in progress. */
    RN_STORE_ABANDON,
    /* In: response (id, status, cause, completed_at, record), session.id. Head, items and log go back to head_before;
     * last_response_id stays. With `forget` the response disappears, and the session too if this response's BEGIN created it. */
    RN_STORE_REBASE,
    /* Stored before anything new is committed. In: session.id, session.origin, session.evicted. With `timeline` the log is replaced
     * as well: session (n, sinks, lead, instructions, tokenizer_fingerprint, model_id), ids = the whole new log, and items: one for
     * each stored item in order, of which only first, end, turn_start, open are read. Responses move with their items: those that end at
     * the last item get the new head, others the end of their last item, or RN_STORE_NOWHERE. -EBUSY: a response is in progress. */
    RN_STORE_DELETE,       /* In: session.id. -ENOENT. Forks of it live on. */
    RN_STORE_SET,          /* In: key, value (NULL removes). A setting. */
    /* Reads. */
    RN_STORE_LOAD,         /* In: response.id or else session.id. Out: session, items, ids, responses, found. -ENOENT: neither exists. */
    RN_STORE_SHOW,         /* In: session.id. Out: session, items (those of a response in progress too). -ENOENT. */
    RN_STORE_RESPONSE,     /* In: response.id. Out: response with all its JSON, session.id. -ENOENT. */
    RN_STORE_LIST,         /* In: limit. Out: sessions, newest last_used first. */
    RN_STORE_GET,          /* In: key. Out: value (NULL = unset). */
    RN_STORE_CHECK,        /* Reads everything: SQLite's integrity check, foreign keys, I1..I3. -EBADMSG names the first damage. Slow. */
    RN_STORE_OP_COUNT
};

/* owner: its maker, except from submit to `done`. Zero (with op) is valid; make with rn_store_job_create. */
struct rn_store_job {
    enum rn_store_op op;
    void (*done)(void *user, struct rn_store_job *job); /* store thread; must not block; may free the job */
    void *user;
    uint64_t ticket;                       /* the maker's, not looked at */

    int rc;                                /* out: 0 or a negative errno: -ENOSPC, -EIO, -EROFS, -EBADMSG, -ENOMEM and those above */
    struct rn_err err;                     /* out: the story, when rc < 0 */

    struct rn_store_session session;       /* in and out */
    bool create;                           /* BEGIN */
    char fork_of[RN_ID_BYTES];             /* BEGIN: "" = no fork */
    uint32_t fork_items;
    bool forget;                           /* ABANDON */
    bool timeline;                         /* REBASE */
    struct rn_store_response response;
    struct rn_store_item *items;           /* owned, rn_mem */
    size_t n_items;
    uint32_t *ids;                         /* owned, rn_mem */
    size_t n_ids;
    uint64_t from;
    size_t limit;                          /* LIST; 0 = RN_STORE_MAX_LIST */
    char *key, *value;                     /* owned */

    struct rn_store_response *responses;   /* LOAD: owned, oldest first; echo, sampling, usage, record, output_ids not read */
    size_t n_responses;
    size_t found;                          /* LOAD by response: its index in responses */
    struct rn_store_session *sessions;     /* LIST: owned */
    size_t n_sessions;
};

struct rn_store_job *rn_store_job_create(enum rn_store_op op); /* NULL = no memory */
void rn_store_job_destroy(struct rn_store_job *job);           /* with all it owns; NULL is fine */
void rn_store_session_finish(struct rn_store_session *s);
void rn_store_item_finish(struct rn_store_item *i);
void rn_store_response_finish(struct rn_store_response *r);

/* Makes the directory (0700) where it is missing, takes its lock for life, opens and migrates the database (0600), closes responses that
 * a crash left in progress, starts the thread.
 * Returns 0; -EBUSY another process has the directory (its pid is named); -EPROTONOSUPPORT a database of a newer version; -EBADMSG
 * damage, or another program's file; -EACCES, -EROFS, -ENOSPC, -EIO, -ENOMEM. Thread: any. Blocks: on the disk. */
int rn_store_open(struct rn_store **ret, const char *state_dir, struct rn_err *err);

/* Finishes the jobs already submitted (their `done` is called), joins the thread, gives the lock back. NULL is fine. Nobody may submit
 * any more once it was called. */
void rn_store_close(struct rn_store *s);

/* Responses that open found in progress and closed. */
uint64_t rn_store_interrupted(const struct rn_store *s);

/* Lends the job to the store. Returns 0; -EAGAIN: RN_STORE_QUEUE jobs are waiting (the job stays the caller's, `done` is not called).
 * Thread: any. */
int rn_store_submit(struct rn_store *s, struct rn_store_job *job);
