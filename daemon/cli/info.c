/* runnel info: what a model file says and needs, without loading it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/json_at.h"
#include "runtime/base/err.h"
#include "runtime/info.h"

struct args {
    bool json;
};

static const struct rn_option options[] = {
    {"--json", NULL, RN_OPTION_FLAG, offsetof(struct args, json), "print one JSON object"},
};

static const struct rn_option_group groups[] = {{NULL, RN_OPTIONS(options), 0}};

static const struct rn_option_set set = {
    .usage = "info FILE [--json]",
    .about = "What a GGUF file holds and needs: also one that this program cannot run.",
    .groups = groups,
    .n_groups = 1,
    .n_words = 1,
};

/* ---- Printing ---------------------------------------------------------------------------------------------------------------------- */

static void label(const char *name)
{
    printf("%-15s ", name);
}

static void put_bytes(double bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; bytes >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
        bytes /= 1024;
    }
    printf(unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
}

// "NAME VALUE" after a comma, where the file says it. A list is one value for each layer.
static void put_field(const json_t *o, const char *key, const char *name, bool *first)
{
    const json_t *v = at(o, key);
    if (!v) {
        return;
    }
    printf("%s%s ", *first ? "" : ", ", name);
    *first = false;
    if (json_is_string(v)) {
        printf("%s", json_string_value(v));
    } else if (json_is_array(v)) {
        double low = json_number_value(json_array_get(v, 0)), high = low;
        size_t i;
        const json_t *x;
        json_array_foreach((json_t *)v, i, x) // json_array_foreach is not made for const
        {
            low = json_number_value(x) < low ? json_number_value(x) : low;
            high = json_number_value(x) > high ? json_number_value(x) : high;
        }
        printf("%.0f to %.0f by layer", low, high);
    } else {
        printf("%.10g", json_number_value(v));
    }
}

struct field {
    const char *key, *name;
};

static void put_fields(const char *name, const json_t *o, const struct field *fields, size_t n)
{
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        if (first && at(o, fields[i].key)) {
            label(name);
        }
        put_field(o, fields[i].key, fields[i].name, &first);
    }
    if (!first) {
        putchar('\n');
    }
}

static void put_tensors(const json_t *tensors)
{
    size_t i;
    json_t *row;
    label("tensors");
    printf("%.0f, ", number_at(tensors, "count"));
    put_bytes(number_at(tensors, "bytes"));
    putchar('\n');
    json_array_foreach(at(tensors, "types"), i, row)
    {
        label("");
        printf("%-8s %6.0f  ", text_at(row, "type"), number_at(row, "tensors"));
        put_bytes(number_at(row, "bytes"));
        putchar('\n');
    }
}

static void put_special(const json_t *special)
{
    const char *name;
    json_t *token;
    bool first = true;
    json_object_foreach((json_t *)special, name, token) // as above
    {
        if (first) {
            label("special tokens");
        }
        printf("%s%s %.0f %s", first ? "" : ", ", name, number_at(token, "id"), text_at(token, "text"));
        first = false;
    }
    if (!first) {
        putchar('\n');
    }
}

static void put_kv(const char *what, const json_t *kv)
{
    printf("%s", what);
    put_bytes(number_at(kv, "f16"));
    printf(" as f16");
    if (json_is_number(at(kv, "q8_0"))) {
        printf(", ");
        put_bytes(number_at(kv, "q8_0"));
        printf(" as q8_0");
    }
    putchar('\n');
}

static void put_memory(const json_t *o)
{
    const json_t *memory = at(o, "memory");
    if (!memory) {
        return;
    }
    label("KV per token");
    put_kv("", at(o, "kv_bytes_per_token"));
    label("memory");
    printf("weights ");
    put_bytes(number_at(memory, "weights"));
    printf("; a window of %.0f tokens ", number_at(memory, "window"));
    put_kv("", at(memory, "kv"));
}

static void put_file(const json_t *o)
{
    label("file");
    rn_cli_put_text(text_at(o, "file"), strlen(text_at(o, "file")));
    printf(", ");
    put_bytes(number_at(o, "bytes"));
    if (number_at(o, "files") > 1) {
        printf(" in %.0f files", number_at(o, "files"));
    }
    putchar('\n');
}

static int print(const json_t *o)
{
    static const struct field model[] = {{"architecture", "architecture"}, {"name", "name"}, {"parameters", "parameters"}};
    static const struct field sizes[] = {{"layers", "layers"},     {"d_model", "width"},     {"d_ff", "feed-forward"},
                                         {"heads", "heads"},       {"kv_heads", "KV heads"}, {"head_dim", "head size"},
                                         {"vocabulary", "tokens"}, {"experts", "experts"},   {"experts_used", "experts used"}};
    static const struct field context[] = {{"context_length", "trained for"}, {"sliding_window", "sliding window"}};
    static const struct field rope[] = {{"base", "base"},       {"base_window", "base of windowed layers"}, {"dimensions", "dimensions"},
                                        {"scaling", "scaling"}, {"factor", "factor"}, {"original_context_length", "original length"}};
    static const struct field tokenizer[] = {{"model", "model"}, {"pre", "pre"}, {"tokens", "tokens"}, {"merges", "merges"}};
    const json_t *tokens = at(o, "tokenizer");
    put_file(o);
    put_fields("model", o, model, sizeof model / sizeof model[0]);
    label("runs here");
    printf("%s%s\n", json_is_true(at(o, "runs")) ? "yes" : "no: ", text_at(o, "reason"));
    put_fields("sizes", at(o, "sizes"), sizes, sizeof sizes / sizeof sizes[0]);
    put_fields("context", o, context, sizeof context / sizeof context[0]);
    put_fields("RoPE", at(o, "rope"), rope, sizeof rope / sizeof rope[0]);
    if (json_is_true(at(at(o, "rope"), "divisors"))) {
        label("");
        printf("frequency divisors (rope_freqs.weight)\n");
    }
    put_tensors(at(o, "tensors"));
    put_fields("tokenizer", tokens, tokenizer, sizeof tokenizer / sizeof tokenizer[0]);
    put_special(at(tokens, "special"));
    label("chat template");
    if (json_is_number(at(o, "chat_template"))) {
        put_bytes(number_at(o, "chat_template"));
        putchar('\n');
    } else {
        printf("none\n");
    }
    put_memory(o);
    return rn_cli_flush();
}

int rn_verb_info(int argc, char *const *argv)
{
    struct args args = {0};
    struct rn_err err = {0};
    json_t *o = NULL;
    const char *words[1];
    int code;
    if (!rn_cli_parse(&set, &args, argc, argv, words, &code)) {
        return code;
    }
    if (!words[0]) {
        (void)rn_err_set(&err, -EINVAL, "info: say which FILE"); // the code is chosen here
        return rn_cli_fail(RN_CLI_USAGE, &err);
    }
    if (rn_info_model(&o, words[0], &err) < 0) {
        return rn_cli_fail_input(&err);
    }
    if (args.json) {
        return rn_cli_print_json(o);
    }
    code = print(o);
    json_decref(o);
    return code;
}
