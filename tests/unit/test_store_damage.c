/* The store under what the world does to it: crashes at any moment, a second daemon, newer and foreign databases, damaged rows, full
 * disks, no memory. Nothing acknowledged is lost, no half turn is left, and damage is an error that names its place. */
#define _DEFAULT_SOURCE
#include "tests/unit/store_kit.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

static void assert_checked(struct rn_store *s)
{
    assert_int_equal(kit_do(s, rn_store_job_create(RN_STORE_CHECK)), 0);
}

/* ---- Crashes ---- */

static void a_crash_between_the_transactions_leaves_the_parent(void **state)
{
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", kit_path(*state, "copy"));
    assert_int_equal(mkdir(copy, 0700), 0);
    struct rn_store *s = kit_open(*state);
    for (uint32_t i = 0; i < 17; i++) { // 1020 ids: the next question crosses a block
        kit_turn(s, "sess_a", i);
    }
    assert_int_equal(kit_do(s, kit_begin("sess_a", 17, false)), 0);
    assert_int_equal(kit_do(s, kit_begin("sess_b", 0, true)), 0);
    kit_copy(kit_path(*state, "runnel.db"), kit_path(copy, "runnel.db"));
    kit_copy(kit_path(*state, "runnel.db-wal"), kit_path(copy, "runnel.db-wal"));
    rn_store_close(s);

    s = kit_open(copy);
    assert_int_equal(rn_store_interrupted(s), 2);
    struct rn_store_job *job = kit_load(s, "sess_a");
    kit_assert_turns(job, 17);
    const struct rn_store_response *rs = &job->responses[17];
    assert_int_equal(rs->status, RN_STORE_INCOMPLETE);
    assert_string_equal(rs->cause, "interrupted");
    assert_int_equal(rs->head, 17 * KIT_TURN_IDS);
    assert_int_equal(rs->n_items, 34);
    assert_true(rs->completed_at > 0);
    assert_int_equal(json_array_size(rs->input), 1); // it can be generated again
    assert_string_equal(json_string_value(json_object_get(json_array_get(rs->input, 0), "id")), "msg_q_17");
    assert_string_equal(job->session.last_response_id, "resp_sess_a_16");
    rn_store_job_destroy(job);
    job = kit_load(s, "sess_b");
    kit_assert_turns(job, 0);
    rn_store_job_destroy(job);
    assert_checked(s);
    rn_store_close(s);
    s = kit_open(copy);
    assert_int_equal(rn_store_interrupted(s), 0);
    rn_store_close(s);
}

// Commits turns one after the other and writes the number of each to `fd` once it is acknowledged. Never returns.
static void commit_for_ever(const char *dir, uint32_t turn, int fd)
{
    struct rn_store *s = NULL;
    if (rn_store_open(&s, dir, NULL)) {
        _exit(2);
    }
    for (;; turn++) {
        struct rn_store_job *begin = kit_begin("sess_a", turn, turn == 0), *end = kit_end("sess_a", turn);
        // After a crash the interrupted response keeps its name; this turn's is a new one.
        snprintf(begin->response.id, RN_ID_BYTES, "resp_%u_%d", turn, (int)getpid());
        memcpy(end->response.id, begin->response.id, RN_ID_BYTES);
        if (kit_run(s, begin) || kit_run(s, end) || write(fd, &turn, sizeof turn) != sizeof turn) {
            _exit(3);
        }
        rn_store_job_destroy(begin);
        rn_store_job_destroy(end);
    }
}

// Kills a committing child after 1 to 12 ms; returns the number of turns it acknowledged in all.
static uint32_t one_kill(const char *dir, uint32_t n_turns, unsigned *seed)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        commit_for_ever(dir, n_turns, fds[1]);
    }
    close(fds[1]);
    uint32_t turn = 0;
    assert_int_equal(read(fds[0], &turn, sizeof turn), sizeof turn); // it runs
    n_turns = turn + 1;
    uint64_t deadline = rn_clock_ns() + 1000000u + (uint64_t)(rand_r(seed) % 11000) * 1000u;
    while (rn_clock_ns() < deadline) {
        struct pollfd p = {.fd = fds[0], .events = POLLIN};
        if (poll(&p, 1, /*timeout=*/0) > 0 && read(fds[0], &turn, sizeof turn) == sizeof turn) {
            n_turns = turn + 1;
        }
    }
    int status = 0;
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    while (read(fds[0], &turn, sizeof turn) == sizeof turn) {
        n_turns = turn + 1;
    }
    close(fds[0]);
    return n_turns;
}

