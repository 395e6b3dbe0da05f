/* A Vulkan device that fails when a test wants it to. A shared library in front of the loader's: programs get it by LD_PRELOAD and the
 * variable RUNNEL_GPU_FAULT, unit tests link it and call rn_fault_set.
 *
 * A specification is a comma-separated list; counts start with 1 and when it is set:
 *   lost=N          the N-th submit, and all later calls to its device, return VK_ERROR_DEVICE_LOST; a new device works
 *   lost-wait=N     the same, but found by the wait that follows the N-th submit (the work was done or not: nobody knows)
 *   lost-always=N   from the N-th submit on every submit of every device is lost
 *   gone            with one of these: after the loss no device can be opened
 *   hang=N          the N-th submit never ends: waits on its device return VK_TIMEOUT at once. Destroying the device, what belongs to it, or
 *                   waiting for it without a deadline ends the process with abort(): it would have hung
 *   memory=BYTES    allocations beyond BYTES in all, from now on, return VK_ERROR_OUT_OF_DEVICE_MEMORY
 *   alloc=N         the N-th allocation does, once
 *   heap=BYTES      devices say that they have no more than BYTES, of which seven eighths may be used
 *   hardware        devices say that they are no software
 *   cache=file      a byte of each *.pipelines file is turned before it is renamed to its name
 *   cache=driver    the driver's cache data names another device
 *                   With either, cache data that reaches the driver ends the process with abort(); so begin with an empty directory
 * RUNNEL_GPU_FAULT_FILE names a file that is looked for at each submit: when it is there its text is a new specification, and it is
 * deleted. Each fault is told on stderr. Thread: any. */
#pragma once

#include <stdint.h>

/* 0, or -1: not understood (the old one stays). NULL, "": no faults. What is lost or hangs stays so. */
int rn_fault_set(const char *spec);
/* Submits since then, of all devices. */
uint64_t rn_fault_submits(void);
