/* KV cells as all backends keep them: their types, how many bytes they take, and which heads they suit. How a part is laid out inside is
 * each backend's own (cpu/kernels.h, vulkan/vulkan_internal.h). Thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RN_PAGE_TOKENS 64   /* tokens per page */

struct rn_err;
struct rn_program;

enum rn_kv_type { RN_KV_F16, RN_KV_Q8_0, RN_KV_COUNT };

/* "f16", "q8_0" */
const char *rn_kv_name(enum rn_kv_type type);

/* Can heads of this size be kept as this type? */
bool rn_kv_suits(enum rn_kv_type type, uint64_t head_dim);
/* The same for a program's heads. 0 or -ENOTSUP. */
int rn_kv_check(enum rn_kv_type type, const struct rn_program *p, struct rn_err *err);

/* Bytes of the keys, or of the values, of one KV head in a page. q8: of type q8_0, else f16. */
size_t rn_kv_part_bytes(bool q8, uint32_t head_dim);
/* Bytes of a page: the parts of all KV heads in all layers of the group. */
size_t rn_kv_parts_bytes(bool q8, const struct rn_program *p, uint32_t group);
