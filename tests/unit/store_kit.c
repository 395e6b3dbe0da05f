#define _XOPEN_SOURCE 700 // nftw
#include "tests/unit/store_kit.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/base/queue.h"

int kit_setup(void **state)
{
    const char *base = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/runnel-store-XXXXXX", base && base[0] ? base : "/tmp");
    if (!mkdtemp(path)) {
        return -1;
    }
    *state = strdup(path);
    return *state ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

int kit_teardown(void **state)
{
    int r = nftw(*state, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return r;
}

const char *kit_path(const char *dir, const char *name)
{
    static char paths[2][1024];
    static int turn;
    turn ^= 1;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", dir, name);
    return paths[turn];
}

void kit_copy(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb");
    if (!in) {
        return;
    }
    FILE *out = fopen(to, "wb");
    assert_non_null(out);
    char buf[65536];
    for (size_t n; (n = fread(buf, 1, sizeof buf, in)) > 0;) {
        assert_int_equal(fwrite(buf, 1, n, out), n);
    }
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

struct rn_store *kit_open(const char *dir)
{
    struct rn_store *s = NULL;
    struct rn_err err = {0};
    if (rn_store_open(&s, dir, &err)) {
        fail_msg("%s", err.text);
    }
    return s;
}

static void push_back(void *user, struct rn_store_job *job)
{
    assert_int_equal(rn_queue_push(user, job), 0);
}

int kit_run(struct rn_store *s, struct rn_store_job *job)
{
    static struct rn_queue *q; // for the life of the program: the store thread may still be leaving its push when the pop returns
    assert_non_null(job);
    if (!q) {
        assert_int_equal(rn_queue_create(&q, 1, NULL, NULL, NULL), 0);
    }
    job->done = push_back;
    job->user = q;
    assert_int_equal(rn_store_submit(s, job), 0);
    assert_ptr_equal(rn_queue_pop_wait(q, rn_clock_ns() + 60000000000u), job);
    return job->rc;
}

int kit_do(struct rn_store *s, struct rn_store_job *job)
{
    int r = kit_run(s, job);
    if (r) {
        print_message("%s\n", job->err.text);
    }
    rn_store_job_destroy(job);
    return r;
}

uint32_t kit_id(uint64_t i)
{
    return (uint32_t)((i * 2654435761u) >> 3);
}

static void set_ids(struct rn_store_job *job, uint64_t from, size_t n)
{
    job->from = from;
    job->n_ids = n;
    job->ids = rn_mem_alloc(n, sizeof *job->ids);
    assert_non_null(job->ids);
    for (size_t i = 0; i < n; i++) {
        job->ids[i] = kit_id(from + i);
    }
}

static void set_item(struct rn_store_job *job, const char *id, const char *role, bool turn_start, uint64_t first, uint64_t end)
{
    job->n_items = 1;
    job->items = rn_mem_alloc(1, sizeof *job->items);
    assert_non_null(job->items);
    struct rn_store_item *item = job->items;
    snprintf(item->id, sizeof item->id, "%s", id);
    snprintf(item->role, sizeof item->role, "%s", role);
    item->turn_start = turn_start;
    item->open = strcmp(role, "assistant") == 0;
    item->first = first;
    item->end = end;
    item->item = json_pack("{s:s, s:s, s:s, s:[{s:s, s:s}]}", "id", id, "type", "message", "role", role, "content", "type", "text", "text",
                           "gr\xc3\xbc\xc3\x9f dich");
    assert_non_null(item->item);
}

struct rn_store_job *kit_begin(const char *session, uint32_t turn, bool create)
{
    struct rn_store_job *job = rn_store_job_create(RN_STORE_BEGIN);
    uint64_t from = (uint64_t)turn * KIT_TURN_IDS;
    char id[RN_ID_BYTES];
    job->create = create;
    snprintf(job->session.id, sizeof job->session.id, "%s", session);
    job->session.created_at = 1000;
    job->session.last_used = 1000 + turn;
    job->session.n = 512;
    job->session.sinks = 4;
    job->session.origin = 4;
    job->session.lead = 3;
    job->session.evict = RN_EVICT_TOKEN;
    job->session.rope = (struct rn_rope_scaling){RN_ROPE_YARN, 1.1f};
    job->session.tokenizer_fingerprint = 0xfedcba9876543210u;
    job->session.model_id = rn_mem_strdup("a-model");
    job->session.instructions = rn_mem_strdup("Be brief.");
    job->session.title = rn_mem_strdup("A first question");
    snprintf(job->response.id, sizeof job->response.id, "resp_%s_%u", session, turn);
    if (turn) {
        snprintf(job->response.parent_id, sizeof job->response.parent_id, "resp_%s_%u", session, turn - 1);
    }
    job->response.created_at = 2000 + turn;
    job->response.seed = (1ull << 53) - 1 - turn;
    job->response.generate = true;
    job->response.echo = json_pack("{s:i}", "turn", (int)turn);
    job->response.sampling = json_pack("{s:f}", "temperature", 0.5);
    snprintf(id, sizeof id, "msg_q_%u", turn);
    set_ids(job, from, KIT_INPUT_IDS);
    set_item(job, id, "user", true, from, from + KIT_INPUT_IDS - 3);
    return job;
}

struct rn_store_job *kit_end(const char *session, uint32_t turn)
{
    struct rn_store_job *job = rn_store_job_create(RN_STORE_END);
    uint64_t from = (uint64_t)turn * KIT_TURN_IDS + KIT_INPUT_IDS;
    char id[RN_ID_BYTES];
    snprintf(job->session.id, sizeof job->session.id, "%s", session);
    job->session.last_used = 1000 + turn;
    job->session.origin = 4;
    job->session.evicted = turn;
    snprintf(job->response.id, sizeof job->response.id, "resp_%s_%u", session, turn);
    job->response.status = RN_STORE_COMPLETED;
    snprintf(job->response.cause, sizeof job->response.cause, "eos");
    job->response.completed_at = 3000 + turn;
    job->response.usage = json_pack("{s:i}", "output_tokens", (int)KIT_OUTPUT_IDS);
    job->response.record = json_pack("{s:s}", "device", "cpu");
    snprintf(id, sizeof id, "msg_a_%u", turn);
    set_ids(job, from, KIT_OUTPUT_IDS);
    set_item(job, id, "assistant", false, from - 3, from + KIT_OUTPUT_IDS);
    return job;
}

void kit_turn(struct rn_store *s, const char *session, uint32_t turn)
{
    assert_int_equal(kit_do(s, kit_begin(session, turn, turn == 0)), 0);
    assert_int_equal(kit_do(s, kit_end(session, turn)), 0);
}

struct rn_store_job *kit_load(struct rn_store *s, const char *session)
{
    struct rn_store_job *job = rn_store_job_create(RN_STORE_LOAD);
    snprintf(job->session.id, sizeof job->session.id, "%s", session);
    if (kit_run(s, job)) {
        fail_msg("%s", job->err.text);
    }
    return job;
}

void kit_assert_turns(const struct rn_store_job *loaded, uint32_t n_turns)
{
    assert_int_equal(loaded->session.head, (uint64_t)n_turns * KIT_TURN_IDS);
    assert_int_equal(loaded->n_ids, loaded->session.head);
    assert_int_equal(loaded->n_items, 2 * n_turns);
    for (size_t i = 0; i < loaded->n_ids; i++) {
        if (loaded->ids[i] != kit_id(i)) {
            fail_msg("id %zu is %u, expected %u", i, loaded->ids[i], kit_id(i));
        }
    }
    for (uint32_t i = 0; i < n_turns; i++) {
        assert_int_equal(loaded->items[2 * i].first, (uint64_t)i * KIT_TURN_IDS);
        assert_true(loaded->items[2 * i].turn_start);
        assert_false(loaded->items[2 * i].open);
        assert_true(loaded->items[2 * i + 1].open);
        assert_string_equal(loaded->items[2 * i].role, "user");
        assert_int_equal(loaded->items[2 * i + 1].end, (uint64_t)(i + 1) * KIT_TURN_IDS);
        assert_string_equal(loaded->items[2 * i + 1].role, "assistant");
    }
}
