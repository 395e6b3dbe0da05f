/* What each field of response.create means. The table decides: what is known, of which type, in which range, and which value of an
 * unsupported field is neutral. */
#include "daemon/responses_internal.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/mem.h"
#include "session/service.h"

static int no_memory(struct rn_field_parse *p)
{
    return rn_problem_no_memory(p->problem);
}

#define INVALID(p, path, ...) RN_INVALID((p)->problem, path, __VA_ARGS__)

static int unsupported(struct rn_field_parse *p, const char *path, const char *what)
{
    return rn_problem_unsupported(p->problem, path, what);
}

static void *at(struct rn_field_parse *p, const struct rn_field *f)
{
    return (char *)p->request + f->offset;
}

static int echo(struct rn_field_parse *p, const struct rn_field *f, const json_t *v)
{
    return json_object_set_new(p->echo, f->name, json_deep_copy(v)) < 0 ? no_memory(p) : 0;
}

/* ---- Rows of the table ------------------------------------------------------------------------------------------------------------- */

static int apply_nothing(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)p, (void)f, (void)path, (void)v;
    return 0;
}

static int apply_neutral(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    json_t *list = json_loads(f->neutral, 0, NULL);
    if (!list) {
        return no_memory(p);
    }
    bool is_neutral = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        is_neutral = is_neutral || json_equal(json_array_get(list, i), v);
    }
    json_decref(list);
    return is_neutral ? 0 : unsupported(p, path, "this value is not supported yet");
}

static int apply_neutral_echo(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int r = apply_neutral(p, f, path, v);
    return r < 0 ? r : echo(p, f, v);
}

static int apply_bool(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)path;
    *(bool *)at(p, f) = json_is_true(v);
    return 0;
}

static int apply_echo(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    if (json_string_length(v) > 512) {
        return INVALID(p, path, "%s has %zu bytes, at most 512 are allowed", path, json_string_length(v));
    }
    return echo(p, f, v);
}

static int apply_string(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)path;
    char **to = at(p, f), *copy = rn_mem_strndup(json_string_value(v), json_string_length(v));
    if (!copy) {
        return no_memory(p);
    }
    rn_mem_free(*to);
    *to = copy;
    return 0;
}

static int apply_float(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    double x = json_number_value(v);
    if (!(x >= f->min && x <= f->max)) {
        return INVALID(p, path, "%s is %g, expected a number from %g to %g", path, x, f->min, f->max);
    }
    *(float *)at(p, f) = (float)x;
    return f->where == RN_TOP ? echo(p, f, v) : 0;
}

static int apply_top_p(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int r = apply_float(p, f, path, v);
    // 0 means the single most likely token: any mass above 0 keeps exactly that one.
    if (r == 0 && p->request->sampling.top_p <= 0) {
        p->request->sampling.top_p = 1e-6f;
    }
    return r;
}

static int apply_min_p(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    if (json_number_value(v) >= 1) {
        return INVALID(p, path, "%s is %g, expected a number from 0 to below 1", path, json_number_value(v));
    }
    return apply_float(p, f, path, v);
}

// The Responses API has these two in the response object, too.
static int apply_penalty(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int r = apply_float(p, f, path, v);
    return r < 0 ? r : echo(p, f, v);
}

static int read_bias(struct rn_field_parse *p, const char *path, const char *key, const json_t *v, struct rn_logit_bias *ret)
{
    uint64_t id = 0;
    size_t n = strspn(key, "0123456789");
    for (size_t i = 0; i < n && id <= UINT32_MAX; i++) {
        id = 10 * id + (uint64_t)(key[i] - '0');
    }
    double x = json_number_value(v);
    if (n == 0 || key[n] || id > UINT32_MAX || (n > 1 && key[0] == '0')) {
        return INVALID(p, path, "%s has the key '%.40s', expected a token id", path, key);
    }
    if (!json_is_number(v) || !(x >= -RN_LOGIT_BIAS_LIMIT && x <= RN_LOGIT_BIAS_LIMIT)) {
        return INVALID(p, path, "%s: the bias of token %s is not a number from -%d to %d", path, key, RN_LOGIT_BIAS_LIMIT,
                       RN_LOGIT_BIAS_LIMIT);
    }
    *ret = (struct rn_logit_bias){(uint32_t)id, (float)x};
    return 0;
}

// {"token id": bias}. Whether the vocabulary has the id is for the session layer to say.
static int apply_logit_bias(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f;
    size_t n = json_object_size(v), i = 0;
    const char *key;
    json_t *value;
    if (json_array_size(v)) { // an empty list is what some clients send for "none"
        return INVALID(p, path, "%s is a list, expected an object of token ids and biases", path);
    }
    if (n > RN_LOGIT_BIAS_MAX) {
        return INVALID(p, path, "%s has %zu tokens, at most %d are allowed", path, n, RN_LOGIT_BIAS_MAX);
    }
    struct rn_logit_bias *bias = n ? rn_mem_alloc(n, sizeof *bias) : NULL;
    if (n && !bias) {
        return no_memory(p);
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        int r = read_bias(p, path, key, value, &bias[i++]);
        if (r < 0) {
            rn_mem_free(bias);
            return r;
        }
    }
    rn_request_bias(p->request, bias, n);
    return 0;
}

