/* Matrix products of Q4_0 weights. */
#define FMT q4_0
#define GROUP_BYTES 288
#define OFFSET 8
#define HAS_MIN 0
#define IS_BYTE 0
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
