/* The chat templates of published models against Hugging Face's own renderings of them. The templates are not ours to ship: RUNNEL_SHARED
 * names the folder with data/templates and data/reference/templates.json; without it the test is skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/err.h"
#include "runtime/text/template.h"

static const char *shared;

static char *read_file(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        return NULL;
    }
    char *data = malloc(1 << 20);
    *ret_len = data ? fread(data, 1, 1 << 20, f) : 0;
    fclose(f);
    return data;
}

static size_t first_difference(const char *a, const char *b)
{
    size_t i = 0;
    while (a[i] && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* One template and conversation; true when it came out as expected: the same text, or an error in both. */
static bool check_case(const struct rn_template *t, const struct rn_err *parse_err, const char *name, const char *case_name, json_t *vars,
                       json_t *expected)
{
    struct rn_err err = *parse_err;
    struct rn_rendered out = {0};
    int r = t ? rn_template_render(t, vars, "<BOS>", "<EOS>", &out, &err) : err.code;
    const char *text = json_string_value(json_object_get(expected, "text"));
    const char *error = json_string_value(json_object_get(expected, "error"));
    bool ok = r < 0 ? error != NULL : text && strcmp(text, out.text.data) == 0 && out.own.len == out.text.len;
    if (!ok && r < 0) {
        print_message("%s, %s: error: %s\n", name, case_name, err.text);
    } else if (!ok) {
        size_t at = text ? first_difference(text, out.text.data) : 0;
        print_message("%s, %s: at byte %zu: '%.60s', expected '%.60s'\n", name, case_name, at, out.text.data + at, text ? text + at : error);
    } else if (r < 0 && getenv("RUNNEL_SHOW_ERRORS")) {
        print_message("%s, %s: '%s' for '%s'\n", name, case_name, err.text, error);
    }
    rn_rendered_finish(&out);
    return ok;
}

static void test_renderings(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof(path), "%s/data/reference/templates.json", shared);
    json_t *reference = json_load_file(path, 0, NULL);
    assert_non_null(reference);
    struct tm clock = {.tm_year = 126, .tm_mon = 10, .tm_mday = 29, .tm_hour = 10, .tm_min = 15, .tm_isdst = -1};
    json_int_t now = (json_int_t)mktime(&clock);
    int n = 0, n_equal = 0;
    const char *name, *case_name;
    json_t *cases = json_object_get(reference, "cases"), *expected, *vars;
    json_object_foreach(json_object_get(reference, "templates"), name, expected) {
        size_t len = 0;
        struct rn_template *t = NULL;
        struct rn_err err = {0};
        snprintf(path, sizeof(path), "%s/data/templates/%s.jinja", shared, name);
        char *source = read_file(path, &len);
        assert_non_null(source);
        rn_template_create(&t, source, len, &err);
        json_object_foreach(cases, case_name, vars) {
            json_object_set_new(vars, "now", json_integer(now));
            json_object_set_new(vars, "unk_token", json_string("<UNK>"));
            n_equal += check_case(t, &err, name, case_name, vars, json_object_get(expected, case_name));
            n++;
        }
        rn_template_destroy(t);
        free(source);
    }
    json_decref(reference);
    print_message("%d of %d as expected\n", n_equal, n);
    assert_int_equal(n_equal, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_renderings)};
    shared = getenv("RUNNEL_SHARED");
    if (!shared) {
        printf("skipped: RUNNEL_SHARED, the folder with data/templates, is not set\n");
        return 77;
    }
    return cmocka_run_group_tests_name("jinja_templates", tests, NULL, NULL);
}
