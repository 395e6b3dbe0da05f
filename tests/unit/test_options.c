/* Command-line options: typed rows, ranges, and what is said about a wrong line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cli/options.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"

struct shared {
    const char *kind;
    int64_t window;
};

struct args {
    bool flag;
    const char *string, *text;
    uint32_t count;
    uint64_t big;
    float share;
    struct rn_numbers depths;
    struct rn_strings stops;
    struct shared shared;
};

static const struct rn_option own[] = {
    {"--flag", NULL, RN_OPTION_FLAG, offsetof(struct args, flag), "a flag"},
    {"-m", "FILE", RN_OPTION_STRING, offsetof(struct args, string), "a string"},
    {"-p", "TEXT", RN_OPTION_TEXT, offsetof(struct args, text), "a text"},
    {"--count", "N", RN_OPTION_U32, offsetof(struct args, count), "a count", .min = 1, .max = 1000, .preset = "128"},
    {"--any", "N", RN_OPTION_U32, offsetof(struct args, count), "any count"},
    {"--big", "N", RN_OPTION_U64, offsetof(struct args, big), "a big number"},
    {"--share", "P", RN_OPTION_FLOAT, offsetof(struct args, share), "a share", .f_max = 1, .above = true, .preset = "1"},
    {"-d", "A,B", RN_OPTION_NUMBERS, offsetof(struct args, depths), "numbers", .max = 9999, .preset = "0,4096"},
    {"--stop", "TEXT", RN_OPTION_STRINGS, offsetof(struct args, stops), "strings"},
};
static const struct rn_option shared[] = {
    {"--kind", "KIND", RN_OPTION_CHOICE, offsetof(struct shared, kind), "a choice", .choices = "turn|token", .preset = "turn"},
    {"--window", "N", RN_OPTION_I64, offsetof(struct shared, window), "perhaps a number", .min = 16, .max = 64, .preset = "-"},
};
static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(own), 0},
    {"shared", RN_OPTIONS(shared), offsetof(struct args, shared)},
};
static const struct rn_option_set set = {"verb [options]", "About it.", groups, 2, 2};

#define MAX_WORDS 32

/* Parses a line whose words are separated by '|', so that a word may have spaces or be empty. Borrows from a static copy of it. */
static int parse(struct args *args, const char *line, const char **words, struct rn_err *err)
{
    static char copy[1024];
    char *argv[MAX_WORDS];
    int argc = 0;
    *args = (struct args){0};
    snprintf(copy, sizeof copy, "%s", line);
    for (char *at = *copy ? copy : NULL; at && argc < MAX_WORDS;) {
        char *end = strchr(at, '|');
        argv[argc++] = at;
        at = end ? end + 1 : NULL;
        if (end) {
            *end = 0;
        }
    }
    return rn_options_parse(&set, args, argc, argv, words, err);
}

static void presets_hold_where_nothing_is_said(void **state)
{
    (void)state;
    struct args a;
    const char *words[2];
    assert_int_equal(parse(&a, "", words, NULL), 0);
    assert_false(a.flag);
    assert_null(a.string);
    assert_int_equal(a.count, 128);
    assert_true(a.share == 1.0f);
    assert_int_equal(a.depths.n, 2);
    assert_int_equal(a.depths.data[1], 4096);
    assert_int_equal(a.stops.n, 0);
    assert_string_equal(a.shared.kind, "turn");
    assert_int_equal(a.shared.window, -1);
    assert_null(words[0]);
    rn_options_finish(&set, &a);
    assert_null(a.depths.data);
}

static void every_kind_is_read(void **state)
{
    (void)state;
    struct args a;
    const char *words[2];
    assert_int_equal(parse(&a,
                           "one|--flag|-m|a file|-p||--count|1000|--big=18446744073709551615|--share|0.25|-d|7|-d|1,2,3|--stop|a|--stop=b=|"
                           "--kind|token|--window|64|--|--flag",
                           words, NULL),
                     0);
    assert_true(a.flag);
    assert_string_equal(a.string, "a file");
    assert_string_equal(a.text, "");
    assert_int_equal(a.count, 1000);
    assert_true(a.big == UINT64_MAX);
    assert_true(a.share == 0.25f);
    assert_int_equal(a.depths.n, 3); // the last one given counts
    assert_int_equal(a.depths.data[2], 3);
    assert_int_equal(a.stops.n, 2);
    assert_string_equal(a.stops.data[0], "a");
    assert_string_equal(a.stops.data[1], "b=");
    assert_string_equal(a.shared.kind, "token");
    assert_int_equal(a.shared.window, 64);
    assert_string_equal(words[0], "one");
    assert_string_equal(words[1], "--flag"); // behind "--" all are words
    rn_options_finish(&set, &a);
}

