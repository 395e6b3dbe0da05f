/* The daemon's settings: one table of flags (name, type, limits, default, help) from which parsing and --help come.
 *
 * Precedence: built-in default < command line. Strings are borrowed from argv, from the environment or from the struct itself.
 * Thread: main, before any other thread starts; constant afterwards. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct rn_err;

/* Exit codes of runneld (sysexits.h). */
enum rn_exit {
    RN_EXIT_OK = 0,
    RN_EXIT_USAGE = 64,       /* unknown flag, bad value */
    RN_EXIT_NO_MODEL = 66,    /* no model given, or its file cannot be used */
    RN_EXIT_UNAVAILABLE = 69, /* port taken, no memory, state directory in use, device lost */
    RN_EXIT_CONFIG = 78,      /* settings that must not or cannot be served */
};

struct rn_config {
    const char *model;  /* NULL = none given */
    const char *listen; /* "ADDR:PORT" */
    const char *state_dir;
    const char *cache_dir;
    int64_t threads; /* 0 = physical cores */
    const char *kv;
    int64_t window; /* 0 = min(4096, trained length) */
    int64_t sinks;  /* -1 = auto */
    const char *evict;
    const char *rope_scaling;
    int64_t reread_limit; /* tokens; 0 = 8 N */
    int64_t max_concurrent;
    const char *cpu_mask;   /* NULL = none */
    const char *device, *gpu_layers;
    const char *gpu_mask;   /* NULL = none */
    int64_t linger_s;       /* a dropped connection's answers run on for this long */
    int64_t idle_timeout_s; /* a connection without messages and answers is closed after this long; 0 = never */
    const char *log_level;
    bool version, help;

    char default_state_dir[512], default_cache_dir[512];
};

/* Fills *ret with defaults and the command line. -EINVAL: err says what is wrong (exit code 64). */
int rn_config_parse(struct rn_config *ret, int argc, char *const *argv, struct rn_err *err);

void rn_config_help(FILE *out);

/* Where what may be lost is kept unless --cache-dir says otherwise. */
void rn_config_cache_dir(char *ret, size_t bytes);

/* Splits "ADDR:PORT" ("127.0.0.1:0", "[::1]:7866", "localhost:7866"). ADDR is copied without brackets, "localhost" as "127.0.0.1".
 * -EINVAL: not of this shape. */
int rn_config_listen(const char *listen, char *ret_address, size_t address_bytes, uint16_t *ret_port, struct rn_err *err);
