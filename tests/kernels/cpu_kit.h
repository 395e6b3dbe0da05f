/* Shared by the tests of the CPU's kernels: the rows to compare, and random inputs that repeat. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/cpu/kernels.h"

/* Row i of op that this machine can run; i = 0 is plain C. NULL: no more. */
const struct rn_cpu_row *row(enum rn_cpu_op op, size_t i);

/* xorshift64. The state can be taken and put back, so that two runs get the same numbers. */
uint64_t random_state(void);
void random_seed(uint64_t state);
uint32_t random_u32(void);
float random_normal(void); /* about normal, standard deviation 1 */
