/* runnel doctor: looks this machine over before, or instead of, guessing: CPU and kernels, memory, speed, a model, files, the daemon.
 *
 * Each finding is one line with a state: ok; note: nothing is wrong, but good to know; warn: works, worse than it could; fail: does not
 * work. Exit code 1 when something fails. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/cli/cli.h"
#include "daemon/cli/daemon_url.h"
#include "daemon/cli/json_at.h"
#include "daemon/cli/model.h"
#include "daemon/config.h"
#include "runtime/base/err.h"
#include "runtime/info.h"

#define MEASURE_MS 300

struct args {
    struct rn_model_args model;
    struct rn_url_args url;
    bool json;
};

#define AT(field) offsetof(struct args, field)

static const struct rn_option options[] = {
    {"--json", NULL, RN_OPTION_FLAG, AT(json), "print one JSON object"},
};

static const struct rn_option_group groups[] = {
    {NULL, RN_OPTIONS(options), 0},
    {"model (optional)", RN_OPTIONS(rn_model_options), AT(model)},
    {"daemon", RN_OPTIONS(rn_url_options), AT(url)},
};

static const struct rn_option_set set = {
    .usage = "doctor [-m FILE] [--json]",
    .about = "Says what this machine offers, what bounds the speed of a model on it, and what stands in the way.",
    .groups = groups,
    .n_groups = sizeof groups / sizeof groups[0],
};

struct doctor {
    const struct args *args;
    json_t *report;
    json_t *findings; // [{"what", "state", "text"}]; borrowed from the report
    bool failed, no_memory;
};

// Text that may have a path in it or be cut: what is not UTF-8 is shown as '?'.
static json_t *text_json(const char *text)
{
    json_t *v = json_string(text);
    if (v) {
        return v;
    }
    char line[1024];
    snprintf(line, sizeof line, "%s", text);
    for (char *c = line; *c; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
    return json_string(line);
}

// Takes v.
static void put(struct doctor *d, const char *key, json_t *v)
{
    d->no_memory = json_object_set_new(d->report, key, v) < 0 || d->no_memory;
}

__attribute__((format(printf, 4, 5))) static void say(struct doctor *d, const char *what, const char *state, const char *format, ...)
{
    va_list list;
    char line[1024];
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    json_t *finding = json_pack("{s:s, s:s, s:o}", "what", what, "state", state, "text", text_json(line));
    d->no_memory = json_array_append_new(d->findings, finding ? finding : json_null()) < 0 || !finding || d->no_memory;
    d->failed = d->failed || strcmp(state, "fail") == 0;
}

static double mib(double bytes)
{
    return bytes / (1 << 20);
}

/* ---- The machine ------------------------------------------------------------------------------------------------------------------- */

static void look_at_cpu(struct doctor *d, const json_t *cpu)
{
    const char *row = text_at(at(cpu, "rows"), "mm1_q4_0"); // stands for the rest
    char flags[256] = "";
    size_t i, len = 0;
    json_t *flag;
    json_array_foreach(at(cpu, "flags"), i, flag)
    {
        int n = snprintf(flags + len, sizeof flags - len, " %s", json_string_value(flag));
        len = n > 0 && len + (size_t)n < sizeof flags ? len + (size_t)n : len;
    }
    bool plain = strcmp(row, "c") == 0;
    say(d, "CPU", "ok", "%s; flags:%s", at(cpu, "name") ? text_at(cpu, "name") : "unknown", len ? flags : " none that kernels use");
    say(d, "kernels", plain ? "warn" : "ok", "%s", plain ? "plain C: slow, no faster row suits this CPU" : row);
    char quota[64] = "";
    if (json_is_integer(at(cpu, "quota"))) {
        snprintf(quota, sizeof quota, ", limited to %.0f by the control group", number_at(cpu, "quota"));
    }
    say(d, "threads", "ok", "%.0f: %.0f physical cores, %.0f logical ones%s", number_at(cpu, "threads"), number_at(cpu, "cores"),
        number_at(cpu, "logical"), quota);
}

