/* Connections to runnel.db and its schema, brought up to date by PRAGMA user_version: one transaction per step.
 *
 * A database is hostile input: triggers and views in it are switched off, its schema cannot be written through SQL, cell sizes are
 * checked, nothing is mapped into memory. Rows are checked where they are read (store_stmt). */
#define _POSIX_C_SOURCE 200809L
#include "session/store_internal.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUSY_MS 5000 // somebody looks at the file with another program; longer than any such look needs

/* Step i leads from user_version i to i + 1. Steps that were released are never edited.
 *   sessions.evict, responses.status and cause are words, so that the file can be read without this program.
 *   token_log and items hang on the integer key of their session, ids may be long.
 *   items_before and head_before are what a crash or ABANDON goes back to; created: this response's BEGIN made the session.
 *   responses.parent and items.response name rows that may be gone, or belong to another session: no foreign key. */
static const char *const steps[] = {
    "CREATE TABLE sessions ("
    "  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, created_at INTEGER NOT NULL, last_used INTEGER NOT NULL, title TEXT,"
    "  n INTEGER NOT NULL, sinks INTEGER NOT NULL, evict TEXT NOT NULL, origin INTEGER NOT NULL, lead INTEGER NOT NULL,"
    "  instructions TEXT, tokenizer INTEGER NOT NULL, model_id TEXT, parent TEXT REFERENCES sessions (id) ON DELETE SET NULL,"
    "  at INTEGER NOT NULL, head INTEGER NOT NULL, evicted INTEGER NOT NULL, last_response_id TEXT) STRICT;"
    "CREATE INDEX sessions_by_use ON sessions (last_used);"
    "CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;"
    "CREATE TABLE items ("
    "  session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE, ordinal INTEGER NOT NULL, id TEXT NOT NULL,"
    "  response_id TEXT NOT NULL, role TEXT NOT NULL, turn_start INTEGER NOT NULL, open INTEGER NOT NULL, first INTEGER,"
    "  \"end\" INTEGER, item TEXT NOT NULL,"
    "  PRIMARY KEY (session, ordinal)) STRICT;"
    "CREATE TABLE responses ("
    "  key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE,"
    "  parent_id TEXT, status TEXT NOT NULL, created_at INTEGER NOT NULL, completed_at INTEGER NOT NULL, seed INTEGER NOT NULL,"
    "  generate INTEGER NOT NULL, created INTEGER NOT NULL, head_before INTEGER NOT NULL, items_before INTEGER NOT NULL, head INTEGER,"
    "  n_items INTEGER NOT NULL, cause TEXT, echo TEXT, sampling TEXT, usage TEXT, record TEXT, output_ids TEXT, input TEXT) STRICT;"
    "CREATE INDEX responses_by_session ON responses (session);"
    "CREATE INDEX responses_open ON responses (session) WHERE status = 'in_progress';"
    "CREATE TABLE token_log ("
    "  session INTEGER NOT NULL REFERENCES sessions (key) ON DELETE CASCADE, block INTEGER NOT NULL, ids BLOB NOT NULL,"
    "  PRIMARY KEY (session, block)) STRICT;"
    "CREATE TABLE settings (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;"
    "PRAGMA application_id = 1382960177;",
    // "none" or "linear:2": what a session's keys were rotated with.
    "ALTER TABLE sessions ADD COLUMN rope TEXT NOT NULL DEFAULT 'none';",
};
#define N_STEPS ((int)(sizeof steps / sizeof steps[0]))
_Static_assert(RN_STORE_APP_ID == 1382960177, "the application id in step 0");

// SQLite gives its -wal and -shm files the mode of the database: 0600 here is 0600 for all three.
static int make_file(const char *path, struct rn_err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) || ((st.st_mode & 077) && fchmod(fd, 0600))) {
        int code = errno;
        if (fd >= 0) {
            close(fd);
        }
        return rn_err_set(err, -code, "opening '%s': %s", path, strerror(code));
    }
    close(fd);
    // The name must survive a power cut as well as what is written under it.
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    fd = open(dirname(directory), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); // some file systems cannot sync a directory; SQLite does the same for its journal
        close(fd);
    }
    return 0;
}

static int get_number(struct rn_db *db, const char *sql, int64_t *ret, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sqlite_schema", sql, err);
    int64_t v = rn_stmt_row(&q) ? rn_stmt_int(&q, INT64_MIN, INT64_MAX) : 0;
    int r = rn_stmt_end(&q);
    if (!r) {
        *ret = v;
    }
    return r;
}

