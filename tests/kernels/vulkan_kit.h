/* Shared by the tests of the Vulkan kernels: a device, random inputs of the awkward kind, buffers, one dispatch at a time. Everything fails
 * the test that calls it. */
#pragma once

#include "runtime/tensor/tensor.h"
#include "runtime/vulkan/vulkan_internal.h"

/* For gpu_kit_run_group_tests: a device for all tests of a program. */
int kit_setup(void **state);
int kit_teardown(void **state);
struct rn_vk_device *kit_device(void);
/* Whether its fma() is a product and a sum, as Vulkan allows: a reference has to do so too. */
bool kit_fma_rounds_twice(void);

uint32_t kit_random(void);
float kit_normal(void);                           /* roughly normal, variance 1 */
void kit_fill(float *x, size_t n);                /* groups of 32: zero, outliers, ties, just below and above what counts */
struct rn_tensor kit_weights(enum rn_dtype type, uint32_t cols, uint32_t rows); /* data owned by the caller */

struct rn_vk_buffer kit_buffer(size_t bytes, const void *from); /* from NULL: all bytes 0xff (a NaN) */
void kit_buffer_destroy(struct rn_vk_buffer *b);
void kit_read(const struct rn_vk_buffer *b, void *to, size_t bytes);
struct rn_vk_buffer kit_repacked(const struct rn_tensor *w);

struct kit_dispatch {
    uint32_t specs[RN_VK_MAX_SPECS], n_specs;
    uint32_t groups[3];
};
void kit_run(const struct rn_vk_kernel *k, const struct kit_dispatch *how, const void *args);

/* shaders/lib/norm.glsl in plain C, written anew and not taken from runtime/vulkan. d: [RN_STEP_ROWS][n_groups] pairs, then the shares. */
size_t kit_norm_d_floats(uint32_t n_groups);
float *kit_norm_shares(float *d, uint32_t n_groups, uint32_t row);
float kit_norm_share(const float *x, uint32_t group, uint32_t width, float eps); /* x: 32 columns */
float kit_norm_factor(const float *shares, uint32_t n_groups);

/* Fails when the bits of `got` and `want` differ (a zero may stand for a subnormal number, which Vulkan lets a device flush), and prints
 * where and by how much. A device that is not the reference machine's software one may differ by the kernel's tolerance (RUNNEL_TEST_GPU
 * names it): relative to the largest |want|. */
void kit_compare(const char *what, const struct rn_vk_kernel *k, const float *got, const float *want, size_t n);
