/* Family qwen3, dense: each head of q and k is RMS-normed before RoPE, which pairs halves. */
#include "runtime/arch.h"
#include "runtime/arch_dense.h"

int rn_arch_qwen3_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    const struct rn_dense traits = {.act = RN_ACT_SILU, .embed_scale = 1, .head_norms = true};
    return rn_dense_build(ret, g, hp, &traits, err);
}
