/* Iteration-level scheduling: who runs, and what goes into the next step.
 *
 * Each turn: end what was cancelled; admit in order of arrival while there is a place and the pool can promise the pages; one step with
 * the rows of all running answers and prefill_chunk rows of prompts, taken round robin. Results do not depend on any of it: a step gives
 * each sequence what it would get alone (design: numerics contract).
 *
 * Pages, when the pool cannot promise more: idle conversations give all of theirs up, those first that re-reading gives back exactly, then by last
 * use; then requests that wait or are being stored, the newest first; then running ones what lies behind c - 16. */
#include <errno.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/sampler.h"
#include "session/session_internal.h"

// ---- Pages -----------------------------------------------------------------------------------------------------------------------------

static bool is_running(const struct rn_run *run)
{
    return run->state == RN_RUN_PREFILL || run->state == RN_RUN_DECODE;
}

static bool reclaim(struct rn_service *s, const struct rn_run *for_run)
{
    struct rn_conversation *c = rn_conversations_victim(&s->all, s->params.reread_limit);
    if (c) {
        rn_conversation_drop_pages(c);
        return true;
    }
    struct rn_run *last = NULL;
    for (struct rn_run *run = s->runs; run; run = run->next) {
        last = run != for_run && !is_running(run) && run->conv && run->conv->seq ? run : last;
    }
    if (last) {
        rn_conversation_drop_pages(last->conv);
        return true;
    }
    for (struct rn_run *run = s->runs; run; run = run->next) {
        if (is_running(run)) {
            size_t before = rn_seq_bytes(run->conv->seq);
            rn_seq_trim(run->conv->seq);
            if (rn_seq_bytes(run->conv->seq) < before) {
                return true;
            }
        }
    }
    return false;
}

// Pages of the parent, shared. 0: got them, or they must be re-read; -ENOMEM.
static int share_pages(struct rn_service *s, struct rn_conversation *c)
{
    const struct rn_conversation *p = rn_conversations_find(&s->all, c->parent);
    const struct rn_timeline *a = &c->timeline;
    if (!p || !p->seq || p->origin != c->parent_origin || p->timeline.log.len < c->at ||
        memcmp(p->timeline.log.data, a->log.data, (size_t)c->at * sizeof *a->log.data) != 0) {
        c->share = false;
        return 0;
    }
    uint64_t head = rn_seq_head(p->seq);
    uint64_t at = c->at < head ? c->at : head;
    if (at == 0 || (at > p->origin) != (c->at > p->origin)) {
        c->share = false;
        return 0;
    }
    int r = rn_seq_fork(&c->seq, p->seq, at, NULL);
    if (r == -ENOMEM) {
        return r;
    }
    c->share = false;
    if (r == 0 && rn_seq_origin(c->seq) != c->origin) {
        rn_conversation_drop_pages(c);
    }
    return 0;
}

// Tells the sequence what a crash would need: the newest response on disk. While it is still being read again, nothing yet: h must not lie
// beyond c.
static void hold(struct rn_conversation *c)
{
    if (c->head > 0 && rn_seq_head(c->seq) >= c->head) {
        rn_seq_hold(c->seq, c->head - 1, rn_timeline_turn_of(&c->timeline, c->head - 1));
    } else {
        rn_seq_hold(c->seq, 0, RN_NOWHERE);
    }
}

// A sequence for the conversation: the one it has, its parent's pages, or an empty one that is re-read from the log.
static int make_seq(struct rn_service *s, struct rn_run *run, struct rn_err *err)
{
    struct rn_conversation *c = run->conv;
    while (c->share && !c->seq) {
        if (share_pages(s, c) == -ENOMEM && !reclaim(s, run)) {
            c->share = false;
        }
    }
    if (!c->seq) {
        if (!rn_conversation_rereads(c, s->params.reread_limit) && c->base > c->origin) {
            c->origin = c->base; // stored with END, together with the first thing that follows from it
            c->rebased = "reread";
        }
        struct rn_seq_params params = {.n = c->n, .sinks = c->sinks, .evict = c->evict, .origin = c->origin, .rope = c->rope, .stored = c->on_disk};
        int r = rn_seq_create(&c->seq, s->engine, &params, err);
        if (r < 0) {
            return r;
        }
    }
    hold(c);
    return 0;
}

