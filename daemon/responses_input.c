/* The `input` of a response.create: a string, {role, content}, or typed message items, made into items of one shape:
 * {"id", "type": "message", "role", "content": [{"type": "input_text"|"output_text", "text"}]}. */
#include <stdio.h>
#include <string.h>

#include "daemon/responses_internal.h"
#include "session/service.h"

struct target {
    json_t *items;
    struct rn_problem *problem;
};

static const char *check_role(const json_t *item)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    const char *role = json_string_value(json_object_get(item, "role"));
    for (size_t i = 0; role && i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(role, roles[i]) == 0) {
            return roles[i];
        }
    }
    return NULL;
}

static json_t *text_part(bool is_output, const json_t *text)
{
    return json_pack("{s:s, s:O}", "type", is_output ? "output_text" : "input_text", "text", text);
}

static int add_part(struct target *to, json_t *content, bool is_output, const json_t *part, const char *path)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    char type_path[96];
    snprintf(type_path, sizeof type_path, "%s.type", path);
    if (!type) {
        return RN_INVALID(to->problem, type_path, "%s: a content part is an object with a type", path);
    }
    if (strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0 && strcmp(type, "text") != 0) {
        return rn_problem_unsupported(to->problem, type_path, "only text parts are supported yet");
    }
    const json_t *text = json_object_get(part, "text");
    if (!json_is_string(text)) {
        char text_path[96];
        snprintf(text_path, sizeof text_path, "%s.text", path);
        return RN_INVALID(to->problem, text_path, "%s is not a string", text_path);
    }
    return json_array_append_new(content, text_part(is_output, text)) < 0 ? rn_problem_no_memory(to->problem) : 0;
}

static int fill_content(struct target *to, json_t *content, bool is_output, const json_t *given, const char *path)
{
    if (json_is_string(given)) {
        return json_array_append_new(content, text_part(is_output, given)) < 0 ? rn_problem_no_memory(to->problem) : 0;
    }
    if (!json_is_array(given)) {
        return RN_INVALID(to->problem, path, "%s is neither a string nor a list of parts", path);
    }
    for (size_t i = 0; i < json_array_size(given); i++) {
        char part_path[80];
        snprintf(part_path, sizeof part_path, "%s[%zu]", path, i);
        int r = add_part(to, content, is_output, json_array_get(given, i), part_path);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

// Ids that came with an item are not kept: they may be those of an item that is stored already.
static int add_item(struct target *to, const char *role, const json_t *given, const char *path)
{
    char id[RN_ID_BYTES];
    rn_id_new("msg_", id);
    json_t *content = json_array();
    json_t *item = json_pack("{s:s, s:s, s:s, s:o}", "id", id, "type", "message", "role", role, "content", content);
    if (!item || json_array_append_new(to->items, item) < 0) {
        return rn_problem_no_memory(to->problem);
    }
    return fill_content(to, content, strcmp(role, "assistant") == 0, given, path);
}

static int apply_item(struct target *to, const json_t *item, size_t i)
{
    char path[48];
    snprintf(path, sizeof path, "input[%zu]", i);
    if (!json_is_object(item)) {
        return RN_INVALID(to->problem, path, "%s is not an object", path);
    }
    const json_t *type = json_object_get(item, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "message") != 0)) {
        char type_path[64];
        snprintf(type_path, sizeof type_path, "%s.type", path);
        return json_is_string(type) ? rn_problem_unsupported(to->problem, type_path, "only messages are supported yet")
                                    : RN_INVALID(to->problem, type_path, "%s is not a string", type_path);
    }
    const char *role = check_role(item);
    if (!role) {
        char role_path[64];
        snprintf(role_path, sizeof role_path, "%s.role", path);
        return RN_INVALID(to->problem, role_path, "%s is not one of user, assistant, system, developer", role_path);
    }
    snprintf(path, sizeof path, "input[%zu].content", i);
    return add_item(to, role, json_object_get(item, "content"), path);
}

int rn_responses_input(const json_t *input, json_t *items, struct rn_problem *problem)
{
    struct target to = {.items = items, .problem = problem};
    if (json_is_string(input)) {
        return add_item(&to, "user", input, "input");
    }
    for (size_t i = 0; i < json_array_size(input); i++) {
        int r = apply_item(&to, json_array_get(input, i), i);
        if (r < 0) {
            return r;
        }
    }
    return 0;
}
