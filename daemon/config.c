#include "daemon/config.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"

enum kind { STRING, INTEGER, CHOICE, SWITCH };

struct flag {
    const char *name, *arg;
    enum kind kind;
    size_t offset;
    int64_t min, max;    /* INTEGER */
    const char *choices; /* CHOICE: words separated by '|' */
    const char *preset;  /* default as one would type it; NULL = none */
    const char *help;
};

#define AT(field) offsetof(struct rn_config, field)

static const struct flag flags[] = {
    {"model", "FILE", STRING, AT(model), .help = "the model, a GGUF file"},
    {"listen", "ADDR:PORT", STRING, AT(listen), .preset = "127.0.0.1:7866", .help = "loopback address; port 0 picks a free one"},
    {"state-dir", "DIR", STRING, AT(state_dir),
     .help = "conversations (default: $STATE_DIRECTORY, $XDG_STATE_HOME/runnel, ~/.local/state/runnel)"},
    {"cache-dir", "DIR", STRING, AT(cache_dir),
     .help = "what may be lost (default: $CACHE_DIRECTORY, $XDG_CACHE_HOME/runnel, ~/.cache/runnel)"},
    {"threads", "T", INTEGER, AT(threads), 0, 1024, .preset = "0", .help = "CPU threads; 0 = physical cores"},
    {"kv", "TYPE", CHOICE, AT(kv), .choices = "q8_0|f16", .preset = "q8_0", .help = "type of the KV cells"},
    {"window", "N", INTEGER, AT(window), 0, UINT32_MAX, .preset = "0", .help = "tokens a session sees; 0 = min(4096, trained length)"},
    {"sinks", "S", INTEGER, AT(sinks), -1, UINT32_MAX, .preset = "-1", .help = "pinned tokens; -1 = the leading system block"},
    {"evict", "RULE", CHOICE, AT(evict), .choices = "turn|token", .preset = "turn", .help = "what leaves a full window first"},
    {"rope-scaling", "KIND", STRING, AT(rope_scaling), .preset = "none",
     .help = "to go beyond the trained length: linear or yarn, perhaps with :FACTOR, else N / trained length"},
    {"reread-limit", "TOKENS", INTEGER, AT(reread_limit), 0, UINT32_MAX, .preset = "0",
     .help = "a session without its pages is rebased beyond this; 0 = 8 windows"},
    {"max-concurrent", "M", INTEGER, AT(max_concurrent), 1, 256, .preset = "8", .help = "answers that run at once"},
    {"cpu-mask", "ROWS", STRING, AT(cpu_mask), .help = "kernel rows to hide"},
    {"device", "DEVICE", STRING, AT(device), .preset = "auto", .help = "auto, cpu, vulkan, vulkan:INDEX or vulkan:NAME (see runnel doctor)"},
    {"gpu-layers", "N", STRING, AT(gpu_layers), .preset = "auto",
     .help = "the model's last N layers on the GPU, the others on the CPU; auto = all that fit"},
    {"gpu-mask", "FEATURES", STRING, AT(gpu_mask), .help = "features of the GPU to leave unused"},
    {"linger", "SECONDS", INTEGER, AT(linger_s), 0, 86400, .preset = "10", .help = "answers of a dropped connection run on for this long"},
    {"idle-timeout", "SECONDS", INTEGER, AT(idle_timeout_s), 0, 604800, .preset = "900",
     .help = "close a connection without traffic; 0 = never"},
    {"log-level", "LEVEL", CHOICE, AT(log_level), .choices = "error|warn|info|debug", .preset = "info", .help = "lines up to this level"},
    {"version", NULL, SWITCH, AT(version), .help = "print the version and leave"},
    {"help", NULL, SWITCH, AT(help), .help = "print this and leave"},
};

#define N_FLAGS (sizeof flags / sizeof flags[0])

static const struct flag *find_flag(const char *name, size_t len)
{
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (strlen(flags[i].name) == len && memcmp(flags[i].name, name, len) == 0) {
            return &flags[i];
        }
    }
    return NULL;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t len = strlen(value);
    for (const char *c = choices; len && c;) {
        const char *end = strchr(c, '|');
        size_t n = end ? (size_t)(end - c) : strlen(c);
        if (n == len && memcmp(c, value, n) == 0) {
            return true;
        }
        c = end ? end + 1 : NULL;
    }
    return false;
}

static int set_flag(struct rn_config *config, const struct flag *f, const char *value, struct rn_err *err)
{
    char *at = (char *)config + f->offset;
    switch (f->kind) {
    case SWITCH:
        *(bool *)(void *)at = true;
        return 0;
    case CHOICE:
        if (!is_choice(f->choices, value)) {
            return rn_err_set(err, -EINVAL, "--%s is '%s', expected %s", f->name, value, f->choices);
        }
        *(const char **)(void *)at = value;
        return 0;
    case STRING:
        if (!*value) {
            return rn_err_set(err, -EINVAL, "--%s is empty, expected %s", f->name, f->arg);
        }
        *(const char **)(void *)at = value;
        return 0;
    case INTEGER:
        break;
    }
    char *end;
    errno = 0;
    long long n = strtoll(value, &end, 10);
    if (errno || end == value || *end || n < f->min || n > f->max) {
        return rn_err_set(err, -EINVAL, "--%s is '%s', expected an integer from %lld to %lld", f->name, value, (long long)f->min,
                          (long long)f->max);
    }
    *(int64_t *)(void *)at = n;
    return 0;
}