// Before anything is changed: is this file ours, and not newer than we are?
static int check_version(struct rn_db *db, int *ret_version, struct rn_err *err)
{
    int64_t version = 0, app_id = 0, n_tables = 0;
    int r = get_number(db, "PRAGMA user_version", &version, err);
    r = r ? r : get_number(db, "PRAGMA application_id", &app_id, err);
    r = r ? r : get_number(db, "SELECT count(*) FROM sqlite_schema", &n_tables, err);
    if (r) {
        return r;
    }
    if (app_id != RN_STORE_APP_ID && (version || app_id || n_tables)) {
        return rn_err_set(err, -EBADMSG, "this is a database of another program (application id %lld)", (long long)app_id);
    }
    if (version > N_STEPS) {
        return rn_err_set(err, -EPROTONOSUPPORT, "it has schema version %lld and this program knows up to %d: a newer runnel wrote it",
                          (long long)version, N_STEPS);
    }
    if (version < 0 || (version == 0 && n_tables)) {
        return rn_err_set(err, -EBADMSG, "damaged database: schema version %lld", (long long)version);
    }
    *ret_version = (int)version;
    return 0;
}

static int migrate(struct rn_db *db, int version, struct rn_err *err)
{
    for (int i = version; i < N_STEPS; i++) {
        int r = rn_db_begin(db, err);
        if (r) {
            return r;
        }
        char set_version[48];
        snprintf(set_version, sizeof set_version, "PRAGMA user_version = %d", i + 1);
        r = rn_db_exec(db, steps[i], "changing the schema", err);
        r = r ? r : rn_db_exec(db, set_version, "setting the schema version", err);
        r = rn_db_commit(db, r, err);
        if (r) {
            (void)rn_err_prefix(err, "migrating from schema version %d to %d", i, i + 1); // r is the code, also without an err
            return r;
        }
    }
    return 0;
}

static int harden(struct rn_db *db, struct rn_err *err)
{
    static const int off[] = {SQLITE_DBCONFIG_ENABLE_TRIGGER, SQLITE_DBCONFIG_ENABLE_VIEW, SQLITE_DBCONFIG_TRUSTED_SCHEMA};
    int rc = sqlite3_db_config(db->conn, SQLITE_DBCONFIG_DEFENSIVE, 1, (int *)NULL);
    for (size_t i = 0; i < sizeof off / sizeof off[0] && rc == SQLITE_OK; i++) {
        rc = sqlite3_db_config(db->conn, off[i], 0, (int *)NULL);
    }
    if (rc == SQLITE_OK) {
        rc = sqlite3_extended_result_codes(db->conn, 1);
    }
    if (rc == SQLITE_OK) {
        rc = sqlite3_busy_timeout(db->conn, BUSY_MS);
    }
    if (rc != SQLITE_OK) {
        return rn_db_error(db, rc, "setting up the connection", err);
    }
    return rn_db_exec(db, "PRAGMA cell_size_check = 1; PRAGMA mmap_size = 0; PRAGMA foreign_keys = 1", "setting up the connection", err);
}

// The file may refuse WAL (a file system without shared memory): then it would not be what the README promises.
static int set_wal(struct rn_db *db, struct rn_err *err)
{
    struct rn_stmt q;
    char mode[16];
    rn_stmt_start(&q, db, "sqlite_schema", "PRAGMA journal_mode = WAL", err);
    mode[0] = 0;
    if (rn_stmt_row(&q)) {
        rn_stmt_word(&q, mode, sizeof mode);
    }
    int r = rn_stmt_end(&q);
    if (r) {
        return r;
    }
    if (strcmp(mode, "wal")) {
        return rn_err_set(err, -EIO, "the file system refuses a write-ahead log (journal mode '%s')", mode);
    }
    // secure_delete: a conversation that was removed does not linger in free pages. journal_size_limit: after a burst the log shrinks.
    return rn_db_exec(db, "PRAGMA synchronous = FULL; PRAGMA secure_delete = 1; PRAGMA journal_size_limit = 16777216", "setting up the log",
                      err);
}

int rn_db_open(struct rn_db *db, const char *path, bool writer, struct rn_err *err)
{
    int r = writer ? make_file(path, err) : 0;
    if (r) {
        return r;
    }
    // NOMUTEX: each connection is used by one thread at a time.
    int flags = (writer ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY) | SQLITE_OPEN_NOMUTEX;
    int rc = sqlite3_open_v2(path, &db->conn, flags, NULL);
    r = rc == SQLITE_OK ? harden(db, err) : rn_db_error(db, rc, "opening", err);
    int version = 0;
    r = r ? r : check_version(db, &version, err);
    if (!r && writer) {
        r = set_wal(db, err);
        r = r ? r : migrate(db, version, err);
    }
    if (r) {
        rn_db_close(db);
        (void)rn_err_prefix(err, "database '%s'", path); // r is the code, also without an err
        return r;
    }
    return 0;
}

void rn_db_close(struct rn_db *db)
{
    for (size_t i = 0; i < db->n_kept; i++) {
        (void)sqlite3_finalize(db->kept[i].st); // repeats the last error of the statement, reported long ago
    }
    (void)sqlite3_close(db->conn); // nothing is open on it: it cannot be busy
    *db = (struct rn_db){0};
}
