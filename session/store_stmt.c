/* Statements: prepared once, bound and read in order, every value checked. Nothing here knows what the tables mean. */
#include "session/store_internal.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"

// SQLite knows ENOSPC as "full"; a quota and a size limit are the same to us. The write that failed was the log's or the database's,
// and only the file itself remembers why: errno is long overwritten.
static bool is_full(struct rn_db *db, int sqlite_rc)
{
    static const int which[] = {SQLITE_FCNTL_JOURNAL_POINTER, SQLITE_FCNTL_FILE_POINTER};
    for (size_t i = 0; i < 2 && db->conn && sqlite_rc == SQLITE_IOERR_WRITE; i++) {
        sqlite3_file *file = NULL;
        int code = 0;
        if (sqlite3_file_control(db->conn, "main", which[i], &file) == SQLITE_OK && file && file->pMethods &&
            file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &code) == SQLITE_OK && (code == EDQUOT || code == EFBIG)) {
            return true;
        }
    }
    return false;
}

static int errno_of(struct rn_db *db, int sqlite_rc)
{
    switch (sqlite_rc & 0xff) {
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_IOERR:
        return is_full(db, sqlite_rc) ? -ENOSPC : sqlite_rc == SQLITE_IOERR_NOMEM ? -ENOMEM : -EIO;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
        return -EBADMSG;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return -EACCES;
    case SQLITE_TOOBIG:
        return -E2BIG;
    case SQLITE_CONSTRAINT:
        return -EEXIST;
    default:
        return -EIO;
    }
}

int rn_db_error(struct rn_db *db, int sqlite_rc, const char *doing, struct rn_err *err)
{
    const char *message = db->conn ? sqlite3_errmsg(db->conn) : sqlite3_errstr(sqlite_rc);
    return rn_err_set(err, errno_of(db, sqlite_rc), "%s: %s (sqlite %d)", doing, message, sqlite_rc);
}

int rn_db_exec(struct rn_db *db, const char *sql, const char *doing, struct rn_err *err)
{
    int rc = sqlite3_exec(db->conn, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : rn_db_error(db, rc, doing, err);
}

int64_t rn_db_changes(struct rn_db *db)
{
    return sqlite3_changes64(db->conn);
}

int rn_db_begin(struct rn_db *db, struct rn_err *err)
{
    if (!sqlite3_get_autocommit(db->conn)) {
        // A rollback that failed (out of memory) left a transaction open: nothing of it may be committed with the next one.
        (void)sqlite3_exec(db->conn, "ROLLBACK", NULL, NULL, NULL);
    }
    return rn_db_exec(db, "BEGIN IMMEDIATE", "starting a transaction", err);
}

int rn_db_commit(struct rn_db *db, int rc, struct rn_err *err)
{
    if (!rc) {
        rc = rn_db_exec(db, "COMMIT", "committing", err);
    }
    if (!sqlite3_get_autocommit(db->conn)) {
        (void)sqlite3_exec(db->conn, "ROLLBACK", NULL, NULL, NULL); // the first error is the story; rn_db_begin tries again
    }
    return rc;
}

static struct sqlite3_stmt *prepared(struct rn_db *db, const char *sql, struct rn_err *err, int *ret_rc)
{
    for (size_t i = 0; i < db->n_kept; i++) {
        if (db->kept[i].sql == sql) {
            return db->kept[i].st;
        }
    }
    if (db->n_kept == RN_DB_STATEMENTS) {
        *ret_rc = rn_err_set(err, -E2BIG, "more than %d kinds of statements", RN_DB_STATEMENTS);
        return NULL;
    }
    struct sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v3(db->conn, sql, -1, SQLITE_PREPARE_PERSISTENT, &st, NULL);
    if (rc != SQLITE_OK) {
        *ret_rc = rn_db_error(db, rc, "preparing a statement", err);
        return NULL;
    }
    db->kept[db->n_kept].sql = sql;
    db->kept[db->n_kept++].st = st;
    return st;
}

void rn_stmt_start(struct rn_stmt *q, struct rn_db *db, const char *table, const char *sql, struct rn_err *err)
{
    *q = (struct rn_stmt){.db = db, .table = table, .err = err};
    q->st = prepared(db, sql, err, &q->rc);
}

void rn_stmt_label(struct rn_stmt *q, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(q->label, sizeof q->label, format, args);
    va_end(args);
}

static void fail(struct rn_stmt *q, int sqlite_rc)
{
    char doing[160];
    snprintf(doing, sizeof doing, "table '%s'%s%s%s", q->table, q->label[0] ? ", row '" : "", q->label, q->label[0] ? "'" : "");
    q->rc = rn_db_error(q->db, sqlite_rc, doing, q->err);
}

bool rn_stmt_row(struct rn_stmt *q)
{
    if (q->rc) {
        return false;
    }
    q->column = 0;
    int rc = sqlite3_step(q->st);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
        fail(q, rc);
    }
    return rc == SQLITE_ROW;
}

