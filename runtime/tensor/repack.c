/* Lossless repacking (repack.h has the layout that is made here, tensor/dtype.c the layouts of the file).
 *
 * Everything that differs between types is a row of the table: how many bits a code has, what scales there are, and a reader that takes
 * one group of a row out of the file's block. */
#include "runtime/tensor/repack.h"

#include <string.h>

#include "runtime/tensor/quant.h"

#define ROWS 16
#define SUPER_GROUPS 8 // groups that share the scales of a K type

enum scales { F16, E8M0, K, K6 };

struct layout {
    // One group of one row from its block in the file: codes, and the scales' bytes one after the other.
    void (*read)(const struct layout *l, const uint8_t *block, uint32_t g, uint8_t code[RN_GROUP], uint8_t *scales);
    uint8_t bits; // of a code
    enum scales scales;
    uint8_t n_scales, scale_bytes; // per group and row
    uint8_t n_supers, supers_at;   // f16 fields shared by 8 groups: how many, and where in the file's block
    bool has_min;
    uint8_t offset;       // value of a code is code - offset,
    const int8_t *values; // or values[code]
};

/* Nibble of column c, 0..31, in the 16 bytes of a simple block: columns 0..15 are the low ones. */
static void read_nibbles(const uint8_t *q, uint8_t code[RN_GROUP])
{
    for (uint32_t j = 0; j < 16; j++) {
        code[j] = q[j] & 15;
        code[j + 16] = q[j] >> 4;
    }
}

/* Scales, fifth bits if there are any, nibbles. */
static void read_simple(const struct layout *l, const uint8_t *block, uint32_t g, uint8_t code[RN_GROUP], uint8_t *scales)
{
    (void)g; // one per block
    uint32_t n = l->n_scales * l->scale_bytes;
    memcpy(scales, block, n);
    read_nibbles(block + n + (l->bits == 5 ? 4 : 0), code);
    for (uint32_t c = 0; l->bits == 5 && c < RN_GROUP; c++) {
        code[c] |= (uint8_t)((block[n + c / 8] >> (c % 8) & 1) << 4);
    }
}

static void read_q8_0(const struct layout *l, const uint8_t *block, uint32_t g, uint8_t code[RN_GROUP], uint8_t *scales)
{
    (void)l;
    (void)g;
    memcpy(scales, block, 2);
    for (uint32_t c = 0; c < RN_GROUP; c++) {
        code[c] = block[2 + c] ^ 0x80; // int8 + 128
    }
}

static void read_k(const struct layout *l, const uint8_t *block, uint32_t g, uint8_t code[RN_GROUP], uint8_t *scales)
{
    const uint8_t *high = block + 16, *q = (l->bits == 5 ? high + 32 : high) + g / 2 * 32;
    rn_k_scale_min(block + 4, g, &scales[0], &scales[1]);
    for (uint32_t c = 0; c < RN_GROUP; c++) {
        code[c] = q[c] >> (g % 2 * 4) & 15;
    }
    for (uint32_t c = 0; l->bits == 5 && c < RN_GROUP; c++) {
        code[c] |= (uint8_t)((high[c] >> g & 1) << 4);
    }
}

static void read_q6_k(const struct layout *l, const uint8_t *block, uint32_t g, uint8_t code[RN_GROUP], uint8_t *scales)
{
    (void)l;
    const uint32_t half = g / 4, k = g % 4;
    const uint8_t *low = block + half * 64 + k % 2 * 32, *high = block + 128 + half * 32;
    for (uint32_t c = 0; c < RN_GROUP; c++) {
        code[c] = (uint8_t)((low[c] >> (k / 2 * 4) & 15) | (high[c] >> (2 * k) & 3) << 4);
    }
    memcpy(scales, block + 192 + 2 * g, 2);
}

static const struct layout layouts[] = {
    [RN_DTYPE_Q4_0] = {read_simple, 4, F16, 1, 2, .offset = 8},
    [RN_DTYPE_Q4_1] = {read_simple, 4, F16, 2, 2, .has_min = true},
    [RN_DTYPE_Q5_0] = {read_simple, 5, F16, 1, 2, .offset = 16},
    [RN_DTYPE_Q5_1] = {read_simple, 5, F16, 2, 2, .has_min = true},
    [RN_DTYPE_Q8_0] = {read_q8_0, 8, F16, 1, 2, .offset = 128},
    [RN_DTYPE_Q4_K] = {read_k, 4, K, 2, 1, .n_supers = 2, .supers_at = 0, .has_min = true},
    [RN_DTYPE_Q5_K] = {read_k, 5, K, 2, 1, .n_supers = 2, .supers_at = 0, .has_min = true},
    [RN_DTYPE_Q6_K] = {read_q6_k, 6, K6, 2, 1, .n_supers = 1, .supers_at = 208, .offset = 32},
    [RN_DTYPE_IQ4_NL] = {read_simple, 4, F16, 1, 2, .values = rn_iq4_nl_values},
    [RN_DTYPE_MXFP4] = {read_simple, 4, E8M0, 1, 1, .values = rn_mxfp4_values},
};

