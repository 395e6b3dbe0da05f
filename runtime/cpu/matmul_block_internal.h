/* Blocks of repacked weights (repack.h) as the templates of the matrix products see them. The macros speak of the format that is being
 * compiled:
 *   ROW      suffix of the function names: avx2
 *   FMT      suffix of the function names: q4_0
 *   BITS     of a code: 4, 5, 6 or 8 (planes: repack.h)
 *   SCALES   what a group's scales are: SCALES_F16, SCALES_F16_MIN, SCALES_E8M0, SCALES_K (K types with a minimum) or
 *            SCALES_K6 (Q6_K: one per half of the group, which multiplies inside the integer sum)
 * Thread: any; pure. */
#pragma once

enum { SCALES_F16, SCALES_F16_MIN, SCALES_E8M0, SCALES_K, SCALES_K6 };

#define CONCAT3(a, b, c) a##_##b##_##c
#define NAME_(op, fmt, row) CONCAT3(op, fmt, row)
#define NAME(op) NAME_(op, FMT, ROW)

#define HAS_MIN (SCALES == SCALES_F16_MIN || SCALES == SCALES_K)
#define HALVES (SCALES == SCALES_K6)
#define CODE_BYTES (BITS * 64)
#define SCALE_BYTES (SCALES == SCALES_F16_MIN ? 64 : SCALES == SCALES_E8M0 ? 16 : 32)
#define GROUP_BYTES (CODE_BYTES + SCALE_BYTES)
#define SUPER_BYTES (SCALES == SCALES_K ? 64 : SCALES == SCALES_K6 ? 32 : 0) // in front of every 8 groups
#define BLOCK_BYTES(n_groups) ((size_t)(n_groups) * GROUP_BYTES + (size_t)(n_groups) / 8 * SUPER_BYTES)
