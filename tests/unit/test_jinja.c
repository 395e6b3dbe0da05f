/* The template language: against Jinja's own results (data/jinja_cases.json), the default model's template against Hugging Face's
 * renderings, which bytes are the template's own, errors with their place, limits, and every allocation failing once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/text/template.h"

static json_t *load_json(const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", getenv("RUNNEL_TEST_DATA"), name);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

static struct rn_template *load_template(const char *name)
{
    char path[4096], *data = malloc(1 << 16);
    snprintf(path, sizeof(path), "%s/%s", getenv("RUNNEL_TEST_DATA"), name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t len = fread(data, 1, 1 << 16, f);
    fclose(f);
    struct rn_template *t = NULL;
    struct rn_err err = {0};
    assert_int_equal(rn_template_create(&t, data, len, &err), 0);
    free(data);
    return t;
}

/* Parses and renders in one go. */
static int render(const char *source, size_t len, json_t *vars, struct rn_rendered *out, struct rn_err *err)
{
    struct rn_template *t = NULL;
    int r = rn_template_create(&t, source, len, err);
    if (r == 0) {
        r = rn_template_render(t, vars, NULL, NULL, out, err);
    }
    rn_template_destroy(t);
    return r;
}

static void test_language(void **state)
{
    (void)state;
    json_t *j = load_json("jinja_cases.json"), *c;
    size_t i;
    int n_wrong = 0;
    json_array_foreach(json_object_get(j, "cases"), i, c) {
        json_t *source = json_object_get(c, "template");
        const char *text = json_string_value(json_object_get(c, "text"));
        struct rn_rendered out = {0};
        struct rn_err err = {0};
        int r = render(json_string_value(source), json_string_length(source), json_object_get(j, "variables"), &out, &err);
        bool unsupported = r < 0 && json_is_true(json_object_get(c, "unsupported"));
        if (!unsupported && (r < 0 ? text != NULL : !text || strcmp(text, out.text.data) != 0)) {
            print_message("%s\n  gives    %s\n  expected %s\n", json_string_value(source), r < 0 ? err.text : out.text.data,
                          text ? text : json_string_value(json_object_get(c, "error")));
            n_wrong++;
        }
        if (r < 0) {
            assert_true(strncmp(err.text, "line ", 5) == 0);
        }
        rn_rendered_finish(&out);
    }
    json_decref(j);
    assert_int_equal(n_wrong, 0);
}

static void test_default_model(void **state)
{
    (void)state;
    struct rn_template *t = load_template("smollm2_template.jinja");
    json_t *j = load_json("smollm2_chat.json"), *c;
    size_t i;
    json_array_foreach(json_object_get(j, "cases"), i, c) {
        struct rn_rendered out = {0};
        struct rn_err err = {0};
        assert_int_equal(rn_template_render(t, c, "<|im_start|>", "<|im_end|>", &out, &err), 0);
        assert_string_equal(out.text.data, json_string_value(json_object_get(c, "text")));
        assert_int_equal(out.own.len, out.text.len);
        /* Exactly the contents are foreign. */
        size_t k, pos = 0, foreign = 0, n_foreign = 0;
        json_t *m;
        json_array_foreach(json_object_get(c, "messages"), k, m) {
            const char *content = json_string_value(json_object_get(m, "content"));
            char *mark = strstr(out.text.data + pos, content);
            assert_non_null(mark);
            foreign += strlen(content);
            pos = (size_t)(mark - out.text.data);
            while (*content && out.own.data[pos]) { /* the first find may lie in the template's own text */
                mark = strstr(out.text.data + pos + 1, content);
                assert_non_null(mark);
                pos = (size_t)(mark - out.text.data);
            }
            for (size_t b = 0; b < strlen(content); b++) {
                assert_int_equal(out.own.data[pos + b], 0);
            }
            pos += strlen(content);
        }
        for (size_t b = 0; b < out.own.len; b++) {
            n_foreign += !out.own.data[b];
        }
        assert_int_equal(n_foreign, foreign);
        rn_rendered_finish(&out);
    }
    json_decref(j);
    rn_template_destroy(t);
}

