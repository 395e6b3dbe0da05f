/* The Vulkan backend's inside. Private to runtime/vulkan.
 *
 * Everything a shader reads is reached by address (VK_KHR_buffer_device_address): no descriptors, no limit on a binding's range, and a
 * recorded command buffer stays valid as long as the buffers do. A KV page's handle is its device address.
 * owner: the thread that calls rn_backend_ops. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <vulkan/vulkan.h>

#include "runtime/tensor/backend.h"
#include "shaders/args.h"

struct rn_err;

/* ---- device.c: one opened device, its queue, submission --------------------------------------------------------------------------------- */

/* Optional features, each with a name that a mask may hide. No kernel needs storage8 or subgroup, which consumer GPUs may lack: they are
 * here so that the tests can take them away, as such a GPU would, and see that nothing is missed. */
enum {
    RN_VK_INTEGER_DOT = 1, /* "integer-dot": shaderIntegerDotProduct, packed 4x8, accelerated or not */
    RN_VK_STORAGE8 = 2,    /* "storage8": 8-bit loads and stores from buffers */
    RN_VK_SUBGROUP = 4,    /* "subgroup": arithmetic and shuffle in compute, size known */
    RN_VK_COOPMAT = 8,     /* "coopmat": VK_KHR_cooperative_matrix with int8 x int8 -> int32 of coop_m x coop_n x coop_k, full subgroups */
};

enum rn_vk_place {
    RN_VK_DEVICE,    /* device-local */
    RN_VK_UPLOAD,    /* host-visible, written by the host, read by the device */
    RN_VK_READBACK,  /* host-visible, cached: read by the host */
};

struct rn_vk_buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    VkDeviceAddress address;
    size_t bytes;
    void *mapped;    /* NULL: not host-visible; always coherent */
    enum rn_vk_place place;
    size_t charged;  /* bytes of the device's memory_used */
};

#define RN_VK_PUSH_BYTES 128        /* push constants of every pipeline; what every device offers */

struct rn_vk_device {
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    uint32_t queue_family;
    VkCommandPool command_pool;
    VkSemaphore timeline;          /* counts submits */
    uint64_t submitted;
    uint32_t features;             /* RN_VK_*, after masking */
    uint32_t subgroup_size;
    uint32_t coop_m, coop_n, coop_k; /* shape of the int8 cooperative matrix, 0 = none */
    size_t max_allocation;         /* bytes of one VkDeviceMemory */
    float ns_per_tick;             /* of timestamps; 0 = there are none */
    bool is_cpu, integrated;
    bool lost;                     /* every later call fails with -EIO */
    bool abandoned;                /* a fence never came: neither waited for nor destroyed */
    uint32_t deadline_ms;          /* for a fence */
    uint64_t memory_budget, memory_used; /* device-local bytes */
    uint64_t n_calls;              /* Vulkan calls made in steps: what `runnel bench` prints */
    char name[160], driver[160];
    uint8_t cache_id[2 * VK_UUID_SIZE]; /* device UUID, driver UUID */
    bool size_control;             /* pipelines that need subgroups get the size above, and full ones */
    VkPhysicalDeviceMemoryProperties heaps;
    uint32_t main_heap;            /* its allocations count against memory_budget */
    struct rn_vk_buffer staging_up, staging_down; /* made on first use */
    VkPipelineLayout layout;
    VkPipelineCache pipeline_cache;
    struct rn_vk_pipeline *pipelines;   /* kernels.c */
    bool *disabled;                /* [rows of rn_vk_kernels] by the self-test */
    uint32_t n_unsaved;            /* pipelines made since the cache was loaded or saved */
    char *cache_path;              /* NULL = no cache on disk */
    bool cache_loaded;             /* a cache on disk was good and is in use */
};

/* index: in the list of all devices (rn_gpu_list). -ENODEV: it is not there, or refused (says why). */
int rn_vk_device_open(struct rn_vk_device **ret, uint32_t index, const char *mask, const char *cache_dir, struct rn_err *err);
/* Saves the pipeline cache. An abandoned device is left alone, with all that belongs to it. NULL is fine. */
void rn_vk_device_close(struct rn_vk_device *d);

/* -EIO: the device is lost, or the deadline passed (then it is abandoned too); -ENOMEM. Several command buffers in one submit. */
int rn_vk_submit(struct rn_vk_device *d, const VkCommandBuffer *buffers, uint32_t n, struct rn_err *err);
int rn_vk_wait(struct rn_vk_device *d, struct rn_err *err); /* for all submits so far */
/* Maps a VkResult of call `what` to 0 or an error; marks the device lost where it is. */
int rn_vk_check(struct rn_vk_device *d, VkResult result, const char *what, struct rn_err *err);

