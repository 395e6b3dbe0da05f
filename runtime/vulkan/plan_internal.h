/* The interpreter of the Vulkan backend: weights on the device, the program as a list of dispatches, command buffers of them that are
 * recorded once and replayed. Private to weights.c, plan.c, shape.c, buffers.c, record.c, step.c, selftest*.c and backend.c.
 *
 * A pass is two recordings: the main part for a bucket of rows (1, 2, 4 … 256), and the part that makes logits for a bucket of wanted
 * rows (1 … 16), which more than 16 wanted rows run again. What differs between two passes of one bucket lies in the step buffer alone.
 * owner: the thread that calls rn_backend_ops. */
#pragma once

#include "runtime/vulkan/vulkan_internal.h"

#define RN_VK_ROW_BUCKETS 9      /* 1, 2, 4, 8: matvec and split attention; 16 … 256: matmat, attention in a loop */
#define RN_VK_WANTED_BUCKETS 5   /* 1, 2, 4, 8, 16 */
#define RN_VK_MAX_WANTED 16
#define RN_VK_FEW_ROWS 8         /* the largest bucket of matvec and split attention */
#define RN_VK_MAX_CHOICES 64

/* What dispatches read and write, as bits; the values of the program (enum rn_value) come first. */
enum {
    RN_VK_RES_Q_WINDOW = 1 << RN_VAL_COUNT,
    RN_VK_RES_Q_PINNED = RN_VK_RES_Q_WINDOW << 1,
    RN_VK_RES_ACTS = RN_VK_RES_Q_WINDOW << 2, /* and the next bit: acts[0], acts[1] */
    RN_VK_RES_PARTIAL = RN_VK_RES_Q_WINDOW << 4,
    RN_VK_RES_KV = RN_VK_RES_Q_WINDOW << 5,
    RN_VK_RES_UP = RN_VK_RES_Q_WINDOW << 6,
    RN_VK_RES_LOGITS = RN_VK_RES_Q_WINDOW << 7,
    RN_VK_RES_ALL = (RN_VK_RES_Q_WINDOW << 8) - 1,
};

struct rn_vk_weight {            /* one repacked matrix */
    const struct rn_tensor *src; /* key while loading; its bytes are gone afterwards */
    enum rn_dtype type;
    uint32_t cols, rows;
    size_t bytes;
    uint32_t arena;
    size_t at;                   /* in its arena */
    VkDeviceAddress address;
};

union rn_vk_args {
    struct rn_args_product product;
    struct rn_args_prepare prepare;
    struct rn_args_embed embed;
    struct rn_args_rope_kv rope_kv;
    struct rn_args_attend attend;
    struct rn_args_combine combine;
};

/* One dispatch of a pass, whatever the number of rows. */
struct rn_vk_task {
    enum rn_op_kind kind;        /* of the operation it belongs to */
    enum rn_vk_op op;            /* RN_VK_MATVEC: RN_VK_MATMAT where there are more rows */
    uint32_t type;               /* of the weights, or RN_VK_ANY_TYPE */
    uint32_t layer, group;       /* ROPE_KV, ATTEND, COMBINE */
    uint32_t reads, writes;      /* RN_VK_RES_* and 1 << value */
    bool many_only;              /* not in a step of few rows: the dispatch before did this already */
    double bytes, macs;          /* for the costs: of the weights; per row */
    union rn_vk_args args;
};

struct rn_vk_recording {         /* command buffers for one bucket */
    uint32_t n_rows;             /* the bucket */
    uint32_t n_pieces;           /* wanted; each ends at a layer border */
    uint32_t n_commands;         /* recorded, 0 = not yet */
    VkCommandBuffer *commands;
    uint32_t n_dispatches;
    uint32_t query0, n_queries;  /* its timestamps in the query pool */
    uint32_t *marks;             /* [n_queries] what each closes: RN_VK_MARK_*, or a task */
    double ns;                   /* of its last run, by timestamps */
    uint32_t n_calm;             /* runs in a row that fewer pieces would have done for */
};