static void look_at_memory(struct doctor *d, const json_t *memory)
{
    const char *huge = text_at(memory, "huge_pages");
    say(d, "memory", "ok", "%.0f MiB, %.0f MiB available", mib(number_at(memory, "bytes")), mib(number_at(memory, "available")));
    if (strcmp(huge, "never") == 0) {
        say(d, "huge pages", "warn", "off: weights are read slower (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)");
    } else {
        say(d, "huge pages", *huge ? "ok" : "note", "%s", *huge ? huge : "this kernel does not say");
    }
}

/* One line per GPU; without rights to one the list is silent about it. */
static void look_at_gpus(struct doctor *d, const json_t *machine)
{
    size_t i;
    json_t *gpu;
    if (at(machine, "rights")) {
        say(d, "GPU rights", "warn", "%s", text_at(machine, "rights"));
    }
    if (at(machine, "no_gpus")) {
        say(d, "GPU", "note", "%s", text_at(machine, "no_gpus"));
    }
    json_array_foreach(at(machine, "gpus"), i, gpu)
    {
        const char *refused = text_at(gpu, "refused");
        bool software = json_is_true(at(gpu, "software"));
        const char *kind = software ? ", software: taken only when named" : json_is_true(at(gpu, "integrated")) ? ", integrated" : "";
        say(d, "GPU", *refused ? "warn" : software ? "note" : "ok", "%.0f: %s%s; driver %s; %.0f MiB, %.0f MiB available; uses %s%s%s",
            number_at(gpu, "index"), text_at(gpu, "name"), kind, text_at(gpu, "driver"), mib(number_at(gpu, "memory")),
            mib(number_at(gpu, "budget")), *text_at(gpu, "features") ? text_at(gpu, "features") : "no optional feature",
            *refused ? "; refused: " : "", refused);
    }
    const json_t *device = at(machine, "device");
    const char *takes = text_at(device, "takes"), *reason = text_at(device, "reason");
    if (*takes) {
        say(d, "device", "ok", "--device %s takes %s%s%s%s", text_at(device, "asked"), takes, *reason ? " (" : "", reason, *reason ? ")" : "");
    } else {
        say(d, "device", "fail", "%s", reason);
    }
}

static int look_at_machine(struct doctor *d, struct rn_err *err)
{
    json_t *machine = NULL;
    const struct rn_model_args *model = &d->args->model;
    struct rn_info_machine params = {.n_threads = model->threads, .cpu_mask = model->cpu_mask, .device = model->device,
                                     .gpu_mask = model->gpu_mask, .measure_ms = MEASURE_MS};
    int r = rn_info_machine(&machine, &params, err);
    if (r < 0) {
        return r;
    }
    const json_t *measured = at(machine, "measured");
    look_at_cpu(d, at(machine, "cpu"));
    look_at_memory(d, at(machine, "memory"));
    look_at_gpus(d, machine);
    say(d, "speed", "ok", "reads %.1f GB/s, int8 peak %.2f tera operations/s", number_at(measured, "read_gb_per_s"),
        number_at(measured, "int8_tops"));
    put(d, "machine", machine);
    return 0;
}

/* ---- The model --------------------------------------------------------------------------------------------------------------------- */

/* What a decode step cannot be faster than: its weights (and with a full window its KV) at the read bandwidth, its products at the integer
 * peak. */
static void look_at_limit(struct doctor *d, const json_t *model)
{
    const json_t *measured = at(at(d->report, "machine"), "measured"), *decode = at(model, "decode");
    double bandwidth = number_at(measured, "read_gb_per_s") * 1e9, peak = number_at(measured, "int8_tops") * 1e12 / 2;
    const json_t *memory = at(model, "memory");
    double kv = number_at(at(memory, "kv"), d->args->model.kv), bytes = number_at(decode, "bytes"), macs = number_at(decode, "macs");
    if (!(bandwidth > 0 && peak > 0 && bytes > 0)) {
        return;
    }
    double by_reading = bandwidth / bytes, by_products = peak / macs, filled = bandwidth / (bytes + kv);
    bool reads = by_reading <= by_products;
    say(d, "decode", "ok", "at most %.0f tokens/s: %s; %.0f tokens/s with %.0f tokens of %s KV", reads ? by_reading : by_products,
        reads ? "the weights are read once per token" : "the products take the integer peak", filled < by_products ? filled : by_products,
        number_at(memory, "window"), d->args->model.kv);
    put(d, "limit",
        json_pack("{s:s, s:f, s:f, s:f, s:f}", "by", reads ? "read bandwidth" : "integer peak", "bytes_per_token", bytes, "read_tokens_per_s",
                  by_reading, "integer_tokens_per_s", by_products, "read_tokens_per_s_filled", filled));
}