static void kill_9_loses_no_acknowledged_turn(void **state)
{
    unsigned seed = (unsigned)time(NULL);
    const char *rounds_text = getenv("RUNNEL_TEST_KILLS"); // more with ./check --slow
    int rounds = rounds_text ? atoi(rounds_text) : 10;
    uint32_t n_turns = 0;
    uint64_t n_interrupted = 0;
    print_message("seed %u\n", seed);
    for (int i = 0; i < rounds; i++) {
        uint32_t acknowledged = one_kill(*state, n_turns, &seed);
        struct rn_store *s = kit_open(*state);
        n_interrupted += rn_store_interrupted(s);
        assert_checked(s);
        struct rn_store_job *job = kit_load(s, "sess_a");
        uint32_t stored = (uint32_t)(job->session.head / KIT_TURN_IDS);
        if (stored != acknowledged && stored != acknowledged + 1) { // the last one's word may not have come through
            fail_msg("%u turns acknowledged, %u stored", acknowledged, stored);
        }
        kit_assert_turns(job, stored);
        for (size_t k = 0; k < job->n_responses; k++) {
            assert_int_not_equal(job->responses[k].status, RN_STORE_IN_PROGRESS);
        }
        rn_store_job_destroy(job);
        rn_store_close(s);
        n_turns = stored;
    }
    print_message("%d kills, %u turns, %d interrupted\n", rounds, n_turns, (int)n_interrupted);
}

/* ---- Opening ---- */

static void a_second_opener_is_refused_with_the_pid(void **state)
{
    struct rn_store *s = kit_open(*state), *other = NULL;
    struct rn_err err = {0};
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    assert_int_equal(rn_store_open(&other, *state, &err), -EBUSY);
    assert_non_null(strstr(err.text, pid));
    assert_null(other);
    rn_store_close(s);
    rn_store_close(kit_open(*state));
}

static void raw(const char *dir, const char *sql)
{
    struct rn_db db = {0};
    struct rn_err err = {0};
    assert_int_equal(rn_db_open(&db, kit_path(dir, "runnel.db"), true, &err), 0);
    if (rn_db_exec(&db, "PRAGMA foreign_keys = 0", "raw", &err) || rn_db_exec(&db, sql, "raw", &err)) {
        fail_msg("%s: %s", sql, err.text);
    }
    rn_db_close(&db);
}

static void assert_open_fails(const char *dir, int code, const char *text)
{
    struct rn_store *s = NULL;
    struct rn_err err = {0};
    assert_int_equal(rn_store_open(&s, dir, &err), code);
    if (!strstr(err.text, text)) {
        fail_msg("'%s' does not say '%s'", err.text, text);
    }
}

static void newer_and_foreign_databases_are_refused(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    rn_store_close(s);
    raw(*state, "PRAGMA user_version = 99");
    assert_open_fails(*state, -EPROTONOSUPPORT, "schema version 99");
    assert_open_fails(*state, -EPROTONOSUPPORT, "newer runnel");
    struct rn_store *none = NULL;
    assert_int_equal(rn_store_open(&none, *state, /*err=*/NULL), -EPROTONOSUPPORT);

    FILE *f = fopen(kit_path(*state, "runnel.db"), "wb");
    for (int i = 0; i < 300; i++) {
        fputs("these are not the bytes of a database\n", f);
    }
    fclose(f);
    assert_open_fails(*state, -EBADMSG, "not a database");
    assert_open_fails("/proc/none", -ENOENT, "/proc/none");
}

static void a_database_of_before_rope_scaling_is_brought_up_to_date(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    rn_store_close(s);
    raw(*state, "ALTER TABLE sessions DROP COLUMN rope");
    raw(*state, "PRAGMA user_version = 1");
    s = kit_open(*state);
    struct rn_store_job *job = kit_load(s, "sess_a");
    kit_assert_turns(job, 1);
    assert_int_equal(job->session.rope.kind, RN_ROPE_AS_TRAINED);
    rn_store_job_destroy(job);
    kit_turn(s, "sess_b", 0);
    job = kit_load(s, "sess_b");
    assert_int_equal(job->session.rope.kind, RN_ROPE_YARN);
    rn_store_job_destroy(job);
    rn_store_close(s);
}

