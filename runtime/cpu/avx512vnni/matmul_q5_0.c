/* Matrix products of Q5_0 weights. */
#define ROW avx512vnni
#define FMT q5_0
#define BITS 5
#define SCALES SCALES_F16
#define OFFSET 16
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
