/* Matrix products of Q8_0 weights. */
#define ROW avx512vnni
#define FMT q8_0
#define BITS 8
#define SCALES SCALES_F16
#define OFFSET 128
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
