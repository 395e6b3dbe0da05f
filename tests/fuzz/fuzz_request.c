/* A message of a client: JSON, then a response.create. */
#include <jansson.h>
#include <string.h>

#include "daemon/json_text.h"
#include "daemon/responses.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "session/service.h"
#include "tests/fuzz/fuzz.h"

const char *const fuzz_words[] = {"\"type\"", "\"response.create\"", "\"input\"", "\"role\"", "\"user\"", "\"content\"", "\"input_text\"", "\"text\"", "\"tools\"", "\"tool_choice\"", "\"runnel\"", "\"window\"", "\"sinks\"",
                                  "\"seed\"", "\"stop\"", "\"temperature\"", "\"top_p\"", "\"top_k\"", "\"min_p\"", "\"logit_bias\"", "\"top_logprobs\"", "\"include\"", "\"metadata\"", "\"truncation\"", "\"session\"", "\"store\"",
                                  "\"previous_response_id\"", "\"instructions\"", "\"max_output_tokens\"", "\"reasoning\"", "\"stream_id\"", "\"generate\"", "\"overflow\"", "\"frequency_penalty\"", "\"presence_penalty\"",
                                  "{", "}", "[", "]", ":", ",", "null", "true", "false", "0", "-1", "1e999", "9007199254740993", "1.5", "\"\"", "\"\\u0000\"", "\"\\ud800\"", "\"a\":", "[[[[", "{\"a\":",
                                  // whole members: behind a brace or a comma the message stays valid
                                  "\"input\":\"x\",", "\"input\":[],", "\"temperature\":2,", "\"top_p\":0.5,", "\"max_output_tokens\":1,", "\"tools\":[{\"type\":\"function\"}],", "\"runnel\":{},", "\"runnel\":{\"window\":-1},",
                                  "\"logit_bias\":{\"1\":-100},", "\"top_logprobs\":5,", "\"include\":[\"message.output_text.logprobs\"],", "\"metadata\":{\"a\":\"b\"},", "\"text\":{\"format\":{\"type\":\"text\"}},",
                                  "\"reasoning\":{\"effort\":null},", "\"stop\":[\"a\"],", "\"frequency_penalty\":0.5,", "\"seed\":-1,", "\"session\":\"s\",", "\"stream_id\":\"l\",", "\"role\":\"user\",", "\"content\":[],",
                                  "{\"role\":\"user\",\"content\":\"a\"},", "{\"type\":\"input_text\",\"text\":\"b\"},", "{\"type\":\"function_call\",\"name\":\"f\"},", NULL};

void fuzz_seeds(void (*add)(const void *data, size_t len))
{
    static const char *const seeds[] = {
        "{\"type\":\"response.create\",\"model\":\"default\",\"input\":\"h\\u00e9llo\",\"instructions\":\"be brief\",\"previous_response_id\":\"resp_1\",\"store\":false,\"stream\":true,\"generate\":false,\"temperature\":0.5,"
        "\"top_p\":0.9,\"max_output_tokens\":7,\"seed\":1,\"runnel\":{\"session\":\"sess_1\",\"window\":512,\"sinks\":4,\"evict\":\"token\",\"overflow\":\"roll\",\"seed\":3,\"top_k\":40,\"min_p\":0.05,\"stop\":[\"a\",\"bc\"],"
        "\"ignore_eos\":true}}",
        "{\"input\":[{\"role\":\"system\",\"content\":\"s\"},{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]},{\"type\":\"message\",\"id\":\"msg_old\",\"status\":\"completed\","
        "\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"c\",\"annotations\":[],\"logprobs\":[]}]}],\"truncation\":\"auto\",\"metadata\":{\"k\":\"v\"},\"tools\":[],\"parallel_tool_calls\":true}",
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        add(seeds[i], strlen(seeds[i]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    json_t *message = NULL;
    struct rn_err err = {0};
    if (rn_json_parse((const char *)data, len, &message, &err) < 0) {
        FUZZ_CHECK(err.text[0]);
        return 0;
    }
    struct rn_request *request = NULL;
    struct rn_problem problem = {0};
    struct rn_buf out = {0};
    if (rn_responses_parse(message, "tiny", &request, &problem) < 0) {
        FUZZ_CHECK(problem.status >= 400 && problem.code && problem.message[0]);
        FUZZ_CHECK(rn_problem_event(&problem, NULL, &out) == 0);
        json_t *said = json_loadb(out.data, out.len, 0, NULL); // valid UTF-8 and JSON, whatever it quotes
        FUZZ_CHECK(said);
        json_decref(said);
    } else {
        rn_request_destroy(request);
    }
    rn_buf_finish(&out);
    json_decref(message);
    return 0;
}
