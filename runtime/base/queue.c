#define _GNU_SOURCE
#include "runtime/base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

struct rn_queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    void **items;  // ring of cap elements
    size_t cap, head, len;
    rn_queue_notify_fn notify;
    void *user;
};

int rn_queue_create(struct rn_queue **ret, size_t cap, rn_queue_notify_fn notify, void *user, struct rn_err *err)
{
    struct rn_queue *q = rn_mem_alloc(1, sizeof *q);
    void **items = rn_mem_alloc(cap, sizeof *items);
    if (!q || !items) {
        rn_mem_free(q);
        rn_mem_free(items);
        return rn_err_nomem(err, cap * sizeof *items, "queue");
    }
    *q = (struct rn_queue){.items = items, .cap = cap, .notify = notify, .user = user};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->filled, &attr);
    pthread_condattr_destroy(&attr);
    *ret = q;
    return 0;
}

void rn_queue_destroy(struct rn_queue *q)
{
    if (!q) {
        return;
    }
    pthread_cond_destroy(&q->filled);
    pthread_mutex_destroy(&q->lock);
    rn_mem_free(q->items);
    rn_mem_free(q);
}

int rn_queue_push(struct rn_queue *q, void *item)
{
    pthread_mutex_lock(&q->lock);
    bool full = q->len == q->cap;
    bool was_empty = q->len == 0;
    if (!full) {
        q->items[(q->head + q->len++) % q->cap] = item;
        pthread_cond_signal(&q->filled);
    }
    pthread_mutex_unlock(&q->lock);
    if (full) {
        return -EAGAIN;
    }
    if (was_empty && q->notify) {
        q->notify(q->user);
    }
    return 0;
}

static void *take(struct rn_queue *q)
{
    if (q->len == 0) {
        return NULL;
    }
    void *item = q->items[q->head];
    q->head = (q->head + 1) % q->cap;
    q->len--;
    return item;
}

void *rn_queue_pop(struct rn_queue *q)
{
    pthread_mutex_lock(&q->lock);
    void *item = take(q);
    pthread_mutex_unlock(&q->lock);
    return item;
}

void *rn_queue_pop_wait(struct rn_queue *q, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u), .tv_nsec = (long)(deadline_ns % 1000000000u)};
    pthread_mutex_lock(&q->lock);
    int r = 0;
    while (q->len == 0 && r == 0) {
        r = deadline_ns ? pthread_cond_timedwait(&q->filled, &q->lock, &until) : pthread_cond_wait(&q->filled, &q->lock);
    }
    void *item = take(q);
    pthread_mutex_unlock(&q->lock);
    return item;
}

size_t rn_queue_len(struct rn_queue *q)
{
    pthread_mutex_lock(&q->lock);
    size_t len = q->len;
    pthread_mutex_unlock(&q->lock);
    return len;
}
