/* What this machine offers: instruction sets (x86: cpuid, and the operating system's word that it saves the wide registers; ARM: the
 * auxiliary vector) and the cores this process may use (affinity, hyper-threads counted once, cgroup quota). Reads of /sys and /proc
 * that fail mean "no limit". */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "runtime/cpu/cpu.h"
#include "runtime/cpu/kernels.h"

#if defined(__x86_64__)
/* Register states the operating system saves (XCR0). */
static uint32_t saved_states(void)
{
    uint32_t eax, edx;
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    return eax;
}

#define XCR0_AVX 0x06u    /* xmm, ymm */
#define XCR0_AVX512 0xe6u /* and mask registers, zmm */
#define LEAF_7_1_EAX_AVX_VNNI (1u << 4)

static bool has_bits(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

uint32_t rn_cpu_features(void)
{
    uint32_t a, b, c, d, c1, ret = 0;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !has_bits(c1, bit_OSXSAVE | bit_AVX)) {
        return 0;
    }
    uint32_t saved = saved_states();
    if (!has_bits(saved, XCR0_AVX) || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return 0;
    }
    ret |= has_bits(c1, bit_F16C) ? RN_CPU_F16C : 0;
    ret |= has_bits(c1, bit_FMA) && has_bits(b, bit_AVX2) ? RN_CPU_AVX2_FMA : 0;
    if (has_bits(saved, XCR0_AVX512) && has_bits(b, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ)) {
        ret |= RN_CPU_AVX512;
        ret |= has_bits(c, bit_AVX512VNNI) ? RN_CPU_AVX512_VNNI : 0;
    }
    // Leaf 7 says in eax how far its subleaves go.
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        ret |= has_bits(a, LEAF_7_1_EAX_AVX_VNNI) ? RN_CPU_AVX_VNNI : 0;
    }
    return ret;
}
#elif defined(__aarch64__)
uint32_t rn_cpu_features(void)
{
    uint32_t ret = 0;
    ret |= getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? RN_CPU_NEON_DOTPROD : 0;
    ret |= getauxval(AT_HWCAP2) & HWCAP2_I8MM ? RN_CPU_NEON_I8MM : 0;
    return ret;
}
#else
uint32_t rn_cpu_features(void)
{
    return 0;
}
#endif

/* One line of a small text file without its newline; false if it cannot be read. */
static bool read_line(const char *path, char *line, int size)
{
    FILE *f = fopen(path, "re");
    if (!f) {
        return false;
    }
    bool ok = fgets(line, size, f) != NULL;
    (void)fclose(f); // opened for reading
    if (ok) {
        line[strcspn(line, "\n")] = 0;
    }
    return ok;
}

/* Is there a hyper-thread of the same core with a lower number among the allowed ones? The list reads "0,64" or "0-1". */
static bool core_counted(const cpu_set_t *allowed, int cpu)
{
    char path[96], list[256];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_line(path, list, sizeof(list))) {
        return false;
    }
    for (const char *p = list; *p;) {
        char *end;
        long from = strtol(p, &end, 10), to = from;
        if (end == p) {
            return false;
        }
        if (*end == '-') {
            to = strtol(end + 1, &end, 10);
        }
        for (long i = from; i <= to && i < cpu; i++) {
            if (i >= 0 && CPU_ISSET((size_t)i, allowed)) {
                return true;
            }
        }
        p = *end == ',' ? end + 1 : "";
    }
    return false;
}

static uint32_t cores_allowed(void)
{
    cpu_set_t allowed;
    uint32_t n = 0;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return 1; // more than 1024 processors: the user knows better and says --threads
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        n += CPU_ISSET((size_t)cpu, &allowed) && !core_counted(&allowed, cpu);
    }
    return n ? n : 1;
}

/* Whole cores of one "quota period" pair in microseconds; "max" or nonsense: no limit. */
static uint32_t quota_cores(const char *line)
{
    char *end;
    long long quota = strtoll(line, &end, 10);
    long long period = end != line ? strtoll(end, NULL, 10) : 0;
    if (quota <= 0 || period <= 0) {
        return UINT32_MAX;
    }
    long long n = quota / period;
    return n < 1 ? 1 : n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* The least quota of our cgroup (version 2) and its ancestors. */
static uint32_t cores_of_cgroup(void)
{
    char group[1024] = "", path[1200], line[128];
    uint32_t least = UINT32_MAX;
    if (read_line("/proc/self/cgroup", group, sizeof(group)) && strncmp(group, "0::/", 4) == 0) {
        memmove(group, group + 3, strlen(group + 3) + 1);
    } else {
        group[0] = 0;
    }
    for (;;) {
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", strcmp(group, "/") == 0 ? "" : group);
        if (read_line(path, line, sizeof(line))) {
            uint32_t n = quota_cores(line);
            least = n < least ? n : least;
        }
        char *slash = strrchr(group, '/');
        if (!slash) {
            return least;
        }
        *slash = 0;
    }
}

void rn_cpu_cores(uint32_t *ret_cores, uint32_t *ret_quota)
{
    uint32_t quota = cores_of_cgroup();
    *ret_cores = cores_allowed();
    *ret_quota = quota == UINT32_MAX ? 0 : quota;
}

uint32_t rn_cpu_threads_default(void)
{
    uint32_t cores = cores_allowed(), quota = cores_of_cgroup();
    return cores < quota ? cores : quota;
}
