/* The table of GGUF element types, and half precision in integer arithmetic.
 *
 * The dequantisers are the specification: kernels and repacking must give the same bits. A row with sizes and no dequantiser lets a
 * file be opened (its tokenizer can be used) while the tensor itself is refused; a row without sizes cannot even be stepped over.
 * Files are little endian, and so is every machine this builds for (checked below); loads go through memcpy because blocks of 17, 18
 * or 210 bytes are aligned to 2 bytes at best.
 *
 * Where a value has one rounding, its products are exact before it: f16 has 11 bits, a 6-bit scale and a 5-bit code add 11. */
#include "runtime/tensor/dtype.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "model files are read in place: the machine must be little endian");

#define BLOCK 32  // elements of a block of the simple types
#define SUPER 256 // elements of a block of the K types

const int8_t rn_iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t rn_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float rn_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float rn_mxfp4_scale(uint8_t e)
{
    uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23; // 2^-128 and 2^-127 are subnormal
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void rn_k_scale_min(const uint8_t *packed, uint32_t g, uint8_t *ret_scale, uint8_t *ret_min)
{
    if (g < 4) {
        *ret_scale = packed[g] & 63;
        *ret_min = packed[g + 4] & 63;
    } else { // four bits in the last bytes, the upper two on top of the first ones
        *ret_scale = (uint8_t)((packed[g + 4] & 15) | packed[g - 4] >> 6 << 4);
        *ret_min = (uint8_t)(packed[g + 4] >> 4 | packed[g] >> 6 << 4);
    }
}

static float load_f16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return rn_f16_to_f32(h);
}

static void dequant_f32(const void *src, float *dst, size_t n_blocks)
{
    memcpy(dst, src, n_blocks * sizeof(float));
}

static void dequant_f16(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n_blocks; i++) {
        dst[i] = load_f16(p + 2 * i);
    }
}

// d, then 16 bytes: low nibbles are elements 0..15, high nibbles 16..31; value (q - 8) d.
static void dequant_q4_0(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 18, dst += BLOCK) {
        float d = load_f16(p);
        for (size_t j = 0; j < BLOCK / 2; j++) {
            dst[j] = (float)((p[2 + j] & 15) - 8) * d;
            dst[j + BLOCK / 2] = (float)((p[2 + j] >> 4) - 8) * d;
        }
    }
}

// d, m, then nibbles as in Q4_0; value q d + m. The product is exact (11 + 4 bits), so there is one rounding.
static void dequant_q4_1(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 20, dst += BLOCK) {
        float d = load_f16(p), m = load_f16(p + 2);
        for (size_t j = 0; j < BLOCK / 2; j++) {
            dst[j] = (float)(p[4 + j] & 15) * d + m;
            dst[j + BLOCK / 2] = (float)(p[4 + j] >> 4) * d + m;
        }
    }
}

// d, then 32 signed bytes; value q d.
static void dequant_q8_0(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 34, dst += BLOCK) {
        float d = load_f16(p);
        for (size_t j = 0; j < BLOCK; j++) {
            int8_t q;
            memcpy(&q, p + 2 + j, 1);
            dst[j] = (float)q * d;
        }
    }
}

static void dequant_bf16(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n_blocks; i++) {
        dst[i] = rn_bf16_to_f32((uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
    }
}

// d, (m,) 32 fifth bits, then nibbles as in Q4_0; value (q - 16) d, or q d + m.
static void dequant_q5_0(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 22, dst += BLOCK) {
        float d = load_f16(p);
        uint32_t high;
        memcpy(&high, p + 2, 4);
        for (size_t j = 0; j < BLOCK / 2; j++) {
            int lo = (p[6 + j] & 15) | (int)(high >> j & 1) << 4, hi = p[6 + j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
            dst[j] = (float)(lo - 16) * d;
            dst[j + BLOCK / 2] = (float)(hi - 16) * d;
        }
    }
}

static void dequant_q5_1(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 24, dst += BLOCK) {
        float d = load_f16(p), m = load_f16(p + 2);
        uint32_t high;
        memcpy(&high, p + 4, 4);
        for (size_t j = 0; j < BLOCK / 2; j++) {
            int lo = (p[8 + j] & 15) | (int)(high >> j & 1) << 4, hi = p[8 + j] >> 4 | (int)(high >> (j + 16) & 1) << 4;
            dst[j] = (float)lo * d + m;
            dst[j + BLOCK / 2] = (float)hi * d + m;
        }
    }
}

