/* LOAD, SHOW, RESPONSE, LIST, GET and CHECK. All rows are checked here (I1..I3): what leaves this file can be trusted for its form.
 * No transaction is needed around several statements: the only writer is this same thread, between two jobs. */
#include "session/store_internal.h"

#include <string.h>

#include "runtime/base/mem.h"
#include "session/rope_words.h"

#define MAX_INDEX ((int64_t)RN_STORE_MAX_TOKENS)

/* ---- Sessions ---- */

#define SESSION_COLUMNS                                                                                                                    \
    "key, id, created_at, last_used, title, n, sinks, evict, origin, lead, instructions, tokenizer, model_id, parent, at, head, evicted, " \
    "last_response_id, rope"

// The words shorter than RN_ID_BYTES that must be there.
static void read_id(struct rn_stmt *q, char ret[RN_ID_BYTES], const char *column)
{
    rn_stmt_word(q, ret, RN_ID_BYTES);
    if (!ret[0]) {
        rn_stmt_damage(q, "column '%s' is empty", column);
    }
}

// Reads a row into *s, which is zero; what it owns is the caller's, on failure too.
static int64_t read_session(struct rn_stmt *q, struct rn_store_session *s)
{
    char evict[RN_STORE_WORD_BYTES], rope[RN_ROPE_WORDS];
    int64_t key = rn_stmt_int(q, 1, INT64_MAX);
    read_id(q, s->id, "id");
    rn_stmt_label(q, "%s", s->id);
    s->created_at = rn_stmt_int(q, INT64_MIN, INT64_MAX);
    s->last_used = rn_stmt_int(q, INT64_MIN, INT64_MAX);
    s->title = rn_stmt_text(q);
    s->n = (uint32_t)rn_stmt_int(q, 1, UINT32_MAX);
    s->sinks = (uint32_t)rn_stmt_int(q, 0, s->n);
    rn_stmt_word(q, evict, sizeof evict);
    s->evict = strcmp(evict, "turn") ? RN_EVICT_TOKEN : RN_EVICT_TURN;
    if (s->evict == RN_EVICT_TOKEN && strcmp(evict, "token")) {
        rn_stmt_damage(q, "column 'evict' is '%s'", evict);
    }
    s->origin = (uint64_t)rn_stmt_int(q, 0, MAX_INDEX);
    s->lead = (uint64_t)rn_stmt_int(q, 0, MAX_INDEX);
    s->instructions = rn_stmt_text(q);
    s->tokenizer_fingerprint = (uint64_t)rn_stmt_int(q, INT64_MIN, INT64_MAX);
    s->model_id = rn_stmt_text(q);
    rn_stmt_word(q, s->parent, sizeof s->parent);
    s->at = (uint64_t)rn_stmt_int(q, 0, MAX_INDEX);
    s->head = (uint64_t)rn_stmt_int(q, 0, MAX_INDEX);
    s->evicted = (uint64_t)rn_stmt_int(q, 0, MAX_INDEX);
    rn_stmt_word(q, s->last_response_id, sizeof s->last_response_id);
    rn_stmt_word(q, rope, sizeof rope);
    if (rn_rope_parse(rope, &s->rope, /*err=*/NULL) < 0 || (s->rope.kind != RN_ROPE_AS_TRAINED && s->rope.factor < 1)) {
        rn_stmt_damage(q, "column 'rope' is '%s'", rope);
    }
    return key;
}

static int get_session(struct rn_db *db, const char *id, struct rn_store_session *ret, int64_t *ret_key, struct rn_err *err)
{
    struct rn_stmt q;
    struct rn_store_session s = {0};
    rn_stmt_start(&q, db, "sessions", "SELECT " SESSION_COLUMNS " FROM sessions WHERE id = ?1", err);
    rn_stmt_label(&q, "%s", id);
    rn_stmt_bind_text(&q, id);
    bool found = rn_stmt_row(&q);
    int64_t key = found ? read_session(&q, &s) : 0;
    int r = rn_stmt_end(&q);
    if (!r && !found) {
        r = rn_err_set(err, -ENOENT, "no session '%s'", id);
    }
    if (r) {
        rn_store_session_finish(&s);
        return r;
    }
    rn_store_session_finish(ret);
    *ret = s;
    *ret_key = key;
    return 0;
}

// Makes room for one more element; 0 or an error. The new element is zero.
static int grow(void **list, size_t n, size_t max, size_t size, const char *what, struct rn_err *err)
{
    if (n >= max) {
        return rn_err_set(err, -E2BIG, "more than %zu %s", max, what);
    }
    if (n == 0 || (n >= 8 && (n & (n - 1)) == 0)) {
        void *p = rn_mem_realloc(*list, n ? 2 * n : 8, size);
        if (!p) {
            return rn_err_nomem(err, 2 * n * size, what);
        }
        *list = p;
    }
    memset((char *)*list + n * size, 0, size);
    return 0;
}

