/* The Responses API as an adapter: JSON of a response.create -> struct rn_request, and struct rn_event -> the API's events.
 *
 * One encoder for every transport: it hands whole JSON texts to a callback. No sockets here. Owner: socket thread.
 *
 * Events of one answer (I1: sequence_number counts from 0 without gaps; I2: exactly one terminal event):
 *   response.created [response.queued] response.in_progress
 *     [output_item.added content_part.added output_text.delta* output_text.done content_part.done output_item.done]
 *   response.completed | response.incomplete | response.failed
 * with runnel:context.evicted in between; generate: false is response.created, response.completed. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "daemon/problem.h"

struct rn_answer;
struct rn_event;
struct rn_request;

#define RN_MAX_OUTPUT_TOKENS 4096
#define RN_STOP_STRINGS 16
#define RN_STOP_BYTES 256

/* Checks a whole response.create and makes the request (ticket and lane are left 0). `model_id` is the loaded model's name.
 * -EINVAL: *ret_problem says what is wrong; -ENOMEM likewise. */
int rn_responses_parse(const json_t *message, const char *model_id, struct rn_request **ret, struct rn_problem *ret_problem);

/* For tests: the table of known fields is sorted. */
bool rn_responses_table_sorted(void);

/* Takes nothing: the text is copied by the receiver if it needs it. Not 0 = stop, handed back to the caller. */
typedef int (*rn_emit_fn)(void *user, const char *json, size_t len);

struct rn_answer_params {
    const struct rn_request *request; /* read during the call only */
    const char *stream_id;            /* NULL = default lane; copied */
    const char *model_id;
    rn_emit_fn emit;
    void *user;
};

int rn_answer_create(struct rn_answer **ret, const struct rn_answer_params *params);
void rn_answer_destroy(struct rn_answer *a); /* NULL is fine */

const char *rn_answer_response_id(const struct rn_answer *a);

/* Emits what follows from one event (not RN_EVENT_ERROR, not RN_EVENT_REPLY). 0, -ENOMEM or what emit returned. */
int rn_answer_event(struct rn_answer *a, const struct rn_event *event);
/* While held, text gathers and is emitted as one delta later (a slow reader). */
int rn_answer_hold(struct rn_answer *a, bool held);
/* A request cancelled before it was handed on: created, then incomplete, cause "cancelled". */
int rn_answer_cancelled(struct rn_answer *a);