static void test_own(void **state)
{
    (void)state;
    /* Each rendering and its marks: 1 = the template's. */
    static const char *const cases[][3] = {
        {"ab{{ x }}c", "abXYc", "11001"},
        {"{{ x + 'z' }}", "XYz", "001"},
        {"{{ ('[' ~ x ~ ']')[1:-1] }}", "XY", "00"},
        {"{{ ('[' ~ x ~ ']')|upper }}", "[XY]", "1001"},
        {"{{ ('  ' ~ x ~ '! ')|trim }}", "XY!", "001"},
        {"{{ x|replace('X', 'ab') }}", "abY", "110"},
        {"{{ 'aXb'|replace('X', x) }}", "aXYb", "1001"},
        {"{{ ('a' ~ x)|replace('', '-') }}", "-a-X-Y-", "1110101"},
        {"{{ [x, 'q']|join('-') }}", "XY-q", "0011"},
        {"{{ x|tojson }}", "\"XY\"", "0000"},
        {"{{ {'a': x}|string }}", "{'a': 'XY'}", "00100000000"},
        {"{{ n }}{{ n + 1 }}{{ 5 }}{{ x|length }}", "7852", "0011"},
        {"{{ '%s!' % x }}{{ '<{}>'.format(x) }}", "XY!<XY>", "0011001"},
        {"{% set s %}a{{ x }}{% endset %}{{ s }}{{ s.split('X')[0] }}", "aXYa", "1001"},
        {"{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(x) }}", "<XY>", "1001"},
        {"{{ bos_token }}{{ eos_token }}", "<s></s>", "1111111"},
        {"{{ messages[0].role }}{{ messages[1].role }}", "userim_end", "1111000000"},
        {"{{ x|indent(2, true) }}", "  XY", "1100"},
        {"{{ x if n else 'b' }}{{ n and 'b' }}", "XYb", "001"},
    };
    json_t *vars = json_pack("{s:s, s:i, s:[{s:s}, {s:s}]}", "x", "XY", "n", 7, "messages", "role", "user", "role", "im_end");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rn_template *t = NULL;
        struct rn_rendered out = {0};
        struct rn_err err = {0};
        assert_int_equal(rn_template_create(&t, cases[i][0], strlen(cases[i][0]), &err), 0);
        assert_int_equal(rn_template_render(t, vars, "<s>", "</s>", &out, &err), 0);
        assert_string_equal(out.text.data, cases[i][1]);
        for (size_t b = 0; b < out.own.len; b++) {
            out.own.data[b] = (char)(out.own.data[b] + '0');
        }
        if (strcmp(cases[i][2], out.own.data) != 0) {
            fail_msg("%s: own is %s, expected %s", cases[i][0], out.own.data, cases[i][2]);
        }
        rn_rendered_finish(&out);
        rn_template_destroy(t);
    }
    json_decref(vars);
}

/* Texts that grow in place: strings made before must not change, and time and memory must stay proportional. */
static void test_growing_text(void **state)
{
    (void)state;
    static const char source[] =
        "{% set a = 'x' * 300 %}{% set b = a ~ 'b' %}{% set c = b ~ y %}{% set d = b ~ 'e' %}{% set f = c[:301] + 'g' %}"
        "{{ b[299:] }} {{ c[299:] }} {{ d[299:] }} {{ f[299:] }} {{ (c + c)[298:303] }}{{ c|length }}"
        "{% set ns = namespace(s='') %}{% for i in range(60000) %}{% set ns.s = ns.s ~ '0123456789' + y %}{% endfor %} {{ ns.s|length }}{{ ns.s[-3:] }}";
    json_t *vars = json_pack("{s:s}", "y", "Y");
    struct rn_rendered out = {0};
    struct rn_err err = {0};
    int r = render(source, strlen(source), vars, &out, &err);
    assert_string_equal(r < 0 ? err.text : out.text.data, "xb xbY xbe xbg xxbYx302 66000089Y");
    for (size_t i = 0; i < out.own.len; i++) {
        assert_int_equal(out.own.data[i], out.text.data[i] != 'Y');
    }
    rn_rendered_finish(&out);
    json_decref(vars);
}

