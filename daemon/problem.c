#include "daemon/problem.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/json_text.h"

void rn_problem_set(struct rn_problem *p, int status, const char *code, const char *param, const char *format, ...)
{
    *p = (struct rn_problem){.status = status, .code = code};
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(p->message, sizeof p->message, format, args);
    va_end(args);
}

int rn_problem_no_memory(struct rn_problem *p)
{
    rn_problem_set(p, 503, "server_is_overloaded", NULL, "out of memory");
    return -ENOMEM;
}

int rn_problem_unsupported(struct rn_problem *p, const char *path, const char *what)
{
    rn_problem_set(p, 400, "unsupported_parameter", path, "%s: %s", path, what);
    return -EINVAL;
}

static const char *problem_type(int status, const char *code)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},    {409, "conflict_error"},   {429, "rate_limit_error"},
                 {500, "server_error"},         {501, "not_supported_error"}, {503, "unavailable_error"}};
    if (strcmp(code, "server_is_overloaded") == 0 || strcmp(code, "device_lost") == 0) {
        return "server_error"; // what SDKs look for before they retry
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].status == status) {
            return types[i].type;
        }
    }
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static json_t *problem_object(const struct rn_problem *p)
{
    return json_pack("{s:s, s:s, s:s?, s:s}", "message", p->message, "type", problem_type(p->status, p->code), "param",
                     p->param[0] ? p->param : NULL, "code", p->code);
}

static int add_and_free(struct rn_buf *out, json_t *v)
{
    int r = v ? rn_json_add(out, v) : -ENOMEM;
    json_decref(v);
    return r;
}

int rn_problem_body(const struct rn_problem *p, struct rn_buf *out)
{
    return add_and_free(out, json_pack("{s:o}", "error", problem_object(p)));
}

int rn_problem_event(const struct rn_problem *p, const char *stream_id, struct rn_buf *out)
{
    json_t *event = json_pack("{s:s, s:i, s:o}", "type", "error", "status", p->status, "error", problem_object(p));
    if (event && stream_id && json_object_set_new(event, "stream_id", json_string(stream_id)) < 0) {
        json_decref(event);
        event = NULL;
    }
    return add_and_free(out, event);
}
