/* Matrix products of MXFP4 weights: rn_mxfp4_values plus 12. */
#define ROW avx512vnni
#define FMT mxfp4
#define BITS 4
#define SCALES SCALES_E8M0
#define OFFSET 12
#define VALUES {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