static void foreign_application_is_refused(void **state)
{
    rn_store_close(kit_open(*state));
    raw(*state, "PRAGMA application_id = 77");
    assert_open_fails(*state, -EBADMSG, "another program");
}

/* ---- Damage ---- */

static void damaged_rows_are_errors_that_name_them(void **state)
{
    static const struct {
        const char *sql, *table, *row;
    } cases[] = {
        {"UPDATE sessions SET head = head + 1", "token_log", "sess_a"},
        {"UPDATE sessions SET head = 4000000000", "sessions", "sess_a"},
        {"UPDATE sessions SET head = 1000000000", "token_log", "sess_a"},
        {"UPDATE sessions SET head = 10", "responses", "resp_sess_a_"},
        {"UPDATE sessions SET sinks = 9999", "sessions", "sess_a"},
        {"UPDATE sessions SET evict = 'never'", "sessions", "sess_a"},
        {"UPDATE sessions SET rope = 'yarn'", "sessions", "sess_a"}, // a session has a factor
        {"UPDATE sessions SET rope = 'linear:-2'", "sessions", "sess_a"},
        {"UPDATE sessions SET title = cast(x'410042' AS TEXT)", "sessions", "sess_a"},
        {"UPDATE sessions SET last_response_id = printf('%.*c', 100, 'x')", "sessions", "sess_a"},
        {"UPDATE items SET ordinal = 99 WHERE ordinal = 1", "items", "sess_a' item 1"},
        {"UPDATE items SET \"end\" = 99999 WHERE ordinal = 3", "items", "sess_a' item 3"},
        {"UPDATE items SET \"end\" = -1 WHERE ordinal = 2", "items", "sess_a' item 2"},
        {"UPDATE items SET first = NULL WHERE ordinal = 2", "items", "sess_a' item 2"},
        {"UPDATE items SET first = 0 WHERE ordinal = 2", "items", "sess_a' item 2"},
        {"UPDATE items SET turn_start = 7 WHERE ordinal = 2", "items", "sess_a' item 2"},
        {"UPDATE items SET open = 2 WHERE ordinal = 3", "items", "sess_a' item 3"},
        {"UPDATE items SET item = '{\"a\": ' WHERE ordinal = 0", "items", "sess_a' item 0"},
        {"UPDATE items SET item = '[1]' WHERE ordinal = 0", "items", "sess_a' item 0"},
        {"UPDATE items SET item = printf('%.*c', 5000, '[') WHERE ordinal = 0", "items", "sess_a' item 0"},
        {"UPDATE items SET id = '' WHERE ordinal = 0", "items", "sess_a' item 0"},
        {"DELETE FROM items WHERE ordinal > 35", "responses", "resp_sess_a_"},
        {"UPDATE responses SET status = 'lost' WHERE id = 'resp_sess_a_3'", "responses", "resp_sess_a_3"},
        {"UPDATE responses SET seed = -1 WHERE id = 'resp_sess_a_3'", "responses", "resp_sess_a_3"},
        {"UPDATE responses SET head = 99999 WHERE id = 'resp_sess_a_3'", "responses", "resp_sess_a_3"},
        {"UPDATE responses SET input = '{}' WHERE id = 'resp_sess_a_3'", "responses", "resp_sess_a_3"},
        {"UPDATE token_log SET ids = x'010203' WHERE block = 1", "token_log", "sess_a"},
        {"UPDATE token_log SET ids = x'' WHERE block = 0", "token_log", "sess_a"},
        {"UPDATE token_log SET block = 5 WHERE block = 1", "token_log", "sess_a' block 1"},
        {"DELETE FROM token_log WHERE block = 0", "token_log", "sess_a"},
    };
    struct rn_store *s = kit_open(*state);
    for (uint32_t i = 0; i < 20; i++) {
        kit_turn(s, "sess_a", i);
    }
    rn_store_close(s);
    char good[1024];
    snprintf(good, sizeof good, "%s", kit_path(*state, "good.db"));
    kit_copy(kit_path(*state, "runnel.db"), good);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kit_copy(good, kit_path(*state, "runnel.db"));
        raw(*state, cases[i].sql);
        s = kit_open(*state);
        struct rn_store_job *load = rn_store_job_create(RN_STORE_LOAD), *check = rn_store_job_create(RN_STORE_CHECK);
        snprintf(load->session.id, RN_ID_BYTES, "sess_a");
        int r = kit_run(s, load);
        if (r != -EBADMSG || !strstr(load->err.text, cases[i].table) || !strstr(load->err.text, cases[i].row)) {
            fail_msg("%s: %d '%s'", cases[i].sql, r, load->err.text);
        }
        assert_int_equal(kit_run(s, check), -EBADMSG);
        assert_int_equal(load->n_items + load->n_responses + load->n_ids, 0);
        rn_store_job_destroy(load);
        rn_store_job_destroy(check);
        rn_store_close(s);
    }
}

