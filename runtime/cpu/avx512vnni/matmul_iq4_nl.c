/* Matrix products of IQ4_NL weights: rn_iq4_nl_values plus 128. */
#define ROW avx512vnni
#define FMT iq4_nl
#define BITS 4
#define SCALES SCALES_F16
#define OFFSET 128
#define VALUES {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}
#include "runtime/cpu/avx512vnni/matmul_tmpl.h"