int rn_stmt_end(struct rn_stmt *q)
{
    if (q->st) {
        // The result of a reset repeats that of the last step, which is already in q->rc.
        (void)sqlite3_reset(q->st);
        (void)sqlite3_clear_bindings(q->st);
        q->st = NULL;
    }
    return q->rc;
}

int rn_stmt_run(struct rn_stmt *q)
{
    while (rn_stmt_row(q)) {
    }
    return rn_stmt_end(q);
}

/* ---- Binding ---- */

static void bound(struct rn_stmt *q, int sqlite_rc)
{
    if (sqlite_rc != SQLITE_OK) {
        fail(q, sqlite_rc);
    }
}

void rn_stmt_bind_int(struct rn_stmt *q, int64_t value)
{
    if (!q->rc) {
        bound(q, sqlite3_bind_int64(q->st, ++q->n_bound, value));
    }
}

void rn_stmt_bind_index(struct rn_stmt *q, uint64_t value)
{
    if (q->rc) {
        return;
    }
    if (value == RN_STORE_NOWHERE) {
        bound(q, sqlite3_bind_null(q->st, ++q->n_bound));
    } else if (value > INT64_MAX) {
        q->rc = rn_err_set(q->err, -ERANGE, "table '%s': %llu is above 2^63-1", q->table, (unsigned long long)value);
    } else {
        rn_stmt_bind_int(q, (int64_t)value);
    }
}

void rn_stmt_bind_text(struct rn_stmt *q, const char *text)
{
    if (q->rc) {
        return;
    }
    size_t len = text ? strlen(text) : 0;
    if (len > RN_STORE_MAX_JSON) {
        q->rc = rn_err_set(q->err, -E2BIG, "table '%s': a text of %zu bytes, at most %u are stored", q->table, len, RN_STORE_MAX_JSON);
        return;
    }
    q->n_bound++;
    bound(q, text ? sqlite3_bind_text64(q->st, q->n_bound, text, len, SQLITE_STATIC, SQLITE_UTF8) : sqlite3_bind_null(q->st, q->n_bound));
}

void rn_stmt_bind_id(struct rn_stmt *q, const char *id)
{
    rn_stmt_bind_text(q, id[0] ? id : NULL);
}

void rn_stmt_bind_blob(struct rn_stmt *q, const void *data, size_t len)
{
    if (!q->rc) {
        bound(q, sqlite3_bind_blob64(q->st, ++q->n_bound, data, len, SQLITE_STATIC));
    }
}

struct json_text {
    struct rn_buf buf;
    int rc;
};

// The error must stick: jansson (2.14) does not look at what the callback says about a key, and would go on without it.
static int add_json(const char *data, size_t len, void *user)
{
    struct json_text *text = user;
    if (!text->rc) {
        text->rc = text->buf.len + len > RN_STORE_MAX_JSON ? -E2BIG : rn_buf_add(&text->buf, data, len);
    }
    return text->rc ? -1 : 0;
}

void rn_stmt_bind_json(struct rn_stmt *q, const json_t *value)
{
    if (q->rc) {
        return;
    }
    if (!value) {
        bound(q, sqlite3_bind_null(q->st, ++q->n_bound));
        return;
    }
    struct json_text text = {0};
    int r = json_dump_callback(value, add_json, &text, JSON_COMPACT | JSON_ENCODE_ANY);
    if (r || text.rc) {
        q->rc = text.rc == -E2BIG ? rn_err_set(q->err, -E2BIG, "table '%s': a JSON value above %u bytes", q->table, RN_STORE_MAX_JSON)
                                  : rn_err_nomem(q->err, text.buf.len, "JSON text");
        rn_buf_finish(&text.buf);
        return;
    }
    bound(q, sqlite3_bind_text64(q->st, ++q->n_bound, text.buf.data, text.buf.len, rn_mem_free, SQLITE_UTF8));
}

/* ---- Reading ---- */