static void test_errors(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"a\nb\n{{ 1 }} {{ x|foo }}", "line 3, column 14: unknown filter 'foo'"},
        {"{{ x is foo }}", "line 1, column 9: unknown test 'foo'"},
        {"{% foo %}", "line 1, column 4: unknown or misplaced statement 'foo'"},
        {"\n  {{ missing.a }}", "line 2, column 14: 'missing' is undefined"},
        {"{{ d.a.b }}", "line 1, column 8: 'dict object' has no attribute 'a'"},
        {"{{ foo() }}", "line 1, column 4: 'foo' is undefined"},
        {"é{{ 1 + 'a' }}", "line 1, column 7: '+' does not work on 'int' and 'str'"},
        {"{% for x in [1] %}", "line 1, column 19: the template ends, expected a block else endfor"},
        {"{{ 'abc", "line 1, column 4: missing end of string"},
        {"{{ [1, 2) }}", "line 1, column 9: unexpected ')'"},
        {"{{ 1", "line 1, column 1: missing '}}'"},
        {"{% if x", "line 1, column 1: missing '%}'"},
        {"{# x", "line 1, column 1: missing end of comment"},
        {"{{ x y }}", "line 1, column 6: unexpected 'y', expected '}}'"},
        {"{{ raise_exception('No ' ~ 'way') }}", "line 1, column 4: No way"},
        {"{{ 'x'|indent(foo=1) }}", "line 1, column 8: filter 'indent' got an argument by a name that it does not have"},
        {"{{ 'x'|replace('a') }}", "line 1, column 8: filter 'replace' needs an argument 'new'"},
        {"{{ 'x'|wordwrap }}", "line 1, column 8: filter 'wordwrap' is not supported"},
        {"{{ 'x'.center(3) }}", "line 1, column 8: method 'center' is not supported"},
        {"{{ [].append(1) }}", "line 1, column 7: access to attribute 'append' of 'list' is unsafe"},
        {"{{ 9223372036854775807 + 1 }}", "line 1, column 24: a number of more than 64 bits"},
        {"{{ 9223372036854775808 }}", "line 1, column 4: unexpected '9223372036854775808', expected a number of at most 64 bits"},
        {"{{ 0x1F }}", "line 1, column 4: a number of an unknown form"},
        {"{{ ï }}", "line 1, column 4: unexpected character"},
        {"{% include 'x' %}", "line 1, column 4: unknown or misplaced statement 'include'"},
    };
    json_t *vars = json_pack("{s:i, s:{}}", "x", 1, "d");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rn_rendered out = {0};
        struct rn_err err = {0};
        int r = render(cases[i][0], strlen(cases[i][0]), vars, &out, &err);
        if (r != -EINVAL || strcmp(err.text, cases[i][1]) != 0) {
            fail_msg("%s: %d '%s', expected '%s'", cases[i][0], r, err.text, cases[i][1]);
        }
        assert_null(out.text.data);
    }
    struct rn_rendered out = {0};
    struct rn_err err = {0};
    assert_int_equal(render("a\xff", 2, vars, &out, &err), -EINVAL);
    json_t *list = json_array();
    assert_int_equal(render("a", 1, list, &out, &err), -EINVAL);
    json_decref(list);
    json_decref(vars);
}

/* n times a, then b, then n times c. */
static char *nest(const char *a, size_t n, const char *b, const char *c)
{
    char *s = malloc(n * (strlen(a) + strlen(c)) + strlen(b) + 1), *p = s;
    for (size_t i = 0; i < n; i++) {
        p = stpcpy(p, a);
    }
    p = stpcpy(p, b);
    for (size_t i = 0; i < n; i++) {
        p = stpcpy(p, c);
    }
    return s;
}

static void check_limit(const char *source, json_t *vars)
{
    struct rn_rendered out = {0};
    struct rn_err err = {0};
    int r = render(source, strlen(source), vars, &out, &err);
    if (r != -E2BIG) {
        fail_msg("%.60s: %d '%s'", source, r, err.text);
    }
    assert_null(out.text.data);
}

