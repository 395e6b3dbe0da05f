/* Matrix products of Q4_1 weights. */
#define ROW avx512vnni
#define FMT q4_1
#define BITS 4
#define SCALES SCALES_F16_MIN
#define OFFSET 0
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
