/* Prototypes of all kernel rows, for table.c and the files that define them. A row's function is named rn_<op>_<row>: rn_mm1_q4_0_c,
 * rn_norm_avx512vnni.
 *
 * One static library per instruction set defines its rows; RN_CPU_HAVE_AVX512VNNI and its like say that this build contains that library.
 * avxvnni has only what 8-bit dot products make faster than avx2, and neon_i8mm only what 8-bit matrix products make faster than
 * neon_dotprod.
 * Thread: any; all functions are pure (kernels.h). */
#pragma once

#include "runtime/cpu/kernels.h"

/* The function of a row, for templates whose row is a macro. */
#define RN_ROW_NAME_2(name, row) name##_##row
#define RN_ROW_NAME(name, row) RN_ROW_NAME_2(name, row)

// clang-format off
#define RN_CPU_DECLARE_QUANT(name, row)                                                                                                    \
    void rn_mm1_##name##_##row(const struct rn_mm_args *args, uint32_t block0, uint32_t block1);                                           \
    void rn_mmf_##name##_##row(const struct rn_mm_args *args, uint32_t block0, uint32_t block1);                                           \
    void rn_mmn_##name##_##row(const struct rn_mm_args *args, uint32_t block0, uint32_t block1);
#define RN_CPU_DECLARE_FLOAT(name, row) void rn_mm_##name##_##row(const struct rn_mmf_args *args, uint32_t row0, uint32_t row1);

#define DECLARE_QUANT_C(TYPE, name) RN_CPU_DECLARE_QUANT(name, c)
#define DECLARE_FLOAT_C(TYPE, name) RN_CPU_DECLARE_FLOAT(name, c)
#define DECLARE_QUANT_AVX512VNNI(TYPE, name) RN_CPU_DECLARE_QUANT(name, avx512vnni)
#define DECLARE_FLOAT_AVX512VNNI(TYPE, name) RN_CPU_DECLARE_FLOAT(name, avx512vnni)
#define DECLARE_QUANT_AVXVNNI(TYPE, name) RN_CPU_DECLARE_QUANT(name, avxvnni)
#define DECLARE_QUANT_AVX2(TYPE, name) RN_CPU_DECLARE_QUANT(name, avx2)
#define DECLARE_FLOAT_AVX2(TYPE, name) RN_CPU_DECLARE_FLOAT(name, avx2)
#define DECLARE_QUANT_NEON_I8MM(TYPE, name) RN_CPU_DECLARE_QUANT(name, neon_i8mm)
#define DECLARE_QUANT_NEON_DOTPROD(TYPE, name) RN_CPU_DECLARE_QUANT(name, neon_dotprod)
#define DECLARE_FLOAT_NEON_DOTPROD(TYPE, name) RN_CPU_DECLARE_FLOAT(name, neon_dotprod)

RN_CPU_QUANT_TYPES(DECLARE_QUANT_C)
RN_CPU_FLOAT_TYPES(DECLARE_FLOAT_C)
RN_CPU_QUANT_TYPES(DECLARE_QUANT_AVX512VNNI)
RN_CPU_FLOAT_TYPES(DECLARE_FLOAT_AVX512VNNI)
RN_CPU_QUANT_TYPES(DECLARE_QUANT_AVXVNNI)
RN_CPU_QUANT_TYPES(DECLARE_QUANT_AVX2)
RN_CPU_FLOAT_TYPES(DECLARE_FLOAT_AVX2)
RN_CPU_QUANT_TYPES(DECLARE_QUANT_NEON_I8MM)
RN_CPU_QUANT_TYPES(DECLARE_QUANT_NEON_DOTPROD)
RN_CPU_FLOAT_TYPES(DECLARE_FLOAT_NEON_DOTPROD)
// clang-format on

#define RN_CPU_DECLARE_ROW(row)                                                                                                            \
    void rn_quant_act_##row(const float *x, const struct rn_acts *a, uint32_t m);                                                          \
    void rn_norm_##row(const float *x, const float *w, float eps, uint32_t n, float *out);                                                 \
    void rn_add_##row(float *x, const float *y, uint32_t n);                                                                               \
    void rn_silu_mul_##row(const float *gate, const float *up, float *out, uint32_t n);                                                    \
    void rn_gelu_mul_##row(const float *gate, const float *up, float *out, uint32_t n);                                               \
    void rn_rope_##row(const float *x, const float *cs, uint32_t head_dim, uint32_t n_rot, bool interleaved, float *out);                  \
    void rn_kv_write_f16_##row(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot);          \
    void rn_kv_write_q8_0_##row(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot);         \
    void rn_attn_f16_##row(const struct rn_attn_args *args);                                                                               \
    void rn_attn_q8_0_##row(const struct rn_attn_args *args);                                                                              \
    void rn_attn_combine_##row(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim)

RN_CPU_DECLARE_ROW(c);
RN_CPU_DECLARE_ROW(avx512vnni);
RN_CPU_DECLARE_ROW(avx2);
RN_CPU_DECLARE_ROW(neon_dotprod);
void rn_attn_q8_0_avxvnni(const struct rn_attn_args *args);

/* ---- Probes of measure.c, beside the rows of the same instruction set ---------------------------------------------------------- */

/* Reads `bytes` (a multiple of 256) at p, 64-byte aligned; returns something that depends on all of them. */
uint64_t rn_probe_read_avx512vnni(const void *p, size_t bytes);
uint64_t rn_probe_read_avx2(const void *p, size_t bytes);
uint64_t rn_probe_read_neon_dotprod(const void *p, size_t bytes);

/* n_rounds rounds of independent multiply-add chains from registers; returns something that depends on all of them. */
#define RN_PROBE_INT8_MACS 1024 /* multiply-adds per round */
uint64_t rn_probe_int8_avx512vnni(uint64_t n_rounds, uint32_t seed);
uint64_t rn_probe_int8_avxvnni(uint64_t n_rounds, uint32_t seed);
uint64_t rn_probe_int8_avx2(uint64_t n_rounds, uint32_t seed);
uint64_t rn_probe_int8_neon_i8mm(uint64_t n_rounds, uint32_t seed);
uint64_t rn_probe_int8_neon_dotprod(uint64_t n_rounds, uint32_t seed);
