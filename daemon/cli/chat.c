/* runnel chat: the daemon's client in the terminal. One WebSocket connection, one session; each line is a question.
 *
 *   line --response.create--> daemon --events--> text as it comes ... terminal event --> status line
 *                 Ctrl-C --response.cancel-->        the answer ends, the session goes on
 *
 * Without a terminal each line of standard input is answered in turn. Once the session's name is known every question names it, so
 * that a connection lost in between costs nothing. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/cli/chat_line.h"
#include "daemon/cli/cli.h"
#include "daemon/cli/daemon_url.h"
#include "daemon/cli/model.h"
#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define LOOK_NS 50000000u // how late Ctrl-C may be noticed
#define ID_BYTES 128

struct args {
    struct rn_url_args url;
    struct rn_window_args window;
    struct rn_sampling_args sampling;
    const char *session, *system;
    uint32_t max_tokens;
    bool json;
    struct rn_logit_bias *bias; // owned: --logit-bias
    size_t n_bias;
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"--session", "ID", RN_OPTION_STRING, AT(session), "go on with a session that is there"},
    {"-s", "SYSTEM", RN_OPTION_TEXT, AT(system), "what the model is told first"},
    {"-n", "N", RN_OPTION_U32, AT(max_tokens), "tokens of an answer at most", .min = 1, .max = 4096, .preset = "4096"},
    {"--json", NULL, RN_OPTION_FLAG, AT(json), "print one JSON object per answer: {\"text\", \"response\", \"runnel\"}"},
};

static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(options), 0},
    {"sampling", RN_OPTIONS(rn_sampling_options), AT(sampling)},
    {"window (of a new session)", RN_OPTIONS(rn_window_options), AT(window)},
    {"daemon", RN_OPTIONS(rn_url_options), AT(url)},
};

static const struct rn_option_set set = {
    .usage = "chat [--url U] [--session ID] [-s SYSTEM]",
    .about =
        "Talks to the daemon. Ctrl-C stops an answer, Ctrl-D leaves; /new starts a new session. Without a terminal each line of standard\n"
        "input is answered in turn.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof groups[0],
};

struct chat {
    const struct args *args;
    struct rn_client_address to;
    struct rn_client *client; // NULL = not connected
    bool is_terminal;
    char session[ID_BYTES]; // "" = not known yet

    /* the answer that is coming in */
    char response_id[ID_BYTES];
    struct rn_buf text;
    bool any, cancel_sent, over;
    int exit_code;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static void copy_id(char ret[ID_BYTES], const json_t *v)
{
    const char *s = json_string_value(v);
    if (s && strlen(s) < ID_BYTES) {
        memcpy(ret, s, strlen(s) + 1);
    }
}

/* ---- The question ------------------------------------------------------------------------------------------------------------------ */

// A float32 as it was typed: 0.7, not 0.699999988.
static json_t *short_real(float x)
{
    return json_real(round((double)x * 1e6) / 1e6);
}

// What differs from the defaults; the daemon says in its record what counted.
static int set_penalties(json_t *v, const struct args *a)
{
    const struct rn_sampling_args *s = &a->sampling;
    int r = 0;
    if (s->repeat_penalty != 1) {
        r |= json_object_set_new(v, "repeat_penalty", short_real(s->repeat_penalty));
    }
    if (s->frequency_penalty != 0) {
        r |= json_object_set_new(v, "frequency_penalty", short_real(s->frequency_penalty));
    }
    if (s->presence_penalty != 0) {
        r |= json_object_set_new(v, "presence_penalty", short_real(s->presence_penalty));
    }
    json_t *bias = a->n_bias ? json_object() : NULL;
    for (size_t i = 0; i < a->n_bias; i++) {
        char id[16];
        snprintf(id, sizeof id, "%u", a->bias[i].id);
        r |= json_object_set_new(bias, id, short_real(a->bias[i].value));
    }
    return bias ? r | json_object_set_new(v, "logit_bias", bias) : r;
}

