/* Family gemma3: Gemma 3, 270M to 27B. Embeddings times sqrt(d_model), head norms, norms after attention and feed-forward too, GELU; five
 * layers with a sliding window and a RoPE base of their own, then one global layer. The file's norm weights already hold the +1. */
#include <math.h>

#include "runtime/arch.h"
#include "runtime/arch_dense.h"
#include "runtime/model/hparams.h"

/* The 27B model, told by its layers, scales scores by 1/sqrt(d_model / n_heads) instead of 1/sqrt(head_dim) (llama.cpp, gemma3). */
#define LAYERS_27B 62

int rn_arch_gemma3_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    const struct rn_dense traits = {
        .act = RN_ACT_GELU_TANH, .embed_scale = sqrtf((float)hp->d_model), .head_norms = true, .post_norms = true, .window_period = 6,
        .attn_scale = hp->n_layers == LAYERS_27B ? 1 / sqrtf((float)hp->d_model / (float)hp->n_heads) : 0,
    };
    return rn_dense_build(ret, g, hp, &traits, err);
}
