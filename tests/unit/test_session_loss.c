/* Loss of the device: answers go on with the same tokens, or fail with device_lost; the service stays, and the device comes back. The fake
 * engine aborts when a sequence lives through a rebuild, and its answers depend on every token that is fed again. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/session_kit.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

struct watch { // what on_device said
    sem_t back;
    _Atomic unsigned lost;
    char text[1024]; // the newest; read after a semaphore or the end of a request
};

static struct watch watch; // the only one: user is the kit

static void on_device(void *user, bool ready, const char *text)
{
    (void)user;
    snprintf(watch.text, sizeof watch.text, "%s", text);
    if (ready) {
        sem_post(&watch.back);
    } else {
        watch.lost++;
    }
}

static void open_kit(struct kit *k)
{
    kit_open(k);
    memset(&watch, 0, sizeof watch);
    sem_init(&watch.back, 0, 0);
    k->params.on_device = on_device;
}

static void close_kit(struct kit *k)
{
    kit_close(k);
    sem_destroy(&watch.back);
}

/* A long answer through a window that rolls, with everything that depends on the answer so far. */
static struct rn_request *request(uint32_t how)
{
    struct rn_request *r = kit_request("a question", NULL);
    r->max_output_tokens = 150;
    r->window = 96;
    r->sampling.temperature = how ? 0.9f : 0;
    r->sampling.seed = 1234;
    r->has_seed = true;
    r->sampling.repeat_penalty = how == 2 ? 1.2f : 1;
    r->sampling.frequency_penalty = how == 2 ? 0.3f : 0;
    r->logprobs = how == 2;
    return r;
}

static void answers_go_on_with_the_same_tokens(void **state)
{
    (void)state;
    for (uint32_t how = 0; how < 3; how++) {
        for (int stored = 0; stored < 2; stored++) {
            struct kit k;
            char dir[64], text[4096];
            open_kit(&k);
            kit_temp_dir(dir);
            k.fake->no_end = true;
            kit_start(&k, stored ? dir : NULL);
            struct kit_reply *whole = kit_wait(&k, kit_send(&k, request(how)));
            snprintf(text, sizeof text, "%.4000s", whole->text);
            kit_stop(&k);
            for (int at = 1; at < 150; at += at < 6 ? 1 : 13) { // step 1: the prompt
                kit_start(&k, stored ? dir : NULL);
                k.fake->fail_code = -EIO;
                k.fake->fail_step = at;
                k.fake->rebuilds = 0;
                struct kit_reply *r = kit_wait(&k, kit_send(&k, request(how)));
                assert_int_equal(r->last->kind, RN_EVENT_DONE);
                assert_string_equal(r->text, text);
                assert_string_equal(r->last->text, text);
                assert_int_equal(r->last->output_tokens, 150);
                assert_int_equal(kit_number(r, "context.kept_from"), kit_number(whole, "context.kept_from"));
                assert_int_equal(r->last->input_tokens, whole->last->input_tokens);
                assert_int_equal(k.fake->rebuilds, 1);
                const char *warning = json_string_value(json_array_get(json_object_get(r->last->record, "warnings"), 0));
                assert_non_null(strstr(warning ? warning : "", "device was lost"));
                assert_null(strchr(r->order + 3, 'S')); // one start
                if (how == 2) {
                    assert_true(json_equal(r->last->logprobs, whole->last->logprobs));
                }
                kit_stop(&k);
            }
            kit_remove_dir(dir);
            close_kit(&k);
        }
    }
}

/* Several at once, one of them in the middle of its prompt, others waiting for a place; afterwards sessions continue. */
static void all_that_run_go_on(void **state)
{
    (void)state;
    char text[6][2048], prompt[4096], long_prompt[900];
    memset(long_prompt, 'x', sizeof long_prompt - 1);
    long_prompt[sizeof long_prompt - 1] = 0;
    for (int lost = 0; lost < 12; lost++) { // 0: never
        struct kit k;
        open_kit(&k);
        k.fake->no_end = true;
        k.params.max_concurrent = 4;
        k.params.window = 2048;
        kit_start(&k, NULL);
        k.fake->fail_code = -EIO;
        k.fake->fail_step = lost;
        struct kit_reply *r[6];
        for (int i = 0; i < 6; i++) {
            snprintf(prompt, sizeof prompt, "%d %s", i, i % 2 ? long_prompt : "short");
            r[i] = kit_send(&k, kit_request(prompt, NULL));
        }
        for (int i = 0; i < 6; i++) {
            kit_wait(&k, r[i]);
            assert_int_equal(r[i]->last->kind, RN_EVENT_DONE);
            if (lost == 0) {
                snprintf(text[i], sizeof text[i], "%.2000s", r[i]->text);
            }
            assert_string_equal(r[i]->text, text[i]);
        }
        assert_int_equal(k.fake->rebuilds, lost > 0);
        struct kit_reply *next = kit_ask(&k, "two", r[0]->response);
        struct rn_seq_params p = {.n = 2048, .sinks = 18, .evict = RN_EVICT_TURN};
        assert_string_equal(next->text, kit_expect(&k, &p, LEAD USER("0 short") SAID USER("two") ASK, text[0]));
        close_kit(&k);
    }
}

