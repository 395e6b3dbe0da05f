/* The vocabulary of a model: what each token id says, its type, which ids end an answer, and which plain token says given bytes.
 *
 * Tokens are kept as the bytes they stand for, however the file writes them (enum rn_vocab_writing). All bytes lie in one arena; nothing
 * is allocated per token. Immutable after init: shared by all threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rn_err;
struct rn_gguf;

#define RN_VOCAB_MAX_TOKENS (1u << 20) /* four times the largest published vocabulary */
#define RN_VOCAB_MAX_BYTES (64u << 20) /* of all tokens together */

/* As in the file; a file without types has normal tokens only. */
enum rn_token_type {
    RN_TOKEN_NORMAL = 1,
    RN_TOKEN_UNKNOWN = 2,
    RN_TOKEN_CONTROL = 3,
    RN_TOKEN_USER = 4, /* a literal that is always recognised in text */
    RN_TOKEN_UNUSED = 5,
    RN_TOKEN_BYTE = 6, /* written <0xNN> */
};

/* How a file writes plain tokens. */
enum rn_vocab_writing {
    RN_VOCAB_BYTE_LEVEL, /* normal ones in GPT-2's alphabet of bytes, user-defined ones as they are */
    RN_VOCAB_PIECES,     /* UTF-8, a space as U+2581 */
};

struct rn_vocab {
    enum rn_vocab_writing writing;
    uint32_t n_vocab;
    char *arena;      /* the bytes that each token stands for; of control tokens: their name */
    uint32_t *starts; /* [n_vocab + 1] into arena */
    uint8_t *types;   /* [n_vocab] enum rn_token_type */
    uint8_t *is_end;  /* [n_vocab] 1: an end-of-generation mark */
    uint32_t *slots;  /* [slot_mask + 1] id + 1 of plain tokens by XXH3 of their bytes, 0 = free */
    uint32_t slot_mask;
    uint64_t slot_seed; /* a hash of the whole vocabulary: a file cannot be made whose tokens all collide */
    int64_t bos;        /* -1 = none */
    int64_t eos;
    int64_t unknown;
};

/* -EINVAL: damaged; -E2BIG: a limit above; -ENOMEM. */
int rn_vocab_init(struct rn_vocab *ret, const struct rn_gguf *g, enum rn_vocab_writing writing, struct rn_err *err);
void rn_vocab_finish(struct rn_vocab *v);

/* The bytes of a token; id < n_vocab. Borrowed as long as v lives; not NUL-terminated. */
const char *rn_vocab_bytes(const struct rn_vocab *v, uint32_t id, size_t *ret_len);

/* Control and unknown tokens: never written by a user, shown only on request. */
bool rn_vocab_is_control(const struct rn_vocab *v, uint32_t id);

/* The plain token (normal, else user-defined or byte) that stands for exactly these bytes, or -1. */
int64_t rn_vocab_find(const struct rn_vocab *v, const char *bytes, size_t len);

/* Decodes text in the byte alphabet; at most len bytes are written to out, which must not overlap text. Returns false, and leaves
 * *ret_len alone, if a character is not of that alphabet. */
bool rn_vocab_decode_byte_level(const char *text, size_t len, char *out, size_t *ret_len);

/* Copies text with a space for each U+2581; at most len bytes are written to out, which must not overlap text. Returns how many. */
size_t rn_vocab_read_spaces(const char *text, size_t len, char *out);
