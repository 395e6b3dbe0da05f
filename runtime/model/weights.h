/* Binding weights by name and shape: what an arch file calls. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct rn_err;
struct rn_gguf;
struct rn_tensor;

/* The tensor `name` (printf: "blk.%u.attn_q.weight") with exactly cols x rows elements of a loadable type.
 * Absent: -ENOENT naming it (required) or *ret = NULL (optional). Wrong shape: -EINVAL with both shapes. */
int rn_weights_need(const struct rn_tensor **ret, const struct rn_gguf *g, uint32_t cols, uint32_t rows, struct rn_err *err, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
int rn_weights_want(const struct rn_tensor **ret, const struct rn_gguf *g, uint32_t cols, uint32_t rows, struct rn_err *err, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* XXH3 (64 bits) of the file's tensors and of the keys that change what it computes: the model's fingerprint. Reads at most
 * 1 MiB of each tensor (start, middle, end), so it costs milliseconds. */
uint64_t rn_weights_fingerprint(const struct rn_gguf *g);
