/* Weights on the device: matrices in the layout of tensor/repack.h, cut out of a few large allocations; norm weights and biases as floats.
 *
 * A piece is repacked in ordinary memory (the memory that a device reads from may be slow to read back) and copied from there. Several
 * threads repack disjoint block ranges of a piece. */
#include "runtime/vulkan/plan_internal.h"

#include <pthread.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/tensor/repack.h"

#define ARENA_BYTES ((size_t)512 << 20) // or a single matrix that is larger
#define PIECE_BYTES ((size_t)16 << 20)  // repacked at a time; at least one block of 16 rows
#define MATRIX_ALIGN 256
#define MAX_THREADS 8

const struct rn_vk_weight *rn_vk_weight_find(const struct rn_vk *vk, const struct rn_tensor *src)
{
    for (uint32_t i = 0; i < vk->n_weights; i++) {
        if (vk->weights[i].src == src) {
            return &vk->weights[i];
        }
    }
    return NULL;
}

/* ---- where they go ------------------------------------------------------------------------------------------------------------------- */

/* Plans a place for `src`, unless it has one (tied): behind the last matrix, or at the start of a new arena. */
static int add_weight(struct rn_vk *vk, const struct rn_tensor *src, size_t *used, struct rn_err *err)
{
    if (rn_vk_weight_find(vk, src)) {
        return 0;
    }
    size_t bytes = rn_repack_bytes(src->type, src->cols, src->rows), limit = vk->device->max_allocation;
    if (!bytes) {
        return rn_err_set(err, -ENOTSUP, "tensor '%s': type %s with rows of %u cannot run on the GPU", src->name, rn_dtype_find(src->type)->name,
                          src->cols);
    }
    if (bytes > limit) {
        return rn_err_set(err, -ENOTSUP, "tensor '%s' takes %zu bytes, the GPU allocates %zu at once", src->name, bytes, limit);
    }
    size_t arena = limit < ARENA_BYTES ? limit : ARENA_BYTES, at = (*used + MATRIX_ALIGN - 1) / MATRIX_ALIGN * MATRIX_ALIGN;
    if (vk->n_arenas == 0 || at + bytes > arena) {
        vk->n_arenas++;
        at = 0;
    }
    vk->weights[vk->n_weights++] = (struct rn_vk_weight){.src = src, .type = src->type, .cols = src->cols, .rows = src->rows, .bytes = bytes,
                                                         .arena = vk->n_arenas - 1, .at = at};
    *used = at + bytes;
    vk->weight_bytes += bytes;
    return 0;
}

static int place_all(struct rn_vk *vk, struct rn_err *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < vk->program->n_ops; i++) {
        n += vk->program->ops[i].n_parts;
    }
    vk->weights = rn_mem_alloc(n ? n : 1, sizeof *vk->weights);
    if (!vk->weights) {
        return rn_err_nomem(err, n * sizeof *vk->weights, "weights");
    }
    size_t used = 0;
    for (uint32_t i = 0; i < vk->program->n_ops; i++) {
        const struct rn_op *op = &vk->program->ops[i];
        for (uint32_t k = 0; rn_op_has_matrices(op->kind) && k < op->n_parts; k++) {
            int r = add_weight(vk, op->parts[k].weight, &used, err);
            if (r < 0) {
                return r;
            }
        }
    }
    return 0;
}

static int make_arenas(struct rn_vk *vk, struct rn_err *err)
{
    uint32_t n = vk->n_arenas;
    vk->arenas = rn_mem_alloc(n ? n : 1, sizeof *vk->arenas);
    size_t *bytes = rn_mem_alloc(n ? n : 1, sizeof *bytes);
    int r = vk->arenas && bytes ? 0 : rn_err_nomem(err, n * sizeof *vk->arenas, "weights");
    for (uint32_t i = 0; i < vk->n_weights && r == 0; i++) { // the last of an arena ends it
        bytes[vk->weights[i].arena] = vk->weights[i].at + vk->weights[i].bytes;
    }
    for (uint32_t i = 0; i < n && r == 0; i++) {
        r = rn_vk_buffer_create(&vk->arenas[i], vk->device, bytes[i], RN_VK_DEVICE, "weights", err);
    }
    for (uint32_t i = 0; i < vk->n_weights && r == 0; i++) {
        vk->weights[i].address = vk->arenas[vk->weights[i].arena].address + vk->weights[i].at;
    }
    rn_mem_free(bytes);
    return r;
}

/* ---- repacking ------------------------------------------------------------------------------------------------------------------------- */

struct repack_job { // a range of 16-row blocks of a piece
    struct rn_tensor rows; // the piece as a matrix of its own
    uint8_t *to;
    uint32_t block0, block1;
};

static void *repack_some(void *arg)
{
    const struct repack_job *job = arg;
    rn_repack(&job->rows, job->to, job->block0, job->block1);
    return NULL;
}

