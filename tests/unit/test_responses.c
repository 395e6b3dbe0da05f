// The Responses API adapter: what a request means, what is refused and how, and the events of an answer.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "daemon/json_text.h"
#include "daemon/responses.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/sampler.h"
#include "session/service.h"

static struct rn_request *parse_ok(const char *text)
{
    struct rn_request *r = NULL;
    struct rn_problem p = {0};
    json_t *message = json_loads(text, 0, NULL);
    assert_non_null(message);
    int e = rn_responses_parse(message, "tiny", &r, &p);
    json_decref(message);
    if (e < 0) {
        fail_msg("%s: %s (%s)", text, p.message, p.param);
    }
    return r;
}

static const char *item_text(const struct rn_request *r, size_t item, size_t part)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(json_array_get(r->items, item), "content"), part), "text"));
}

static const char *item_key(const struct rn_request *r, size_t item, const char *key)
{
    return json_string_value(json_object_get(json_array_get(r->items, item), key));
}

/* ---- Requests ---------------------------------------------------------------------------------------------------------------------- */

static void table_is_sorted(void **state)
{
    (void)state;
    assert_true(rn_responses_table_sorted());
}

static void defaults(void **state)
{
    (void)state;
    struct rn_request *r = parse_ok("{\"type\":\"response.create\"}");
    assert_int_equal(json_array_size(r->items), 0);
    assert_true(r->store);
    assert_true(r->generate);
    assert_null(r->instructions);
    assert_null(r->previous_response_id);
    assert_null(r->session_id);
    assert_true(r->sampling.temperature == 1.0f);
    assert_true(r->sampling.top_p == 1.0f);
    assert_true(r->sampling.min_p == 0.0f);
    assert_int_equal(r->sampling.top_k, 0);
    assert_false(r->has_seed);
    assert_int_equal(r->max_output_tokens, 4096);
    assert_int_equal(r->window, -1);
    assert_int_equal(r->sinks, -1);
    assert_int_equal(r->evict, -1);
    assert_false(r->overflow_roll);
    assert_int_equal(strlen(r->response_id), 29);
    assert_memory_equal(r->response_id, "resp_", 5);
    assert_memory_equal(r->item_id, "msg_", 4);
    rn_request_destroy(r);
}

static void every_field(void **state)
{
    (void)state;
    struct rn_request *r =
        parse_ok("{\"type\":\"response.create\",\"model\":\"default\",\"input\":\"h\\u00e9llo\",\"instructions\":\"be "
                 "brief\",\"previous_response_id\":\"resp_1\","
                 "\"store\":false,\"stream\":true,\"generate\":false,\"temperature\":0.5,\"top_p\":0.9,\"max_output_tokens\":7,\"seed\":1,"
                 "\"runnel\":{\"session\":\"sess_1\",\"window\":512,\"sinks\":4,\"evict\":\"token\",\"overflow\":\"roll\",\"seed\":"
                 "9007199254740991,\"top_k\":40,"
                 "\"min_p\":0.05,\"stop\":[\"a\",\"bc\"],\"ignore_eos\":true}}");
    assert_string_equal(item_text(r, 0, 0), "h\xc3\xa9llo");
    assert_string_equal(item_key(r, 0, "role"), "user");
    assert_string_equal(r->instructions, "be brief");
    assert_string_equal(r->previous_response_id, "resp_1");
    assert_string_equal(r->session_id, "sess_1");
    assert_false(r->store);
    assert_false(r->generate);
    assert_true(r->sampling.temperature == 0.5f);
    assert_true(r->sampling.top_p == 0.9f);
    assert_true(r->sampling.min_p == 0.05f);
    assert_int_equal(r->sampling.top_k, 40);
    assert_true(r->has_seed);
    assert_true(r->sampling.seed == RN_SEED_MAX); // the runnel object counts over the top level
    assert_int_equal(r->max_output_tokens, 7);
    assert_int_equal(r->window, 512);
    assert_int_equal(r->sinks, 4);
    assert_int_equal(r->evict, RN_EVICT_TOKEN);
    assert_true(r->overflow_roll);
    assert_true(r->ignore_eos);
    assert_int_equal(r->n_stop, 2);
    assert_string_equal(r->stop[1], "bc");
    assert_int_equal(json_array_size(r->ignored), 0);
    rn_request_destroy(r);
}

static void items_of_all_shapes(void **state)
{
    (void)state;
    struct rn_request *r = parse_ok(
        "{\"input\":[{\"role\":\"system\",\"content\":\"s\"},{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
        "\"text\":\"a\"},"
        "{\"type\":\"input_text\",\"text\":\"b\"}]},{\"type\":\"message\",\"id\":\"msg_old\",\"status\":\"completed\",\"role\":"
        "\"assistant\",\"content\":"
        "[{\"type\":\"output_text\",\"text\":\"c\",\"annotations\":[],\"logprobs\":[]}]},{\"role\":\"developer\",\"content\":[]}]}");
    assert_int_equal(json_array_size(r->items), 4);
    assert_string_equal(item_key(r, 0, "role"), "system");
    assert_string_equal(item_key(r, 1, "type"), "message");
    assert_string_equal(item_text(r, 1, 1), "b");
    assert_string_equal(item_text(r, 2, 0), "c");
    assert_memory_equal(item_key(r, 2, "id"), "msg_", 4);
    assert_string_not_equal(item_key(r, 2, "id"), "msg_old"); // it may be stored already
    json_t *part = json_array_get(json_object_get(json_array_get(r->items, 2), "content"), 0);
    assert_string_equal(json_string_value(json_object_get(part, "type")), "output_text");
    rn_request_destroy(r);
}

