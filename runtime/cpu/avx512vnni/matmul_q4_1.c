/* Matrix products of Q4_1 weights. */
#define FMT q4_1
#define GROUP_BYTES 320
#define OFFSET 0
#define HAS_MIN 1
#define IS_BYTE 0
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
