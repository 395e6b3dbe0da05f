/* Matrix products of Q6_K weights. */
#define ROW avx512vnni
#define FMT q6_k
#define BITS 6
#define SCALES SCALES_K6
#define OFFSET 32
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