static void flipped_bytes_never_crash(void **state)
{
    struct rn_store *s = kit_open(*state);
    for (uint32_t i = 0; i < 20; i++) {
        kit_turn(s, "sess_a", i);
    }
    assert_int_equal(kit_do(s, kit_begin("sess_a", 20, false)), 0);
    rn_store_close(s);
    char good[1024];
    snprintf(good, sizeof good, "%s", kit_path(*state, "good.db"));
    kit_copy(kit_path(*state, "runnel.db"), good);
    struct stat st;
    assert_int_equal(stat(good, &st), 0);
    unsigned seed = 1;
    for (int round = 0; round < 60; round++) {
        kit_copy(good, kit_path(*state, "runnel.db"));
        FILE *f = fopen(kit_path(*state, "runnel.db"), "r+b");
        assert_non_null(f);
        for (int k = 0; k < 20; k++) {
            long at = round < 10 ? (long)(rand_r(&seed) % 4096) : (long)((unsigned long)rand_r(&seed) % (unsigned long)st.st_size);
            fseek(f, at, SEEK_SET);
            fputc(rand_r(&seed) & 255, f);
        }
        fclose(f);
        if (rn_store_open(&s, *state, NULL)) {
            continue; // refused: fine
        }
        static const enum rn_store_op ops[] = {RN_STORE_LOAD, RN_STORE_SHOW, RN_STORE_LIST, RN_STORE_CHECK, RN_STORE_DELETE};
        for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
            struct rn_store_job *job = rn_store_job_create(ops[k]);
            snprintf(job->session.id, RN_ID_BYTES, "sess_a");
            (void)kit_run(s, job); // any result: what counts is that there is one
            rn_store_job_destroy(job);
        }
        rn_store_close(s);
    }
}

static void a_damaged_session_does_not_keep_the_others_from_recovering(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    kit_turn(s, "sess_b", 0);
    assert_int_equal(kit_do(s, kit_begin("sess_a", 1, false)), 0);
    assert_int_equal(kit_do(s, kit_begin("sess_b", 1, false)), 0);
    rn_store_close(s);
    raw(*state, "DELETE FROM token_log WHERE session = 1");
    s = kit_open(*state);
    assert_int_equal(rn_store_interrupted(s), 2);
    struct rn_store_job *job = kit_load(s, "sess_b");
    kit_assert_turns(job, 1);
    rn_store_job_destroy(job);
    job = rn_store_job_create(RN_STORE_LOAD);
    snprintf(job->session.id, RN_ID_BYTES, "sess_a");
    assert_int_equal(kit_do(s, job), -EBADMSG);
    rn_store_close(s);
}

/* ---- No room ---- */

