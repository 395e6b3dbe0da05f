/* Sequences with pages of poison in memory that a Vulkan device sees; see vulkan_scene.c. */
#pragma once

#include "runtime/vulkan/vulkan_internal.h"

#define SCENE_MAX_ROWS 24
#define SCENE_MAX_VIEWS 3
#define SCENE_MAX_PAGES 32
#define SCENE_MAX_DIM 512
#define SCENE_N_LAYERS 2     /* of the group; the second one is computed */

struct scene_dispatch {
    const struct rn_vk_kernel *kernel;
    const void *args;
    uint32_t bytes, n_specs, x, y, z;
    const uint32_t *specs;
};

struct scene_model {
    struct rn_program p;
    struct rn_layer_group group;
    bool q8;                       /* window cells */
    uint32_t ld_q, ld_k;
};

struct scene_cell {
    uint8_t *k, *v; /* parts of the page */
    bool q8;
    uint32_t head_dim, slot;
};

struct scene {
    struct scene_model m;
    struct rn_step step;
    struct rn_step_row rows[SCENE_MAX_ROWS];
    struct rn_step_view views[SCENE_MAX_VIEWS];
    struct rn_step_pages pages[SCENE_MAX_VIEWS];
    void *handles[SCENE_MAX_VIEWS][2][SCENE_MAX_PAGES]; /* device addresses; [1]: pinned */
    float *q[2];                            /* [rows][ld_q]: pinned, window */
    float *sinks;                           /* [n_heads], or NULL */
};

/* Calls fn for all cells of the streams that exist. */
typedef void (*scene_cell_fn)(const struct scene_cell *c, uint32_t view, bool pinned, uint64_t at);

extern struct rn_vk_device *scene_device;
extern struct rn_vk_buffer scene_memory; /* host and device see it */
extern size_t scene_used;                /* bytes of it; give back by setting it to what it was */
extern struct scene scene;

uint32_t scene_random(void);
uint32_t scene_below(uint32_t n);
/* About normal, standard deviation 1. */
float scene_normal(void);
/* Memory that the device sees too, until the next scene. */
void *scene_take(size_t bytes);
VkDeviceAddress scene_address(const void *p);
void *scene_host(VkDeviceAddress at);
/* Runs the dispatches one after the other, and waits. */
void scene_run(const struct scene_dispatch *list, uint32_t n);
/* The i-th kernel of an operation that this device can run, best first; NULL: no more. */
const struct rn_vk_kernel *scene_kernel(enum rn_vk_op op, uint32_t i);
/* Byte offset of the computed layer in a page. */
uint32_t scene_layer_at(const struct scene_model *m, bool pinned);
/* A token and KV head of that layer. */
struct scene_cell scene_cell(const struct scene_model *m, void *page, bool pinned, uint32_t kv_head, uint32_t slot);
void scene_put16(uint8_t *to, uint16_t value);
uint16_t scene_get16(const uint8_t *from);
/* The cell as plain C writes it. */
void scene_put_cell(const struct scene_cell *c, const float *k, const float *v);
/* Value and step (half of which is the rounding) of one element of K, or of V. */
double scene_element(const struct scene_cell *c, bool of_v, uint32_t d, double *ret_step);
void scene_poison_cell(const struct scene_cell *c, uint16_t pattern);
/* Whether the row sees token `at` of a stream of its view. */
bool scene_sees(uint32_t row, bool pinned, uint64_t at);
/* The page that holds token `at`. */
void *scene_page(uint32_t view, bool pinned, uint64_t at);
/* n_rows from t on (gap: with gaps below it), and the pages of what they see, all poison. */
void scene_add_view(uint32_t n_rows, uint64_t t, uint64_t n_pinned, uint64_t base, uint32_t gap);
/* Forgets the last scene. window: trained sliding window, or 0. */
void scene_init(uint32_t head_dim, uint32_t group_heads, uint32_t n_kv_heads, bool q8, uint32_t window);
void scene_for_cells(scene_cell_fn fn);
/* Random cells where some row sees them, random queries and sinks. */
void scene_fill(bool sinks);
/* The tables of a step with the views of the scene. */
struct rn_vk_tables scene_tables(const struct rn_step *step);
/* For cmocka_run_group_tests. */
int scene_setup(void **state);
int scene_teardown(void **state);
