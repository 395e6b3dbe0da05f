/* What a parsed GGUF file looks like inside runtime/model: written by gguf_parse.c, read by gguf.c and weights.c. */
#pragma once

#include "runtime/model/gguf.h"

struct rn_gguf_kv {
    struct rn_gguf_str key;
    enum rn_gguf_type type;
    const uint8_t *value;       // scalars: the bytes in the file, any alignment; STR: the text; ARR: the elements
    size_t bytes;               // of the value as above
    enum rn_gguf_type elem;     // ARR
    uint64_t n;                 // ARR: elements
};

struct rn_gguf_name { // a tensor's name, NUL-terminated for struct rn_tensor
    char text[64];
};

struct rn_gguf {
    char *name;                 // path or name, owned
    const uint8_t *data;
    size_t len;
    void *map;                  // mapped by us, or NULL
    struct rn_gguf **parts;     // [n_parts] files of a split model, owned; their keys and tensors are in the fields below. NULL: one file
    uint32_t n_parts;
    struct rn_gguf_kv *kvs;     // [n_kvs] in file order
    size_t n_kvs;
    const struct rn_gguf_kv **kv_index;      // [n_kvs] ascending by key
    struct rn_tensor *tensors;  // [n_tensors] in file order
    size_t n_tensors;
    struct rn_gguf_name *names; // [n_tensors]
    const struct rn_tensor **tensor_index;   // [n_tensors] ascending by name
};

#define RN_GGUF_QUOTE 96

/* Bytes of a file made fit for a message: printable ASCII, others '?', cut with "..." at RN_GGUF_QUOTE - 1. Returns buf. */
const char *rn_gguf_quote(struct rn_gguf_str s, char buf[RN_GGUF_QUOTE]);

/* Order of the key index: bytes, then length. */
int rn_gguf_str_compare(struct rn_gguf_str a, struct rn_gguf_str b);

/* NULL: no such key. */
const struct rn_gguf_kv *rn_gguf_find(const struct rn_gguf *g, const char *key);

/* As rn_gguf_get_u32 for a pair that was found; the error does not name the file. */
int rn_gguf_kv_u32(const struct rn_gguf_kv *kv, uint32_t *ret, struct rn_err *err);

const char *rn_gguf_type_name(enum rn_gguf_type type);

/* Fills g (data, len and name are set) from the bytes; on failure g still has to be closed. Errors do not name the file yet. */
int rn_gguf_parse_header(struct rn_gguf *g, struct rn_err *err);

/* Sorts tensor_index; a tensor whose name another one has too, or NULL. */
const struct rn_tensor *rn_gguf_sort_tensors(struct rn_gguf *g);

/* One file, also when it is a part of several. */
int rn_gguf_open_one(struct rn_gguf **ret, const char *path, struct rn_err *err);

/* ---- gguf_split.c -------------------------------------------------------------------------------------------------------------------- */

/* Is g one of several parts? -EINVAL: what it says about that makes no sense. */
int rn_gguf_is_split(const struct rn_gguf *g, bool *ret, struct rn_err *err);
/* Where *g is a part of a split model: opens the other parts beside it and puts the whole, which owns it, into *g. Otherwise, and on
 * failure, *g stays as it was. */
int rn_gguf_join(struct rn_gguf **g, struct rn_err *err);
