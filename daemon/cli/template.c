/* runnel template: {messages, add_generation_prompt, …} on standard input -> the text that a chat template makes of it: the model's, or one
 * in a file of its own. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cli/cli.h"
#include "runtime/base/err.h"
#include "runtime/text.h"

struct args {
    const char *model, *source;
    bool json;
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"-m", "FILE", RN_OPTION_STRING, AT(model), "the model"},
    {"--template", "FILE", RN_OPTION_STRING, AT(source), "a file with a template, instead of a model"},
    {"--json", NULL, RN_OPTION_FLAG, AT(json), "print {\"text\"}, of a model also \"ids\", the token ids of the text"},
};

static const struct rn_option_group groups[] = {{NULL, RN_OPTIONS(options), 0}};

static const struct rn_option_set set = {
    .usage = "template -m FILE | --template FILE [--json] < JSON",
    .about = "Renders {\"messages\": [{\"role\", \"content\"}, …], \"add_generation_prompt\": true|false} from standard input through a\n"
             "chat template. Further members are the template's variables: \"tools\", without a model \"bos_token\" and \"eos_token\",\n"
             "and any others. \"now\" is the local time that strftime_now tells, like \"2026-11-29T10:15:00\".",
    .groups = groups,
    .n_groups = 1,
};

static int read_variables(json_t **ret, struct rn_err *err)
{
    json_t *v = NULL;
    int r = rn_cli_read_json("-", &v, err);
    if (r < 0) {
        return r;
    }
    if (!json_is_array(json_object_get(v, "messages"))) {
        json_decref(v);
        return rn_err_set(err, -EINVAL, "standard input is not a JSON object with \"messages\", a list");
    }
    if (!json_object_get(v, "add_generation_prompt") && json_object_set_new(v, "add_generation_prompt", json_false()) < 0) {
        json_decref(v);
        return rn_err_nomem(err, sizeof(json_t *), "the conversation");
    }
    *ret = v;
    return 0;
}

static int print_rendered(const struct rn_text *t, const struct args *a, const struct rn_rendered *r, struct rn_err *err)
{
    const char *text = r->text.data ? r->text.data : "";
    if (!a->json) {
        fwrite(text, 1, r->text.len, stdout); // rn_cli_flush sees what went wrong
        return rn_cli_flush();
    }
    if (!t) {
        return rn_cli_print_json(json_pack("{s:s%}", "text", text, r->text.len));
    }
    struct rn_ids ids = {0};
    int code = rn_text_tokenize_rendered(t, r, &ids, err);
    if (code == 0) {
        json_t *list = rn_cli_ids_to_json(ids.data, ids.len);
        code = rn_cli_print_json(json_pack("{s:s%, s:o}", "text", text, r->text.len, "ids", list));
    }
    rn_ids_finish(&ids);
    return code;
}

static int render(const struct args *a, struct rn_err *err)
{
    struct rn_text *t = NULL;
    struct rn_buf source = {0};
    struct rn_rendered rendered = {0};
    json_t *variables = NULL;
    int r = a->source ? rn_cli_read(a->source, &source, err) : rn_text_load(&t, a->model, err);
    if (r < 0) {
        rn_buf_finish(&source);
        return rn_cli_fail_input(err);
    }
    r = read_variables(&variables, err);
    if (r == 0 && t) {
        r = rn_text_render(t, variables, &rendered, err);
    } else if (r == 0) {
        r = rn_text_render_source(source.data ? source.data : "", source.len, variables, &rendered, err);
        r = r < 0 ? rn_err_prefix(err, "template '%s'", a->source) : r;
    }
    r = r < 0 ? r : print_rendered(t, a, &rendered, err);
    json_decref(variables);
    rn_rendered_finish(&rendered);
    rn_buf_finish(&source);
    rn_text_destroy(t);
    return r < 0 ? rn_cli_fail_work(err) : r;
}

int rn_verb_template(int argc, char *const *argv)
{
    struct args args = {0};
    struct rn_err err = {0};
    int code;
    if (!rn_cli_parse(&set, &args, argc, argv, NULL, &code)) {
        return code;
    }
    if (!args.model == !args.source) {
        (void)rn_err_set(&err, -EINVAL, args.model ? "both -m and --template are given, expected one" : "no model or template: say which with -m FILE or "
                                                                                                     "--template FILE");
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    if (args.source && strcmp(args.source, "-") == 0) {
        (void)rn_err_set(&err, -EINVAL, "--template is '-', expected a file: standard input has the conversation");
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    return render(&args, &err);
}
