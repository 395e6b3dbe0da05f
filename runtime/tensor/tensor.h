/* A view of one weight matrix or vector as it lies in a model file: row-major, `cols` is the fastest dimension. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/dtype.h"

struct rn_tensor {
    const char *name;    /* borrowed from the model file */
    enum rn_dtype type;
    uint32_t cols;       /* elements per row; a whole number of blocks */
    uint32_t rows;       /* 1 for a vector */
    const void *data;    /* borrowed from the model file, any alignment, rows * cols elements */
    size_t bytes;
};
