/* A binary heap of uint64_t, smallest first, in memory that the caller has made large enough. What both merging tokenizers queue in it:
 * (order of the merge) << 32 | (index of its left symbol), so that of equal merges the leftmost comes first. */
#pragma once

#include <stddef.h>
#include <stdint.h>

static inline void rn_heap_push(uint64_t *heap, size_t *n, uint64_t entry)
{
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > entry) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = entry;
}

static inline uint64_t rn_heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0];
    uint64_t last = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n) {
            break;
        }
        child += child + 1 < *n && heap[child + 1] < heap[child];
        if (heap[child] >= last) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}
