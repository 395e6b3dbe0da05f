#include "runtime/tensor/kv.h"

#include "runtime/base/err.h"
#include "runtime/tensor/program.h"
#include "runtime/tensor/quant.h"

#define MAX_HEAD_DIM 512 // what kernels have room for, on the stack and in a GPU's shared memory

static const struct {
    const char *name;
    uint32_t unit; // dimensions of a head come in multiples of this
} types[RN_KV_COUNT] = {[RN_KV_F16] = {"f16", 16}, [RN_KV_Q8_0] = {"q8_0", RN_GROUP}};

const char *rn_kv_name(enum rn_kv_type type)
{
    return types[type].name;
}

bool rn_kv_suits(enum rn_kv_type type, uint64_t head_dim)
{
    return head_dim > 0 && head_dim % types[type].unit == 0 && head_dim <= MAX_HEAD_DIM;
}

int rn_kv_check(enum rn_kv_type type, const struct rn_program *p, struct rn_err *err)
{
    return rn_kv_suits(type, p->head_dim)
               ? 0
               : rn_err_set(err, -ENOTSUP, "heads of %u dimensions cannot be kept as %s KV, which needs a multiple of %u up to %d", p->head_dim,
                            types[type].name, types[type].unit, MAX_HEAD_DIM);
}

size_t rn_kv_part_bytes(bool q8, uint32_t head_dim)
{
    size_t cells = (size_t)RN_PAGE_TOKENS * head_dim;
    return q8 ? cells + cells / RN_GROUP * sizeof(uint16_t) : cells * sizeof(uint16_t);
}

size_t rn_kv_parts_bytes(bool q8, const struct rn_program *p, uint32_t group)
{
    return (size_t)p->groups[group].n_layers * p->n_kv_heads * 2 * rn_kv_part_bytes(q8, p->head_dim);
}
