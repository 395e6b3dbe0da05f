/* Attention over q8_0 pages for AVX-VNNI, 256 bits wide. */
#define ROW avxvnni
#define RN_DOT_VNNI 1
#include "runtime/cpu/avx2/attention_q8_tmpl.h"
