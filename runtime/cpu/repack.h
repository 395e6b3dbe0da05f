/* Lossless repacking of quantised weights into blocks of 16 rows, and reading single rows back.
 *
 * Block of 16 rows (row r of the block in lane r), groups of 32 columns one after the other; per group:
 *   Q4_0: uint8 [4][16 rows][4]: byte (t, r, i): low nibble column 8t + i, high nibble column 8t + 4 + i; then f16 d [16 rows]      288 bytes
 *   Q4_1: the same; then f16 d [16], f16 m [16]                                                                                   320 bytes
 *   Q8_0: uint8 [8][16 rows][4]: byte (t, r, i): q + 128 of column 4t + i; then f16 d [16]                                         544 bytes
 * Rows beyond the matrix are zero weights (d = m = 0). Float types stay row-major, padded to 16 columns. Thread: any; pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/tensor.h"

/* Bytes of the repacked matrix; 0 = this type cannot be repacked. */
size_t rn_repack_bytes(enum rn_dtype type, uint32_t cols, uint32_t rows);

/* Bytes per block of 16 rows (quantised) or per row (float). */
size_t rn_repack_stride(enum rn_dtype type, uint32_t cols);

/* Repacks blocks [block0, block1) (quantised) or 16-row ranges (float) of src into dst (the start of the whole matrix). */
void rn_repack(const struct rn_tensor *src, uint8_t *dst, uint32_t block0, uint32_t block1);

/* Dequantises row `row` of a repacked matrix: out [cols], the same bits as the type's dequant. */
void rn_repack_row(enum rn_dtype type, uint32_t cols, const uint8_t *w, uint32_t row, float *out);
