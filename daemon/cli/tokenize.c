/* runnel tokenize: standard input as text -> a JSON list of token ids, or back. Needs no weights. */
#include <errno.h>
#include <stdio.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/model.h"
#include "runtime/base/err.h"
#include "runtime/text.h"

struct args {
    const char *model;
    bool special, detokenize, json_input;
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"-m", "FILE", RN_OPTION_STRING, AT(model), "the model, or any GGUF file with a vocabulary"},
    {"--special", NULL, RN_OPTION_FLAG, AT(special), "control tokens written in the text are taken as such (back: they appear as text)"},
    {"--detokenize", NULL, RN_OPTION_FLAG, AT(detokenize), "a JSON list of ids -> text"},
    {"--json-input", NULL, RN_OPTION_FLAG, AT(json_input),
     "a JSON list of texts -> a list of lists (back: a list of lists -> a list of texts)"},
};

static const struct rn_option_group groups[] = {{NULL, RN_OPTIONS(options), 0}};

static const struct rn_option_set set = {
    .usage = "tokenize -m FILE [--special] [--detokenize] [--json-input] < INPUT",
    .about = "Prints the token ids of the text on standard input as a JSON list. No BOS is added.",
    .groups = groups,
    .n_groups = 1,
};

static int ids_of(const struct rn_text *t, const struct args *a, const char *text, size_t len, json_t **ret, struct rn_err *err)
{
    struct rn_ids ids = {0};
    int r = rn_text_tokenize(t, text, len, a->special, &ids, err);
    if (r == 0) {
        json_t *list = rn_cli_ids_to_json(ids.data, ids.len);
        if (list) {
            *ret = list;
        } else {
            r = rn_err_nomem(err, ids.len, "token ids");
        }
    }
    rn_ids_finish(&ids);
    return r;
}

static int text_of(const struct rn_text *t, const struct args *a, const json_t *list, const char *what, struct rn_buf *ret,
                   struct rn_err *err)
{
    struct rn_ids ids = {0};
    struct rn_detok d = {0};
    int r = rn_cli_ids_from_json(list, what, &ids, err);
    for (size_t i = 0; r == 0 && i < ids.len; i++) {
        if (ids.data[i] >= rn_text_n_vocab(t)) {
            r = rn_err_set(err, -EINVAL, "%s: id %u, the vocabulary has %u", what, ids.data[i], rn_text_n_vocab(t));
        } else if (rn_detok_push(&d, t, ids.data[i], a->special, ret) < 0) {
            r = rn_err_nomem(err, ret->len, "text");
        }
    }
    if (r == 0 && rn_detok_end(&d, ret) < 0) {
        r = rn_err_nomem(err, ret->len, "text");
    }
    rn_ids_finish(&ids);
    return r;
}

/* One element of --json-input. */
static int convert(const struct rn_text *t, const struct args *a, const json_t *v, size_t i, json_t **ret, struct rn_err *err)
{
    if (!a->detokenize) {
        if (!json_is_string(v)) {
            return rn_err_set(err, -EINVAL, "standard input: element %zu is not a text", i);
        }
        return ids_of(t, a, json_string_value(v), json_string_length(v), ret, err);
    }
    char what[64];
    struct rn_buf text = {0};
    snprintf(what, sizeof what, "standard input, element %zu,", i);
    int r = text_of(t, a, v, what, &text, err);
    if (r == 0) {
        json_t *said = json_stringn(text.data ? text.data : "", text.len);
        if (said) {
            *ret = said;
        } else {
            r = rn_err_nomem(err, text.len, "text");
        }
    }
    rn_buf_finish(&text);
    return r;
}

static int convert_all(const struct rn_text *t, const struct args *a, struct rn_err *err)
{
    json_t *in = NULL, *out = NULL, *v;
    size_t i;
    int r = rn_cli_read_json("-", &in, err);
    if (r == 0 && !json_is_array(in)) {
        r = rn_err_set(err, -EINVAL, "standard input is not a JSON list");
    }
    out = r == 0 ? json_array() : NULL;
    json_array_foreach(in, i, v)
    {
        json_t *one = NULL;
        r = r < 0 ? r : convert(t, a, v, i, &one, err);
        if (r == 0 && json_array_append_new(out, one) < 0) {
            r = rn_err_nomem(err, i, "a list");
        }
    }
    json_decref(in);
    if (r < 0) {
        json_decref(out);
        return r;
    }
    return rn_cli_print_json(out);
}

static int convert_one(const struct rn_text *t, const struct args *a, struct rn_err *err)
{
    struct rn_buf text = {0};
    json_t *list = NULL;
    int r = a->detokenize ? rn_cli_read_json("-", &list, err) : rn_cli_read("-", &text, err);
    if (r == 0 && !a->detokenize) {
        r = ids_of(t, a, text.data ? text.data : "", text.len, &list, err);
        r = r < 0 ? r : rn_cli_print_json(json_incref(list));
    } else if (r == 0) {
        r = text_of(t, a, list, "standard input", &text, err);
        if (r == 0) {
            fwrite(text.data, 1, text.len, stdout); // rn_cli_flush sees what went wrong
            r = rn_cli_flush();
        }
    }
    json_decref(list);
    rn_buf_finish(&text);
    return r;
}

int rn_verb_tokenize(int argc, char *const *argv)
{
    struct args args = {0};
    struct rn_text *text = NULL;
    struct rn_err err = {0};
    int code;
    if (!rn_cli_parse(&set, &args, argc, argv, NULL, &code)) {
        return code;
    }
    if (rn_model_check(args.model, &err) < 0) {
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    if (rn_text_load(&text, args.model, &err) < 0) {
        return rn_cli_fail_input(&err);
    }
    code = args.json_input ? convert_all(text, &args, &err) : convert_one(text, &args, &err);
    rn_text_destroy(text);
    return code < 0 ? rn_cli_fail_work(&err) : code;
}
