/* Attention in 256-bit registers: f8/attention_score_tmpl.h. Thread: any; pure. */
#pragma once

#include "runtime/cpu/avx2/vmath_internal.h"

#define FINISH rn_attn_finish_avx2
#include "runtime/cpu/f8/attention_score_tmpl.h"
