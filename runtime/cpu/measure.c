/* What the machine can do at best, in the same minute as a benchmark: bytes read per second from memory larger than the caches, and
 * int8 multiply-adds per second. Both are the best of the passes that fit into the time. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/pool.h"
#include "runtime/cpu/rows_internal.h"

#define READ_BYTES ((size_t)256 << 20) // 8 times the last-level cache of a big desktop part
#define READ_BYTES_MIN ((size_t)16 << 20)
#define STEP 4096    // shares of threads are whole pages
#define MIN_PASSES 8 // the best of fewer says more about who else was running

struct probe {
    struct rn_pool *pool;
    uint8_t *memory;
    size_t bytes;
    const struct kind *kind; // whose probes run
    uint64_t (*work)(const struct probe *p, uint32_t i, uint32_t n); // share i of n of a pass
    _Atomic uint64_t sink;   // keeps the compiler from dropping the work
};

static uint64_t read_plain(const void *memory, size_t bytes)
{
    const uint8_t *p = memory;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + sizeof(sum) <= bytes; i += sizeof(sum)) {
        uint64_t line[8];
        memcpy(line, p + i, sizeof(line));
        for (int k = 0; k < 8; k++) {
            sum[k] += line[k];
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* Plain C has no register probe; its own kernel on weights that stay in the first-level cache is the peak. */
#define PLAIN_GROUPS 8
static uint64_t macs_plain(uint64_t rounds, uint32_t seed)
{
    _Alignas(64) uint8_t w[544 * PLAIN_GROUPS];
    _Alignas(64) int8_t q[32 * PLAIN_GROUPS];
    _Alignas(64) float d[PLAIN_GROUPS] = {0}, sd[PLAIN_GROUPS] = {0}, y[16];
    _Alignas(64) struct rn_act_sum sum[PLAIN_GROUPS] = {0};
    memset(w, (int)(seed & 15), sizeof(w));
    memset(q, 3, sizeof(q));
    struct rn_acts a = {.n_tok = 1, .mb = 1, .n_groups = PLAIN_GROUPS, .q = q, .d = d, .sd = sd, .sum = sum};
    struct rn_mm_args args = {.w = w, .n_groups = PLAIN_GROUPS, .a = &a, .y = y, .ldy = 16};
    uint64_t ret = 0;
    for (uint64_t i = 0; i < rounds * RN_PROBE_INT8_MACS / (512 * PLAIN_GROUPS); i++) {
        rn_mm1_q8_0_c(&args, 0, 1);
        ret += y[0] < 1;
    }
    return ret;
}

/* Probes per instruction set, best first, plain C last. */
static const struct kind {
    uint32_t features;
    uint64_t (*read)(const void *p, size_t bytes);
    uint64_t (*macs)(uint64_t n_rounds, uint32_t seed);
    uint64_t rounds; // about a millisecond or two per pass
} kinds[] = {
#ifdef RN_CPU_HAVE_AVX512VNNI
    {RN_CPU_AVX512 | RN_CPU_AVX512_VNNI, rn_probe_read_avx512vnni, rn_probe_int8_avx512vnni, 200000},
#endif
#ifdef RN_CPU_HAVE_AVXVNNI
    {RN_CPU_AVX2_FMA | RN_CPU_AVX_VNNI, rn_probe_read_avx2, rn_probe_int8_avxvnni, 100000},
#endif
#ifdef RN_CPU_HAVE_AVX2
    {RN_CPU_AVX2_FMA, rn_probe_read_avx2, rn_probe_int8_avx2, 100000},
#endif
#ifdef RN_CPU_HAVE_NEON_I8MM
    {RN_CPU_NEON_DOTPROD | RN_CPU_NEON_I8MM, rn_probe_read_neon_dotprod, rn_probe_int8_neon_i8mm, 100000},
#endif
#ifdef RN_CPU_HAVE_NEON_DOTPROD
    {RN_CPU_NEON_DOTPROD, rn_probe_read_neon_dotprod, rn_probe_int8_neon_dotprod, 100000},
#endif
    {0, read_plain, macs_plain, 4000},
};

/* One share of a pass per thread; a thread that is late leaves its share to another. */
static void pass(void *arg, uint32_t thread)
{
    struct probe *p = arg;
    uint32_t n = rn_pool_threads(p->pool);
    for (struct rn_loop l = rn_loop_begin(p->pool, thread, n, 1); rn_loop_next(&l);) {
        uint64_t got = p->work(p, l.at, n);
        atomic_fetch_add_explicit(&p->sink, got, memory_order_relaxed);
    }
}

/* Passes of `work` until end_ns; the best rate, of `amount` per pass. */
static double best_rate(struct probe *p, uint64_t (*work)(const struct probe *, uint32_t, uint32_t), double amount, uint32_t ms)
{
    double best = 0;
    uint64_t now = rn_clock_ns(), end = now + ms * UINT64_C(1000000);
    p->work = work;
    for (uint32_t done = 0; now < end || done < MIN_PASSES; done++) {
        uint64_t start = now;
        rn_pool_run(p->pool, pass, p);
        now = rn_clock_ns();
        best = fmax(best, amount * 1e9 / (double)(now - start + 1));
    }
    return best;
}

static uint64_t read_share(const struct probe *p, uint32_t i, uint32_t n)
{
    size_t steps = p->bytes / STEP, from = steps * i / n * STEP, to = steps * (i + 1) / n * STEP;
    return p->kind->read(p->memory + from, to - from);
}

static uint64_t macs_share(const struct probe *p, uint32_t i, uint32_t n)
{
    (void)n;
    return p->kind->macs(p->kind->rounds, i);
}

void rn_cpu_measure(uint32_t n_threads, uint32_t ms, double *ret_read_gb_per_s, double *ret_int8_tops)
{
    struct probe p = {.bytes = READ_BYTES};
    *ret_read_gb_per_s = 0;
    *ret_int8_tops = 0;
    p.kind = kinds;
    while ((p.kind->features & ~rn_cpu_features()) != 0) {
        p.kind++; // the last one needs nothing
    }
    if (rn_pool_create(&p.pool, n_threads, /*err=*/NULL) < 0) {
        return; // no threads: nothing to compare with
    }
    while (!(p.memory = rn_mem_region_alloc(p.bytes)) && p.bytes > READ_BYTES_MIN) {
        p.bytes /= 2;
    }
    if (p.memory) {
        memset(p.memory, 1, p.bytes); // untouched pages would all be the one zero page
        *ret_read_gb_per_s = best_rate(&p, read_share, (double)p.bytes, ms / 2) / 1e9;
        rn_mem_region_free(p.memory, p.bytes);
    }
    double macs = (double)p.kind->rounds * RN_PROBE_INT8_MACS * n_threads;
    *ret_int8_tops = best_rate(&p, macs_share, macs, ms / 2) * 2 / 1e12;
    rn_pool_destroy(p.pool);
}