// d, then nibbles as in Q4_0; value table[q] d.
static void dequant_iq4_nl(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 18, dst += BLOCK) {
        float d = load_f16(p);
        for (size_t j = 0; j < BLOCK / 2; j++) {
            dst[j] = (float)rn_iq4_nl_values[p[2 + j] & 15] * d;
            dst[j + BLOCK / 2] = (float)rn_iq4_nl_values[p[2 + j] >> 4] * d;
        }
    }
}

// Exponent byte, then nibbles as in Q4_0; value table[q] 2^(e - 128): the table holds the doubled values of a 4-bit float.
static void dequant_mxfp4(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 17, dst += BLOCK) {
        float d = rn_mxfp4_scale(p[0]);
        for (size_t j = 0; j < BLOCK / 2; j++) {
            dst[j] = (float)rn_mxfp4_values[p[1 + j] & 15] * d;
            dst[j + BLOCK / 2] = (float)rn_mxfp4_values[p[1 + j] >> 4] * d;
        }
    }
}

// d, dmin, 8 packed scales and minima, (32 bytes of fifth bits,) 128 bytes: each 32 bytes hold a group in the low and the next one in
// the high nibbles; bit g of fifth byte l belongs to column l of group g. Value (d sc) q - dmin mn.
static void dequant_k(const uint8_t *p, const uint8_t *high, const uint8_t *q, float *dst)
{
    float d = load_f16(p), dmin = load_f16(p + 2);
    for (uint32_t g = 0; g < SUPER / BLOCK; g++) {
        uint8_t sc, mn;
        rn_k_scale_min(p + 4, g, &sc, &mn);
        float scale = d * (float)sc, min = dmin * (float)mn;
        for (uint32_t l = 0; l < BLOCK; l++) {
            int code = (q[g / 2 * 32 + l] >> (g % 2 * 4) & 15) | (high ? (high[l] >> g & 1) << 4 : 0);
            dst[g * BLOCK + l] = scale * (float)code - min;
        }
    }
}

static void dequant_q4_k(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 144, dst += SUPER) {
        dequant_k(p, NULL, p + 16, dst);
    }
}

static void dequant_q5_k(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 176, dst += SUPER) {
        dequant_k(p, p + 16, p + 48, dst);
    }
}

// 128 bytes of low nibbles, 64 of upper pairs of bits, 16 signed scales, d. Each half of the block: column 32 k + l, k 0..3, has its
// nibble in byte l + 32 (k % 2), low for k < 2, and its upper bits in byte l at 2 k. One scale per 16 columns; value (d sc) (q - 32).
static void dequant_q6_k(const void *src, float *dst, size_t n_blocks)
{
    const uint8_t *p = src;
    for (size_t b = 0; b < n_blocks; b++, p += 210, dst += SUPER) {
        float d = load_f16(p + 208);
        for (uint32_t c = 0; c < SUPER; c++) {
            uint32_t half = c / 128, k = c % 128 / 32, l = c % 32;
            uint32_t low = p[half * 64 + k % 2 * 32 + l] >> (k / 2 * 4) & 15, high = p[128 + half * 32 + l] >> (2 * k) & 3;
            int8_t sc;
            memcpy(&sc, p + 192 + c / 16, 1);
            dst[c] = d * (float)sc * (float)((int)(low | high << 4) - 32);
        }
    }
}

