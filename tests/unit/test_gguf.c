/* The GGUF reader: what it accepts reads back, what it refuses is named, and no bytes at all make it misbehave. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/model/hparams.h"
#include "runtime/model/weights.h"
#include "tests/unit/gguf_build.h"

static struct rn_gguf *parse(struct gguf_build *b)
{
    struct gguf_bytes f = gguf_build_bytes(b);
    struct rn_gguf *g = NULL;
    struct rn_err err = {0};
    if (rn_gguf_parse(&g, f.data, f.len, "m.gguf", &err)) {
        fail_msg("refused: %s", err.text);
    }
    return g;
}

// The file must be refused with exactly this sentence. Destroys b.
static void expect_refused(struct gguf_build *b, const char *text)
{
    struct gguf_bytes f = gguf_build_bytes(b);
    struct rn_gguf *g = (struct rn_gguf *)1;
    struct rn_err err = {0};
    assert_int_equal(rn_gguf_parse(&g, f.data, f.len, "m.gguf", &err), -EINVAL);
    assert_string_equal(err.text, text);
    assert_ptr_equal(g, (struct rn_gguf *)1); // untouched
    assert_int_equal(rn_gguf_parse(&g, f.data, f.len, "m.gguf", /*err=*/NULL), -EINVAL);
    gguf_build_destroy(b);
}

static void pairs_read_back(void **state)
{
    (void)state;
    struct gguf_build *b = gguf_build_create();
    const uint32_t u32s[] = {1, 2, UINT32_MAX};
    const int32_t i32s[] = {-1, 5};
    const float f32s[] = {0.5f, -2};
    const char *const strs[] = {"a", "", "\xc4\xa0t"};
    double d = 0.25;
    gguf_build_u32(b, "u32", 7);
    gguf_build_f32(b, "f32", 1.5f);
    gguf_build_raw(b, "f64", RN_GGUF_F64, &d, 8);
    gguf_build_bool(b, "yes", true);
    gguf_build_str(b, "text", "hello");
    gguf_build_raw(b, "nul", RN_GGUF_STR, "\3\0\0\0\0\0\0\0a\0b", 11);
    gguf_build_u32s(b, "u32s", u32s, 3);
    gguf_build_i32s(b, "i32s", i32s, 2);
    gguf_build_f32s(b, "f32s", f32s, 2);
    gguf_build_strs(b, "strs", strs, 3);
    gguf_build_strs(b, "none", NULL, 0);
    gguf_build_raw(b, "", RN_GGUF_U8, "\5", 1);
    struct rn_gguf *g = parse(b);

    uint32_t u = 0;
    float f = 0;
    bool is = false;
    struct rn_gguf_str s;
    struct rn_gguf_array a;
    assert_string_equal(rn_gguf_name(g), "m.gguf");
    assert_int_equal(rn_gguf_get_u32(g, "u32", &u, NULL), 1);
    assert_int_equal(u, 7);
    assert_int_equal(rn_gguf_get_u32(g, "", &u, NULL), 1);
    assert_int_equal(u, 5);
    assert_int_equal(rn_gguf_get_u32(g, "u3", &u, NULL), 0);
    assert_int_equal(rn_gguf_get_f32(g, "f32", &f, NULL), 1);
    assert_true(f == 1.5f);
    assert_int_equal(rn_gguf_get_f32(g, "f64", &f, NULL), 1);
    assert_true(f == 0.25f);
    assert_int_equal(rn_gguf_get_bool(g, "yes", &is, NULL), 1);
    assert_true(is);
    assert_int_equal(rn_gguf_get_str(g, "text", &s, NULL), 1);
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.data, "hello", 5);
    assert_int_equal(rn_gguf_get_str(g, "nul", &s, NULL), 1);
    assert_int_equal(s.len, 3);
    assert_memory_equal(s.data, "a\0b", 3);
    assert_int_equal(rn_gguf_get_array(g, "u32s", RN_GGUF_U32, &a, NULL), 1);
    assert_int_equal(a.n, 3);
    assert_int_equal(rn_gguf_array_u32(&a, 2), UINT32_MAX);
    assert_int_equal(rn_gguf_get_array(g, "i32s", RN_GGUF_I32, &a, NULL), 1);
    assert_int_equal((int32_t)rn_gguf_array_u32(&a, 0), -1);
    assert_int_equal(rn_gguf_get_array(g, "f32s", RN_GGUF_F32, &a, NULL), 1);
    assert_true(rn_gguf_array_f32(&a, 1) == -2.0f);
    assert_int_equal(rn_gguf_get_array(g, "strs", RN_GGUF_STR, &a, NULL), 1);
    size_t cursor = 0;
    for (int i = 0; i < 3; i++) {
        s = rn_gguf_array_next_str(&a, &cursor);
        assert_int_equal(s.len, strlen(strs[i]));
        assert_memory_equal(s.data, strs[i], s.len);
    }
    assert_int_equal(cursor, a.bytes);
    assert_int_equal(rn_gguf_get_array(g, "none", RN_GGUF_STR, &a, NULL), 1);
    assert_int_equal(a.n, 0);
    assert_int_equal(rn_gguf_n_tensors(g), 0); // a file of a vocabulary alone opens
    assert_null(rn_gguf_tensor_at(g, 0));
    rn_gguf_close(g);
    gguf_build_destroy(b);
}

