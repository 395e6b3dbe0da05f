/* Reader of GGUF files, version 2 and 3, little endian. A model split into several files is opened by any of them.
 *
 * A file is hostile input: every count, length, offset, product, alignment and range is checked against the file's size before it
 * is used, and parsing costs time linear in the header. Errors are one sentence: file, key or tensor, value, bound.
 * Immutable after open. Thread: any. Source: the GGUF specification (versions 2 and 3). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/tensor.h"

struct rn_err;
struct rn_gguf;

struct rn_gguf_str { /* not NUL-terminated; borrowed from the file */
    const char *data;
    size_t len;
};

enum rn_gguf_type {
    RN_GGUF_U8, RN_GGUF_I8, RN_GGUF_U16, RN_GGUF_I16, RN_GGUF_U32, RN_GGUF_I32, RN_GGUF_F32, RN_GGUF_BOOL,
    RN_GGUF_STR, RN_GGUF_ARR, RN_GGUF_U64, RN_GGUF_I64, RN_GGUF_F64
};

struct rn_gguf_array { /* elements follow each other in the file without alignment */
    enum rn_gguf_type type; /* of the elements; never ARR */
    uint64_t n;
    const uint8_t *data;
    size_t bytes;
};

/* Maps the file read-only; of a split model all parts, which lie beside each other (STEM-00001-of-00003.gguf …) and become one: the keys
 * of the first, the tensors of all in order. -ENOENT, -EACCES …: cannot be opened; -EINVAL: not a file we accept. */
int rn_gguf_open(struct rn_gguf **ret, const char *path, struct rn_err *err);
/* Parses bytes in memory, borrowed until close; not a part of a split model. `name` appears in errors. */
int rn_gguf_parse(struct rn_gguf **ret, const void *data, size_t len, const char *name, struct rn_err *err);
void rn_gguf_close(struct rn_gguf *g); /* NULL is fine */

const char *rn_gguf_name(const struct rn_gguf *g); /* path or name */
/* Files that the model lies in, and bytes of them all. */
uint32_t rn_gguf_n_parts(const struct rn_gguf *g);
uint64_t rn_gguf_bytes(const struct rn_gguf *g);

/* Typed look-ups: 1 found, 0 absent, -EINVAL wrong type or out of range (err says which key). *ret is untouched unless found.
 * u32 accepts any integer type whose value fits; f32 accepts f32 and f64; str gives borrowed bytes. */
int rn_gguf_get_u32(const struct rn_gguf *g, const char *key, uint32_t *ret, struct rn_err *err);
int rn_gguf_get_f32(const struct rn_gguf *g, const char *key, float *ret, struct rn_err *err);
int rn_gguf_get_bool(const struct rn_gguf *g, const char *key, bool *ret, struct rn_err *err);
int rn_gguf_get_str(const struct rn_gguf *g, const char *key, struct rn_gguf_str *ret, struct rn_err *err);
int rn_gguf_get_array(const struct rn_gguf *g, const char *key, enum rn_gguf_type type, struct rn_gguf_array *ret, struct rn_err *err);

/* Element access; i < a->n. Strings are read in order: start with *cursor = 0 and call n times. */
struct rn_gguf_str rn_gguf_array_next_str(const struct rn_gguf_array *a, size_t *cursor);
uint32_t rn_gguf_array_u32(const struct rn_gguf_array *a, uint64_t i); /* U32, I32 */
float rn_gguf_array_f32(const struct rn_gguf_array *a, uint64_t i);    /* F32 */

/* NULL: no such tensor. Matrices have rows = ne[1]; vectors rows = 1; more dimensions are refused at open with the rest of the checks
 * only if they do not fit rows (rows = product of the outer dimensions). */
const struct rn_tensor *rn_gguf_tensor(const struct rn_gguf *g, const char *name);
size_t rn_gguf_n_tensors(const struct rn_gguf *g);
const struct rn_tensor *rn_gguf_tensor_at(const struct rn_gguf *g, size_t i); /* in file order */
