/* Inside of the engine: what engine.c (steps) and engine_load.c (bringing it up, and up again) share. Private to runtime/. */
#pragma once

#include "runtime/device_internal.h"
#include "runtime/seq_internal.h"

/* Rows per pass. 256: 16 tiles of 16 tokens keep the many-row kernels busy; twice as many gained nothing on 576..2048 columns. */
#define RN_MAX_ROWS 256

struct rn_engine {
    /* config, kept for a rebuild: its texts are owned */
    struct rn_engine_params params;
    struct rn_device device;
    uint32_t n_first;            /* layers on the CPU where there are two devices, else 0 */
    enum rn_kv_type kv;
    uint32_t n_threads;
    /* the model */
    struct rn_program *program;
    const struct rn_backend_ops *ops;
    struct rn_backend *backend;  /* NULL after a rebuild that failed */
    struct rn_text *text;
    struct rn_kv_pool pool;
    struct rn_engine_info info;
    char model_id[128], arch[32], device_line[288], fingerprint[512];
    float rope_base;
    struct rn_kernel_row *kernels; /* their names are copies: a rebuild leaves what other threads may read */
    char *kernel_names;
    /* state */
    bool down;                   /* a step failed with -EIO: no step until a rebuild */
    /* one pass */
    struct rn_step_row rows[RN_MAX_ROWS];
    struct rn_step_view views[RN_MAX_ROWS];
    struct rn_step_pages *pages; /* [RN_MAX_ROWS][n_groups] */
    float *angles;               /* [RN_MAX_ROWS][n_ropes][2][n_rot] */
    size_t angle_stride;
    uint32_t n_rows, n_views;
};

/* engine_load.c: loads e->program onto e->device, whose first e->n_first layers stay on the CPU. */
int rn_engine_load_backend(struct rn_engine *e, struct rn_err *err);

/* engine_choose.c: the device that the parameters ask for, what goes where, and its backend. */
int rn_engine_choose(struct rn_engine *e, uint32_t n_ctx_train, struct rn_err *err);
/* With "auto", of an engine that runs on a GPU: is the CPU faster, by a measurement of now? Then e->device is the CPU, and this is told. */
bool rn_engine_prefers_cpu(struct rn_engine *e);

/* For tests: as rn_engine_create on the CPU, with the layers from n_first on and the logits on another backend (0: none). */
int rn_engine_create_split(struct rn_engine **ret, const struct rn_engine_params *params, uint32_t n_first, const struct rn_backend_ops *last,
                           struct rn_err *err);
