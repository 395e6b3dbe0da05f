/* BEGIN, REBASE, DELETE and settings. Each runs inside a transaction that the store thread opened; an error undoes all of it. */
#include "session/store_internal.h"

#include <string.h>

#include "runtime/base/mem.h"
#include "session/rope_words.h"

#define SEED_MAX ((1ull << 53) - 1)

/* ---- Sessions ---- */

// Bytes of the first RN_STORE_TITLE_CHARS characters of UTF-8 text.
static size_t title_len(const char *title)
{
    size_t n = 0, chars = 0;
    for (; title[n]; n++) {
        if (((unsigned char)title[n] & 0xc0) != 0x80 && ++chars > RN_STORE_TITLE_CHARS) {
            break;
        }
    }
    return n;
}

// Cuts the title in the job's own copy; an empty one is none.
static const char *cut_title(struct rn_store_session *s)
{
    if (!s->title || !s->title[0]) {
        return NULL;
    }
    s->title[title_len(s->title)] = 0;
    return s->title;
}

static int check_session(const struct rn_store_session *s, struct rn_err *err)
{
    if (!s->id[0] || !s->n || s->sinks > s->n || (s->evict != RN_EVICT_TURN && s->evict != RN_EVICT_TOKEN)) {
        return rn_err_set(err, -EINVAL, "session '%s' with window %u, sinks %u, policy %d", s->id, s->n, s->sinks, (int)s->evict);
    }
    return 0;
}

static int insert_session(struct rn_db *db, struct rn_store_job *job, struct rn_session_row *ret)
{
    struct rn_store_session *s = &job->session;
    int r = check_session(s, &job->err);
    if (r) {
        return r;
    }
    struct rn_stmt q;
    char rope[RN_ROPE_WORDS];
    rn_rope_format(&s->rope, rope);
    rn_stmt_start(&q, db, "sessions",
                  "INSERT INTO sessions (id, created_at, last_used, title, n, sinks, evict, origin, lead, instructions, tokenizer,"
                  " model_id, parent, at, head, evicted, rope)"
                  " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, 0, ?15, ?16) RETURNING key",
                  &job->err);
    rn_stmt_label(&q, "%s", s->id);
    rn_stmt_bind_text(&q, s->id);
    rn_stmt_bind_int(&q, s->created_at);
    rn_stmt_bind_int(&q, s->last_used);
    rn_stmt_bind_text(&q, cut_title(s));
    rn_stmt_bind_int(&q, s->n);
    rn_stmt_bind_int(&q, s->sinks);
    rn_stmt_bind_text(&q, s->evict == RN_EVICT_TURN ? "turn" : "token");
    rn_stmt_bind_index(&q, s->origin);
    rn_stmt_bind_index(&q, s->lead);
    rn_stmt_bind_text(&q, s->instructions);
    rn_stmt_bind_int(&q, (int64_t)s->tokenizer_fingerprint);
    rn_stmt_bind_text(&q, s->model_id);
    rn_stmt_bind_id(&q, job->fork_of);
    rn_stmt_bind_index(&q, job->fork_of[0] ? s->at : 0);
    rn_stmt_bind_index(&q, s->evicted);
    rn_stmt_bind_text(&q, rope);
    int64_t key = rn_stmt_row(&q) ? rn_stmt_int(&q, 1, INT64_MAX) : 0;
    while (rn_stmt_row(&q)) {
    }
    r = rn_stmt_end(&q);
    if (!r) {
        *ret = (struct rn_session_row){.key = key, .has_title = s->title};
    }
    return r;
}

// The parent's first items and ids become the new session's.
static int copy_parent(struct rn_db *db, const struct rn_store_job *job, const struct rn_session_row *parent,
                       struct rn_session_row *session, struct rn_err *err)
{
    uint64_t at = job->session.at;
    if (at > parent->head) {
        return rn_err_set(err, -EINVAL, "fork of session '%s' at %llu, which has %llu tokens", job->fork_of, (unsigned long long)at,
                          (unsigned long long)parent->head);
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "items",
                  "INSERT INTO items (session, ordinal, id, response_id, role, turn_start, open, first, \"end\", item)"
                  " SELECT ?1, ordinal, id, response_id, role, turn_start, open, first, \"end\", item FROM items"
                  " WHERE session = ?2 AND ordinal < ?3 AND coalesce(\"end\", 0) <= ?4",
                  err);
    rn_stmt_bind_int(&q, session->key);
    rn_stmt_bind_int(&q, parent->key);
    rn_stmt_bind_int(&q, job->fork_items);
    rn_stmt_bind_index(&q, at);
    int r = rn_stmt_run(&q);
    if (r) {
        return r;
    }
    if (rn_db_changes(db) != job->fork_items) {
        return rn_err_set(err, -EINVAL, "fork of session '%s' with %u items before token %llu, it has %lld", job->fork_of, job->fork_items,
                          (unsigned long long)at, (long long)rn_db_changes(db));
    }
    session->head = at;
    return rn_log_copy(db, session->key, parent->key, at, err);
}