/* The second loss within a minute: the answer fails, what waits fails, what comes is refused; then the device comes back by itself. */
static void a_second_loss_leaves_the_device_down(void **state)
{
    (void)state;
    for (int again = 1; again < 6; again += 2) { // 1: in the decode that proves it; 3, 5: later
        struct kit k;
        open_kit(&k);
        k.fake->no_end = true;
        k.params.max_concurrent = 1;
        kit_start(&k, NULL);
        struct kit_reply *a = kit_ask(&k, "one", NULL);
        k.fake->fail_code = -EIO;
        k.fake->fail_again = again;
        k.fake->fail_step = 5;
        struct kit_reply *b = kit_send(&k, kit_request("two", a->response)), *waits = kit_send(&k, kit_request("three", NULL));
        kit_wait(&k, b);
        kit_wait(&k, waits);
        assert_int_equal(b->last->status, RN_STATUS_FAILED);
        assert_string_equal(b->last->code, "device_lost");
        assert_int_equal(b->last->http_status, 503);
        assert_string_equal(kit_string(b, "stop.cause"), "error");
        assert_true(waits->last->kind == RN_EVENT_ERROR || waits->last->status == RN_STATUS_FAILED);
        assert_string_equal(waits->last->code, "device_lost");
        struct kit_reply *refused = kit_ask(&k, "four", NULL);
        assert_int_equal(refused->last->kind, RN_EVENT_ERROR);
        assert_int_equal(refused->last->http_status, 503);
        assert_string_equal(refused->last->code, "device_lost");
        assert_false(rn_service_ready(k.service));
        assert_non_null(strstr(watch.text, "down for 1 minute"));
        struct kit_reply *list = kit_query(&k, RN_QUERY_LIST, NULL); // what needs no device works
        assert_int_equal(list->last->http_status, 200);
        assert_int_equal(k.fake->rebuilds, 1);
        close_kit(&k);
    }
}

static void the_device_is_tried_again(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    k.fake->no_end = true;
    k.params.loss_minute_ms = 5;
    kit_start(&k, NULL);
    struct kit_reply *a = kit_ask(&k, "one", NULL);
    k.fake->fail_code = -EIO;
    k.fake->fail_rebuild = 6; // after 0, then 1, 2, 4, 8, 16 minutes; the one after 30 works
    k.fake->fail_step = 3;
    struct kit_reply *b = kit_ask(&k, "two", a->response);
    assert_string_equal(b->last->code, "device_lost");
    sem_wait(&watch.back);
    assert_int_equal(k.fake->rebuilds, 7);
    assert_int_equal(watch.lost, 7); // the loss, and six times "stays down"
    struct kit_reply *c = kit_ask(&k, "two", a->response);
    assert_string_equal(c->text, kit_expect(&k, &P512, LEAD USER("one") SAID USER("two") ASK, a->last->text));
    assert_string_equal(c->session, a->session);
    assert_true(rn_service_ready(k.service));
    close_kit(&k);
}

/* Losses that are far apart each cost a pause; one answer survives one only. */
static void an_answer_survives_one_loss(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    k.fake->no_end = true;
    k.params.loss_minute_ms = 1;
    kit_start(&k, NULL);
    struct rn_request *r = request(0);
    r->max_output_tokens = 4000; // long enough for the minute to pass between the losses
    k.fake->fail_code = -EIO;
    k.fake->fail_step = 10;
    k.fake->fail_again = 3000;
    struct kit_reply *reply = kit_wait(&k, kit_send(&k, r));
    assert_int_equal(reply->last->status, RN_STATUS_FAILED);
    assert_string_equal(reply->last->code, "device_lost");
    sem_wait(&watch.back);
    sem_wait(&watch.back);
    assert_int_equal(k.fake->rebuilds, 2);
    assert_int_equal(kit_ask(&k, "next", NULL)->last->status, RN_STATUS_INCOMPLETE);
    close_kit(&k);
}