int rn_truth_list(struct rn_db *db, struct rn_store_job *job)
{
    size_t limit = job->limit && job->limit < RN_STORE_MAX_LIST ? job->limit : RN_STORE_MAX_LIST;
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions", "SELECT " SESSION_COLUMNS " FROM sessions ORDER BY last_used DESC, key DESC LIMIT ?1", &job->err);
    rn_stmt_bind_int(&q, (int64_t)limit);
    while (rn_stmt_row(&q)) {
        void *list = job->sessions;
        q.rc = grow(&list, job->n_sessions, limit, sizeof *job->sessions, "sessions", &job->err);
        job->sessions = list;
        if (!q.rc) {
            read_session(&q, &job->sessions[job->n_sessions++]);
        }
    }
    return rn_stmt_end(&q);
}

/* ---- Items ---- */

// I3. `head` is that of the log, with a response in progress.
static void check_range(struct rn_stmt *q, const struct rn_store_item *item, uint64_t before, uint64_t head)
{
    if (item->first == RN_STORE_NOWHERE && item->end == RN_STORE_NOWHERE) {
        return;
    }
    if (item->first < before || item->first > item->end || item->end > head) {
        rn_stmt_damage(q, "tokens %lld to %lld, expected ascending ones within %llu to %llu", (long long)item->first, (long long)item->end,
                       (unsigned long long)before, (unsigned long long)head);
    }
}

static int load_items(struct rn_db *db, int64_t key, struct rn_store_job *job, uint32_t max, uint64_t head)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "items",
                  "SELECT ordinal, id, response_id, role, turn_start, open, first, \"end\", item FROM items"
                  " WHERE session = ?1 AND ordinal < ?2 ORDER BY ordinal",
                  &job->err);
    rn_stmt_bind_int(&q, key);
    rn_stmt_bind_int(&q, max);
    uint64_t before = 0;
    while (rn_stmt_row(&q)) {
        void *list = job->items;
        q.rc = grow(&list, job->n_items, RN_STORE_MAX_ITEMS, sizeof *job->items, "items", &job->err);
        job->items = list;
        if (q.rc) {
            break;
        }
        rn_stmt_label(&q, "session '%s' item %zu", job->session.id, job->n_items);
        struct rn_store_item *item = &job->items[job->n_items];
        rn_stmt_int(&q, (int64_t)job->n_items, (int64_t)job->n_items);
        job->n_items++;
        read_id(&q, item->id, "id");
        read_id(&q, item->response_id, "response_id");
        rn_stmt_word(&q, item->role, sizeof item->role);
        item->turn_start = rn_stmt_int(&q, 0, 1);
        item->open = rn_stmt_int(&q, 0, 1);
        item->first = rn_stmt_index(&q, RN_STORE_MAX_TOKENS);
        item->end = rn_stmt_index(&q, RN_STORE_MAX_TOKENS);
        check_range(&q, item, before, head);
        before = item->end == RN_STORE_NOWHERE ? before : item->end;
        item->item = rn_stmt_json(&q, JSON_OBJECT);
        if (!item->item) {
            rn_stmt_damage(&q, "column 'item' is missing");
        }
    }
    return rn_stmt_end(&q);
}

int rn_truth_show(struct rn_db *db, struct rn_store_job *job)
{
    int64_t key = 0;
    char id[RN_ID_BYTES];
    memcpy(id, job->session.id, sizeof id);
    int r = get_session(db, id, &job->session, &key, &job->err);
    return r ? r : load_items(db, key, job, RN_STORE_MAX_ITEMS, job->session.head);
}

/* ---- Responses ---- */

#define RESPONSE_COLUMNS                                                                                                                   \
    "id, parent_id, status, created_at, completed_at, seed, generate, head_before, head, n_items, cause, input, items_before"