static void test_limits(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "{{ range(100001) }}",
        "{{ range(0, 9223372036854775807) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000000 }}",
        "{{ [0] * 1000000000000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(100000) %}{% set ns.s = 'y' + ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% for a in range(100000) %}{% for b in range(1000) %}0123456789012345678901234567890123456789{% endfor %}{% endfor %}",
    };
    static const char *const deep[][3] = {
        {"(", "1", ")"}, {"[", "", "]"}, {"{1:", "1", "}"}, {"-", "1", ""}, {"not ", "1", ""}, {"x(", "", ")"}, {"1 if ", "1", ""},
        {"", "1", "+1"}, {"", "x", ".a"}, {"", "x", "|d"}, {"", "1", "**1"}, {"x[", "1", "]"}, {"", "1", " and 1"},
    };
    json_t *vars = json_object();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check_limit(cases[i], vars);
    }
    for (size_t i = 0; i < sizeof(deep) / sizeof(deep[0]); i++) {
        char *inner = nest(deep[i][0], 100000, deep[i][1], deep[i][2]), *source = nest("{{ ", 1, inner, " }}");
        struct rn_rendered out = {0};
        struct rn_err err = {0};
        assert_true(render(source, strlen(source), vars, &out, &err) < 0);
        assert_non_null(strstr(err.text, "deep"));
        free(inner);
        free(source);
    }
    char *blocks = nest("{% if 1 %}", 20000, "x", "{% endif %}");
    check_limit(blocks, vars);
    free(blocks);
    char *long_source = nest("0123456789abcdef", 65537, "", "");
    check_limit(long_source, vars);
    free(long_source);
    json_t *inner = json_array(), *outer;
    for (int i = 0; i < 1000; i++, inner = outer) {
        outer = json_array();
        json_array_append_new(outer, inner);
    }
    json_object_set_new(vars, "x", inner);
    check_limit("{{ x }}", vars);
    json_decref(vars);
}

static const char busy[] =
    "{% macro m(a, b=[1, 2]) %}{{ a|upper }}{{ b|join('-') }}{{ varargs }}{% endmacro %}{% set ns = namespace(n=0) %}"
    "{% for k, v in d|dictsort if v %}{% set ns.n = ns.n + 1 %}{{ loop.length }}{{ loop.last }}{{ m(k, 3, 4) if 0 else m(k) }}{% endfor %}"
    "{% set s %}{{ d|tojson(indent=2, sort_keys=true) }}{{ 'x%sy' % ns.n }}{% endset %}{{ s[::-1] }}{{ s.split(',')|map('trim')|sort|list }}"
    "{% call m2() %}{{ '{}'.format(d) }}{% endcall %}{% filter replace('a', 'b') %}aaa{% endfilter %}{{ range(20)|list|unique|list }}";

static void test_allocation_failures(void **state)
{
    (void)state;
    char source[2048];
    snprintf(source, sizeof(source), "{%% macro m2() %%}{{ caller() }}{%% endmacro %%}%s", busy);
    json_t *vars = json_pack("{s:{s:i, s:s, s:[i, f, n]}}", "d", "b", 1, "a", "text\n", "c", 1, 2.5);
    struct rn_rendered expected = {0};
    struct rn_err err = {0};
    /* Much data, so that the arena needs several chunks. */
    json_object_set_new(vars, "pad", json_array());
    for (int i = 0; i < 3000; i++) {
        json_array_append_new(json_object_get(vars, "pad"), json_integer(i));
    }
    assert_int_equal(render(source, strlen(source), vars, &expected, &err), 0);
    uint64_t n_failed = 0;
    for (uint64_t n = 1;; n++) {
        struct rn_rendered out = {0};
        rn_mem_fail_at(n);
        int r = render(source, strlen(source), vars, &out, &err);
        rn_mem_fail_at(0);
        if (r == 0) {
            assert_string_equal(out.text.data, expected.text.data);
            rn_rendered_finish(&out);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(out.text.data);
        n_failed++;
    }
    assert_true(n_failed >= 4);
    rn_rendered_finish(&expected);
    json_decref(vars);
}

struct job {
    const struct rn_template *t;
    json_t *vars;
    const char *expected;
    int n_wrong;
};

static void *render_often(void *user)
{
    struct job *job = user;
    for (int i = 0; i < 200; i++) {
        struct rn_rendered out = {0};
        int r = rn_template_render(job->t, job->vars, NULL, NULL, &out, NULL);
        job->n_wrong += r < 0 || strcmp(out.text.data, job->expected) != 0;
        rn_rendered_finish(&out);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct rn_template *t = load_template("smollm2_template.jinja");
    json_t *j = load_json("smollm2_chat.json");
    struct job jobs[3];
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++) {
        json_t *c = json_array_get(json_object_get(j, "cases"), i % 2);
        jobs[i] = (struct job){t, c, json_string_value(json_object_get(c, "text")), 0};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &jobs[i]), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].n_wrong, 0);
    }
    json_decref(j);
    rn_template_destroy(t);
}