// ---- Admission -------------------------------------------------------------------------------------------------------------------------

static int admit(struct rn_service *s, struct rn_run *run, struct rn_err *err)
{
    struct rn_conversation *c = run->conv;
    int r = make_seq(s, run, err);
    while (r == 0 && (r = rn_seq_reserve(c->seq, err)) == -EAGAIN && reclaim(s, run)) {
        r = 0;
    }
    if (r < 0) {
        return r;
    }
    uint64_t fed = rn_seq_head(c->seq), len = c->timeline.log.len;
    if (fed >= len && run->req->generate) { // nothing new to feed: the last token again, for its logits
        while ((r = rn_seq_rewind(c->seq, len - 1, err)) == -ENOMEM && reclaim(s, run)) {
        }
        if (r < 0) {
            rn_seq_unreserve(c->seq);
            rn_conversation_drop_pages(c);
            return r;
        }
        fed = len - 1;
    }
    run->state = RN_RUN_PREFILL;
    run->last_ns = rn_clock_ns();
    if (!run->again || !run->decoded) {
        run->fed = fed;
    }
    if (run->again) { // it has started before
        return 0;
    }
    run->seen_base = c->base;
    run->started_ns = run->last_ns;
    rn_service_emit(s, rn_run_event(run, RN_EVENT_STARTED));
    return 0;
}

static size_t count_running(const struct rn_service *s)
{
    size_t n = 0;
    for (const struct rn_run *run = s->runs; run; run = run->next) {
        n += is_running(run);
    }
    return n;
}

// true: something changed.
static bool admit_all(struct rn_service *s)
{
    size_t n = count_running(s);
    bool changed = false, blocked = false;
    for (struct rn_run *run = s->runs, *next; run; run = next) {
        next = run->next;
        if (run->state != RN_RUN_WAITING) {
            continue;
        }
        struct rn_err err = {0};
        if (s->loss.down) {
            rn_run_fail(s, run, 503, "device_lost", "the device is lost; it will be tried again");
            changed = true;
            continue;
        }
        int r = blocked || n >= s->params.max_concurrent ? -EAGAIN : admit(s, run, &err);
        if (r == 0) {
            n++;
            changed = true;
        } else if (r == -EAGAIN && (n > 0 || blocked)) {
            blocked = true; // in order: those behind wait too
            if (!run->told_waiting && !run->again) {
                run->told_waiting = true;
                rn_service_emit(s, rn_run_event(run, RN_EVENT_QUEUED));
            }
        } else {
            rn_run_fail(s, run, 503, "server_is_overloaded", err.text[0] ? err.text : "no memory for the session's pages");
            changed = true;
        }
    }
    return changed;
}

static bool end_cancelled(struct rn_service *s)
{
    bool changed = false;
    for (struct rn_run *run = s->runs, *next; run; run = next) {
        next = run->next;
        if (run->cancelled && (run->state == RN_RUN_WAITING || is_running(run))) {
            run->last_ns = rn_clock_ns();
            rn_run_end(s, run, RN_STATUS_INCOMPLETE, run->interrupted ? "interrupted" : "cancelled", NULL);
            changed = true;
        }
    }
    return changed;
}

// ---- A step ----------------------------------------------------------------------------------------------------------------------------

