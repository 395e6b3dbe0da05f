/* Command-line options of a verb: groups of typed rows, from which parsing, range checks and --help come.
 *
 * A row writes into a field of the verb's argument struct; a group is a table of rows and the offset of the struct they belong to, so
 * that verbs share whole tables (the model's options, the window's, the sampler's). Strings are borrowed from argv; lists are owned by
 * the struct and freed with rn_options_finish. Thread: main. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct rn_err;

enum rn_option_kind {
    RN_OPTION_FLAG,    /* bool; takes no value */
    RN_OPTION_STRING,  /* const char *; not empty */
    RN_OPTION_TEXT,    /* const char *; may be empty */
    RN_OPTION_CHOICE,  /* const char *; one of `choices` */
    RN_OPTION_U32,     /* uint32_t, min..max */
    RN_OPTION_U64,     /* uint64_t, min..max */
    RN_OPTION_I64,     /* int64_t, min..max; a preset below 0 stands for "not given" */
    RN_OPTION_FLOAT,   /* float, f_min..f_max */
    RN_OPTION_NUMBERS, /* struct rn_numbers: "0,4096", each min..max */
    RN_OPTION_STRINGS, /* struct rn_strings: may be given several times */
};

#define RN_OPTION_LIST_MAX 65536 /* elements of a list */

struct rn_numbers { /* owned */
    uint64_t *data;
    size_t n;
};

struct rn_strings { /* owned; the strings are borrowed */
    const char **data;
    size_t n;
};

struct rn_option {
    const char *name; /* with its dashes: "-n", "--window" */
    const char *arg;  /* what the help calls the value; NULL for flags */
    enum rn_option_kind kind;
    size_t offset;
    const char *help;
    uint64_t min, max; /* I64: as int64_t, min 0 unless said otherwise; max 0 = no bound */
    double f_min, f_max;
    bool above; /* FLOAT: f_min itself is out; below: f_max itself is */
    bool below;
    const char *choices; /* words separated by '|' */
    const char *preset;  /* default, as one would type it; NULL: zero */
};

struct rn_option_group {
    const char *title; /* in the help; NULL = the verb's own */
    const struct rn_option *options;
    size_t n_options;
    size_t offset; /* of the group's struct inside the verb's */
};

/* All that there is to say about a verb's command line. */
struct rn_option_set {
    const char *usage; /* "run -m FILE [-p TEXT | …]" */
    const char *about; /* a few lines below it */
    const struct rn_option_group *groups;
    size_t n_groups;
    size_t n_words; /* words that are no options, at most */
};

#define RN_OPTIONS(table) (table), sizeof(table) / sizeof((table)[0])

/* Fills *args (the verb's struct, zeroed by the caller) with defaults, then with the command line. argv starts after the verb.
 *   words   [set->n_words], the words that are no options; NULL where there are fewer
 * Returns 0; 1 when -h or --help was asked for; -EINVAL: err names the option, its value and what was expected; -ENOMEM. */
int rn_options_parse(const struct rn_option_set *set, void *args, int argc, char *const *argv, const char **words, struct rn_err *err);

/* Frees the lists inside *args. */
void rn_options_finish(const struct rn_option_set *set, void *args);

void rn_options_help(const struct rn_option_set *set, FILE *out);
