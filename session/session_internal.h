/* Inside of the session layer: a run (one request being answered), the service, and what its files call of each other.
 *
 *   submit --> accept.c: LOADING --> BEGINNING --> scheduler.c: WAITING --> PREFILL --> DECODE --> commit.c: ENDING --> done, freed
 *                 |  refused: ERROR      |  (1) failed: ERROR        ^\__________\__________\__ cancelled, failed: ENDING
 *                                                                     \______ loss.c: the device is lost, `again` ____/
 *
 * I1. A run emits exactly one of DONE and ERROR, as its last event; CREATED comes first unless it is refused.
 * I2. A run is freed only when no store job of it is out.
 * I3. conv->run == run from accept to the end; until (2) succeeded conv->head stays where it was.
 * I4. Only runs in PREFILL and DECODE have a reservation in the pool.
 * Thread: everything here is the engine thread's, but for the inbox. */
#pragma once

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/err.h"
#include "runtime/base/queue.h"
#include "session/answer.h"
#include "session/conversation.h"
#include "session/logprobs.h"
#include "session/plan.h"
#include "session/record.h"
#include "session/service.h"
#include "session/store.h"

enum rn_run_state { RN_RUN_LOADING, RN_RUN_BEGINNING, RN_RUN_WAITING, RN_RUN_PREFILL, RN_RUN_DECODE, RN_RUN_ENDING };

/* Why a request is refused or a response fails. */
struct rn_fault {
    int http_status;          /* 0 = none */
    const char *code, *param; /* static */
    struct rn_err err;        /* the sentence */
};

struct rn_run {
    struct rn_request *req;       /* owned */
    struct rn_event *terminal;    /* owned: made at the start, so that no lack of memory can swallow it */
    struct rn_conversation *conv; /* borrowed from the table */
    struct rn_run *next;          /* in order of arrival */
    uint64_t number;              /* ascending in the list */
    enum rn_run_state state;
    bool cancelled, interrupted; /* by the client; by the end of the service */
    bool paused, told_waiting, lane_gone, loaded;

    /* after a loss of the device, see loss.c */
    bool again;          /* it ran and lost its pages: until they are read again */
    bool decoded;        /* with again: its prefill had ended */
    unsigned losses;
    uint64_t again_base; /* with again: base of the last token of its log */

    /* the append */
    bool create;               /* BEGIN makes the session */
    bool moved;                /* REBASE gives it a new timeline first */
    char fork_of[RN_ID_BYTES]; /* with create: of this session's first fork_items items */
    uint32_t fork_items;
    size_t items_before; /* items of the conversation before this request's */
    uint64_t prompt_end; /* log length with the prompt */
    uint64_t generation; /* index of the generation prompt: where the answer's item starts */
    json_t *warnings;    /* array, owned */

    /* what happened */
    int64_t created_at;
    uint64_t fed;             /* tokens with KV when it started */
    uint64_t seen_base;       /* of the newest eviction that was told */
    uint64_t visible, cached; /* of the first sampled row */
    uint64_t computed;        /* rows of the prompt, re-reading included */
    uint64_t submitted_ns, started_ns, first_ns, last_ns;
    const char *rebased; /* cause, for the record */
    struct rn_answer answer;
    struct rn_counts counts;     /* for the penalties: a function of the log, the window and prompt_end */
    struct rn_logprobs logprobs; /* of answer.ids */

    /* the end */
    enum rn_status status;
    const char *cause, *detail;
    bool keep;              /* END: the turn counts. false: ABANDON */
    struct rn_fault fault;  /* FAILED */
    uint64_t base;          /* of the conversation's last token */
    json_t *record, *usage; /* owned */
    unsigned jobs;          /* out at the store */
    int store_rc;           /* of those that came back; the first error */
};

enum rn_message_kind { RN_MSG_SUBMIT, RN_MSG_CANCEL, RN_MSG_PAUSE, RN_MSG_LANE_END, RN_MSG_QUERY, RN_MSG_STORED, RN_MSG_STOP };

typedef void (*rn_stored_fn)(struct rn_service *s, struct rn_run *run, struct rn_store_job *job);

/* What lies in the inbox. */
struct rn_message {
    enum rn_message_kind kind;
    uint64_t ticket;          /* CANCEL, PAUSE, QUERY; LANE_END: the lane */
    bool flag;                /* PAUSE */
    enum rn_query what;       /* QUERY */
    char id[RN_ID_BYTES];     /* QUERY */
    struct rn_run *run;       /* SUBMIT: owned. STORED: the one that it was for; NULL for queries */
    struct rn_store_job *job; /* STORED: came back */
    rn_stored_fn then;
    struct rn_queue *inbox;
};

