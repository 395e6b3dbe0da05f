/* Matrix products of Q8_0 weights. */
#define FMT q8_0
#define GROUP_BYTES 544
#define OFFSET 128
#define HAS_MIN 0
#define IS_BYTE 1
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