static int get_integer(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v, int64_t *ret)
{
    json_int_t x = json_integer_value(v);
    if ((double)x < f->min || (double)x > f->max) {
        return INVALID(p, path, "%s is %lld, expected an integer from %.0f to %.0f", path, (long long)x, f->min, f->max);
    }
    *ret = x;
    return 0;
}

static int apply_int64(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    return get_integer(p, f, path, v, at(p, f));
}

static int apply_top_k(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int64_t x = 0;
    int r = get_integer(p, f, path, v, &x);
    p->request->sampling.top_k = r < 0 ? 0 : (uint32_t)x;
    return r;
}

static int apply_seed(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int64_t x = 0;
    int r = get_integer(p, f, path, v, &x);
    p->request->sampling.seed = r < 0 ? 0 : (uint64_t)x;
    p->request->has_seed = r == 0;
    return r;
}

static int apply_max_output(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int64_t x = 0;
    int r = get_integer(p, f, path, v, &x);
    if (r < 0) {
        return r;
    }
    p->request->max_output_tokens = (uint64_t)x;
    return echo(p, f, v);
}

static int apply_model(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f;
    const char *name = json_string_value(v);
    if (strcmp(name, p->model_id) != 0 && strcmp(name, "default") != 0) {
        rn_problem_set(p->problem, 404, "model_not_found", path, "the model '%.100s' is not loaded; this daemon serves '%.100s'", name,
                       p->model_id);
        return -EINVAL;
    }
    return 0;
}

// One of two words. Where it is neither, the request is refused, whatever was set.
static int read_choice(struct rn_field_parse *p, const char *path, const json_t *v, const char *first, const char *second,
                       bool *ret_is_first)
{
    const char *name = json_string_value(v);
    bool is_first = strcmp(name, first) == 0;
    if (!is_first && strcmp(name, second) != 0) {
        return INVALID(p, path, "%s is '%.40s', expected %s or %s", path, name, first, second);
    }
    *ret_is_first = is_first;
    return 0;
}

static int apply_evict(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f;
    bool turn = false;
    int r = read_choice(p, path, v, "turn", "token", &turn);
    p->request->evict = turn ? RN_EVICT_TURN : RN_EVICT_TOKEN;
    return r;
}

static int apply_overflow(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f;
    bool refuse = false;
    int r = read_choice(p, path, v, "refuse", "roll", &refuse);
    p->overflow_given = true;
    p->request->overflow_roll = !refuse;
    return r;
}

static int apply_truncation(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int r = read_choice(p, path, v, "auto", "disabled", &p->truncation_auto);
    return r < 0 ? r : echo(p, f, v);
}

static int add_stop(struct rn_field_parse *p, const char *path, const json_t *v)
{
    struct rn_request *r = p->request;
    size_t len = json_string_length(v);
    if (!json_is_string(v) || len == 0 || len > RN_STOP_BYTES) {
        return INVALID(p, path, "%s: a stop string has 1 to %d bytes", path, RN_STOP_BYTES);
    }
    r->stop[r->n_stop] = rn_mem_strndup(json_string_value(v), len);
    if (!r->stop[r->n_stop]) {
        return no_memory(p);
    }
    r->n_stop++;
    return 0;
}

static int apply_stop(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f;
    struct rn_request *r = p->request;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > RN_STOP_STRINGS) {
        return INVALID(p, path, "%s has %zu strings, at most %d are allowed", path, n, RN_STOP_STRINGS);
    }
    if (!r->stop && !(r->stop = rn_mem_alloc(RN_STOP_STRINGS, sizeof *r->stop))) {
        return no_memory(p);
    }
    while (r->n_stop) { // given twice, at the top and in the runnel object: the latter counts
        rn_mem_free(r->stop[--r->n_stop]);
    }
    for (size_t i = 0; i < n; i++) {
        int e = add_stop(p, path, json_is_array(v) ? json_array_get(v, i) : v);
        if (e < 0) {
            return e;
        }
    }
    return 0;
}

static int apply_metadata(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    const char *key;
    json_t *value;
    if (json_object_size(v) > 16) {
        return INVALID(p, path, "metadata has %zu pairs, at most 16 are allowed", json_object_size(v));
    }
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (!json_is_string(value) || strlen(key) > 64 || json_string_length(value) > 512) {
            return INVALID(p, path, "metadata: keys have at most 64 bytes, values are strings of at most 512 bytes");
        }
    }
    return echo(p, f, v);
}

