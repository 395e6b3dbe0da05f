/* The token log: ids of a session in blobs of 1024 little-endian 32-bit numbers (I1: all blocks full but the last).
 * An append reads and rewrites the last block and adds the new ones, whatever the length of the log. */
#include "session/store_internal.h"

#include <string.h>

#include "runtime/base/mem.h"

static void encode(unsigned char *bytes, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (unsigned b = 0; b < 4; b++) {
            bytes[4 * i + b] = (unsigned char)(ids[i] >> 8 * b);
        }
    }
}

static void decode(uint32_t *ids, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned char *p = bytes + 4 * i;
        ids[i] = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
}

int rn_log_cut(struct rn_db *db, int64_t session, uint64_t len, struct rn_err *err)
{
    struct rn_stmt q;
    int64_t block = (int64_t)(len / RN_LOG_BLOCK);
    int64_t rest = (int64_t)(len % RN_LOG_BLOCK);
    rn_stmt_start(&q, db, "token_log", "DELETE FROM token_log WHERE session = ?1 AND block >= ?2", err);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_int(&q, rest ? block + 1 : block);
    int r = rn_stmt_run(&q);
    if (r || !rest) {
        return r;
    }
    rn_stmt_start(&q, db, "token_log",
                  "UPDATE token_log SET ids = substr(ids, 1, ?3) WHERE session = ?1 AND block = ?2 AND length(ids) > ?3", err);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_int(&q, block);
    rn_stmt_bind_int(&q, rest * 4);
    return rn_stmt_run(&q);
}

// The first `n` ids of a block, as bytes.
static int read_start(struct rn_db *db, int64_t session, int64_t block, size_t n, unsigned char *bytes, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "token_log", "SELECT ids FROM token_log WHERE session = ?1 AND block = ?2", err);
    rn_stmt_label(&q, "session key %lld block %lld", (long long)session, (long long)block);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_int(&q, block);
    size_t len = 0;
    const unsigned char *blob = rn_stmt_row(&q) ? rn_stmt_blob(&q, &len) : NULL;
    if (len == 4 * n && blob) {
        memcpy(bytes, blob, len);
    } else {
        rn_stmt_damage(&q, "%zu bytes, expected %zu", len, 4 * n);
    }
    return rn_stmt_end(&q);
}

static int write_block(struct rn_db *db, int64_t session, int64_t block, const unsigned char *bytes, size_t len, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "token_log",
                  "INSERT INTO token_log (session, block, ids) VALUES (?1, ?2, ?3)"
                  " ON CONFLICT (session, block) DO UPDATE SET ids = excluded.ids",
                  err);
    rn_stmt_bind_int(&q, session);
    rn_stmt_bind_int(&q, block);
    rn_stmt_bind_blob(&q, bytes, len);
    return rn_stmt_run(&q);
}

int rn_log_append(struct rn_db *db, int64_t session, uint64_t old_len, uint64_t from, const uint32_t *ids, size_t n_ids, struct rn_err *err)
{
    if (from > old_len || from + n_ids > RN_STORE_MAX_TOKENS) {
        return rn_err_set(err, from > old_len ? -EINVAL : -E2BIG, "ids %llu to %llu of a log of %llu; at most %llu are kept",
                          (unsigned long long)from, (unsigned long long)(from + n_ids), (unsigned long long)old_len,
                          (unsigned long long)RN_STORE_MAX_TOKENS);
    }
    int r = from < old_len ? rn_log_cut(db, session, from, err) : 0;
    unsigned char bytes[4 * RN_LOG_BLOCK];
    size_t have = from % RN_LOG_BLOCK;
    int64_t block = (int64_t)(from / RN_LOG_BLOCK);
    if (!r && have && n_ids) {
        r = read_start(db, session, block, have, bytes, err);
    }
    while (!r && n_ids) {
        size_t n = n_ids < RN_LOG_BLOCK - have ? n_ids : RN_LOG_BLOCK - have;
        encode(bytes + 4 * have, ids, n);
        r = write_block(db, session, block++, bytes, 4 * (have + n), err);
        ids += n;
        n_ids -= n;
        have = 0;
    }
    return r;
}

