/* Family qwen2: Qwen2 and Qwen2.5. Biases on q, k and v; RoPE in halves. */
#include "runtime/arch.h"
#include "runtime/arch_dense.h"

int rn_arch_qwen2_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    const struct rn_dense traits = {.act = RN_ACT_SILU, .embed_scale = 1};
    return rn_dense_build(ret, g, hp, &traits, err);
}