static void top_level_extras_and_truncation(void **state)
{
    (void)state;
    struct rn_request *r = parse_ok("{\"top_k\":5,\"min_p\":0.1,\"stop\":\"x\",\"window\":64,\"ignore_eos\":true,\"truncation\":\"auto\"}");
    assert_int_equal(r->sampling.top_k, 5);
    assert_int_equal(r->n_stop, 1);
    assert_int_equal(r->window, 64);
    assert_true(r->overflow_roll);
    rn_request_destroy(r);
    r = parse_ok("{\"truncation\":\"auto\",\"runnel\":{\"overflow\":\"refuse\"},\"stop\":[\"a\",\"b\"]}");
    assert_false(r->overflow_roll);
    rn_request_destroy(r);
    r = parse_ok("{\"stop\":[\"a\",\"b\"],\"runnel\":{\"stop\":\"c\",\"session\":null},\"top_p\":0,\"temperature\":0}");
    assert_int_equal(r->n_stop, 1);
    assert_string_equal(r->stop[0], "c");
    assert_true(r->sampling.top_p > 0 && r->sampling.top_p < 1e-3f);
    rn_request_destroy(r);
}

static void neutral_values_pass(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"tools\":[],\"tool_choice\":\"auto\",\"parallel_tool_calls\":true,\"reasoning\":null,\"metadata\":{},\"text\":{\"format\":{"
        "\"type\":\"text\"}}}",
        "{\"background\":false,\"conversation\":null,\"prompt\":null,\"service_tier\":\"auto\",\"truncation\":\"disabled\",\"top_"
        "logprobs\":0,\"include\":[]}",
        "{\"tool_choice\":\"none\",\"parallel_tool_calls\":false,\"reasoning\":{\"effort\":null,\"summary\":null},\"metadata\":{\"k\":"
        "\"v\"},\"user\":\"u\"}",
        "{\"stream_options\":{\"include_obfuscation\":false},\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\",\"max_tool_calls\":"
        "null,\"text\":{}}",
        "{\"frequency_penalty\":0,\"presence_penalty\":0.0,\"logit_bias\":{},\"repeat_penalty\":1.0,\"runnel\":{\"detach\":false,\"on_"
        "loop\":\"off\"}}",
        "{\"include\":[\"reasoning.encrypted_content\"],\"prompt_cache_retention\":\"24h\",\"temperature\":2,\"reasoning\":{\"effort\":"
        "\"none\"}}",
        "{\"temperature\":null,\"input\":null,\"instructions\":null,\"store\":null,\"generate\":null,\"model\":null,\"runnel\":null,"
        "\"stop\":null}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct rn_request *r = parse_ok(texts[i]);
        assert_int_equal(json_array_size(r->ignored), 0);
        rn_request_destroy(r);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *code, *param;
    } rows[] = {
        {"{\"temperature\":2.01}", 400, "invalid_value", "temperature"},
        {"{\"temperature\":-0.1}", 400, "invalid_value", "temperature"},
        {"{\"temperature\":\"1\"}", 400, "invalid_value", "temperature"},
        {"{\"top_p\":1.1}", 400, "invalid_value", "top_p"},
        {"{\"max_output_tokens\":0}", 400, "invalid_value", "max_output_tokens"},
        {"{\"max_output_tokens\":4097}", 400, "invalid_value", "max_output_tokens"},
        {"{\"max_output_tokens\":1.5}", 400, "invalid_value", "max_output_tokens"},
        {"{\"input\":5}", 400, "invalid_value", "input"},
        {"{\"input\":{}}", 400, "invalid_value", "input"},
        {"{\"input\":[5]}", 400, "invalid_value", "input[0]"},
        {"{\"input\":[{\"role\":\"tool\",\"content\":\"x\"}]}", 400, "invalid_value", "input[0].role"},
        {"{\"input\":[{\"content\":\"x\"}]}", 400, "invalid_value", "input[0].role"},
        {"{\"input\":[{\"role\":\"user\"}]}", 400, "invalid_value", "input[0].content"},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"x\"}]}", 400,
         "unsupported_parameter", "input[1].type"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}]}", 400, "unsupported_parameter",
         "input[0].content[0].type"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]}", 400, "invalid_value", "input[0].content[0].text"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[\"x\"]}]}", 400, "invalid_value", "input[0].content[0].type"},
        {"{\"instructions\":[]}", 400, "invalid_value", "instructions"},
        {"{\"store\":1}", 400, "invalid_value", "store"},
        {"{\"stream\":\"yes\"}", 400, "invalid_value", "stream"},
        {"{\"model\":\"gpt-5\"}", 404, "model_not_found", "model"},
        {"{\"tools\":[{}]}", 400, "unsupported_parameter", "tools"},
        {"{\"tool_choice\":\"required\"}", 400, "unsupported_parameter", "tool_choice"},
        {"{\"background\":true}", 400, "unsupported_parameter", "background"},
        {"{\"conversation\":\"conv_1\"}", 400, "unsupported_parameter", "conversation"},
        {"{\"text\":{\"format\":{\"type\":\"json_schema\"}}}", 400, "unsupported_parameter", "text.format"},
        {"{\"text\":{\"verbosity\":\"high\"}}", 400, "unsupported_parameter", "text.verbosity"},
        {"{\"reasoning\":{\"effort\":\"high\"}}", 400, "unsupported_parameter", "reasoning.effort"},
        {"{\"top_logprobs\":21}", 400, "invalid_value", "top_logprobs"},
        {"{\"top_logprobs\":-1}", 400, "invalid_value", "top_logprobs"},
        {"{\"top_logprobs\":1.5}", 400, "invalid_value", "top_logprobs"},
        {"{\"include\":[5]}", 400, "invalid_value", "include"},
        {"{\"truncation\":\"maybe\"}", 400, "invalid_value", "truncation"},
        {"{\"metadata\":{\"k\":1}}", 400, "invalid_value", "metadata"},
        {"{\"presence_penalty\":2.5}", 400, "invalid_value", "presence_penalty"},
        {"{\"frequency_penalty\":\"1\"}", 400, "invalid_value", "frequency_penalty"},
        {"{\"runnel\":{\"frequency_penalty\":-2.01}}", 400, "invalid_value", "runnel.frequency_penalty"},
        {"{\"repeat_penalty\":0}", 400, "invalid_value", "repeat_penalty"},
        {"{\"runnel\":{\"repeat_penalty\":10.1}}", 400, "invalid_value", "runnel.repeat_penalty"},
        {"{\"logit_bias\":[[5,1]]}", 400, "invalid_value", "logit_bias"},
        {"{\"logit_bias\":{\"a\":1}}", 400, "invalid_value", "logit_bias"},
        {"{\"logit_bias\":{\"\":1}}", 400, "invalid_value", "logit_bias"},
        {"{\"logit_bias\":{\"-1\":1}}", 400, "invalid_value", "logit_bias"},
        {"{\"logit_bias\":{\"05\":1}}", 400, "invalid_value", "logit_bias"},
        {"{\"logit_bias\":{\"4294967296\":1}}", 400, "invalid_value", "logit_bias"},
        {"{\"logit_bias\":{\"99999999999999999999999\":1}}", 400, "invalid_value", "logit_bias"},
        {"{\"runnel\":{\"logit_bias\":{\"5\":100.5}}}", 400, "invalid_value", "runnel.logit_bias"},
        {"{\"runnel\":{\"logit_bias\":{\"5\":true}}}", 400, "invalid_value", "runnel.logit_bias"},
        {"{\"runnel\":5}", 400, "invalid_value", "runnel"},
        {"{\"runnel\":{\"window\":0}}", 400, "invalid_value", "runnel.window"},
        {"{\"runnel\":{\"sinks\":-1}}", 400, "invalid_value", "runnel.sinks"},
        {"{\"runnel\":{\"evict\":\"all\"}}", 400, "invalid_value", "runnel.evict"},
        {"{\"runnel\":{\"overflow\":\"x\"}}", 400, "invalid_value", "runnel.overflow"},
        {"{\"runnel\":{\"seed\":9007199254740992}}", 400, "invalid_value", "runnel.seed"},
        {"{\"runnel\":{\"seed\":-1}}", 400, "invalid_value", "runnel.seed"},
        {"{\"runnel\":{\"top_k\":-1}}", 400, "invalid_value", "runnel.top_k"},
        {"{\"runnel\":{\"min_p\":1}}", 400, "invalid_value", "runnel.min_p"},
        {"{\"runnel\":{\"stop\":[\"\"]}}", 400, "invalid_value", "runnel.stop"},
        {"{\"runnel\":{\"stop\":[1]}}", 400, "invalid_value", "runnel.stop"},
        {"{\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]}", 400,
         "invalid_value", "stop"},
        {"{\"runnel\":{\"grammar\":\"root ::= x\"}}", 400, "unsupported_parameter", "runnel.grammar"},
        {"{\"runnel\":{\"speculation\":{\"mode\":\"on\"}}}", 400, "unsupported_parameter", "runnel.speculation"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rn_request *r = NULL;
        struct rn_problem p = {0};
        json_t *message = json_loads(rows[i].text, 0, NULL);
        assert_non_null(message);
        int e = rn_responses_parse(message, "tiny", &r, &p);
        json_decref(message);
        if (e != -EINVAL || p.status != rows[i].status || strcmp(p.code, rows[i].code) != 0 || strcmp(p.param, rows[i].param) != 0) {
            fail_msg("%s: %d %d %s '%s' %s", rows[i].text, e, p.status, p.code ? p.code : "", p.param, p.message);
        }
        assert_true(p.message[0]);
        assert_null(r);
    }
}