int rn_log_copy(struct rn_db *db, int64_t to_session, int64_t from_session, uint64_t len, struct rn_err *err)
{
    uint64_t n_blocks = (len + RN_LOG_BLOCK - 1) / RN_LOG_BLOCK;
    struct rn_stmt q;
    rn_stmt_start(&q, db, "token_log",
                  "INSERT INTO token_log (session, block, ids)"
                  " SELECT ?1, block, substr(ids, 1, CASE WHEN block = ?3 - 1 THEN ?4 ELSE 4096 END)"
                  " FROM token_log WHERE session = ?2 AND block < ?3",
                  err);
    rn_stmt_label(&q, "session key %lld", (long long)from_session);
    rn_stmt_bind_int(&q, to_session);
    rn_stmt_bind_int(&q, from_session);
    rn_stmt_bind_index(&q, n_blocks);
    rn_stmt_bind_int(&q, (int64_t)(len - (n_blocks ? n_blocks - 1 : 0) * RN_LOG_BLOCK) * 4);
    while (rn_stmt_row(&q)) {
    }
    if (rn_db_changes(db) != (int64_t)n_blocks) {
        rn_stmt_damage(&q, "%lld blocks, expected %llu", (long long)rn_db_changes(db), (unsigned long long)n_blocks);
    }
    return rn_stmt_end(&q);
}

// The length of a log in ids by its blocks, before memory is taken for it: the head may be damaged.
static int check_size(struct rn_db *db, int64_t session, const char *session_id, uint64_t len, struct rn_err *err)
{
    struct rn_stmt q;
    rn_stmt_start(&q, db, "token_log", "SELECT coalesce(sum(length(ids)), 0) FROM token_log WHERE session = ?1", err);
    rn_stmt_label(&q, "session '%s'", session_id);
    rn_stmt_bind_int(&q, session);
    int64_t bytes = rn_stmt_row(&q) ? rn_stmt_int(&q, 0, INT64_MAX) : 0;
    if ((uint64_t)bytes != 4 * len) {
        rn_stmt_damage(&q, "%lld bytes of ids, expected %llu", (long long)bytes, (unsigned long long)(4 * len));
    }
    return rn_stmt_end(&q);
}

int rn_log_load(struct rn_db *db, int64_t session, const char *session_id, uint64_t len, uint32_t **ret_ids, struct rn_err *err)
{
    int r = check_size(db, session, session_id, len, err);
    if (r) {
        return r;
    }
    uint32_t *ids = rn_mem_alloc(len, sizeof *ids);
    if (!ids) {
        return rn_err_nomem(err, len * sizeof *ids, "token ids");
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "token_log", "SELECT block, ids FROM token_log WHERE session = ?1 ORDER BY block", err);
    rn_stmt_bind_int(&q, session);
    uint64_t at = 0;
    while (rn_stmt_row(&q)) {
        rn_stmt_label(&q, "session '%s' block %llu", session_id, (unsigned long long)(at / RN_LOG_BLOCK));
        int64_t block = rn_stmt_int(&q, 0, INT64_MAX);
        size_t n_bytes = 0;
        const unsigned char *bytes = rn_stmt_blob(&q, &n_bytes);
        uint64_t want = len - at < RN_LOG_BLOCK ? len - at : RN_LOG_BLOCK;
        if (block != (int64_t)(at / RN_LOG_BLOCK) || want == 0 || n_bytes != 4 * want) {
            rn_stmt_damage(&q, "number %lld with %zu bytes, expected %llu bytes of a log of %llu ids", (long long)block, n_bytes,
                            (unsigned long long)(4 * want), (unsigned long long)len);
        }
        if (!q.rc) {
            decode(ids + at, bytes, want);
            at += want;
        }
    }
    r = rn_stmt_end(&q);
    if (r) {
        rn_mem_free(ids);
        return r;
    }
    *ret_ids = ids; // all `len` of them: the sizes add up, and no block was longer than its share
    return 0;
}
