/* The store's thread, its queue, and the life of jobs.
 *
 *   rn_store_open: lock -> writer (migrate, recover) -> reader -> thread          rn_store_close: the reverse
 *
 * The loop takes one job at a time: writes run in a transaction of their own on the writer, reads on the reader; then `done`.
 * Closing sets `stopping` and pushes a wake-up, which a full queue may refuse: a thread with jobs to do looks at the flag anyway. */
#define _POSIX_C_SOURCE 200809L
#include "session/store_internal.h"

#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "runtime/base/queue.h"

struct rn_store {
    // Set by open, then constant.
    int lock_fd;
    uint64_t n_interrupted;
    struct rn_queue *queue;
    pthread_t thread;
    bool has_thread;
    atomic_bool stopping;
    struct rn_store_job wake; // pushed to end a wait; never run

    // owner: store thread
    struct rn_db writer, reader;
};

typedef int (*op_fn)(struct rn_db *db, struct rn_store_job *job);

static const struct {
    op_fn run;
    bool writes;
    const char *doing;
} ops[RN_STORE_OP_COUNT] = {
    [RN_STORE_BEGIN] = {rn_truth_begin, true, "storing a question"},
    [RN_STORE_END] = {rn_truth_end, true, "storing an answer"},
    [RN_STORE_ABANDON] = {rn_truth_abandon, true, "taking back a response"},
    [RN_STORE_REBASE] = {rn_truth_rebase, true, "storing a rebased session"},
    [RN_STORE_DELETE] = {rn_truth_delete, true, "deleting a session"},
    [RN_STORE_SET] = {rn_truth_set, true, "storing a setting"},
    [RN_STORE_LOAD] = {rn_truth_load, false, "loading a session"},
    [RN_STORE_SHOW] = {rn_truth_show, false, "reading a session"},
    [RN_STORE_RESPONSE] = {rn_truth_response, false, "reading a response"},
    [RN_STORE_LIST] = {rn_truth_list, false, "listing sessions"},
    [RN_STORE_GET] = {rn_truth_get, false, "reading a setting"},
    [RN_STORE_CHECK] = {rn_truth_check, false, "checking the database"},
};

/* ---- Jobs ---- */

struct rn_store_job *rn_store_job_create(enum rn_store_op op)
{
    struct rn_store_job *job = rn_mem_alloc(1, sizeof *job);
    if (job) {
        job->op = op;
    }
    return job;
}

void rn_store_session_finish(struct rn_store_session *s)
{
    rn_mem_free(s->title);
    rn_mem_free(s->instructions);
    rn_mem_free(s->model_id);
    *s = (struct rn_store_session){0};
}

void rn_store_item_finish(struct rn_store_item *i)
{
    json_decref(i->item);
    *i = (struct rn_store_item){0};
}

void rn_store_response_finish(struct rn_store_response *r)
{
    json_decref(r->echo);
    json_decref(r->sampling);
    json_decref(r->usage);
    json_decref(r->record);
    json_decref(r->output_ids);
    json_decref(r->input);
    *r = (struct rn_store_response){0};
}

// What a job read, or was given to write, in lists.
static void finish_lists(struct rn_store_job *job)
{
    for (size_t i = 0; i < job->n_items; i++) {
        rn_store_item_finish(&job->items[i]);
    }
    for (size_t i = 0; i < job->n_responses; i++) {
        rn_store_response_finish(&job->responses[i]);
    }
    for (size_t i = 0; i < job->n_sessions; i++) {
        rn_store_session_finish(&job->sessions[i]);
    }
    rn_mem_free(job->items);
    rn_mem_free(job->responses);
    rn_mem_free(job->sessions);
    rn_mem_free(job->ids);
    job->items = NULL;
    job->responses = NULL;
    job->sessions = NULL;
    job->ids = NULL;
    job->n_items = job->n_responses = job->n_sessions = job->n_ids = 0;
}

