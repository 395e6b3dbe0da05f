/* Attention over q8_0 pages for AVX2. */
#define RN_DOT_VNNI 0
#define ATTN_Q8 rn_attn_q8_0_avx2
#include "runtime/cpu/avx2/attention_q8_tmpl.h"
