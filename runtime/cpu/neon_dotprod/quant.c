/* Activations to int8, and keys and values into their pages, with NEON. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/neon_dotprod/quant_internal.h"

#define LANES 8
INLINE void store_f16(uint16_t *half, const float *x)
{
    vst1q_u16(half, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(vld1q_f32(x)), vld1q_f32(x + 4))));
}

#define ROW neon_dotprod
#include "runtime/cpu/quant_tmpl.h"
