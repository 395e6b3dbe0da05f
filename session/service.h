/* The session layer's boundary: requests in, events out. The daemon's adapters (and `runnel run`, without a store) sit on top.
 *
 * rn_service_start makes the engine thread (owner of every rn_seq, of the scheduler and of all conversations) and, with a state
 * directory, the store thread (owner of the only SQLite writer). Calls below may come from any thread; they queue and return.
 *
 *   rn_service_submit --> [queue] --> engine thread: conversation + scheduler --> on_event(event)        exactly one terminal event
 *                                          \--> [queue] --> store thread --> [queue] --/                 (DONE or ERROR) per ticket
 *
 * What a request means (timeline rules, forks, store: false, instructions, overflow): README, "Sessions". */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/engine.h"
#include "runtime/sampler.h"

struct rn_err;
struct rn_service;

#define RN_ID_BYTES 40 /* "resp_" + 24 base62 and the NUL fit */

/* A new random id: prefix ("resp_", "msg_", "sess_") + 24 base62 characters from the system's random numbers. */
void rn_id_new(const char *prefix, char ret_id[RN_ID_BYTES]);

/* One question. Owned by the service from submit on; free with rn_request_destroy if never submitted. Strings are owned. */
struct rn_request {
    uint64_t ticket;                /* the caller's name for it, never reused; 0 is not one */
    uint64_t lane;                  /* the caller's name for the lane (connection and stream); 0 = none. See rn_service_lane_end */
    char response_id[RN_ID_BYTES];
    char item_id[RN_ID_BYTES];      /* of the answer's message item */

    json_t *items;                  /* input items: [{"id", "type": "message", "role", "content": [{"type": "input_text"|"output_text", "text"}]}] */
    char *instructions;             /* NULL = absent */
    char *previous_response_id;     /* NULL = absent */
    char *session_id;               /* runnel.session; NULL = absent */
    bool store;
    bool generate;                  /* false: append and prefill only */

    uint32_t *raw_ids;              /* instead of items: the prompt as ids (runnel run --raw, --ids-file); B = 0 */
    size_t n_raw_ids;
    uint64_t *turn_starts;          /* with raw_ids */
    size_t n_turn_starts;

    struct rn_sampling sampling;    /* bias: the copy below. The repetition penalty counts what the sampled row sees of the session's
                                       tokens, pinned ones and the window; the other two count all tokens of this answer */
    struct rn_logit_bias *bias;     /* owned; rn_request_bias sets it */
    bool logprobs;                  /* report the log-probability of each output token */
    uint32_t top_logprobs;          /* and of this many of the likeliest ones; at most RN_TOP_LOGPROBS_MAX */
    bool has_seed;                  /* false: the service draws one and reports it */
    uint64_t max_output_tokens;     /* checked by the adapter */
    char **stop;                    /* stop strings, at most 16 of 1..256 bytes */
    size_t n_stop;
    bool ignore_eos;
    int64_t window, sinks;          /* -1 = absent */
    int evict;                      /* enum rn_evict, -1 = absent */
    bool overflow_roll;             /* runnel.overflow = "roll" */

    json_t *echo;                   /* kept and stored with the response, handed back untouched; may be NULL */
    json_t *ignored;                /* names of unknown request fields, for the record; array or NULL */
    json_t *warnings;               /* the adapter's, for the record; array or NULL */
};

struct rn_request *rn_request_create(void); /* defaults: store, generate, temperature 1, -1s; NULL = no memory */
void rn_request_destroy(struct rn_request *r);
/* Takes over a list of biases (rn_mem_alloc; NULL with n = 0), in place of an earlier one. Ids beyond the vocabulary are refused later. */
void rn_request_bias(struct rn_request *r, struct rn_logit_bias *bias, size_t n);

enum rn_event_kind {
    RN_EVENT_CREATED,  /* the request is accepted and, if stored, on disk */
    RN_EVENT_QUEUED,   /* it waits for a place */
    RN_EVENT_STARTED,  /* its first chunk goes into the next step */
    RN_EVENT_TEXT,     /* more of the answer */
    RN_EVENT_EVICTED,  /* tokens left the window */
    RN_EVENT_DONE,     /* terminal: the response ended, one way or another; stored if it was to be */
    RN_EVENT_ERROR,    /* terminal: the request was refused; there is no response */
    RN_EVENT_REPLY,    /* answer to rn_service_query */
};

enum rn_status { RN_STATUS_COMPLETED, RN_STATUS_INCOMPLETE, RN_STATUS_FAILED };

/* Owned by the receiver; free with rn_event_destroy. Fields that do not belong to the kind are zero. */
struct rn_event {
    enum rn_event_kind kind;
    uint64_t ticket;
    char session_id[RN_ID_BYTES];   /* CREATED, DONE */
    int64_t created_at;             /* CREATED, DONE: unix seconds */
    uint64_t seed;                  /* CREATED: the effective one */