// systemd's directory first; it may be a list with ':', of which the first is ours.
static void default_dir(char *ret, size_t bytes, const char *unit_variable, const char *xdg_variable, const char *home_part)
{
    const char *unit = getenv(unit_variable), *xdg = getenv(xdg_variable), *home = getenv("HOME");
    if (unit && *unit) {
        snprintf(ret, bytes, "%.*s", (int)strcspn(unit, ":"), unit);
    } else if (xdg && *xdg == '/') {
        snprintf(ret, bytes, "%s/runnel", xdg);
    } else {
        snprintf(ret, bytes, "%s/%s/runnel", home && *home ? home : "/var/lib", home_part);
    }
}

void rn_config_cache_dir(char *ret, size_t bytes)
{
    default_dir(ret, bytes, "CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache");
}

static int set_defaults(struct rn_config *config, struct rn_err *err)
{
    *config = (struct rn_config){0};
    for (size_t i = 0; i < N_FLAGS; i++) {
        int r = flags[i].preset ? set_flag(config, &flags[i], flags[i].preset, err) : 0;
        if (r < 0) {
            return r;
        }
    }
    default_dir(config->default_state_dir, sizeof config->default_state_dir, "STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state");
    rn_config_cache_dir(config->default_cache_dir, sizeof config->default_cache_dir);
    config->state_dir = config->default_state_dir;
    config->cache_dir = config->default_cache_dir;
    return 0;
}

int rn_config_parse(struct rn_config *ret, int argc, char *const *argv, struct rn_err *err)
{
    int r = set_defaults(ret, err);
    for (int i = 1; r == 0 && i < argc; i++) {
        const char *word = strcmp(argv[i], "-h") == 0 ? "--help" : argv[i];
        if (strncmp(word, "--", 2) != 0) {
            return rn_err_set(err, -EINVAL, "unexpected argument '%s'", word);
        }
        size_t len = strcspn(word + 2, "=");
        const char *value = word[2 + len] ? word + 2 + len + 1 : NULL;
        const struct flag *f = find_flag(word + 2, len);
        if (!f) {
            return rn_err_set(err, -EINVAL, "unknown flag '%s'", word);
        }
        if (f->kind == SWITCH && value) {
            return rn_err_set(err, -EINVAL, "--%s takes no value", f->name);
        }
        if (f->kind != SWITCH && !value) {
            if (i + 1 == argc) {
                return rn_err_set(err, -EINVAL, "--%s needs %s", f->name, f->arg);
            }
            value = argv[++i];
        }
        r = set_flag(ret, f, value, err);
    }
    return r;
}

void rn_config_help(FILE *out)
{
    fprintf(out, "usage: runneld --model FILE [flags]\n\nKeeps a language model running and serves it at http://ADDR:PORT\n"
                 "(WebSocket: /v1/responses).\n\n");
    for (size_t i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", f->name, f->arg ? " " : "", f->arg ? f->arg : "");
        fprintf(out, "  %-24s %s", left, f->help);
        if (f->choices) {
            fprintf(out, ": %s", f->choices);
        }
        if (f->preset) {
            fprintf(out, " (default %s)", f->preset);
        }
        fputc('\n', out);
    }
    fprintf(out, "\nExit codes: 0 after SIGTERM or SIGINT, 64 usage, 66 no usable model, 69 unavailable (port, memory,\n"
                 "state directory in use), 78 settings that cannot be served.\n");
}

int rn_config_listen(const char *listen, char *ret_address, size_t address_bytes, uint16_t *ret_port, struct rn_err *err)
{
    const char *colon = strrchr(listen, ':');
    const char *from = listen;
    size_t len = colon ? (size_t)(colon - listen) : 0;
    if (len >= 2 && from[0] == '[' && from[len - 1] == ']') {
        from++;
        len -= 2;
    } else if (memchr(from, ':', len)) {
        return rn_err_set(err, -EINVAL, "--listen is '%s': an IPv6 address needs brackets, [ADDR]:PORT", listen);
    }
    char *end = NULL;
    errno = 0;
    unsigned long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 0;
    if (len == 0 || !end || *end || errno || port > UINT16_MAX) {
        return rn_err_set(err, -EINVAL, "--listen is '%s', expected ADDR:PORT with a port from 0 to 65535", listen);
    }
    const char *name = "localhost";
    bool is_localhost = len == strlen(name) && memcmp(from, name, len) == 0;
    int n = is_localhost ? snprintf(ret_address, address_bytes, "127.0.0.1") : snprintf(ret_address, address_bytes, "%.*s", (int)len, from);
    if (n < 0 || (size_t)n >= address_bytes) {
        return rn_err_set(err, -EINVAL, "--listen is '%s': the address is too long", listen);
    }
    *ret_port = (uint16_t)port;
    return 0;
}