static void a_full_disk_is_reported_and_gone_when_there_is_room(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    struct stat st;
    assert_int_equal(stat(kit_path(*state, "runnel.db-wal"), &st), 0);
    struct rlimit before, tight;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = (rlim_t)st.st_size + 2000; // less than one page more
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    struct rn_store_job *job = kit_begin("sess_a", 1, false);
    int first = kit_run(s, job), second = kit_run(s, job);
    struct rn_store_job *list = rn_store_job_create(RN_STORE_LIST);
    int read = kit_run(s, list); // reading goes on
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(first, -ENOSPC);
    assert_int_equal(second, -ENOSPC);
    assert_int_equal(read, 0);
    assert_int_equal(list->n_sessions, 1);
    rn_store_job_destroy(list);
    assert_int_equal(kit_do(s, job), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    job = kit_end("sess_a", 1);
    first = kit_run(s, job);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(first, -ENOSPC);
    assert_int_equal(kit_do(s, job), 0);
    job = kit_load(s, "sess_a");
    kit_assert_turns(job, 2);
    rn_store_job_destroy(job);
    assert_checked(s);
    rn_store_close(s);
}

static void a_full_database_rolls_back(void **state)
{
    struct rn_db db = {0};
    int r = 0;
    uint32_t turn = 0;
    assert_int_equal(rn_db_open(&db, kit_path(*state, "runnel.db"), true, NULL), 0);
    assert_int_equal(rn_db_exec(&db, "PRAGMA max_page_count = 40; PRAGMA synchronous = OFF", "", NULL), 0);
    for (; !r && turn < 1000; turn += !r) {
        struct rn_store_job *begin = kit_begin("sess_a", turn, turn == 0), *end = kit_end("sess_a", turn);
        assert_int_equal(rn_db_begin(&db, NULL), 0);
        r = rn_truth_begin(&db, begin);
        r = r ? r : rn_truth_end(&db, end);
        r = rn_db_commit(&db, r, NULL);
        rn_store_job_destroy(begin);
        rn_store_job_destroy(end);
    }
    assert_int_equal(r, -ENOSPC);
    assert_true(turn > 1);
    rn_db_close(&db);
    struct rn_store *s = kit_open(*state);
    struct rn_store_job *job = kit_load(s, "sess_a");
    kit_assert_turns(job, turn);
    rn_store_job_destroy(job);
    kit_turn(s, "sess_a", turn);
    assert_checked(s);
    rn_store_close(s);
}

// One turn, a fork, a recovery and all reads, with the n-th allocation failing. Returns whether all went well.
static bool life_with_failure(const char *dir, uint64_t n)
{
    struct rn_store *s = NULL;
    struct rn_store_job *jobs[] = {kit_begin("sess_a", 0, true), kit_end("sess_a", 0), kit_begin("sess_f", 1, true),
                                   rn_store_job_create(RN_STORE_LOAD), rn_store_job_create(RN_STORE_LIST),
                                   rn_store_job_create(RN_STORE_SHOW), rn_store_job_create(RN_STORE_RESPONSE),
                                   rn_store_job_create(RN_STORE_CHECK)};
    snprintf(jobs[2]->fork_of, RN_ID_BYTES, "sess_a");
    jobs[2]->fork_items = 2;
    jobs[2]->session.at = KIT_TURN_IDS;
    snprintf(jobs[3]->response.id, RN_ID_BYTES, "resp_sess_a_0");
    snprintf(jobs[5]->session.id, RN_ID_BYTES, "sess_a");
    snprintf(jobs[6]->response.id, RN_ID_BYTES, "resp_sess_a_0");
    bool good = true;
    rn_mem_fail_at(n);
    int r = rn_store_open(&s, dir, NULL);
    good = r == 0;
    assert_true(r == 0 || r == -ENOMEM);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        if (s && good) {
            r = kit_run(s, jobs[i]);
            if (r && r != -ENOMEM) {
                fail_msg("allocation %d: %d, %s", (int)n, r, jobs[i]->err.text);
            }
            good = r == 0;
        }
    }
    rn_store_close(s);
    if (good) { // the fork's response is in progress: recovery allocates too
        struct rn_err err = {0};
        s = NULL;
        r = rn_store_open(&s, dir, &err);
        if (r && r != -ENOMEM) {
            fail_msg("allocation %d: %d, %s", (int)n, r, err.text);
        }
        good = r == 0;
        rn_store_close(s);
    }
    rn_mem_fail_at(0);
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        rn_store_job_destroy(jobs[i]);
    }
    return good;
}

static void every_allocation_may_fail(void **state)
{
    struct rn_store *s = kit_open(*state);
    assert_int_equal(kit_do(s, rn_store_job_create(RN_STORE_LIST)), 0); // the kit's queue exists before allocations are counted
    rn_store_close(s);
    uint64_t n = 1;
    for (bool good = false; !good; n++) {
        assert_true(n < 2000);
        char dir[1024];
        snprintf(dir, sizeof dir, "%s/%d", (const char *)*state, (int)n);
        good = life_with_failure(dir, n);
    }
    print_message("%d allocations failed in turn\n", (int)n - 2);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, kit_setup, kit_teardown)
    const struct CMUnitTest tests[] = {
        T(a_crash_between_the_transactions_leaves_the_parent), T(kill_9_loses_no_acknowledged_turn),
        T(a_second_opener_is_refused_with_the_pid), T(newer_and_foreign_databases_are_refused), T(a_database_of_before_rope_scaling_is_brought_up_to_date), T(foreign_application_is_refused),
        T(damaged_rows_are_errors_that_name_them), T(flipped_bytes_never_crash),
        T(a_damaged_session_does_not_keep_the_others_from_recovering), T(a_full_disk_is_reported_and_gone_when_there_is_room),
        T(a_full_database_rolls_back), T(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