static void penalties_bias_and_logprobs(void **state)
{
    (void)state;
    struct rn_request *r =
        parse_ok("{\"frequency_penalty\":-2,\"presence_penalty\":1,\"repeat_penalty\":1.5,\"logit_bias\":{\"5\":1},"
                 "\"runnel\":{\"presence_penalty\":2,\"repeat_penalty\":1.25,\"logit_bias\":{\"0\":-100,\"4294967295\":2.5}}}");
    assert_true(r->sampling.frequency_penalty == -2);
    assert_true(r->sampling.presence_penalty == 2); // the runnel object counts over the top level
    assert_true(r->sampling.repeat_penalty == 1.25f);
    assert_int_equal(r->sampling.n_bias, 2);
    assert_int_equal(r->sampling.bias[0].id, 0);
    assert_true(r->sampling.bias[0].value == -100);
    assert_int_equal(r->sampling.bias[1].id, UINT32_MAX);
    assert_true(r->sampling.bias[1].value == 2.5f);
    assert_true(json_number_value(json_object_get(r->echo, "frequency_penalty")) == -2);
    assert_true(json_number_value(json_object_get(r->echo, "presence_penalty")) == 2);
    assert_null(json_object_get(r->echo, "repeat_penalty")); // the API's response object does not have it
    assert_false(r->logprobs);
    rn_request_destroy(r);
    r = parse_ok("{\"logit_bias\":{\"5\":1},\"runnel\":{\"logit_bias\":[]},\"top_logprobs\":20}");
    assert_int_equal(r->sampling.n_bias, 0);
    assert_false(r->logprobs);
    assert_int_equal(json_array_size(r->warnings), 1); // asked for, but include does not name them
    rn_request_destroy(r);
    r = parse_ok("{\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":20}");
    assert_true(r->logprobs);
    assert_int_equal(r->top_logprobs, 20);
    assert_int_equal(json_array_size(r->warnings), 0);
    assert_int_equal(json_integer_value(json_object_get(r->echo, "top_logprobs")), 20);
    rn_request_destroy(r);
    r = parse_ok("{}");
    assert_true(r->sampling.repeat_penalty == 1 && r->sampling.frequency_penalty == 0 && r->sampling.presence_penalty == 0);
    rn_request_destroy(r);
}

