/* Matrix products of Q5_1 weights. */
#define ROW avx512vnni
#define FMT q5_1
#define BITS 5
#define SCALES SCALES_F16_MIN
#define OFFSET 0
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
