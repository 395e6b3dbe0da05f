/* Repacking is lossless: every row read back has the bits of the type's own dequantisation, padding is zero, and ranges of blocks can
 * be done in any order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/mem.h"
#include "runtime/tensor/repack.h"

static uint64_t rng = 0x9e3779b97f4a7c15;

static uint8_t random_byte(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint8_t)(rng >> 32);
}

/* Random bytes of a matrix. What may be the upper byte of an f16, BF16 or F32 with an all-ones exponent is changed: NaN and infinity do
 * not stay what they are in the sum of product and minimum. */
static struct rn_tensor random_tensor(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    struct rn_tensor t = {.name = "t", .type = type, .cols = cols, .rows = rows};
    t.bytes = (size_t)rows * cols / info->block_len * info->block_bytes;
    uint8_t *data = rn_mem_alloc(t.bytes, 1);
    assert_non_null(data);
    for (size_t i = 0; i < t.bytes; i++) {
        data[i] = random_byte();
        if (type != RN_DTYPE_MXFP4 && i % info->block_bytes % 2 == 1 && (data[i] & 0x7c) == 0x7c) {
            data[i] &= 0xbf;
        }
    }
    t.data = data;
    return t;
}

static void check_rows(enum rn_dtype type, uint32_t cols, uint32_t rows)
{
    const struct rn_dtype_info *info = rn_dtype_find(type);
    struct rn_tensor t = random_tensor(type, cols, rows);
    size_t bytes = rn_repack_bytes(type, cols, rows), row_bytes = t.bytes / rows;
    uint32_t n_blocks = (rows + 15) / 16;
    uint8_t *w = rn_mem_alloc64(bytes, 1);
    float *got = rn_mem_alloc(cols, sizeof(float)), *want = rn_mem_alloc(cols, sizeof(float));
    assert_true(w && got && want);
    memset(w, 0xff, bytes);
    for (uint32_t b = n_blocks; b-- > 0;) { // one by one and backwards
        rn_repack(&t, w, b, b + 1);
    }
    for (uint32_t row = 0; row < rows; row++) {
        info->dequant((const uint8_t *)t.data + row * row_bytes, want, cols / info->block_len);
        rn_repack_row(type, cols, w, row, got);
        assert_memory_equal(got, want, cols * sizeof(float));
    }
    if (info->block_len > 1) { // quantised: rows up to a multiple of 16 exist and are zero
        for (uint32_t row = rows; row < n_blocks * 16; row++) {
            rn_repack_row(type, cols, w, row, got);
            for (uint32_t c = 0; c < cols; c++) {
                assert_true(got[c] == 0);
            }
        }
    }
    rn_mem_free((void *)t.data);
    rn_mem_free(w);
    rn_mem_free(got);
    rn_mem_free(want);
}

static void every_row_reads_back_exactly(void **state)
{
    (void)state;
    const enum rn_dtype types[] = {RN_DTYPE_F32,  RN_DTYPE_F16,    RN_DTYPE_BF16,  RN_DTYPE_Q4_0, RN_DTYPE_Q4_1, RN_DTYPE_Q5_0, RN_DTYPE_Q5_1,
                                   RN_DTYPE_Q8_0, RN_DTYPE_IQ4_NL, RN_DTYPE_MXFP4, RN_DTYPE_Q4_K, RN_DTYPE_Q5_K, RN_DTYPE_Q6_K};
    const uint32_t rows[] = {1, 15, 16, 17, 49}, cols[] = {32, 64, 576, 256, 768};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
            for (size_t c = 0; c < sizeof(cols) / sizeof(cols[0]); c++) {
                if (cols[c] % rn_dtype_find(types[t])->block_len == 0) {
                    check_rows(types[t], cols[c], rows[r]);
                }
            }
        }
    }
}

static void float_rows_are_padded_with_zeros(void **state)
{
    (void)state;
    check_rows(RN_DTYPE_F32, 17, 5);
    check_rows(RN_DTYPE_F16, 3, 18);
    check_rows(RN_DTYPE_BF16, 19, 4);
    const uint16_t one[3] = {0x3c00, 0x3c00, 0x3c00};
    struct rn_tensor t = {.type = RN_DTYPE_F16, .cols = 3, .rows = 1, .data = one, .bytes = sizeof(one)};
    uint16_t w[16];
    memset(w, 0xff, sizeof(w));
    assert_int_equal(rn_repack_bytes(t.type, t.cols, t.rows), sizeof(w));
    rn_repack(&t, (uint8_t *)w, 0, 1);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(w[i], i < 3 ? 0x3c00 : 0);
    }
}