/* ---- memory.c: buffers within the budget --------------------------------------------------------------------------------------------- */

/* bytes > 0; `what` is for the error. -ENOMEM: beyond the budget (both numbers), more than one allocation may hold, or no memory. */
int rn_vk_buffer_create(struct rn_vk_buffer *ret, struct rn_vk_device *d, size_t bytes, enum rn_vk_place place, const char *what,
                        struct rn_err *err);
void rn_vk_buffer_destroy(struct rn_vk_device *d, struct rn_vk_buffer *b); /* zeroed is fine */
/* Copies through a staging buffer, blocking. */
int rn_vk_upload(struct rn_vk_device *d, const struct rn_vk_buffer *to, size_t at, const void *from, size_t bytes, struct rn_err *err);
int rn_vk_download(struct rn_vk_device *d, void *to, const struct rn_vk_buffer *from, size_t at, size_t bytes, struct rn_err *err);
/* Same on the device. */
int rn_vk_copy(struct rn_vk_device *d, const struct rn_vk_buffer *to, size_t to_at, const struct rn_vk_buffer *from, size_t from_at, size_t bytes,
               struct rn_err *err);
/* One-off command buffers for such things. */
int rn_vk_commands_begin(struct rn_vk_device *d, VkCommandBuffer *ret, struct rn_err *err);
int rn_vk_commands_run(struct rn_vk_device *d, VkCommandBuffer commands, struct rn_err *err); /* ends, submits, waits, frees */

/* ---- kernels.c: the table of shaders, and pipelines made of them on demand ----------------------------------------------------------- */

enum rn_vk_op { RN_VK_EMBED, RN_VK_PREPARE, RN_VK_MATVEC, RN_VK_MATMAT, RN_VK_ROPE_KV, RN_VK_ATTEND, RN_VK_COMBINE, RN_VK_OP_COUNT };

#define RN_VK_ANY_TYPE UINT32_MAX
#define RN_VK_MAX_SPECS 6

struct rn_vk_kernel {              /* one compiled shader; the rows of an op and type, best first, the one that needs nothing last */
    const char *name;              /* "matvec_q4_0_dot" */
    enum rn_vk_op op;
    uint32_t type;                 /* enum rn_dtype or RN_VK_ANY_TYPE */
    uint32_t needs;                /* RN_VK_* */
    uint32_t args_bytes;           /* push constants */
    float tolerance;               /* relative to the largest result, against plain C: the self-test's and the tests' bound */
    const uint32_t *spirv;
    size_t spirv_bytes;
};

const struct rn_vk_kernel *rn_vk_kernels(size_t *ret_n);
/* The first row that this device can run and whose name no earlier self-test disabled. NULL: none. */
const struct rn_vk_kernel *rn_vk_kernel_find(const struct rn_vk_device *d, enum rn_vk_op op, uint32_t type);
void rn_vk_kernel_disable(struct rn_vk_device *d, const struct rn_vk_kernel *k);

/* A compute pipeline with these specialisation constants (ids 0, 1, …); made once, kept with the device. All share one layout: 128 bytes of
 * push constants, no descriptors. */
int rn_vk_pipeline(VkPipeline *ret, struct rn_vk_device *d, const struct rn_vk_kernel *k, const uint32_t *specs, uint32_t n_specs, struct rn_err *err);
/* The constants of matmat_coop.comp for tiles of 16, 32 or 64 tokens. */
#define RN_VK_COOP_SPECS 6
void rn_vk_coop_specs(uint32_t ret[RN_VK_COOP_SPECS], const struct rn_vk_device *d, uint32_t tokens);
VkPipelineLayout rn_vk_layout(const struct rn_vk_device *d);
void rn_vk_pipelines_destroy(struct rn_vk_device *d); /* the device's objects */
void rn_vk_pipelines_forget(struct rn_vk_device *d);  /* the host's memory of them */

/* ---- pipeline_cache.c: pipelines over restarts --------------------------------------------------------------------------------------- */

/* Makes d->pipeline_cache, from cache_dir/vulkan-ID.pipelines if that is whole and of this device, driver and table of kernels. Called by
 * rn_vk_device_open. -EIO. */
int rn_vk_cache_open(struct rn_vk_device *d, const char *cache_dir, struct rn_err *err);
/* Writes it if pipelines were made since; a failure is only logged. rn_vk_device_close does it too. */
void rn_vk_cache_save(struct rn_vk_device *d);

/* ---- Push constants and tables, as shaders/args.h lists them ----------------------------------------------------------------------------- */

