/* A lost device: what runs is read again from its own log once the device is back, and goes on with the same tokens.
 *
 *   serving --loss--> rebuild at once --worked--> serving          clients see a pause
 *      |                   | failed
 *      |                   v
 *      +--second loss--> down --after 1, 2, 4 … 30 minutes: rebuild--> serving     meanwhile: /ready no, requests 503 device_lost
 *         within a minute  ^________________| failed
 *
 * L1. While the engine is being rebuilt no sequence is alive: pages are gone with the device, and re-reading gives them back exactly.
 * L2. An answer goes on only if re-reading its session is exact (no rebase), and only after its first loss; else it fails, typed.
 * Thread: engine. A rebuild blocks it, as nothing could run meanwhile. */
#include <stdio.h>

#include "runtime/base/clock.h"
#include "session/session_internal.h"

#define MINUTE_MS 60000u
#define MOST_MINUTES 30u // between two attempts: a device that comes back after hours is found soon enough

static uint64_t minutes_ns(const struct rn_service *s, uint32_t n)
{
    uint64_t ms = s->params.loss_minute_ms ? s->params.loss_minute_ms : MINUTE_MS;
    return n * ms * 1000000u;
}

static void tell(const struct rn_service *s, bool ready, const char *text)
{
    if (s->params.on_device) {
        s->params.on_device(s->params.user, ready, text);
    }
}

// L1. Running answers go back to waiting; what they have said stays said.
static void drop_everything(struct rn_service *s)
{
    for (struct rn_run *run = s->runs; run; run = run->next) {
        if (run->state == RN_RUN_PREFILL || run->state == RN_RUN_DECODE) {
            run->again_base = run->again ? run->again_base : rn_run_last_base(run);
            run->decoded = run->decoded || run->state == RN_RUN_DECODE;
            run->again = true;
            run->losses++;
            rn_run_warn(run, "the device was lost while this was being answered");
            rn_seq_unreserve(run->conv->seq);
            run->state = RN_RUN_WAITING;
        }
    }
    for (size_t i = 0; i < s->all.n; i++) {
        rn_conversation_drop_pages(s->all.list[i]);
        s->all.list[i]->share = false;
    }
}

static void fail_those_that_cannot_go_on(struct rn_service *s)
{
    for (struct rn_run *run = s->runs, *next; run; run = next) {
        next = run->next;
        if (run->state == RN_RUN_WAITING && run->again && (run->losses > 1 || !rn_conversation_rereads(run->conv, s->params.reread_limit))) {
            rn_run_fail(s, run, 503, "device_lost", "the device was lost and the answer cannot be taken up again");
        }
    }
}

// One attempt. Ready means that a real decode worked.
static int rebuild(struct rn_service *s, struct rn_err *err)
{
    int r = rn_engine_rebuild(s->engine, err);
    return r < 0 ? r : rn_engine_probe(s->engine, err);
}

static void came_back(struct rn_service *s)
{
    s->loss.down = false;
    s->loss.since_ns = rn_clock_ns();
    s->loss.known = true;
    atomic_store(&s->ready, true);
    tell(s, true, "the device is back");
}

static void stay_down(struct rn_service *s, const char *why)
{
    char text[RN_ERR_TEXT + 64];
    s->loss.down = true;
    s->loss.wait = s->loss.wait == 0 ? 1 : s->loss.wait > MOST_MINUTES / 2 ? MOST_MINUTES : 2 * s->loss.wait;
    s->loss.retry_ns = rn_clock_ns() + minutes_ns(s, s->loss.wait);
    snprintf(text, sizeof text, "the device stays down for %u minute%s: %s", s->loss.wait, s->loss.wait == 1 ? "" : "s", why);
    tell(s, false, text);
}

void rn_loss_happened(struct rn_service *s, const struct rn_err *err)
{
    bool again = s->loss.known && rn_clock_ns() - s->loss.since_ns < minutes_ns(s, 1);
    struct rn_err why = *err;
    atomic_store(&s->ready, false);
    tell(s, false, err->text[0] ? err->text : "the device is lost");
    drop_everything(s);
    fail_those_that_cannot_go_on(s);
    if (!again) {
        s->loss.wait = 0;
        if (rebuild(s, &why) == 0) {
            came_back(s);
            return;
        }
    }
    stay_down(s, why.text);
}

uint64_t rn_loss_deadline(const struct rn_service *s)
{
    return s->loss.down ? s->loss.retry_ns : 0;
}

void rn_loss_retry(struct rn_service *s)
{
    struct rn_err err = {0};
    if (!s->loss.down || rn_clock_ns() < s->loss.retry_ns) {
        return;
    }
    if (rebuild(s, &err) == 0) {
        came_back(s);
    } else {
        stay_down(s, err.text);
    }
}
