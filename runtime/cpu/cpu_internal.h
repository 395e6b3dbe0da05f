/* The CPU backend's inside: repacked weights, per-operation plan, buffers of a step. Private to runtime/cpu.
 *
 * owner: the thread that calls rn_backend_ops; during a step the pool's threads read everything and write disjoint parts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/cpu/kernels.h"
#include "runtime/tensor/backend.h"

struct rn_pool;

struct rn_cpu_weight {       /* one repacked matrix */
    const struct rn_tensor *src; /* key only: its bytes are gone after load */
    enum rn_dtype type;
    const struct rn_cpu_product *product;
    uint32_t cols, rows;
    size_t stride;           /* bytes per block of 16 rows or per row */
    uint8_t *data;
    size_t bytes;
};

struct rn_cpu_part {
    const struct rn_cpu_weight *w;
    const float *bias;       /* [rows] or NULL; owned by the backend */
    enum rn_value out;
};

/* An operation ready to run. A norm in front of a product is folded into it (`norm`), so that its result is quantised at once. */
struct rn_cpu_step_op {
    enum rn_op_kind kind;
    enum rn_value in, out;
    uint32_t layer, n_parts;
    struct rn_cpu_part parts[3];
    const float *norm;       /* [width of norm_in] weight of the folded norm, or NULL. LOGITS always have one */
    enum rn_value norm_in;
    const float *head_norms[2]; /* ROPE_KV: [head_dim] for q and k, or NULL */
    float eps, scale;
    enum rn_act act;
    bool accumulate;
    bool wants_q8, wants_f32; /* what the parts read */
};

/* One attention task (a tile): up to RN_ATTN_MAX_Q queries (rows x heads of a GQA group) of one view and KV head. */
struct rn_attn_task {
    uint32_t row0, n_rows;   /* rows of the step */
    uint32_t kv_head, head0, n_heads;
};

/* A task, or one chunk of it when there are too few tasks for the threads. */
struct rn_attn_chunk {
    uint32_t task;
    uint32_t pinned;         /* 1: chunk of the pinned stream */
    uint64_t chunk;          /* number in its stream */
};

struct rn_attn_plan {        /* of one layer group, made once per step */
    struct rn_attn_task *tasks;
    uint32_t n_tasks, cap_tasks;
    struct rn_attn_chunk *chunks; /* ascending by task, pinned first, then window */
    uint32_t n_chunks, cap_chunks;
    uint32_t *first_chunk;   /* [n_tasks + 1] */
    uint32_t cap_first;
    bool split;              /* chunks are worked on apart, partial sums stored */
    float *partial;          /* [n_chunks][RN_ATTN_MAX_Q][head_dim + 2] when split */
    size_t cap_partial;
};

struct rn_cpu_thread {       /* scratch of one thread */
    float *row;              /* [widest value, padded] */
    float *attn;             /* RN_ATTN_SCRATCH + partial of one chunk + running sums */
    struct rn_acts acts;     /* for one token */
};

struct rn_cpu {
    const struct rn_backend_ops *ops; /* first: a struct rn_backend */
    const struct rn_program *program;
    struct rn_cpu_kernels kernels;
    struct rn_pool *pool;
    uint32_t n_threads, max_rows;
    enum rn_kv_type kv;
    bool poison;
    struct rn_cpu_weight *weights;
    uint32_t n_weights;
    size_t weight_bytes;
    float *vectors;          /* norm weights and biases, one after the other */
    struct rn_cpu_step_op *step_ops;
    uint32_t n_step_ops;
    float *values[RN_VAL_COUNT];       /* [max_rows][ld[v]] */
    size_t ld[RN_VAL_COUNT];           /* width padded to 16 */
    float *q_pinned;         /* [max_rows][ld[Q]] queries at their slot, for the pinned zone */
    float *q_window;         /* the same at their index */
    float *up;               /* [max_rows][ld[F]] second half of a gated product */
    float *sum;              /* [max_rows][ld[X]] product before it is added */
    float *logits;           /* [16][n_vocab padded] */
    struct rn_acts acts;     /* for max_rows tokens */
    struct rn_cpu_thread *threads;
    struct rn_attn_plan *plans;        /* [n_groups] */
    uint32_t *wanted;        /* rows that want logits, [max_rows] */
    uint32_t n_wanted;
    const struct rn_step *step;        /* the one that runs */
    bool profiling;
    struct rn_op_cost costs[RN_OP_COUNT];
    char device[64];
    struct rn_kernel_choice choices[RN_CPU_OP_COUNT];
};

/* interp.c */
int rn_cpu_step(struct rn_backend *backend, const struct rn_step *step, struct rn_err *err);

/* attend.c: plans for all groups before the threads start; then the two operations, called by every thread. */
int rn_cpu_attn_plan(struct rn_cpu *c, struct rn_err *err);
void rn_cpu_rope_kv(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread);
void rn_cpu_attention(struct rn_cpu *c, const struct rn_cpu_step_op *op, uint32_t thread);
size_t rn_cpu_attn_scratch(uint32_t head_dim); /* floats per thread */
/* What an attention operation of the current step reads and multiplies. */
void rn_cpu_attn_cost(const struct rn_cpu *c, const struct rn_cpu_step_op *op, double *ret_bytes, double *ret_macs);
