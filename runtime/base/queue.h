/* A bounded first-in first-out queue of pointers between threads: many producers, one consumer.
 *
 * The only mutex of the program lives here (and nowhere above). A queue can also wake an event loop: `notify` is called, outside
 * the lock, after each push that finds the queue empty. Limits: `cap` elements; a push into a full queue is refused, never waits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rn_queue;
struct rn_err;

typedef void (*rn_queue_notify_fn)(void *user);

/* notify may be NULL. Returns 0 or -ENOMEM. */
int rn_queue_create(struct rn_queue **ret, size_t cap, rn_queue_notify_fn notify, void *user, struct rn_err *err);
void rn_queue_destroy(struct rn_queue *q);  /* NULL is fine; elements still inside are not freed */

/* Returns 0; -EAGAIN when full. Thread: any. */
int rn_queue_push(struct rn_queue *q, void *item);

/* The oldest element, or NULL when empty. Thread: the consumer. */
void *rn_queue_pop(struct rn_queue *q);

/* Waits until an element is there or the deadline (rn_clock_ns; 0 = for ever) has passed; then as rn_queue_pop. Thread: the consumer. */
void *rn_queue_pop_wait(struct rn_queue *q, uint64_t deadline_ns);

size_t rn_queue_len(struct rn_queue *q);
