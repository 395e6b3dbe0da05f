/* A Vulkan device for tests: that of RUNNEL_TEST_GPU (as --device vulkan:… takes it), else the first that is fit, a software one too. */
#pragma once

#include "runtime/vulkan/gpu.h"
#include "runtime/vulkan/vulkan_internal.h"

/* The device that is selected; NULL: there is none, and why was printed. Fails where the one that is named is not there. Borrowed. */
const struct rn_gpu_info *gpu_kit_device(void);

/* Opens it; skips the test (cmocka) where there is none, fails it when it does not open. mask, cache_dir: may be NULL. */
struct rn_vk_device *gpu_kit_open(const char *mask, const char *cache_dir);

/* For main: cmocka_run_group_tests, or 77 where there is no device (and why was printed). */
#define gpu_kit_run_group_tests(tests, setup, teardown) (gpu_kit_device() ? cmocka_run_group_tests(tests, setup, teardown) : 77)

/* Does its driver give pipelines away for a cache on disk? (Mesa 26.2's llvmpipe gives the first 20 bytes of a header of 32.) */
bool gpu_kit_keeps_pipelines(struct rn_vk_device *d);
