/* The engine: runs steps on a loaded model. See engine.h; engine_load.c brings it up.
 *
 * A step of any size is run in passes of at most RN_MAX_ROWS rows. A row's result does not depend on its neighbours, so the cut is free.
 * All memory of a pass is planned at load. */
#include "runtime/engine_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu.h"
#include "runtime/rope.h"

struct rn_kv_pool *rn_engine_pool(struct rn_engine *e)
{
    return &e->pool;
}

const struct rn_program *rn_engine_program(const struct rn_engine *e)
{
    return e->program;
}

float rn_engine_rope_base(const struct rn_engine *e)
{
    return e->rope_base;
}

const struct rn_engine_info *rn_engine_info(const struct rn_engine *e)
{
    return &e->info;
}

const struct rn_text *rn_engine_text(const struct rn_engine *e)
{
    return e->text;
}

void rn_engine_measure(const struct rn_engine *e, double *ret_read_gb_per_s, double *ret_int8_tops)
{
    rn_cpu_measure(e->info.n_threads, 300, ret_read_gb_per_s, ret_int8_tops);
}

void rn_engine_profile(struct rn_engine *e, bool on)
{
    if (e->backend) {
        e->ops->profile(e->backend, on);
    }
}

size_t rn_engine_costs(const struct rn_engine *e, struct rn_engine_cost ret[RN_ENGINE_COSTS])
{
    _Static_assert(RN_OP_COUNT <= RN_ENGINE_COSTS, "every kind fits");
    const struct rn_op_cost *costs = e->backend ? e->ops->costs(e->backend) : NULL;
    size_t n = 0;
    for (int kind = 0; costs && kind < RN_OP_COUNT; kind++) {
        if (costs[kind].ns > 0) {
            ret[n++] = (struct rn_engine_cost){rn_op_kind_name((enum rn_op_kind)kind), costs[kind].ns / 1e6, costs[kind].bytes, costs[kind].macs};
        }
    }
    return n;
}

bool rn_engine_host_cost(const struct rn_engine *e, struct rn_engine_host_cost *ret)
{
    if (!e->backend || !e->ops->host_cost) {
        return false;
    }
    struct rn_host_cost cost = e->ops->host_cost(e->backend);
    *ret = (struct rn_engine_host_cost){.steps = cost.steps, .calls = cost.calls, .dispatches = cost.dispatches, .ns = cost.ns};
    return true;
}

/* ---- steps --------------------------------------------------------------------------------------------------------------------------- */

static int run_pass(struct rn_engine *e, struct rn_err *err)
{
    if (e->n_rows == 0) {
        return 0;
    }
    struct rn_step step = {.n_rows = e->n_rows, .rows = e->rows, .n_views = e->n_views, .views = e->views, .angles = e->angles,
                           .angle_stride = e->angle_stride};
    e->n_rows = 0;
    e->n_views = 0;
    int r = e->ops->step(e->backend, &step, err);
    e->down = e->down || r == -EIO;
    return r;
}

/* Angles of a row: zone 0 (pinned) at its slot, zone 1 (window) at its index. */
static void fill_angles(struct rn_engine *e, uint32_t row, const struct rn_seq *s, uint64_t t, uint64_t base)
{
    uint64_t slot = t < s->s ? t : t - (base - s->s);
    const struct rn_rope *ropes = s->ropes ? s->ropes : e->program->ropes;
    for (uint32_t i = 0; i < e->program->n_ropes; i++) {
        float *out = e->angles + ((size_t)row * e->program->n_ropes + i) * 2 * e->angle_stride;
        rn_rope_angles(&ropes[i], slot, out);
        rn_rope_angles(&ropes[i], t, out + e->angle_stride);
    }
}

static uint32_t add_view(struct rn_engine *e, const struct rn_seq *s)
{
    uint32_t v = e->n_views++;
    rn_seq_view(s, e->pages + (size_t)v * e->program->n_groups, &e->views[v]);
    return v;
}

