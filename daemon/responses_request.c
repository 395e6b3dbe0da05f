/* response.create -> struct rn_request: each field of the message, and of the object `runnel` in it, goes to its row of the table
 * (responses_fields.c). Unknown fields are listed in the record, not refused; a known field never fails silently. */
#include "daemon/responses_internal.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "session/service.h"

static bool type_allowed(const char *types, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_ARRAY:
        return strchr(types, 'a');
    case JSON_TRUE:
    case JSON_FALSE:
        return strchr(types, 'b');
    case JSON_INTEGER:
        return strchr(types, 'i') || strchr(types, 'n');
    case JSON_REAL:
        return strchr(types, 'n');
    case JSON_OBJECT:
        return strchr(types, 'o');
    case JSON_STRING:
        return strchr(types, 's');
    default:
        return false;
    }
}

static int wrong_type(struct rn_field_parse *p, const struct rn_field *f, const char *path)
{
    static const struct {
        char letter;
        const char *name;
    } names[] = {{'a', "a list"}, {'b', "true or false"}, {'i', "an integer"}, {'n', "a number"}, {'o', "an object"}, {'s', "a string"}};
    char list[80] = "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strchr(f->types, names[i].letter)) {
            size_t n = strlen(list);
            snprintf(list + n, sizeof list - n, "%s%s", n ? " or " : "", names[i].name);
        }
    }
    return RN_INVALID(p->problem, path, "%s has the wrong type, expected %s", path, list);
}

static int apply_object(struct rn_field_parse *p, const json_t *object, enum rn_field_where where)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        char path[80];
        snprintf(path, sizeof path, "%s%.64s", where == RN_OWN ? "runnel." : "", key);
        const struct rn_field *f = rn_field_find(key, where);
        if (!f) {
            if (json_array_append_new(p->request->ignored, json_string(path)) < 0) {
                return rn_problem_no_memory(p->problem);
            }
            continue;
        }
        if (json_is_null(v)) {
            continue;
        }
        int r = type_allowed(f->types, v) ? f->apply(p, f, path, v) : wrong_type(p, f, path);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int apply_message(struct rn_field_parse *p, const json_t *message)
{
    struct rn_request *r = p->request;
    r->items = json_array();
    r->ignored = json_array();
    r->warnings = json_array();
    r->echo = p->echo = json_object();
    if (!r->items || !r->ignored || !r->warnings || !r->echo) {
        return rn_problem_no_memory(p->problem);
    }
    rn_id_new("resp_", r->response_id);
    rn_id_new("msg_", r->item_id);
    r->max_output_tokens = RN_MAX_OUTPUT_TOKENS;
    int e = apply_object(p, message, RN_TOP);
    const json_t *own = json_object_get(message, "runnel");
    if (e == 0 && json_is_object(own)) {
        e = apply_object(p, own, RN_OWN);
    }
    if (p->truncation_auto && !p->overflow_given) {
        r->overflow_roll = true; // "drop from the start of the conversation" is what rolling does
    }
    if (e == 0 && r->top_logprobs && !r->logprobs) {
        e = json_array_append_new(r->warnings, json_string("top_logprobs has no effect: include does not name "
                                                           "message.output_text.logprobs")) < 0
                ? rn_problem_no_memory(p->problem)
                : 0;
    }
    return e;
}

int rn_responses_parse(const json_t *message, const char *model_id, struct rn_request **ret, struct rn_problem *ret_problem)
{
    struct rn_field_parse p = {.model_id = model_id, .problem = ret_problem, .request = rn_request_create()};
    if (!p.request) {
        return rn_problem_no_memory(ret_problem);
    }
    int r = apply_message(&p, message);
    if (r < 0) {
        rn_request_destroy(p.request);
        return r;
    }
    *ret = p.request;
    return 0;
}
