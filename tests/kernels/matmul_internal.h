/* Shared by the test and the benchmark of the matrix kernels. */
#pragma once

#include "runtime/cpu/kernels.h"
#include "runtime/tensor/dtype.h"

/* Zeroed activations of n_tok tokens in blocks of mb. */
struct rn_acts acts_alloc(uint32_t n_tok, uint32_t mb, uint32_t n_groups);
void acts_free(struct rn_acts *a);

/* Speed of every row that this machine can run, at the default model's shapes and a larger one. only: one type's name, or NULL. */
void bench_matmul(const char *only);
