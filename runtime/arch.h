/* Model families: each reads its hyper-parameters and emits its program. A new family is one file and one row of the table.
 * Private to runtime/. */
#pragma once

struct rn_err;
struct rn_gguf;
struct rn_hparams;
struct rn_program;

struct rn_arch {
    const char *name; /* general.architecture */
    /* The program of the file's model. -ENOENT: a tensor is missing; -EINVAL: a shape does not fit; -ENOTSUP: a feature we lack. */
    int (*build)(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err);
};

/* NULL: unknown. */
const struct rn_arch *rn_arch_find(const char *name);
/* "llama, gemma3, …", for error messages. */
const char *rn_arch_names(void);

int rn_arch_gemma3_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err);
int rn_arch_llama_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err);
int rn_arch_qwen2_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err);
int rn_arch_qwen3_build(struct rn_program **ret, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err);