static json_t *make_extension(const struct chat *c)
{
    const struct args *a = c->args;
    json_t *v =
        json_pack("{s:s, s:I, s:o}", "overflow", "roll", "top_k", (json_int_t)a->sampling.top_k, "min_p", short_real(a->sampling.min_p));
    int r = v ? set_penalties(v, a) : -1;
    if (a->sampling.seed >= 0) {
        r |= json_object_set_new(v, "seed", json_integer((json_int_t)a->sampling.seed));
    }
    if (c->session[0]) {
        r |= json_object_set_new(v, "session", json_string(c->session));
        return r < 0 ? (json_decref(v), NULL) : v;
    }
    r |= json_object_set_new(v, "evict", json_string(a->window.evict));
    if (a->window.window >= 0) {
        r |= json_object_set_new(v, "window", json_integer((json_int_t)a->window.window));
    }
    if (a->window.sinks >= 0) {
        r |= json_object_set_new(v, "sinks", json_integer((json_int_t)a->window.sinks));
    }
    return r < 0 ? (json_decref(v), NULL) : v;
}

static char *make_question(const struct chat *c, const char *line, size_t len, struct rn_err *err)
{
    const struct args *a = c->args;
    json_t *input = json_stringn(line, len);
    if (!input) {
        (void)rn_err_set(err, -EINVAL, "the line is not valid UTF-8"); // NULL says that it failed
        return NULL;
    }
    json_t *v = json_pack("{s:s, s:o, s:o, s:o, s:I, s:o}", "type", "response.create", "input", input, "temperature",
                          short_real(a->sampling.temperature), "top_p", short_real(a->sampling.top_p), "max_output_tokens",
                          (json_int_t)a->max_tokens, "runnel", make_extension(c));
    if (v && a->system && json_object_set_new(v, "instructions", json_string(a->system)) < 0) {
        json_decref(v);
        v = NULL;
    }
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    if (!text) {
        (void)rn_err_nomem(err, len, "the question");
    }
    return text;
}

static int connect_daemon(struct chat *c, struct rn_err *err)
{
    return c->client ? 0 : rn_client_open(&c->client, &c->to, err);
}

static void disconnect(struct chat *c)
{
    rn_client_close(c->client);
    c->client = NULL;
}

/* ---- The answer -------------------------------------------------------------------------------------------------------------------- */

static void send_cancel(struct chat *c)
{
    char text[64 + ID_BYTES];
    int n = snprintf(text, sizeof text, "{\"type\":\"response.cancel\",\"response_id\":\"%s\"}", c->response_id);
    c->cancel_sent = rn_client_send(c->client, text, (size_t)n) == 0;
}

static void put_delta(struct chat *c, const json_t *delta)
{
    const char *s = json_string_value(delta);
    if (!s) {
        return;
    }
    if (c->args->json) {
        (void)rn_buf_add(&c->text, s, json_string_length(delta)); // the terminal event has the whole text anyway
        return;
    }
    rn_cli_put_text(s, json_string_length(delta));
    fflush(stdout);
}

static void put_status(const json_t *response)
{
    const json_t *record = json_object_get(response, "runnel"), *context = json_object_get(record, "context");
    const char *cause = json_string_value(json_object_get(json_object_get(record, "stop"), "cause"));
    const json_t *rebased = json_object_get(record, "rebased");
    printf("\033[2m[%lld tokens, %.1f tokens/s, window %lld/%lld, evicted %lld",
           (long long)json_integer_value(json_object_get(json_object_get(response, "usage"), "output_tokens")),
           json_number_value(json_object_get(json_object_get(record, "timings"), "decode_tokens_per_s")),
           (long long)json_integer_value(json_object_get(context, "used")), (long long)json_integer_value(json_object_get(context, "n")),
           (long long)json_integer_value(json_object_get(context, "evicted")));
    if (cause && strcmp(cause, "eos") != 0) {
        printf(", ended: %s", cause);
    }
    printf("%s]\033[0m\n", rebased && !json_is_null(rebased) ? ", rebased" : "");
}

