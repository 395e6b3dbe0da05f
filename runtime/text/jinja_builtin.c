/* Finding and calling the rows of the tables; global functions and tests. */
#include "runtime/text/jinja_builtin.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "runtime/text/jinja_ops.h"
#include "runtime/text/jinja_text.h"

static const struct rn_jinja_function *find(const struct rn_jinja_function *table, struct rn_jinja_text name)
{
    for (; table->name; table++) {
        if (strlen(table->name) == name.len && memcmp(table->name, name.data, name.len) == 0) {
            return table;
        }
    }
    return NULL;
}

const struct rn_jinja_function *rn_jinja_find_filter(struct rn_jinja_text name)
{
    return find(rn_jinja_filters, name);
}

const struct rn_jinja_function *rn_jinja_find_test(struct rn_jinja_text name)
{
    return find(rn_jinja_tests, name);
}

const struct rn_jinja_function *rn_jinja_find_global(struct rn_jinja_text name)
{
    return find(rn_jinja_globals, name);
}

const struct rn_jinja_function *rn_jinja_find_method(const struct rn_jinja_value *v, struct rn_jinja_text name, bool *ret_refused)
{
    static const struct rn_jinja_function list_changes[] = {{"append", "", 0}, {"clear", "", 0}, {"extend", "", 0}, {"insert", "", 0},
        {"pop", "", 0}, {"remove", "", 0}, {"reverse", "", 0}, {"sort", "", 0}, {0}};
    static const struct rn_jinja_function dict_changes[] = {{"clear", "", 0}, {"pop", "", 0}, {"popitem", "", 0}, {"setdefault", "", 0},
        {"update", "", 0}, {0}};
    bool list = v->kind == RN_JINJA_LIST && v->u.list->flavour <= RN_JINJA_F_TUPLE;
    if ((list && v->u.list->flavour == RN_JINJA_F_LIST && find(list_changes, name)) || (v->kind == RN_JINJA_DICT && find(dict_changes, name))) {
        *ret_refused = true;
        return NULL;
    }
    if (v->kind == RN_JINJA_STRING) {
        return find(rn_jinja_str_methods, name);
    }
    return list ? find(rn_jinja_list_methods, name) : v->kind == RN_JINJA_DICT ? find(rn_jinja_dict_methods, name) : NULL;
}

/* ---- calling a row ---- */

/* The next name of a list of parameters; false at its end. */
static bool next_param(const char **at, struct rn_jinja_text *ret, bool *ret_needed)
{
    *at += strspn(*at, " ");
    if (**at == '\0') {
        return false;
    }
    *ret_needed = **at == '!';
    *at += *ret_needed;
    ret->data = *at;
    ret->len = strcspn(*at, " ");
    *at += ret->len;
    return true;
}

static int bind(struct rn_jinja_run *run, const struct rn_jinja_function *row, const char *what, const struct rn_jinja_call *call,
                struct rn_jinja_value bound[RN_JINJA_MAX_ARGS], size_t *ret_n)
{
    const char *at = row->params;
    struct rn_jinja_text name;
    bool needed;
    size_t n = 0, used = 0;
    for (; n < RN_JINJA_MAX_ARGS && next_param(&at, &name, &needed); n++) {
        bound[n] = (struct rn_jinja_value){0};
        if (n < call->n_args) {
            bound[n] = call->args[n];
        }
        for (size_t i = 0; i < call->n_keywords; i++) {
            struct rn_jinja_text given = call->keywords[i].name;
            if (given.len == name.len && memcmp(given.data, name.data, name.len) == 0) {
                if (n < call->n_args) {
                    return rn_jinja_fail(run, -EINVAL, "%s '%s' got its argument '%.*s' twice", what, row->name, (int)name.len, name.data);
                }
                bound[n] = call->keywords[i].value;
                used++;
            }
        }
        if (needed && bound[n].kind == RN_JINJA_MISSING) {
            return rn_jinja_fail(run, -EINVAL, "%s '%s' needs an argument '%.*s'", what, row->name, (int)name.len, name.data);
        }
    }
    if (call->n_args > n) {
        return rn_jinja_fail(run, -EINVAL, "%s '%s' takes at most %zu arguments, not %zu", what, row->name, n, call->n_args);
    }
    if (used < call->n_keywords) {
        return rn_jinja_fail(run, -EINVAL, "%s '%s' got an argument by a name that it does not have", what, row->name);
    }
    *ret_n = n;
    return 0;
}

