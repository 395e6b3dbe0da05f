/* Matrix products of quantised weights for AVX2. */
#define ROW avx2
#define RN_DOT_VNNI 0
#include "runtime/cpu/avx2/matmul_formats_tmpl.h"
