/* A heap of uint64_t, smallest first, in memory that the caller has made large enough. What both merging tokenizers queue in it:
 * (order of the merge) << 32 | (index of its left symbol), so that of equal merges the leftmost comes first.
 *
 * Each entry has RN_HEAP_CHILDREN below it, side by side: in a heap of millions each level is a cache line to fetch, and so there are
 * fewer of them than with two. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RN_HEAP_CHILDREN 4

static inline void rn_heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / RN_HEAP_CHILDREN] > entry) {
        heap[i] = heap[(i - 1) / RN_HEAP_CHILDREN];
        i = (i - 1) / RN_HEAP_CHILDREN;
    }
    heap[i] = entry;
}

static inline uint64_t rn_heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    uint64_t last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = RN_HEAP_CHILDREN * i + 1) < *n;) {
        size_t end = child + RN_HEAP_CHILDREN < *n ? child + RN_HEAP_CHILDREN : *n;
        for (size_t k = child + 1; k < end; k++) {
            child = heap[k] < heap[child] ? k : child;
        }
        if (heap[child] >= last) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}