int rn_jinja_call_row(struct rn_jinja_run *run, const struct rn_jinja_function *row, const char *what, const struct rn_jinja_call *call,
                      struct rn_jinja_value *ret)
{
    if (!row->fn) {
        return rn_jinja_fail(run, -EINVAL, "%s '%s' is not supported", what, row->name);
    }
    int r = rn_jinja_step(run, 1);
    if (r < 0 || strcmp(row->params, "*") == 0) {
        return r < 0 ? r : row->fn(run, call, ret);
    }
    struct rn_jinja_value bound[RN_JINJA_MAX_ARGS];
    struct rn_jinja_call checked = {.self = call->self, .args = bound};
    r = bind(run, row, what, call, bound, &checked.n_args);
    return r < 0 ? r : row->fn(run, &checked, ret);
}

static int unknown(struct rn_jinja_run *run, const char *what, struct rn_jinja_text name)
{
    return rn_jinja_fail(run, -EINVAL, "unknown %s '%.*s'", what, name.len > 60 ? 60 : (int)name.len, name.data);
}

int rn_jinja_call_filter(struct rn_jinja_run *run, struct rn_jinja_text name, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    const struct rn_jinja_function *row = rn_jinja_find_filter(name);
    return row ? rn_jinja_call_row(run, row, "filter", call, ret) : unknown(run, "filter", name);
}

int rn_jinja_call_test(struct rn_jinja_run *run, struct rn_jinja_text name, const struct rn_jinja_call *call, bool *ret)
{
    const struct rn_jinja_function *row = rn_jinja_find_test(name);
    struct rn_jinja_value v = rn_jinja_bool(false);
    int r = row ? rn_jinja_call_row(run, row, "test", call, &v) : unknown(run, "test", name);
    *ret = rn_jinja_truth(&v);
    return r;
}

/* ---- global functions ---- */

static int global_range(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    int64_t v[3] = {0, 0, 1};
    for (size_t i = 0; i < 3; i++) {
        if (call->args[i].kind != RN_JINJA_MISSING && !rn_jinja_as_int(&call->args[i], &v[i])) {
            int r = rn_jinja_refuse_undefined(run, &call->args[i]);
            return r < 0 ? r : rn_jinja_fail(run, -EINVAL, "range() needs numbers, not '%s'", rn_jinja_type_name(&call->args[i]));
        }
    }
    if (call->args[1].kind == RN_JINJA_MISSING) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0) {
        return rn_jinja_fail(run, -EINVAL, "the step of range() must not be zero");
    }
    uint64_t n = 0;
    if (v[2] > 0 && v[1] > v[0]) {
        n = ((uint64_t)v[1] - (uint64_t)v[0] - 1) / (uint64_t)v[2] + 1;
    } else if (v[2] < 0 && v[1] < v[0]) {
        n = ((uint64_t)v[0] - (uint64_t)v[1] - 1) / (0 - (uint64_t)v[2]) + 1;
    }
    if (n > RN_JINJA_MAX_RANGE) {
        return rn_jinja_fail(run, -E2BIG, "a range of more than %d numbers", RN_JINJA_MAX_RANGE);
    }
    int r = rn_jinja_list_new(run, (size_t)n, RN_JINJA_F_RANGE, ret);
    if (r == 0) {
        struct rn_jinja_list *l = ret->u.list;
        l->start = v[0];
        l->stop = v[1];
        l->step = v[2];
        for (size_t i = 0; i < n; i++) {
            l->items[i] = rn_jinja_int((int64_t)((uint64_t)v[0] + i * (uint64_t)v[2]));
        }
        r = rn_jinja_step(run, n / 8);
    }
    return r;
}

static int new_mapping(struct rn_jinja_run *run, enum rn_jinja_kind kind, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    int r = rn_jinja_dict_new(run, kind, ret);
    if (call->n_args > 1 || (call->n_args == 1 && call->args[0].kind != RN_JINJA_DICT)) {
        return rn_jinja_fail(run, -EINVAL, "only another dict and names can go into a dict or namespace");
    }
    for (size_t i = 0; r == 0 && call->n_args == 1 && i < call->args[0].u.dict->n; i++) {
        const struct rn_jinja_pair *p = &call->args[0].u.dict->pairs[i];
        r = rn_jinja_dict_set(run, ret->u.dict, &p->key, &p->value);
    }
    for (size_t i = 0; r == 0 && i < call->n_keywords; i++) {
        struct rn_jinja_value key = rn_jinja_string(call->keywords[i].name.data, call->keywords[i].name.len, RN_JINJA_OWN);
        r = rn_jinja_dict_set(run, ret->u.dict, &key, &call->keywords[i].value);
    }
    return r;
}