/* A session that can only be rebased would give other tokens: its answer fails, the session goes on from its window. */
static void an_answer_that_cannot_be_reread_fails(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    k.fake->no_end = true;
    k.params.reread_limit = 64;
    kit_start(&k, NULL);
    struct rn_request *first = request(0);
    struct kit_reply *a = kit_wait(&k, kit_send(&k, first));
    k.fake->fail_code = -EIO;
    k.fake->fail_step = 4;
    struct kit_reply *b = kit_ask(&k, "two", a->response);
    assert_int_equal(b->last->status, RN_STATUS_FAILED);
    assert_string_equal(b->last->code, "device_lost");
    sem_wait(&watch.back);
    assert_true(rn_service_ready(k.service)); // the device itself came back at once
    struct kit_reply *c = kit_ask(&k, "two", a->response);
    assert_int_equal(c->last->status, RN_STATUS_INCOMPLETE); // by length
    assert_string_equal(kit_string(c, "rebased.cause"), "reread");
    close_kit(&k);
}

struct canceller { // cancels a ticket at the first step after a rebuild
    struct kit *k;
    uint64_t ticket;
    bool done;
};

static void cancel_at_step(void *user, const struct rn_step_entry *entries, uint32_t n)
{
    struct canceller *c = user;
    (void)entries, (void)n;
    if (c->k->fake->rebuilds > 0 && !c->done) {
        rn_service_cancel(c->k->service, c->ticket);
        c->done = true;
    }
}

static void cancelled_while_it_is_read_again_it_keeps_its_text(void **state)
{
    (void)state;
    struct kit k;
    struct canceller c = {.k = &k, .ticket = 1}; // the kit counts from 1
    open_kit(&k);
    k.fake->no_end = true;
    k.fake->on_step = cancel_at_step;
    k.fake->user = &c;
    k.params.prefill_chunk = 16;
    kit_start(&k, NULL);
    k.fake->fail_code = -EIO;
    k.fake->fail_step = 100;
    struct kit_reply *r = kit_wait(&k, kit_send(&k, request(0)));
    assert_int_equal(r->last->status, RN_STATUS_INCOMPLETE);
    assert_string_equal(r->last->cause, "cancelled");
    assert_true(r->last->kept);
    assert_true(r->last->output_tokens > 50 && r->last->output_tokens < 150);
    int64_t kept_from = kit_number(r, "context.kept_from");
    assert_true(kept_from > 18); // the window had moved, and this is known although the pages are gone
    struct kit_reply *next = kit_ask(&k, "go on", r->response);
    assert_int_equal(next->last->kind, RN_EVENT_DONE);
    assert_string_equal(next->session, r->session);
    close_kit(&k);
}

/* The device refuses a page although the pool had promised it: idle sessions give theirs up, and the step is tried again. */
static void no_page_for_a_step_costs_idle_sessions_theirs(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    k.fake->no_end = true;
    kit_start(&k, NULL);
    struct kit_reply *alone = kit_send(&k, kit_request("zero", NULL));
    kit_wait(&k, alone);
    k.fake->fail_code = -ENOMEM;
    k.fake->fail_step = 5;
    struct kit_reply *a = kit_ask(&k, "one", NULL);
    assert_string_equal(a->text, kit_expect(&k, &P512, LEAD USER("one") ASK));
    struct kit_reply *b = kit_ask(&k, "two", alone->response); // read again
    assert_string_equal(b->text, kit_expect(&k, &P512, LEAD USER("zero") SAID USER("two") ASK, alone->last->text));
    assert_string_equal(kit_string(b, "cache.source"), "none");
    assert_int_equal(k.fake->rebuilds, 0);
    kit_stop(&k);
    kit_start(&k, NULL); // nobody else has pages: in the first step there is nothing to give up, later what the answer itself keeps behind
    k.fake->fail_step = 1;
    struct kit_reply *c = kit_ask(&k, "three", NULL);
    assert_int_equal(c->last->status, RN_STATUS_FAILED);
    assert_int_equal(c->last->http_status, 503);
    assert_string_equal(c->last->code, "server_is_overloaded");
    k.fake->fail_step = 10;
    assert_string_equal(kit_ask(&k, "one", NULL)->text, kit_expect(&k, &P512, LEAD USER("one") ASK));
    close_kit(&k);
}

static void stopping_while_the_device_is_down(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    kit_start(&k, NULL);
    k.fake->fail_code = -EIO;
    k.fake->fail_rebuild = 1000;
    k.fake->fail_step = 2;
    struct kit_reply *r = kit_ask(&k, "one", NULL);
    assert_string_equal(r->last->code, "device_lost");
    close_kit(&k); // does not wait for the minute to pass
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_go_on_with_the_same_tokens),
        cmocka_unit_test(all_that_run_go_on),
        cmocka_unit_test(a_second_loss_leaves_the_device_down),
        cmocka_unit_test(the_device_is_tried_again),
        cmocka_unit_test(an_answer_survives_one_loss),
        cmocka_unit_test(an_answer_that_cannot_be_reread_fails),
        cmocka_unit_test(cancelled_while_it_is_read_again_it_keeps_its_text),
        cmocka_unit_test(no_page_for_a_step_costs_idle_sessions_theirs),
        cmocka_unit_test(stopping_while_the_device_is_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
