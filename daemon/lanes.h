/* The lanes of one WebSocket connection: the default lane and named ones. Requests of one lane run strictly one after the other, in the
 * order they came; different lanes run side by side, up to a limit. What an item is, is the caller's business.
 *
 *   push --> [waiting, per lane] --next--> active (one per lane) --done--> gone
 *
 * I1 a lane has at most one active item; I2 at most RN_LANES_ACTIVE items are active; I3 among the lanes that may start one, the item that
 * came first goes first. Owner: socket thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RN_LANES_NAMED 32          /* distinct stream ids of a connection */
#define RN_LANES_ACTIVE 16         /* running at once on a connection */
#define RN_LANE_QUEUE 8            /* waiting in a lane */
#define RN_LANES_BYTES (16u << 20) /* waiting on a connection: two messages of the largest size */
#define RN_STREAM_ID_BYTES 257     /* 256 characters and the NUL */

struct rn_lane_item {
    void *item;
    uint64_t order;
    size_t bytes;
};

struct rn_lane {
    char id[RN_STREAM_ID_BYTES]; /* "" = the default lane */
    uint64_t serial;             /* 0 = default, then in order of appearance */
    bool active;
    uint32_t head, n_waiting;
    struct rn_lane_item waiting[RN_LANE_QUEUE];
};

struct rn_lanes {
    struct rn_lane first; /* the default lane */
    struct rn_lane *named[RN_LANES_NAMED];
    uint32_t n_named, n_active;
    uint64_t order;
    size_t bytes;
};

void rn_lanes_init(struct rn_lanes *l);
/* Nothing may be waiting any more (rn_lanes_pop). */
void rn_lanes_finish(struct rn_lanes *l);

/* 1 to 256 characters of [A-Za-z0-9_.-]. */
bool rn_stream_id_valid(const char *id, size_t len);

/* The lane of a stream id (NULL = default), made if it is new; `id` must be valid. -E2BIG: one lane too many; -ENOMEM. */
int rn_lanes_get(struct rn_lanes *l, const char *id, struct rn_lane **ret);
/* The same, but NULL when it is not there. */
struct rn_lane *rn_lanes_find(struct rn_lanes *l, const char *id);

/* -EAGAIN: the lane's queue, or the connection's bytes, are full. */
int rn_lanes_push(struct rn_lanes *l, struct rn_lane *lane, void *item, size_t bytes);
/* Takes the item that may start now and makes its lane active; NULL = none. */
void *rn_lanes_next(struct rn_lanes *l, struct rn_lane **ret_lane);
/* The lane's active item has ended. */
void rn_lanes_done(struct rn_lanes *l, struct rn_lane *lane);
/* Takes any waiting item without starting it; NULL = none is left. */
void *rn_lanes_pop(struct rn_lanes *l);
/* The i-th waiting item of a lane; NULL = there are not that many. */
void *rn_lane_peek(const struct rn_lane *lane, uint32_t i);
