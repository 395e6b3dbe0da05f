#include "daemon/cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

static void *field_of(void *args, const struct rn_option_group *g, const struct rn_option *o)
{
    return (char *)args + g->offset + o->offset;
}

/* ---- Values ------------------------------------------------------------------------------------------------------------------------ */

static bool is_choice(const char *choices, const char *value)
{
    size_t len = strlen(value);
    for (const char *c = choices; len && c;) {
        size_t n = strcspn(c, "|");
        if (n == len && memcmp(c, value, n) == 0) {
            return true;
        }
        c = c[n] ? c + n + 1 : NULL;
    }
    return false;
}

/* Digits only: strtoull would take "-1" for a huge number. *end: the first byte behind them. */
static bool read_digits(const char *value, uint64_t *ret, const char **end)
{
    char *stop;
    if (*value < '0' || *value > '9') {
        return false;
    }
    errno = 0;
    *ret = strtoull(value, &stop, 10);
    *end = stop;
    return errno == 0;
}

static bool in_range(const struct rn_option *o, uint64_t n)
{
    return n >= o->min && (o->max == 0 || n <= o->max) && (o->kind != RN_OPTION_U32 || n <= UINT32_MAX);
}

static int bad_integer(const struct rn_option *o, const char *value, struct rn_err *err)
{
    const char *list = o->kind == RN_OPTION_NUMBERS ? "integers, separated by commas, each " : "an integer ";
    uint64_t max = o->max == 0 && o->kind == RN_OPTION_U32 ? UINT32_MAX : o->max;
    if (max == 0) {
        return rn_err_set(err, -EINVAL, "%s is '%.64s', expected %sof at least %llu", o->name, value, list, (unsigned long long)o->min);
    }
    return rn_err_set(err, -EINVAL, "%s is '%.64s', expected %sfrom %llu to %llu", o->name, value, list, (unsigned long long)o->min,
                      (unsigned long long)max);
}

static int set_integer(const struct rn_option *o, void *field, const char *value, struct rn_err *err)
{
    uint64_t n;
    const char *end;
    if (!read_digits(value, &n, &end) || *end || !in_range(o, n) || (o->kind == RN_OPTION_I64 && n > INT64_MAX)) {
        return bad_integer(o, value, err);
    }
    if (o->kind == RN_OPTION_U32) {
        *(uint32_t *)field = (uint32_t)n;
    } else if (o->kind == RN_OPTION_I64) {
        *(int64_t *)field = (int64_t)n;
    } else {
        *(uint64_t *)field = n;
    }
    return 0;
}

static int set_float(const struct rn_option *o, float *field, const char *value, struct rn_err *err)
{
    char *end;
    double x = strtod(value, &end);
    bool starts = (*value >= '0' && *value <= '9') || *value == '.' || *value == '-';
    if (!starts || *end || !isfinite(x) || x < o->f_min || x > o->f_max || (o->above && x <= o->f_min) || (o->below && x >= o->f_max)) {
        return rn_err_set(err, -EINVAL, "%s is '%.64s', expected a number %s %g and %s %g", o->name, value, o->above ? "above" : "from",
                          o->f_min, o->below ? "below" : "up to", o->f_max);
    }
    *field = (float)x;
    return 0;
}

static int set_numbers(const struct rn_option *o, struct rn_numbers *field, const char *value, struct rn_err *err)
{
    size_t n = 1;
    for (const char *c = value; *c; c++) {
        n += *c == ',';
    }
    if (n > RN_OPTION_LIST_MAX) {
        return rn_err_set(err, -EINVAL, "%s has %zu numbers, expected at most %d", o->name, n, RN_OPTION_LIST_MAX);
    }
    uint64_t *data = rn_mem_alloc(n, sizeof *data);
    if (!data) {
        return rn_err_nomem(err, n * sizeof *data, o->name);
    }
    const char *at = value;
    for (size_t i = 0; i < n; i++) {
        if (!read_digits(at, &data[i], &at) || *at != (i + 1 < n ? ',' : 0) || !in_range(o, data[i])) {
            rn_mem_free(data);
            return bad_integer(o, value, err);
        }
        at++;
    }
    rn_mem_free(field->data); // the last one given counts
    *field = (struct rn_numbers){.data = data, .n = n};
    return 0;
}

static int add_string(const struct rn_option *o, struct rn_strings *field, const char *value, struct rn_err *err)
{
    if (!*value) {
        return rn_err_set(err, -EINVAL, "%s is empty, expected %s", o->name, o->arg);
    }
    if (field->n == RN_OPTION_LIST_MAX) {
        return rn_err_set(err, -EINVAL, "%s is given more than %d times", o->name, RN_OPTION_LIST_MAX);
    }
    const char **grown = rn_mem_realloc(field->data, field->n + 1, sizeof *grown);
    if (!grown) {
        return rn_err_nomem(err, (field->n + 1) * sizeof *grown, o->name);
    }
    grown[field->n] = value;
    field->data = grown;
    field->n++;
    return 0;
}