static int use_session(struct rn_db *db, struct rn_store_job *job, const struct rn_session_row *session, uint64_t head)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions",
                  "UPDATE sessions SET head = ?2, last_used = max(last_used, ?3), title = coalesce(title, ?4) WHERE key = ?1", &job->err);
    rn_stmt_label(&q, "%s", job->session.id);
    rn_stmt_bind_int(&q, session->key);
    rn_stmt_bind_index(&q, head);
    rn_stmt_bind_int(&q, job->session.last_used);
    rn_stmt_bind_text(&q, session->has_title ? NULL : cut_title(&job->session));
    return rn_stmt_run(&q);
}

// What END or ABANDON could not write (full disk) is closed now; the engine has gone on from head_before.
static int close_left_over(struct rn_db *db, struct rn_store_job *job, struct rn_session_row *session)
{
    struct rn_response_row left;
    int r = rn_truth_find_open(db, session->key, &left, &job->err);
    if (r) {
        return r == -ENOENT ? 0 : r;
    }
    r = rn_truth_close_response(db, &left, RN_STORE_FAILED, "storage", job->response.created_at, &job->err);
    if (!r) {
        session->head = left.head_before;
    }
    return r;
}

/* ---- BEGIN ---- */

static int find_place(struct rn_db *db, struct rn_store_job *job, struct rn_session_row *session)
{
    struct rn_session_row parent;
    int r = 0;
    if (!job->create) {
        r = rn_truth_find_session(db, job->session.id, session, &job->err);
        r = r ? r : close_left_over(db, job, session);
    } else if (!job->fork_of[0]) {
        r = insert_session(db, job, session);
    } else {
        r = rn_truth_find_session(db, job->fork_of, &parent, &job->err);
        r = r ? r : insert_session(db, job, session);
        r = r ? r : copy_parent(db, job, &parent, session, &job->err);
    }
    if (!r && job->from != session->head) {
        return rn_err_set(&job->err, -ESTALE, "response '%s' begins at token %llu of session '%s', which has %llu", job->response.id,
                          (unsigned long long)job->from, job->session.id, (unsigned long long)session->head);
    }
    return r;
}

static int insert_response(struct rn_db *db, const struct rn_store_job *job, int64_t session, uint32_t items_before, struct rn_err *err)
{
    const struct rn_store_response *rs = &job->response;
    if (!rs->id[0] || rs->seed > SEED_MAX) {
        return rn_err_set(err, -EINVAL, "response '%s' with seed %llu", rs->id, (unsigned long long)rs->seed);
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses",
                  "INSERT INTO responses (id, session, parent_id, status, created_at, completed_at, seed, generate, created, head_before,"
                  " items_before, head, n_items, echo, sampling)"
                  " VALUES (?1, ?2, ?3, 'in_progress', ?4, 0, ?5, ?6, ?7, ?8, ?9, ?8, ?10, ?11, ?12)",
                  err);
    rn_stmt_label(&q, "%s", rs->id);
    rn_stmt_bind_text(&q, rs->id);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_id(&q, rs->parent_id);
    rn_stmt_bind_int(&q, rs->created_at);
    rn_stmt_bind_int(&q, (int64_t)rs->seed);
    rn_stmt_bind_int(&q, rs->generate);
    rn_stmt_bind_int(&q, job->create);
    rn_stmt_bind_index(&q, job->from);
    rn_stmt_bind_int(&q, items_before);
    rn_stmt_bind_int(&q, items_before + (int64_t)job->n_items);
    rn_stmt_bind_json(&q, rs->echo);
    rn_stmt_bind_json(&q, rs->sampling);
    return rn_stmt_run(&q);
}

int rn_truth_begin(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_err *err = &job->err;
    struct rn_session_row session;
    uint32_t n_items = 0;
    uint64_t items_end = 0;
    int r = find_place(db, job, &session);
    r = r ? r : rn_truth_items_end(db, session.key, &n_items, &items_end, err);
    if (r) {
        return r;
    }
    uint64_t head = job->from + job->n_ids;
    r = rn_log_append(db, session.key, session.head, job->from, job->ids, job->n_ids, err);
    r = r ? r : insert_response(db, job, session.key, n_items, err);
    r = r ? r : rn_truth_add_items(db, session.key, n_items, job, job->from, head, err);
    return r ? r : use_session(db, job, &session, head);
}

/* ---- REBASE ---- */

