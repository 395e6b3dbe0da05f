/* Matrix products of Q4_K weights. */
#define ROW avx512vnni
#define FMT q4_k
#define BITS 4
#define SCALES SCALES_K
#define OFFSET 0
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
