/* A chat template and what it renders: template, a byte 0, JSON of the variables. Without the 0, a fixed conversation. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/text/template.h"
#include "tests/fuzz/fuzz.h"

const char *const fuzz_words[] = {"{{", "}}", "{%", "%}", "{%-", "-%}", "{#", "#}", "{% for m in messages %}", "{% endfor %}", "{% if ", "{% else %}", "{% elif ", "{% endif %}", "{% set x = ", "{% macro f(a, b=1) %}",
                                  "{% endmacro %}", "{% filter upper %}", "{% endfilter %}", "{% call f() %}", "{% endcall %}", "{% generation %}", "{% endgeneration %}", "{% break %}", "{% continue %}",
                                  "namespace(a=1)", "range(10)", "range(1000000000)", "loop.index", "loop.changed(x)", "messages", "message['content']", "| tojson", "|tojson(indent=4)", "| trim", "|replace('a', 'aa')",
                                  "| join(', ')", "|selectattr('role', 'equalto', 'user')", "|map(attribute='a')", "|list", "|length", "|sort", "|reverse", "|first", "|last", "|dictsort", "|items", "|default(1)", "[::-1]",
                                  "[1:2]", "{'a': 1}", "[1, 2]", "(", ")", "[", "]", "not ", " is defined", " is string", " in ", " and ", " if 1 else 2", "~", "**", "//", "%", "9223372036854775807", "-1", "1e308", "'",
                                  "\"", "\\u00e9", ".split()", ".strip()", ".format(1)", ".items()", ".append(1)", "raise_exception('x')", "strftime_now('%Y')", "x * 1000000", "'a' * 100000", "\"role\"", "null", NULL};

void fuzz_seeds(void (*add)(const void *data, size_t len))
{
    static const char both[] = "{% for m in messages %}{{ m.role + m['content'] | trim }}{% endfor %}\0{\"messages\": [{\"role\": \"user\", \"content\": \"\\u00e9\"}], \"x\": [1, 2.5, null, true]}";
    static const char *const sources[] = {"{{ messages | tojson(indent=2) }}", "{% macro f(x) %}{{ x }}{% if x > 0 %}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
                                          "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"};
    add(both, sizeof both - 1);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        add(sources[i], strlen(sources[i]));
    }
    const char *folder = getenv("RUNNEL_TEST_DATA"); // the cases of test_jinja
    char path[4096];
    snprintf(path, sizeof path, "%s/jinja_cases.json", folder ? folder : "tests/data");
    json_t *all = json_load_file(path, 0, NULL), *one;
    char *vars = json_dumps(json_object_get(all, "variables"), JSON_COMPACT);
    size_t i;
    json_array_foreach(json_object_get(all, "cases"), i, one) {
        const char *source = json_string_value(json_object_get(one, "template"));
        static char whole[1 << 16];
        int len = source && vars ? snprintf(whole, sizeof whole, "%s%c%s", source, 0, vars) : -1;
        if (len > 0 && (size_t)len < sizeof whole) {
            add(whole, (size_t)len);
        }
    }
    free(vars);
    json_decref(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const char fixed[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"S \\u00e9\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hi\"}]}, {\"role\": \"assistant\", \"content\": null, "
                                "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, \"x\"]}}}]}], \"tools\": [{\"function\": {\"name\": \"f\"}}], \"add_generation_prompt\": true, \"s\": \" a b \", \"n\": 7}";
    const uint8_t *border = len ? memchr(data, 0, len) : NULL;
    size_t n_source = border ? (size_t)(border - data) : len;
    struct rn_template *t = NULL;
    struct rn_err err = {0};
    if (rn_template_create(&t, (const char *)data, n_source, &err) < 0) {
        FUZZ_CHECK(err.code < 0 && err.text[0]);
        return 0;
    }
    json_t *vars = border ? json_loadb((const char *)border + 1, len - n_source - 1, 0, NULL) : json_loads(fixed, 0, NULL);
    struct rn_rendered out = {0};
    if (json_is_object(vars)) {
        if (rn_template_render(t, vars, "<s>", "</s>", &out, &err) == 0) {
            FUZZ_CHECK(out.own.len == out.text.len && out.text.len <= RN_TEMPLATE_MAX_OUTPUT);
        } else {
            FUZZ_CHECK(err.code < 0 && err.text[0] && out.text.data == NULL);
        }
    }
    rn_rendered_finish(&out);
    json_decref(vars);
    rn_template_destroy(t);
    return 0;
}
