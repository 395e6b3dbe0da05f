/* The table of kernel rows and the choice of one row per operation (kernels.h). A new variant is one line here, one function in its
 * instruction set's folder, and nothing else: tests/kernels walks this table.
 *
 * Within an operation: best first, plain C last. Operations stand in the order of enum rn_cpu_op (a test checks both). */
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/cpu/rows_internal.h"

#define AVX2 (RN_CPU_F16C | RN_CPU_AVX2_FMA)
#define AVX512VNNI (AVX2 | RN_CPU_AVX512 | RN_CPU_AVX512_VNNI)

#ifdef RN_CPU_HAVE_AVX512VNNI
#define ROW_AVX512VNNI(op, fn) {op, "avx512vnni", AVX512VNNI, (rn_cpu_fn)fn##_avx512vnni},
#else
#define ROW_AVX512VNNI(op, fn)
#endif
#ifdef RN_CPU_HAVE_AVXVNNI
#define ROW_AVXVNNI(op, fn) {op, "avxvnni", AVX2 | RN_CPU_AVX_VNNI, (rn_cpu_fn)fn##_avxvnni},
#else
#define ROW_AVXVNNI(op, fn)
#endif
#ifdef RN_CPU_HAVE_AVX2
#define ROW_AVX2(op, fn) {op, "avx2", AVX2, (rn_cpu_fn)fn##_avx2},
#else
#define ROW_AVX2(op, fn)
#endif
#ifdef RN_CPU_HAVE_NEON_I8MM
#define ROW_NEON_I8MM(op, fn) {op, "neon_i8mm", RN_CPU_NEON_DOTPROD | RN_CPU_NEON_I8MM, (rn_cpu_fn)fn##_neon_i8mm},
#else
#define ROW_NEON_I8MM(op, fn)
#endif
#ifdef RN_CPU_HAVE_NEON_DOTPROD
#define ROW_NEON_DOTPROD(op, fn) {op, "neon_dotprod", RN_CPU_NEON_DOTPROD, (rn_cpu_fn)fn##_neon_dotprod},
#else
#define ROW_NEON_DOTPROD(op, fn)
#endif
#define ROW_C(op, fn) {op, "c", 0, (rn_cpu_fn)fn##_c},

// The macros below bring their own commas.
// clang-format off
#define ROWS(op, fn)           \
    ROW_AVX512VNNI(op, fn)     \
    ROW_AVX2(op, fn)           \
    ROW_NEON_DOTPROD(op, fn)   \
    ROW_C(op, fn)
#define ROWS_INT8(op, fn)      \
    ROW_AVX512VNNI(op, fn)     \
    ROW_AVXVNNI(op, fn)        \
    ROW_AVX2(op, fn)           \
    ROW_NEON_DOTPROD(op, fn)   \
    ROW_C(op, fn)
#define ROWS_MANY(op, fn)      \
    ROW_NEON_I8MM(op, fn)      \
    ROWS_INT8(op, fn)

