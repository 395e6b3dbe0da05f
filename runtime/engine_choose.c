/* Which device runs the model, with "auto" by trying: what cannot be used is left out, and where the CPU is faster it is taken. Nothing is
 * replaced that the user named, and whatever "auto" decides is told. */
#include "runtime/engine_internal.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu.h"
#include "runtime/split.h"

#define WARM_STEPS 3
#define TIMED_STEPS 5   /* the fastest counts: others may use the device too */
#define MEASURE_MS 100  /* for the CPU's read bandwidth */
#define CPU_SHARE 0.85  /* of it that decode reaches (README, "Measured") */

static bool layers_are_asked_for(const struct rn_engine *e)
{
    return e->params.gpu_layers && strcmp(e->params.gpu_layers, "auto") != 0;
}

static void tell(const struct rn_engine *e, const char *line)
{
    if (e->params.tell && line[0]) {
        e->params.tell(e->params.user, line);
    }
}

/* What goes where, said before anything is allocated. */
static int plan_layers(struct rn_engine *e, uint32_t n_ctx_train, struct rn_err *err)
{
    e->n_first = 0;
    if (!e->device.is_gpu) {
        return !layers_are_asked_for(e) ? 0
                                        : rn_err_set(err, -EINVAL, "gpu layers are %s, but the device is the CPU%s%s", e->params.gpu_layers,
                                                     e->device.note[0] ? ": " : "", e->device.note);
    }
    struct rn_split_plan plan;
    int r = rn_split_plan_make(&plan, e->program, e->params.gpu_layers, e->kv, n_ctx_train, e->device.budget, err);
    if (r < 0) {
        return r;
    }
    e->n_first = plan.sides[0].n_layers;
    for (int side = 0; side < 2; side++) {
        char line[320];
        rn_split_plan_say(&plan, side, e->device.name, line, sizeof line);
        tell(e, line);
    }
    return 0;
}

int rn_engine_choose(struct rn_engine *e, uint32_t n_ctx_train, struct rn_err *err)
{
    char first_why[RN_ERR_TEXT] = "";
    for (uint64_t skip = 0;;) { // groups that were divided for a GPU stay so: no backend minds
        struct rn_err why = {0};
        int r = rn_device_choose(&e->device, e->params.device, e->params.gpu_mask, skip, err);
        if (r < 0) {
            return r;
        }
        if (!e->device.is_gpu && first_why[0]) {
            rn_device_take_cpu(&e->device, first_why);
        }
        tell(e, e->device.told ? e->device.note : "");
        r = plan_layers(e, n_ctx_train, &why);
        r = r < 0 ? r : rn_engine_load_backend(e, &why);
        bool may_go_on = e->device.by_auto && e->device.is_gpu && e->device.index < 64 && !layers_are_asked_for(e);
        if (r == 0 || !may_go_on) {
            return r < 0 ? rn_err_set(err, r, "%s", why.text) : 0;
        }
        if (!first_why[0]) {
            snprintf(first_why, sizeof first_why, "%s", why.text);
        }
        skip |= UINT64_C(1) << e->device.index;
    }
}

static int time_decode(struct rn_engine *e, double *ret_ms, struct rn_err *err)
{
    struct rn_seq *seq = NULL;
    struct rn_seq_params params = {.n = e->info.n_ctx_train < 64 ? e->info.n_ctx_train : 64};
    float *logits = rn_mem_alloc(e->info.n_vocab, sizeof *logits);
    uint32_t id = 0;
    int r = logits ? rn_seq_create(&seq, e, &params, err) : rn_err_nomem(err, e->info.n_vocab * sizeof *logits, "logits");
    double best = 0;
    for (int i = 0; i < WARM_STEPS + TIMED_STEPS && r == 0; i++) {
        struct rn_step_entry entry = {.seq = seq, .ids = &id, .n_ids = 1, .n_logits = 1, .logits = logits};
        uint64_t from = rn_clock_ns();
        r = rn_engine_step(e, &entry, 1, err);
        double ms = rn_clock_ms(from, rn_clock_ns());
        best = i >= WARM_STEPS && (best == 0 || ms < best) ? ms : best;
    }
    rn_seq_destroy(seq);
    rn_mem_free(logits);
    *ret_ms = best;
    return r;
}

bool rn_engine_prefers_cpu(struct rn_engine *e)
{
    if (!e->device.by_auto || !e->device.is_gpu || layers_are_asked_for(e)) {
        return false;
    }
    struct rn_err err = {0};
    char why[RN_ERR_TEXT];
    double gpu_ms = 0, read_gb_per_s = 0, int8_tops = 0;
    if (time_decode(e, &gpu_ms, &err) < 0) {
        snprintf(why, sizeof why, "as '%s' fails: %.300s", e->device.name, err.text);
    } else {
        rn_cpu_measure(e->n_threads, MEASURE_MS, &read_gb_per_s, &int8_tops);
        double bytes = (double)e->info.weight_bytes * e->info.macs_per_token / (double)e->info.n_params; // without the embedding
        double cpu_ms = bytes / (read_gb_per_s * CPU_SHARE * 1e6);
        if (!(cpu_ms < gpu_ms)) {
            return false;
        }
        snprintf(why, sizeof why, "faster than '%s': about %.1f ms per token, not %.1f", e->device.name, cpu_ms, gpu_ms);
    }
    e->n_first = 0;
    rn_device_take_cpu(&e->device, why);
    tell(e, e->device.note);
    e->down = false;
    return true;
}
