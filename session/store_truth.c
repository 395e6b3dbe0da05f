/* END, ABANDON and recovery, and the rows that all writes look up.
 *
 * While a response is in progress, its items and ids lie in the session's tables beyond items_before and head_before (I2): taking it
 * back is a cut at these two numbers, whether ABANDON, the next BEGIN or the start after a crash does it. */
#include "session/store_internal.h"

#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

const char *rn_store_status_word(enum rn_store_status status)
{
    static const char *const words[RN_STORE_STATUS_COUNT] = {"in_progress", "completed", "incomplete", "failed"};
    return (unsigned)status < RN_STORE_STATUS_COUNT ? words[status] : "";
}

int rn_truth_find_session(struct rn_db *db, const char *id, struct rn_session_row *ret, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions", "SELECT key, head, title IS NOT NULL FROM sessions WHERE id = ?1", err);
    rn_stmt_label(&q, "%s", id);
    rn_stmt_bind_text(&q, id);
    struct rn_session_row row = {0};
    bool found = rn_stmt_row(&q);
    if (found) {
        row.key = rn_stmt_int(&q, 1, INT64_MAX);
        row.head = (uint64_t)rn_stmt_int(&q, 0, (int64_t)RN_STORE_MAX_TOKENS);
        row.has_title = rn_stmt_int(&q, 0, 1);
    }
    int r = rn_stmt_end(&q);
    if (r) {
        return r;
    }
    if (!found) {
        return rn_err_set(err, -ENOENT, "no session '%s'", id);
    }
    *ret = row;
    return 0;
}

#define ROW_COLUMNS "key, session, status, created, head_before, items_before"

static void read_response(struct rn_stmt *q, struct rn_response_row *row)
{
    char status[RN_STORE_WORD_BYTES];
    row->key = rn_stmt_int(q, 1, INT64_MAX);
    row->session = rn_stmt_int(q, 1, INT64_MAX);
    rn_stmt_word(q, status, sizeof status);
    row->created_session = rn_stmt_int(q, 0, 1);
    row->head_before = (uint64_t)rn_stmt_int(q, 0, (int64_t)RN_STORE_MAX_TOKENS);
    row->items_before = (uint32_t)rn_stmt_int(q, 0, RN_STORE_MAX_ITEMS);
    row->status = 0;
    while (row->status < RN_STORE_STATUS_COUNT && strcmp(status, rn_store_status_word(row->status))) {
        row->status++;
    }
    if (row->status == RN_STORE_STATUS_COUNT) {
        rn_stmt_damage(q, "column 'status' is '%s'", status);
    }
}

int rn_truth_find_open(struct rn_db *db, int64_t session, struct rn_response_row *ret, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses", "SELECT " ROW_COLUMNS " FROM responses WHERE session = ?1 AND status = 'in_progress'", err);
    rn_stmt_label(&q, "in progress in session key %lld", (long long)session);
    rn_stmt_bind_int(&q, session);
    struct rn_response_row row = {0};
    bool found = rn_stmt_row(&q);
    if (found) {
        read_response(&q, &row);
        if (rn_stmt_row(&q)) {
            rn_stmt_damage(&q, "two of them");
        }
    }
    int r = rn_stmt_end(&q);
    if (!r && found) {
        *ret = row;
    }
    return r ? r : found ? 0 : -ENOENT;
}