static int apply_top_logprobs(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    int64_t x = 0;
    int r = get_integer(p, f, path, v, &x);
    if (r < 0) {
        return r;
    }
    p->request->top_logprobs = (uint32_t)x;
    return echo(p, f, v);
}

// What `include` names is mostly parts of items that never occur here.
static int apply_include(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        if (!name) {
            return INVALID(p, path, "include[%zu] is not a string", i);
        }
        if (strcmp(name, "message.output_text.logprobs") == 0) {
            p->request->logprobs = true;
        }
    }
    return 0;
}

static int apply_text(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f, (void)path;
    const json_t *format = json_object_get(v, "format"), *verbosity = json_object_get(v, "verbosity");
    if (format && !json_is_null(format)) {
        const char *type = json_string_value(json_object_get(format, "type"));
        if (!type) {
            return INVALID(p, "text.format", "text.format needs a type");
        }
        if (strcmp(type, "text") != 0) {
            return unsupported(p, "text.format", "only the type text is supported yet");
        }
    }
    if (verbosity && !json_is_null(verbosity)) {
        const char *level = json_string_value(verbosity);
        if (!level) {
            return INVALID(p, "text.verbosity", "text.verbosity is not a string");
        }
        if (strcmp(level, "medium") != 0) {
            return unsupported(p, "text.verbosity", "only medium is supported yet");
        }
    }
    return 0;
}

static int apply_reasoning(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)path;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        char name[64];
        snprintf(name, sizeof name, "reasoning.%.40s", key);
        bool none = json_is_string(value) && strcmp(key, "effort") == 0 && strcmp(json_string_value(value), "none") == 0;
        if (!json_is_null(value) && !none) {
            return unsupported(p, name, "reasoning settings are not supported yet");
        }
    }
    return echo(p, f, v);
}

static int apply_input(struct rn_field_parse *p, const struct rn_field *f, const char *path, const json_t *v)
{
    (void)f, (void)path;
    return rn_responses_input(v, p->request->items, p->problem);
}

/* ---- The table --------------------------------------------------------------------------------------------------------------------- */

#define REQUEST(member) offsetof(struct rn_request, member)
#define UNSUPPORTED(name, where, types, neutral)                                                                                           \
    {                                                                                                                                      \
        name, where, apply_neutral, types, 0, 0, 0, neutral                                                                                \
    }