static void put_end(struct chat *c, const json_t *response)
{
    if (c->args->json) {
        json_t *output = json_object_get(json_array_get(json_object_get(response, "output"), 0), "content");
        json_t *text = json_object_get(json_array_get(output, 0), "text");
        int code = rn_cli_print_json(json_pack("{s:o, s:O?, s:O?}", "text", text ? json_incref(text) : json_string(""), "response",
                                               json_object_get(response, "id"), "runnel", json_object_get(response, "runnel")));
        c->exit_code = code ? code : c->exit_code;
        return;
    }
    putchar('\n');
    if (c->is_terminal) {
        put_status(response);
    }
    int code = rn_cli_flush();
    c->exit_code = code ? code : c->exit_code;
}

static void put_error(struct chat *c, int status, const char *text)
{
    struct rn_err err = {0};
    (void)rn_err_set(&err, -EIO, "%s", text ? text : "the daemon refused the question"); // the code is chosen here
    c->exit_code = rn_cli_fail(rn_url_exit_code(status), &err);
}

static void take_event(struct chat *c, const json_t *event)
{
    const char *type = json_string_value(json_object_get(event, "type"));
    const json_t *response = json_object_get(event, "response");
    c->any = true;
    if (!type) {
        return;
    }
    if (strcmp(type, "response.created") == 0) {
        copy_id(c->response_id, json_object_get(response, "id"));
        copy_id(c->session, json_object_get(json_object_get(response, "runnel"), "session"));
    } else if (strcmp(type, "response.output_text.delta") == 0) {
        put_delta(c, json_object_get(event, "delta"));
    } else if (strcmp(type, "response.completed") == 0 || strcmp(type, "response.incomplete") == 0) {
        copy_id(c->session, json_object_get(json_object_get(response, "runnel"), "session"));
        put_end(c, response);
        c->over = true;
    } else if (strcmp(type, "response.failed") == 0) {
        put_error(c, 500, rn_url_error_text(response));
        c->over = true;
    } else if (strcmp(type, "error") == 0) {
        put_error(c, (int)json_integer_value(json_object_get(event, "status")), rn_url_error_text(event));
        c->over = true;
    }
}

/* Reads events until the answer is over. -ENOTCONN: the connection ended before. */
static int take_answer(struct chat *c)
{
    struct rn_buf message = {0};
    int r = 0;
    while (!c->over && r >= 0) {
        rn_buf_clear(&message);
        r = rn_client_receive(c->client, rn_clock_ns() + LOOK_NS, &message);
        if (r > 0) {
            json_t *event = json_loadb(message.data ? message.data : "", message.len, JSON_ALLOW_NUL, NULL);
            take_event(c, event);
            json_decref(event);
        }
        if (r >= 0 && interrupted && !c->cancel_sent && !c->over && c->response_id[0]) {
            send_cancel(c);
        }
    }
    rn_buf_finish(&message);
    return r < 0 ? r : 0;
}

static int ask_once(struct chat *c, const char *question, struct rn_err *err)
{
    rn_buf_clear(&c->text);
    c->response_id[0] = 0;
    c->any = c->cancel_sent = c->over = false;
    int r = connect_daemon(c, err);
    if (r < 0) {
        return r;
    }
    r = rn_client_send(c->client, question, strlen(question));
    r = r < 0 ? r : take_answer(c);
    if (r == -ENOTCONN) {
        disconnect(c);
        return rn_err_set(err, r, "the connection to the daemon was lost");
    }
    return r < 0 ? rn_err_set(err, r, "the question could not be sent") : 0;
}

/* An idle connection may have been closed by the daemon: then the question goes out again, once. */
static int ask(struct chat *c, const char *line, size_t len, struct rn_err *err)
{
    char *question = make_question(c, line, len, err);
    if (!question) {
        return err->code;
    }
    bool was_open = c->client != NULL;
    c->exit_code = RN_CLI_OK;
    int r = ask_once(c, question, err);
    if (r == -ENOTCONN && was_open && !c->any) {
        r = ask_once(c, question, err);
    }
    free(question);
    return r;
}

/* ---- Lines ------------------------------------------------------------------------------------------------------------------------- */

