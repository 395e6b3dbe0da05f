/* Matrix products of quantised weights for NEON with 8-bit matrix products. One token gains nothing from them and has no row here. */
#define ROW neon_i8mm
#define RN_MMLA 1
#include "runtime/cpu/neon_dotprod/matmul_formats_tmpl.h"
