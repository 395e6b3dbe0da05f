/* Lossless repacking of quantised weights into blocks of 16 rows, and reading them back.
 *
 * Block of 16 rows (row r of the block in lane r), groups of 32 columns one after the other. A group is its codes, then its scales.
 *
 * Codes, unsigned, in planes:
 *   4 bits  uint8 [4][16 rows][4]: byte (t, r, i): low nibble column 8t + i, high nibble column 8t + 4 + i                    256 bytes
 *   5 bits  the same for the low four; then uint8 [16 rows][4]: bit k of byte (r, i) is the fifth bit of column 4k + i         320
 *   6 bits  the same for the low four; then uint8 [2][16 rows][4]: bits 2f and 2f + 1 of byte (j, r, i) are the upper bits of
 *           column 16j + 4f + i                                                                                               384
 *   8 bits  uint8 [8][16 rows][4]: byte (t, r, i): column 4t + i                                                              512
 *
 *   type      codes                      value of a code      scales of a group                        bytes of a group
 *   Q4_0      4 bits                     c - 8                f16 d [16]                                288
 *   Q4_1      4 bits                     c                    f16 d [16], f16 m [16]                    320
 *   Q5_0      5 bits                     c - 16               f16 d [16]                                352
 *   Q5_1      5 bits                     c                    f16 d [16], f16 m [16]                    384
 *   Q8_0      8 bits                     c - 128              f16 d [16]                                544
 *   IQ4_NL    4 bits                     rn_iq4_nl_values[c]  f16 d [16]                                288
 *   MXFP4     4 bits                     rn_mxfp4_values[c]   uint8 e [16]: d = rn_mxfp4_scale(e)       272
 *   Q4_K      4 bits                     c                    uint8 sc [16], uint8 mn [16]              288, and 64 per 8 groups
 *   Q5_K      5 bits                     c                    uint8 sc [16], uint8 mn [16]              352, and 64 per 8 groups
 *   Q6_K      6 bits                     c - 32               int8 sc [2 halves of 16 columns][16]      416, and 32 per 8 groups
 *
 * In front of every 8 groups of a K type stand their common scales: f16 d [16] and, for Q4_K and Q5_K, f16 dmin [16]; the whole scale
 * of a group is d * sc and its minimum -dmin * mn. (d * sc does not fit into an f16; widening 6 bits to 8 costs 3 % of Q4_K's size.)
 * Rows beyond the matrix are zero weights. Float types stay row-major, padded to 16 columns. Thread: any; pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/tensor.h"

/* Bytes of the repacked matrix; 0 = this type cannot be repacked, or not with this number of columns. */
size_t rn_repack_bytes(enum rn_dtype type, uint32_t cols, uint32_t rows);

/* Bytes per block of 16 rows (quantised) or per row (float). */
size_t rn_repack_stride(enum rn_dtype type, uint32_t cols);

/* Repacks blocks [block0, block1) (quantised) or 16-row ranges (float) of src into dst (the start of the whole matrix). */
void rn_repack(const struct rn_tensor *src, uint8_t *dst, uint32_t block0, uint32_t block1);

/* One group, its codes in the layout of the 8-bit plane: weight of row r, column 4k + i = q[k][4r + i] * (d[r] * sub[k / 4][r]) + m[r]. */
struct rn_repack_group {
    int8_t q[8][64];
    float d[16], m[16];
    int32_t sub[2][16]; /* Q6_K; 1 for the other types */
    bool has_min;       /* else m is 0 */
};
/* Reads rows [row0, row1) of 0..15 of group g of a quantised block; the other rows of *ret stay as they are. */
void rn_repack_group_read(enum rn_dtype type, const uint8_t *block, uint32_t g, uint32_t row0, uint32_t row1, struct rn_repack_group *ret);

/* Dequantises row `row` of a repacked matrix: out [cols], the same bits as the type's dequant. */
void rn_repack_row(enum rn_dtype type, uint32_t cols, const uint8_t *w, uint32_t row, float *out);