    char *text;                     /* TEXT: whole UTF-8 characters. DONE: the whole visible answer */
    size_t text_len;
    uint32_t *ids;                  /* TEXT, DONE: ids behind the text (DONE: all visible ones) */
    size_t n_ids;
    json_t *logprobs;               /* TEXT, DONE, if asked for: [{"id", "token", "bytes", "logprob", "top_logprobs": [the same without
                                       "top_logprobs"]}], one for each of ids */
    uint64_t ns;                    /* TEXT: rn_clock_ns when the engine had the token */

    uint64_t evicted, kept_from;    /* EVICTED: E(t) and base(t) now */
    char kept_from_item[RN_ID_BYTES]; /* EVICTED: item that base(t) lies in, or "" */

    enum rn_status status;          /* DONE */
    const char *incomplete_reason;  /* DONE: "max_output_tokens" or NULL (cancelled) */
    bool kept;                      /* DONE: the answer is an item of the conversation now, even if it has no text (yet) */
    uint64_t input_tokens, cached_tokens, output_tokens; /* DONE */
    json_t *record;                 /* DONE: the `runnel` object. CREATED: what is known of it: "context" as it will be with the input,
                                       or nothing, where something has to leave the window for the input */
    const char *cause;              /* DONE: "eos", "stop", "length", "cancelled", "interrupted", "storage", "error" */

    int http_status;                /* ERROR, REPLY; DONE with FAILED: 500, 503 */
    const char *code;               /* ERROR, FAILED: "previous_response_not_found", …; static */
    const char *param;              /* ERROR: the field, or NULL; static */
    char *message;                  /* ERROR, FAILED */

    json_t *reply;                  /* REPLY */
};
void rn_event_destroy(struct rn_event *e);

/* Called on the engine thread (queries: maybe the store thread); takes the event; must not block. */
typedef void (*rn_event_fn)(void *user, struct rn_event *event);

struct rn_service_params {
    struct rn_engine *engine;       /* borrowed until rn_service_stop returns */
    const char *state_dir;          /* NULL = no store: everything lives in memory */
    uint32_t window;                /* default N; 0 = min(4096, trained length) */
    int64_t sinks;                  /* -1 = auto */
    enum rn_evict evict;
    struct rn_rope_scaling rope;    /* for new sessions; factor 0 = from the N of each. See session/rope_words.h */
    uint32_t max_concurrent;        /* running at once; 0 = 8 */
    uint32_t max_queue;             /* waiting; 0 = 64 */
    uint32_t prefill_chunk;         /* rows; 0 = 128 */
    uint32_t reread_limit;          /* tokens; 0 = 8 N of each session */
    uint32_t loss_minute_ms;        /* tests: what counts as a minute after a loss of the device; 0 = 60000 */
    rn_event_fn on_event;
    /* The device is lost, or stays so (ready false, why), or is back. For the log; engine thread. May be NULL. */
    void (*on_device)(void *user, bool ready, const char *text);
    void *user;
};

/* Opens and migrates the store (creating the directory 0700), starts the threads. -EBUSY: another daemon has the state directory (its
 * pid is named); -EPROTONOSUPPORT: a newer database; -EIO, -ENOSPC … the store. */
int rn_service_start(struct rn_service **ret, const struct rn_service_params *params, struct rn_err *err);

/* Cancels what runs (those responses are stored as incomplete), flushes the store, joins the threads. NULL is fine. */
void rn_service_stop(struct rn_service *s);

/* false after a loss of the device until it is back: requests that come then are refused, 503 device_lost. Any thread. */
bool rn_service_ready(const struct rn_service *s);

/* Takes r. -EAGAIN: the inbox is full (r stays the caller's). */
int rn_service_submit(struct rn_service *s, struct rn_request *r);
/* Noticed within one step; ends in DONE, incomplete, cause "cancelled". An unknown ticket is ignored. */
void rn_service_cancel(struct rn_service *s, uint64_t ticket);
/* Holds a running answer back (slow reader) or lets it go on. */
void rn_service_pause(struct rn_service *s, uint64_t ticket, bool paused);
/* The lane is gone: its sessions in memory (store: false) end. */
void rn_service_lane_end(struct rn_service *s, uint64_t lane);

enum rn_query { RN_QUERY_LIST, RN_QUERY_SHOW, RN_QUERY_DELETE };
/* List (limit, newest first), show (with items) or delete sessions; answered by one REPLY: status 200, 404 not_found, 409 session_busy. */
int rn_service_query(struct rn_service *s, uint64_t ticket, enum rn_query what, const char *session_id);
