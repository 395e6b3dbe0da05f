/* The store as its user sees it: what goes in comes out, in order, and refusals change nothing. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/store_kit.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/queue.h"

static void set_id(char ret[RN_ID_BYTES], const char *id)
{
    snprintf(ret, RN_ID_BYTES, "%s", id);
}

static int run_named(struct rn_store *s, enum rn_store_op op, const char *session, const char *response, struct rn_store_job **ret)
{
    struct rn_store_job *job = rn_store_job_create(op);
    set_id(job->session.id, session);
    set_id(job->response.id, response);
    int r = kit_run(s, job);
    if (ret && !r) {
        *ret = job;
    } else {
        rn_store_job_destroy(job);
    }
    return r;
}

static void a_turn_comes_back_after_reopening(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    kit_turn(s, "sess_a", 1);
    rn_store_close(s);
    s = kit_open(*state);
    assert_int_equal(rn_store_interrupted(s), 0);
    struct rn_store_job *job = kit_load(s, "sess_a");
    kit_assert_turns(job, 2);
    const struct rn_store_session *se = &job->session;
    assert_string_equal(se->title, "A first question");
    assert_string_equal(se->instructions, "Be brief.");
    assert_string_equal(se->model_id, "a-model");
    assert_string_equal(se->last_response_id, "resp_sess_a_1");
    assert_int_equal(se->tokenizer_fingerprint, 0xfedcba9876543210u);
    assert_int_equal(se->n, 512);
    assert_int_equal(se->sinks, 4);
    assert_int_equal(se->origin, 4);
    assert_int_equal(se->lead, 3);
    assert_int_equal(se->evict, RN_EVICT_TOKEN);
    assert_int_equal(se->rope.kind, RN_ROPE_YARN);
    assert_true(se->rope.factor == 1.1f);
    assert_int_equal(se->evicted, 1);
    assert_int_equal(se->created_at, 1000);
    assert_int_equal(se->last_used, 1001);
    assert_string_equal(se->parent, "");
    assert_int_equal(job->n_responses, 2);
    const struct rn_store_response *rs = &job->responses[1];
    assert_string_equal(rs->id, "resp_sess_a_1");
    assert_string_equal(rs->parent_id, "resp_sess_a_0");
    assert_int_equal(rs->status, RN_STORE_COMPLETED);
    assert_string_equal(rs->cause, "eos");
    assert_int_equal(rs->seed, (1ull << 53) - 2);
    assert_int_equal(rs->head_before, KIT_TURN_IDS);
    assert_int_equal(rs->head, 2 * KIT_TURN_IDS);
    assert_int_equal(rs->n_items, 4);
    assert_string_equal(job->items[3].id, "msg_a_1");
    assert_string_equal(job->items[3].response_id, "resp_sess_a_1");
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(job->items[0].item, "content"), 0), "text")),
                        "gr\xc3\xbc\xc3\x9f dich");
    rn_store_job_destroy(job);
    rn_store_close(s);
}

static void a_response_names_its_session_and_place(void **state)
{
    struct rn_store *s = kit_open(*state);
    struct rn_store_job *job = NULL;
    kit_turn(s, "sess_a", 0);
    kit_turn(s, "sess_b", 0);
    kit_turn(s, "sess_a", 1);
    assert_int_equal(run_named(s, RN_STORE_LOAD, "", "resp_sess_a_0", &job), 0);
    assert_string_equal(job->session.id, "sess_a");
    assert_int_equal(job->found, 0);
    assert_int_equal(job->responses[job->found].head, KIT_TURN_IDS);
    kit_assert_turns(job, 2);
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_RESPONSE, "", "resp_sess_a_0", &job), 0);
    assert_string_equal(job->session.id, "sess_a");
    assert_int_equal(json_integer_value(json_object_get(job->response.echo, "turn")), 0);
    assert_int_equal(json_integer_value(json_object_get(job->response.usage, "output_tokens")), KIT_OUTPUT_IDS);
    assert_string_equal(json_string_value(json_object_get(job->response.record, "device")), "cpu");
    assert_string_equal(json_string_value(json_array_get(job->response.output_ids, 0)), "msg_a_0");
    assert_null(job->response.input);
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_LOAD, "", "resp_none", NULL), -ENOENT);
    assert_int_equal(run_named(s, RN_STORE_LOAD, "sess_none", "", NULL), -ENOENT);
    assert_int_equal(run_named(s, RN_STORE_RESPONSE, "", "resp_none", NULL), -ENOENT);
    assert_int_equal(run_named(s, RN_STORE_SHOW, "sess_none", "", NULL), -ENOENT);
    rn_store_close(s);
}

static void lists_are_newest_first_and_limited(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    kit_turn(s, "sess_b", 0);
    kit_turn(s, "sess_a", 1);
    struct rn_store_job *job = rn_store_job_create(RN_STORE_LIST);
    assert_int_equal(kit_run(s, job), 0);
    assert_int_equal(job->n_sessions, 2);
    assert_string_equal(job->sessions[0].id, "sess_a");
    assert_int_equal(job->sessions[0].head, 2 * KIT_TURN_IDS);
    assert_string_equal(job->sessions[1].id, "sess_b");
    job->limit = 1; // a job may be used again
    assert_int_equal(kit_run(s, job), 0);
    assert_int_equal(job->n_sessions, 1);
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_SHOW, "sess_b", "", &job), 0);
    assert_int_equal(job->n_items, 2);
    assert_int_equal(job->n_ids, 0);
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_DELETE, "sess_a", "", NULL), 0);
    assert_int_equal(run_named(s, RN_STORE_DELETE, "sess_a", "", NULL), -ENOENT);
    assert_int_equal(run_named(s, RN_STORE_RESPONSE, "", "resp_sess_a_0", NULL), -ENOENT);
    assert_int_equal(run_named(s, RN_STORE_CHECK, "", "", NULL), 0);
    rn_store_close(s);
}

static void a_title_is_cut_at_a_character(void **state)
{
    struct rn_store *s = kit_open(*state);
    struct rn_store_job *job = kit_begin("sess_a", 0, true);
    rn_mem_free(job->session.title);
    struct rn_buf title = {0};
    for (int i = 0; i < 61; i++) {
        rn_buf_add_str(&title, "\xe2\x82\xac");
    }
    job->session.title = title.data;
    assert_int_equal(kit_do(s, job), 0);
    job = kit_load(s, "sess_a");
    assert_int_equal(strlen(job->session.title), 60 * 3);
    rn_store_job_destroy(job);
    rn_store_close(s);
}

static void abandon_takes_everything_back(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    assert_int_equal(kit_do(s, kit_begin("sess_a", 1, false)), 0);
    struct rn_store_job *job = rn_store_job_create(RN_STORE_ABANDON);
    set_id(job->session.id, "sess_a");
    set_id(job->response.id, "resp_sess_a_1");
    job->response.status = RN_STORE_INCOMPLETE;
    snprintf(job->response.cause, sizeof job->response.cause, "cancelled");
    assert_int_equal(kit_do(s, job), 0);
    job = kit_load(s, "sess_a");
    kit_assert_turns(job, 1);
    assert_int_equal(job->n_responses, 2);
    assert_int_equal(job->responses[1].status, RN_STORE_INCOMPLETE);
    assert_int_equal(job->responses[1].head, KIT_TURN_IDS);
    assert_int_equal(job->responses[1].n_items, 2);
    assert_string_equal(job->session.last_response_id, "resp_sess_a_0");
    rn_store_job_destroy(job);
    assert_int_equal(kit_do(s, kit_end("sess_a", 1)), -EALREADY);

    // Forgotten: not even its name stays, nor a session that was made for it.
    assert_int_equal(kit_do(s, kit_begin("sess_b", 0, true)), 0);
    job = rn_store_job_create(RN_STORE_ABANDON);
    set_id(job->session.id, "sess_b");
    set_id(job->response.id, "resp_sess_b_0");
    job->response.status = RN_STORE_FAILED;
    job->forget = true;
    assert_int_equal(kit_do(s, job), 0);
    assert_int_equal(run_named(s, RN_STORE_LOAD, "sess_b", "", NULL), -ENOENT);
    assert_int_equal(run_named(s, RN_STORE_LOAD, "", "resp_sess_b_0", NULL), -ENOENT);
    assert_int_equal(run_named(s, RN_STORE_CHECK, "", "", NULL), 0);
    rn_store_close(s);
}

static void an_answer_may_cut_what_the_question_appended(void **state)
{
    struct rn_store *s = kit_open(*state);
    assert_int_equal(kit_do(s, kit_begin("sess_a", 0, true)), 0);
    struct rn_store_job *job = kit_end("sess_a", 0);
    job->from -= 3; // the generation prompt goes, the question stays
    job->items[0].end -= 3;
    assert_int_equal(kit_do(s, job), 0);
    job = kit_load(s, "sess_a");
    assert_int_equal(job->session.head, KIT_TURN_IDS - 3);
    assert_int_equal(job->ids[KIT_INPUT_IDS - 3], kit_id(KIT_INPUT_IDS));
    rn_store_job_destroy(job);
    rn_store_close(s);
}

static void refusals_change_nothing(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    assert_int_equal(kit_do(s, kit_begin("sess_a", 2, false)), -ESTALE);
    assert_int_equal(kit_do(s, kit_begin("sess_x", 1, false)), -ENOENT);
    assert_int_equal(kit_do(s, kit_begin("sess_a", 0, true)), -EEXIST);
    struct rn_store_job *job = kit_begin("sess_a", 1, false);
    set_id(job->response.id, "resp_sess_a_0");
    assert_int_equal(kit_do(s, job), -EEXIST);
    job = kit_begin("sess_a", 1, false);
    job->items[0].end += 100;
    assert_int_equal(kit_do(s, job), -EINVAL);
    job = kit_begin("sess_a", 1, false);
    job->items[0].first = job->items[0].end = RN_STORE_NOWHERE;
    assert_int_equal(kit_do(s, job), -EINVAL);
    job = kit_begin("sess_a", 1, false);
    job->response.seed = 1ull << 53;
    assert_int_equal(kit_do(s, job), -EINVAL);
    job = kit_begin("sess_b", 0, true);
    job->session.n = 0;
    assert_int_equal(kit_do(s, job), -EINVAL);
    assert_int_equal(kit_do(s, kit_end("sess_a", 1)), -ENOENT);
    assert_int_equal(kit_do(s, kit_end("sess_a", 0)), -EALREADY);
    job = kit_begin("sess_a", 1, false);
    assert_int_equal(kit_do(s, job), 0);
    job = kit_end("sess_a", 1);
    job->response.status = RN_STORE_IN_PROGRESS;
    assert_int_equal(kit_do(s, job), -EINVAL);
    job = kit_end("sess_a", 1);
    job->from = 0; // not this turn's to cut
    assert_int_equal(kit_do(s, job), -EINVAL);
    assert_int_equal(kit_do(s, kit_end("sess_a", 1)), 0);
    job = kit_load(s, "sess_a");
    kit_assert_turns(job, 2);
    assert_int_equal(job->n_responses, 2);
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_OP_COUNT, "", "", NULL), -EINVAL);
    rn_store_close(s);
}

static struct rn_store_job *fork_job(const char *parent, uint64_t at, uint32_t n_items)
{
    struct rn_store_job *job = kit_begin("sess_f", (uint32_t)(at / KIT_TURN_IDS), true);
    set_id(job->fork_of, parent);
    job->fork_items = n_items;
    job->session.at = at;
    return job;
}

static void a_fork_keeps_what_it_took(void **state)
{
    struct rn_store *s = kit_open(*state);
    uint32_t n = 40; // past two blocks
    for (uint32_t i = 0; i < n; i++) {
        kit_turn(s, "sess_a", i);
    }
    assert_int_equal(kit_do(s, fork_job("sess_none", 35 * KIT_TURN_IDS, 70)), -ENOENT);
    assert_int_equal(kit_do(s, fork_job("sess_a", 41 * KIT_TURN_IDS, 80)), -EINVAL);
    assert_int_equal(kit_do(s, fork_job("sess_a", 35 * KIT_TURN_IDS, 71)), -EINVAL);
    assert_int_equal(kit_do(s, fork_job("sess_a", 35 * KIT_TURN_IDS, 70)), 0);
    assert_int_equal(kit_do(s, kit_end("sess_f", 35)), 0);
    struct rn_store_job *job = kit_load(s, "sess_f");
    kit_assert_turns(job, 36);
    assert_string_equal(job->session.parent, "sess_a");
    assert_int_equal(job->session.at, 35 * KIT_TURN_IDS);
    assert_int_equal(job->n_responses, 1);
    assert_int_equal(job->responses[0].n_items, 72);
    rn_store_job_destroy(job);
    job = kit_load(s, "sess_a");
    kit_assert_turns(job, n);
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_DELETE, "sess_a", "", NULL), 0);
    job = kit_load(s, "sess_f");
    kit_assert_turns(job, 36);
    assert_string_equal(job->session.parent, "");
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_CHECK, "", "", NULL), 0);
    rn_store_close(s);
}

static void an_origin_is_stored_before_the_next_turn(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    struct rn_store_job *job = rn_store_job_create(RN_STORE_REBASE);
    set_id(job->session.id, "sess_a");
    job->session.origin = 40;
    job->session.evicted = 36;
    assert_int_equal(kit_do(s, job), 0);
    job = kit_load(s, "sess_a");
    assert_int_equal(job->session.origin, 40);
    assert_int_equal(job->session.evicted, 36);
    kit_assert_turns(job, 1);
    rn_store_job_destroy(job);
    rn_store_close(s);
}

static struct rn_store_job *timeline_job(size_t n_items, size_t n_ids)
{
    struct rn_store_job *job = rn_store_job_create(RN_STORE_REBASE);
    set_id(job->session.id, "sess_a");
    job->timeline = true;
    job->session.n = 256;
    job->session.sinks = 8;
    job->session.origin = 8;
    job->session.lead = 8;
    job->session.instructions = rn_mem_strdup("Be long.");
    job->session.model_id = rn_mem_strdup("another");
    job->ids = rn_mem_alloc(n_ids, sizeof *job->ids);
    job->n_ids = n_ids;
    job->items = rn_mem_alloc(n_items, sizeof *job->items);
    job->n_items = n_items;
    return job;
}

static void a_new_timeline_moves_the_responses(void **state)
{
    struct rn_store *s = kit_open(*state);
    for (uint32_t i = 0; i < 3; i++) {
        kit_turn(s, "sess_a", i);
    }
    assert_int_equal(kit_do(s, timeline_job(5, 100)), -EINVAL);
    struct rn_store_job *job = timeline_job(6, 100);
    for (size_t i = 0; i < 6; i++) {
        uint64_t first = i < 2 ? RN_STORE_NOWHERE : 8 + 20 * (i - 2);
        job->items[i].first = first;
        job->items[i].end = i < 2 ? first : first + 20;
        job->items[i].turn_start = i % 2 == 0;
    }
    assert_int_equal(kit_do(s, job), 0);
    job = kit_load(s, "sess_a");
    assert_int_equal(job->session.head, 100);
    assert_string_equal(job->session.instructions, "Be long.");
    assert_string_equal(job->session.title, "A first question");
    assert_int_equal(job->session.n, 256);
    assert_int_equal(job->items[0].first, RN_STORE_NOWHERE);
    assert_false(job->items[0].turn_start);
    assert_int_equal(job->items[2].first, 8);
    assert_true(job->items[2].turn_start);
    assert_int_equal(job->responses[0].head, RN_STORE_NOWHERE);
    assert_int_equal(job->responses[1].head, 48);
    assert_int_equal(job->responses[2].head, 100);
    rn_store_job_destroy(job);
    job = kit_begin("sess_a", 3, false);
    job->from = 100;
    job->items[0].first = 100;
    job->items[0].end = 130;
    assert_int_equal(kit_do(s, job), 0);
    assert_int_equal(kit_do(s, timeline_job(7, 100)), -EBUSY);
    assert_int_equal(run_named(s, RN_STORE_CHECK, "", "", NULL), 0);
    rn_store_close(s);
}

static void what_an_end_could_not_write_is_closed_by_the_next_begin(void **state)
{
    struct rn_store *s = kit_open(*state);
    kit_turn(s, "sess_a", 0);
    assert_int_equal(kit_do(s, kit_begin("sess_a", 1, false)), 0);
    struct rn_store_job *job = kit_load(s, "sess_a"); // as of head_before
    kit_assert_turns(job, 1);
    assert_int_equal(job->responses[1].status, RN_STORE_IN_PROGRESS);
    assert_int_equal(job->responses[1].head, KIT_TURN_IDS);
    rn_store_job_destroy(job);
    assert_int_equal(run_named(s, RN_STORE_SHOW, "sess_a", "", &job), 0);
    assert_int_equal(job->n_items, 3);
    rn_store_job_destroy(job);
    job = kit_begin("sess_a", 1, false);
    set_id(job->response.id, "resp_again");
    assert_int_equal(kit_do(s, job), 0);
    job = kit_end("sess_a", 1);
    set_id(job->response.id, "resp_again");
    assert_int_equal(kit_do(s, job), 0);
    job = kit_load(s, "sess_a");
    kit_assert_turns(job, 2);
    assert_int_equal(job->responses[1].status, RN_STORE_FAILED);
    assert_string_equal(job->responses[1].cause, "storage");
    rn_store_job_destroy(job);
    rn_store_close(s);
}

static void settings_are_kept(void **state)
{
    struct rn_store *s = kit_open(*state);
    struct rn_store_job *set = rn_store_job_create(RN_STORE_SET), *get = rn_store_job_create(RN_STORE_GET);
    set->key = rn_mem_strdup("colour");
    get->key = rn_mem_strdup("colour");
    assert_int_equal(kit_run(s, get), 0);
    assert_null(get->value);
    set->value = rn_mem_strdup("blue");
    assert_int_equal(kit_run(s, set), 0);
    assert_int_equal(kit_run(s, get), 0);
    assert_string_equal(get->value, "blue");
    rn_mem_free(set->value);
    set->value = NULL;
    assert_int_equal(kit_do(s, set), 0);
    assert_int_equal(kit_run(s, get), 0);
    assert_null(get->value);
    rn_store_job_destroy(get);
    rn_store_close(s);
}

static void files_are_private(void **state)
{
    const char *dir = kit_path(*state, "deep/er");
    char keep[1024];
    snprintf(keep, sizeof keep, "%s", dir);
    struct rn_store *s = kit_open(keep);
    kit_turn(s, "sess_a", 0);
    static const char *const names[] = {"runnel.db", "runnel.db-wal", "runnel.db-shm", "runnel.lock"};
    struct stat st;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(stat(kit_path(keep, names[i]), &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    assert_int_equal(stat(keep, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    rn_store_close(s);
}

// Frames in the write-ahead log that one turn costs.
static int64_t frames_of_turn(struct rn_db *db, uint32_t turn)
{
    assert_int_equal(rn_db_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)", "", NULL), 0);
    struct rn_store_job *jobs[2] = {kit_begin("sess_a", turn, turn == 0), kit_end("sess_a", turn)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rn_db_begin(db, NULL), 0);
        int r = i ? rn_truth_end(db, jobs[i]) : rn_truth_begin(db, jobs[i]);
        assert_int_equal(rn_db_commit(db, r, NULL), 0);
        rn_store_job_destroy(jobs[i]);
    }
    struct rn_stmt q;
    rn_stmt_start(&q, db, "", "PRAGMA wal_checkpoint(PASSIVE)", NULL);
    assert_true(rn_stmt_row(&q));
    rn_stmt_int(&q, 0, 0);
    int64_t frames = rn_stmt_int(&q, 0, INT64_MAX);
    assert_int_equal(rn_stmt_end(&q), 0);
    return frames;
}

static void an_append_costs_the_same_in_a_log_of_100000(void **state)
{
    struct rn_db db = {0};
    int64_t early = 0, late = 0;
    uint32_t turn = 0, long_turns = 100000 / KIT_TURN_IDS;
    assert_int_equal(rn_db_open(&db, kit_path(*state, "runnel.db"), true, NULL), 0);
    assert_int_equal(rn_db_exec(&db, "PRAGMA synchronous = OFF", "", NULL), 0); // counted are pages, not what the disk makes of them
    for (; turn < long_turns + 40; turn++) {
        int64_t frames = frames_of_turn(&db, turn);
        if (turn >= 20 && turn < 60) {
            early += frames;
        } else if (turn >= long_turns) {
            late += frames;
        }
    }
    rn_db_close(&db);
    print_message("pages written in 40 turns: %lld at the start, %lld after 100,000 ids\n", (long long)early, (long long)late);
    assert_true(late < early + early / 4); // the trees are a level deeper
    struct rn_store *s = kit_open(*state);
    struct rn_store_job *job = kit_load(s, "sess_a");
    kit_assert_turns(job, turn);
    rn_store_job_destroy(job);
    rn_store_close(s);
}

static void hold(void *user, struct rn_store_job *job)
{
    (void)job;
    assert_non_null(rn_queue_pop_wait(user, rn_clock_ns() + 60000000000u));
}

static int n_done; // owner: store thread; read after rn_store_close
static void count(void *user, struct rn_store_job *job)
{
    (void)user;
    n_done += job->rc == 0;
    rn_store_job_destroy(job);
}

static void a_full_queue_refuses_and_closing_finishes_it(void **state)
{
    struct rn_store *s = kit_open(*state);
    struct rn_queue *gate = NULL;
    assert_int_equal(rn_queue_create(&gate, 1, NULL, NULL, NULL), 0);
    struct rn_store_job *first = rn_store_job_create(RN_STORE_LIST), *one = NULL;
    first->done = hold;
    first->user = gate;
    assert_int_equal(rn_store_submit(s, first), 0);
    n_done = 0;
    int n_sent = 0;
    for (;; n_sent++) {
        one = rn_store_job_create(RN_STORE_LIST);
        one->done = count;
        if (rn_store_submit(s, one)) {
            break;
        }
        assert_true(n_sent < 1000);
    }
    assert_true(n_sent >= (int)RN_STORE_QUEUE - 1);
    rn_store_job_destroy(one);
    assert_int_equal(rn_queue_push(gate, gate), 0);
    rn_store_close(s);
    assert_int_equal(n_done, n_sent);
    rn_store_job_destroy(first);
    rn_queue_destroy(gate);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, kit_setup, kit_teardown)
    const struct CMUnitTest tests[] = {
        T(a_turn_comes_back_after_reopening), T(a_response_names_its_session_and_place), T(lists_are_newest_first_and_limited),
        T(a_title_is_cut_at_a_character), T(abandon_takes_everything_back), T(an_answer_may_cut_what_the_question_appended),
        T(refusals_change_nothing), T(a_fork_keeps_what_it_took), T(an_origin_is_stored_before_the_next_turn),
        T(a_new_timeline_moves_the_responses), T(what_an_end_could_not_write_is_closed_by_the_next_begin), T(settings_are_kept),
        T(files_are_private), T(an_append_costs_the_same_in_a_log_of_100000), T(a_full_queue_refuses_and_closing_finishes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