// Indexed by type number. Numbers without a name were never given out; names without sizes are retired or not laid out here.
static const struct rn_dtype_info table[] = {
    {RN_DTYPE_F32, "F32", 1, 4, dequant_f32},
    {RN_DTYPE_F16, "F16", 1, 2, dequant_f16},
    {RN_DTYPE_Q4_0, "Q4_0", BLOCK, 18, dequant_q4_0},
    {RN_DTYPE_Q4_1, "Q4_1", BLOCK, 20, dequant_q4_1},
    {4, "Q4_2", 0, 0, NULL},
    {5, "Q4_3", 0, 0, NULL},
    {RN_DTYPE_Q5_0, "Q5_0", BLOCK, 22, dequant_q5_0},
    {RN_DTYPE_Q5_1, "Q5_1", BLOCK, 24, dequant_q5_1},
    {RN_DTYPE_Q8_0, "Q8_0", BLOCK, 34, dequant_q8_0},
    {9, "Q8_1", BLOCK, 36, NULL},
    {10, "Q2_K", SUPER, 84, NULL},
    {11, "Q3_K", SUPER, 110, NULL},
    {RN_DTYPE_Q4_K, "Q4_K", SUPER, 144, dequant_q4_k},
    {RN_DTYPE_Q5_K, "Q5_K", SUPER, 176, dequant_q5_k},
    {RN_DTYPE_Q6_K, "Q6_K", SUPER, 210, dequant_q6_k},
    {15, "Q8_K", SUPER, 292, NULL},
    {16, "IQ2_XXS", SUPER, 66, NULL},
    {17, "IQ2_XS", SUPER, 74, NULL},
    {18, "IQ3_XXS", SUPER, 98, NULL},
    {19, "IQ1_S", SUPER, 50, NULL},
    {RN_DTYPE_IQ4_NL, "IQ4_NL", BLOCK, 18, dequant_iq4_nl},
    {21, "IQ3_S", SUPER, 110, NULL},
    {22, "IQ2_S", SUPER, 82, NULL},
    {23, "IQ4_XS", SUPER, 136, NULL},
    {24, "I8", 1, 1, NULL},
    {25, "I16", 1, 2, NULL},
    {26, "I32", 1, 4, NULL},
    {27, "I64", 1, 8, NULL},
    {28, "F64", 1, 8, NULL},
    {29, "IQ1_M", SUPER, 56, NULL},
    {RN_DTYPE_BF16, "BF16", 1, 2, dequant_bf16},
    {31, "Q4_0_4_4", 0, 0, NULL},
    {32, "Q4_0_4_8", 0, 0, NULL},
    {33, "Q4_0_8_8", 0, 0, NULL},
    {34, "TQ1_0", SUPER, 54, NULL},
    {35, "TQ2_0", SUPER, 66, NULL},
    {36, "IQ4_NL_4_4", 0, 0, NULL},
    {37, "IQ4_NL_4_8", 0, 0, NULL},
    {38, "IQ4_NL_8_8", 0, 0, NULL},
    {RN_DTYPE_MXFP4, "MXFP4", BLOCK, 17, dequant_mxfp4},
    {40, "NVFP4", 0, 0, NULL},
    {41, "Q1_0", 0, 0, NULL},
    {42, "Q2_0", 0, 0, NULL},
};

const struct rn_dtype_info *rn_dtype_find(uint32_t id)
{
    return id < sizeof table / sizeof *table ? &table[id] : NULL;
}

float rn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff, bits;
    if (exp == 31) { // infinity; NaN is made quiet, as the conversion instructions do
        bits = sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0);
    } else if (exp) {
        bits = sign | (exp + 112) << 23 | man << 13;
    } else if (man) { // subnormal: move the leading bit up to the implicit place
        exp = 113;
        while (!(man & 0x400)) {
            man <<= 1;
            exp--;
        }
        bits = sign | exp << 23 | (man & 0x3ff) << 13;
    } else {
        bits = sign;
    }
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint16_t rn_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff, h;
    if (a > 0x7f800000) { // NaN, quiet, with the payload bits that fit
        h = 0x7e00 | (a >> 13 & 0x3ff);
    } else if (a >= 0x477ff000) { // 65520 and above round to infinity
        h = 0x7c00;
    } else if (a >= 0x38800000) { // normal from 2^-14; a carry out of the mantissa lands in the exponent, as it should
        h = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
    } else if (a > 0x33000000) { // subnormal above 2^-25: units of 2^-24, ties to even
        uint32_t man = (a & 0x7fffff) | 0x800000, shift = 126 - (a >> 23);
        h = (man + (1u << (shift - 1)) - 1 + (man >> shift & 1)) >> shift;
    } else {
        h = 0;
    }
    return (uint16_t)(sign | h);
}