#define ROWS_QUANT(TYPE, name)                    \
    ROWS_INT8(RN_CPU_MM1_##TYPE, rn_mm1_##name)   \
    ROWS_MANY(RN_CPU_MMF_##TYPE, rn_mmf_##name)   \
    ROWS_MANY(RN_CPU_MMN_##TYPE, rn_mmn_##name)
#define ROWS_FLOAT(TYPE, name) ROWS(RN_CPU_MM_##TYPE, rn_mm_##name)

static const struct rn_cpu_row rows[] = {
    RN_CPU_QUANT_TYPES(ROWS_QUANT)
    RN_CPU_FLOAT_TYPES(ROWS_FLOAT)
    ROWS(RN_CPU_QUANT_ACT, rn_quant_act)
    ROWS(RN_CPU_NORM, rn_norm)
    ROWS(RN_CPU_ADD, rn_add)
    ROWS(RN_CPU_SILU_MUL, rn_silu_mul)
    ROWS(RN_CPU_GELU_MUL, rn_gelu_mul)
    ROWS(RN_CPU_ROPE, rn_rope)
    ROWS(RN_CPU_KV_WRITE_F16, rn_kv_write_f16)
    ROWS(RN_CPU_KV_WRITE_Q8_0, rn_kv_write_q8_0)
    ROWS(RN_CPU_ATTN_F16, rn_attn_f16)
    ROWS_INT8(RN_CPU_ATTN_Q8_0, rn_attn_q8_0)
    ROWS(RN_CPU_ATTN_COMBINE, rn_attn_combine)
};

#define NAMES_QUANT(TYPE, name)            \
    [RN_CPU_MM1_##TYPE] = "mm1_" #name,    \
    [RN_CPU_MMF_##TYPE] = "mmf_" #name,    \
    [RN_CPU_MMN_##TYPE] = "mmn_" #name,
#define NAMES_FLOAT(TYPE, name) [RN_CPU_MM_##TYPE] = "mm_" #name,

static const char *const op_names[RN_CPU_OP_COUNT] = {
    RN_CPU_QUANT_TYPES(NAMES_QUANT)
    RN_CPU_FLOAT_TYPES(NAMES_FLOAT)
    [RN_CPU_QUANT_ACT] = "quant_act",
    [RN_CPU_NORM] = "norm",
    [RN_CPU_ADD] = "add",
    [RN_CPU_SILU_MUL] = "silu_mul",
    [RN_CPU_GELU_MUL] = "gelu_mul",
    [RN_CPU_ROPE] = "rope",
    [RN_CPU_KV_WRITE_F16] = "kv_write_f16",
    [RN_CPU_KV_WRITE_Q8_0] = "kv_write_q8_0",
    [RN_CPU_ATTN_F16] = "attn_f16",
    [RN_CPU_ATTN_Q8_0] = "attn_q8_0",
    [RN_CPU_ATTN_COMBINE] = "attn_combine",
};

#define PRODUCT_QUANT(TYPE, name) {RN_DTYPE_##TYPE, RN_CPU_MM1_##TYPE, false},
#define PRODUCT_FLOAT(TYPE, name) {RN_DTYPE_##TYPE, RN_CPU_MM_##TYPE, true},

static const struct rn_cpu_product products[] = {
    RN_CPU_QUANT_TYPES(PRODUCT_QUANT)
    RN_CPU_FLOAT_TYPES(PRODUCT_FLOAT)
};
// clang-format on

const struct rn_cpu_product *rn_cpu_products(size_t *ret_n)
{
    *ret_n = sizeof(products) / sizeof(products[0]);
    return products;
}

const struct rn_cpu_product *rn_cpu_product_find(enum rn_dtype type)
{
    for (size_t i = 0; i < sizeof(products) / sizeof(products[0]); i++) {
        if (products[i].type == type) {
            return &products[i];
        }
    }
    return NULL;
}

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

const struct rn_cpu_row *rn_cpu_rows(enum rn_cpu_op op, size_t *ret_n)
{
    size_t first = 0;
    while (first < N_ROWS && rows[first].op != op) {
        first++;
    }
    size_t n = 0;
    while (first + n < N_ROWS && rows[first + n].op == op) {
        n++;
    }
    *ret_n = n;
    return n ? &rows[first] : NULL;
}

const char *rn_cpu_op_name(enum rn_cpu_op op)
{
    return (uint32_t)op < RN_CPU_OP_COUNT ? op_names[op] : NULL;
}

/* Names that --cpu-mask knows, whether or not this build has them, so that one command line works on every machine. */
static const char *const row_names[] = {"avx512vnni", "avxvnni", "avx2", "neon_i8mm", "neon_dotprod", "c"};

static bool name_is(const char *name, const char *word, size_t len)
{
    return strlen(name) == len && memcmp(name, word, len) == 0;
}

static bool mask_hides(const char *mask, const char *name)
{
    for (const char *p = mask; p && *p;) {
        size_t len = strcspn(p, ",");
        if (name_is(name, p, len)) {
            return true;
        }
        p += len + (p[len] == ',');
    }
    return false;
}

static int mask_check(const char *mask, struct rn_err *err)
{
    for (const char *p = mask; p && *p;) {
        size_t len = strcspn(p, ",");
        bool known = false;
        for (size_t i = 0; i < sizeof(row_names) / sizeof(row_names[0]); i++) {
            known = known || name_is(row_names[i], p, len);
        }
        if (!known) {
            return rn_err_set(err, -EINVAL,
                              "cpu mask: no kernel row is called '%.*s' (known: avx512vnni, avxvnni, avx2, neon_i8mm, neon_dotprod, c)",
                              (int)(len > 64 ? 64 : len), p);
        }
        p += len + (p[len] == ',');
    }
    return 0;
}

int rn_cpu_kernels_choose(struct rn_cpu_kernels *ret, const char *mask, struct rn_err *err)
{
    int r = mask_check(mask, err);
    if (r < 0) {
        return r;
    }
    uint32_t features = rn_cpu_features();
    for (uint32_t op = 0; op < RN_CPU_OP_COUNT; op++) {
        size_t n;
        const struct rn_cpu_row *row = rn_cpu_rows((enum rn_cpu_op)op, &n);
        // The last row is plain C: it needs nothing and cannot be hidden, so the loop always ends on a row.
        while (n > 1 && ((row->features & ~features) != 0 || mask_hides(mask, row->name))) {
            row++;
            n--;
        }
        ret->row[op] = row;
    }
    return 0;
}