struct rn_service {
    /* config */
    struct rn_service_params params; /* with the defaults filled in; state_dir is not kept */
    struct rn_engine *engine;
    const struct rn_engine_info *info;
    const struct rn_text *text;
    struct rn_store *store; /* NULL = none */
    struct rn_queue *inbox;
    void *thread;           /* pthread_t, in its own memory */
    struct rn_message stop; /* so that stopping needs no memory */
    /* state */
    struct rn_conversations all;
    struct rn_run *runs; /* in order of arrival */
    size_t n_runs, n_queries, n_jobs;
    uint64_t arrivals; /* counts runs */
    uint64_t turn;     /* number of the run whose chunk was the last: round robin */
    struct {           /* loss.c */
        bool down;         /* since a loss: nothing runs until retry_ns */
        bool known;        /* there was one */
        uint64_t since_ns; /* when the device came back the last time */
        uint64_t retry_ns;
        uint32_t wait;     /* minutes before that attempt */
    } loss;
    _Atomic bool ready;    /* for other threads */
    bool stopping;
    struct rn_sampler sampler;
    float *logits;                 /* [max_concurrent, n_vocab] */
    struct rn_step_entry *entries; /* [max_concurrent] */
    struct rn_run **step;          /* [max_concurrent] the run of each entry */
};

/* service.c */
void rn_service_emit(struct rn_service *s, struct rn_event *e);                   /* takes e; NULL (no memory) is dropped */
struct rn_event *rn_run_event(const struct rn_run *run, enum rn_event_kind kind); /* NULL = no memory */
struct rn_event *rn_run_terminal(struct rn_run *run, enum rn_event_kind kind);    /* never NULL; once */
void rn_run_destroy(struct rn_service *s, struct rn_run *run);                    /* takes it out of the list */
void rn_run_warn(struct rn_run *run, const char *text);
/* TEXT with what can be shown; closed: the answer is over. */
void rn_run_emit_text(struct rn_service *s, struct rn_run *run, bool closed);
/* Lends a job to the store; `then` is called on the engine thread when it is done. On failure the job is destroyed. 0, -EAGAIN, -ENOMEM. */
int rn_service_store(struct rn_service *s, struct rn_run *run, struct rn_store_job *job, rn_stored_fn then);
int rn_fault_set(struct rn_fault *f, int http_status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* accept.c */
void rn_run_accept(struct rn_service *s, struct rn_run *run);
void rn_run_refuse(struct rn_service *s, struct rn_run *run, const struct rn_fault *f);

/* target.c: which conversation a request runs on */
enum rn_found { RN_FOUND, RN_LOADING, RN_REFUSED };
enum rn_found rn_run_find(struct rn_service *s, struct rn_run *run, struct rn_conversation **ret, struct rn_fault *f);
/* What a conversation's new timeline will be: other instructions, or another tokenizer. Nothing of the conversation has changed yet. */
int rn_fresh_make(struct rn_service *s, const struct rn_conversation *c, const char *instructions, const char *cause, struct rn_fresh *ret,
                  struct rn_err *err);

/* query.c */
void rn_query_answer(struct rn_service *s, const struct rn_message *m);

/* commit.c */
void rn_run_begin(struct rn_service *s, struct rn_run *run, bool rebased);
void rn_run_end(struct rn_service *s, struct rn_run *run, enum rn_status status, const char *cause, const char *detail);
void rn_run_fail(struct rn_service *s, struct rn_run *run, int http_status, const char *code, const char *text);

/* base of the last token of a run's log, which may not have gone through the model yet */
uint64_t rn_run_last_base(const struct rn_run *run);

/* loss.c */
/* A step said -EIO: everything is given up and, unless it is the second loss within a minute, the engine rebuilt. */
void rn_loss_happened(struct rn_service *s, const struct rn_err *err);
uint64_t rn_loss_deadline(const struct rn_service *s); /* when to look again; 0 = no need */
void rn_loss_retry(struct rn_service *s);              /* does nothing before the deadline */

/* scheduler.c */
/* Cancels, admits, runs one step. false: nothing to do until a message comes. */
bool rn_scheduler_turn(struct rn_service *s);
/* Tells how far the window has moved, if it has by enough to be worth an event (always with `last`). */
void rn_run_tell_evictions(struct rn_service *s, struct rn_run *run, uint64_t base, bool last);
