/* The table of GGUF element types, and half precision in integer arithmetic.
 *
 * The dequantisers are the specification: kernels and repacking must give the same bits. A row with sizes and no dequantiser lets a
 * file be opened (its tokenizer can be used) while the tensor itself is refused; a row without sizes cannot even be stepped over.
 * Files are little endian, and so is every machine this builds for (checked below); loads go through memcpy because blocks of 18,
 * 20 or 34 bytes are aligned to 2 bytes at best. */
#include "runtime/tensor/dtype.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "model files are read in place: the machine must be little endian");

#define BLOCK 32 // elements of a Q4_0, Q4_1 or Q8_0 block

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

// Indexed by type number. Numbers without a name were never given out; names without sizes are retired or not laid out here.
static const struct rn_dtype_info table[] = {
    {RN_DTYPE_F32, "F32", 1, 4, dequant_f32},
    {RN_DTYPE_F16, "F16", 1, 2, dequant_f16},
    {RN_DTYPE_Q4_0, "Q4_0", BLOCK, 18, dequant_q4_0},
    {RN_DTYPE_Q4_1, "Q4_1", BLOCK, 20, dequant_q4_1},
    {4, "Q4_2", 0, 0, NULL},
    {5, "Q4_3", 0, 0, NULL},
    {6, "Q5_0", BLOCK, 22, NULL},
    {7, "Q5_1", BLOCK, 24, NULL},
    {RN_DTYPE_Q8_0, "Q8_0", BLOCK, 34, dequant_q8_0},
    {9, "Q8_1", BLOCK, 36, NULL},
    {10, "Q2_K", 0, 0, NULL},
    {11, "Q3_K", 0, 0, NULL},
    {12, "Q4_K", 256, 144, NULL},
    {13, "Q5_K", 256, 176, NULL},
    {14, "Q6_K", 256, 210, NULL},
    {15, "Q8_K", 256, 292, NULL},
    {16, "IQ2_XXS", 0, 0, NULL},
    {17, "IQ2_XS", 0, 0, NULL},
    {18, "IQ3_XXS", 0, 0, NULL},
    {19, "IQ1_S", 0, 0, NULL},
    {20, "IQ4_NL", BLOCK, 18, NULL},
    {21, "IQ3_S", 0, 0, NULL},
    {22, "IQ2_S", 0, 0, NULL},
    {23, "IQ4_XS", 0, 0, NULL},
    {24, "I8", 1, 1, NULL},
    {25, "I16", 1, 2, NULL},
    {26, "I32", 1, 4, NULL},
    {27, "I64", 1, 8, NULL},
    {28, "F64", 1, 8, NULL},
    {29, "IQ1_M", 0, 0, NULL},
    {30, "BF16", 1, 2, NULL},
    {31, "Q4_0_4_4", 0, 0, NULL},
    {32, "Q4_0_4_8", 0, 0, NULL},
    {33, "Q4_0_8_8", 0, 0, NULL},
    {34, "TQ1_0", 0, 0, NULL},
    {35, "TQ2_0", 0, 0, NULL},
    {36, "IQ4_NL_4_4", 0, 0, NULL},
    {37, "IQ4_NL_4_8", 0, 0, NULL},
    {38, "IQ4_NL_8_8", 0, 0, NULL},
    {39, "MXFP4", BLOCK, 17, NULL},
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