static const struct layout *layout_find(enum rn_dtype type)
{
    return (size_t)type < sizeof(layouts) / sizeof(layouts[0]) && layouts[type].read ? &layouts[type] : NULL;
}

static size_t codes_bytes(const struct layout *l)
{
    return (size_t)l->bits * 64;
}

static size_t group_bytes(const struct layout *l)
{
    return codes_bytes(l) + (size_t)l->n_scales * l->scale_bytes * ROWS;
}

static size_t supers_bytes(const struct layout *l)
{
    return (size_t)l->n_supers * 2 * ROWS;
}

/* Offset in a block of the common scales that group g uses, and of the group itself. */
static size_t supers_offset(const struct layout *l, uint32_t g)
{
    return g / SUPER_GROUPS * (SUPER_GROUPS * group_bytes(l) + supers_bytes(l));
}

static size_t group_offset(const struct layout *l, uint32_t g)
{
    return g * group_bytes(l) + (g / SUPER_GROUPS + 1) * supers_bytes(l);
}

static size_t float_bytes(enum rn_dtype type)
{
    return type == RN_DTYPE_F32 ? 4 : type == RN_DTYPE_F16 || type == RN_DTYPE_BF16 ? 2 : 0;
}

size_t rn_repack_stride(enum rn_dtype type, uint32_t cols)
{
    const struct layout *l = layout_find(type);
    if (l) {
        return supers_offset(l, cols / RN_GROUP) + cols / RN_GROUP % SUPER_GROUPS * group_bytes(l);
    }
    return ((size_t)cols + ROWS - 1) / ROWS * ROWS * float_bytes(type);
}

size_t rn_repack_bytes(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    size_t stride = rn_repack_stride(type, cols), n = layout_find(type) ? ((size_t)rows + ROWS - 1) / ROWS : rows, bytes;
    if (layout_find(type) && cols % rn_dtype_find(type)->block_len != 0) {
        return 0;
    }
    return __builtin_mul_overflow(stride, n, &bytes) ? 0 : bytes;
}

static void write_codes(uint8_t *group, uint32_t r, uint32_t bits, const uint8_t code[RN_GROUP])
{
    for (uint32_t c = 0; bits == 8 && c < RN_GROUP; c++) {
        group[c / 4 * 64 + 4 * r + c % 4] = code[c];
    }
    for (uint32_t t = 0; bits < 8 && t < 4; t++) {
        for (uint32_t i = 0; i < 4; i++) {
            group[64 * t + 4 * r + i] = (uint8_t)((code[8 * t + i] & 15) | code[8 * t + 4 + i] << 4);
        }
    }
    uint8_t *high = group + 256 + 4 * r;
    for (uint32_t i = 0; bits == 5 && i < 4; i++) {
        high[i] = 0;
        for (uint32_t k = 0; k < 8; k++) {
            high[i] |= (uint8_t)(code[4 * k + i] >> 4 << k);
        }
    }
    for (uint32_t j = 0; bits == 6 && j < 2; j++) {
        for (uint32_t i = 0; i < 4; i++) {
            const uint8_t *c = code + 16 * j + i;
            high[64 * j + i] = (uint8_t)(c[0] >> 4 | c[4] >> 4 << 2 | c[8] >> 4 << 4 | c[12] >> 4 << 6);
        }
    }
}

static void repack_row(const struct layout *l, const uint8_t *src, const struct rn_dtype_info *file, uint32_t n_groups, uint8_t *dst,
                       uint32_t r)
{
    const uint32_t block_groups = file->block_len / RN_GROUP;
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint8_t *block = src + g / block_groups * file->block_bytes;
        uint8_t code[RN_GROUP], scales[4], *group = dst + group_offset(l, g);
        l->read(l, block, g % block_groups, code, scales);
        write_codes(group, r, l->bits, code);
        for (uint32_t k = 0; k < l->n_scales; k++) {
            memcpy(group + codes_bytes(l) + (k * ROWS + r) * l->scale_bytes, scales + k * l->scale_bytes, l->scale_bytes);
        }
        for (uint32_t k = 0; g % SUPER_GROUPS == 0 && k < l->n_supers; k++) {
            memcpy(dst + supers_offset(l, g) + (k * ROWS + r) * 2, block + l->supers_at + 2 * k, 2);
        }
    }
}