static int global_dict(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return new_mapping(run, RN_JINJA_DICT, call, ret);
}

static int global_namespace(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return new_mapping(run, RN_JINJA_NAMESPACE, call, ret);
}

static int global_raise_exception(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value text;
    (void)ret; /* it never returns one */
    int r = rn_jinja_to_string(run, &call->args[0], &text);
    return r < 0 ? r : rn_jinja_fail(run, -EINVAL, "%.*s", text.u.s.len > 400 ? 400 : (int)text.u.s.len, text.u.s.data);
}

static int global_strftime_now(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    const struct rn_jinja_value *format = &call->args[0];
    if (format->kind != RN_JINJA_STRING || format->u.s.len > 200) {
        return rn_jinja_fail(run, -EINVAL, "strftime_now needs a short text");
    }
    char pattern[256];
    snprintf(pattern, sizeof(pattern), "%.*s ", (int)format->u.s.len, format->u.s.data); /* the blank tells "" from "too long" */
    time_t now = (time_t)run->now;
    struct tm tm;
    char *out = rn_jinja_alloc(run, 2048, 1);
    if (!out) {
        return rn_jinja_alloc_code(run);
    }
    size_t n = localtime_r(&now, &tm) ? strftime(out, 2048, pattern, &tm) : 0;
    if (n == 0) {
        return rn_jinja_fail(run, -EINVAL, "strftime_now: the text is too long");
    }
    *ret = rn_jinja_string(out, n - 1, RN_JINJA_OWN);
    return 0;
}

const struct rn_jinja_function rn_jinja_globals[] = {
    {"namespace", "*", global_namespace},
    {"raise_exception", "!message", global_raise_exception},
    {"strftime_now", "!format", global_strftime_now},
    {"range", "!start stop step", global_range},
    {"dict", "*", global_dict},
    {"lipsum", "*", NULL},
    {"cycler", "*", NULL},
    {"joiner", "*", NULL},
    {0},
};

/* ---- tests ---- */

static int answer(struct rn_jinja_value *ret, bool b)
{
    *ret = rn_jinja_bool(b);
    return 0;
}

#define KIND_TEST(name, condition)                                                                                        \
    static int test_##name(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)        \
    {                                                                                                                     \
        const struct rn_jinja_value *v = &call->self;                                                                     \
        (void)run;                                                                                                        \
        return answer(ret, condition);                                                                                    \
    }

KIND_TEST(defined, v->kind != RN_JINJA_UNDEFINED)
KIND_TEST(undefined, v->kind == RN_JINJA_UNDEFINED)
KIND_TEST(none, v->kind == RN_JINJA_NONE)
KIND_TEST(boolean, v->kind == RN_JINJA_BOOL)
KIND_TEST(true, v->kind == RN_JINJA_BOOL && v->u.b)
KIND_TEST(false, v->kind == RN_JINJA_BOOL && !v->u.b)
KIND_TEST(integer, v->kind == RN_JINJA_INT)
KIND_TEST(float, v->kind == RN_JINJA_FLOAT)
KIND_TEST(number, v->kind == RN_JINJA_BOOL || v->kind == RN_JINJA_INT || v->kind == RN_JINJA_FLOAT)
KIND_TEST(string, v->kind == RN_JINJA_STRING)
KIND_TEST(mapping, v->kind == RN_JINJA_DICT)
KIND_TEST(callable, v->kind == RN_JINJA_MACRO || v->kind == RN_JINJA_FUNCTION)
KIND_TEST(iterable, v->kind == RN_JINJA_LIST || v->kind == RN_JINJA_DICT || v->kind == RN_JINJA_STRING || (v->kind == RN_JINJA_UNDEFINED && !v->unsafe))
KIND_TEST(sequence, (v->kind == RN_JINJA_LIST && v->u.list->flavour <= RN_JINJA_F_RANGE) || v->kind == RN_JINJA_DICT ||
                    v->kind == RN_JINJA_STRING || v->kind == RN_JINJA_UNDEFINED)
KIND_TEST(escaped, v->kind == RN_JINJA_STRING && v->markup)

static int test_divisible(struct rn_jinja_run *run, const struct rn_jinja_value *v, const struct rn_jinja_value *by, int64_t rest,
                          struct rn_jinja_value *ret)
{
    struct rn_jinja_value left;
    struct rn_jinja_value wanted = rn_jinja_int(rest);
    bool equal = false;
    int r = v->kind == RN_JINJA_STRING ? rn_jinja_fail(run, -EINVAL, "a string is no number")
                                       : rn_jinja_arithmetic(run, RN_JINJA_OP_MOD, v, by, &left);
    r = r < 0 ? r : rn_jinja_equal(run, &left, &wanted, &equal);
    return r < 0 ? r : answer(ret, equal);
}

