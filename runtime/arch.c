#include "runtime/arch.h"

#include <string.h>

static const struct rn_arch archs[] = {
    {"gemma3", rn_arch_gemma3_build}, {"llama", rn_arch_llama_build}, {"qwen2", rn_arch_qwen2_build}, {"qwen3", rn_arch_qwen3_build},
};

const struct rn_arch *rn_arch_find(const char *name)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        if (strcmp(archs[i].name, name) == 0) {
            return &archs[i];
        }
    }
    return NULL;
}

const char *rn_arch_names(void)
{
    return "gemma3, llama, qwen2 and qwen3";
}