// The next rows of a run, at most max_rows.
static void add_entry(struct rn_service *s, uint32_t k, struct rn_run *run, uint64_t max_rows)
{
    struct rn_conversation *c = run->conv;
    uint64_t head = rn_seq_head(c->seq), len = c->timeline.log.len;
    uint64_t rows = len - head < max_rows ? len - head : max_rows;
    if (head < c->sinks && c->origin > c->sinks && rows > c->sinks - head) {
        rows = c->sinks - head; // behind the pinned tokens the index jumps to the origin
    }
    size_t n_turns;
    const uint64_t *turns = rn_timeline_turns(&c->timeline, head, head + rows, &n_turns);
    s->step[k] = run;
    s->entries[k] = (struct rn_step_entry){
        .seq = c->seq,
        .ids = c->timeline.log.data + head,
        .n_ids = (uint32_t)rows,
        .turn_starts = turns,
        .n_turn_starts = (uint32_t)n_turns,
        .n_logits = head + rows == len && run->req->generate,
        .logits = s->logits + (size_t)k * s->info->n_vocab,
    };
}

static uint32_t add_prompts(struct rn_service *s, uint32_t n)
{
    uint32_t rows = s->params.prefill_chunk;
    uint64_t last = s->turn;
    for (int pass = 0; pass < 2; pass++) { // those behind the last one first, then from the front
        for (struct rn_run *run = s->runs; run && rows > 0; run = run->next) {
            bool behind = run->number > last;
            if (run->state != RN_RUN_PREFILL || run->paused || behind != (pass == 0) ||
                rn_seq_head(run->conv->seq) >= run->conv->timeline.log.len) {
                continue;
            }
            add_entry(s, n, run, rows);
            rows -= s->entries[n].n_ids;
            n++;
            s->turn = run->number;
        }
    }
    return n;
}

static uint32_t compose(struct rn_service *s)
{
    uint32_t n = 0;
    for (struct rn_run *run = s->runs; run; run = run->next) {
        if (run->state == RN_RUN_DECODE && !run->paused) {
            add_entry(s, n++, run, UINT32_MAX);
        }
    }
    return add_prompts(s, n);
}

void rn_run_tell_evictions(struct rn_service *s, struct rn_run *run, uint64_t base, bool last)
{
    // By token the window moves with every row: an event for the first eviction and then one per 32 tokens is plenty.
    bool first = run->seen_base <= run->conv->origin;
    if (base <= run->seen_base || (!first && !last && base - run->seen_base < 32)) {
        return;
    }
    run->seen_base = base;
    struct rn_event *e = rn_run_event(run, RN_EVENT_EVICTED);
    if (e) {
        e->evicted = base - run->conv->sinks;
        e->kept_from = base;
        const struct rn_item *item = rn_timeline_item_at(&run->conv->timeline, base);
        if (item) {
            memcpy(e->kept_from_item, item->id, sizeof e->kept_from_item);
        }
    }
    rn_service_emit(s, e);
}

// The token that follows a run's last row: a function of the row's logits, of the tokens that the row sees and of this answer's tokens.
static int sample(struct rn_service *s, struct rn_run *run, float *logits, uint32_t *ret_id)
{
    const struct rn_conversation *c = run->conv;
    const struct rn_sampling *p = &run->req->sampling;
    const struct rn_ids *log = &c->timeline.log;
    struct rn_draw draw = {.t = log->len, .counts = &run->counts};
    int r = 0;
    if (rn_sampling_counts(p)) {
        r = rn_counts_update(&run->counts, log->data, c->sinks, rn_seq_base(c->seq, log->len - 1), log->len, run->prompt_end);
    }
    r = r < 0 ? r : rn_sample(&s->sampler, p, logits, s->info->n_vocab, &draw, ret_id);
    if (r == 0 && run->req->logprobs) {
        r = rn_logprobs_add(&run->logprobs, run->answer.ids.len, logits, s->info->n_vocab, *ret_id);
    }
    return r;
}