static int test_divisibleby(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return test_divisible(run, &call->self, &call->args[0], 0, ret);
}

static int test_even(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value two = rn_jinja_int(2);
    return test_divisible(run, &call->self, &two, 0, ret);
}

static int test_odd(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    struct rn_jinja_value two = rn_jinja_int(2);
    return test_divisible(run, &call->self, &two, 1, ret);
}

#define COMPARE_TEST(name, op)                                                                                            \
    static int test_##name(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)        \
    {                                                                                                                     \
        bool b = false;                                                                                                   \
        int r = rn_jinja_compare(run, op, &call->self, &call->args[0], &b);                                               \
        return r < 0 ? r : answer(ret, b);                                                                                \
    }

COMPARE_TEST(eq, RN_JINJA_OP_EQ)
COMPARE_TEST(ne, RN_JINJA_OP_NE)
COMPARE_TEST(lt, RN_JINJA_OP_LT)
COMPARE_TEST(le, RN_JINJA_OP_LE)
COMPARE_TEST(gt, RN_JINJA_OP_GT)
COMPARE_TEST(ge, RN_JINJA_OP_GE)
COMPARE_TEST(in, RN_JINJA_OP_IN)

static int test_case(struct rn_jinja_run *run, const struct rn_jinja_value *v, enum rn_jinja_case how, struct rn_jinja_value *ret)
{
    struct rn_jinja_value text, mapped, other;
    bool same = false, unchanged = false;
    int r = rn_jinja_to_string(run, v, &text);
    r = r < 0 ? r : rn_jinja_change_case(run, &text, how, &mapped);
    r = r < 0 ? r : rn_jinja_change_case(run, &text, how == RN_JINJA_UPPER ? RN_JINJA_LOWER : RN_JINJA_UPPER, &other);
    r = r < 0 ? r : rn_jinja_equal(run, &text, &mapped, &same);
    r = r < 0 ? r : rn_jinja_equal(run, &text, &other, &unchanged); /* then there is no letter with a case in it */
    return r < 0 ? r : answer(ret, same && !unchanged);
}

static int test_upper(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return test_case(run, &call->self, RN_JINJA_UPPER, ret);
}

static int test_lower(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    return test_case(run, &call->self, RN_JINJA_LOWER, ret);
}

static int test_filter(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    (void)run;
    struct rn_jinja_text name = {call->self.u.s.data, call->self.u.s.len};
    return answer(ret, call->self.kind == RN_JINJA_STRING && rn_jinja_find_filter(name) != NULL);
}

static int test_test(struct rn_jinja_run *run, const struct rn_jinja_call *call, struct rn_jinja_value *ret)
{
    (void)run;
    struct rn_jinja_text name = {call->self.u.s.data, call->self.u.s.len};
    return answer(ret, call->self.kind == RN_JINJA_STRING && rn_jinja_find_test(name) != NULL);
}

const struct rn_jinja_function rn_jinja_tests[] = {
    {"defined", "", test_defined},
    {"undefined", "", test_undefined},
    {"none", "", test_none},
    {"string", "", test_string},
    {"mapping", "", test_mapping},
    {"iterable", "", test_iterable},
    {"sequence", "", test_sequence},
    {"boolean", "", test_boolean},
    {"true", "", test_true},
    {"false", "", test_false},
    {"number", "", test_number},
    {"integer", "", test_integer},
    {"float", "", test_float},
    {"callable", "", test_callable},
    {"equalto", "!other", test_eq},
    {"eq", "!other", test_eq},
    {"==", "!other", test_eq},
    {"ne", "!other", test_ne},
    {"!=", "!other", test_ne},
    {"lt", "!other", test_lt},
    {"lessthan", "!other", test_lt},
    {"<", "!other", test_lt},
    {"le", "!other", test_le},
    {"<=", "!other", test_le},
    {"gt", "!other", test_gt},
    {"greaterthan", "!other", test_gt},
    {">", "!other", test_gt},
    {"ge", "!other", test_ge},
    {">=", "!other", test_ge},
    {"in", "!seq", test_in},
    {"even", "", test_even},
    {"odd", "", test_odd},
    {"divisibleby", "!num", test_divisibleby},
    {"upper", "", test_upper},
    {"lower", "", test_lower},
    {"filter", "", test_filter},
    {"test", "", test_test},
    {"escaped", "", test_escaped},
    {"sameas", "!other", NULL},
    {0},
};