static void look_at_room(struct doctor *d, const json_t *model)
{
    const json_t *memory = at(model, "memory"), *ram = at(at(d->report, "machine"), "memory");
    double kv = number_at(at(memory, "kv"), d->args->model.kv), need = number_at(memory, "weights") + kv;
    if (!memory) {
        return;
    }
    const char *state = need > number_at(ram, "bytes") ? "fail" : need > number_at(ram, "available") ? "warn" : "ok";
    say(d, "room", state, "%.0f MiB of weights and %.0f MiB of %s KV for a window of %.0f tokens%s", mib(number_at(memory, "weights")), mib(kv),
        d->args->model.kv, number_at(memory, "window"),
        strcmp(state, "fail") == 0   ? ", more than this machine's memory"
        : strcmp(state, "warn") == 0 ? ", more than is available now"
                                     : "");
}

static void look_at_model(struct doctor *d)
{
    struct rn_err err = {0};
    json_t *model = NULL;
    struct stat st;
    const char *path = d->args->model.model;
    if (!path) {
        say(d, "model", "note", "none named (-m FILE)");
        return;
    }
    if (rn_info_model(&model, path, &err) < 0) {
        say(d, "model", "fail", "%s", err.text);
        return;
    }
    if (!json_is_true(at(model, "runs"))) {
        say(d, "model", "fail", "cannot be run: %s", text_at(model, "reason"));
    } else if (stat(path, &st) == 0) {
        say(d, "model", "ok", "%s, %.1f M parameters, %.0f MiB, mode %04o", text_at(model, "architecture"), number_at(model, "parameters") / 1e6,
            mib(number_at(model, "bytes")), (unsigned)st.st_mode & 07777);
    }
    look_at_room(d, model);
    look_at_limit(d, model);
    put(d, "model", model);
}

/* ---- Files ------------------------------------------------------------------------------------------------------------------------- */

// The nearest directory above that is there must let us make the rest.
static bool can_be_made(const char *path)
{
    char above[1024];
    snprintf(above, sizeof above, "%s", path);
    for (char *slash; (slash = strrchr(above, '/')) != NULL;) {
        *(slash == above ? slash + 1 : slash) = 0;
        if (access(above, F_OK) == 0) {
            return access(above, W_OK | X_OK) == 0;
        }
        if (slash == above) {
            break;
        }
    }
    return false;
}

// is_private: nobody else has business in it.
static void look_at_directory(struct doctor *d, json_t *list, const char *what, const char *path, bool is_private)
{
    struct stat st;
    bool is_there = stat(path, &st) == 0;
    int code = is_there ? 0 : errno;
    json_t *row = json_pack("{s:s, s:o, s:b}", "what", what, "path", text_json(path), "exists", (int)is_there);
    if (is_there && row) {
        char mode[8];
        snprintf(mode, sizeof mode, "%04o", (unsigned)st.st_mode & 07777);
        json_object_set_new(row, "mode", json_string(mode)); // no memory: absent
    }
    d->no_memory = json_array_append_new(list, row) < 0 || d->no_memory;
    if (!is_there && code == ENOENT) {
        bool can = can_be_made(path);
        say(d, what, can ? "note" : "fail", "'%s' %s", path, can ? "is not there yet" : "is not there and cannot be made");
    } else if (!is_there) {
        say(d, what, "fail", "'%s': %s", path, strerror(code));
    } else if (!S_ISDIR(st.st_mode)) {
        say(d, what, "fail", "'%s' is no directory", path);
    } else if (access(path, R_OK | W_OK | X_OK) < 0) {
        say(d, what, "fail", "'%s', mode %04o, of user %u: not ours to write", path, (unsigned)st.st_mode & 07777, (unsigned)st.st_uid);
    } else if (is_private && st.st_mode & 077) {
        say(d, what, "warn", "'%s', mode %04o: others get in (chmod 700)", path, (unsigned)st.st_mode & 07777);
    } else {
        say(d, what, "ok", "'%s', mode %04o", path, (unsigned)st.st_mode & 07777);
    }
}

