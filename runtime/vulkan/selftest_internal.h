/* What the self-test's files share: memory that host and device both see, one dispatch at a time, a comparison. Private to
 * runtime/vulkan/selftest*.c. */
#pragma once

#include "runtime/vulkan/plan_internal.h"

struct rn_vk_try {               /* one kernel's test */
    struct rn_vk *vk;
    const struct rn_vk_kernel *kernel;
    struct rn_vk_buffer memory;  /* host-visible; what is taken from it is zero */
    size_t used;
    uint64_t rng;
    struct rn_err *err;
};

/* Zeroed memory of the test, 256-byte aligned; NULL: none left (a bug of the test's sizes). *ret: its address. */
void *rn_vk_try_take(struct rn_vk_try *t, size_t bytes, VkDeviceAddress *ret);
uint32_t rn_vk_try_bits(struct rn_vk_try *t); /* random ones */
/* -1 .. 1 */
float rn_vk_try_random(struct rn_vk_try *t);
/* The table of a step of so many rows; NULL as above. */
struct rn_vk_step *rn_vk_try_step(struct rn_vk_try *t, uint32_t n_rows, VkDeviceAddress *ret);
/* Runs the kernel once. groups: NULL, or instead of what rn_vk_shape_of says. 0 or the device's error. */
int rn_vk_try_run(struct rn_vk_try *t, const struct rn_vk_kernel *k, const union rn_vk_args *args, uint32_t n_rows, const uint32_t *groups);
/* True when all differences are within the tolerance times the largest |want|. */
bool rn_vk_try_same(const float *got, const double *want, size_t n, float tolerance);
/* True when q and d of a row (as prepare.comp makes them) fit its floats y: half a step off at most, and the sum that goes with d. */
bool rn_vk_try_quantised(const float *y, const int8_t *q, const float *d, uint32_t n_groups);

/* Tests: 1 passed, 0 failed, or an error of the device or memory. */
int rn_vk_try_product(struct rn_vk_try *t, uint32_t cols);
int rn_vk_try_embed(struct rn_vk_try *t, uint32_t cols);
int rn_vk_try_rope_kv(struct rn_vk_try *t);
int rn_vk_try_attend(struct rn_vk_try *t);  /* loop mode */
int rn_vk_try_combine(struct rn_vk_try *t); /* split mode, with the attention kernel in use */
