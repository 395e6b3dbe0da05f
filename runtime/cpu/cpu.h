/* The CPU backend: rn_cpu_backend interprets a model's program with the kernel rows chosen for this machine. */
#pragma once

#include "runtime/tensor/backend.h"

extern const struct rn_backend_ops rn_cpu_backend;

/* Physical cores this process may use (affinity, cgroup quota), at least 1. */
uint32_t rn_cpu_threads_default(void);

/* What that comes from: physical cores by affinity, and whole cores of the quota, 0 = there is none. */
void rn_cpu_cores(uint32_t *ret_cores, uint32_t *ret_quota);

/* This machine's limits, measured for about `ms` milliseconds with n_threads threads: what rn_bench compares with.
 * read bandwidth in GB/s over memory larger than the caches; int8 multiply-add peak in tera operations per second (1 MAC = 2). */
void rn_cpu_measure(uint32_t n_threads, uint32_t ms, double *ret_read_gb_per_s, double *ret_int8_tops);
