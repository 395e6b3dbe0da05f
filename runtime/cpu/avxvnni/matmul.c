/* Matrix products of quantised weights for AVX-VNNI, 256 bits wide. */
#define ROW avxvnni
#define RN_DOT_VNNI 1
#include "runtime/cpu/avx2/matmul_formats_tmpl.h"
