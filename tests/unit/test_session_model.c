/* The session layer on the real engine and a real model (RUNNEL_TEST_MODEL): results depend on nothing but the conversation. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/session_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

static struct rn_engine *engine;

static void open_kit(struct kit *k)
{
    kit_init(k, engine);
    k->params.window = 256;
}

static void prompt_has_the_ids_of_the_template(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    kit_start(&k, NULL);
    struct kit_reply *r = kit_ask(&k, "Hello, who are you?", NULL);
    assert_int_equal(r->last->kind, RN_EVENT_DONE);
    assert_string_equal(r->text, r->last->text);
    assert_true(r->last->n_ids > 0);
    if (strstr(rn_engine_info(engine)->model_id, "smollm2")) { // as chat.json's case "user" has it
        assert_int_equal(r->last->input_tokens, 36);
        assert_int_equal(kit_number(r, "context.pinned"), 21);
    }
    kit_finish(&k);
}

static void eight_at_once_answer_as_alone(void **state)
{
    (void)state;
    static const char *questions[8] = {
        "What is a cat?",       "Count to twenty.", "Write a haiku about rain.", "Name three rivers.",
        "Why is the sky blue?", "Tell me a story.", "What is 12 times 12?",      "Translate 'bread' to French."};
    char alone[8][2048];
    for (int together = 0; together < 2; together++) {
        struct kit k;
        open_kit(&k);
        k.params.prefill_chunk = together ? 24 : 0;
        kit_start(&k, NULL);
        struct kit_reply *r[8];
        for (int i = 0; i < 8; i++) {
            struct rn_request *req = kit_request(questions[i], NULL);
            req->sampling.temperature = 0.8f;
            req->sampling.seed = (uint64_t)i;
            r[i] = kit_send(&k, req);
            if (!together) {
                snprintf(alone[i], sizeof alone[i], "%.2000s", kit_wait(&k, r[i])->text);
            }
        }
        for (int i = 0; i < 8; i++) {
            assert_string_equal(kit_wait(&k, r[i])->text, alone[i]);
        }
        kit_finish(&k);
    }
}

/* A conversation of n turns; restarts before each turn when there is a directory. text[i]: the answers. */
static void converse(const char *dir, bool restarts, int n, char text[][2048], int64_t *ret_evicted)
{
    struct kit k;
    char id[RN_ID_BYTES] = "";
    open_kit(&k);
    k.params.reread_limit = 4096;
    kit_start(&k, dir);
    for (int i = 0; i < n; i++) {
        char question[64];
        snprintf(question, sizeof question, "Tell me fact number %d about the sea.", i);
        struct kit_reply *r = kit_ask(&k, question, id[0] ? id : NULL);
        assert_int_equal(r->last->kind, RN_EVENT_DONE);
        assert_null(kit_string(r, "rebased.cause"));
        snprintf(text[i], 2048, "%.2000s", r->text);
        strcpy(id, r->response);
        *ret_evicted = kit_number(r, "context.evicted");
        if (restarts) {
            kit_stop(&k);
            kit_start(&k, dir);
        }
    }
    kit_finish(&k);
}

static void a_restart_changes_no_answer(void **state)
{
    (void)state;
    static char a[9][2048], b[9][2048];
    char dir[64];
    int64_t evicted = 0;
    converse(NULL, false, 9, a, &evicted);
    assert_true(evicted > 0);
    kit_temp_dir(dir);
    converse(dir, true, 9, b, &evicted);
    kit_remove_dir(dir);
    for (int i = 0; i < 9; i++) {
        assert_string_equal(a[i], b[i]);
    }
}

static void forks_answer_as_a_conversation_of_their_own(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    kit_start(&k, NULL);
    struct kit_reply *a = kit_ask(&k, "My name is Ada.", NULL);
    struct kit_reply *b = kit_ask(&k, "What is my name?", a->response);
    struct kit_reply *c = kit_ask(&k, "Do you like tea?", b->response);
    struct kit_reply *f = kit_ask(&k, "What is my name?", a->response); // the same question once more, on a fork
    assert_string_not_equal(f->session, a->session);
    assert_string_equal(f->text, b->text);
    struct kit_reply *g = kit_ask(&k, "Do you like tea?", f->response);
    assert_string_equal(g->text, c->text);
    kit_finish(&k);
}

static void an_early_cancel_changes_nothing(void **state)
{
    (void)state;
    struct kit k;
    open_kit(&k);
    k.params.prefill_chunk = 4;
    kit_start(&k, NULL);
    struct kit_reply *a = kit_ask(&k, "My name is Ada.", NULL);
    struct rn_request *req = kit_request("Aside: what is my name?", a->response);
    req->store = false;
    struct kit_reply *u = kit_wait(&k, kit_send(&k, req));
    struct kit_reply *b = kit_send(&k, kit_request("A question that nobody waits for, and that takes a few steps to read.", a->response));
    kit_wait_for(&k, b, 'S');
    rn_service_cancel(k.service, kit_ticket(&k, b));
    kit_wait(&k, b);
    assert_string_equal(b->last->cause, "cancelled");
    struct kit_reply *c = kit_ask(&k, "Aside: what is my name?", b->last->n_ids ? a->response : b->response);
    assert_string_equal(c->text, u->text);
    kit_finish(&k);
}

int main(void)
{
    const char *model = getenv("RUNNEL_TEST_MODEL");
    if (!model) {
        printf("skipped: RUNNEL_TEST_MODEL is not set\n");
        return 77;
    }
    struct rn_err err = {0};
    if (rn_engine_create(&engine, &(struct rn_engine_params){.model = model}, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_has_the_ids_of_the_template), cmocka_unit_test(eight_at_once_answer_as_alone),
        cmocka_unit_test(a_restart_changes_no_answer),        cmocka_unit_test(forks_answer_as_a_conversation_of_their_own),
        cmocka_unit_test(an_early_cancel_changes_nothing),
    };
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    rn_engine_destroy(engine);
    return r;
}
