/* Inside the store: connections, checked queries, and the pieces that session/store_*.c give each other.
 *
 *   store_thread  queue, thread, open and close, jobs          store_write  BEGIN, REBASE, DELETE, settings
 *   store_lock    one process per state directory              store_truth  END, ABANDON and what a crash leaves; rows shared by writes
 *   store_schema  connections, migrations                      store_read   LOAD, SHOW, LIST, RESPONSE, CHECK
 *   store_stmt    statements: bind, step, read with checks     store_log    token log in blocks
 *
 * owner of everything here: the thread in rn_store_open, then the store thread. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/err.h"
#include "session/store.h"

struct sqlite3;
struct sqlite3_stmt;

#define RN_DB_STATEMENTS 64       /* prepared statements kept per connection; the code has about 45 */
#define RN_LOG_BLOCK 1024u        /* ids per block of the token log */
#define RN_STORE_APP_ID 0x526e4c31 /* PRAGMA application_id: "RnL1" */

/* ---- Connections and queries -------------------------------------------------------------------------------------------------------- */

/* One connection. Statements are prepared once and kept, found by the address of their text, which is a literal. */
struct rn_db {
    struct sqlite3 *conn;
    struct {
        const char *sql;
        struct sqlite3_stmt *st;
    } kept[RN_DB_STATEMENTS];
    size_t n_kept;
};

/* A statement in use. Errors stick: after the first one all calls do nothing, and rn_stmt_end returns it.
 *
 *   rn_stmt_start(&q, db, "items", "SELECT …", err);  bind…  while (rn_stmt_row(&q)) { read… }  return rn_stmt_end(&q);
 */
struct rn_stmt {
    struct rn_db *db;
    struct sqlite3_stmt *st;
    const char *table;            /* for errors */
    char label[96];               /* for errors: which row */
    int n_bound, column;          /* next one to bind (from 1), to read (from 0) */
    int rc;                       /* 0 or a negative errno */
    struct rn_err *err;
};

