/* Matrix products of Q5_K weights. */
#define ROW avx512vnni
#define FMT q5_k
#define BITS 5
#define SCALES SCALES_K
#define OFFSET 0
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