#define RN_C_REF(type, name) VkDeviceAddress name;
#define RN_C_UINT(name) uint32_t name;
#define RN_C_FLOAT(name) float name;
struct rn_args_product { RN_ARGS_PRODUCT(RN_C_REF, RN_C_UINT, RN_C_FLOAT) };
struct rn_args_prepare { RN_ARGS_PREPARE(RN_C_REF, RN_C_UINT, RN_C_FLOAT) };
struct rn_args_embed { RN_ARGS_EMBED(RN_C_REF, RN_C_UINT, RN_C_FLOAT) };
struct rn_args_rope_kv { RN_ARGS_ROPE_KV(RN_C_REF, RN_C_UINT, RN_C_FLOAT) };
struct rn_args_attend { RN_ARGS_ATTEND(RN_C_REF, RN_C_UINT, RN_C_FLOAT) };
struct rn_args_combine { RN_ARGS_COMBINE(RN_C_REF, RN_C_UINT, RN_C_FLOAT) };
_Static_assert(sizeof(struct rn_args_product) <= 128 && sizeof(struct rn_args_rope_kv) <= 128, "push constants");

struct rn_vk_step { uint32_t n_rows, n_wanted, reserved[2], id[RN_STEP_ROWS], wanted[RN_STEP_ROWS]; };
struct rn_vk_cell { VkDeviceAddress page; uint32_t slot, pinned; };
struct rn_vk_chunk { VkDeviceAddress pages[4]; uint32_t tile, pinned, reserved[2], span[RN_TILE_ROWS]; };
struct rn_vk_tile { uint32_t row0, n_rows, chunk0, n_chunks, partial0, reserved[3]; };

/* ---- tables.c: a step's tables ---------------------------------------------------------------------------------------------------------- */

/* Rows of a tile for this model: RN_TILE_ROWS or fewer, so that rows x heads of a slice fit a workgroup (head0 slices: rn_vk_head_slices). */
uint32_t rn_vk_tile_rows(const struct rn_program *p);
/* Heads of a KV head's group that one workgroup takes, and how many such slices a group has. */
uint32_t rn_vk_slice_heads(const struct rn_program *p);
uint32_t rn_vk_head_slices(const struct rn_program *p);
/* Specialisation constants of attend.comp for a bucket of rows: head_dim, heads of a slice, rows of a tile, two of the flags of RN_ARGS_ATTEND. */
#define RN_VK_ATTEND_SPECS 4
void rn_vk_attend_specs(uint32_t ret[RN_VK_ATTEND_SPECS], const struct rn_program *p, uint32_t n_rows, uint32_t flags);

struct rn_vk_tables {              /* of one layer group and step; memory of the caller */
    struct rn_vk_cell *cells;      /* [RN_STEP_ROWS] */
    struct rn_vk_tile *tiles;      /* [RN_STEP_ROWS] */
    struct rn_vk_chunk *chunks;    /* [cap_chunks] */
    uint32_t n_tiles, n_chunks, cap_chunks;
    uint32_t n_partials;           /* sum of the chunks' rows: what split attention stores, n_heads * (head_dim + 2) floats each */
};
/* How many chunks the step needs in this group (to grow before filling). */
uint32_t rn_vk_tables_count(const struct rn_program *p, uint32_t group, const struct rn_step *step);
/* Fills cells, tiles and chunks. cap_chunks >= rn_vk_tables_count. */
void rn_vk_tables_fill(struct rn_vk_tables *t, const struct rn_program *p, uint32_t group, const struct rn_step *step);

/* ---- KV pages ------------------------------------------------------------------------------------------------------------------------- */

/* A page: for each layer slot and KV head (in that order) a K part, then a V part of 64 tokens:
 *   K, f16:   [head_dim / 8][64 tokens][8 halves]        K, q8_0: int8 [head_dim / 16][64 tokens][16], then f16 scale [head_dim / 32][64 tokens]
 *   V, f16:   [64 tokens][head_dim] halves               V, q8_0: int8 [64 tokens][head_dim], then f16 scale [64 tokens][head_dim / 32]
 * so that adjacent invocations (tokens for scores, dimensions for sums) read adjacent memory. */
/* Copies the first n_tokens (1..64) tokens of a page on the device, blocking. The ranges do not overlap. */
int rn_vk_page_copy(struct rn_vk_device *d, const struct rn_program *p, uint32_t group, bool q8, const struct rn_vk_buffer *to, size_t to_at,
                    const struct rn_vk_buffer *from, size_t from_at, uint32_t n_tokens, struct rn_err *err);
/* Fills memory of pages with NaN and 65504, blocking: params.poison. at, bytes: multiples of 4. */
int rn_vk_page_poison(struct rn_vk_device *d, const struct rn_vk_buffer *b, size_t at, size_t bytes, struct rn_err *err);
