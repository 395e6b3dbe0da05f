/* runnel sessions: the daemon's sessions over HTTP. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/daemon_url.h"
#include "daemon/cli/json_at.h"
#include "runtime/base/err.h"

#define ROOT "/runnel/sessions"
#define ID_MAX 128

struct args {
    struct rn_url_args url;
    bool json;
};

static const struct rn_option options[] = {
    {"--json", NULL, RN_OPTION_FLAG, offsetof(struct args, json), "print what the daemon answers"},
};

static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(options), 0},
    {"daemon", RN_OPTIONS(rn_url_options), offsetof(struct args, url)},
};

static const struct rn_option_set set = {
    .usage = "sessions list | show ID | rm ID [--json]",
    .about = "Lists the daemon's sessions, shows what was said in one, or removes it for good.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof groups[0],
    .n_words = 2,
};

static long long integer_at(const json_t *v, const char *key)
{
    return (long long)json_integer_value(at(v, key));
}

static void put_session(const json_t *s)
{
    char when[32] = "-";
    time_t last_used = (time_t)integer_at(s, "last_used");
    struct tm local;
    if (localtime_r(&last_used, &local)) {
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &local);
    }
    printf("%-30s  %-16s  %8lld  %8lld  ", text_at(s, "id"), when, integer_at(s, "tokens"), integer_at(s, "evicted"));
    const char *title = text_at(s, "title");
    rn_cli_put_text(title, strlen(title));
    putchar('\n');
}

static void put_list(const json_t *reply)
{
    size_t i;
    json_t *s;
    printf("%-30s  %-16s  %8s  %8s  %s\n", "session", "last used", "tokens", "evicted", "title");
    json_array_foreach(json_object_get(reply, "data"), i, s)
    {
        put_session(s);
    }
}

static void put_show(const json_t *reply)
{
    size_t i, k;
    json_t *item, *part;
    put_list(NULL);
    put_session(reply);
    json_array_foreach(json_object_get(reply, "items"), i, item)
    {
        printf("\n%s:\n", text_at(item, "role"));
        json_array_foreach(json_object_get(item, "content"), k, part)
        {
            const char *text = text_at(part, "text");
            rn_cli_put_text(text, strlen(text));
        }
        putchar('\n');
    }
}

/* Bytes of an id that need no escape in a path. */
static bool is_id(const char *id)
{
    size_t n = strlen(id);
    return n > 0 && n <= ID_MAX && strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == n;
}

struct action {
    const char *name, *method;
    bool takes_id;
    void (*put)(const json_t *reply);
};

static const struct action actions[] = {
    {"list", "GET", false, put_list},
    {"rm", "DELETE", true, NULL},
    {"show", "GET", true, put_show},
};

static int ask(const struct args *a, const struct action *action, const char *id, struct rn_err *err)
{
    struct rn_client_address to;
    struct rn_buf body = {0};
    char path[sizeof ROOT + 1 + ID_MAX];
    int status = 0;
    if (rn_url_resolve(&a->url, &to, err) < 0) {
        return rn_cli_fail(RN_CLI_USAGE, err);
    }
    snprintf(path, sizeof path, "%s%s%s", ROOT, id ? "/" : "", id ? id : "");
    if (rn_client_http(&to, action->method, path, &status, &body, err) < 0) {
        rn_buf_finish(&body);
        return rn_cli_fail(RN_CLI_UNAVAILABLE, err);
    }
    json_t *reply = json_loadb(body.data ? body.data : "", body.len, JSON_ALLOW_NUL, NULL);
    rn_buf_finish(&body);
    int code = RN_CLI_OK;
    if (status != 200 || !reply) {
        const char *text = rn_url_error_text(reply);
        (void)rn_err_set(err, -EIO, "the daemon answers %d%s%s", status, text ? ": " : "", text ? text : ""); // the code is chosen here
        code = rn_cli_fail(status == 200 ? RN_CLI_FAILED : rn_url_exit_code(status), err);
    } else if (a->json) {
        return rn_cli_print_json(reply);
    } else if (action->put) {
        action->put(reply);
    }
    json_decref(reply);
    return code ? code : rn_cli_flush();
}

int rn_verb_sessions(int argc, char *const *argv)
{
    struct args args = {0};
    struct rn_err err = {0};
    const char *words[2];
    int code;
    if (!rn_cli_parse(&set, &args, argc, argv, words, &code)) {
        return code;
    }
    const struct action *action = NULL;
    for (size_t i = 0; words[0] && i < sizeof actions / sizeof actions[0]; i++) {
        action = strcmp(words[0], actions[i].name) == 0 ? &actions[i] : action;
    }
    if (!action) {
        (void)rn_err_set(&err, -EINVAL, "sessions: say list, show ID or rm ID"); // the code is chosen here
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    if (action->takes_id != (words[1] != NULL) || (words[1] && !is_id(words[1]))) {
        (void)rn_err_set(&err, -EINVAL, "sessions %s takes %s", action->name, action->takes_id ? "the ID of a session" : "no ID");
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    return ask(&args, action, words[1], &err);
}
