#include "session/record.h"

#include <math.h>
#include <stdio.h>

#include "runtime/base/clock.h"
#include "session/session_internal.h"

uint64_t rn_record_visible(const struct rn_conversation *c, uint64_t base, uint64_t t, uint64_t fed, uint64_t *ret_below)
{
    uint64_t end = t + 1, s = c->sinks;
    uint64_t pinned = end < s ? end : s;
    uint64_t window = end > base && end > s ? end - base : 0;
    uint64_t known = fed < end ? fed : end;
    *ret_below = (known < s ? known : pinned) + (window && known > base ? known - base : 0);
    return pinned + window;
}

// A float32 as a person wrote it: 0.7, not 0.699999988.
static json_t *short_real(float x)
{
    return json_real(round((double)x * 1e6) / 1e6);
}

static json_t *bias_object(const struct rn_sampling *p)
{
    json_t *object = json_object();
    for (size_t i = 0; i < p->n_bias; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", p->bias[i].id);
        json_object_set_new(object, id, short_real(p->bias[i].value));
    }
    return object;
}

json_t *rn_record_sampling(const struct rn_request *r)
{
    const struct rn_sampling *p = &r->sampling;
    json_t *logprobs = r->logprobs ? json_integer(r->top_logprobs) : json_null();
    return json_pack("{s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:b, s:o}", "temperature", short_real(p->temperature), "top_k",
                     (int)p->top_k, "top_p", short_real(p->top_p), "min_p", short_real(p->min_p), "repeat_penalty",
                     short_real(p->repeat_penalty == 0 ? 1 : p->repeat_penalty), "frequency_penalty", short_real(p->frequency_penalty),
                     "presence_penalty", short_real(p->presence_penalty), "logit_bias", bias_object(p), "seed", (json_int_t)p->seed,
                     "max_output_tokens", (json_int_t)r->max_output_tokens, "ignore_eos", (int)r->ignore_eos, "top_logprobs", logprobs);
}

json_t *rn_record_usage(const struct rn_run *run)
{
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:i}, s:I}", "input_tokens", (json_int_t)run->visible, "input_tokens_details", "cached_tokens",
                     (json_int_t)run->cached, "output_tokens", (json_int_t)run->answer.ids.len, "output_tokens_details", "reasoning_tokens",
                     0, "total_tokens", (json_int_t)(run->visible + run->answer.ids.len));
}

static double per_second(uint64_t tokens, double ms)
{
    return ms > 0 ? round((double)tokens / ms * 1e6) / 1e3 : 0;
}

// Milliseconds between two moments; 0 when one of them never came.
static double between(uint64_t from, uint64_t to)
{
    return from && to > from ? round(rn_clock_ms(from, to) * 1e3) / 1e3 : 0;
}

static json_t *timings(const struct rn_run *run)
{
    uint64_t now = run->last_ns, prefilled = run->first_ns ? run->first_ns : now;
    double prefill = between(run->started_ns, prefilled), decode = between(run->first_ns, now);
    uint64_t decoded = run->answer.ids.len > 1 ? run->answer.ids.len - 1 : 0;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "queue_ms", between(run->submitted_ns, run->started_ns ? run->started_ns : now),
                     "prefill_ms", prefill, "ttft_ms", between(run->submitted_ns, run->first_ns), "decode_ms", decode,
                     "prefill_tokens_per_s", per_second(run->computed, prefill), "decode_tokens_per_s", per_second(decoded, decode));
}

// As the last of `len` tokens sees it.
static uint64_t used(const struct rn_conversation *c, uint64_t base, uint64_t len)
{
    uint64_t below;
    return len > 0 ? rn_record_visible(c, base, len - 1, 0, &below) : 0;
}

static json_t *context(const struct rn_conversation *c, uint64_t base, uint64_t len)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "n", (json_int_t)c->n, "pinned", (json_int_t)c->sinks, "used",
                     (json_int_t)used(c, base, len), "evicted", (json_int_t)(base - c->sinks), "kept_from", (json_int_t)base);
}

json_t *rn_record_begun(const struct rn_run *run)
{
    const struct rn_conversation *c = run->conv;
    if (used(c, c->base, run->prompt_end) > c->n) { // base will move, and only the sequence knows where to
        return json_object();
    }
    return json_pack("{s:o}", "context", context(c, c->base, run->prompt_end));
}

json_t *rn_record_make(const struct rn_service *s, const struct rn_run *run)
{
    const struct rn_request *req = run->req;
    json_t *record =
        json_pack("{s:s, s:o, s:o, s:{s:s, s:I}, s:I, s:{s:s, s:s?}, s:o}", "session", run->conv->id, "timings", timings(run), "context",
                  context(run->conv, run->base, run->keep ? run->conv->timeline.log.len : run->conv->head), "cache", "source", run->cached ? "memory" : "none", "tokens", (json_int_t)run->cached, "computed",
                  (json_int_t)run->computed, "stop", "cause", run->cause, "detail", run->detail, "sampling", rn_record_sampling(req));
    if (!record) {
        return NULL;
    }
    if (run->rebased) {
        json_object_set_new(record, "rebased", json_pack("{s:s}", "cause", run->rebased));
    }
    json_t *warnings = json_is_array(req->warnings) ? json_copy(req->warnings) : json_array();
    json_array_extend(warnings, run->warnings);
    json_object_set_new(record, "warnings", warnings);
    json_object_set_new(record, "ignored", json_is_array(req->ignored) ? json_copy(req->ignored) : json_array());
    json_object_set_new(record, "device", json_string(s->info->device));
    json_object_set_new(record, "fingerprint", json_string(s->info->fingerprint));
    return record;
}
