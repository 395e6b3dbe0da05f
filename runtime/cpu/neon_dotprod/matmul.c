/* Matrix products of quantised weights for NEON with 8-bit dot products. */
#define ROW neon_dotprod
#define RN_MMLA 0
#include "runtime/cpu/neon_dotprod/matmul_formats_tmpl.h"