static void too_many_biases_are_refused(void **state)
{
    (void)state;
    json_t *bias = json_object(), *message = json_pack("{s:o}", "logit_bias", bias);
    for (int i = 0; i <= RN_LOGIT_BIAS_MAX; i++) {
        char id[16];
        struct rn_request *r = NULL;
        struct rn_problem p = {0};
        snprintf(id, sizeof id, "%d", i);
        json_object_set_new(bias, id, json_integer(1));
        if (i >= RN_LOGIT_BIAS_MAX - 1) {
            assert_int_equal(rn_responses_parse(message, "tiny", &r, &p), i < RN_LOGIT_BIAS_MAX ? 0 : -EINVAL);
        }
        rn_request_destroy(r);
    }
    json_decref(message);
}

static void unknown_fields_are_listed(void **state)
{
    (void)state;
    struct rn_request *r = parse_ok("{\"novel\":1,\"runnel\":{\"novel\":2,\"temperature\":1},\"detach\":true}");
    assert_int_equal(json_array_size(r->ignored), 4);
    assert_string_equal(json_string_value(json_array_get(r->ignored, 0)), "novel");
    assert_string_equal(json_string_value(json_array_get(r->ignored, 2)), "runnel.novel");
    rn_request_destroy(r);
}

static void json_limits(void **state)
{
    (void)state;
    json_t *v = NULL;
    struct rn_err err;
    char deep[512];
    size_t n = 0;
    n += (size_t)snprintf(deep, sizeof deep, "{\"a\":");
    memset(deep + n, '[', 63);
    memset(deep + n + 63, ']', 63);
    memcpy(deep + n + 126, "}", 2);
    assert_int_equal(rn_json_parse(deep, strlen(deep), &v, &err), 0);
    json_decref(v);
    memset(deep + n, '[', 64);
    memset(deep + n + 64, ']', 64);
    memcpy(deep + n + 128, "}", 2);
    assert_int_equal(rn_json_parse(deep, strlen(deep), &v, &err), -EINVAL);
    static const char *const bad[] = {
        "", "5", "[]", "{", "{\"a\":}", "{\"a\":\"\\u0000\"}", "{\"a\":\"\xff\"}", "{}x", "{\"a\":\"\\ud800\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rn_json_parse(bad[i], strlen(bad[i]), &v, &err), -EINVAL);
    }
    struct rn_buf many = {0};
    rn_buf_add_str(&many, "{\"a\":[1");
    for (int i = 0; i < RN_JSON_VALUES; i++) {
        rn_buf_add_str(&many, ",1");
    }
    rn_buf_add_str(&many, "]}");
    assert_int_equal(rn_json_parse(many.data, many.len, &v, &err), -EINVAL);
    rn_buf_finish(&many);
    const char *brackets = "{\"a\":\"[[[\\\"[[[\"}"; // brackets in a string do not count
    assert_int_equal(rn_json_parse(brackets, strlen(brackets), &v, &err), 0);
    json_decref(v);
}