// The response that END and ABANDON are about, still in progress and of that session.
static int find_running(struct rn_db *db, struct rn_store_job *job, struct rn_session_row *ret_session, struct rn_response_row *ret)
{
    const char *id = job->response.id;
    struct rn_session_row session;
    int r = rn_truth_find_session(db, job->session.id, &session, &job->err);
    if (r) {
        return r;
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses", "SELECT " ROW_COLUMNS " FROM responses WHERE id = ?1", &job->err);
    rn_stmt_label(&q, "%s", id);
    rn_stmt_bind_text(&q, id);
    struct rn_response_row row = {0};
    bool found = rn_stmt_row(&q);
    if (found) {
        read_response(&q, &row);
    }
    if (found && row.head_before > session.head) {
        rn_stmt_damage(&q, "column 'head_before' is %llu, above the session's head %llu", (unsigned long long)row.head_before,
                       (unsigned long long)session.head);
    }
    r = rn_stmt_end(&q);
    if (r) {
        return r;
    }
    if (!found || row.session != session.key) {
        return rn_err_set(&job->err, -ENOENT, "no response '%s' in session '%s'", id, job->session.id);
    }
    if (row.status != RN_STORE_IN_PROGRESS) {
        return rn_err_set(&job->err, -EALREADY, "response '%s' is %s, not in progress", id, rn_store_status_word(row.status));
    }
    if (job->response.status <= RN_STORE_IN_PROGRESS || job->response.status >= RN_STORE_STATUS_COUNT) {
        return rn_err_set(&job->err, -EINVAL, "response '%s' cannot end with status %d", id, (int)job->response.status);
    }
    *ret_session = session;
    *ret = row;
    return 0;
}

/* ---- Items ---- */

int rn_truth_items_end(struct rn_db *db, int64_t session, uint32_t *ret_n_items, uint64_t *ret_end, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "items",
                  "SELECT coalesce((SELECT max(ordinal) + 1 FROM items WHERE session = ?1), 0),"
                  " coalesce((SELECT \"end\" FROM items WHERE session = ?1 AND \"end\" IS NOT NULL ORDER BY ordinal DESC LIMIT 1), 0)",
                  err);
    rn_stmt_label(&q, "last of session key %lld", (long long)session);
    rn_stmt_bind_int(&q, session);
    int64_t n = 0, end = 0;
    if (rn_stmt_row(&q)) {
        n = rn_stmt_int(&q, 0, RN_STORE_MAX_ITEMS);
        end = rn_stmt_int(&q, 0, (int64_t)RN_STORE_MAX_TOKENS);
    }
    int r = rn_stmt_end(&q);
    if (!r) {
        *ret_n_items = (uint32_t)n;
        *ret_end = (uint64_t)end;
    }
    return r;
}

static int check_item(const struct rn_store_item *item, uint64_t from, uint64_t head, struct rn_err *err)
{
    if (!item->id[0] || !item->role[0] || !json_is_object(item->item)) {
        return rn_err_set(err, -EINVAL, "item '%s' needs an id, a role and a JSON object", item->id);
    }
    if (item->first < from || item->first > item->end || item->end > head) {
        return rn_err_set(err, -EINVAL, "item '%s' has tokens %llu to %llu, expected ascending ones within %llu to %llu", item->id,
                          (unsigned long long)item->first, (unsigned long long)item->end, (unsigned long long)from,
                          (unsigned long long)head);
    }
    return 0;
}

static int add_item(struct rn_db *db, int64_t session, uint32_t ordinal, const char *response_id, const struct rn_store_item *item,
                    struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "items",
                  "INSERT INTO items (session, ordinal, id, response_id, role, turn_start, open, first, \"end\", item)"
                  " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                  err);
    rn_stmt_label(&q, "session key %lld ordinal %u", (long long)session, ordinal);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_int(&q, ordinal);
    rn_stmt_bind_text(&q, item->id);
    rn_stmt_bind_text(&q, response_id);
    rn_stmt_bind_text(&q, item->role);
    rn_stmt_bind_int(&q, item->turn_start);
    rn_stmt_bind_int(&q, item->open);
    rn_stmt_bind_index(&q, item->first);
    rn_stmt_bind_index(&q, item->end);
    rn_stmt_bind_json(&q, item->item);
    return rn_stmt_run(&q);
}

int rn_truth_add_items(struct rn_db *db, int64_t session, uint32_t ordinal, const struct rn_store_job *job, uint64_t from, uint64_t head,
                       struct rn_err *err)
{
    if (job->n_items > RN_STORE_MAX_JOB_ITEMS || ordinal + job->n_items > RN_STORE_MAX_ITEMS) {
        return rn_err_set(err, -E2BIG, "%zu items after %u; at most %u at once and %u in a session", job->n_items, ordinal,
                          RN_STORE_MAX_JOB_ITEMS, RN_STORE_MAX_ITEMS);
    }
    for (size_t i = 0; i < job->n_items; i++) {
        int r = check_item(&job->items[i], from, head, err);
        r = r ? r : add_item(db, session, ordinal + (uint32_t)i, job->response.id, &job->items[i], err);
        if (r) {
            return r;
        }
        from = job->items[i].end;
    }
    return 0;
}

/* ---- END ---- */

