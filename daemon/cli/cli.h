/* What the verbs of `runnel` share: exit codes, failing in one line, reading input, printing JSON.
 *
 * A verb is one file with one function; main.c holds the sorted table of them. Thread: main. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/cli/options.h"
#include "runtime/base/mem.h"

struct rn_err;

enum rn_cli_exit {
    RN_CLI_OK = 0,
    RN_CLI_FAILED = 1,
    RN_CLI_USAGE = 64,       /* unknown option, bad value */
    RN_CLI_NO_INPUT = 66,    /* a model or an input file is missing or cannot be used */
    RN_CLI_UNAVAILABLE = 69, /* no daemon there, or it cannot serve now; no memory */
    RN_CLI_DENIED = 77,      /* not allowed */
};

/* argv starts after the verb's name. Each returns an exit code. */
int rn_verb_bench(int argc, char *const *argv);
int rn_verb_chat(int argc, char *const *argv);
int rn_verb_doctor(int argc, char *const *argv);
int rn_verb_eval(int argc, char *const *argv);
int rn_verb_info(int argc, char *const *argv);
int rn_verb_logits(int argc, char *const *argv);
int rn_verb_run(int argc, char *const *argv);
int rn_verb_sessions(int argc, char *const *argv);
int rn_verb_template(int argc, char *const *argv);
int rn_verb_tokenize(int argc, char *const *argv);

/* "runnel: TEXT" on standard error; returns the code. */
int rn_cli_fail(int exit_code, const struct rn_err *err);
/* The same with the exit code that fits an error of loading or reading: -ENOENT 66, -EACCES 77, -ENOMEM 69 … */
int rn_cli_fail_input(const struct rn_err *err);
/* And for what went wrong later, with good input: -ENOMEM 69, else 1. */
int rn_cli_fail_work(const struct rn_err *err);

/* Parses a verb's command line. false: --help was printed or the line is wrong, and *ret_exit is the code to leave with. */
bool rn_cli_parse(const struct rn_option_set *set, void *args, int argc, char *const *argv, const char **words, int *ret_exit);

/* Appends a whole file, or standard input for "-". At most RN_CLI_INPUT_MAX bytes. 0 or the error of reading. */
#define RN_CLI_INPUT_MAX ((size_t)256 << 20)
int rn_cli_read(const char *path, struct rn_buf *ret, struct rn_err *err);

/* Any JSON value from a file or, for "-", standard input. -EINVAL: line and column are named. */
int rn_cli_read_json(const char *path, json_t **ret, struct rn_err *err);

/* Appends a JSON list of token ids. `what` names it in errors. */
int rn_cli_ids_from_json(const json_t *list, const char *what, struct rn_ids *ret, struct rn_err *err);
int rn_cli_read_ids(const char *path, struct rn_ids *ret, struct rn_err *err);
json_t *rn_cli_ids_to_json(const uint32_t *ids, size_t n); /* NULL: no memory */

/* One line on standard output; takes v. NULL v: out of memory. Returns an exit code. */
int rn_cli_print_json(json_t *v);
/* Text that others wrote to standard output. In a terminal, control characters other than line feed and tab are left out: they could
 * play tricks there. */
void rn_cli_put_text(const char *text, size_t len);
/* Flushes standard output; RN_CLI_FAILED when something was not written. */
int rn_cli_flush(void);