static void strings_are_escaped(void **state)
{
    (void)state;
    struct rn_buf b = {0};
    const char *text = "a\"b\\c\nd\te\rf\x01g\xf0\x9f\x8c\x8a";
    assert_int_equal(rn_json_add_string(&b, text, strlen(text)), 0);
    json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY, NULL);
    assert_string_equal(json_string_value(v), text);
    json_decref(v);
    rn_buf_clear(&b);
    assert_int_equal(rn_json_add_string(&b, "", 0), 0);
    assert_string_equal(b.data, "\"\"");
    rn_buf_finish(&b);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------------------------- */

struct sink {
    json_t *events[64];
    size_t n;
};

static int collect(void *user, const char *json, size_t len)
{
    struct sink *s = user;
    assert_true(s->n < 64);
    s->events[s->n] = json_loadb(json, len, 0, NULL);
    assert_non_null(s->events[s->n]);
    s->n++;
    return 0;
}

static void sink_finish(struct sink *s)
{
    while (s->n) {
        json_decref(s->events[--s->n]);
    }
}

static struct rn_answer *answer_new(struct sink *s, const char *request_text, const char *stream_id)
{
    struct rn_request *r = parse_ok(request_text);
    struct rn_answer *a = NULL;
    struct rn_answer_params params = {.request = r, .stream_id = stream_id, .model_id = "tiny", .emit = collect, .user = s};
    assert_int_equal(rn_answer_create(&a, &params), 0);
    rn_request_destroy(r);
    return a;
}

static void give(struct rn_answer *a, enum rn_event_kind kind, const char *text)
{
    struct rn_event e = {.kind = kind,
                         .text = (char *)(uintptr_t)text,
                         .text_len = text ? strlen(text) : 0,
                         .created_at = 1700000000,
                         .seed = 42,
                         .session_id = "sess_1",
                         .evicted = 3,
                         .kept_from = 7};
    assert_int_equal(rn_answer_event(a, &e), 0);
}

static void end_kept(struct rn_answer *a, enum rn_status status, const char *reason, const char *text, bool kept)
{
    json_t *record = json_pack("{s:s, s:{s:s}}", "session", "sess_1", "stop", "cause", "eos");
    struct rn_event e = {.kind = RN_EVENT_DONE,
                         .status = status,
                         .incomplete_reason = reason,
                         .text = (char *)(uintptr_t)text,
                         .text_len = strlen(text),
                         .input_tokens = 10,
                         .cached_tokens = 4,
                         .output_tokens = 3,
                         .record = record,
                         .message = (char *)(uintptr_t) "boom",
                         .kept = kept};
    assert_int_equal(rn_answer_event(a, &e), 0);
    json_decref(record);
}

static void end(struct rn_answer *a, enum rn_status status, const char *reason, const char *text)
{
    end_kept(a, status, reason, text, false);
}

// Types as one line, and the numbering.
static void expect_types(const struct sink *s, const char *expected)
{
    char line[2048] = "";
    for (size_t i = 0; i < s->n; i++) {
        const char *type = json_string_value(json_object_get(s->events[i], "type"));
        type += strncmp(type, "response.", 9) == 0 ? 9 : 0;
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", i ? " " : "", type);
        assert_int_equal(json_integer_value(json_object_get(s->events[i], "sequence_number")), i);
    }
    assert_string_equal(line, expected);
}

static const json_t *last_response(const struct sink *s)
{
    return json_object_get(s->events[s->n - 1], "response");
}

static const char *string_at(const json_t *v, const char *key)
{
    return json_string_value(json_object_get(v, key));
}

