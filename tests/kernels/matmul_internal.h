/* Shared by the test and the benchmark of the matrix kernels. */
#pragma once

#include "runtime/cpu/kernels.h"
#include "runtime/tensor/dtype.h"

/* One weight format and its three operations. */
struct mm_type {
    enum rn_dtype type;
    enum rn_cpu_op one, few, many;
};

#define N_MM_TYPES 3
extern const struct mm_type mm_types[N_MM_TYPES];

/* Zeroed activations of n_tok tokens in blocks of mb. */
struct rn_acts acts_alloc(uint32_t n_tok, uint32_t mb, uint32_t n_groups);
void acts_free(struct rn_acts *a);

/* Speed of every row that this machine can run, at the default model's shapes. */
void bench_matmul(void);
