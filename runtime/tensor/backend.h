/* What a device must offer to run a program: load, pages, step. One const table per backend; the engine (runtime/) is the only
 * caller, always from one thread at a time. Zone 0 is the pinned zone, zone 1 the window. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/kv.h"
#include "runtime/tensor/program.h"

#define RN_CHUNK_TOKENS 256 /* tokens per attention partial sum */

struct rn_err;

/* The pages of one sequence in one layer group. Groups with a trained sliding window have n_pinned = 0. owner: engine thread. */
struct rn_step_pages {
    uint64_t n_pinned;          /* S: indices below are in the pinned stream; window indices count from here */
    void *const *pinned;        /* [k]: tokens 64 k .. 64 k + 63 */
    void *const *window;        /* [k]: tokens S + 64 (first_page + k) .. */
    uint64_t first_page;
};

/* One sequence in a step. */
struct rn_step_view {
    uint64_t first;             /* lowest index that a sliding window may reach: the origin after a rebase, else 0 */
    const struct rn_step_pages *groups; /* [n_groups] */
};

/* One token going through the model. */
struct rn_step_row {
    uint32_t id;
    uint32_t view;              /* index into views */
    uint64_t t;                 /* absolute index */
    uint64_t base;              /* base(t) */
    float *logits;              /* [n_vocab] host memory to fill, or NULL */
};

struct rn_step {
    uint32_t n_rows;            /* <= the backend's max_rows */
    const struct rn_step_row *rows;   /* rows of one view are adjacent and ascending in t */
    uint32_t n_views;
    const struct rn_step_view *views;
    const float *angles;        /* [n_rows, n_ropes, 2 zones, n_rot_max]: cos, sin pairs; zone 0 at t - E(t), zone 1 at t */
    size_t angle_stride;        /* floats per (row, rope, zone) */
    const float *x_in;          /* [n_rows, d_model]: what X holds at the start, for a program without EMBED; else NULL */
    float *x_out;               /* [n_rows, d_model]: receives X at the end, for a program without LOGITS; else NULL */
};

struct rn_backend; /* each backend's own struct; the first member is `const struct rn_backend_ops *ops` */

struct rn_backend_params {
    uint32_t n_threads;         /* 0 = one per physical core available */
    const char *cpu_mask;       /* kernel rows to hide, by name, comma-separated; NULL = none */
    uint32_t gpu;               /* Vulkan: the device's index in the list of all */
    const char *gpu_mask;       /* Vulkan: optional features to leave unused, by name, comma-separated; NULL = none */
    const char *cache_dir;      /* Vulkan: where the pipeline cache is kept; NULL = nowhere */
    uint32_t submit_budget_ms;  /* Vulkan: longest submit, longer steps are cut at layer borders; 0 = 250 */
    enum rn_kv_type kv;
    uint32_t max_rows;          /* rows per step */
    bool poison;                /* tests: fill fresh, freed and padding cells with NaN and 65504 */
    void (*progress)(void *user, double share);  /* while repacking; may be NULL */
    void *user;
};

struct rn_kernel_choice {       /* one line of "which kernel was picked" */
    const char *op;
    const char *row;
};

struct rn_host_cost {           /* of steps, without the waiting; zero where a backend has no device of its own */
    uint64_t steps, calls;      /* calls of the device's driver */
    uint64_t dispatches;        /* kernels that the steps started there */
    double ns;
};

struct rn_op_cost {
    double ns;
    double bytes; /* weights and KV read, each once per pass */
    double macs;
};

struct rn_backend_ops {
    const char *name;           /* "cpu" */

    /* Repacks every weight of the program; the file's bytes are not needed afterwards. -ENOTSUP: an operation, type or head size
     * that this backend cannot do (named). -ENOMEM. */
    int (*load)(struct rn_backend **ret, const struct rn_program *program, const struct rn_backend_params *params, struct rn_err *err);
    void (*destroy)(struct rn_backend *b);

    /* Bytes of a page of one group. pinned pages are f16, window pages of the KV type. */
    size_t (*page_bytes)(const struct rn_backend *b, uint32_t group, bool pinned);
    /* Device memory for pages, 64-byte aligned; NULL = none left. */
    void *(*page_alloc)(struct rn_backend *b, size_t bytes);
    void (*page_free)(struct rn_backend *b, void *pages, size_t bytes);
    /* A page went back to the pool: nothing to do, except to poison it when params.poison asks for that. */
    void (*page_clear)(struct rn_backend *b, void *page, size_t bytes);
    /* Copies the first n_tokens tokens of a page (rewind into a shared page). */
    void (*page_copy)(struct rn_backend *b, uint32_t group, bool pinned, void *dst, const void *src, uint32_t n_tokens);

    /* Runs the program once. Returns 0; -EIO device lost. Blocks until the logits are there. */
    int (*step)(struct rn_backend *b, const struct rn_step *step, struct rn_err *err);

    /* Kernel rows picked; *ret_n entries, borrowed. */
    const struct rn_kernel_choice *(*kernels)(const struct rn_backend *b, size_t *ret_n);
    /* One line for records: "cpu avx512vnni 2 threads". Borrowed. */
    const char *(*device)(const struct rn_backend *b);
    size_t (*weight_bytes)(const struct rn_backend *b);

    /* Starts afresh to add up what each kind of operation costs, or stops. Times are the caller's thread's. */
    void (*profile)(struct rn_backend *b, bool on);
    /* [RN_OP_COUNT] sums since then. Borrowed. */
    const struct rn_op_cost *(*costs)(const struct rn_backend *b);
    /* What steps cost the host since load or profile(on). NULL: nothing to tell. */
    struct rn_host_cost (*host_cost)(const struct rn_backend *b);
    /* Bytes that pages may take in all, beside what is loaded. NULL: as many as asked for. */
    uint64_t (*page_budget)(const struct rn_backend *b);
    /* A backend made of others: which of them has the pages of `group`, and as which of its groups. All page_* calls for that group then
     * go there. NULL: this backend has them itself. */
    struct rn_backend *(*part)(struct rn_backend *b, uint32_t group, uint32_t *ret_group);
};

/* The table of any backend: its first member. */
static inline const struct rn_backend_ops *rn_ops_of(const struct rn_backend *b)
{
    return *(const struct rn_backend_ops *const *)(const void *)b;
}

