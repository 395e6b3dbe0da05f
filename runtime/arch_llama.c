/* Family llama: Llama 2 and 3, TinyLlama, Mistral 7B, SmolLM and SmolLM2, and what was distilled into their shape. The converter permuted
 * the rows of q and k for interleaved RoPE. */
#include "runtime/arch.h"
#include "runtime/arch_dense.h"

int rn_arch_llama_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    const struct rn_dense traits = {.interleaved = true, .act = RN_ACT_SILU, .embed_scale = 1};
    return rn_dense_build(ret, g, hp, &traits, err);
}
