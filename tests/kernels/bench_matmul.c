/* Speed of the matrix kernels: GB/s of weights and GMAC/s, beside the machine's own limits measured in the same minute. The matrices
 * have the default model's rows (576 and 1536 columns) and are large enough to come from memory; threads take pieces, as in the
 * engine. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu.h"
#include "runtime/cpu/pool.h"
#include "runtime/tensor/repack.h"
#include "tests/kernels/matmul_internal.h"

#define PIECE 8 // row blocks

struct job {
    struct rn_pool *pool;
    rn_mm_fn fn;
    const struct rn_mm_args *args;
    uint32_t n_blocks;
};

static void job_thread(void *arg, uint32_t thread)
{
    const struct job *j = arg;
    for (struct rn_loop l = rn_loop_begin(j->pool, thread, j->n_blocks, PIECE); rn_loop_next(&l);) {
        j->fn(j->args, l.at, l.end);
    }
}

/* Best seconds of several runs. */
static double best_of(struct job *j, int runs)
{
    double best = 1e30;
    for (int i = 0; i < runs; i++) {
        uint64_t start = rn_clock_ns();
        rn_pool_run(j->pool, job_thread, j);
        double s = (double)(rn_clock_ns() - start) * 1e-9;
        best = s < best ? s : best;
    }
    return best;
}

static void bench_op(enum rn_cpu_op op, enum rn_dtype type, uint32_t cols, uint32_t rows, uint32_t n_tok, uint32_t n_threads)
{
    uint32_t mb = n_tok == 1 ? 1 : n_tok <= 16 ? n_tok : 16;
    size_t bytes = rn_repack_bytes(type, cols, rows), n;
    struct rn_acts a = acts_alloc(n_tok, mb, cols / 32);
    memset(a.q, 3, (size_t)n_tok * cols);
    uint8_t *w = rn_mem_region_alloc(bytes);
    float *y = rn_mem_region_alloc((size_t)n_tok * rows * sizeof(float));
    struct rn_pool *pool = NULL;
    if (!w || !y || rn_pool_create(&pool, n_threads, NULL) < 0) {
        printf("out of memory\n");
        return;
    }
    memset(w, 0x35, bytes); // small positive scales in every format
    struct rn_mm_args args = {.w = w, .n_groups = cols / 32, .a = &a, .y = y, .ldy = rows};
    const struct rn_cpu_row *table = rn_cpu_rows(op, &n);
    for (size_t i = 0; i < n; i++) {
        bool plain = strcmp(table[i].name, "c") == 0;
        if ((table[i].features & ~rn_cpu_features()) == 0 && (!plain || n_tok <= 2)) { // plain C's speed is the same per token
            struct job j = {.pool = pool, .fn = (rn_mm_fn)table[i].fn, .args = &args, .n_blocks = rows / 16};
            double s = best_of(&j, plain ? 1 : 7);
            printf("%-9s %-10s %6u x %4u, %3u tok, %u threads: %6.1f GB/s %7.1f GMAC/s\n", rn_cpu_op_name(op), table[i].name, rows, cols,
                   n_tok, n_threads, (double)bytes / s / 1e9, (double)rows * cols * n_tok / s / 1e9);
        }
    }
    rn_pool_destroy(pool);
    rn_mem_region_free(w, bytes);
    rn_mem_region_free(y, (size_t)n_tok * rows * sizeof(float));
    acts_free(&a);
}

static void bench_type(const struct rn_cpu_product *p, uint32_t threads)
{
    const uint32_t few[] = {2, 4, 8, 16};
    const enum rn_cpu_op one = p->op, some = (enum rn_cpu_op)(p->op + 1), many = (enum rn_cpu_op)(p->op + 2);
    const uint32_t block = rn_dtype_find(p->type)->block_len, narrow = 576 / block * block; // 576 or 512 columns
    bench_op(one, p->type, narrow, 262144, 1, threads);
    bench_op(one, p->type, 1536, 98304, 1, threads);
    bench_op(one, p->type, 2048, 65536, 1, threads);
    for (int k = 0; k < 4; k++) {
        bench_op(some, p->type, narrow, 262144, few[k], threads);
    }
    bench_op(many, p->type, narrow, 1536, 128, threads);
    bench_op(many, p->type, 1536, 576, 128, threads);
    bench_op(many, p->type, 2048, 8192, 128, threads);
}

void bench_matmul(const char *only)
{
    size_t n;
    const struct rn_cpu_product *types = rn_cpu_products(&n);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        double gb, tops;
        rn_cpu_measure(threads, 400, &gb, &tops);
        printf("%u threads: read %.1f GB/s, int8 %.2f tera operations/s = %.0f GMAC/s\n", threads, gb, tops, tops * 500);
        for (size_t i = 0; i < n; i++) {
            if (!types[i].is_float && (!only || strcmp(rn_dtype_find(types[i].type)->name, only) == 0)) {
                bench_type(&types[i], threads);
            }
        }
    }
}