static void an_answer_from_start_to_end(void **state)
{
    (void)state;
    struct sink s = {0};
    struct rn_answer *a =
        answer_new(&s, "{\"input\":\"x\",\"temperature\":0.7,\"instructions\":\"i\",\"metadata\":{\"k\":\"v\"},\"odd\":1}", "lane-1");
    give(a, RN_EVENT_CREATED, NULL);
    give(a, RN_EVENT_QUEUED, NULL);
    give(a, RN_EVENT_STARTED, NULL);
    give(a, RN_EVENT_TEXT, "Hel");
    give(a, RN_EVENT_EVICTED, NULL);
    give(a, RN_EVENT_TEXT, "lo \"");
    end(a, RN_STATUS_COMPLETED, NULL, "Hello \"you");
    give(a, RN_EVENT_TEXT, "too late");
    expect_types(
        &s, "created queued in_progress output_item.added content_part.added output_text.delta runnel:context.evicted output_text.delta "
            "output_text.delta output_text.done content_part.done output_item.done completed");
    for (size_t i = 0; i < s.n; i++) {
        assert_string_equal(string_at(s.events[i], "stream_id"), "lane-1");
    }
    assert_string_equal(string_at(s.events[7], "delta"), "lo \"");
    assert_true(json_is_array(json_object_get(s.events[7], "logprobs")));
    assert_string_equal(string_at(s.events[8], "delta"), "you");
    assert_string_equal(string_at(s.events[9], "text"), "Hello \"you");
    const json_t *created = json_object_get(s.events[0], "response");
    assert_string_equal(string_at(created, "status"), "in_progress");
    assert_int_equal(json_array_size(json_object_get(created, "output")), 0);
    assert_string_equal(string_at(json_object_get(created, "runnel"), "session"), "sess_1");
    const json_t *response = last_response(&s);
    static const char *const keys[] = {"id",
                                       "object",
                                       "created_at",
                                       "completed_at",
                                       "status",
                                       "background",
                                       "error",
                                       "incomplete_details",
                                       "instructions",
                                       "max_output_tokens",
                                       "max_tool_calls",
                                       "model",
                                       "output",
                                       "parallel_tool_calls",
                                       "previous_response_id",
                                       "conversation",
                                       "prompt_cache_key",
                                       "reasoning",
                                       "safety_identifier",
                                       "service_tier",
                                       "store",
                                       "temperature",
                                       "text",
                                       "tool_choice",
                                       "tools",
                                       "top_logprobs",
                                       "top_p",
                                       "truncation",
                                       "usage",
                                       "user",
                                       "metadata",
                                       "runnel"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        assert_non_null(json_object_get(response, keys[i]));
    }
    assert_string_equal(string_at(response, "status"), "completed");
    assert_string_equal(string_at(response, "model"), "tiny");
    assert_string_equal(string_at(response, "instructions"), "i");
    assert_string_equal(string_at(json_object_get(response, "metadata"), "k"), "v");
    assert_true(json_real_value(json_object_get(response, "temperature")) == 0.7);
    const json_t *usage = json_object_get(response, "usage"), *details = json_object_get(usage, "input_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 13);
    assert_int_equal(json_integer_value(json_object_get(details, "cached_tokens")), 4);
    assert_non_null(json_object_get(details, "cache_write_tokens"));
    json_t *item = json_array_get(json_object_get(response, "output"), 0);
    assert_string_equal(string_at(item, "status"), "completed");
    assert_string_equal(string_at(json_array_get(json_object_get(item, "content"), 0), "text"), "Hello \"you");
    const json_t *own = json_object_get(response, "runnel");
    assert_string_equal(string_at(json_object_get(own, "stop"), "cause"), "eos");
    assert_string_equal(json_string_value(json_array_get(json_object_get(own, "ignored"), 0)), "odd");
    rn_answer_destroy(a);
    sink_finish(&s);
}

static json_t *some_logprobs(int from, int n)
{
    json_t *list = json_array();
    for (int i = from; i < from + n; i++) {
        json_array_append_new(
            list, json_pack("{s:i, s:s, s:[i], s:f, s:[]}", "id", i, "token", "x", "bytes", 120, "logprob", -0.5 * i, "top_logprobs"));
    }
    return list;
}

static int first_id(const json_t *event)
{
    return (int)json_integer_value(json_object_get(json_array_get(json_object_get(event, "logprobs"), 0), "id"));
}

/* What is known of the record when the response begins; the terminal event has the rest. */
static void a_response_begins_with_its_context(void **state)
{
    (void)state;
    struct sink s = {0};
    struct rn_answer *a = answer_new(&s, "{\"input\":\"x\"}", NULL);
    struct rn_event e = {.kind = RN_EVENT_CREATED, .session_id = "sess_1", .seed = 42, .record = json_pack("{s:{s:i}}", "context", "used", 57)};
    assert_int_equal(rn_answer_event(a, &e), 0);
    json_decref(e.record);
    give(a, RN_EVENT_STARTED, NULL);
    e = (struct rn_event){.kind = RN_EVENT_DONE,
                          .status = RN_STATUS_COMPLETED,
                          .text = (char[]){"y"},
                          .text_len = 1,
                          .record = json_pack("{s:{s:i}}", "context", "used", 58)};
    assert_int_equal(rn_answer_event(a, &e), 0);
    json_decref(e.record);
    static const int used[] = {57, 57, 58};
    const json_t *events[] = {s.events[0], s.events[1], s.events[s.n - 1]};
    for (size_t i = 0; i < 3; i++) {
        const json_t *own = json_object_get(json_object_get(events[i], "response"), "runnel");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(own, "context"), "used")), used[i]);
        assert_string_equal(string_at(own, "session"), "sess_1");
        assert_int_equal(json_integer_value(json_object_get(json_object_get(own, "sampling"), "seed")), 42);
    }
    rn_answer_destroy(a);
    sink_finish(&s);
}

/* Deltas carry those of their tokens, also when several were held back or never came; the done events have them all. */
static void logprobs_go_with_their_text(void **state)
{
    (void)state;
    struct sink s = {0};
    struct rn_answer *a = answer_new(&s, "{\"input\":\"x\",\"include\":[\"message.output_text.logprobs\"]}", NULL);
    give(a, RN_EVENT_CREATED, NULL);
    give(a, RN_EVENT_STARTED, NULL);
    static const struct {
        const char *text;
        int from, n;
        bool held;
    } pieces[] = {{"ab", 0, 2, false}, {"c", 2, 1, true}, {"de", 3, 2, true}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(rn_answer_hold(a, pieces[i].held), 0);
        struct rn_event e = {.kind = RN_EVENT_TEXT,
                             .text = (char *)(uintptr_t)pieces[i].text,
                             .text_len = strlen(pieces[i].text),
                             .logprobs = some_logprobs(pieces[i].from, pieces[i].n)};
        assert_int_equal(rn_answer_event(a, &e), 0);
        json_decref(e.logprobs);
    }
    assert_int_equal(rn_answer_hold(a, false), 0);
    struct rn_event done = {.kind = RN_EVENT_DONE,
                            .status = RN_STATUS_COMPLETED,
                            .text = (char *)(uintptr_t) "abcdef",
                            .text_len = 6,
                            .logprobs = some_logprobs(0, 6)};
    assert_int_equal(rn_answer_event(a, &done), 0);
    json_decref(done.logprobs);
    expect_types(&s, "created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.delta "
                     "output_text.done content_part.done output_item.done completed");
    static const size_t sizes[] = {2, 3, 1};
    static const int firsts[] = {0, 2, 5};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(json_array_size(json_object_get(s.events[4 + i], "logprobs")), sizes[i]);
        assert_int_equal(first_id(s.events[4 + i]), firsts[i]);
    }
    assert_int_equal(json_array_size(json_object_get(s.events[7], "logprobs")), 6);
    assert_int_equal(json_array_size(json_object_get(json_object_get(s.events[8], "part"), "logprobs")), 6);
    const json_t *item = json_array_get(json_object_get(last_response(&s), "output"), 0);
    assert_int_equal(json_array_size(json_object_get(json_array_get(json_object_get(item, "content"), 0), "logprobs")), 6);
    rn_answer_destroy(a);
    sink_finish(&s);
}