static void integers_of_any_type_are_range_checked(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t bits;
        size_t bytes;
        int64_t expected; // -1: refused
        const char *text;
    } cases[] = {
        {RN_GGUF_U8, 0xff, 1, 255, NULL},
        {RN_GGUF_I8, 0x7f, 1, 127, NULL},
        {RN_GGUF_I8, 0xff, 1, -1, "m.gguf: key 'k': -1, expected 0 to 4294967295"},
        {RN_GGUF_U16, 0xffff, 2, 65535, NULL},
        {RN_GGUF_I16, 0x8000, 2, -1, "m.gguf: key 'k': -32768, expected 0 to 4294967295"},
        {RN_GGUF_U32, 0xffffffff, 4, 0xffffffff, NULL},
        {RN_GGUF_I32, 0x80000000, 4, -1, "m.gguf: key 'k': -2147483648, expected 0 to 4294967295"},
        {RN_GGUF_U64, 0xffffffff, 8, 0xffffffff, NULL},
        {RN_GGUF_U64, UINT64_C(0x100000000), 8, -1, "m.gguf: key 'k': 4294967296, expected 0 to 4294967295"},
        {RN_GGUF_U64, UINT64_MAX, 8, -1, "m.gguf: key 'k': 18446744073709551615, expected 0 to 4294967295"},
        {RN_GGUF_I64, 9, 8, 9, NULL},
        {RN_GGUF_I64, UINT64_C(1) << 63, 8, -1, "m.gguf: key 'k': -9223372036854775808, expected 0 to 4294967295"},
        {RN_GGUF_F32, 0, 4, -1, "m.gguf: key 'k': of type f32, expected an integer"},
        {RN_GGUF_BOOL, 1, 1, -1, "m.gguf: key 'k': of type bool, expected an integer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_build *b = gguf_build_create();
        gguf_build_raw(b, "k", cases[i].type, &cases[i].bits, cases[i].bytes);
        struct rn_gguf *g = parse(b);
        uint32_t v = 42;
        struct rn_err err = {0};
        int e = rn_gguf_get_u32(g, "k", &v, &err);
        assert_int_equal(e, cases[i].expected < 0 ? -EINVAL : 1);
        assert_int_equal(v, cases[i].expected < 0 ? 42 : cases[i].expected);
        assert_string_equal(err.text, cases[i].text ? cases[i].text : "");
        rn_gguf_close(g);
        gguf_build_destroy(b);
    }
}