static void test_clock(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    static const char source[] = "{{ strftime_now('%Y-%m-%d %H:%M') }}{{ strftime_now('') }}{{ now is defined }}";
    json_t *vars = json_pack("{s:i}", "now", 1795947300);
    struct rn_rendered out = {0};
    struct rn_err err = {0};
    assert_int_equal(render(source, strlen(source), vars, &out, &err), 0);
    assert_string_equal(out.text.data, "2026-11-29 10:15False");
    rn_rendered_finish(&out);
    json_decref(vars);
}

static void test_clock_in_local_time(void **state)
{
    (void)state;
    static const struct {
        const char *now, *text; // NULL: refused
    } cases[] = {
        {"2026-11-29T10:15:30", "2026-11-29 10:15:30"}, {"2026-07-29 10:15", "2026-07-29 10:15:00"}, {"2026-11-29", "2026-11-29 00:00:00"},
        {"2026-11-29T10:15:30.123456", "2026-11-29 10:15:30"}, {"1969-12-31T23:59:59", "1969-12-31 23:59:59"},
        {"2024-02-29T00:00:00", "2024-02-29 00:00:00"}, {"2026-02-29", NULL}, {"2026-13-01", NULL}, {"2026-11-29T24:00", NULL},
        {"2026-11-29T10:15Z", NULL}, {"2026-11-29T10", NULL}, {"29.11.2026", NULL}, {"", NULL},
    };
    static const char source[] = "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}";
    setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset(); // other than UTC, and with summer time
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *vars = json_pack("{s:s}", "now", cases[i].now);
        struct rn_rendered out = {0};
        struct rn_err err = {0};
        int r = rn_text_render_source(source, strlen(source), vars, &out, &err);
        assert_int_equal(r, cases[i].text ? 0 : -EINVAL);
        if (r == 0) {
            assert_string_equal(out.text.data, cases[i].text);
        } else {
            assert_non_null(strstr(err.text, cases[i].now));
            assert_non_null(strstr(err.text, "expected seconds since 1970 or a local time"));
        }
        rn_rendered_finish(&out);
        json_decref(vars);
    }
    setenv("TZ", "UTC", 1);
    tzset();
}

static void test_source_with_its_own_tokens(void **state)
{
    (void)state;
    static const char source[] = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}";
    json_t *vars = json_pack("{s:s, s:s, s:[{s:s, s:s}]}", "bos_token", "<s>", "eos_token", "</s>", "messages", "role", "user", "content",
                             "<s>");
    struct rn_rendered out = {0};
    struct rn_err err = {0};
    assert_int_equal(rn_text_render_source(source, strlen(source), vars, &out, &err), 0);
    assert_string_equal(out.text.data, "<s><s></s>");
    assert_memory_equal(out.own.data, "\1\1\1\0\0\0\1\1\1\1", 10); // a message writes no control token
    rn_rendered_finish(&out);
    assert_int_equal(rn_text_render_source("a\n{{ b", 7, vars, &out, &err), -EINVAL);
    assert_non_null(strstr(err.text, "line 2"));
    json_decref(vars);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_language), cmocka_unit_test(test_default_model), cmocka_unit_test(test_own), cmocka_unit_test(test_clock_in_local_time),
        cmocka_unit_test(test_source_with_its_own_tokens),
        cmocka_unit_test(test_growing_text), cmocka_unit_test(test_errors), cmocka_unit_test(test_limits),        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_threads),  cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests_name("jinja", tests, NULL, NULL);
}