static const struct rn_field fields[] = {
    // sorted by name
    UNSUPPORTED("background", RN_TOP, "b", "[false]"),
    UNSUPPORTED("context_management", RN_TOP, "a", "[[]]"),
    UNSUPPORTED("conversation", RN_TOP, "so", "[]"),
    UNSUPPORTED("detach", RN_OWN, "b", "[false]"),
    UNSUPPORTED("dry_multiplier", RN_BOTH, "n", "[0, 0.0]"),
    {"evict", RN_BOTH, apply_evict, "s", 0, 0, 0, NULL},
    {"frequency_penalty", RN_BOTH, apply_penalty, "n", -RN_PENALTY_LIMIT, RN_PENALTY_LIMIT, REQUEST(sampling.frequency_penalty), NULL},
    {"generate", RN_TOP, apply_bool, "b", 0, 0, REQUEST(generate), NULL},
    UNSUPPORTED("grammar", RN_BOTH, "s", "[\"\"]"),
    {"ignore_eos", RN_BOTH, apply_bool, "b", 0, 0, REQUEST(ignore_eos), NULL},
    {"include", RN_TOP, apply_include, "a", 0, 0, 0, NULL},
    {"input", RN_TOP, apply_input, "sa", 0, 0, 0, NULL},
    {"instructions", RN_TOP, apply_string, "s", 0, 0, REQUEST(instructions), NULL},
    {"logit_bias", RN_BOTH, apply_logit_bias, "oa", 0, 0, 0, NULL},
    {"max_output_tokens", RN_TOP, apply_max_output, "i", 1, RN_MAX_OUTPUT_TOKENS, 0, NULL},
    UNSUPPORTED("max_tool_calls", RN_TOP, "i", "[]"),
    {"metadata", RN_TOP, apply_metadata, "o", 0, 0, 0, NULL},
    {"min_p", RN_BOTH, apply_min_p, "n", 0, 1, REQUEST(sampling.min_p), NULL},
    {"model", RN_TOP, apply_model, "s", 0, 0, 0, NULL},
    UNSUPPORTED("moderation", RN_TOP, "o", "[]"),
    UNSUPPORTED("on_loop", RN_BOTH, "s", "[\"off\"]"),
    {"overflow", RN_BOTH, apply_overflow, "s", 0, 0, 0, NULL},
    {"parallel_tool_calls", RN_TOP, apply_neutral_echo, "b", 0, 0, 0, "[true, false]"},
    {"presence_penalty", RN_BOTH, apply_penalty, "n", -RN_PENALTY_LIMIT, RN_PENALTY_LIMIT, REQUEST(sampling.presence_penalty), NULL},
    {"previous_response_id", RN_TOP, apply_string, "s", 0, 0, REQUEST(previous_response_id), NULL},
    UNSUPPORTED("priority", RN_OWN, "isn", "[]"),
    UNSUPPORTED("progress", RN_OWN, "b", "[false]"),
    UNSUPPORTED("prompt", RN_TOP, "o", "[]"),
    {"prompt_cache_key", RN_TOP, apply_echo, "s", 0, 0, 0, NULL},
    {"prompt_cache_options", RN_TOP, apply_nothing, "o", 0, 0, 0, NULL}, // hints: the cache is always on
    {"prompt_cache_retention", RN_TOP, apply_nothing, "s", 0, 0, 0, NULL},
    {"reasoning", RN_TOP, apply_reasoning, "o", 0, 0, 0, NULL},
    {"repeat_penalty", RN_BOTH, apply_float, "n", RN_REPEAT_PENALTY_MIN, RN_REPEAT_PENALTY_MAX, REQUEST(sampling.repeat_penalty), NULL},
    UNSUPPORTED("return_tokens", RN_BOTH, "b", "[false]"),
    {"runnel", RN_TOP, apply_nothing, "o", 0, 0, 0, NULL}, // read after all others
    {"safety_identifier", RN_TOP, apply_echo, "s", 0, 0, 0, NULL},
    {"seed", RN_BOTH, apply_seed, "i", 0, (double)RN_SEED_MAX, 0, NULL},
    UNSUPPORTED("service_tier", RN_TOP, "s", "[\"auto\", \"default\"]"),
    {"session", RN_BOTH, apply_string, "s", 0, 0, REQUEST(session_id), NULL},
    {"sinks", RN_BOTH, apply_int64, "i", 0, UINT32_MAX, REQUEST(sinks), NULL},
    UNSUPPORTED("speculation", RN_OWN, "o", "[{}, {\"mode\": \"off\"}, {\"mode\": \"auto\"}]"),
    {"stop", RN_BOTH, apply_stop, "sa", 0, 0, 0, NULL},
    {"store", RN_TOP, apply_bool, "b", 0, 0, REQUEST(store), NULL},
    {"stream", RN_TOP, apply_nothing, "b", 0, 0, 0, NULL}, // a WebSocket always streams
    {"stream_id", RN_TOP, apply_nothing, "s", 0, 0, 0, NULL},
    {"stream_options", RN_TOP, apply_nothing, "o", 0, 0, 0, NULL},
    {"temperature", RN_TOP, apply_float, "n", 0, 2, REQUEST(sampling.temperature), NULL},
    {"text", RN_TOP, apply_text, "o", 0, 0, 0, NULL},
    UNSUPPORTED("timeout_ms", RN_OWN, "i", "[]"),
    {"timings", RN_OWN, apply_nothing, "b", 0, 0, 0, NULL}, // the record always has them
    {"tool_choice", RN_TOP, apply_neutral_echo, "so", 0, 0, 0, "[\"auto\", \"none\"]"},
    UNSUPPORTED("tools", RN_TOP, "a", "[[]]"),
    {"top_k", RN_BOTH, apply_top_k, "i", 0, INT32_MAX, 0, NULL},
    {"top_logprobs", RN_TOP, apply_top_logprobs, "i", 0, RN_TOP_LOGPROBS_MAX, 0, NULL},
    {"top_p", RN_TOP, apply_top_p, "n", 0, 1, REQUEST(sampling.top_p), NULL},
    {"truncation", RN_TOP, apply_truncation, "s", 0, 0, 0, NULL},
    {"type", RN_TOP, apply_nothing, "s", 0, 0, 0, NULL},
    {"user", RN_TOP, apply_echo, "s", 0, 0, 0, NULL},
    {"window", RN_BOTH, apply_int64, "i", 1, UINT32_MAX, REQUEST(window), NULL},
    UNSUPPORTED("xtc_probability", RN_BOTH, "n", "[0, 0.0]"),
};

#define N_FIELDS (sizeof fields / sizeof fields[0])

bool rn_responses_table_sorted(void)
{
    for (size_t i = 1; i < N_FIELDS; i++) {
        if (strcmp(fields[i - 1].name, fields[i].name) >= 0) {
            return false;
        }
    }
    return true;
}

const struct rn_field *rn_field_find(const char *name, enum rn_field_where where)
{
    size_t low = 0, high = N_FIELDS;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int order = strcmp(name, fields[mid].name);
        if (order == 0) {
            return fields[mid].where & where ? &fields[mid] : NULL;
        }
        if (order < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return NULL;
}