static void wrong_types_are_named(void **state)
{
    (void)state;
    struct gguf_build *b = gguf_build_create();
    struct rn_err err = {0};
    uint32_t u;
    float f;
    bool is;
    struct rn_gguf_str s;
    struct rn_gguf_array a;
    double wide = 1e300;
    gguf_build_u32(b, "n", 1);
    gguf_build_u32s(b, "list", &(uint32_t){1}, 1);
    gguf_build_raw(b, "wide", RN_GGUF_F64, &wide, 8);
    struct rn_gguf *g = parse(b);
    assert_int_equal(rn_gguf_get_u32(g, "list", &u, &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: key 'list': of type array of u32, expected an integer");
    assert_int_equal(rn_gguf_get_f32(g, "n", &f, &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: key 'n': of type u32, expected f32 or f64");
    assert_int_equal(rn_gguf_get_f32(g, "wide", &f, &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: key 'wide': 1e+300, expected a value that fits in 32 bits");
    assert_int_equal(rn_gguf_get_bool(g, "n", &is, &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: key 'n': of type u32, expected bool");
    assert_int_equal(rn_gguf_get_str(g, "n", &s, &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: key 'n': of type u32, expected string");
    assert_int_equal(rn_gguf_get_array(g, "n", RN_GGUF_STR, &a, &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: key 'n': of type u32, expected array of string");
    assert_int_equal(rn_gguf_get_array(g, "list", RN_GGUF_I32, &a, &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: key 'list': of type array of u32, expected array of i32");
    rn_gguf_close(g);
    gguf_build_destroy(b);
}

static void tensors_read_back(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        for (uint32_t alignment = 8; alignment <= 4096; alignment *= 8) {
            struct gguf_build *b = gguf_build_create();
            const float v[3] = {1, 2, 3};
            uint8_t q[36];
            memset(q, 0x5a, sizeof q);
            gguf_build_version(b, version);
            gguf_build_alignment(b, alignment);
            gguf_build_u32(b, "general.alignment", alignment);
            gguf_build_tensor(b, "vector", RN_DTYPE_F32, 3, 0, v);
            gguf_build_tensor(b, "matrix", RN_DTYPE_Q4_0, 32, 2, q);
            gguf_build_raw_tensor(b, "four", 4, 4, (uint64_t[]){2, 3, 1, 2}, RN_DTYPE_F16, gguf_build_next_offset(b), q, 24);
            struct rn_gguf *g = parse(b);
            assert_int_equal(rn_gguf_n_tensors(g), 3);
            const struct rn_tensor *t = rn_gguf_tensor(g, "vector");
            assert_ptr_equal(t, rn_gguf_tensor_at(g, 0));
            assert_true(t->cols == 3 && t->rows == 1 && t->bytes == 12 && t->type == RN_DTYPE_F32);
            assert_memory_equal(t->data, v, 12);
            t = rn_gguf_tensor(g, "matrix");
            assert_ptr_equal(t, rn_gguf_tensor_at(g, 1));
            assert_string_equal(t->name, "matrix");
            assert_true(t->cols == 32 && t->rows == 2 && t->bytes == 36 && t->type == RN_DTYPE_Q4_0);
            assert_memory_equal(t->data, q, 36);
            t = rn_gguf_tensor(g, "four");
            assert_true(t->cols == 2 && t->rows == 6 && t->bytes == 24);
            assert_null(rn_gguf_tensor(g, "matri"));
            assert_null(rn_gguf_tensor(g, "zzz"));
            rn_gguf_close(g);
            gguf_build_destroy(b);
        }
    }
}

static void headers_of_other_kinds_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t version;
        const char *text;
    } versions[] = {
        {1, "m.gguf: GGUF version 1, expected 2 or 3 (convert the model again with today's tools)"},
        {0, "m.gguf: GGUF version 0, expected 2 or 3 (convert the model again with today's tools)"},
        {4, "m.gguf: GGUF version 4, expected 2 or 3"},
        {0x03000000, "m.gguf: a big-endian file, only little-endian ones can be loaded"},
    };
    struct rn_gguf *g;
    struct rn_err err = {0};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct gguf_build *b = gguf_build_create();
        gguf_build_version(b, versions[i].version);
        expect_refused(b, versions[i].text);
    }
    assert_int_equal(rn_gguf_parse(&g, "GGML\3\0\0\0", 8, "m.gguf", &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: not a GGUF file: it starts with 'GGML', expected 'GGUF'");
    assert_int_equal(rn_gguf_parse(&g, "GG", 2, "m.gguf", &err), -EINVAL);
    assert_string_equal(err.text, "m.gguf: the magic number needs 4 bytes at offset 0, but the file ends at 2");
    assert_int_equal(rn_gguf_parse(&g, "", 0, "m.gguf", &err), -EINVAL);
}

static void counts_are_bounded(void **state)
{
    (void)state;
    struct gguf_build *b = gguf_build_create();
    gguf_build_counts(b, 0, UINT64_MAX);
    expect_refused(b, "m.gguf: 18446744073709551615 keys, at most 1048576 are allowed");
    b = gguf_build_create();
    gguf_build_counts(b, 0, 1000000);
    expect_refused(b, "m.gguf: 1000000 keys do not fit in a file of 32 bytes");
    b = gguf_build_create();
    gguf_build_counts(b, UINT64_C(1) << 63, 0);
    expect_refused(b, "m.gguf: 9223372036854775808 tensors, at most 1048576 are allowed");
    b = gguf_build_create();
    gguf_build_counts(b, 1, 0);
    expect_refused(b, "m.gguf: 1 tensors do not fit in a file of 32 bytes");
}

static void bad_pairs_are_refused(void **state)
{
    (void)state;
    struct gguf_build *b = gguf_build_create();
    gguf_build_u32(b, "a.b", 1);
    gguf_build_u32(b, "c", 2);
    gguf_build_f32(b, "a.b", 3);
    expect_refused(b, "m.gguf: key 'a.b' appears twice");
    b = gguf_build_create();
    gguf_build_raw(b, "k\n", 13, "\0\0\0\0", 4);
    expect_refused(b, "m.gguf: key 'k?': value of type 13, the largest type is 12");
    b = gguf_build_create();
    gguf_build_u32(b, "split.count", 3);
    gguf_build_u32(b, "split.no", 0);
    expect_refused(b, "m.gguf: one of several parts, which are opened by the path of a file");
    b = gguf_build_create();
    gguf_build_u32(b, "split.count", 3);
    gguf_build_u32(b, "split.no", 3);
    expect_refused(b, "m.gguf: split.no is 3, expected 0 to 2");
    b = gguf_build_create();
    gguf_build_u32(b, "split.count", 100000);
    expect_refused(b, "m.gguf: split.count is 100000, at most 4096 parts are allowed");
    b = gguf_build_create();
    char *key = rn_mem_alloc(65537, 1);
    assert_non_null(key);
    memset(key, 'k', 65536);
    gguf_build_u32(b, key, 1);
    rn_mem_free(key);
    expect_refused(b, "m.gguf: key 0: a key is 65536 bytes long, at most 65535 are allowed");
}

/* What a value is made of, byte by byte. */
static void bad_values_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *bytes;
        size_t len;
        const char *text;
    } cases[] = {
        {RN_GGUF_ARR, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12, "an array of arrays, nested arrays are not allowed"},
        {RN_GGUF_ARR, "\x0d\0\0\0\1\0\0\0\0\0\0\0", 12, "array of type 13, the largest type is 12"},
        {RN_GGUF_ARR, "\x04\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12,
         "array of 18446744073709551615 elements, at most 1073741824 are allowed"},
        {RN_GGUF_ARR, "\x0a\0\0\0\0\0\0\x40\0\0\0\0", 12, "an array needs 8589934592 bytes at offset 49, but the file ends at 64"},
        {RN_GGUF_ARR, "\x08\0\0\0\1\0\0\0\0\0\0\0\xff\0\0\0\0\0\0\0", 20,
         "a string in an array needs 255 bytes at offset 57, but the file ends at 64"},
        {RN_GGUF_STR, "\0\0\0\0\0\0\0\x80", 8, "the string is 9223372036854775808 bytes long, at most 1073741824 are allowed"},
        {RN_GGUF_BOOL, "\2", 1, "a bool is 2, expected 0 or 1"},
        {RN_GGUF_ARR, "\7\0\0\0\2\0\0\0\0\0\0\0\1\7", 14, "a bool is 7, expected 0 or 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        struct gguf_build *b = gguf_build_create();
        gguf_build_raw(b, "k", cases[i].type, cases[i].bytes, cases[i].len);
        snprintf(text, sizeof text, "m.gguf: key 'k': %s", cases[i].text);
        expect_refused(b, text);
    }
}

static void bad_alignments_are_refused(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 3, 24, 131072, 0x80000000};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        struct gguf_build *b = gguf_build_create();
        gguf_build_u32(b, "general.alignment", bad[i]);
        snprintf(text, sizeof text, "m.gguf: key 'general.alignment': %u, expected a power of two up to 65536", bad[i]);
        expect_refused(b, text);
    }
    struct gguf_build *b = gguf_build_create();
    gguf_build_str(b, "general.alignment", "32");
    expect_refused(b, "m.gguf: key 'general.alignment': of type string, expected an integer");
}

static void bad_shapes_and_types_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_dims;
        uint64_t ne[5];
        uint32_t type;
        const char *text;
    } cases[] = {
        {0, {0}, 0, "0 dimensions, expected 1 to 4"},
        {5, {1, 1, 1, 1, 1}, 0, "5 dimensions, expected 1 to 4"},
        {2, {32, 0}, 0, "dimension 1 is 0, expected 1 to 4294967295"},
        {1, {UINT64_MAX}, 0, "dimension 0 is -1, expected 1 to 4294967295"},
        {1, {UINT64_C(1) << 32}, 0, "dimension 0 is 4294967296, expected 1 to 4294967295"},
        {3, {1, 65536, 65536}, 0, "4294967296 rows, at most 4294967295 are allowed"},
        {4, {0xffffffff, 0xffffffff, 1, 1}, 27, "4294967295 x 4294967295 elements of type I64 do not fit in a file of 192 bytes"},
        {2, {8, 2}, 0, "its data is 64 bytes at offset 160, but the file ends at 160"},
        {1, {33}, 2, "rows of 33 elements, but type Q4_0 comes in blocks of 32"},
        {1, {255}, 10, "rows of 255 elements, but type Q2_K comes in blocks of 256"},
        {1, {256}, 41, "type Q1_0 cannot be loaded"},
        {1, {256}, 4, "type Q4_2 cannot be loaded"},
        {1, {256}, 43, "type number 43 is not known"},
        {1, {256}, UINT32_MAX, "type number 4294967295 is not known"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_build *b = gguf_build_create();
        char text[256];
        gguf_build_str(b, "filler", "so that there is room for any smallest table entry and more");
        gguf_build_raw_tensor(b, "t", 1, cases[i].n_dims, cases[i].ne, cases[i].type, 0, "", 0);
        snprintf(text, sizeof text, "m.gguf: tensor 't': %s", cases[i].text);
        expect_refused(b, text);
    }
}

static void bad_tensor_tables_are_refused(void **state)
{
    (void)state;
    static const float v[8] = {0};
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    struct gguf_build *b = gguf_build_create();
    gguf_build_tensor(b, "b", RN_DTYPE_F32, 8, 0, v);
    gguf_build_tensor(b, "a", RN_DTYPE_F32, 8, 0, v);
    gguf_build_tensor(b, "b", RN_DTYPE_F32, 8, 0, v);
    expect_refused(b, "m.gguf: tensor 'b' appears twice");
    b = gguf_build_create();
    gguf_build_tensor(b, name, RN_DTYPE_F32, 8, 0, v);
    expect_refused(b, "m.gguf: tensor 0: its name is 64 bytes long, at most 63 are allowed");
    b = gguf_build_create();
    gguf_build_tensor(b, name + 1, RN_DTYPE_F32, 8, 0, v);
    struct rn_gguf *g = parse(b);
    assert_non_null(rn_gguf_tensor(g, name + 1));
    rn_gguf_close(g);
    gguf_build_destroy(b);
    b = gguf_build_create();
    gguf_build_raw_tensor(b, "a\0b", 3, 1, (uint64_t[]){8}, 0, 0, v, 32);
    expect_refused(b, "m.gguf: tensor 0: its name 'a?b' contains a NUL byte");
    b = gguf_build_create(); // a hole
    gguf_build_tensor(b, "a", RN_DTYPE_F32, 8, 0, v);
    gguf_build_raw_tensor(b, "b", 1, 1, (uint64_t[]){8}, 0, 64, v, 32);
    expect_refused(b, "m.gguf: tensor 'b': offset 64, expected 32 (the padded sizes of the tensors before it)");
    b = gguf_build_create(); // an overlap
    gguf_build_tensor(b, "a", RN_DTYPE_F32, 8, 0, v);
    gguf_build_raw_tensor(b, "b", 1, 1, (uint64_t[]){8}, 0, 0, v, 32);
    expect_refused(b, "m.gguf: tensor 'b': offset 0, expected 32 (the padded sizes of the tensors before it)");
    b = gguf_build_create();
    gguf_build_raw_tensor(b, "b", 1, 1, (uint64_t[]){8}, 0, UINT64_MAX - 31, v, 32);
    expect_refused(b, "m.gguf: tensor 'b': offset 18446744073709551584, expected 0 (the padded sizes of the tensors before it)");
}

static struct gguf_build *small_model(void)
{
    struct gguf_build *b = gguf_build_create();
    gguf_build_llama(b, &(struct gguf_llama){.n_layers = 1, .d_ff = 64, .type = RN_DTYPE_Q4_1, .has_output = true});
    return b;
}

// Everything a loader would do with the file: each byte that the reader vouches for is read.
static int use(const uint8_t *data, size_t len)
{
    struct rn_gguf *g = NULL;
    struct rn_err err = {0};
    struct rn_hparams h;
    int e = rn_gguf_parse(&g, data, len, "m.gguf", &err);
    if (e) {
        assert_int_equal(e, -EINVAL);
        assert_memory_equal(err.text, "m.gguf: ", 8);
        assert_null(strchr(err.text, '\n'));
        return e;
    }
    volatile uint64_t sink = rn_weights_fingerprint(g);
    if (rn_hparams_read(&h, g, &err) == 0) {
        assert_true(h.n_heads > 0 && h.n_heads % h.n_kv_heads == 0 && h.n_rot <= h.head_dim && h.n_layers <= 1024);
    }
    struct rn_gguf_array a;
    if (rn_gguf_get_array(g, "tokenizer.ggml.tokens", RN_GGUF_STR, &a, NULL) == 1) {
        size_t cursor = 0;
        for (uint64_t i = 0; i < a.n; i++) {
            struct rn_gguf_str s = rn_gguf_array_next_str(&a, &cursor);
            sink += s.len ? (uint8_t)s.data[s.len - 1] : 0;
        }
        assert_int_equal(cursor, a.bytes);
    }
    for (size_t i = 0; i < rn_gguf_n_tensors(g); i++) {
        const struct rn_tensor *t = rn_gguf_tensor_at(g, i);
        assert_ptr_equal(rn_gguf_tensor(g, t->name), t);
        const uint8_t *bytes = t->data;
        sink += t->bytes ? bytes[0] + bytes[t->bytes - 1] : 0;
    }
    (void)sink;
    rn_gguf_close(g);
    return 0;
}

static void truncated_headers_are_refused(void **state)
{
    (void)state;
    struct gguf_build *b = small_model();
    struct gguf_bytes f = gguf_build_bytes(b);
    assert_int_equal(use(f.data, f.len), 0);
    for (size_t len = 0; len < f.header_len; len++) {
        uint8_t *copy = malloc(len ? len : 1); // of exactly this size, so that the sanitizer sees one byte too many
        assert_non_null(copy);
        memcpy(copy, f.data, len);
        assert_int_equal(use(copy, len), -EINVAL);
        free(copy);
    }
    for (size_t len = f.header_len; len < f.len - 64; len += 61) { // and in the data; the last tensor's own padding may be missing
        uint8_t *copy = malloc(len);
        assert_non_null(copy);
        memcpy(copy, f.data, len);
        assert_int_equal(use(copy, len), -EINVAL);
        free(copy);
    }
    gguf_build_destroy(b);
}

static void mutated_headers_never_misbehave(void **state)
{
    (void)state;
    static const uint64_t values[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX, 1u << 30};
    struct gguf_build *b = small_model();
    struct gguf_bytes f = gguf_build_bytes(b);
    uint8_t *copy = malloc(f.len);
    assert_non_null(copy);
    uint64_t seed = 12345;
    uint32_t n_refused = 0;
    for (int round = 0; round < 3000; round++) {
        size_t len = f.len;
        memcpy(copy, f.data, f.len);
        for (int k = 0; k <= round % 3; k++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            size_t at = (size_t)(seed >> 20) % f.header_len;
            if (round % 2) { // a byte
                copy[at] = (uint8_t)(seed >> 56);
            } else { // a field of 1, 4 or 8 bytes
                size_t width = (size_t[]){1, 4, 8}[seed >> 62 & 1 ? 1 : (seed >> 61 & 2)];
                uint64_t v = values[(seed >> 52) % (sizeof values / sizeof *values)];
                memcpy(copy + at, &v, width);
            }
        }
        if (round % 10 == 9) {
            len = (size_t)(seed >> 17) % f.len;
        }
        n_refused += use(copy, len) != 0;
    }
    assert_true(n_refused > 1000);
    free(copy);
    gguf_build_destroy(b);
}

static void a_million_keys_cost_little(void **state)
{
    (void)state;
    struct gguf_build *b = gguf_build_create();
    char key[32];
    for (uint32_t i = 0; i < 1000000; i++) {
        snprintf(key, sizeof key, "key.%u", (uint32_t)(i * UINT64_C(7919) % 1000000));
        gguf_build_u32(b, key, i);
    }
    clock_t start = clock();
    struct rn_gguf *g = parse(b);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    uint32_t v;
    assert_int_equal(rn_gguf_get_u32(g, "key.7919", &v, NULL), 1);
    assert_int_equal(v, 1);
    assert_true(seconds < 20); // about 0.5; a quadratic search would take hours
    rn_gguf_close(g);
    gguf_build_destroy(b);
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    struct gguf_build *b = small_model();
    struct gguf_bytes f = gguf_build_bytes(b);
    for (uint64_t n = 1;; n++) {
        struct rn_gguf *g = NULL;
        struct rn_err err = {0};
        rn_mem_fail_at(n);
        int e = rn_gguf_parse(&g, f.data, f.len, "m.gguf", &err);
        rn_mem_fail_at(0);
        if (e == 0) {
            rn_gguf_close(g);
            assert_true(n > 6);
            break;
        }
        assert_int_equal(e, -ENOMEM);
    }
    gguf_build_destroy(b);
}

static void files_open_and_errors_name_them(void **state)
{
    (void)state;
    char path[] = "/tmp/runnel-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct rn_gguf *g = NULL;
    struct rn_err err = {0};
    char text[128];
    assert_int_equal(rn_gguf_open(&g, path, &err), -EINVAL);
    snprintf(text, sizeof text, "%s: the file is empty", path);
    assert_string_equal(err.text, text);
    struct gguf_build *b = small_model();
    assert_true(gguf_build_write(b, path));
    assert_int_equal(rn_gguf_open(&g, path, &err), 0);
    assert_string_equal(rn_gguf_name(g), path);
    assert_non_null(rn_gguf_tensor(g, "blk.0.attn_q.weight"));
    rn_gguf_close(g);
    gguf_build_destroy(b);
    unlink(path);
    assert_int_equal(rn_gguf_open(&g, path, &err), -ENOENT);
    snprintf(text, sizeof text, "%s: cannot be opened: No such file or directory", path);
    assert_string_equal(err.text, text);
    assert_int_equal(rn_gguf_open(&g, "/", &err), -EINVAL);
    assert_string_equal(err.text, "/: not a regular file");
    assert_int_equal(rn_gguf_open(&g, "/dev/null", NULL), -EINVAL);
    rn_gguf_close(NULL);
}

/* ---- Split files ------------------------------------------------------------------------------------------------------------------- */

#define N_PARTS 3
#define N_SPLIT_TENSORS 4

struct parts {
    char folder[32], path[N_PARTS][96];
    struct gguf_build *b[N_PARTS];
};

static void add_tensors(struct gguf_build *b, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%u", i);
        gguf_build_seed(b, i + 1); // the same values wherever the tensor is
        gguf_build_random(b, name, RN_DTYPE_Q8_0, 64, i + 1, 1);
    }
}

// What a test changes before the parts are written.
struct spoil {
    uint32_t part;                  // the one that is different
    uint32_t no, n_parts, n_tensors; // 0: as it should be
    const char *extra_key;          // one more key, in this part and in part 0, with different values
    const char *extra_tensor;
};

/* Part 0 has the keys and tensor 0, part 1 tensors 1 and 2, part 2 tensor 3. */
static struct parts make_parts(const struct spoil *spoil)
{
    static const uint32_t first[N_PARTS + 1] = {0, 1, 3, N_SPLIT_TENSORS};
    struct parts p = {.folder = "/tmp/runnel-test-XXXXXX"};
    assert_non_null(mkdtemp(p.folder));
    for (uint32_t i = 0; i < N_PARTS; i++) {
        bool is_spoilt = i == spoil->part;
        struct gguf_build *b = p.b[i] = gguf_build_create();
        if (i == 0) {
            gguf_build_str(b, "general.architecture", "llama");
            gguf_build_u32(b, "llama.block_count", 7);
        }
        if (spoil->extra_key && (i == 0 || is_spoilt)) {
            gguf_build_u32(b, spoil->extra_key, i);
        }
        gguf_build_u32(b, "split.no", is_spoilt && spoil->no ? spoil->no : i);
        gguf_build_u32(b, "split.count", is_spoilt && spoil->n_parts ? spoil->n_parts : N_PARTS);
        gguf_build_u32(b, "split.tensors.count", is_spoilt && spoil->n_tensors ? spoil->n_tensors : N_SPLIT_TENSORS);
        add_tensors(b, first[i], first[i + 1]);
        if (is_spoilt && spoil->extra_tensor) {
            gguf_build_random(b, spoil->extra_tensor, RN_DTYPE_F32, 32, 1, 1);
        }
        snprintf(p.path[i], sizeof p.path[i], "%s/m-%05u-of-%05u.gguf", p.folder, i + 1, N_PARTS);
        assert_true(gguf_build_write(b, p.path[i]));
    }
    return p;
}

static void remove_parts(struct parts *p)
{
    for (uint32_t i = 0; i < N_PARTS; i++) {
        gguf_build_destroy(p->b[i]);
        unlink(p->path[i]);
    }
    assert_int_equal(rmdir(p->folder), 0);
}

static void any_part_opens_them_all(void **state)
{
    (void)state;
    struct parts p = make_parts(&(struct spoil){.part = N_PARTS});
    struct gguf_build *b = gguf_build_create();
    gguf_build_str(b, "general.architecture", "llama");
    gguf_build_u32(b, "llama.block_count", 7);
    add_tensors(b, 0, N_SPLIT_TENSORS);
    struct rn_gguf *whole = parse(b);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < N_PARTS; i++) {
        bytes += gguf_build_bytes(p.b[i]).len;
    }
    for (uint32_t i = 0; i < N_PARTS; i++) {
        struct rn_gguf *g = NULL;
        struct rn_err err = {0};
        uint32_t v = 0;
        if (rn_gguf_open(&g, p.path[i], &err)) {
            fail_msg("%s", err.text);
        }
        assert_string_equal(rn_gguf_name(g), p.path[i]);
        assert_int_equal(rn_gguf_n_parts(g), N_PARTS);
        assert_true(rn_gguf_bytes(g) == bytes);
        assert_int_equal(rn_gguf_get_u32(g, "llama.block_count", &v, NULL), 1);
        assert_int_equal(v, 7);
        assert_int_equal(rn_gguf_n_tensors(g), N_SPLIT_TENSORS);
        for (size_t k = 0; k < N_SPLIT_TENSORS; k++) {
            const struct rn_tensor *t = rn_gguf_tensor_at(g, k), *expected = rn_gguf_tensor_at(whole, k);
            assert_string_equal(t->name, expected->name);
            assert_ptr_equal(rn_gguf_tensor(g, t->name), t);
            assert_int_equal(t->bytes, expected->bytes);
            assert_memory_equal(t->data, expected->data, t->bytes);
        }
        assert_true(rn_weights_fingerprint(g) == rn_weights_fingerprint(whole)); // the same model
        rn_gguf_close(g);
    }
    assert_int_equal(rn_gguf_n_parts(whole), 1);
    rn_gguf_close(whole);
    gguf_build_destroy(b);
    remove_parts(&p);
}

/* Opening part `opened` must fail with "FOLDER/" and this text. */
static void expect_parts_refused(struct parts *p, uint32_t opened, int code, const char *text)
{
    struct rn_gguf *g = NULL;
    struct rn_err err = {0};
    char expected[256];
    snprintf(expected, sizeof expected, "%s/%s", p->folder, text);
    assert_int_equal(rn_gguf_open(&g, p->path[opened], &err), code);
    assert_string_equal(err.text, expected);
    assert_null(g);
    assert_int_equal(rn_gguf_open(&g, p->path[opened], /*err=*/NULL), code);
}

static void parts_that_do_not_belong_together_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct spoil spoil;
        uint32_t opened;
        const char *text;
    } cases[] = {
        {{.part = 1, .no = 2}, 0, "m-00002-of-00003.gguf: split.no is 2, expected 1"},
        {{.part = 1, .no = 2}, 1, "m-00002-of-00003.gguf: part 3 of 3, but its name does not end in '-00003-of-00003.gguf', so the others "
                                  "cannot be found"},
        {{.part = 1, .no = 3}, 1, "m-00002-of-00003.gguf: split.no is 3, expected 0 to 2"},
        {{.part = 2, .n_parts = 4}, 0, "m-00003-of-00003.gguf: split.count is 4, expected 3"},
        {{.part = 2, .n_parts = 4}, 2, "m-00003-of-00003.gguf: part 3 of 4, but its name does not end in '-00003-of-00004.gguf', so the "
                                       "others cannot be found"},
        {{.part = 2, .n_parts = 1}, 0, "m-00003-of-00003.gguf: split.count is 1, expected 3"},
        {{.part = 2, .n_tensors = 9}, 0, "m-00003-of-00003.gguf: split.tensors.count is 9, expected 4: a part of another model"},
        {{.part = 2, .extra_key = "general.name"}, 0, "m-00003-of-00003.gguf: key 'general.name' is not what part 1 says: a part of another "
                                                      "model"},
        {{.part = 1, .extra_tensor = "t0"}, 2, "m-00003-of-00003.gguf: the 3 parts have 5 tensors, expected 4 (split.tensors.count)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct parts p = make_parts(&cases[i].spoil);
        expect_parts_refused(&p, cases[i].opened, -EINVAL, cases[i].text);
        remove_parts(&p);
    }
}

static void each_part_is_checked_like_a_file(void **state)
{
    (void)state;
    struct parts p = make_parts(&(struct spoil){.part = N_PARTS});
    struct gguf_bytes f = gguf_build_bytes(p.b[2]);
    FILE *out = fopen(p.path[2], "wb"); // cut short by a byte of its only tensor
    assert_non_null(out);
    assert_int_equal(fwrite(f.data, 1, f.len - 17, out), f.len - 17);
    fclose(out);
    char text[160];
    size_t at = (f.header_len + 31) / 32 * 32;
    snprintf(text, sizeof text, "m-00003-of-00003.gguf: tensor 't3': its data is 272 bytes at offset %zu, but the file ends at %zu", at,
             f.len - 17);
    expect_parts_refused(&p, 0, -EINVAL, text);
    unlink(p.path[2]);
    expect_parts_refused(&p, 0, -ENOENT, "m-00003-of-00003.gguf: part 3 of 3 is missing");
    assert_true(gguf_build_write(p.b[2], p.path[2]));
    unlink(p.path[0]);
    expect_parts_refused(&p, 2, -ENOENT, "m-00001-of-00003.gguf: part 1 of 3 is missing");
    remove_parts(&p);
    // A tensor that two parts have, with a right sum.
    p = make_parts(&(struct spoil){.part = N_PARTS});
    gguf_build_destroy(p.b[2]);
    p.b[2] = gguf_build_create();
    gguf_build_u32(p.b[2], "split.no", 2);
    gguf_build_u32(p.b[2], "split.count", N_PARTS);
    gguf_build_u32(p.b[2], "split.tensors.count", N_SPLIT_TENSORS);
    add_tensors(p.b[2], 0, 1);
    assert_true(gguf_build_write(p.b[2], p.path[2]));
    struct rn_gguf *g = NULL;
    struct rn_err err = {0};
    assert_int_equal(rn_gguf_open(&g, p.path[0], &err), -EINVAL);
    assert_non_null(strstr(err.text, "-of-00003.gguf: tensor 't0' is in another part too"));
    remove_parts(&p);
}

static void a_failed_allocation_leaves_no_part_open(void **state)
{
    (void)state;
    struct parts p = make_parts(&(struct spoil){.part = N_PARTS});
    int e = -ENOMEM;
    for (uint64_t n = 1; e == -ENOMEM && n < 200; n++) {
        struct rn_gguf *g = NULL;
        rn_mem_fail_at(n);
        e = rn_gguf_open(&g, p.path[1], NULL);
        rn_mem_fail_at(0);
        assert_true(e == 0 || e == -ENOMEM);
        rn_gguf_close(g);
    }
    assert_int_equal(e, 0);
    remove_parts(&p);
}

static void weights_bind_by_name_and_shape(void **state)
{
    (void)state;
    struct gguf_build *b = gguf_build_create();
    uint8_t q8[292] = {0};
    gguf_build_random(b, "blk.3.attn_q.weight", RN_DTYPE_Q8_0, 64, 8, 1);
    gguf_build_raw_tensor(b, "q8", 2, 1, (uint64_t[]){256}, 15, gguf_build_next_offset(b), q8, sizeof q8);
    struct rn_gguf *g = parse(b);
    struct rn_err err = {0};
    const struct rn_tensor *t = NULL;
    assert_int_equal(rn_weights_need(&t, g, 64, 8, &err, "blk.%u.attn_q.weight", 3u), 0);
    assert_string_equal(t->name, "blk.3.attn_q.weight");
    assert_int_equal(rn_weights_need(&t, g, 64, 8, &err, "blk.%u.attn_q.weight", 4u), -ENOENT);
    assert_string_equal(err.text, "m.gguf: tensor 'blk.4.attn_q.weight': missing");
    assert_int_equal(rn_weights_need(&t, g, 64, 9, &err, "blk.3.attn_q.weight"), -EINVAL);
    assert_string_equal(err.text, "m.gguf: tensor 'blk.3.attn_q.weight': shape 64 x 8, expected 64 x 9");
    assert_int_equal(rn_weights_want(&t, g, 32, 8, &err, "blk.3.attn_q.weight"), -EINVAL);
    assert_non_null(t); // untouched by the failures
    assert_int_equal(rn_weights_want(&t, g, 64, 8, &err, "blk.3.attn_q.bias"), 0);
    assert_null(t);
    assert_int_equal(rn_weights_need(&t, g, 256, 1, &err, "q8"), -EINVAL);
    assert_string_equal(err.text, "m.gguf: type Q8_K of tensor 'q8' cannot be loaded");
    assert_int_equal(rn_weights_need(&t, g, 1, 1, &err, "%0200d", 1), -ENOENT);
    rn_gguf_close(g);
    gguf_build_destroy(b);
}

/* The builder's quantisers: what is read back has the spread that was asked for, and BF16 and up are near the same builder's F32. */
static void every_type_can_be_built_and_read(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float exact[N], x[N];
    for (uint32_t type = 0; rn_dtype_find(type); type++) {
        const struct rn_dtype_info *info = rn_dtype_find(type);
        if (!info->dequant) {
            continue;
        }
        struct gguf_build *b = gguf_build_create();
        gguf_build_random(b, "w", (enum rn_dtype)type, 256, N / 256, 0.05f);
        struct rn_gguf *g = parse(b);
        const struct rn_tensor *t = rn_gguf_tensor(g, "w");
        assert_non_null(t);
        info->dequant(t->data, x, N / info->block_len);
        if (type == RN_DTYPE_F32) {
            memcpy(exact, x, sizeof x);
        }
        double error = 0, power = 0;
        for (size_t i = 0; i < N; i++) {
            double e = (double)x[i] - (double)exact[i];
            error += e * e;
            power += (double)exact[i] * (double)exact[i];
        }
        if (!(sqrt(error / power) <= 0.18)) { // MXFP4, the coarsest, is at 0.12
            fail_msg("%s: relative error %g", info->name, sqrt(error / power));
        }
        rn_gguf_close(g);
        gguf_build_destroy(b);
    }
}

static uint64_t fingerprint(const struct gguf_llama *p, const char *extra_key, size_t flip_from_end)
{
    struct gguf_build *b = gguf_build_create();
    if (extra_key) {
        gguf_build_u32(b, extra_key, 1);
    }
    gguf_build_llama(b, p);
    struct gguf_bytes f = gguf_build_bytes(b);
    uint8_t *copy = malloc(f.len);
    struct rn_gguf *g = NULL;
    assert_non_null(copy);
    memcpy(copy, f.data, f.len);
    if (flip_from_end) {
        copy[f.len - flip_from_end] ^= 1;
    }
    assert_int_equal(rn_gguf_parse(&g, copy, f.len, "m.gguf", NULL), 0);
    uint64_t h = rn_weights_fingerprint(g);
    rn_gguf_close(g);
    free(copy);
    gguf_build_destroy(b);
    return h;
}

static void fingerprints_follow_what_a_model_computes(void **state)
{
    (void)state;
    struct gguf_llama p = {.type = RN_DTYPE_Q4_1}, other = p;
    uint64_t h = fingerprint(&p, NULL, 0);
    assert_true(fingerprint(&p, NULL, 0) == h);
    assert_true(fingerprint(&p, "general.note", 0) == h);
    assert_true(fingerprint(&p, "llama.expert_count", 0) != h);
    assert_true(fingerprint(&p, NULL, 5) != h); // in output_norm
    other.rope_base = 20000;
    assert_true(fingerprint(&other, NULL, 0) != h);
    other = p;
    other.seed = 9;
    assert_true(fingerprint(&other, NULL, 0) != h);
    p.d_model = 1024; // the last tensor has 4 MiB: sampled at its start, middle and end
    p.n_vocab = 1024;
    p.has_output = true;
    p.type = RN_DTYPE_F32;
    h = fingerprint(&p, NULL, 0);
    assert_true(fingerprint(&p, NULL, 1) != h);
    assert_true(fingerprint(&p, NULL, 2 << 20) != h);
    assert_true(fingerprint(&p, NULL, 4 << 20) != h);
}

static void the_real_model_opens(void **state)
{
    (void)state;
    const char *path = getenv("RUNNEL_TEST_MODEL");
    if (!path || !*path) {
        print_message("skipped: RUNNEL_TEST_MODEL is not set\n");
        skip();
    }
    struct rn_gguf *g = NULL;
    struct rn_err err = {0};
    if (rn_gguf_open(&g, path, &err)) {
        fail_msg("%s", err.text);
    }
    const struct rn_tensor *t = rn_gguf_tensor(g, "token_embd.weight");
    assert_true(t && t->cols == 576 && t->rows == 49152);
    assert_int_equal(rn_gguf_n_tensors(g), 272);
    assert_true(rn_weights_fingerprint(g) == rn_weights_fingerprint(g));
    rn_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_read_back),
        cmocka_unit_test(integers_of_any_type_are_range_checked),
        cmocka_unit_test(wrong_types_are_named),
        cmocka_unit_test(tensors_read_back),
        cmocka_unit_test(headers_of_other_kinds_are_refused),
        cmocka_unit_test(counts_are_bounded),
        cmocka_unit_test(bad_pairs_are_refused),
        cmocka_unit_test(bad_values_are_refused),
        cmocka_unit_test(bad_alignments_are_refused),
        cmocka_unit_test(bad_shapes_and_types_are_refused),
        cmocka_unit_test(bad_tensor_tables_are_refused),
        cmocka_unit_test(truncated_headers_are_refused),
        cmocka_unit_test(mutated_headers_never_misbehave),
        cmocka_unit_test(a_million_keys_cost_little),
        cmocka_unit_test(a_failed_allocation_is_an_error),
        cmocka_unit_test(files_open_and_errors_name_them),
        cmocka_unit_test(any_part_opens_them_all),
        cmocka_unit_test(parts_that_do_not_belong_together_are_refused),
        cmocka_unit_test(each_part_is_checked_like_a_file),
        cmocka_unit_test(a_failed_allocation_leaves_no_part_open),
        cmocka_unit_test(weights_bind_by_name_and_shape),
        cmocka_unit_test(every_type_can_be_built_and_read),
        cmocka_unit_test(fingerprints_follow_what_a_model_computes),
        cmocka_unit_test(the_real_model_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
