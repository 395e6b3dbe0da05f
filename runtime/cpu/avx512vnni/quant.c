/* Activations to int8, and keys and values into their pages, with AVX-512. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx512vnni/quant_internal.h"

#define LANES 16
INLINE void store_f16(uint16_t *half, const float *x)
{
    _mm256_storeu_si256((void *)half, _mm512_cvtps_ph(_mm512_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
}

#define ROW avx512vnni
#include "runtime/cpu/quant_tmpl.h"