static int move_items(struct rn_db *db, const struct rn_store_job *job, int64_t session, struct rn_err *err)
{
    uint64_t before = 0;
    for (size_t i = 0; i < job->n_items; i++) {
        const struct rn_store_item *item = &job->items[i];
        bool outside = item->first == RN_STORE_NOWHERE && item->end == RN_STORE_NOWHERE;
        if (!outside && (item->first < before || item->first > item->end || item->end > job->n_ids)) {
            return rn_err_set(err, -EINVAL, "item %zu has tokens %llu to %llu, expected ascending ones within %llu to %zu", i,
                              (unsigned long long)item->first, (unsigned long long)item->end, (unsigned long long)before, job->n_ids);
        }
        before = outside ? before : item->end;
        struct rn_stmt q;
        rn_stmt_start(&q, db, "items",
                      "UPDATE items SET first = ?3, \"end\" = ?4, turn_start = ?5, open = ?6 WHERE session = ?1 AND ordinal = ?2", err);
        rn_stmt_bind_int(&q, session);
        rn_stmt_bind_int(&q, (int64_t)i);
        rn_stmt_bind_index(&q, item->first);
        rn_stmt_bind_index(&q, item->end);
        rn_stmt_bind_int(&q, item->turn_start && !outside);
        rn_stmt_bind_int(&q, item->open && !outside);
        int r = rn_stmt_run(&q);
        if (r) {
            return r;
        }
    }
    return 0;
}

static int move_responses(struct rn_db *db, const struct rn_store_job *job, int64_t session, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses",
                  "UPDATE responses SET head = CASE n_items WHEN ?2 THEN ?3 WHEN 0 THEN 0 ELSE (SELECT \"end\" FROM items"
                  " WHERE items.session = ?1 AND ordinal = n_items - 1) END WHERE session = ?1",
                  err);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_int(&q, (int64_t)job->n_items);
    rn_stmt_bind_index(&q, job->n_ids);
    return rn_stmt_run(&q);
}

static int new_timeline(struct rn_db *db, const struct rn_store_job *job, const struct rn_session_row *session, struct rn_err *err)
{
    const struct rn_store_session *s = &job->session;
    uint32_t n_items = 0;
    uint64_t items_end = 0;
    int r = check_session(s, err);
    r = r ? r : rn_truth_items_end(db, session->key, &n_items, &items_end, err);
    if (r) {
        return r;
    }
    if (n_items != job->n_items) {
        return rn_err_set(err, -EINVAL, "a new timeline of %zu items for session '%s', which has %u", job->n_items, s->id, n_items);
    }
    r = rn_log_append(db, session->key, session->head, 0, job->ids, job->n_ids, err);
    r = r ? r : move_items(db, job, session->key, err);
    r = r ? r : move_responses(db, job, session->key, err);
    if (r) {
        return r;
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions",
                  "UPDATE sessions SET head = ?2, n = ?3, sinks = ?4, lead = ?5, instructions = ?6, tokenizer = ?7, model_id = ?8"
                  " WHERE key = ?1",
                  err);
    rn_stmt_label(&q, "%s", s->id);
    rn_stmt_bind_int(&q, session->key);
    rn_stmt_bind_index(&q, job->n_ids);
    rn_stmt_bind_int(&q, s->n);
    rn_stmt_bind_int(&q, s->sinks);
    rn_stmt_bind_index(&q, s->lead);
    rn_stmt_bind_text(&q, s->instructions);
    rn_stmt_bind_int(&q, (int64_t)s->tokenizer_fingerprint);
    rn_stmt_bind_text(&q, s->model_id);
    return rn_stmt_run(&q);
}

int rn_truth_rebase(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_err *err = &job->err;
    struct rn_session_row session;
    struct rn_response_row open;
    int r = rn_truth_find_session(db, job->session.id, &session, err);
    if (r) {
        return r;
    }
    r = rn_truth_find_open(db, session.key, &open, err);
    if (r != -ENOENT) {
        return r ? r : rn_err_set(err, -EBUSY, "session '%s' has a response in progress", job->session.id);
    }
    r = job->timeline ? new_timeline(db, job, &session, err) : 0;
    if (r) {
        return r;
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions", "UPDATE sessions SET origin = ?2, evicted = ?3 WHERE key = ?1", err);
    rn_stmt_label(&q, "%s", job->session.id);
    rn_stmt_bind_int(&q, session.key);
    rn_stmt_bind_index(&q, job->session.origin);
    rn_stmt_bind_index(&q, job->session.evicted);
    return rn_stmt_run(&q);
}

/* ---- DELETE, SET ---- */

int rn_truth_delete(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions", "DELETE FROM sessions WHERE id = ?1", &job->err);
    rn_stmt_label(&q, "%s", job->session.id);
    rn_stmt_bind_text(&q, job->session.id);
    int r = rn_stmt_run(&q);
    if (!r && rn_db_changes(db) == 0) {
        return rn_err_set(&job->err, -ENOENT, "no session '%s'", job->session.id);
    }
    return r;
}

int rn_truth_set(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_stmt q;
    if (!job->key) {
        return rn_err_set(&job->err, -EINVAL, "a setting without a key");
    }
    if (job->value) {
        rn_stmt_start(&q, db, "settings",
                      "INSERT INTO settings (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                      &job->err);
    } else {
        rn_stmt_start(&q, db, "settings", "DELETE FROM settings WHERE key = ?1", &job->err);
    }
    rn_stmt_label(&q, "%s", job->key);
    rn_stmt_bind_text(&q, job->key);
    if (job->value) {
        rn_stmt_bind_text(&q, job->value);
    }
    return rn_stmt_run(&q);
}
