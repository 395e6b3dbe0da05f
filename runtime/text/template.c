/* A chat template: the parsed tree with its source, and its rendering as Hugging Face's apply_chat_template does it.
 *
 * Hugging Face hands tools and documents to every template, as none when there are none. The words of the chat roles are counted as
 * the template's own text: they come from a closed set, so a message cannot put anything into them, and templates write control tokens
 * like '<|' + role + '|>'. */
#include "runtime/text/template.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/text/jinja_eval.h"
#include "runtime/text/jinja_parse.h"

struct rn_template {
    struct rn_jinja_arena arena; /* source and tree */
    const char *source;
    size_t len;
    struct rn_jinja_tree tree;
};

/* Copies the source with all newlines as "\n"; it must be UTF-8. */
static int copy_source(struct rn_jinja_run *run, const char *source, size_t len)
{
    char *copy = rn_jinja_alloc(run, len + 1, 1);
    if (!copy) {
        return rn_jinja_alloc_code(run);
    }
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            copy[n++] = '\n';
            i += i + 1 < len && source[i + 1] == '\n';
        } else {
            copy[n++] = source[i];
        }
    }
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)copy + i, (utf8proc_ssize_t)(n - i), &c);
        if (bytes <= 0) {
            return rn_err_set(run->err, -EINVAL, "the template is not valid UTF-8 at byte %zu", i);
        }
        i += (size_t)bytes;
    }
    run->source = copy;
    run->source_len = n;
    return 0;
}

int rn_template_create(struct rn_template **ret, const char *source, size_t len, struct rn_err *err)
{
    if (len > RN_TEMPLATE_MAX_SOURCE) {
        return rn_err_set(err, -E2BIG, "a template of %zu bytes; at most %u", len, RN_TEMPLATE_MAX_SOURCE);
    }
    struct rn_jinja_run run = {.arena.limit = RN_JINJA_MAX_PARSE_MEMORY, .err = err};
    struct rn_template *t = rn_jinja_alloc(&run, 1, sizeof(*t));
    struct rn_jinja_tree tree = {0};
    int r = t ? copy_source(&run, source, len) : rn_jinja_alloc_code(&run);
    r = r < 0 ? r : rn_jinja_parse(&run, run.source, run.source_len, &tree);
    if (r < 0) {
        rn_jinja_arena_finish(&run.arena);
        return r;
    }
    *t = (struct rn_template){run.arena, run.source, run.source_len, tree};
    *ret = t;
    return 0;
}

void rn_template_destroy(struct rn_template *t)
{
    if (t) {
        struct rn_jinja_arena arena = t->arena; /* t itself lies in it */
        rn_jinja_arena_finish(&arena);
    }
}

static int set(struct rn_jinja_run *run, struct rn_jinja_dict *d, const char *name, const struct rn_jinja_value *v)
{
    struct rn_jinja_value key = rn_jinja_own_str(name);
    return rn_jinja_dict_set(run, d, &key, v);
}

static const struct rn_jinja_value *get(const struct rn_jinja_dict *d, const char *name)
{
    struct rn_jinja_value key = rn_jinja_own_str(name);
    return rn_jinja_dict_find(d, &key);
}

/* Marks the roles of the messages as the template's own, if they are of the closed set. */
static void own_roles(const struct rn_jinja_value *messages)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function", "model", "ipython"};
    struct rn_jinja_value key = rn_jinja_own_str("role");
    for (size_t i = 0; messages->kind == RN_JINJA_LIST && i < messages->u.list->n; i++) {
        const struct rn_jinja_value *m = &messages->u.list->items[i];
        struct rn_jinja_value *role = m->kind == RN_JINJA_DICT ? rn_jinja_dict_find(m->u.dict, &key) : NULL;
        for (size_t j = 0; role && j < sizeof(roles) / sizeof(roles[0]); j++) {
            role->own = rn_jinja_is_text(role, roles[j]) ? RN_JINJA_OWN : role->own;
        }
    }
}

/* n digits at *at, which moves on; false when there are none. */
static bool take_number(const char **at, int n, int *ret)
{
    *ret = 0;
    for (int i = 0; i < n; i++, (*at)++) {
        if (**at < '0' || **at > '9') {
            return false;
        }
        *ret = *ret * 10 + (**at - '0');
    }
    return true;
}

static bool take_char(const char **at, const char *any)
{
    return **at && strchr(any, **at) ? (*at)++, true : false;
}

