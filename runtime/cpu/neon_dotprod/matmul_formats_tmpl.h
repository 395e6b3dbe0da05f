/* The weight formats of the NEON rows: matmul_tmpl.h once for each of RN_CPU_QUANT_TYPES. Included by one file per row, which sets ROW
 * and RN_MMLA. */
// clang-format off

#define FMT q4_0
#define BITS 4
#define SCALES SCALES_F16
#define OFFSET 8
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT q4_1
#define BITS 4
#define SCALES SCALES_F16_MIN
#define OFFSET 0
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT q5_0
#define BITS 5
#define SCALES SCALES_F16
#define OFFSET 16
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT q5_1
#define BITS 5
#define SCALES SCALES_F16_MIN
#define OFFSET 0
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT q8_0
#define BITS 8
#define SCALES SCALES_F16
#define OFFSET 0
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT iq4_nl
#define BITS 4
#define SCALES SCALES_F16
#define OFFSET 0
#define VALUES rn_iq4_nl_values
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT mxfp4
#define BITS 4
#define SCALES SCALES_E8M0
#define OFFSET 0
#define VALUES rn_mxfp4_values
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT q4_k
#define BITS 4
#define SCALES SCALES_K
#define OFFSET 0
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT q5_k
#define BITS 5
#define SCALES SCALES_K
#define OFFSET 0
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"

#define FMT q6_k
#define BITS 6
#define SCALES SCALES_K6
#define OFFSET 32
#include "runtime/cpu/neon_dotprod/matmul_tmpl.h"