void rn_stmt_start(struct rn_stmt *q, struct rn_db *db, const char *table, const char *sql, struct rn_err *err);
void rn_stmt_label(struct rn_stmt *q, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool rn_stmt_row(struct rn_stmt *q); /* false: no more rows, or an error */
int rn_stmt_end(struct rn_stmt *q);
int rn_stmt_run(struct rn_stmt *q);  /* steps to the end, then rn_stmt_end */

void rn_stmt_bind_int(struct rn_stmt *q, int64_t value);
void rn_stmt_bind_index(struct rn_stmt *q, uint64_t value);     /* RN_STORE_NOWHERE becomes NULL; above INT64_MAX is -ERANGE */
void rn_stmt_bind_text(struct rn_stmt *q, const char *text);    /* borrowed until the end; NULL stays NULL */
void rn_stmt_bind_id(struct rn_stmt *q, const char *id);        /* "" becomes NULL */
void rn_stmt_bind_blob(struct rn_stmt *q, const void *data, size_t len); /* borrowed until the end */
void rn_stmt_bind_json(struct rn_stmt *q, const json_t *value); /* NULL stays NULL; above RN_STORE_MAX_JSON is -E2BIG */

/* Each reads the next column, with its type and range checked; what does not fit is -EBADMSG with table, row and column. */
int64_t rn_stmt_int(struct rn_stmt *q, int64_t min, int64_t max);
uint64_t rn_stmt_index(struct rn_stmt *q, uint64_t max);        /* NULL gives RN_STORE_NOWHERE */
void rn_stmt_word(struct rn_stmt *q, char *ret, size_t size);   /* text shorter than size; NULL gives "" */
char *rn_stmt_text(struct rn_stmt *q);                          /* owned by the caller; NULL for NULL */
json_t *rn_stmt_json(struct rn_stmt *q, json_type type);        /* owned by the caller; NULL for NULL */
const unsigned char *rn_stmt_blob(struct rn_stmt *q, size_t *ret_len); /* until the next step */
/* The error of a row that is wrong in another way. */
void rn_stmt_damage(struct rn_stmt *q, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* SQLite's last error on this connection as errno and story: "doing: message". */
int rn_db_error(struct rn_db *db, int sqlite_rc, const char *doing, struct rn_err *err);
int rn_db_exec(struct rn_db *db, const char *sql, const char *doing, struct rn_err *err);
int64_t rn_db_changes(struct rn_db *db);  /* rows changed by the last statement */

/* BEGIN IMMEDIATE; COMMIT when rc is 0, else ROLLBACK. rn_db_commit returns rc, or why the commit failed (it is rolled back then). */
int rn_db_begin(struct rn_db *db, struct rn_err *err);
int rn_db_commit(struct rn_db *db, int rc, struct rn_err *err);

/* ---- Opening ------------------------------------------------------------------------------------------------------------------------ */

/* Makes the directory and takes its lock. *ret_fd >= 0; -EBUSY names the pid. */
int rn_store_lock(int *ret_fd, const char *state_dir, struct rn_err *err);
void rn_store_unlock(int fd); /* -1 is fine */

/* Opens `path` for writing (created 0600) and migrates it; for reading with `writer` false. db is zero before and closed after failure. */
int rn_db_open(struct rn_db *db, const char *path, bool writer, struct rn_err *err);
void rn_db_close(struct rn_db *db);

/* ---- Token log ---------------------------------------------------------------------------------------------------------------------- */

/* Cuts the log of a session from old_len to `from` and appends. Cost: the blocks touched. */
int rn_log_append(struct rn_db *db, int64_t session, uint64_t old_len, uint64_t from, const uint32_t *ids, size_t n_ids,
                  struct rn_err *err);
/* Forgets what lies at and after `len`; looks at nothing else, so it works on damaged logs too. */
int rn_log_cut(struct rn_db *db, int64_t session, uint64_t len, struct rn_err *err);
/* Copies the first `len` ids to a session whose log is empty. */
int rn_log_copy(struct rn_db *db, int64_t to_session, int64_t from_session, uint64_t len, struct rn_err *err);
/* Reads a log of `len` ids and checks all of it. *ret_ids is owned by the caller (rn_mem). */
int rn_log_load(struct rn_db *db, int64_t session, const char *session_id, uint64_t len, uint32_t **ret_ids, struct rn_err *err);

/* ---- Truth -------------------------------------------------------------------------------------------------------------------------- */

/* Rows as writes need them. */
struct rn_session_row {
    int64_t key;
    uint64_t head;
    bool has_title;
};
struct rn_response_row {
    int64_t key, session;
    enum rn_store_status status;
    bool created_session;
    uint64_t head_before;
    uint32_t items_before;
};

/* Names of the status as stored: "in_progress", … */
const char *rn_store_status_word(enum rn_store_status status);

int rn_truth_find_session(struct rn_db *db, const char *id, struct rn_session_row *ret, struct rn_err *err);
/* The response in progress of a session; -ENOENT without a story when there is none. */
int rn_truth_find_open(struct rn_db *db, int64_t session, struct rn_response_row *ret, struct rn_err *err);
/* Number of items of a session, and where the last one that has tokens ends. */
int rn_truth_items_end(struct rn_db *db, int64_t session, uint32_t *ret_n_items, uint64_t *ret_end, struct rn_err *err);
/* Items are in order and lie in [from, head]; writes them from `ordinal` on. */
int rn_truth_add_items(struct rn_db *db, int64_t session, uint32_t ordinal, const struct rn_store_job *job, uint64_t from, uint64_t head,
                       struct rn_err *err);
/* Takes a response's items and ids out of the timeline and closes it. */
int rn_truth_close_response(struct rn_db *db, const struct rn_response_row *row, enum rn_store_status status, const char *cause,
                            int64_t completed_at, struct rn_err *err);

/* Closes what a crash left in progress. */
int rn_truth_recover(struct rn_db *db, uint64_t *ret_n, struct rn_err *err);

/* One per write operation; inside a transaction. The story goes to job->err. */
int rn_truth_begin(struct rn_db *db, struct rn_store_job *job);
int rn_truth_end(struct rn_db *db, struct rn_store_job *job);
int rn_truth_abandon(struct rn_db *db, struct rn_store_job *job);
int rn_truth_rebase(struct rn_db *db, struct rn_store_job *job);
int rn_truth_delete(struct rn_db *db, struct rn_store_job *job);
int rn_truth_set(struct rn_db *db, struct rn_store_job *job);

/* One per read operation, on the reader. */
int rn_truth_load(struct rn_db *db, struct rn_store_job *job);
int rn_truth_show(struct rn_db *db, struct rn_store_job *job);
int rn_truth_response(struct rn_db *db, struct rn_store_job *job);
int rn_truth_list(struct rn_db *db, struct rn_store_job *job);
int rn_truth_get(struct rn_db *db, struct rn_store_job *job);
int rn_truth_check(struct rn_db *db, struct rn_store_job *job);
