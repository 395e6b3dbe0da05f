#include "runtime/cpu/kernels.h"

#include "runtime/tensor/backend.h"
#include "runtime/tensor/quant.h"

size_t rn_kv_part_bytes(bool q8, uint32_t head_dim)
{
    size_t cells = (size_t)RN_PAGE_TOKENS * head_dim;
    return q8 ? cells + cells / RN_GROUP * sizeof(uint16_t) : cells * sizeof(uint16_t);
}