void rn_store_job_destroy(struct rn_store_job *job)
{
    if (!job) {
        return;
    }
    finish_lists(job);
    rn_store_session_finish(&job->session);
    rn_store_response_finish(&job->response);
    rn_mem_free(job->key);
    rn_mem_free(job->value);
    rn_mem_free(job);
}

/* ---- The thread ---- */

static void run_job(struct rn_store *s, struct rn_store_job *job)
{
    int r = 0;
    job->err = (struct rn_err){0};
    if ((unsigned)job->op >= RN_STORE_OP_COUNT) {
        r = rn_err_set(&job->err, -EINVAL, "no store operation %d", (int)job->op);
    } else if (ops[job->op].writes) {
        r = rn_db_begin(&s->writer, &job->err);
        r = r ? r : rn_db_commit(&s->writer, ops[job->op].run(&s->writer, job), &job->err);
    } else {
        finish_lists(job); // nobody's input; a job may be used again
        r = ops[job->op].run(&s->reader, job);
        if (r) {
            finish_lists(job);
        }
    }
    if (r && (unsigned)job->op < RN_STORE_OP_COUNT) {
        (void)rn_err_prefix(&job->err, "%s", ops[job->op].doing);
    }
    job->rc = r;
    job->done(job->user, job);
}

static void *store_main(void *arg)
{
    struct rn_store *s = arg;
    for (;;) {
        struct rn_store_job *job = rn_queue_pop(s->queue);
        if (!job) {
            if (atomic_load(&s->stopping)) {
                return NULL;
            }
            job = rn_queue_pop_wait(s->queue, /*deadline_ns=*/0);
        }
        if (job && job != &s->wake) {
            run_job(s, job);
        }
    }
}

// Signals are for the program's other threads: a write to the disk is not to be interrupted by one.
static int start_thread(struct rn_store *s, struct rn_err *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&s->thread, NULL, store_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code) {
        return rn_err_set(err, -code, "starting the store thread: %s", strerror(code));
    }
    s->has_thread = true;
    return 0;
}

int rn_store_open(struct rn_store **ret, const char *state_dir, struct rn_err *err)
{
    char path[PATH_MAX + 16];
    struct rn_store *s = rn_mem_alloc(1, sizeof *s);
    if (!s) {
        return rn_err_nomem(err, sizeof *s, "the store");
    }
    s->lock_fd = -1;
    atomic_init(&s->stopping, false);
    int r = rn_store_lock(&s->lock_fd, state_dir, err);
    if (r) {
        goto fail;
    }
    snprintf(path, sizeof path, "%s/runnel.db", state_dir);
    r = rn_db_open(&s->writer, path, /*writer=*/true, err);
    r = r ? r : rn_truth_recover(&s->writer, &s->n_interrupted, err);
    r = r ? r : rn_db_open(&s->reader, path, /*writer=*/false, err);
    r = r ? r : rn_queue_create(&s->queue, RN_STORE_QUEUE, /*notify=*/NULL, /*user=*/NULL, err);
    r = r ? r : start_thread(s, err);
    if (r) {
        goto fail;
    }
    *ret = s;
    return 0;
fail:
    rn_store_close(s);
    return r;
}

void rn_store_close(struct rn_store *s)
{
    if (!s) {
        return;
    }
    if (s->has_thread) {
        atomic_store(&s->stopping, true);
        (void)rn_queue_push(s->queue, &s->wake); // refused when full: then the thread is awake
        pthread_join(s->thread, NULL);
    }
    rn_queue_destroy(s->queue);
    rn_db_close(&s->reader);
    rn_db_close(&s->writer); // the last to go: it moves the log into the database
    rn_store_unlock(s->lock_fd);
    rn_mem_free(s);
}

uint64_t rn_store_interrupted(const struct rn_store *s)
{
    return s->n_interrupted;
}

int rn_store_submit(struct rn_store *s, struct rn_store_job *job)
{
    assert(job->done); // a job without it would be lost
    return rn_queue_push(s->queue, job);
}