void rn_stmt_damage(struct rn_stmt *q, const char *format, ...)
{
    if (q->rc) {
        return;
    }
    char what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    q->rc = rn_err_set(q->err, -EBADMSG, "damaged database: table '%s', row '%s': %s", q->table, q->label, what);
}

// The next column when it has the type; -1 when it is NULL, has another type (damage) or the query has failed.
static int next_column(struct rn_stmt *q, int type, const char *type_name, bool nullable)
{
    if (q->rc) {
        return -1;
    }
    int c = q->column++;
    int found = sqlite3_column_type(q->st, c);
    if (found == type) {
        return c;
    }
    if (found != SQLITE_NULL || !nullable) {
        rn_stmt_damage(q, "column '%s' is not %s", sqlite3_column_name(q->st, c), type_name);
    }
    return -1;
}

int64_t rn_stmt_int(struct rn_stmt *q, int64_t min, int64_t max)
{
    int c = next_column(q, SQLITE_INTEGER, "an integer", false);
    int64_t v = c < 0 ? min : sqlite3_column_int64(q->st, c);
    if (v < min || v > max) {
        rn_stmt_damage(q, "column '%s' is %lld, expected %lld to %lld", sqlite3_column_name(q->st, c), (long long)v, (long long)min,
                        (long long)max);
        return min;
    }
    return v;
}

uint64_t rn_stmt_index(struct rn_stmt *q, uint64_t max)
{
    int c = next_column(q, SQLITE_INTEGER, "an integer", true);
    if (c < 0) {
        return RN_STORE_NOWHERE;
    }
    int64_t v = sqlite3_column_int64(q->st, c);
    if (v < 0 || (uint64_t)v > max) {
        rn_stmt_damage(q, "column '%s' is %lld, expected 0 to %llu", sqlite3_column_name(q->st, c), (long long)v, (unsigned long long)max);
        return RN_STORE_NOWHERE;
    }
    return (uint64_t)v;
}

// Text of the next column without a NUL inside; NULL for NULL and errors.
static const char *column_text(struct rn_stmt *q, size_t max, size_t *ret_len)
{
    int c = next_column(q, SQLITE_TEXT, "text", true);
    if (c < 0) {
        return NULL;
    }
    const char *text = (const char *)sqlite3_column_text(q->st, c);
    size_t len = (size_t)sqlite3_column_bytes(q->st, c);
    if (!text) {
        q->rc = rn_err_nomem(q->err, len, "a column");
        return NULL;
    }
    if (len > max || strlen(text) != len) {
        rn_stmt_damage(q, "column '%s' has %zu bytes, at most %zu and no NUL expected", sqlite3_column_name(q->st, c), len, max);
        return NULL;
    }
    *ret_len = len;
    return text;
}

void rn_stmt_word(struct rn_stmt *q, char *ret, size_t size)
{
    size_t len = 0;
    const char *text = column_text(q, size - 1, &len);
    memcpy(ret, text ? text : "", len + 1);
}

char *rn_stmt_text(struct rn_stmt *q)
{
    size_t len = 0;
    const char *text = column_text(q, RN_STORE_MAX_JSON, &len);
    char *copy = text ? rn_mem_strndup(text, len) : NULL;
    if (text && !copy) {
        q->rc = rn_err_nomem(q->err, len, "a column");
    }
    return copy;
}

json_t *rn_stmt_json(struct rn_stmt *q, json_type type)
{
    size_t len = 0;
    const char *text = column_text(q, RN_STORE_MAX_JSON, &len);
    if (!text) {
        return NULL;
    }
    const char *name = sqlite3_column_name(q->st, q->column - 1);
    json_error_t at;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES, &at);
    if (!value && json_error_code(&at) == json_error_out_of_memory) {
        q->rc = rn_err_nomem(q->err, len, "JSON");
    } else if (!value) {
        rn_stmt_damage(q, "column '%s' is not JSON: %s", name, at.text);
    } else if (json_typeof(value) != type) {
        rn_stmt_damage(q, "column '%s' is JSON of another type", name);
    } else {
        return value;
    }
    json_decref(value);
    return NULL;
}

const unsigned char *rn_stmt_blob(struct rn_stmt *q, size_t *ret_len)
{
    int c = next_column(q, SQLITE_BLOB, "a blob", false);
    if (c < 0) {
        return NULL;
    }
    *ret_len = (size_t)sqlite3_column_bytes(q->st, c);
    return sqlite3_column_blob(q->st, c);
}
