#include "daemon/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/err.h"

int rn_cli_fail(int exit_code, const struct rn_err *err)
{
    fprintf(stderr, "runnel: %s\n", err->text);
    return exit_code;
}

int rn_cli_fail_input(const struct rn_err *err)
{
    switch (err->code) {
    case -EACCES:
    case -EPERM:
        return rn_cli_fail(RN_CLI_DENIED, err);
    case -ENOMEM:
    case -EAGAIN:
    case -ENODEV:
        return rn_cli_fail(RN_CLI_UNAVAILABLE, err);
    default:
        return rn_cli_fail(RN_CLI_NO_INPUT, err);
    }
}

int rn_cli_fail_work(const struct rn_err *err)
{
    return rn_cli_fail(err->code == -ENOMEM ? RN_CLI_UNAVAILABLE : RN_CLI_FAILED, err);
}

bool rn_cli_parse(const struct rn_option_set *set, void *args, int argc, char *const *argv, const char **words, int *ret_exit)
{
    struct rn_err err = {0};
    int r = rn_options_parse(set, args, argc, argv, words, &err);
    if (r == 0) {
        return true;
    }
    rn_options_finish(set, args);
    if (r > 0) {
        rn_options_help(set, stdout);
        *ret_exit = rn_cli_flush();
        return false;
    }
    fprintf(stderr, "runnel: %s (see runnel %.*s --help)\n", err.text, (int)strcspn(set->usage, " "), set->usage);
    *ret_exit = r == -ENOMEM ? RN_CLI_UNAVAILABLE : RN_CLI_USAGE;
    return false;
}

static int read_stream(FILE *in, const char *path, struct rn_buf *ret, struct rn_err *err)
{
    for (;;) {
        if (rn_buf_reserve(ret, 65536) < 0) {
            return rn_err_nomem(err, ret->len + 65536, path);
        }
        size_t n = fread(ret->data + ret->len, 1, 65536, in);
        ret->len += n;
        ret->data[ret->len] = 0;
        if (ret->len > RN_CLI_INPUT_MAX) {
            return rn_err_set(err, -E2BIG, "'%s' has more than %zu MiB", path, RN_CLI_INPUT_MAX >> 20);
        }
        if (ferror(in)) {
            int code = errno ? errno : EIO;
            return rn_err_set(err, -code, "reading '%s': %s", path, strerror(code));
        }
        if (n == 0) {
            return 0;
        }
    }
}

int rn_cli_read(const char *path, struct rn_buf *ret, struct rn_err *err)
{
    if (strcmp(path, "-") == 0) {
        return read_stream(stdin, "standard input", ret, err);
    }
    FILE *in = fopen(path, "rb");
    if (!in) {
        int code = errno;
        return rn_err_set(err, -code, "opening '%s': %s", path, strerror(code));
    }
    int r = read_stream(in, path, ret, err);
    fclose(in); // was only read
    return r;
}

int rn_cli_read_json(const char *path, json_t **ret, struct rn_err *err)
{
    struct rn_buf text = {0};
    json_error_t error;
    int r = rn_cli_read(path, &text, err);
    if (r == 0) {
        json_t *v = json_loadb(text.data, text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        if (v) {
            *ret = v;
        } else {
            r = rn_err_set(err, -EINVAL, "'%s' is not JSON: line %d, column %d: %s", strcmp(path, "-") == 0 ? "standard input" : path,
                           error.line, error.column, error.text);
        }
    }
    rn_buf_finish(&text);
    return r;
}

int rn_cli_ids_from_json(const json_t *list, const char *what, struct rn_ids *ret, struct rn_err *err)
{
    if (!json_is_array(list)) {
        return rn_err_set(err, -EINVAL, "%s is not a JSON list of token ids", what);
    }
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > UINT32_MAX) {
            return rn_err_set(err, -EINVAL, "%s: element %zu is not a token id", what, i);
        }
        if (rn_ids_add(ret, (uint32_t)id) < 0) {
            return rn_err_nomem(err, (ret->len + 1) * sizeof(uint32_t), "token ids");
        }
    }
    return 0;
}

int rn_cli_read_ids(const char *path, struct rn_ids *ret, struct rn_err *err)
{
    json_t *list = NULL;
    char what[256];
    snprintf(what, sizeof what, "'%.200s'", path);
    int r = rn_cli_read_json(path, &list, err);
    if (r == 0) {
        r = rn_cli_ids_from_json(list, what, ret, err);
    }
    json_decref(list);
    return r;
}

json_t *rn_cli_ids_to_json(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        if (json_array_append_new(list, json_integer((json_int_t)ids[i])) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

void rn_cli_put_text(const char *text, size_t len)
{
    if (!isatty(STDOUT_FILENO)) {
        fwrite(text, 1, len, stdout); // rn_cli_flush sees what went wrong
        return;
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i], next = i + 1 < len ? (unsigned char)text[i + 1] : 0;
        if (c == 0xc2 && next >= 0x80 && next < 0xa0) { // U+0080..U+009F
            i++;
        } else if (c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f)) {
            putchar(c);
        }
    }
}

int rn_cli_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return RN_CLI_OK;
    }
    struct rn_err err = {0};
    (void)rn_err_set(&err, -EIO, "writing standard output: %s", strerror(errno)); // the code is fixed
    return rn_cli_fail(RN_CLI_FAILED, &err);
}

int rn_cli_print_json(json_t *v)
{
    struct rn_err err = {0};
    // 12 digits: more than a float32 has, and 0.7 stays 0.7
    if (!v || json_dumpf(v, stdout, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12)) < 0) {
        json_decref(v);
        (void)rn_err_set(&err, -ENOMEM, "%s", v ? "writing standard output failed" : "out of memory"); // the code is chosen below
        return rn_cli_fail(v ? RN_CLI_FAILED : RN_CLI_UNAVAILABLE, &err);
    }
    json_decref(v);
    putchar('\n');
    return rn_cli_flush();
}