static bool is_blank(const struct rn_buf *line)
{
    return !line->data || strspn(line->data, " \t\r") == line->len;
}

static int fail_question(const struct rn_err *err)
{
    return rn_cli_fail(err->code == -EINVAL ? RN_CLI_FAILED : RN_CLI_UNAVAILABLE, err);
}

/* A pipe: the first question that fails ends it. */
static int answer_lines(struct chat *c)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int code = RN_CLI_OK;
    while (code == RN_CLI_OK && !interrupted && (n = getline(&line, &cap, stdin)) >= 0) {
        size_t len = (size_t)n;
        struct rn_err err = {0};
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r')) {
            len--;
        }
        if (len > 0) {
            code = ask(c, line, len, &err) < 0 ? fail_question(&err) : c->exit_code;
        }
    }
    free(line);
    return code;
}

/* A line that is a command. */
static bool do_command(struct chat *c, const char *line, bool *ret_leave)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        *ret_leave = true;
    } else if (strcmp(line, "/new") == 0) {
        c->session[0] = 0;
        printf("a new session\n");
    } else if (strcmp(line, "/session") == 0) {
        printf("%s\n", c->session[0] ? c->session : "no session yet");
    } else if (strcmp(line, "/help") == 0) {
        printf("/new  a new session\n/session  its name\n/quit  leave\n");
    } else {
        return false;
    }
    return true;
}

static void answer_typed(struct chat *c, const struct rn_buf *line, bool *ret_leave)
{
    struct rn_err err = {0};
    if (is_blank(line) || do_command(c, line->data, ret_leave)) {
        return;
    }
    if (ask(c, line->data, line->len, &err) < 0) {
        (void)fail_question(&err); // said; the next question may do better
    }
}

static int converse(struct chat *c)
{
    struct rn_err err = {0};
    struct rn_line *reader = NULL;
    struct rn_buf line = {0};
    if (rn_line_create(&reader, "> ", &interrupted, &err) < 0) {
        return rn_cli_fail(RN_CLI_UNAVAILABLE, &err);
    }
    printf("runnel at http://%s (its page is there too). Ctrl-C stops an answer, Ctrl-D leaves, /help says more.\n", c->to.header);
    bool leave = false;
    while (!leave) {
        interrupted = 0;
        rn_buf_clear(&line);
        int r = rn_line_read(reader, &line);
        if (r == 1) {
            answer_typed(c, &line, &leave);
        } else if (r == -EINTR) {
            printf(" (Ctrl-D leaves)\n");
        } else {
            leave = true;
            putchar('\n');
        }
    }
    if (c->session[0]) {
        printf("runnel chat --session %s goes on with this conversation\n", c->session);
    }
    rn_line_destroy(reader);
    rn_buf_finish(&line);
    return rn_cli_flush();
}

int rn_verb_chat(int argc, char *const *argv)
{
    struct args args = {0};
    struct chat chat = {.args = &args};
    struct rn_err err = {0};
    int code;
    if (!rn_cli_parse(&set, &args, argc, argv, NULL, &code)) {
        return code;
    }
    if (args.session && strlen(args.session) >= ID_BYTES) {
        (void)rn_err_set(&err, -EINVAL, "--session has %zu characters, expected less than %d", strlen(args.session),
                         ID_BYTES); // code fixed
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    if (rn_url_resolve(&args.url, &chat.to, &err) < 0 || rn_sampling_bias(&args.sampling, &args.bias, &args.n_bias, &err) < 0) {
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    if (args.session) {
        memcpy(chat.session, args.session, strlen(args.session) + 1);
    }
    chat.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !args.json;
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL); // without SA_RESTART: a read for a line ends
    if (connect_daemon(&chat, &err) < 0) {
        code = rn_cli_fail(RN_CLI_UNAVAILABLE, &err);
    } else {
        code = chat.is_terminal ? converse(&chat) : answer_lines(&chat);
        rn_client_close(chat.client);
    }
    rn_buf_finish(&chat.text);
    rn_mem_free(args.bias);
    return code;
}
