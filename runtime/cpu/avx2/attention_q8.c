/* Attention over q8_0 pages for AVX2. */
#define ROW avx2
#define RN_DOT_VNNI 0
#include "runtime/cpu/avx2/attention_q8_tmpl.h"
