/* A service, requests by one call, and what came back of each. */
#pragma once

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/base/queue.h"
#include "session/service.h"
#include "tests/unit/fake_engine.h"

#define KIT_TICKETS 256
#define KIT_TOKENS 24 /* of an answer, at most, where a test does not say another number */

/* All events of one ticket. */
struct kit_reply {
    char order[4096]; /* C created, Q queued, S started, T text, E evicted, D done, ! error, R reply */
    char session[RN_ID_BYTES], response[RN_ID_BYTES], item[RN_ID_BYTES];
    char text[1 << 16]; /* of TEXT events, joined */
    size_t n_text_ids;
    struct rn_event *last; /* the terminal one */
    uint64_t evicted, kept_from;
    char kept_from_item[RN_ID_BYTES];
    uint64_t begun_used; /* context.used of CREATED; 0 = it was not known then */
};

struct kit {
    struct rn_engine *engine;
    struct fake *fake;
    struct rn_service *service;
    struct rn_service_params params;
    struct rn_queue *events;
    struct kit_reply *replies; /* [KIT_TICKETS] */
    uint64_t tickets;
};

void kit_init(struct kit *k, struct rn_engine *engine); /* on any engine, with defaults (window 512); no service yet */
void kit_finish(struct kit *k);                         /* stops the service; the engine stays */
void kit_start(struct kit *k, const char *state_dir);
void kit_stop(struct kit *k); /* the service only */

json_t *kit_item(const char *role, const char *text);
/* Greedy, at most KIT_TOKENS; text NULL = empty input. */
struct rn_request *kit_request(const char *text, const char *previous);
struct kit_reply *kit_send(struct kit *k, struct rn_request *r); /* does not wait; kit_reply of this ticket */
struct kit_reply *kit_wait(struct kit *k, struct kit_reply *reply);
void kit_wait_for(struct kit *k, struct kit_reply *reply, char event); /* until this kind of event came */
struct kit_reply *kit_ask(struct kit *k, const char *text, const char *previous);
struct kit_reply *kit_send_query(struct kit *k, enum rn_query what, const char *id); /* does not wait */
struct kit_reply *kit_query(struct kit *k, enum rn_query what, const char *id);
struct kit_reply *kit_new_reply(struct kit *k); /* empty, of the next ticket, which is k->tickets now */
uint64_t kit_ticket(const struct kit *k, const struct kit_reply *reply);

void kit_temp_dir(char ret[64]);
void kit_remove_dir(const char *dir);
const char *kit_string(const struct kit_reply *r, const char *path); /* "stop.cause" of the record; NULL = absent */
int64_t kit_number(const struct kit_reply *r, const char *path);     /* -1 = absent */

/* ---- With the fake engine ---- */

/* What its template writes, to be joined into a conversation that waits for an answer: LEAD USER("one") SAID USER("two") ASK. SAID is an
 * answer that was given, whose text comes by printf. */
#define SYSTEM(text) "<|im_start|>system\n" text "<|im_end|>\n"
#define USER(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define ASK "<|im_start|>assistant\n"
#define SAID ASK "%s<|im_end|>\n"
#define LEAD SYSTEM("Be good.") /* where nobody instructs it otherwise; 18 tokens */

extern const struct rn_seq_params P512; /* the sequence of a kit's defaults */

void kit_open(struct kit *k); /* a fake engine and kit_init */
void kit_close(struct kit *k);

/* Ids of a text as the fake's template writes it: <|im_start|>, <|im_end|>, <|bos|> count as control tokens. */
size_t kit_ids(const char *text, uint32_t *ret);
/* The text that a sequence of S, N, policy answers to a conversation (as the template writes it, a printf format), greedy, at most
 * KIT_TOKENS or n ids. Valid until the next call. */
__attribute__((format(printf, 3, 4))) const char *kit_expect(struct kit *k, const struct rn_seq_params *p, const char *conversation, ...);
__attribute__((format(printf, 4, 5))) const char *kit_expect_n(struct kit *k, const struct rn_seq_params *p, size_t n,
                                                               const char *conversation, ...);