static int end_response(struct rn_db *db, const struct rn_store_job *job, int64_t key, uint64_t head, uint32_t n_items,
                        const json_t *output, struct rn_err *err)
{
    const struct rn_store_response *rs = &job->response;
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses",
                  "UPDATE responses SET status = ?2, cause = ?3, completed_at = ?4, head = ?5, n_items = ?6, output_ids = ?7,"
                  " echo = coalesce(?8, echo), sampling = coalesce(?9, sampling), usage = coalesce(?10, usage),"
                  " record = coalesce(?11, record)"
                  " WHERE key = ?1",
                  err);
    rn_stmt_label(&q, "%s", rs->id);
    rn_stmt_bind_int(&q, key);
    rn_stmt_bind_text(&q, rn_store_status_word(rs->status));
    rn_stmt_bind_id(&q, rs->cause);
    rn_stmt_bind_int(&q, rs->completed_at);
    rn_stmt_bind_index(&q, head);
    rn_stmt_bind_int(&q, n_items);
    rn_stmt_bind_json(&q, output);
    rn_stmt_bind_json(&q, rs->echo);
    rn_stmt_bind_json(&q, rs->sampling);
    rn_stmt_bind_json(&q, rs->usage);
    rn_stmt_bind_json(&q, rs->record);
    return rn_stmt_run(&q);
}

static int end_session(struct rn_db *db, const struct rn_store_job *job, int64_t key, uint64_t head, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions",
                  "UPDATE sessions SET head = ?2, last_used = ?3, evicted = ?4, origin = ?5, last_response_id = ?6 WHERE key = ?1", err);
    rn_stmt_label(&q, "%s", job->session.id);
    rn_stmt_bind_int(&q, key);
    rn_stmt_bind_index(&q, head);
    rn_stmt_bind_int(&q, job->session.last_used);
    rn_stmt_bind_index(&q, job->session.evicted);
    rn_stmt_bind_index(&q, job->session.origin);
    rn_stmt_bind_text(&q, job->response.id);
    return rn_stmt_run(&q);
}

static json_t *item_ids(const struct rn_store_job *job)
{
    json_t *ids = json_array();
    for (size_t i = 0; ids && i < job->n_items; i++) {
        if (json_array_append_new(ids, json_string(job->items[i].id))) {
            json_decref(ids);
            ids = NULL;
        }
    }
    return ids;
}

int rn_truth_end(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_err *err = &job->err;
    struct rn_session_row session;
    struct rn_response_row row;
    uint32_t n_items = 0;
    uint64_t items_end = 0;
    int r = find_running(db, job, &session, &row);
    r = r ? r : rn_truth_items_end(db, session.key, &n_items, &items_end, err);
    if (r) {
        return r;
    }
    uint64_t head = job->from + job->n_ids;
    if (job->from < row.head_before || job->from > session.head || items_end > head) {
        return rn_err_set(err, -EINVAL, "response '%s' ends with ids from %llu, expected %llu to %llu and no input cut", job->response.id,
                          (unsigned long long)job->from, (unsigned long long)row.head_before, (unsigned long long)session.head);
    }
    uint64_t first = row.head_before > items_end ? row.head_before : items_end;
    r = rn_log_append(db, session.key, session.head, job->from, job->ids, job->n_ids, err);
    r = r ? r : rn_truth_add_items(db, session.key, n_items, job, first, head, err);
    if (r) {
        return r;
    }
    json_t *output = item_ids(job);
    if (!output) {
        return rn_err_nomem(err, job->n_items * sizeof(json_t *), "output item ids");
    }
    r = end_response(db, job, row.key, head, n_items + (uint32_t)job->n_items, output, err);
    json_decref(output);
    return r ? r : end_session(db, job, session.key, head, err);
}

/* ---- Taking back ---- */

static int set_head(struct rn_db *db, int64_t session, uint64_t head, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions", "UPDATE sessions SET head = ?2 WHERE key = ?1", err);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_index(&q, head);
    return rn_stmt_run(&q);
}

static int drop_items(struct rn_db *db, int64_t session, uint32_t n_kept, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "items", "DELETE FROM items WHERE session = ?1 AND ordinal >= ?2", err);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_int(&q, n_kept);
    return rn_stmt_run(&q);
}

int rn_truth_close_response(struct rn_db *db, const struct rn_response_row *row, enum rn_store_status status, const char *cause,
                            int64_t completed_at, struct rn_err *err)
{
    int r = drop_items(db, row->session, row->items_before, err);
    r = r ? r : rn_log_cut(db, row->session, row->head_before, err);
    r = r ? r : set_head(db, row->session, row->head_before, err);
    if (r) {
        return r;
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses",
                  "UPDATE responses SET status = ?2, cause = ?3, completed_at = ?4, head = head_before, n_items = items_before"
                  " WHERE key = ?1",
                  err);
    rn_stmt_bind_int(&q, row->key);
    rn_stmt_bind_text(&q, rn_store_status_word(status));
    rn_stmt_bind_id(&q, cause);
    rn_stmt_bind_int(&q, completed_at);
    return rn_stmt_run(&q);
}