enum { RN_VK_MARK_START = UINT32_MAX, RN_VK_MARK_END = UINT32_MAX - 1 }; /* of a piece */

/* Where the tables of a step lie, both in the buffer that the host writes and in the one that the shaders read. */
struct rn_vk_group_place {
    size_t tiles, cells, chunks;
    size_t indirect;             /* three VkDispatchIndirectCommand, 16 bytes each: split attention, attention in a loop, combine */
};
struct rn_vk_places {
    size_t header_bytes;         /* struct rn_vk_step and the indirect sizes: copied whole */
    struct rn_vk_group_place *groups; /* [n_groups] */
    size_t angles, x_in, bytes;
    uint32_t cap_chunks;         /* per group */
    uint32_t cap_split;          /* of these, in steps with split attention */
};

struct rn_vk_seen {              /* what a step's attention reads in one layer group */
    double pairs;                /* of a row and a token that it sees */
    double bytes;                /* of K and V, in one layer */
};

struct rn_vk_slab {              /* of page_alloc */
    struct rn_vk_slab *next;
    struct rn_vk_buffer buffer;
};

struct rn_vk {
    const struct rn_backend_ops *ops; /* first: a struct rn_backend */
    const struct rn_program *program;
    struct rn_vk_device *device;
    enum rn_kv_type kv;
    uint32_t max_rows;           /* a bucket */
    bool poison;
    double budget_ns;            /* of a submit */
    /* weights.c */
    struct rn_vk_buffer *arenas;
    uint32_t n_arenas;
    struct rn_vk_weight *weights;
    uint32_t n_weights;
    size_t weight_bytes;
    struct rn_vk_buffer vectors; /* norm weights and biases, floats */
    /* plan.c, buffers.c */
    struct rn_vk_task *tasks;    /* the main part, then what makes logits */
    uint32_t n_tasks, cap_tasks, n_main;
    uint32_t *borders;           /* [n_borders] first task of each layer, ascending; borders[0] = 0 */
    uint32_t n_borders;
    bool embeds, makes_logits;   /* else X comes from x_in, or goes to x_out */
    bool norms_pinned;
    uint32_t ld[RN_VAL_COUNT], ld_logits, angle_stride;
    struct rn_vk_buffer work;    /* all values of a pass */
    size_t work_x;               /* X in it */
    VkDeviceAddress values[RN_VAL_COUNT], q_window, q_pinned, up;
    struct {
        VkDeviceAddress q, d;    /* as a product reads its input; behind d the shares of the norm */
    } acts[2];
    struct rn_vk_buffer logits;  /* [RN_VK_MAX_WANTED][ld_logits] */
    struct rn_vk_buffer partial; /* split attention: [cap_partials][n_heads][head_dim + 2] */
    uint32_t cap_partials;
    struct rn_vk_buffer upload, step, readback;
    struct rn_vk_places places;
    /* record.c */
    struct rn_vk_recording main[RN_VK_ROW_BUCKETS], last[RN_VK_WANTED_BUCKETS];
    VkCommandBuffer refresh;     /* brings the header alone to the device: for the second and later 16 wanted rows */
    VkQueryPool queries;         /* VK_NULL_HANDLE: the device has no timestamps */
    uint32_t n_queries;
    uint64_t *ticks;             /* [n_queries] */
    /* step.c */
    uint32_t *wanted;            /* [RN_STEP_ROWS] */
    struct rn_vk_seen *seen;     /* [n_groups], while profiling */
    struct rn_host_cost host;
    bool profiling;
    struct rn_op_cost costs[RN_OP_COUNT];
    /* selftest.c */
    const struct rn_vk_kernel *failed[RN_VK_MAX_CHOICES];
    uint32_t n_failed;
    /* backend.c */
    struct rn_vk_slab *slabs;
    struct rn_kernel_choice choices[RN_VK_MAX_CHOICES];
    char choice_text[RN_VK_MAX_CHOICES][2][64];
    uint32_t n_choices;
    char name[192];
};

/* ---- weights.c -------------------------------------------------------------------------------------------------------------------------- */