static void other_ends(void **state)
{
    (void)state;
    static const struct {
        enum rn_status status;
        const char *reason;
        const char *text, *types, *item_status;
        bool kept;
    } rows[] = {
        {RN_STATUS_INCOMPLETE, "max_output_tokens", "ab",
         "created in_progress output_item.added content_part.added output_text.delta output_text.done "
         "content_part.done output_item.done incomplete",
         "incomplete", true},
        {RN_STATUS_INCOMPLETE, NULL, "", "created in_progress incomplete", NULL, false}, // cancelled before the first token
        {RN_STATUS_INCOMPLETE, NULL, "", // and after it, with nothing to be seen yet
         "created in_progress output_item.added content_part.added output_text.done content_part.done output_item.done incomplete",
         "incomplete", true},
        {RN_STATUS_FAILED, NULL, "", "created in_progress failed", NULL, false},
        {RN_STATUS_FAILED, NULL, "ab",
         "created in_progress output_item.added content_part.added output_text.delta output_text.done content_part.done "
         "output_item.done failed",
         "incomplete", false},
        {RN_STATUS_COMPLETED, NULL, "",
         "created in_progress output_item.added content_part.added output_text.done content_part.done output_item.done completed",
         "completed", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sink s = {0};
        struct rn_answer *a = answer_new(&s, "{\"input\":\"x\"}", NULL);
        give(a, RN_EVENT_CREATED, NULL);
        give(a, RN_EVENT_STARTED, NULL);
        end_kept(a, rows[i].status, rows[i].reason, rows[i].text, rows[i].kept);
        expect_types(&s, rows[i].types);
        const json_t *response = last_response(&s);
        json_t *item = json_array_get(json_object_get(response, "output"), 0);
        assert_int_equal(item != NULL, rows[i].item_status != NULL);
        if (item) {
            assert_string_equal(string_at(item, "status"), rows[i].item_status);
        }
        const json_t *details = json_object_get(response, "incomplete_details"), *error = json_object_get(response, "error");
        assert_int_equal(json_is_object(details), rows[i].reason != NULL);
        assert_int_equal(json_is_object(error), rows[i].status == RN_STATUS_FAILED);
        assert_null(json_object_get(s.events[0], "stream_id"));
        rn_answer_destroy(a);
        sink_finish(&s);
    }
}

static void generate_false(void **state)
{
    (void)state;
    struct sink s = {0};
    struct rn_answer *a = answer_new(&s, "{\"input\":\"x\",\"generate\":false}", NULL);
    give(a, RN_EVENT_CREATED, NULL);
    give(a, RN_EVENT_QUEUED, NULL);
    give(a, RN_EVENT_STARTED, NULL);
    end(a, RN_STATUS_COMPLETED, NULL, "");
    expect_types(&s, "created completed");
    assert_int_equal(json_array_size(json_object_get(last_response(&s), "output")), 0);
    rn_answer_destroy(a);
    sink_finish(&s);
}

static void held_text_becomes_one_delta(void **state)
{
    (void)state;
    struct sink s = {0};
    struct rn_answer *a = answer_new(&s, "{\"input\":\"x\"}", NULL);
    give(a, RN_EVENT_CREATED, NULL);
    give(a, RN_EVENT_STARTED, NULL);
    give(a, RN_EVENT_TEXT, "a");
    rn_answer_hold(a, true);
    give(a, RN_EVENT_TEXT, "b");
    give(a, RN_EVENT_TEXT, "c");
    rn_answer_hold(a, false);
    rn_answer_hold(a, true);
    give(a, RN_EVENT_TEXT, "d");
    end(a, RN_STATUS_COMPLETED, NULL, "abcde");
    expect_types(
        &s,
        "created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.delta output_text.done "
        "content_part.done output_item.done completed");
    assert_string_equal(string_at(s.events[5], "delta"), "bc");
    assert_string_equal(string_at(s.events[6], "delta"), "de");
    rn_answer_destroy(a);
    sink_finish(&s);
}

static void cancelled_before_it_began(void **state)
{
    (void)state;
    struct sink s = {0};
    struct rn_answer *a = answer_new(&s, "{\"input\":\"x\"}", "q");
    assert_int_equal(rn_answer_cancelled(a), 0);
    expect_types(&s, "created incomplete");
    assert_true(json_is_null(json_object_get(last_response(&s), "incomplete_details")));
    assert_string_equal(string_at(json_object_get(json_object_get(last_response(&s), "runnel"), "stop"), "cause"), "cancelled");
    rn_answer_destroy(a);
    sink_finish(&s);
}

static void error_envelopes(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *code, *type;
    } rows[] = {{400, "invalid_value", "invalid_request_error"},  {403, "origin_not_allowed", "permission_error"},
                {404, "not_found", "invalid_request_error"},      {409, "session_busy", "conflict_error"},
                {429, "rate_limit_exceeded", "rate_limit_error"}, {500, "internal_error", "server_error"},
                {503, "server_is_overloaded", "server_error"},    {503, "draining", "unavailable_error"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rn_problem p;
        struct rn_buf b = {0};
        rn_problem_set(&p, rows[i].status, rows[i].code, i ? "field" : NULL, "because %d", 5);
        assert_int_equal(rn_problem_event(&p, i ? "lane" : NULL, &b), 0);
        json_t *v = json_loadb(b.data, b.len, 0, NULL);
        const json_t *error = json_object_get(v, "error");
        assert_string_equal(string_at(v, "type"), "error");
        assert_int_equal(json_integer_value(json_object_get(v, "status")), rows[i].status);
        assert_string_equal(string_at(error, "type"), rows[i].type);
        assert_string_equal(string_at(error, "code"), rows[i].code);
        assert_string_equal(string_at(error, "message"), "because 5");
        assert_int_equal(json_is_null(json_object_get(error, "param")), i == 0);
        assert_int_equal(json_object_get(v, "stream_id") == NULL, i == 0);
        json_decref(v);
        rn_buf_finish(&b);
    }
}

/* ---- Out of memory at every place -------------------------------------------------------------------------------------------------- */

static void *bytes(size_t n)
{
    return rn_mem_alloc(n, 1);
}

static int discard(void *user, const char *json, size_t len)
{
    (void)user, (void)json, (void)len;
    return 0;
}

static int whole_life(const json_t *message)
{
    struct rn_request *r = NULL;
    struct rn_answer *a = NULL;
    struct rn_problem p;
    int e = rn_responses_parse(message, "tiny", &r, &p);
    if (e < 0) {
        return e;
    }
    struct rn_answer_params params = {.request = r, .stream_id = "s", .model_id = "tiny", .emit = discard};
    e = rn_answer_create(&a, &params);
    struct rn_event events[] = {{.kind = RN_EVENT_CREATED, .session_id = "sess_1"},
                                {.kind = RN_EVENT_STARTED},
                                {.kind = RN_EVENT_TEXT, .text = (char[]){"ab"}, .text_len = 2},
                                {.kind = RN_EVENT_EVICTED},
                                {.kind = RN_EVENT_DONE, .status = RN_STATUS_FAILED, .text = (char[]){"abc"}, .text_len = 3}};
    for (size_t i = 0; e == 0 && i < sizeof events / sizeof events[0]; i++) {
        e = rn_answer_event(a, &events[i]);
    }
    rn_answer_destroy(a);
    rn_request_destroy(r);
    return e;
}

static void out_of_memory_is_an_error(void **state)
{
    (void)state;
    json_set_alloc_funcs(bytes, rn_mem_free);
    json_t *message = json_loads(
        "{\"input\":[{\"role\":\"user\",\"content\":\"x\"}],\"instructions\":\"i\",\"stop\":[\"a\",\"b\"],\"tools\":[],\"odd\":1}", 0,
        NULL);
    assert_non_null(message);
    rn_mem_fail_at(0);
    assert_int_equal(whole_life(message), 0);
    uint64_t n = rn_mem_count();
    assert_true(n > 50);
    for (uint64_t i = 1; i <= n; i++) {
        rn_mem_fail_at(i);
        int e = whole_life(message);
        assert_true(e == 0 || e == -ENOMEM); // 0: an allocation that jansson can do without
    }
    rn_mem_fail_at(0);
    json_decref(message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sorted),
        cmocka_unit_test(defaults),
        cmocka_unit_test(every_field),
        cmocka_unit_test(items_of_all_shapes),
        cmocka_unit_test(top_level_extras_and_truncation),
        cmocka_unit_test(neutral_values_pass),
        cmocka_unit_test(refusals),
        cmocka_unit_test(penalties_bias_and_logprobs),
        cmocka_unit_test(too_many_biases_are_refused),
        cmocka_unit_test(unknown_fields_are_listed),
        cmocka_unit_test(json_limits),
        cmocka_unit_test(strings_are_escaped),
        cmocka_unit_test(an_answer_from_start_to_end),
        cmocka_unit_test(a_response_begins_with_its_context),
        cmocka_unit_test(logprobs_go_with_their_text),
        cmocka_unit_test(other_ends),
        cmocka_unit_test(generate_false),
        cmocka_unit_test(held_text_becomes_one_delta),
        cmocka_unit_test(cancelled_before_it_began),
        cmocka_unit_test(error_envelopes),
        cmocka_unit_test(out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
