/* runnel: the command that people type. Verbs are a sorted table; each is one file here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cli/cli.h"
#include "runtime/base/err.h"

static int verb_help(int argc, char *const *argv);
static int verb_version(int argc, char *const *argv);

struct verb {
    const char *name;
    int (*run)(int argc, char *const *argv);
    const char *about;
};

// Sorted by name.
static const struct verb verbs[] = {
    {"bench", rn_verb_bench, "measure prefill and decode beside what the machine can do at best"},
    {"chat", rn_verb_chat, "talk to the daemon in the terminal"},
    {"doctor", rn_verb_doctor, "what this machine offers, what bounds the speed, what stands in the way"},
    {"eval", rn_verb_eval, "log-probability of each next token of a text, and perplexity"},
    {"help", verb_help, "print this, or the help of a verb"},
    {"info", rn_verb_info, "what a model file holds and needs"},
    {"logits", rn_verb_logits, "what the model thinks after each token"},
    {"run", rn_verb_run, "generate without a daemon"},
    {"sessions", rn_verb_sessions, "list, show and remove the daemon's sessions"},
    {"template", rn_verb_template, "render a conversation through the model's chat template"},
    {"tokenize", rn_verb_tokenize, "text to token ids and back"},
    {"version", verb_version, "print the version"},
};

#define N_VERBS (sizeof verbs / sizeof verbs[0])

static int by_name(const void *name, const void *verb)
{
    return strcmp(name, ((const struct verb *)verb)->name);
}

static const struct verb *find_verb(const char *name)
{
    return bsearch(name, verbs, N_VERBS, sizeof verbs[0], by_name);
}

static int usage(FILE *out)
{
    fprintf(out, "usage: runnel VERB [options]\n\n");
    for (size_t i = 0; i < N_VERBS; i++) {
        fprintf(out, "  %-10s %s\n", verbs[i].name, verbs[i].about);
    }
    fprintf(out, "\n`runnel VERB --help` says what a verb takes.\n\n"
                 "Exit codes: 0 done, 1 failed, 64 wrong usage, 66 a model or input file cannot be used, 69 no daemon or no memory,\n"
                 "77 not allowed.\n");
    return rn_cli_flush();
}

static int unknown(const char *name)
{
    struct rn_err err = {0};
    (void)rn_err_set(&err, -EINVAL, "unknown verb '%.64s' (see runnel help)", name); // the code is fixed
    return rn_cli_fail(RN_CLI_USAGE, &err);
}

static int verb_help(int argc, char *const *argv)
{
    if (argc == 0 || argv[0][0] == '-') {
        return usage(stdout);
    }
    const struct verb *v = find_verb(argv[0]);
    char help[] = "--help", *args[] = {help, NULL};
    if (!v) {
        return unknown(argv[0]);
    }
    return v->run == verb_help || v->run == verb_version ? usage(stdout) : v->run(1, args);
}

static int verb_version(int argc, char *const *argv)
{
    (void)argc;
    (void)argv;
    printf("runnel %s\n", RN_VERSION);
    return rn_cli_flush();
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return RN_CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    const struct verb *v = find_verb(name);
    return v ? v->run(argc - 2, argv + 2) : unknown(name);
}