/* ISO 8601 in local time: 2026-11-29, 2026-11-29T10:15 or 2026-11-29 10:15:30.5; the fraction counts for nothing. */
static bool parse_local_time(const char *text, int64_t *ret)
{
    struct tm tm = {.tm_isdst = -1};
    const char *at = text;
    if (!take_number(&at, 4, &tm.tm_year) || !take_char(&at, "-") || !take_number(&at, 2, &tm.tm_mon) || !take_char(&at, "-") ||
        !take_number(&at, 2, &tm.tm_mday)) {
        return false;
    }
    if (take_char(&at, "T ")) {
        if (!take_number(&at, 2, &tm.tm_hour) || !take_char(&at, ":") || !take_number(&at, 2, &tm.tm_min) ||
            (take_char(&at, ":") && !take_number(&at, 2, &tm.tm_sec))) {
            return false;
        }
        if (take_char(&at, ".")) {
            at += strspn(at, "0123456789");
        }
    }
    const struct tm said = tm;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    time_t t = mktime(&tm);
    // mktime takes 30 February for 2 March. An hour that summer time leaves out may move.
    if (*at || tm.tm_year != said.tm_year - 1900 || tm.tm_mon != said.tm_mon - 1 || tm.tm_mday != said.tm_mday || said.tm_hour > 23 ||
        said.tm_min > 59 || said.tm_sec > 59) {
        return false;
    }
    *ret = (int64_t)t;
    return true;
}

/* The clock of strftime_now. */
static int set_clock(struct rn_jinja_run *run, const json_t *now)
{
    const char *text = json_string_value(now);
    run->now = json_is_integer(now) ? json_integer_value(now) : rn_clock_unix();
    if (!now || json_is_null(now) || json_is_integer(now) || (text && parse_local_time(text, &run->now))) {
        return 0;
    }
    return rn_err_set(run->err, -EINVAL, "\"now\" is %s%.40s%s, expected seconds since 1970 or a local time like \"2026-11-29T10:15:00\"",
                      text ? "\"" : "", text ? text : "no time", text ? "\"" : "");
}

/* The template's global names. `now` is ours: the time for strftime_now. */
static int make_globals(struct rn_jinja_run *run, json_t *variables, const char *bos_token, const char *eos_token,
                        struct rn_jinja_value *ret)
{
    static const char *const absent[] = {"tools", "documents"};
    json_t *now = json_object_get(variables, "now");
    int r = rn_jinja_from_json(run, variables, ret);
    if (r < 0) {
        return r;
    }
    struct rn_jinja_dict *d = ret->u.dict;
    r = set_clock(run, now);
    struct rn_jinja_value v = rn_jinja_none();
    for (size_t i = 0; r == 0 && i < sizeof(absent) / sizeof(absent[0]); i++) {
        r = get(d, absent[i]) ? 0 : set(run, d, absent[i], &v);
    }
    v = rn_jinja_bool(false);
    r = r < 0 || get(d, "add_generation_prompt") ? r : set(run, d, "add_generation_prompt", &v);
    v = bos_token ? rn_jinja_own_str(bos_token) : v;
    r = r < 0 || !bos_token ? r : set(run, d, "bos_token", &v);
    v = eos_token ? rn_jinja_own_str(eos_token) : v;
    r = r < 0 || !eos_token ? r : set(run, d, "eos_token", &v);
    v = rn_jinja_undefined(NULL, "now", 3);
    r = r < 0 || !now ? r : set(run, d, "now", &v);
    const struct rn_jinja_value *messages = get(d, "messages");
    if (r == 0 && messages) {
        own_roles(messages);
    }
    return r;
}

static int copy_out(const struct rn_jinja_sink *k, struct rn_rendered *ret, struct rn_err *err)
{
    struct rn_rendered out = {0};
    if (rn_buf_reserve(&out.text, k->len) < 0 || rn_buf_reserve(&out.own, k->len) < 0 ||
        rn_buf_add(&out.text, k->data ? k->data : "", k->len) < 0 || rn_buf_add(&out.own, k->mask ? k->mask : "", k->len) < 0) {
        rn_rendered_finish(&out);
        return rn_err_nomem(err, k->len, "a rendered conversation");
    }
    *ret = out;
    return 0;
}

int rn_template_render(const struct rn_template *t, json_t *variables, const char *bos_token, const char *eos_token,
                       struct rn_rendered *ret, struct rn_err *err)
{
    if (!json_is_object(variables)) {
        return rn_err_set(err, -EINVAL, "the variables of a template are an object");
    }
    struct rn_jinja_sink out = {0};
    struct rn_jinja_value globals;
    struct rn_jinja_eval e = {
        .run = {.arena.limit = RN_JINJA_MAX_RENDER_MEMORY, .source = t->source, .source_len = t->len, .err = err},
        .out = &out,
    };
    int r = make_globals(&e.run, variables, bos_token, eos_token, &globals);
    if (r == 0) {
        e.globals = globals.u.dict;
        r = rn_jinja_render(&e, &t->tree);
    }
    r = r < 0 ? r : copy_out(&out, ret, err);
    rn_jinja_arena_finish(&e.run.arena);
    return r;
}

int rn_text_render_source(const char *source, size_t len, json_t *variables, struct rn_rendered *ret, struct rn_err *err)
{
    struct rn_template *t = NULL;
    int r = rn_template_create(&t, source, len, err);
    if (r == 0) {
        // As a model's own tokens are: the template's text, not a message's.
        r = rn_template_render(t, variables, json_string_value(json_object_get(variables, "bos_token")),
                               json_string_value(json_object_get(variables, "eos_token")), ret, err);
    }
    rn_template_destroy(t);
    return r;
}

void rn_rendered_finish(struct rn_rendered *r)
{
    rn_buf_finish(&r->text);
    rn_buf_finish(&r->own);
}