static void look_at_files(struct doctor *d)
{
    struct rn_config config; // for the daemon's own defaults
    struct rn_err err = {0};
    char data[1024], *argv[] = {NULL};
    const char *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    if (rn_config_parse(&config, 0, argv, &err) < 0) {
        say(d, "files", "fail", "%s", err.text);
        return;
    }
    if (xdg && *xdg == '/') {
        snprintf(data, sizeof data, "%s/runnel/models", xdg);
    } else {
        snprintf(data, sizeof data, "%s/.local/share/runnel/models", home ? home : "");
    }
    json_t *list = json_array();
    look_at_directory(d, list, "conversations", config.state_dir, true);
    look_at_directory(d, list, "cache", config.cache_dir, true);
    look_at_directory(d, list, "models", data, false);
    put(d, "directories", list);
}

/* ---- The daemon and the libraries -------------------------------------------------------------------------------------------------- */

static void look_at_daemon(struct doctor *d, const struct rn_client_address *to)
{
    struct rn_buf body = {0};
    struct rn_err err = {0};
    int status = 0;
    bool is_there = rn_client_http(to, "GET", "/ready", &status, &body, &err) == 0;
    rn_buf_finish(&body);
    if (!is_there) {
        say(d, "daemon", "note", "%s", err.text);
    } else if (status == 200) {
        say(d, "daemon", "ok", "ready at %s", to->header);
    } else {
        say(d, "daemon", "warn", "not ready at %s: it answers %d", to->header, status);
    }
    put(d, "daemon", json_pack("{s:s, s:b, s:b}", "address", to->header, "reachable", (int)is_there, "ready", (int)(is_there && status == 200)));
}

// RN_LIBRARIES: "jansson 2.14, …", as meson found them.
static void look_at_libraries(struct doctor *d)
{
    char all[] = RN_LIBRARIES, *rest = NULL;
    json_t *o = json_object();
    for (char *one = strtok_r(all, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        one += strspn(one, " ");
        char *version = strchr(one, ' ');
        if (version) {
            *version++ = 0;
            d->no_memory = json_object_set_new(o, one, json_string(version)) < 0 || d->no_memory;
        }
    }
    put(d, "libraries", o);
    put(d, "version", json_string(RN_VERSION));
    say(d, "version", "ok", "runnel %s, built with %s", RN_VERSION, RN_LIBRARIES);
}

/* ---- The verb ---------------------------------------------------------------------------------------------------------------------- */

static int print(struct doctor *d)
{
    size_t i;
    json_t *finding;
    put(d, "ok", json_boolean(!d->failed));
    if (d->args->json) {
        int code = rn_cli_print_json(d->no_memory ? NULL : json_incref(d->report));
        return code ? code : d->failed ? RN_CLI_FAILED : RN_CLI_OK;
    }
    json_array_foreach(d->findings, i, finding)
    {
        const char *text = text_at(finding, "text");
        printf("%-5s %-14s ", text_at(finding, "state"), text_at(finding, "what"));
        rn_cli_put_text(text, strlen(text));
        putchar('\n');
    }
    int code = rn_cli_flush();
    return code ? code : d->failed ? RN_CLI_FAILED : RN_CLI_OK;
}

static int examine(const struct args *args, struct rn_err *err)
{
    struct doctor d = {.args = args, .report = json_object(), .findings = json_array()};
    struct rn_client_address to;
    int code;
    put(&d, "findings", d.findings);
    if (rn_url_resolve(&args->url, &to, err) < 0 || look_at_machine(&d, err) < 0) {
        code = rn_cli_fail(err->code == -ENOMEM ? RN_CLI_UNAVAILABLE : RN_CLI_USAGE, err);
    } else {
        look_at_model(&d);
        look_at_files(&d);
        look_at_daemon(&d, &to);
        look_at_libraries(&d);
        code = print(&d);
    }
    json_decref(d.report);
    return code;
}

int rn_verb_doctor(int argc, char *const *argv)
{
    struct args args = {0};
    struct rn_err err = {0};
    int code;
    if (!rn_cli_parse(&set, &args, argc, argv, NULL, &code)) {
        return code;
    }
    return examine(&args, &err);
}
