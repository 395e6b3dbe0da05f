/* Activations to int8, and keys and values into their pages, with AVX2. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx2/quant_internal.h"

#define LANES 8
INLINE void store_f16(uint16_t *half, const float *x)
{
    _mm_storeu_si128((void *)half, _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
}

#define ROW avx2
#include "runtime/cpu/quant_tmpl.h"
