/* What can be said about a model file, and about this machine, as JSON: for `runnel info` and `runnel doctor`.
 *
 * A header of its own because it must not need an engine: a file of a family that cannot be run, or one that is too large for this
 * machine, can be looked into all the same. Members that a file does not say are absent; text from a file is printable ASCII. Thread: any. */
#pragma once

#include <jansson.h>
#include <stdint.h>

struct rn_err;

/* A model file, without loading it:
 *   file, files, bytes            path as given, number of parts, size of them all
 *   architecture, name
 *   runs, reason                  whether this program can run it; if not, why
 *   sizes                         {layers, d_model, d_ff, heads, kv_heads, head_dim, vocabulary}; lists where layers differ
 *   parameters, context_length, sliding_window
 *   rope                          {base, base_window, dimensions, scaling, factor, original_context_length, divisors}
 *   tensors                       {count, bytes, types: [{type, tensors, parameters, bytes}, …]}, most bytes first
 *   tokenizer                     {model, pre, tokens, merges, add_bos, special: {bos: {id, text}, …}}
 *   chat_template                 bytes of the default one; null
 *   kv_bytes_per_token            {f16, q8_0} in all layers; null where the heads do not suit the type
 *   memory                        {window, weights, kv: {f16, q8_0}}: bytes for one session of that window
 *   decode                        {bytes, macs}: read and multiplied for one token at depth 0; only where it runs
 * 0; -ENOENT, -EACCES …: cannot be opened; -EINVAL: not a GGUF file; -ENOMEM. */
int rn_info_model(json_t **ret, const char *path, struct rn_err *err);

struct rn_info_machine {
    uint32_t n_threads;   /* 0 = physical cores */
    const char *cpu_mask; /* kernel rows to hide; NULL = none */
    const char *device;   /* as rn_engine_params.device: which would be taken? NULL = not asked */
    const char *gpu_mask; /* features to hide; NULL = none */
    uint32_t measure_ms;  /* how long to measure; 0 = not at all */
};

/* This machine:
 *   cpu        {name, flags, logical, cores, quota, threads, rows: {operation: row}}; quota is null without one
 *   memory     {bytes, available, huge_pages}
 *   gpus       [{index, name, driver, features, refused, software, integrated, memory, budget}]; refused: null, or why
 *   no_gpus    why that list could not be had; absent where it could
 *   rights     what this user lacks to use a GPU; absent where nothing is known to be missing
 *   device     {asked, takes, reason}: takes null where it cannot be had, reason why, or why "auto" came to it
 *   measured   {read_gb_per_s, int8_tops}
 * 0; -EINVAL: the mask names no row; -ENOMEM. */
int rn_info_machine(json_t **ret, const struct rn_info_machine *params, struct rn_err *err);
