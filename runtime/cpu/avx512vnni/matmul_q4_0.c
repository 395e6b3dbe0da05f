/* Matrix products of Q4_0 weights. */
#define ROW avx512vnni
#define FMT q4_0
#define BITS 4
#define SCALES SCALES_F16
#define OFFSET 8
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
