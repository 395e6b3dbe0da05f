/* Attention in NEON registers: f8/attention_score_tmpl.h. Thread: any; pure. */
#pragma once

#include "runtime/cpu/neon_dotprod/vmath_internal.h"

#define FINISH rn_attn_finish_neon
#include "runtime/cpu/f8/attention_score_tmpl.h"
