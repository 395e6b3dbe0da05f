/* The record: what a reply says about how it came to be (the `runnel` object). Thread: engine. */
#pragma once

#include <jansson.h>
#include <stdint.h>

struct rn_conversation;
struct rn_request;
struct rn_run;
struct rn_service;

/* New references; NULL = no memory. For these two the run has ended: base, cause, detail are set. */
json_t *rn_record_make(const struct rn_service *s, const struct rn_run *run);
json_t *rn_record_usage(const struct rn_run *run);
/* The record's beginning, once the input is in the log: {"context"}, if all that is visible now stays so until the input has been read. */
json_t *rn_record_begun(const struct rn_run *run);
/* Effective sampling parameters. */
json_t *rn_record_sampling(const struct rn_request *r);

/* Tokens that the row at index t sees when base(t) = base, and how many of them lie below `fed`. */
uint64_t rn_record_visible(const struct rn_conversation *c, uint64_t base, uint64_t t, uint64_t fed, uint64_t *ret_below);