// Reads a row into *rs, which is zero; *ret_items_before is what it began with.
static void read_response(struct rn_stmt *q, struct rn_store_response *rs, uint32_t *ret_items_before)
{
    char status[RN_STORE_WORD_BYTES];
    read_id(q, rs->id, "id");
    rn_stmt_label(q, "%s", rs->id);
    rn_stmt_word(q, rs->parent_id, sizeof rs->parent_id);
    rn_stmt_word(q, status, sizeof status);
    while (rs->status < RN_STORE_STATUS_COUNT && strcmp(status, rn_store_status_word(rs->status))) {
        rs->status++;
    }
    if (rs->status == RN_STORE_STATUS_COUNT) {
        rn_stmt_damage(q, "column 'status' is '%s'", status);
        rs->status = RN_STORE_FAILED;
    }
    rs->created_at = rn_stmt_int(q, INT64_MIN, INT64_MAX);
    rs->completed_at = rn_stmt_int(q, INT64_MIN, INT64_MAX);
    rs->seed = (uint64_t)rn_stmt_int(q, 0, (1ll << 53) - 1);
    rs->generate = rn_stmt_int(q, 0, 1);
    rs->head_before = (uint64_t)rn_stmt_int(q, 0, MAX_INDEX);
    rs->head = rn_stmt_index(q, RN_STORE_MAX_TOKENS);
    rs->n_items = (uint32_t)rn_stmt_int(q, 0, RN_STORE_MAX_ITEMS);
    rn_stmt_word(q, rs->cause, sizeof rs->cause);
    rs->input = rn_stmt_json(q, JSON_ARRAY);
    *ret_items_before = (uint32_t)rn_stmt_int(q, 0, rs->n_items);
}

// All responses of a session. One in progress is given as of head_before, and *ret_end, *ret_n_items say where the session ends then.
static int load_responses(struct rn_db *db, int64_t key, struct rn_store_job *job, uint64_t *ret_end, uint32_t *ret_n_items)
{
    struct rn_stmt q;
    bool running = false;
    rn_stmt_start(&q, db, "responses", "SELECT " RESPONSE_COLUMNS " FROM responses WHERE session = ?1 ORDER BY key", &job->err);
    rn_stmt_bind_int(&q, key);
    while (rn_stmt_row(&q)) {
        void *list = job->responses;
        q.rc = grow(&list, job->n_responses, RN_STORE_MAX_RESPONSES, sizeof *job->responses, "responses", &job->err);
        job->responses = list;
        if (q.rc) {
            break;
        }
        struct rn_store_response *rs = &job->responses[job->n_responses++];
        uint32_t items_before = 0;
        read_response(&q, rs, &items_before);
        if (rs->status == RN_STORE_IN_PROGRESS) {
            if (running || rs->head_before > job->session.head || rs->head != rs->head_before) {
                rn_stmt_damage(&q, "in progress from token %llu, in a session of %llu with %s other", (unsigned long long)rs->head_before,
                               (unsigned long long)job->session.head, running ? "an" : "no");
            }
            running = true;
            *ret_end = rs->head_before;
            *ret_n_items = rs->n_items = items_before;
        } else if (rs->head != RN_STORE_NOWHERE && rs->head > job->session.head) {
            rn_stmt_damage(&q, "column 'head' is %llu, above the session's %llu", (unsigned long long)rs->head,
                           (unsigned long long)job->session.head);
        }
    }
    return rn_stmt_end(&q);
}

// The session a response belongs to.
static int find_owner(struct rn_db *db, const char *response_id, char ret_session[RN_ID_BYTES], struct rn_err *err)
{
    struct rn_stmt q;
    char id[RN_ID_BYTES] = "";
    rn_stmt_start(&q, db, "responses", "SELECT s.id FROM responses r JOIN sessions s ON s.key = r.session WHERE r.id = ?1", err);
    rn_stmt_label(&q, "%s", response_id);
    rn_stmt_bind_text(&q, response_id);
    bool found = rn_stmt_row(&q);
    if (found) {
        read_id(&q, id, "id");
    }
    int r = rn_stmt_end(&q);
    if (r) {
        return r;
    }
    if (!found) {
        return rn_err_set(err, -ENOENT, "no response '%s'", response_id);
    }
    memcpy(ret_session, id, RN_ID_BYTES);
    return 0;
}

static void read_rest(struct rn_stmt *q, struct rn_store_response *rs)
{
    rs->echo = rn_stmt_json(q, JSON_OBJECT);
    rs->sampling = rn_stmt_json(q, JSON_OBJECT);
    rs->usage = rn_stmt_json(q, JSON_OBJECT);
    rs->record = rn_stmt_json(q, JSON_OBJECT);
    rs->output_ids = rn_stmt_json(q, JSON_ARRAY);
}

int rn_truth_response(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_store_response rs = {0};
    char owner[RN_ID_BYTES];
    uint32_t items_before = 0;
    int r = find_owner(db, job->response.id, owner, &job->err);
    if (r) {
        return r;
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "responses",
                  "SELECT " RESPONSE_COLUMNS ", echo, sampling, usage, record, output_ids FROM responses WHERE id = ?1", &job->err);
    rn_stmt_bind_text(&q, job->response.id);
    if (rn_stmt_row(&q)) {
        read_response(&q, &rs, &items_before);
        read_rest(&q, &rs);
    }
    if (!q.rc && rs.status == RN_STORE_IN_PROGRESS) {
        rs.n_items = items_before;
    }
    r = rn_stmt_end(&q);
    if (r) {
        rn_store_response_finish(&rs);
        return r;
    }
    rn_store_response_finish(&job->response);
    job->response = rs;
    memcpy(job->session.id, owner, sizeof owner);
    return 0;
}

