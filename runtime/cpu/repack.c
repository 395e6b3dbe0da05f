/* Lossless repacking (repack.h). In the file every row is a chain of blocks of 32: Q4_0 { f16 d; 16 bytes }, Q4_1 { f16 d, m; 16 bytes },
 * Q8_0 { f16 d; int8 [32] }, where byte j of a 4-bit block holds column j in its low and column j + 16 in its high nibble (GGUF). */
#include <string.h>

#include "runtime/cpu/repack.h"
#include "runtime/tensor/quant.h"

#define ROWS 16

struct layout {
    size_t file_bytes;  // of one block of 32 columns in the file
    size_t group_bytes; // of one group of 16 rows x 32 columns, repacked
    bool has_min;
    bool is_byte;
};

static const struct layout *layout_find(enum rn_dtype type)
{
    static const struct layout q4_0 = {.file_bytes = 18, .group_bytes = 288};
    static const struct layout q4_1 = {.file_bytes = 20, .group_bytes = 320, .has_min = true};
    static const struct layout q8_0 = {.file_bytes = 34, .group_bytes = 544, .is_byte = true};
    switch (type) {
    case RN_DTYPE_Q4_0:
        return &q4_0;
    case RN_DTYPE_Q4_1:
        return &q4_1;
    case RN_DTYPE_Q8_0:
        return &q8_0;
    default:
        return NULL;
    }
}

static size_t float_bytes(enum rn_dtype type)
{
    return type == RN_DTYPE_F32 ? 4 : type == RN_DTYPE_F16 ? 2 : 0;
}

size_t rn_repack_stride(enum rn_dtype type, uint32_t cols)
{
    const struct layout *l = layout_find(type);
    if (l) {
        return (size_t)(cols / RN_GROUP) * l->group_bytes;
    }
    return ((size_t)cols + ROWS - 1) / ROWS * ROWS * float_bytes(type);
}

size_t rn_repack_bytes(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    size_t stride = rn_repack_stride(type, cols), n = layout_find(type) ? ((size_t)rows + ROWS - 1) / ROWS : rows, bytes;
    if (layout_find(type) && cols % RN_GROUP != 0) {
        return 0;
    }
    return __builtin_mul_overflow(stride, n, &bytes) ? 0 : bytes;
}

/* Nibble of column c, 0..31, in the file's 16 bytes. */
static uint8_t file_nibble(const uint8_t *q, uint32_t c)
{
    return c < 16 ? q[c] & 15 : q[c - 16] >> 4;
}

static void pack_row(const struct layout *l, const uint8_t *src, uint8_t *group, uint32_t r)
{
    const uint8_t *q = src + (l->has_min ? 4 : 2);
    uint8_t *scales = group + (l->is_byte ? 512 : 256);
    memcpy(scales + 2 * r, src, 2);
    if (l->has_min) {
        memcpy(scales + 2 * ROWS + 2 * r, src + 2, 2);
    }
    if (l->is_byte) {
        for (uint32_t c = 0; c < RN_GROUP; c++) {
            group[c / 4 * 64 + 4 * r + c % 4] = (uint8_t)(q[c] ^ 0x80); // int8 + 128
        }
        return;
    }
    for (uint32_t t = 0; t < 4; t++) {
        for (uint32_t i = 0; i < 4; i++) {
            group[64 * t + 4 * r + i] = (uint8_t)(file_nibble(q, 8 * t + i) | file_nibble(q, 8 * t + 4 + i) << 4);
        }
    }
}

static void repack_block(const struct rn_tensor *src, const struct layout *l, uint8_t *dst, uint32_t block)
{
    size_t row_bytes = (size_t)(src->cols / RN_GROUP) * l->file_bytes;
    uint32_t row0 = block * ROWS, n = src->rows - row0 < ROWS ? src->rows - row0 : ROWS;
    for (uint32_t g = 0; g < src->cols / RN_GROUP; g++, dst += l->group_bytes) {
        if (n < ROWS) {
            memset(dst, 0, l->group_bytes);
        }
        for (uint32_t r = 0; r < n; r++) {
            pack_row(l, (const uint8_t *)src->data + (row0 + r) * row_bytes + g * l->file_bytes, dst, r);
        }
    }
}

void rn_repack(const struct rn_tensor *src, uint8_t *dst, uint32_t block0, uint32_t block1)
{
    const struct layout *l = layout_find(src->type);
    size_t stride = rn_repack_stride(src->type, src->cols);
    for (uint32_t block = block0; l && block < block1; block++) {
        repack_block(src, l, dst + block * stride, block);
    }
    if (l) {
        return;
    }
    size_t row_bytes = src->cols * float_bytes(src->type);
    for (size_t row = (size_t)block0 * ROWS; row < src->rows && row < (size_t)block1 * ROWS; row++) {
        memcpy(dst + row * stride, (const uint8_t *)src->data + row * row_bytes, row_bytes);
        memset(dst + row * stride + row_bytes, 0, stride - row_bytes);
    }
}

/* Puts one row's group back into the file's form. */
static void unpack_row(const struct layout *l, const uint8_t *group, uint32_t r, uint8_t *file)
{
    const uint8_t *scales = group + (l->is_byte ? 512 : 256);
    uint8_t *q = file + (l->has_min ? 4 : 2);
    memcpy(file, scales + 2 * r, 2);
    if (l->has_min) {
        memcpy(file + 2, scales + 2 * ROWS + 2 * r, 2);
    }
    if (l->is_byte) {
        for (uint32_t c = 0; c < RN_GROUP; c++) {
            q[c] = group[c / 4 * 64 + 4 * r + c % 4] ^ 0x80;
        }
        return;
    }
    for (uint32_t j = 0; j < 16; j++) {
        uint32_t c = j % 8, at = j / 8 * 64 + 4 * r + c % 4, shift = c / 4 * 4;
        uint32_t lo = group[at] >> shift & 15, hi = group[at + 128] >> shift & 15; // column j and column j + 16
        q[j] = (uint8_t)(lo | hi << 4);
    }
}

void rn_repack_row(enum rn_dtype type, uint32_t cols, const uint8_t *w, uint32_t row, float *out)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    const struct layout *l = layout_find(type);
    size_t stride = rn_repack_stride(type, cols);
    if (!l) {
        info->dequant(w + row * stride, out, cols);
        return;
    }
    const uint8_t *group = w + row / ROWS * stride;
    for (uint32_t g = 0; g < cols / RN_GROUP; g++, group += l->group_bytes, out += RN_GROUP) {
        uint8_t file[34];
        unpack_row(l, group, row % ROWS, file);
        info->dequant(file, out, 1);
    }
}
