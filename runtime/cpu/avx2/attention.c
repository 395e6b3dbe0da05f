/* Attention over KV pages with AVX2. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx2/attention_internal.h"

#define ROW avx2
#include "runtime/cpu/f8/attention_tmpl.h"
