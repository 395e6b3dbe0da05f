/* The session layer on a real store: what a restart, a crash and a full disk leave of conversations. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/session_kit.h"

#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

static void restart(struct kit *k, const char *dir)
{
    kit_stop(k);
    kit_start(k, dir);
}

static void every_restart_goes_unnoticed(void **state)
{
    (void)state;
    for (int policy = 0; policy < 2; policy++) {
        struct kit k;
        char dir[64], id[RN_ID_BYTES] = "";
        kit_temp_dir(dir);
        kit_open(&k);
        k.params.window = 96;
        k.params.evict = policy ? RN_EVICT_TOKEN : RN_EVICT_TURN;
        kit_start(&k, dir);
        struct rn_seq_params p = {.n = 96, .sinks = 18, .evict = k.params.evict};
        char *prompt = calloc(1, 1 << 14);
        strcpy(prompt, LEAD);
        for (int i = 0; i < 12; i++) {
            char text[32];
            snprintf(text, sizeof text, "q%d", i);
            sprintf(prompt + strlen(prompt), USER("%s") ASK, text);
            struct kit_reply *r = kit_ask(&k, text, id[0] ? id : NULL);
            assert_string_equal(r->text, kit_expect(&k, &p, "%s", prompt));
            assert_null(kit_string(r, "rebased.cause"));
            sprintf(prompt + strlen(prompt), "%s<|im_end|>\n", r->last->text);
            strcpy(id, r->response);
            restart(&k, dir);
        }
        free(prompt);
        kit_close(&k);
        kit_remove_dir(dir);
    }
}

static void a_session_keeps_its_rope_scaling(void **state)
{
    (void)state;
    struct kit k;
    char dir[64];
    kit_temp_dir(dir);
    kit_open(&k);
    k.fake->n_ctx_train = 512;
    k.params.window = 700;
    k.params.rope = (struct rn_rope_scaling){RN_ROPE_YARN, 0};
    kit_start(&k, dir);
    const struct rn_seq_params p = {.n = 700, .sinks = 18, .evict = RN_EVICT_TURN, .rope = {RN_ROPE_YARN, 1.5f}}; // 700 / 512, rounded up
    struct kit_reply *one = kit_ask(&k, "one", NULL);
    const char *warning = json_string_value(json_array_get(json_object_get(one->last->record, "warnings"), 0));
    assert_non_null(warning);
    assert_non_null(strstr(warning, "yarn:1.5"));
    assert_non_null(strstr(warning, "trained length 512"));
    assert_string_equal(one->text, kit_expect(&k, &p, LEAD USER("one") ASK));
    // Another daemon's settings are for its new sessions.
    k.params.window = 512;
    k.params.rope = (struct rn_rope_scaling){0};
    restart(&k, dir);
    struct kit_reply *r = kit_ask(&k, "two", one->response);
    assert_int_equal(json_array_size(json_object_get(r->last->record, "warnings")), 0);
    assert_string_equal(r->text, kit_expect(&k, &p, LEAD USER("one") SAID USER("two") ASK, one->last->text));
    r = kit_ask(&k, "two", one->response); // a fork
    assert_string_equal(r->text, kit_expect(&k, &p, LEAD USER("one") SAID USER("two") ASK, one->last->text));
    r = kit_ask(&k, "one", NULL);
    assert_string_equal(r->text, kit_expect(&k, &P512, LEAD USER("one") ASK));
    struct rn_request *req = kit_request("one", NULL);
    req->window = 700;
    r = kit_wait(&k, kit_send(&k, req));
    assert_int_equal(r->last->kind, RN_EVENT_ERROR);
    assert_string_equal(r->last->param, "runnel.window");
    kit_close(&k);
    kit_remove_dir(dir);
}

static void a_long_session_is_rebased_once(void **state)
{
    (void)state;
    struct kit k;
    char dir[64], id[RN_ID_BYTES] = "";
    kit_temp_dir(dir);
    kit_open(&k);
    k.params.window = 96;
    k.params.reread_limit = 300;
    kit_start(&k, dir);
    struct kit_reply *r = NULL;
    for (int i = 0; i < 15; i++) {
        r = kit_ask(&k, "question", id[0] ? id : NULL);
        strcpy(id, r->response);
    }
    int64_t kept = kit_number(r, "context.kept_from");
    assert_true(kept > 400);
    char uninterrupted[256];
    restart(&k, dir);
    r = kit_ask(&k, "question", id);
    assert_string_equal(kit_string(r, "rebased.cause"), "reread");
    assert_true(kit_number(r, "context.kept_from") >= kept);
    assert_true(kit_number(r, "computed") < 200);
    strcpy(id, r->response);
    // From the new origin on it is exact again: with and without a restart in between.
    struct rn_request *req = kit_request("same", id);
    req->store = false;
    snprintf(uninterrupted, sizeof uninterrupted, "%.200s", kit_wait(&k, kit_send(&k, req))->text);
    restart(&k, dir);
    r = kit_ask(&k, "same", id);
    assert_null(kit_string(r, "rebased.cause"));
    assert_string_equal(r->text, uninterrupted);
    kit_close(&k);
    kit_remove_dir(dir);
}

static void old_positions_fork_after_a_restart(void **state)
{
    (void)state;
    struct kit k;
    char dir[64], session[RN_ID_BYTES];
    kit_temp_dir(dir);
    kit_open(&k);
    kit_start(&k, dir);
    struct kit_reply *a = kit_ask(&k, "one", NULL);
    struct kit_reply *b = kit_ask(&k, "two", a->response);
    strcpy(session, a->session);
    restart(&k, dir);
    struct kit_reply *f = kit_ask(&k, "other", a->response);
    assert_string_equal(f->text, kit_expect(&k, &P512, LEAD USER("one") SAID USER("other") ASK, a->last->text));
    assert_string_not_equal(f->session, session);
    restart(&k, dir);
    struct kit_reply *g = kit_ask(&k, "more", f->response);
    assert_string_equal(g->session, f->session);
    assert_string_equal(g->text,
                        kit_expect(&k, &P512, LEAD USER("one") SAID USER("other") SAID USER("more") ASK, a->last->text, f->last->text));
    struct kit_reply *show = kit_query(&k, RN_QUERY_SHOW, f->session);
    assert_int_equal(json_array_size(json_object_get(show->last->reply, "items")), 6);
    struct kit_reply *list = kit_query(&k, RN_QUERY_LIST, NULL);
    assert_int_equal(json_array_size(json_object_get(list->last->reply, "data")), 2);
    // An aside on a stored session leaves it where it is, on disk too.
    struct rn_request *req = kit_request("aside", b->response);
    req->store = false;
    struct kit_reply *u = kit_wait(&k, kit_send(&k, req));
    assert_int_equal(u->last->status == RN_STATUS_FAILED, 0);
    restart(&k, dir);
    req = kit_request("aside", u->response);
    req->store = false;
    struct kit_reply *e = kit_wait(&k, kit_send(&k, req));
    assert_string_equal(e->last->code, "previous_response_not_found");
    req = kit_request("three", NULL);
    req->session_id = rn_mem_strdup(session);
    struct kit_reply *c = kit_wait(&k, kit_send(&k, req));
    assert_string_equal(c->text,
                        kit_expect(&k, &P512, LEAD USER("one") SAID USER("two") SAID USER("three") ASK, a->last->text, b->last->text));
    kit_close(&k);
    kit_remove_dir(dir);
}

static void two_requests_that_load_the_same_session(void **state)
{
    (void)state;
    struct kit k;
    char dir[64];
    kit_temp_dir(dir);
    kit_open(&k);
    kit_start(&k, dir);
    struct kit_reply *a = kit_ask(&k, "one", NULL);
    restart(&k, dir);
    struct kit_reply *b = kit_send(&k, kit_request("left", a->response));
    struct kit_reply *c = kit_send(&k, kit_request("right", a->response));
    kit_wait(&k, b);
    kit_wait(&k, c);
    assert_string_equal(b->session, a->session);
    assert_string_not_equal(c->session, a->session);
    assert_string_equal(c->text, kit_expect(&k, &P512, LEAD USER("one") SAID USER("right") ASK, a->last->text));
    kit_close(&k);
    kit_remove_dir(dir);
}

static void rebased_timelines_survive(void **state)
{
    (void)state;
    struct kit k;
    char dir[64];
    kit_temp_dir(dir);
    kit_open(&k);
    kit_start(&k, dir);
    struct kit_reply *a = kit_ask(&k, "hi", NULL);
    struct rn_request *req = kit_request("two", a->response);
    req->instructions = rn_mem_strdup("Be brief.");
    struct kit_reply *b = kit_wait(&k, kit_send(&k, req));
    assert_string_equal(kit_string(b, "rebased.cause"), "instructions");
    assert_string_equal(b->session, a->session);
    restart(&k, dir);
    struct rn_seq_params p = {.n = 512, .sinks = 19};
    struct kit_reply *c = kit_ask(&k, "three", b->response);
    assert_string_equal(
        c->text, kit_expect(&k, &p, SYSTEM("Be brief.") USER("hi") SAID USER("two") SAID USER("three") ASK, a->last->text, b->last->text));
    assert_null(kit_string(c, "rebased.cause"));
    // A fork with other instructions brings its own items.
    req = kit_request("four", b->response);
    req->instructions = rn_mem_strdup("Be good.");
    struct kit_reply *f = kit_wait(&k, kit_send(&k, req));
    assert_string_not_equal(f->session, a->session);
    restart(&k, dir);
    struct kit_reply *g = kit_ask(&k, "five", f->response);
    p.sinks = 18;
    assert_string_equal(g->text, kit_expect(&k, &p, LEAD USER("hi") SAID USER("two") SAID USER("four") SAID USER("five") ASK, a->last->text,
                                            b->last->text, f->last->text));
    // Another tokenizer: rendered and tokenised again.
    kit_stop(&k);
    k.fake->tokenizer_fingerprint = 78;
    kit_start(&k, dir);
    struct kit_reply *m = kit_ask(&k, "six", g->response);
    assert_string_equal(kit_string(m, "rebased.cause"), "model");
    assert_string_equal(m->text,
                        kit_expect(&k, &p, LEAD USER("hi") SAID USER("two") SAID USER("four") SAID USER("five") SAID USER("six") ASK,
                                   a->last->text, b->last->text, f->last->text, g->last->text));
    kit_close(&k);
    kit_remove_dir(dir);
}

static void deleting_is_final(void **state)
{
    (void)state;
    struct kit k;
    char dir[64];
    kit_temp_dir(dir);
    kit_open(&k);
    kit_start(&k, dir);
    struct kit_reply *a = kit_ask(&k, "one", NULL);
    assert_int_equal(kit_query(&k, RN_QUERY_DELETE, a->session)->last->http_status, 200);
    assert_int_equal(kit_query(&k, RN_QUERY_DELETE, a->session)->last->http_status, 404);
    struct kit_reply *e = kit_ask(&k, "two", a->response);
    assert_string_equal(e->last->code, "previous_response_not_found");
    assert_int_equal(kit_query(&k, RN_QUERY_SHOW, "sess_a-name-that-is-much-longer-than-any-id-can-ever-be")->last->http_status, 404);
    kit_close(&k);
    kit_remove_dir(dir);
}

// ---- Crashes ---------------------------------------------------------------------------------------------------------------------------

static void die(void *user, const struct rn_step_entry *entries, uint32_t n)
{
    uint64_t *left = user;
    (void)entries;
    (void)n;
    if (--*left == 0) {
        kill(getpid(), SIGKILL);
    }
}

/* What the killed process saw finish. */
struct seen {
    char responses[16][RN_ID_BYTES], texts[16][256], session[RN_ID_BYTES];
    int n;
};