/* ---- LOAD ---- */

static int find_index(struct rn_store_job *job, const char *response_id)
{
    for (size_t i = 0; i < job->n_responses; i++) {
        if (!strcmp(job->responses[i].id, response_id)) {
            job->found = i;
            return 0;
        }
    }
    return rn_err_set(&job->err, -EBADMSG, "damaged database: table 'responses', row '%s': not among those of its session", response_id);
}

static int load_session(struct rn_db *db, const char *id, struct rn_store_job *job)
{
    int64_t key = 0;
    int r = get_session(db, id, &job->session, &key, &job->err);
    if (r) {
        return r;
    }
    uint64_t log_len = job->session.head, end = log_len;
    uint32_t n_items = RN_STORE_MAX_ITEMS;
    r = load_responses(db, key, job, &end, &n_items);
    r = r ? r : load_items(db, key, job, n_items, end);
    if (!r && n_items != RN_STORE_MAX_ITEMS && job->n_items != n_items) {
        r = rn_err_set(&job->err, -EBADMSG, "damaged database: table 'items', session '%s': %zu rows, expected %u", id, job->n_items,
                       n_items);
    }
    for (size_t i = 0; !r && i < job->n_responses; i++) {
        if (job->responses[i].n_items > job->n_items) {
            r = rn_err_set(&job->err, -EBADMSG, "damaged database: table 'responses', row '%s': %u items, its session has %zu",
                           job->responses[i].id, job->responses[i].n_items, job->n_items);
        }
    }
    r = r ? r : rn_log_load(db, key, id, log_len, &job->ids, &job->err);
    if (!r) {
        job->session.head = end;
        job->n_ids = end;
    }
    return r;
}

int rn_truth_load(struct rn_db *db, struct rn_store_job *job)
{
    char id[RN_ID_BYTES];
    memcpy(id, job->session.id, sizeof id);
    int r = job->response.id[0] ? find_owner(db, job->response.id, id, &job->err) : 0;
    r = r ? r : load_session(db, id, job);
    return r || !job->response.id[0] ? r : find_index(job, job->response.id);
}

/* ---- Settings, CHECK ---- */

int rn_truth_get(struct rn_db *db, struct rn_store_job *job)
{
    struct rn_stmt q;
    if (!job->key) {
        return rn_err_set(&job->err, -EINVAL, "a setting without a key");
    }
    rn_stmt_start(&q, db, "settings", "SELECT value FROM settings WHERE key = ?1", &job->err);
    rn_stmt_label(&q, "%s", job->key);
    rn_stmt_bind_text(&q, job->key);
    char *value = rn_stmt_row(&q) ? rn_stmt_text(&q) : NULL;
    int r = rn_stmt_end(&q);
    if (r) {
        rn_mem_free(value);
        return r;
    }
    rn_mem_free(job->value);
    job->value = value;
    return 0;
}

static int check_file(struct rn_db *db, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "runnel.db", "PRAGMA integrity_check(1)", err);
    rn_stmt_label(&q, "integrity_check");
    while (rn_stmt_row(&q)) {
        char *text = rn_stmt_text(&q);
        if (text && strcmp(text, "ok")) {
            rn_stmt_damage(&q, "%s", text);
        }
        rn_mem_free(text);
    }
    int r = rn_stmt_end(&q);
    if (r) {
        return r;
    }
    rn_stmt_start(&q, db, "runnel.db", "SELECT \"table\" FROM pragma_foreign_key_check LIMIT 1", err);
    rn_stmt_label(&q, "foreign_key_check");
    while (rn_stmt_row(&q)) {
        char *table = rn_stmt_text(&q);
        rn_stmt_damage(&q, "a row of '%s' names a row that is missing", table ? table : "");
        rn_mem_free(table);
    }
    return rn_stmt_end(&q);
}

int rn_truth_check(struct rn_db *db, struct rn_store_job *job)
{
    int r = check_file(db, &job->err);
    if (r) {
        return r;
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "sessions", "SELECT id FROM sessions ORDER BY key", &job->err);
    while (rn_stmt_row(&q)) {
        char id[RN_ID_BYTES];
        rn_stmt_label(&q, "%s", "of any session");
        read_id(&q, id, "id");
        struct rn_store_job *one = q.rc ? NULL : rn_store_job_create(RN_STORE_LOAD);
        if (!one) {
            q.rc = q.rc ? q.rc : rn_err_nomem(&job->err, sizeof *one, "a job");
            break;
        }
        q.rc = load_session(db, id, one);
        if (q.rc) {
            job->err = one->err;
        }
        rn_store_job_destroy(one);
    }
    return rn_stmt_end(&q);
}