static void help_is_told_apart(void **state)
{
    (void)state;
    struct args a;
    const char *words[2];
    assert_int_equal(parse(&a, "--flag|--help|--nonsense", words, NULL), 1);
    rn_options_finish(&set, &a);
    assert_int_equal(parse(&a, "-h", words, NULL), 1);
    rn_options_finish(&set, &a);
    assert_int_equal(parse(&a, "-p|-h", words, NULL), 0); // the value of -p
    assert_string_equal(a.text, "-h");
    rn_options_finish(&set, &a);
}

static void a_wrong_line_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *line, *said;
    } cases[] = {
        {"--wrong", "unknown option '--wrong'"},
        {"-x", "unknown option '-x'"},
        {"-m=file", "unknown option '-m=file'"}, // one letter takes its value as the next word
        {"--flagg=1", "unknown option '--flagg'"},
        {"--flag=1", "--flag takes no value"},
        {"--count", "--count needs a value: N"},
        {"-m|", "-m is empty, expected FILE"},
        {"--stop|", "--stop is empty, expected TEXT"},
        {"--count|0", "--count is '0', expected an integer from 1 to 1000"},
        {"--count|1001", "--count is '1001', expected an integer from 1 to 1000"},
        {"--count|-1", "--count is '-1', expected an integer from 1 to 1000"},
        {"--count|1x", "--count is '1x', expected an integer from 1 to 1000"},
        {"--count|", "--count is '', expected an integer from 1 to 1000"},
        {"--count| 1", "--count is ' 1', expected an integer from 1 to 1000"},
        {"--any|4294967296", "--any is '4294967296', expected an integer from 0 to 4294967295"},
        {"--big|18446744073709551616", "--big is '18446744073709551616', expected an integer of at least 0"},
        {"--share|0", "--share is '0', expected a number above 0 and up to 1"},
        {"--share|1.5", "--share is '1.5', expected a number above 0 and up to 1"},
        {"--share|nan", "--share is 'nan', expected a number above 0 and up to 1"},
        {"--share|0.5 ", "--share is '0.5 ', expected a number above 0 and up to 1"},
        {"-d|1,,2", "-d is '1,,2', expected integers, separated by commas, each from 0 to 9999"},
        {"-d|1,", "-d is '1,', expected integers, separated by commas, each from 0 to 9999"},
        {"-d|1;2", "-d is '1;2', expected integers, separated by commas, each from 0 to 9999"},
        {"-d|10000", "-d is '10000', expected integers, separated by commas, each from 0 to 9999"},
        {"--kind|tur", "--kind is 'tur', expected turn|token"},
        {"--kind|", "--kind is '', expected turn|token"},
        {"--window|15", "--window is '15', expected an integer from 16 to 64"},
        {"--window|-", "--window is '-', expected an integer from 16 to 64"},
        {"a|b|c", "unexpected argument 'c'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct args a;
        struct rn_err err = {0};
        const char *words[2];
        assert_int_equal(parse(&a, cases[i].line, words, &err), -EINVAL);
        assert_string_equal(err.text, cases[i].said);
        rn_options_finish(&set, &a);
    }
}

static void each_allocation_may_fail(void **state)
{
    (void)state;
    int r = -ENOMEM;
    for (uint64_t n = 1; r == -ENOMEM && n < 100; n++) {
        struct args a;
        struct rn_err err = {0};
        const char *words[2];
        rn_mem_fail_at(n);
        r = parse(&a, "-d|1,2|--stop|a|--stop|b|-d|3", words, &err);
        rn_mem_fail_at(0);
        assert_true(r == 0 || r == -ENOMEM);
        rn_options_finish(&set, &a);
    }
    assert_int_equal(r, 0);
}

static void help_lists_all_rows(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    rn_options_help(&set, out);
    fclose(out);
    assert_non_null(strstr(text, "usage: runnel verb [options]"));
    for (size_t g = 0; g < set.n_groups; g++) {
        for (size_t i = 0; i < groups[g].n_options; i++) {
            assert_non_null(strstr(text, groups[g].options[i].name));
        }
    }
    assert_non_null(strstr(text, "a choice: turn|token (default turn)"));
    assert_non_null(strstr(text, "numbers (default 0,4096)"));
    assert_null(strstr(text, "default -"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_hold_where_nothing_is_said),
        cmocka_unit_test(every_kind_is_read),
        cmocka_unit_test(help_is_told_apart),
        cmocka_unit_test(a_wrong_line_is_named),
        cmocka_unit_test(each_allocation_may_fail),
        cmocka_unit_test(help_lists_all_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
