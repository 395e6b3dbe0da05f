/* What the tests of the store share: a temporary state directory, jobs run to their end, and turns made from their number. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "session/store.h"
#include "session/store_internal.h"

#define KIT_INPUT_IDS 37u  // ids of a turn's question
#define KIT_OUTPUT_IDS 23u // and of its answer: together they cross the blocks of 1024 at ever other places
#define KIT_TURN_IDS (KIT_INPUT_IDS + KIT_OUTPUT_IDS)

/* cmocka set-up and tear-down: *state is the path of an empty temporary directory. */
int kit_setup(void **state);
int kit_teardown(void **state);
/* "DIR/name" in a static buffer of two that take turns. */
const char *kit_path(const char *dir, const char *name);
/* Copies a file; a missing one is none. */
void kit_copy(const char *from, const char *to);

struct rn_store *kit_open(const char *dir);
/* Submits, waits for `done`, returns the result; the job stays the caller's. */
int kit_run(struct rn_store *s, struct rn_store_job *job);
/* The same, and destroys the job. */
int kit_do(struct rn_store *s, struct rn_store_job *job);

/* Id number i of every session made here. */
uint32_t kit_id(uint64_t i);
/* Turn number `turn` of a session: its response is "resp_SESSION_TURN", its tokens begin at turn · KIT_TURN_IDS. */
struct rn_store_job *kit_begin(const char *session, uint32_t turn, bool create);
struct rn_store_job *kit_end(const char *session, uint32_t turn);
/* Both, committed. */
void kit_turn(struct rn_store *s, const char *session, uint32_t turn);
struct rn_store_job *kit_load(struct rn_store *s, const char *session);
/* A loaded session is exactly `n_turns` whole turns. */
void kit_assert_turns(const struct rn_store_job *loaded, uint32_t n_turns);
