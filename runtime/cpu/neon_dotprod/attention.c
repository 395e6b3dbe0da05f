/* Attention over KV pages with NEON. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/neon_dotprod/attention_internal.h"

#define ROW neon_dotprod
#include "runtime/cpu/f8/attention_tmpl.h"