static void converse(const char *dir, int out, uint64_t steps)
{
    struct kit k;
    struct seen seen = {0};
    kit_open(&k);
    k.fake->on_step = die;
    k.fake->user = &steps;
    kit_start(&k, dir);
    for (int i = 0; i < 16; i++) {
        struct kit_reply *r = kit_ask(&k, "next", i ? seen.responses[i - 1] : NULL);
        strcpy(seen.responses[i], r->response);
        strcpy(seen.session, r->session);
        snprintf(seen.texts[i], sizeof seen.texts[i], "%s", r->last->text);
        seen.n = i + 1;
        if (write(out, &seen, sizeof seen) != sizeof seen) {
            _exit(1);
        }
    }
    _exit(0);
}

static void a_kill_loses_no_finished_turn(void **state)
{
    (void)state;
    for (uint64_t steps = 3; steps < 200; steps += 17) {
        char dir[64];
        int pipes[2];
        kit_temp_dir(dir);
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            close(pipes[0]);
            converse(dir, pipes[1], steps);
        }
        close(pipes[1]);
        struct seen seen = {0}, next;
        while (read(pipes[0], &next, sizeof next) == sizeof next) {
            seen = next;
        }
        close(pipes[0]);
        waitpid(child, NULL, 0);

        struct kit k;
        kit_open(&k);
        kit_start(&k, dir);
        if (seen.n > 0) {
            static char prompt[16384];
            strcpy(prompt, LEAD);
            for (int i = 0; i < seen.n; i++) {
                sprintf(prompt + strlen(prompt), USER("next") SAID, seen.texts[i]);
            }
            struct kit_reply *show = kit_query(&k, RN_QUERY_SHOW, seen.session);
            size_t n = json_array_size(json_object_get(show->last->reply, "items"));
            assert_true(n == 2 * (size_t)seen.n || n == 2 * (size_t)seen.n + 2); // whole turns only
            if (n == 2 * (size_t)seen.n) {
                strcat(prompt, USER("after") ASK);
                struct rn_request *req = kit_request("after", NULL);
                req->session_id = rn_mem_strdup(seen.session);
                struct kit_reply *r = kit_wait(&k, kit_send(&k, req));
                assert_string_equal(r->text, kit_expect(&k, &P512, "%s", prompt));
            }
        }
        kit_close(&k);
        kit_remove_dir(dir);
    }
}

