/* The weight formats of the 256-bit rows: matmul_tmpl.h once for each of RN_CPU_QUANT_TYPES. Included by one file per row, which sets ROW
 * and RN_DOT_VNNI. */
// clang-format off

#define FMT q4_0
#define BITS 4
#define SCALES SCALES_F16
#define MAX 15
#define OFFSET 8
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT q4_1
#define BITS 4
#define SCALES SCALES_F16_MIN
#define MAX 15
#define OFFSET 0
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT q5_0
#define BITS 5
#define SCALES SCALES_F16
#define MAX 31
#define OFFSET 16
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT q5_1
#define BITS 5
#define SCALES SCALES_F16_MIN
#define MAX 31
#define OFFSET 0
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT q8_0
#define BITS 8
#define SCALES SCALES_F16
#define MAX 255
#define OFFSET 128
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT iq4_nl
#define BITS 4
#define SCALES SCALES_F16
#define MAX 241
#define OFFSET 128
#define VALUES {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241} // rn_iq4_nl_values plus 128
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT mxfp4
#define BITS 4
#define SCALES SCALES_E8M0
#define MAX 24
#define OFFSET 12
#define VALUES {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0} // rn_mxfp4_values plus 12
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT q4_k
#define BITS 4
#define SCALES SCALES_K
#define MAX 15
#define OFFSET 0
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT q5_k
#define BITS 5
#define SCALES SCALES_K
#define MAX 31
#define OFFSET 0
#include "runtime/cpu/avx2/matmul_tmpl.h"

#define FMT q6_k
#define BITS 6
#define SCALES SCALES_K6
#define MAX 63
#define OFFSET 32
#include "runtime/cpu/avx2/matmul_tmpl.h"