static int delete_row(struct rn_db *db, const char *table, const char *sql, int64_t key, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, table, sql, err);
    rn_stmt_bind_int(&q, key);
    return rn_stmt_run(&q);
}

int rn_truth_abandon(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_err *err = &job->err;
    struct rn_session_row session;
    struct rn_response_row row;
    int r = find_running(db, job, &session, &row);
    if (r) {
        return r;
    }
    if (job->forget && row.created_session) {
        return delete_row(db, "sessions", "DELETE FROM sessions WHERE key = ?1", session.key, err);
    }
    r = rn_truth_close_response(db, &row, job->response.status, job->response.cause, job->response.completed_at, err);
    if (r) {
        return r;
    }
    if (job->forget) {
        return delete_row(db, "responses", "DELETE FROM responses WHERE key = ?1", row.key, err);
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses", "UPDATE responses SET record = ?2 WHERE key = ?1", err);
    rn_stmt_bind_int(&q, row.key);
    rn_stmt_bind_json(&q, job->response.record);
    return rn_stmt_run(&q);
}

/* ---- Recovery ---- */

// Keeps the input of an interrupted response beside it, before it leaves the timeline. The items are JSON texts already: joining
// them needs no parser, and what is damaged in them is found when it is read.
static int keep_input(struct rn_db *db, const struct rn_response_row *row, struct rn_err *err)
{
    struct rn_stmt q;
    struct rn_buf input = {0};
    rn_stmt_start(&q, db, "items", "SELECT item FROM items WHERE session = ?1 AND ordinal >= ?2 ORDER BY ordinal", err);
    rn_stmt_label(&q, "session key %lld", (long long)row->session);
    rn_stmt_bind_int(&q, row->session);
    rn_stmt_bind_int(&q, row->items_before);
    int r = 0;
    while (!r && rn_stmt_row(&q)) {
        char *item = rn_stmt_text(&q);
        if (item && input.len + strlen(item) + 2 < RN_STORE_MAX_JSON) {
            r = rn_buf_add_char(&input, input.len ? ',' : '[');
            r = r ? r : rn_buf_add_str(&input, item);
        }
        rn_mem_free(item);
    }
    r = r ? rn_err_nomem(err, input.len, "the input of an interrupted response") : 0;
    int end = rn_stmt_end(&q);
    r = r ? r : end;
    if (!r) {
        r = rn_buf_add_str(&input, input.len ? "]" : "[]");
    }
    if (!r) {
        rn_stmt_start(&q, db, "responses", "UPDATE responses SET input = ?2 WHERE key = ?1", err);
        rn_stmt_bind_int(&q, row->key);
        rn_stmt_bind_text(&q, input.data);
        r = rn_stmt_run(&q);
    }
    rn_buf_finish(&input);
    return r;
}

// The oldest response in progress; -ENOENT when there is none left.
static int next_open(struct rn_db *db, struct rn_response_row *ret, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses", "SELECT " ROW_COLUMNS " FROM responses WHERE status = 'in_progress' LIMIT 1", err);
    rn_stmt_label(&q, "in progress");
    struct rn_response_row row = {0};
    bool found = rn_stmt_row(&q);
    if (found) {
        read_response(&q, &row);
    }
    int r = rn_stmt_end(&q);
    if (!r && found) {
        *ret = row;
    }
    return r ? r : found ? 0 : -ENOENT;
}

int rn_truth_recover(struct rn_db *db, uint64_t *ret_n, struct rn_err *err)
{
    uint64_t n = 0;
    int r = rn_db_begin(db, err);
    if (r) {
        return r;
    }
    for (;;) {
        struct rn_response_row row;
        r = next_open(db, &row, err);
        if (r) {
            r = r == -ENOENT ? 0 : r;
            break;
        }
        r = keep_input(db, &row, err);
        r = r ? r : rn_truth_close_response(db, &row, RN_STORE_INCOMPLETE, "interrupted", rn_clock_unix(), err);
        if (r) {
            break;
        }
        n++;
    }
    r = rn_db_commit(db, r, err);
    if (r) {
        (void)rn_err_prefix(err, "closing interrupted responses"); // r is the code, also without an err
        return r;
    }
    *ret_n = n;
    return 0;
}