// ---- A disk that refuses ---------------------------------------------------------------------------------------------------------------

static void limit_files(rlim_t bytes)
{
    struct rlimit l;
    getrlimit(RLIMIT_FSIZE, &l);
    l.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

static void limit_at_step(void *user, const struct rn_step_entry *entries, uint32_t n)
{
    int *left = user;
    (void)entries;
    (void)n;
    if (*left > 0 && --*left == 0) {
        limit_files(1);
    }
}

static void a_full_disk_fails_answers_until_it_is_not(void **state)
{
    (void)state;
    struct kit k;
    char dir[64];
    signal(SIGXFSZ, SIG_IGN);
    kit_temp_dir(dir);
    kit_open(&k);
    kit_start(&k, dir);
    struct kit_reply *a = kit_ask(&k, "one", NULL);
    limit_files(1);
    struct kit_reply *b = kit_ask(&k, "two", a->response); // (1) fails
    assert_string_equal(b->order, "!");
    assert_int_equal(b->last->http_status, 503);
    struct rn_request *req = kit_request("aside", a->response);
    req->store = false; // what does not store goes on
    limit_files(RLIM_INFINITY);
    struct kit_reply *u = kit_wait(&k, kit_send(&k, req));
    assert_int_equal(u->last->kind, RN_EVENT_DONE);
    int left = 4;
    k.fake->on_step = limit_at_step;
    k.fake->user = &left;
    struct kit_reply *c = kit_ask(&k, "two", a->response); // (2) fails
    assert_int_equal(c->last->kind, RN_EVENT_DONE);
    assert_int_equal(c->last->status, RN_STATUS_FAILED);
    assert_string_equal(c->last->cause, "storage");
    assert_int_equal(c->last->http_status, 503);
    assert_string_equal(kit_string(c, "stop.cause"), "storage");
    struct kit_reply *d = kit_ask(&k, "two", a->response);
    assert_int_equal(d->last->http_status, 503);
    limit_files(RLIM_INFINITY);
    struct kit_reply *e = kit_ask(&k, "two", a->response);
    assert_string_equal(e->session, a->session);
    assert_string_equal(e->text, kit_expect(&k, &P512, LEAD USER("one") SAID USER("two") ASK, a->last->text));
    assert_true(e->last->cached_tokens > 0); // the pages are still there
    restart(&k, dir);
    struct kit_reply *f = kit_ask(&k, "three", e->response);
    assert_string_equal(f->text,
                        kit_expect(&k, &P512, LEAD USER("one") SAID USER("two") SAID USER("three") ASK, a->last->text, e->last->text));
    kit_close(&k);
    kit_remove_dir(dir);
}

static void stopping_stores_what_was_said(void **state)
{
    (void)state;
    struct kit k;
    char dir[64], said[8192];
    kit_temp_dir(dir);
    kit_open(&k);
    k.fake->no_end = true;
    kit_start(&k, dir);
    struct rn_request *req = kit_request("long", NULL);
    req->max_output_tokens = 100000;
    struct kit_reply *a = kit_send(&k, req);
    kit_wait_for(&k, a, 'T');
    kit_stop(&k);
    assert_string_equal(a->last->cause, "interrupted");
    snprintf(said, sizeof said, "%s", a->last->text);
    kit_start(&k, dir);
    struct kit_reply *b = kit_ask(&k, "on", a->response);
    if (strlen(a->last->text) < 400) { // else tokens have left the window
        assert_string_equal(b->text, kit_expect(&k, &P512, LEAD USER("long") SAID USER("on") ASK, said));
    }
    assert_string_equal(b->session, a->session);
    kit_close(&k);
    kit_remove_dir(dir);
}

static void cancelled_early_leaves_no_half_turn(void **state)
{
    (void)state;
    struct kit k;
    char dir[64];
    kit_temp_dir(dir);
    kit_open(&k);
    kit_start(&k, dir);
    struct kit_reply *a = kit_ask(&k, "one", NULL);
    struct rn_request *req = kit_request("never", a->response);
    struct kit_reply *b = kit_send(&k, req);
    rn_service_cancel(k.service, kit_ticket(&k, b)); // with the BEGIN still out, or just done
    kit_wait(&k, b);
    assert_int_equal(b->last->kind, RN_EVENT_DONE);
    restart(&k, dir);
    struct kit_reply *c = kit_ask(&k, "two", b->response);
    assert_string_equal(c->session, a->session);
    if (b->last->n_ids == 0) {
        assert_string_equal(c->text, kit_expect(&k, &P512, LEAD USER("one") SAID USER("two") ASK, a->last->text));
        struct kit_reply *show = kit_query(&k, RN_QUERY_SHOW, a->session);
        assert_int_equal(json_array_size(json_object_get(show->last->reply, "items")), 4);
    }
    kit_close(&k);
    kit_remove_dir(dir);
}

static void a_second_service_is_refused(void **state)
{
    (void)state;
    struct kit k, other;
    char dir[64];
    struct rn_err err = {0};
    kit_temp_dir(dir);
    kit_open(&k);
    kit_open(&other);
    kit_start(&k, dir);
    other.params.state_dir = dir;
    assert_int_equal(rn_service_start(&other.service, &other.params, &err), -EBUSY);
    other.service = NULL;
    kit_close(&other);
    kit_close(&k);
    kit_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_loses_no_finished_turn), // first: it forks
        cmocka_unit_test(every_restart_goes_unnoticed),
        cmocka_unit_test(a_session_keeps_its_rope_scaling),
        cmocka_unit_test(a_long_session_is_rebased_once),
        cmocka_unit_test(old_positions_fork_after_a_restart),
        cmocka_unit_test(two_requests_that_load_the_same_session),
        cmocka_unit_test(rebased_timelines_survive),
        cmocka_unit_test(deleting_is_final),
        cmocka_unit_test(a_full_disk_fails_answers_until_it_is_not),
        cmocka_unit_test(stopping_stores_what_was_said),
        cmocka_unit_test(cancelled_early_leaves_no_half_turn),
        cmocka_unit_test(a_second_service_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
