/* Element types of weights, by their GGUF number: one table row per type (names, block sizes, exact dequantisation).
 * Source of numbers and layouts: the GGUF specification. Thread: any; everything is const. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rn_dtype {
    RN_DTYPE_F32 = 0,
    RN_DTYPE_F16 = 1,
    RN_DTYPE_Q4_0 = 2,
    RN_DTYPE_Q4_1 = 3,
    RN_DTYPE_Q5_0 = 6,
    RN_DTYPE_Q5_1 = 7,
    RN_DTYPE_Q8_0 = 8,
    RN_DTYPE_Q4_K = 12,
    RN_DTYPE_Q5_K = 13,
    RN_DTYPE_Q6_K = 14,
    RN_DTYPE_IQ4_NL = 20,
    RN_DTYPE_BF16 = 30,
    RN_DTYPE_MXFP4 = 39,
};

struct rn_dtype_info {
    uint32_t id;           /* GGUF type number */
    const char *name;      /* "Q4_0" */
    uint32_t block_len;    /* elements per block; 0 = a known name whose layout we do not read (yet) */
    uint32_t block_bytes;  /* bytes per block */
    /* n_blocks blocks at src (any alignment) -> n_blocks * block_len floats, exactly as the format defines; NULL = cannot be loaded. */
    void (*dequant)(const void *src, float *dst, size_t n_blocks);
};

/* NULL: no such type number was ever given out (a row without dequant is a known type that we cannot load). */
const struct rn_dtype_info *rn_dtype_find(uint32_t id);

/* F32, F16, BF16: weights that meet activations unquantised. */
static inline bool rn_dtype_is_float(uint32_t id)
{
    return id == RN_DTYPE_F32 || id == RN_DTYPE_F16 || id == RN_DTYPE_BF16;
}

/* IEEE 754 half precision. from: exact. to: round to nearest even, overflow to infinity, NaN stays NaN. */
float rn_f16_to_f32(uint16_t h);
uint16_t rn_f32_to_f16(float f);

float rn_bf16_to_f32(uint16_t h); /* exact */

/* Parts of block layouts that repacking needs too. */
extern const int8_t rn_iq4_nl_values[16]; /* value of a code, to be multiplied by d */
extern const int8_t rn_mxfp4_values[16];  /* twice the value of a 4-bit float */
float rn_mxfp4_scale(uint8_t e);          /* 2^(e - 128), subnormal for e < 2 */
/* Scale and minimum (0..63) of group g, 0..7, from the 12 bytes of a Q4_K or Q5_K block. */
void rn_k_scale_min(const uint8_t *packed, uint32_t g, uint8_t *ret_scale, uint8_t *ret_min);
