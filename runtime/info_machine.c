/* This machine: its CPU and the kernel rows chosen for it, its memory, and its two limits measured. Reads of /proc and /sys that fail leave
 * their member out. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/kernels.h"
#include "runtime/device_internal.h"
#include "runtime/info.h"
#include "runtime/vulkan/gpu.h"

// What kernels use or could use, as Linux spells it.
static const char *const flags_of_interest[] = {
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "amx_int8",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
};

/* The text after "NAME : " on the first such line of a file of the kernel; false: none. */
static bool find_line(const char *path, const char *name, char *ret, size_t size)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    bool found = false;
    while (f && !found && getline(&line, &cap, f) >= 0) {
        size_t n = strlen(name), skip = strspn(line + (strncmp(line, name, n) == 0 ? n : 0), " \t");
        if (strncmp(line, name, n) == 0 && line[n + skip] == ':') {
            const char *value = line + n + skip + 1;
            value += strspn(value, " \t");
            found = snprintf(ret, size, "%.*s", (int)strcspn(value, "\n"), value) >= 0;
        }
    }
    free(line); // getline's
    if (f) {
        (void)fclose(f); // opened for reading
    }
    return found;
}

static json_t *read_flags(void)
{
    char line[8192];
    json_t *list = json_array();
    if (!find_line("/proc/cpuinfo", "flags", line, sizeof line) && !find_line("/proc/cpuinfo", "Features", line, sizeof line)) {
        return list;
    }
    char *rest = NULL;
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        for (size_t i = 0; i < sizeof flags_of_interest / sizeof flags_of_interest[0]; i++) {
            if (strcmp(word, flags_of_interest[i]) == 0 && json_array_append_new(list, json_string(word)) < 0) {
                json_decref(list);
                return NULL;
            }
        }
    }
    return list;
}

static int read_rows(json_t *o, const char *mask, struct rn_err *err)
{
    struct rn_cpu_kernels kernels;
    int r = rn_cpu_kernels_choose(&kernels, mask, err);
    for (int op = 0; r == 0 && op < RN_CPU_OP_COUNT; op++) {
        r = json_object_set_new(o, rn_cpu_op_name((enum rn_cpu_op)op), json_string(kernels.row[op]->name)) < 0 ? -ENOMEM : 0;
    }
    return r;
}

static json_t *read_cpu(uint32_t n_threads, json_t *rows)
{
    char name[128];
    uint32_t cores, quota;
    rn_cpu_cores(&cores, &quota);
    json_t *o = json_pack("{s:o, s:I, s:I, s:o, s:I, s:O}", "flags", read_flags(), "logical", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN),
                          "cores", (json_int_t)cores, "quota", quota ? json_integer((json_int_t)quota) : json_null(), "threads",
                          (json_int_t)n_threads, "rows", rows);
    if (o && find_line("/proc/cpuinfo", "model name", name, sizeof name) && json_object_set_new(o, "name", json_string(name)) < 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static json_t *read_memory(void)
{
    char line[128];
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    json_t *o = json_pack("{s:I}", "bytes", (json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    if (o && find_line("/proc/meminfo", "MemAvailable", line, sizeof line)) {
        json_object_set_new(o, "available", json_integer((json_int_t)(strtoll(line, NULL, 10) * 1024))); // absent without memory for it
    }
    if (f) {
        // "always [madvise] never": the one in brackets counts.
        char *from = fgets(line, sizeof line, f) ? strchr(line, '[') : NULL, *to = from ? strchr(from, ']') : NULL;
        (void)fclose(f); // opened for reading
        if (o && to) {
            *to = 0;
            json_object_set_new(o, "huge_pages", json_string(from + 1)); // as above
        }
    }
    return o;
}

// Text of a driver: what is not UTF-8 is left out.
static json_t *text_or_null(const char *text)
{
    json_t *v = text[0] ? json_string(text) : NULL;
    return v ? v : json_null();
}

static json_t *gpu_json(const struct rn_gpu_info *gpu)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:b, s:b, s:I, s:I}", "index", (json_int_t)gpu->index, "name", text_or_null(gpu->name), "driver",
                     text_or_null(gpu->driver), "features", text_or_null(gpu->features), "refused", text_or_null(gpu->refused), "software",
                     (int)gpu->is_cpu, "integrated", (int)gpu->integrated, "memory", (json_int_t)gpu->memory, "budget", (json_int_t)gpu->budget);
}

static int add_gpus(json_t *o, const char *mask)
{
    struct rn_gpu_info *list = NULL;
    struct rn_err why = {0}, rights = {0};
    size_t n = 0;
    json_t *all = json_array();
    int r = rn_gpu_list(&list, &n, mask, &why) < 0 ? json_object_set_new(o, "no_gpus", text_or_null(why.text)) : 0;
    for (size_t i = 0; i < n; i++) {
        r |= json_array_append_new(all, gpu_json(&list[i]));
    }
    rn_gpu_list_free(list);
    if (rn_gpu_rights(&rights) < 0) {
        r |= json_object_set_new(o, "rights", text_or_null(rights.text));
    }
    return r | json_object_set_new(o, "gpus", all);
}

static int add_device(json_t *o, const struct rn_info_machine *params)
{
    struct rn_device d;
    struct rn_err why = {0};
    int r = rn_device_choose(&d, params->device, params->gpu_mask, /*skip=*/0, &why);
    const char *takes = r < 0 ? "" : d.is_gpu ? d.name : "cpu";
    return json_object_set_new(o, "device", json_pack("{s:s, s:o, s:o}", "asked", params->device, "takes", text_or_null(takes), "reason",
                                                      text_or_null(r < 0 ? why.text : d.note)));
}

int rn_info_machine(json_t **ret, const struct rn_info_machine *params, struct rn_err *err)
{
    uint32_t n_threads = params->n_threads ? params->n_threads : rn_cpu_threads_default();
    json_t *rows = json_object();
    int r = read_rows(rows, params->cpu_mask, err);
    if (r < 0) {
        json_decref(rows);
        return r == -ENOMEM ? rn_err_nomem(err, sizeof(json_t *), "kernel rows") : r;
    }
    json_t *o = json_pack("{s:o, s:o}", "cpu", read_cpu(n_threads, rows), "memory", read_memory());
    json_decref(rows);
    r = o ? add_gpus(o, params->gpu_mask) : -1;
    r = r < 0 || !params->device ? r : add_device(o, params);
    if (r == 0 && params->measure_ms) {
        double read, tops;
        rn_cpu_measure(n_threads, params->measure_ms, &read, &tops);
        r = json_object_set_new(o, "measured", json_pack("{s:f, s:f}", "read_gb_per_s", read, "int8_tops", tops));
    }
    if (!o || r < 0) {
        json_decref(o);
        return rn_err_nomem(err, sizeof(json_t *), "what this machine is");
    }
    *ret = o;
    return 0;
}