/* Repacks and uploads every matrix of the program. -ENOTSUP: a type or shape that cannot be; -ENOMEM. */
int rn_vk_weights_load(struct rn_vk *vk, const struct rn_backend_params *params, struct rn_err *err);
/* Norm weights and biases, in the order of the program: the planner takes their addresses one after the other. */
int rn_vk_vectors_load(struct rn_vk *vk, struct rn_err *err);
void rn_vk_weights_finish(struct rn_vk *vk);
const struct rn_vk_weight *rn_vk_weight_find(const struct rn_vk *vk, const struct rn_tensor *src);
/* Bytes that a vector of n floats takes in `vectors`. */
size_t rn_vk_vector_bytes(uint32_t n);

/* ---- plan.c ----------------------------------------------------------------------------------------------------------------------------- */

/* Buffers of a pass, then the list of dispatches. */
int rn_vk_plan(struct rn_vk *vk, struct rn_err *err);
void rn_vk_plan_finish(struct rn_vk *vk);

/* ---- buffers.c -------------------------------------------------------------------------------------------------------------------------- */

/* Floats of d of RN_ARGS_PRODUCT, with the shares of a norm behind its pairs (shaders/lib/norm.glsl), and the first of a row's shares. */
size_t rn_vk_acts_d_floats(uint32_t n_groups);
size_t rn_vk_acts_shares_at(uint32_t n_groups, uint32_t row);
int rn_vk_buffers_make_values(struct rn_vk *vk, struct rn_err *err);
int rn_vk_buffers_make_tables(struct rn_vk *vk, struct rn_err *err); /* when the dispatches are known */
void rn_vk_buffers_finish(struct rn_vk *vk);
/* Makes the step's tables large enough for so many chunks per group, split: in a step of few rows. Recordings are dropped where buffers
 * change. -ENOMEM leaves what was there. */
int rn_vk_buffers_grow(struct rn_vk *vk, uint32_t n_chunks, bool split, struct rn_err *err);
int rn_vk_buffers_grow_partial(struct rn_vk *vk, uint32_t places, struct rn_err *err);

/* ---- record.c --------------------------------------------------------------------------------------------------------------------------- */

int rn_vk_record_init(struct rn_vk *vk, struct rn_err *err);
void rn_vk_record_finish(struct rn_vk *vk);
/* Records what is not recorded yet. */
int rn_vk_record_main(struct rn_vk *vk, struct rn_vk_recording *rec, struct rn_err *err);
int rn_vk_record_last(struct rn_vk *vk, struct rn_vk_recording *rec, struct rn_err *err);
int rn_vk_record_refresh(struct rn_vk *vk, struct rn_err *err);
/* Forgets all recordings, or one: the next step records anew. The device must be idle. */
void rn_vk_record_drop_all(struct rn_vk *vk);
void rn_vk_record_drop(struct rn_vk *vk, struct rn_vk_recording *rec);
/* The kernel that a task runs with so many rows; NULL: this device has none. */
const struct rn_vk_kernel *rn_vk_task_kernel(const struct rn_vk *vk, const struct rn_vk_task *task, uint32_t n_rows);

/* What a dispatch of `op` for n_rows rows needs beside its arguments. */
struct rn_vk_shape {
    uint32_t specs[RN_VK_MAX_SPECS], n_specs;
    uint32_t groups[3];
};
void rn_vk_shape_of(struct rn_vk_shape *ret, const struct rn_vk_device *d, const struct rn_program *p, const struct rn_vk_kernel *k,
                    const union rn_vk_args *args, uint32_t n_rows);

/* ---- step.c ----------------------------------------------------------------------------------------------------------------------------- */

int rn_vk_step(struct rn_backend *backend, const struct rn_step *step, struct rn_err *err);

/* ---- selftest.c ------------------------------------------------------------------------------------------------------------------------- */

/* Runs every kernel that the plan uses on a small input and compares it with plain C. A kernel that fails is disabled and the next one
 * tried (vk->failed names those that failed); -ENOTSUP: none is left for an operation (named). Before anything is loaded. */
int rn_vk_selftest(struct rn_vk *vk, struct rn_err *err);
