/* Attention over q8_0 pages for AVX-VNNI, 256 bits wide. */
#define RN_DOT_VNNI 1
#define ATTN_Q8 rn_attn_q8_0_avxvnni
#include "runtime/cpu/avx2/attention_q8_tmpl.h"