/* Repacks the whole of `rows` into `to`. A thread that cannot be had is done without. */
static void repack_piece(const struct rn_tensor *rows, uint8_t *to, uint32_t n_threads)
{
    struct repack_job jobs[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    bool started[MAX_THREADS] = {false};
    uint32_t n_blocks = (rows->rows + 15) / 16, n = n_threads < MAX_THREADS ? n_threads : MAX_THREADS;
    n = n_blocks < 8 * n ? 1 : n;
    for (uint32_t i = 0; i < n; i++) {
        jobs[i] = (struct repack_job){*rows, to, (uint32_t)((uint64_t)n_blocks * i / n), (uint32_t)((uint64_t)n_blocks * (i + 1) / n)};
        started[i] = i > 0 && pthread_create(&threads[i], NULL, repack_some, &jobs[i]) == 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!started[i]) {
            (void)repack_some(&jobs[i]);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        if (started[i]) {
            pthread_join(threads[i], NULL);
        }
    }
}

static int load_weight(struct rn_vk *vk, const struct rn_vk_weight *w, uint8_t *piece, size_t piece_bytes, uint32_t n_threads, struct rn_err *err)
{
    const struct rn_dtype_info *type = rn_dtype_find(w->type);
    const size_t row_bytes = (size_t)w->cols / type->block_len * type->block_bytes;
    const size_t block_bytes = rn_repack_bytes(w->type, w->cols, 16);
    const uint32_t step = (uint32_t)(piece_bytes / block_bytes) * 16;
    size_t at = w->at;
    for (uint32_t row = 0; row < w->rows; row += step) {
        struct rn_tensor rows = *w->src;
        rows.data = (const uint8_t *)w->src->data + row * row_bytes;
        rows.rows = w->rows - row < step ? w->rows - row : step;
        size_t bytes = rn_repack_bytes(rows.type, rows.cols, rows.rows);
        repack_piece(&rows, piece, n_threads);
        int r = rn_vk_upload(vk->device, &vk->arenas[w->arena], at, piece, bytes, err);
        if (r < 0) {
            return r;
        }
        at += bytes;
    }
    return 0;
}

int rn_vk_weights_load(struct rn_vk *vk, const struct rn_backend_params *params, struct rn_err *err)
{
    int r = place_all(vk, err);
    r = r < 0 ? r : make_arenas(vk, err);
    if (r < 0) {
        return r;
    }
    size_t piece_bytes = PIECE_BYTES, done = 0;
    for (uint32_t i = 0; i < vk->n_weights; i++) {
        size_t block = rn_repack_bytes(vk->weights[i].type, vk->weights[i].cols, 16);
        piece_bytes = block > piece_bytes ? block : piece_bytes;
    }
    uint8_t *piece = rn_mem_region_alloc(piece_bytes);
    if (!piece) {
        return rn_err_nomem(err, piece_bytes, "repacking");
    }
    uint64_t start = rn_clock_ns();
    for (uint32_t i = 0; i < vk->n_weights && r == 0; i++) {
        r = load_weight(vk, &vk->weights[i], piece, piece_bytes, params->n_threads ? params->n_threads : 1, err);
        done += vk->weights[i].bytes;
        if (params->progress && rn_clock_ms(start, rn_clock_ns()) > 1000) { // a fast load says nothing
            params->progress(params->user, (double)done / (double)vk->weight_bytes);
        }
    }
    rn_mem_region_free(piece, piece_bytes);
    return r;
}

/* ---- vectors --------------------------------------------------------------------------------------------------------------------------- */

size_t rn_vk_vector_bytes(uint32_t n)
{
    return ((size_t)n + 31) / 32 * 32 * sizeof(float);
}

/* Calls for every vector of the program in order: biases of products, weights of norms. */
static size_t each_vector(const struct rn_program *p, uint8_t *to)
{
    size_t at = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct rn_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->n_parts; k++) {
            const struct rn_tensor *v = rn_op_has_matrices(op->kind) ? op->parts[k].bias : op->parts[k].weight;
            const struct rn_dtype_info *type = v ? rn_dtype_find(v->type) : NULL;
            if (v && to) {
                type->dequant(v->data, (float *)(void *)(to + at), v->cols / type->block_len);
            }
            at += v ? rn_vk_vector_bytes(v->cols) : 0;
        }
    }
    return at;
}

int rn_vk_vectors_load(struct rn_vk *vk, struct rn_err *err)
{
    size_t bytes = each_vector(vk->program, NULL);
    bytes = bytes ? bytes : sizeof(float);
    uint8_t *vectors = rn_mem_alloc64(bytes, 1);
    if (!vectors) {
        return rn_err_nomem(err, bytes, "norm weights");
    }
    (void)each_vector(vk->program, vectors);
    int r = rn_vk_buffer_create(&vk->vectors, vk->device, bytes, RN_VK_DEVICE, "norm weights", err);
    r = r < 0 ? r : rn_vk_upload(vk->device, &vk->vectors, 0, vectors, bytes, err);
    rn_mem_free(vectors);
    return r;
}

void rn_vk_weights_finish(struct rn_vk *vk)
{
    for (uint32_t i = 0; vk->arenas && i < vk->n_arenas; i++) {
        rn_vk_buffer_destroy(vk->device, &vk->arenas[i]);
    }
    rn_vk_buffer_destroy(vk->device, &vk->vectors);
    rn_mem_free(vk->arenas);
    rn_mem_free(vk->weights);
    vk->arenas = NULL;
    vk->weights = NULL;
    vk->n_weights = 0;
}