/* Feeds one entry's tokens into passes. */
static int push_entry(struct rn_engine *e, const struct rn_step_entry *entry, struct rn_err *err)
{
    uint32_t next_turn = 0, view = 0;
    for (uint32_t i = 0; i < entry->n_ids; i++) {
        if (e->n_rows == RN_MAX_ROWS || (i > 0 && rn_seq_at_gap(entry->seq))) { // the rows behind a gap need a view of their own
            int r = run_pass(e, err);
            if (r < 0) {
                return r;
            }
        }
        if (i == 0 || e->n_rows == 0) {
            view = add_view(e, entry->seq);
        }
        uint64_t t = entry->seq->head, base;
        while (next_turn < entry->n_turn_starts && entry->turn_starts[next_turn] < t) {
            next_turn++;
        }
        bool turn = next_turn < entry->n_turn_starts && entry->turn_starts[next_turn] == t;
        int r = rn_seq_push(entry->seq, turn, &base, err);
        if (r < 0) {
            return r;
        }
        uint32_t from_end = entry->n_ids - i;
        float *logits = from_end <= entry->n_logits ? entry->logits + (size_t)(entry->n_logits - from_end) * e->info.n_vocab : NULL;
        fill_angles(e, e->n_rows, entry->seq, t, base);
        e->rows[e->n_rows++] = (struct rn_step_row){.id = entry->ids[i], .view = view, .t = t, .base = base, .logits = logits};
    }
    return 0;
}

static int check_entries(const struct rn_engine *e, const struct rn_step_entry *entries, uint32_t n, struct rn_err *err)
{
    if (n > RN_MAX_ROWS) {
        return rn_err_set(err, -E2BIG, "a step of %u sequences, at most %d fit", n, RN_MAX_ROWS);
    }
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i < k; i++) {
            if (entries[i].seq == entries[k].seq) {
                return rn_err_set(err, -EINVAL, "entries %u and %u of a step are of the same sequence", i, k);
            }
        }
        for (uint32_t i = 0; i < entries[k].n_ids; i++) {
            if (entries[k].ids[i] >= e->info.n_vocab) {
                return rn_err_set(err, -EINVAL, "token id %u at position %u, the vocabulary has %u", entries[k].ids[i], i, e->info.n_vocab);
            }
        }
        if (entries[k].n_ids == 0 || entries[k].n_logits > entries[k].n_ids) {
            return rn_err_set(err, -EINVAL, "a step of %u tokens with logits for %u", entries[k].n_ids, entries[k].n_logits);
        }
    }
    return 0;
}

int rn_engine_step(struct rn_engine *e, struct rn_step_entry *entries, uint32_t n_entries, struct rn_err *err)
{
    int r = e->down ? rn_err_set(err, -EIO, "the device is lost") : check_entries(e, entries, n_entries, err);
    for (uint32_t k = 0; k < n_entries && r == 0; k++) {
        r = rn_seq_make_room(entries[k].seq, entries[k].n_ids, err);
    }
    uint64_t moved = 0; // entries whose head may have moved, for the way back
    uint64_t heads[RN_MAX_ROWS];
    for (uint32_t k = 0; k < n_entries && r == 0; k++) {
        heads[moved++] = entries[k].seq->head;
        r = push_entry(e, &entries[k], err);
    }
    r = r < 0 ? r : run_pass(e, err);
    if (r < 0) {
        e->n_rows = 0;
        e->n_views = 0;
        while (moved-- > 0) {
            rn_seq_unpush(entries[moved].seq, heads[moved]);
        }
    }
    return r;
}

int rn_engine_probe(struct rn_engine *e, struct rn_err *err)
{
    struct rn_seq_params params = {.n = 16, .sinks = 0, .evict = RN_EVICT_TOKEN};
    struct rn_seq *seq = NULL;
    uint32_t id = 0, n_vocab = e->info.n_vocab;
    float *logits = rn_mem_alloc(n_vocab, sizeof *logits);
    int r = logits ? rn_seq_create(&seq, e, &params, err) : rn_err_nomem(err, n_vocab * sizeof *logits, "logits");
    if (r == 0) {
        struct rn_step_entry entry = {.seq = seq, .ids = &id, .n_ids = 1, .n_logits = 1, .logits = logits};
        r = rn_engine_step(e, &entry, 1, err);
    }
    for (uint32_t i = 0; r == 0 && i < n_vocab; i++) {
        if (!isfinite(logits[i])) {
            r = rn_err_set(err, -EIO, "a decode gave a number that is not finite");
        }
    }
    rn_seq_destroy(seq);
    rn_mem_free(logits);
    return r;
}