static void layout_is_the_documented_one(void **state)
{
    (void)state;
    // One Q4_1 row whose column c has the code (c * 7) % 16; scale and minimum are told apart by their bytes.
    uint8_t file[20] = {0x01, 0x02, 0x03, 0x04};
    for (int j = 0; j < 16; j++) {
        file[4 + j] = (uint8_t)(j * 7 % 16 | (j + 16) * 7 % 16 << 4);
    }
    struct rn_tensor t = {.type = RN_DTYPE_Q4_1, .cols = 32, .rows = 1, .data = file, .bytes = sizeof(file)};
    uint8_t w[320];
    assert_int_equal(rn_repack_bytes(t.type, 32, 1), sizeof(w));
    rn_repack(&t, w, 0, 1);
    for (int q = 0; q < 4; q++) {
        for (int i = 0; i < 4; i++) {
            assert_int_equal(w[64 * q + i] & 15, (8 * q + i) * 7 % 16);
            assert_int_equal(w[64 * q + i] >> 4, (8 * q + 4 + i) * 7 % 16);
        }
    }
    assert_memory_equal(w + 256, file, 2);
    assert_memory_equal(w + 288, file + 2, 2);

    uint8_t bytes[34] = {0x01, 0x02};
    for (int c = 0; c < 32; c++) {
        bytes[2 + c] = (uint8_t)(c * 5 - 80);
    }
    t = (struct rn_tensor){.type = RN_DTYPE_Q8_0, .cols = 32, .rows = 1, .data = bytes, .bytes = sizeof(bytes)};
    uint8_t v[544];
    rn_repack(&t, v, 0, 1);
    for (int c = 0; c < 32; c++) {
        assert_int_equal(v[c / 4 * 64 + c % 4], c * 5 - 80 + 128);
    }
    assert_memory_equal(v + 512, bytes, 2);
}

static void upper_bits_lie_in_planes_of_their_own(void **state)
{
    (void)state;
    // One Q5_0 row whose fifth bits are those of a number; one Q6_K row with upper bits (column / 3) % 4.
    const uint32_t fifth = 0x9a3c51e7;
    uint8_t q5[22] = {0}, w[352];
    memcpy(q5 + 2, &fifth, 4);
    struct rn_tensor t = {.type = RN_DTYPE_Q5_0, .cols = 32, .rows = 1, .data = q5, .bytes = sizeof(q5)};
    rn_repack(&t, w, 0, 1);
    for (uint32_t c = 0; c < 32; c++) {
        assert_int_equal(w[256 + c % 4] >> (c / 4) & 1, fifth >> c & 1);
    }
    uint8_t q6[210] = {0}, v[3360];
    for (uint32_t c = 0; c < 256; c++) {
        q6[128 + c / 128 * 32 + c % 32] |= (uint8_t)(c / 3 % 4 << (c / 32 % 4 * 2));
    }
    for (uint8_t k = 0; k < 16; k++) {
        q6[192 + k] = k;
    }
    q6[208] = 0x12;
    t = (struct rn_tensor){.type = RN_DTYPE_Q6_K, .cols = 256, .rows = 1, .data = q6, .bytes = sizeof(q6)};
    rn_repack(&t, v, 0, 1);
    assert_memory_equal(v, q6 + 208, 2);
    for (uint32_t c = 0; c < 256; c++) {
        const uint8_t *group = v + 32 + c / 32 * 416;
        uint32_t at = c % 32;
        assert_int_equal(group[256 + at / 16 * 64 + at % 4] >> (at / 4 % 4 * 2) & 3, c / 3 % 4);
        assert_int_equal(group[384 + at / 16 * 16], c / 16);
    }
}

static void sizes_and_unknown_types(void **state)
{
    (void)state;
    assert_int_equal(rn_repack_stride(RN_DTYPE_Q4_0, 64), 2 * 288);
    assert_int_equal(rn_repack_stride(RN_DTYPE_Q8_0, 64), 2 * 544);
    assert_int_equal(rn_repack_bytes(RN_DTYPE_Q4_1, 576, 17), 2 * 18 * 320);
    assert_int_equal(rn_repack_bytes(RN_DTYPE_Q4_K, 512, 16), 2 * (64 + 8 * 288));
    assert_int_equal(rn_repack_bytes(RN_DTYPE_Q5_K, 256, 17), 2 * (64 + 8 * 352));
    assert_int_equal(rn_repack_bytes(RN_DTYPE_Q6_K, 256, 16), 210 * 16);
    assert_int_equal(rn_repack_bytes(RN_DTYPE_Q5_0, 64, 16), 2 * 22 * 16);
    assert_int_equal(rn_repack_bytes(RN_DTYPE_MXFP4, 32, 1), 17 * 16);
    assert_int_equal(rn_repack_bytes(RN_DTYPE_Q6_K, 128, 16), 0);
    assert_int_equal(rn_repack_bytes((enum rn_dtype)10, 256, 16), 0); // Q2_K
    assert_int_equal(rn_repack_bytes((enum rn_dtype)40, 256, 16), 0);
    assert_int_equal(rn_repack_bytes(RN_DTYPE_Q4_0, 40, 16), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_reads_back_exactly),
        cmocka_unit_test(float_rows_are_padded_with_zeros),
        cmocka_unit_test(layout_is_the_documented_one),
        cmocka_unit_test(upper_bits_lie_in_planes_of_their_own),
        cmocka_unit_test(sizes_and_unknown_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