static void repack_block(const struct rn_tensor *src, const struct layout *l, uint8_t *dst, uint32_t block)
{
    const struct rn_dtype_info *file = rn_dtype_find(src->type);
    size_t row_bytes = (size_t)(src->cols / file->block_len) * file->block_bytes;
    uint32_t row0 = block * ROWS, n = src->rows - row0 < ROWS ? src->rows - row0 : ROWS;
    if (n < ROWS) {
        memset(dst, 0, rn_repack_stride(src->type, src->cols));
    }
    for (uint32_t r = 0; r < n; r++) {
        repack_row(l, (const uint8_t *)src->data + (row0 + r) * row_bytes, file, src->cols / RN_GROUP, dst, r);
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

static float load_f16(const uint8_t *fields, uint32_t k, uint32_t r)
{
    uint16_t h;
    memcpy(&h, fields + (k * ROWS + r) * 2, 2);
    return rn_f16_to_f32(h);
}

/* Codes of the rows whose bytes are j0 .. j1 - 1 of each 64. */
static void read_codes(const uint8_t *restrict group, uint32_t bits, uint32_t j0, uint32_t j1, uint8_t code[restrict 8][64])
{
    const uint8_t *high = group + 256;
    for (uint32_t k = 0; k < 8; k++) {
        const uint8_t *low = group + 64 * (bits == 8 ? k : k / 2);
        const uint32_t shift = bits == 8 ? 0 : k % 2 * 4, mask = bits == 8 ? 255 : 15;
        for (uint32_t j = j0; j < j1; j++) {
            code[k][j] = (uint8_t)(low[j] >> shift & mask);
        }
        for (uint32_t j = j0; bits == 5 && j < j1; j++) {
            code[k][j] |= (uint8_t)((high[j] >> k & 1) << 4);
        }
        for (uint32_t j = j0; bits == 6 && j < j1; j++) {
            code[k][j] |= (uint8_t)((high[64 * (k / 4) + j] >> (k % 4 * 2) & 3) << 4);
        }
    }
}

static void read_scales(const struct layout *l, const uint8_t *scales, const uint8_t *supers, uint32_t r, struct rn_repack_group *ret)
{
    ret->m[r] = 0;
    ret->sub[0][r] = ret->sub[1][r] = 1;
    switch (l->scales) {
    case F16:
        ret->d[r] = load_f16(scales, 0, r);
        ret->m[r] = l->has_min ? load_f16(scales, 1, r) : 0;
        break;
    case E8M0:
        ret->d[r] = rn_mxfp4_scale(scales[r]);
        break;
    case K:
        ret->d[r] = load_f16(supers, 0, r) * (float)scales[r];
        ret->m[r] = -(load_f16(supers, 1, r) * (float)scales[ROWS + r]);
        break;
    case K6:
        ret->d[r] = load_f16(supers, 0, r);
        ret->sub[0][r] = (int8_t)scales[r];
        ret->sub[1][r] = (int8_t)scales[ROWS + r];
        break;
    }
}

void rn_repack_group_read(enum rn_dtype type, const uint8_t *block, uint32_t g, uint32_t row0, uint32_t row1, struct rn_repack_group *ret)
{
    const struct layout *l = &layouts[type];
    const uint8_t *group = block + group_offset(l, g);
    uint8_t code[8][64];
    read_codes(group, l->bits, 4 * row0, 4 * row1, code);
    for (uint32_t k = 0; k < 8; k++) {
        for (uint32_t j = 4 * row0; !l->values && j < 4 * row1; j++) {
            ret->q[k][j] = (int8_t)(code[k][j] - l->offset);
        }
        for (uint32_t j = 4 * row0; l->values && j < 4 * row1; j++) {
            ret->q[k][j] = l->values[code[k][j]];
        }
    }
    ret->has_min = l->has_min;
    for (uint32_t r = row0; r < row1; r++) {
        read_scales(l, group + codes_bytes(l), block + supers_offset(l, g), r, ret);
    }
}

void rn_repack_row(enum rn_dtype type, uint32_t cols, const uint8_t *w, uint32_t row, float *out)
{
    const size_t stride = rn_repack_stride(type, cols);
    const uint32_t r = row % ROWS;
    if (!layout_find(type)) {
        rn_dtype_find(type)->dequant(w + row * stride, out, cols);
        return;
    }
    for (uint32_t g = 0; g < cols / RN_GROUP; g++, out += RN_GROUP) {
        struct rn_repack_group in;
        rn_repack_group_read(type, w + row / ROWS * stride, g, r, r + 1, &in);
        for (uint32_t c = 0; c < RN_GROUP; c++) {
            float product = (float)in.q[c / 4][4 * r + c % 4] * (in.d[r] * (float)in.sub[c / 16][r]);
            out[c] = in.has_min ? product + in.m[r] : product;
        }
    }
}
