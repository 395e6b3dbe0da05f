/* Random conversations: many of them at once, forks from anywhere, asides, cancels, restarts, a pool that is too small. Whatever happens,
 * each answer is what the conversation alone would have given. */
#define _POSIX_C_SOURCE 200809L
#include "tests/unit/session_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/mem.h"

#define PLACES 256
#define AT_ONCE 6

/* A response and the whole template text up to its end. */
struct place {
    char id[RN_ID_BYTES];
    char *text; /* NULL = not known: cancelled while it spoke */
    bool stored;
    uint64_t life; /* unstored ones end with their service */
};

static uint64_t seed_now;

static uint64_t draw(uint64_t n)
{
    seed_now ^= seed_now << 13;
    seed_now ^= seed_now >> 7;
    seed_now ^= seed_now << 17;
    return seed_now % n;
}

static void run(uint64_t seed, bool on_disk)
{
    struct kit k;
    char dir[64];
    static struct place places[PLACES];
    size_t n_places = 0;
    uint64_t life = 1;
    seed_now = seed * 0x9E3779B97F4A7C15ull + 1;
    kit_temp_dir(dir);
    kit_open(&k);
    k.params.window = 96;
    k.params.evict = draw(2) ? RN_EVICT_TURN : RN_EVICT_TOKEN;
    k.params.reread_limit = 100000;
    k.params.max_concurrent = 1 + (uint32_t)draw(6);
    k.params.prefill_chunk = 1 + (uint32_t)draw(40);
    k.fake->pool = draw(2) ? 500 + draw(2000) : 0;
    kit_start(&k, on_disk ? dir : NULL);
    struct rn_seq_params p = {.n = 96, .sinks = 18, .evict = k.params.evict};
    for (int round = 0; round < 12; round++) {
        struct kit_reply *replies[AT_ONCE];
        char *prompts[AT_ONCE];
        bool stored[AT_ONCE], cancelled[AT_ONCE];
        size_t n = 1 + draw(AT_ONCE);
        for (size_t i = 0; i < n; i++) {
            struct place *from = n_places && draw(4) ? &places[n_places - 1 - draw(n_places < 12 ? n_places : 12)] : NULL;
            if (from && (!from->text || (!from->stored && from->life != life))) {
                from = NULL;
            }
            char question[64];
            snprintf(question, sizeof question, "%.*s%d", (int)draw(20), "aaaaaaaaaaaaaaaaaaaaaaaaa", (int)draw(100));
            struct rn_request *req = kit_request(question, from ? from->id : NULL);
            stored[i] = req->store = from && !from->stored ? false : draw(4) != 0;
            req->max_output_tokens = 1 + draw(40);
            req->lane = req->store ? 1 : 100 + draw(3); // forks across lanes too
            prompts[i] = calloc(1, 1 << 15);
            snprintf(prompts[i], 1 << 15, "%s" USER("%s") ASK, from ? from->text : LEAD, question);
            cancelled[i] = draw(8) == 0;
            uint64_t limit = req->max_output_tokens;
            replies[i] = kit_send(&k, req);
            if (cancelled[i]) {
                rn_service_cancel(k.service, kit_ticket(&k, replies[i]));
            }
            prompts[i][(1 << 15) - 1] = (char)limit;
        }
        for (size_t i = 0; i < n; i++) {
            struct kit_reply *r = kit_wait(&k, replies[i]);
            size_t limit = (size_t)prompts[i][(1 << 15) - 1];
            // A lane keeps only a few unstored conversations: an older one may be gone.
            if (r->last->kind == RN_EVENT_ERROR) {
                assert_false(stored[i]);
                assert_string_equal(r->last->code, "previous_response_not_found");
                free(prompts[i]);
                continue;
            }
            const char *expected = kit_expect_n(&k, &p, limit, "%s", prompts[i]);
            if (strcmp(r->last->cause, "cancelled") == 0) {
                assert_true(cancelled[i]);
                assert_int_equal(strncmp(expected, r->last->text, strlen(r->last->text)), 0);
            } else if (strcmp(expected, r->last->text) != 0) {
                fail_msg("seed %d, round %d: '%s', expected '%s'; %s %s", (int)seed, round, r->last->text, expected, r->order,
                         r->last->message ? r->last->message : "");
            }
            assert_null(kit_string(r, "rebased.cause"));
            struct place *place = &places[n_places++];
            *place = (struct place){.text = prompts[i], .stored = stored[i], .life = life};
            strcpy(place->id, r->response);
            if (strcmp(r->last->cause, "cancelled") == 0 && r->last->n_ids == 0) {
                free(place->text); // before or right after its prefill: either is right
                place->text = NULL;
            } else {
                strcat(place->text, r->last->text);
                strcat(place->text, "<|im_end|>\n");
            }
        }
        if (on_disk && draw(4) == 0) {
            kit_stop(&k);
            kit_start(&k, dir);
            life++;
        }
    }
    kit_close(&k);
    kit_remove_dir(dir);
    while (n_places > 0) {
        free(places[--n_places].text);
    }
}

static void whatever_happens_answers_are_the_same(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        run(seed, seed % 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whatever_happens_answers_are_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