static void take_token(struct rn_service *s, struct rn_run *run, float *logits)
{
    struct rn_conversation *c = run->conv;
    uint32_t id = 0;
    enum rn_answer_result result = RN_ANSWER_GOES_ON;
    int r = sample(s, run, logits, &id);
    run->last_ns = rn_clock_ns();
    run->first_ns = run->first_ns ? run->first_ns : run->last_ns;
    r = r < 0 ? r : rn_ids_add(&c->timeline.log, id);
    r = r < 0 ? r : rn_answer_push(&run->answer, s->text, id, &result);
    if (r < 0) {
        rn_run_fail(s, run, 500, "internal_error", "out of memory");
        return;
    }
    switch (result) {
    case RN_ANSWER_GOES_ON:
        rn_run_emit_text(s, run, /*closed=*/false);
        break;
    case RN_ANSWER_EOS:
        rn_run_end(s, run, RN_STATUS_COMPLETED, "eos", NULL);
        break;
    case RN_ANSWER_STOP: // the history keeps what lies wholly before the stop string
        rn_timeline_cut(&c->timeline, run->prompt_end + run->answer.ids.len, c->timeline.n_items);
        rn_run_end(s, run, RN_STATUS_COMPLETED, "stop", run->answer.stopped);
        break;
    case RN_ANSWER_LENGTH:
        rn_run_end(s, run, RN_STATUS_INCOMPLETE, "length", NULL);
        break;
    }
}

// The prompt has gone through the model.
static void end_prefill(struct rn_run *run)
{
    struct rn_conversation *c = run->conv;
    uint64_t t = c->timeline.log.len - 1;
    bool decoded = run->again && run->decoded;
    run->again = false;
    run->state = RN_RUN_DECODE;
    if (decoded) {
        return;
    }
    run->visible = rn_record_visible(c, rn_seq_base(c->seq, t), t, run->fed, &run->cached);
}

static void after_rows(struct rn_service *s, struct rn_run *run, const struct rn_step_entry *entry)
{
    struct rn_conversation *c = run->conv;
    uint64_t head = rn_seq_head(c->seq);
    if (run->state == RN_RUN_PREFILL) {
        hold(c);
    }
    rn_seq_accept(c->seq, head);
    rn_run_tell_evictions(s, run, rn_seq_base(c->seq, head - 1), /*last=*/false);
    run->computed += run->state == RN_RUN_PREFILL ? entry->n_ids : 0;
    run->last_ns = rn_clock_ns();
    if (head < c->timeline.log.len) {
        return;
    }
    bool was_prompt = run->state == RN_RUN_PREFILL;
    if (was_prompt) {
        end_prefill(run);
    }
    if (!run->req->generate) {
        rn_run_end(s, run, RN_STATUS_COMPLETED, "stop", "generate: false");
    } else if (was_prompt && run->req->max_output_tokens == 0) {
        rn_run_end(s, run, RN_STATUS_INCOMPLETE, "length", NULL);
    } else {
        take_token(s, run, entry->logits);
    }
}

// Prompts that are in the cache whole and want no answer.
static bool end_ready(struct rn_service *s)
{
    bool changed = false;
    for (struct rn_run *run = s->runs, *next; run; run = next) {
        next = run->next;
        if (run->state == RN_RUN_PREFILL && !run->req->generate && rn_seq_head(run->conv->seq) >= run->conv->timeline.log.len) {
            end_prefill(run);
            rn_run_end(s, run, RN_STATUS_COMPLETED, "stop", "generate: false");
            changed = true;
        }
    }
    return changed;
}

bool rn_scheduler_turn(struct rn_service *s)
{
    bool changed = end_cancelled(s);
    changed |= admit_all(s);
    changed |= end_ready(s);
    uint32_t n = compose(s);
    if (n == 0) {
        return changed;
    }
    struct rn_err err = {0};
    int r;
    while ((r = rn_engine_step(s->engine, s->entries, n, &err)) == -ENOMEM && reclaim(s, /*for_run=*/NULL)) {
    } // the device has less memory than it said
    if (r == -EIO) {
        rn_loss_happened(s, &err);
        return true;
    }
    for (uint32_t k = 0; k < n; k++) {
        if (r < 0) {
            s->step[k]->last_ns = rn_clock_ns();
            bool full = r == -ENOMEM;
            rn_run_fail(s, s->step[k], full ? 503 : 500, full ? "server_is_overloaded" : "internal_error", err.text[0] ? err.text : "the step failed");
        } else {
            after_rows(s, s->step[k], &s->entries[k]);
        }
    }
    return true;
}