static int set_option(const struct rn_option *o, void *field, const char *value, struct rn_err *err)
{
    switch (o->kind) {
    case RN_OPTION_FLAG:
        *(bool *)field = true;
        return 0;
    case RN_OPTION_STRING:
        if (!*value) {
            return rn_err_set(err, -EINVAL, "%s is empty, expected %s", o->name, o->arg);
        }
        *(const char **)field = value;
        return 0;
    case RN_OPTION_TEXT:
        *(const char **)field = value;
        return 0;
    case RN_OPTION_CHOICE:
        if (!is_choice(o->choices, value)) {
            return rn_err_set(err, -EINVAL, "%s is '%.64s', expected %s", o->name, value, o->choices);
        }
        *(const char **)field = value;
        return 0;
    case RN_OPTION_FLOAT:
        return set_float(o, field, value, err);
    case RN_OPTION_NUMBERS:
        return set_numbers(o, field, value, err);
    case RN_OPTION_STRINGS:
        return add_string(o, field, value, err);
    case RN_OPTION_U32:
    case RN_OPTION_U64:
    case RN_OPTION_I64:
        break;
    }
    return set_integer(o, field, value, err);
}

/* ---- The command line -------------------------------------------------------------------------------------------------------------- */

static int set_presets(const struct rn_option_set *set, void *args, struct rn_err *err)
{
    for (size_t g = 0; g < set->n_groups; g++) {
        const struct rn_option_group *group = &set->groups[g];
        for (size_t i = 0; i < group->n_options; i++) {
            const struct rn_option *o = &group->options[i];
            int r = 0;
            if (o->preset && o->kind == RN_OPTION_I64 && o->preset[0] == '-') {
                *(int64_t *)field_of(args, group, o) = -1; // "not given" is outside of the range of what can be given
            } else if (o->preset) {
                r = set_option(o, field_of(args, group, o), o->preset, err);
            }
            if (r < 0) {
                return r;
            }
        }
    }
    return 0;
}

static const struct rn_option *find_option(const struct rn_option_set *set, const char *name, size_t len,
                                           const struct rn_option_group **ret_group)
{
    for (size_t g = 0; g < set->n_groups; g++) {
        for (size_t i = 0; i < set->groups[g].n_options; i++) {
            const struct rn_option *o = &set->groups[g].options[i];
            if (strlen(o->name) == len && memcmp(o->name, name, len) == 0) {
                *ret_group = &set->groups[g];
                return o;
            }
        }
    }
    return NULL;
}

/* One option at argv[*i]; moves *i to its last word. */
static int parse_option(const struct rn_option_set *set, void *args, int argc, char *const *argv, int *i, struct rn_err *err)
{
    const char *word = argv[*i];
    bool is_long = word[1] == '-';
    size_t len = is_long ? strcspn(word, "=") : strlen(word);
    const char *value = word[len] ? word + len + 1 : NULL;
    const struct rn_option_group *group;
    const struct rn_option *o = find_option(set, word, len, &group);
    if (!o) {
        return rn_err_set(err, -EINVAL, "unknown option '%.*s'", (int)(len > 64 ? 64 : len), word);
    }
    if (o->kind == RN_OPTION_FLAG && value) {
        return rn_err_set(err, -EINVAL, "%s takes no value", o->name);
    }
    if (o->kind != RN_OPTION_FLAG && !value) {
        if (*i + 1 == argc) {
            return rn_err_set(err, -EINVAL, "%s needs a value: %s", o->name, o->arg);
        }
        value = argv[++*i];
    }
    return set_option(o, field_of(args, group, o), value, err);
}

int rn_options_parse(const struct rn_option_set *set, void *args, int argc, char *const *argv, const char **words, struct rn_err *err)
{
    size_t n_words = 0;
    bool only_words = false;
    for (size_t i = 0; i < set->n_words; i++) {
        words[i] = NULL;
    }
    int r = set_presets(set, args, err);
    for (int i = 0; r == 0 && i < argc; i++) {
        if (only_words || argv[i][0] != '-' || argv[i][1] == 0) {
            if (n_words == set->n_words) {
                return rn_err_set(err, -EINVAL, "unexpected argument '%.64s'", argv[i]);
            }
            words[n_words++] = argv[i];
        } else if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0) {
            return 1;
        } else if (strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else {
            r = parse_option(set, args, argc, argv, &i, err);
        }
    }
    return r;
}

void rn_options_finish(const struct rn_option_set *set, void *args)
{
    for (size_t g = 0; g < set->n_groups; g++) {
        for (size_t i = 0; i < set->groups[g].n_options; i++) {
            const struct rn_option *o = &set->groups[g].options[i];
            void *field = field_of(args, &set->groups[g], o);
            if (o->kind == RN_OPTION_NUMBERS) {
                rn_mem_free(((struct rn_numbers *)field)->data);
                *(struct rn_numbers *)field = (struct rn_numbers){0};
            } else if (o->kind == RN_OPTION_STRINGS) {
                rn_mem_free(((struct rn_strings *)field)->data);
                *(struct rn_strings *)field = (struct rn_strings){0};
            }
        }
    }
}

void rn_options_help(const struct rn_option_set *set, FILE *out)
{
    fprintf(out, "usage: runnel %s\n\n%s\n", set->usage, set->about);
    for (size_t g = 0; g < set->n_groups; g++) {
        const struct rn_option_group *group = &set->groups[g];
        fprintf(out, "\n%s:\n", group->title ? group->title : "options");
        for (size_t i = 0; i < group->n_options; i++) {
            const struct rn_option *o = &group->options[i];
            char left[64];
            snprintf(left, sizeof left, "%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
            fprintf(out, "  %-22s %s", left, o->help);
            if (o->choices) {
                fprintf(out, ": %s", o->choices);
            }
            if (o->preset && o->preset[0] != '-') {
                fprintf(out, " (default %s)", o->preset);
            }
            fputc('\n', out);
        }
    }
    fprintf(out, "  %-22s %s\n", "-h, --help", "print this and leave");
}
