/* The engine: loads a model, keeps the backend, the KV pool and the text side together, and runs steps. See engine.h.
 *
 * A step of any size is run in passes of at most MAX_ROWS rows. A row's result does not depend on its neighbours, so the cut is free.
 * All memory of a pass is planned at load. */
#define _GNU_SOURCE
#include "runtime/engine.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/arch.h"
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/cpu/cpu.h"
#include "runtime/model/gguf.h"
#include "runtime/model/hparams.h"
#include "runtime/model/weights.h"
#include "runtime/rope.h"
#include "runtime/seq_internal.h"
#include "runtime/text.h"

/* Rows per pass. 256: 16 tiles of 16 tokens keep the many-row kernels busy; twice as many gained nothing on 576..2048 columns. */
#define MAX_ROWS 256
/* Raised whenever a change alters any bit of a result: part of the fingerprint and of a stored page's identity. */
#define NUMERICS_VERSION 1

struct rn_engine {
    struct rn_program *program;
    const struct rn_backend_ops *ops;
    struct rn_backend *backend;
    struct rn_text *text;
    struct rn_kv_pool pool;
    struct rn_engine_info info;
    char model_id[128], arch[32], fingerprint[128];
    float rope_base;
    struct rn_kernel_row *kernels;
    /* one pass */
    struct rn_step_row rows[MAX_ROWS];
    struct rn_step_view views[MAX_ROWS];
    struct rn_step_pages *pages; /* [MAX_ROWS][n_groups] */
    float *angles;               /* [MAX_ROWS][n_ropes][2][n_rot] */
    size_t angle_stride;
    uint32_t n_rows, n_views;
};

struct rn_kv_pool *rn_engine_pool(struct rn_engine *e)
{
    return &e->pool;
}

const struct rn_program *rn_engine_program(const struct rn_engine *e)
{
    return e->program;
}

float rn_engine_rope_base(const struct rn_engine *e)
{
    return e->rope_base;
}

const struct rn_engine_info *rn_engine_info(const struct rn_engine *e)
{
    return &e->info;
}

const struct rn_text *rn_engine_text(const struct rn_engine *e)
{
    return e->text;
}

void rn_engine_copy_page(struct rn_engine *e, uint32_t group, bool pinned, void *dst, const void *src, uint32_t n_tokens)
{
    e->ops->page_copy(e->backend, group, pinned, dst, src, n_tokens);
}

void rn_engine_measure(const struct rn_engine *e, double *ret_read_gb_per_s, double *ret_int8_tops)
{
    rn_cpu_measure(e->info.n_threads, 300, ret_read_gb_per_s, ret_int8_tops);
}

void rn_engine_profile(struct rn_engine *e, bool on)
{
    e->ops->profile(e->backend, on);
}

size_t rn_engine_costs(const struct rn_engine *e, struct rn_engine_cost ret[RN_ENGINE_COSTS])
{
    _Static_assert(RN_OP_COUNT <= RN_ENGINE_COSTS, "every kind fits");
    const struct rn_op_cost *costs = e->ops->costs(e->backend);
    size_t n = 0;
    for (int kind = 0; kind < RN_OP_COUNT; kind++) {
        if (costs[kind].ns > 0) {
            ret[n++] = (struct rn_engine_cost){rn_op_kind_name((enum rn_op_kind)kind), costs[kind].ns / 1e6, costs[kind].bytes, costs[kind].macs};
        }
    }
    return n;
}

/* ---- load ---------------------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum rn_kv_type type;
} kv_types[] = {{"f16", RN_KV_F16}, {"q8_0", RN_KV_Q8_0}};

static int find_kv(const char *name, enum rn_kv_type *ret, struct rn_err *err)
{
    for (size_t i = 0; i < sizeof kv_types / sizeof kv_types[0]; i++) {
        if (strcmp(kv_types[i].name, name) == 0) {
            *ret = kv_types[i].type;
            return 0;
        }
    }
    return rn_err_set(err, -EINVAL, "KV type is '%s', known are f16 and q8_0", name);
}

/* general.name, else the file's stem, as an id: lower case letters, digits, '.', '_' and '-'. */
static void make_id(char *ret, size_t size, const char *name)
{
    size_t n = 0;
    for (const char *c = name; *c && n + 1 < size; c++) {
        ret[n++] = isalnum((unsigned char)*c) || *c == '.' || *c == '_' ? (char)tolower((unsigned char)*c) : '-';
    }
    ret[n] = 0;
}

static uint64_t default_resident(void)
{
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t limit = (uint64_t)4 << 30;
    return ram / 4 < limit ? ram / 4 : limit;
}

static void count_weights(const struct rn_program *p, uint64_t *ret_params, double *ret_macs)
{
    *ret_params = 0;
    *ret_macs = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct rn_op *op = &p->ops[i];
        for (uint32_t k = 0; k < op->n_parts; k++) {
            const struct rn_tensor *w = op->parts[k].weight;
            uint64_t n = (uint64_t)w->cols * w->rows;
            bool tied = op->kind == RN_OP_LOGITS && w == p->ops[0].parts[0].weight;
            *ret_params += tied ? 0 : n;
            *ret_macs += op->kind == RN_OP_EMBED || op->kind == RN_OP_NORM ? 0 : (double)n;
        }
    }
}

static int fill_info(struct rn_engine *e, const struct rn_gguf *g, const struct rn_hparams *hp, const char *kv, uint32_t n_threads, struct rn_err *err)
{
    size_t n = 0;
    const struct rn_kernel_choice *choice = e->ops->kernels(e->backend, &n);
    e->kernels = rn_mem_alloc(n ? n : 1, sizeof *e->kernels);
    if (!e->kernels) {
        return rn_err_nomem(err, n * sizeof *e->kernels, "kernel names");
    }
    for (size_t i = 0; i < n; i++) {
        e->kernels[i] = (struct rn_kernel_row){choice[i].op, choice[i].row};
    }
    e->rope_base = hp->rope_base;
    make_id(e->model_id, sizeof e->model_id, hp->name);
    snprintf(e->arch, sizeof e->arch, "%s", hp->arch);
    uint64_t model = rn_weights_fingerprint(g);
    snprintf(e->fingerprint, sizeof e->fingerprint, "rn%d-%s-%s-%016llx", NUMERICS_VERSION, e->ops->name, kv, (unsigned long long)model);
    e->info = (struct rn_engine_info){
        .model_id = e->model_id, .arch = e->arch, .device = e->ops->device(e->backend), .fingerprint = e->fingerprint, .kv = kv,
        .n_vocab = hp->n_vocab, .n_ctx_train = hp->n_ctx_train, .n_layers = hp->n_layers, .n_threads = n_threads,
        .model_fingerprint = model, .tokenizer_fingerprint = rn_text_fingerprint(e->text), .weight_bytes = e->ops->weight_bytes(e->backend),
        .kernels = e->kernels, .n_kernels = n,
    };
    count_weights(e->program, &e->info.n_params, &e->info.macs_per_token);
    e->info.logits_macs = (double)hp->n_vocab * hp->d_model;
    e->info.attention_macs = 2.0 * hp->n_layers * hp->n_heads * hp->head_dim; // q·k and the sum of v
    return 0;
}

static int plan_pass(struct rn_engine *e, struct rn_err *err)
{
    const struct rn_program *p = e->program;
    for (uint32_t i = 0; i < p->n_ropes; i++) {
        e->angle_stride = p->ropes[i].n_rot > e->angle_stride ? p->ropes[i].n_rot : e->angle_stride;
    }
    size_t n_angles = MAX_ROWS * (size_t)p->n_ropes * 2 * e->angle_stride;
    e->angles = rn_mem_alloc64(n_angles, sizeof *e->angles);
    e->pages = rn_mem_alloc(MAX_ROWS * (size_t)p->n_groups, sizeof *e->pages);
    return e->angles && e->pages ? 0 : rn_err_nomem(err, n_angles * sizeof *e->angles, "a pass");
}

static int find_arch(const struct rn_arch **ret, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_gguf_str name = {"", 0};
    char quoted[64];
    int r = rn_gguf_get_str(g, "general.architecture", &name, err);
    if (r < 0) {
        return r;
    }
    snprintf(quoted, sizeof quoted, "%.*s", (int)(name.len < sizeof quoted ? name.len : sizeof quoted - 1), name.data);
    *ret = rn_arch_find(quoted);
    return *ret ? 0 : rn_err_set(err, -ENOTSUP, "general.architecture is '%s', known are %s", quoted, rn_arch_names());
}

static int load(struct rn_engine *e, const struct rn_gguf *g, const struct rn_engine_params *params, struct rn_err *err)
{
    struct rn_hparams hp;
    enum rn_kv_type kv = RN_KV_Q8_0;
    const char *kv_name = params->kv ? params->kv : "q8_0";
    int r = find_kv(kv_name, &kv, err);
    const struct rn_arch *arch = NULL;
    r = r < 0 ? r : find_arch(&arch, g, err); // before the rest: another family lacks keys that we would miss
    r = r < 0 ? r : rn_hparams_read(&hp, g, err);
    r = r < 0 ? r : arch->build(&e->program, g, &hp, err);
    r = r < 0 ? r : rn_text_create(&e->text, g, err);
    if (r < 0) {
        return r;
    }
    if (rn_text_n_vocab(e->text) > hp.n_vocab) {
        return rn_err_set(err, -EINVAL, "tokenizer.ggml.tokens has %u entries, token_embd.weight %u rows", rn_text_n_vocab(e->text), hp.n_vocab);
    }
    uint32_t n_threads = params->n_threads ? params->n_threads : rn_cpu_threads_default();
    struct rn_backend_params backend = {.n_threads = n_threads, .cpu_mask = params->cpu_mask, .kv = kv, .max_rows = MAX_ROWS,
                                        .poison = params->poison, .progress = params->progress, .user = params->user};
    e->ops = &rn_cpu_backend;
    r = e->ops->load(&e->backend, e->program, &backend, err);
    uint64_t limit = params->max_resident ? params->max_resident : default_resident();
    r = r < 0 ? r : rn_kv_pool_init(&e->pool, e->ops, e->backend, e->program->n_groups, limit, err);
    r = r < 0 ? r : plan_pass(e, err);
    return r < 0 ? r : fill_info(e, g, &hp, kv == RN_KV_F16 ? "f16" : "q8_0", n_threads, err);
}

int rn_engine_create(struct rn_engine **ret, const struct rn_engine_params *params, struct rn_err *err)
{
    struct rn_gguf *g;
    int r = rn_gguf_open(&g, params->model, err);
    if (r < 0) {
        return r;
    }
    struct rn_engine *e = rn_mem_alloc(1, sizeof *e);
    r = e ? load(e, g, params, err) : rn_err_nomem(err, sizeof *e, "engine");
    rn_gguf_close(g);
    if (r < 0) {
        rn_engine_destroy(e);
        return rn_err_prefix(err, "loading '%s'", params->model);
    }
    *ret = e;
    return 0;
}

void rn_engine_destroy(struct rn_engine *e)
{
    if (!e) {
        return;
    }
    rn_kv_pool_finish(&e->pool);
    if (e->backend) {
        e->ops->destroy(e->backend);
    }
    rn_program_destroy(e->program);
    rn_text_destroy(e->text);
    rn_mem_free(e->kernels);
    rn_mem_free(e->pages);
    rn_mem_free(e->angles);
    rn_mem_free(e);
}

/* ---- steps --------------------------------------------------------------------------------------------------------------------------- */

static int run_pass(struct rn_engine *e, struct rn_err *err)
{
    if (e->n_rows == 0) {
        return 0;
    }
    struct rn_step step = {.n_rows = e->n_rows, .rows = e->rows, .n_views = e->n_views, .views = e->views, .angles = e->angles,
                           .angle_stride = e->angle_stride};
    e->n_rows = 0;
    e->n_views = 0;
    return e->ops->step(e->backend, &step, err);
}

/* Angles of a row: zone 0 (pinned) at its slot, zone 1 (window) at its index. */
static void fill_angles(struct rn_engine *e, uint32_t row, const struct rn_seq *s, uint64_t t, uint64_t base)
{
    uint64_t slot = t < s->s ? t : t - (base - s->s);
    const struct rn_rope *ropes = s->ropes ? s->ropes : e->program->ropes;
    for (uint32_t i = 0; i < e->program->n_ropes; i++) {
        float *out = e->angles + ((size_t)row * e->program->n_ropes + i) * 2 * e->angle_stride;
        rn_rope_angles(&ropes[i], slot, out);
        rn_rope_angles(&ropes[i], t, out + e->angle_stride);
    }
}

static uint32_t add_view(struct rn_engine *e, const struct rn_seq *s)
{
    uint32_t v = e->n_views++;
    rn_seq_view(s, e->pages + (size_t)v * e->program->n_groups, &e->views[v]);
    return v;
}

/* Feeds one entry's tokens into passes. */
static int push_entry(struct rn_engine *e, const struct rn_step_entry *entry, struct rn_err *err)
{
    uint32_t next_turn = 0, view = 0;
    for (uint32_t i = 0; i < entry->n_ids; i++) {
        if (e->n_rows == MAX_ROWS || (i > 0 && rn_seq_at_gap(entry->seq))) { // the rows behind a gap need a view of their own
            int r = run_pass(e, err);
            if (r < 0) {
                return r;
            }
        }
        if (i == 0 || e->n_rows == 0) {
            view = add_view(e, entry->seq);
        }
        uint64_t t = entry->seq->head, base;
        while (next_turn < entry->n_turn_starts && entry->turn_starts[next_turn] < t) {
            next_turn++;
        }
        bool turn = next_turn < entry->n_turn_starts && entry->turn_starts[next_turn] == t;
        int r = rn_seq_push(entry->seq, turn, &base, err);
        if (r < 0) {
            return r;
        }
        uint32_t from_end = entry->n_ids - i;
        float *logits = from_end <= entry->n_logits ? entry->logits + (size_t)(entry->n_logits - from_end) * e->info.n_vocab : NULL;
        fill_angles(e, e->n_rows, entry->seq, t, base);
        e->rows[e->n_rows++] = (struct rn_step_row){.id = entry->ids[i], .view = view, .t = t, .base = base, .logits = logits};
    }
    return 0;
}

static int check_entries(const struct rn_engine *e, const struct rn_step_entry *entries, uint32_t n, struct rn_err *err)
{
    if (n > MAX_ROWS) {
        return rn_err_set(err, -E2BIG, "a step of %u sequences, at most %d fit", n, MAX_ROWS);
    }
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i < k; i++) {
            if (entries[i].seq == entries[k].seq) {
                return rn_err_set(err, -EINVAL, "entries %u and %u of a step are of the same sequence", i, k);
            }
        }
        for (uint32_t i = 0; i < entries[k].n_ids; i++) {
            if (entries[k].ids[i] >= e->info.n_vocab) {
                return rn_err_set(err, -EINVAL, "token id %u at position %u, the vocabulary has %u", entries[k].ids[i], i, e->info.n_vocab);
            }
        }
        if (entries[k].n_ids == 0 || entries[k].n_logits > entries[k].n_ids) {
            return rn_err_set(err, -EINVAL, "a step of %u tokens with logits for %u", entries[k].n_ids, entries[k].n_logits);
        }
    }
    return 0;
}

int rn_engine_step(struct rn_engine *e, struct rn_step_entry *entries, uint32_t n_entries, struct rn_err *err)
{
    int r = check_entries(e, entries, n_entries, err);
    for (uint32_t k = 0; k < n_entries && r == 0; k++) {
        r = rn_seq_make_room(entries[k].seq, entries[k].n_ids, err);
    }
    uint64_t moved = 0; // entries whose head may have moved, for the way back
    uint64_t heads[MAX_ROWS];
    for (uint32_t k = 0; k < n_entries && r == 0; k++) {
        heads[moved++] = entries[k].seq->head;
        r = push_entry(e, &entries[k], err);
    }
    r = r < 0 ? r : run_pass(e, err);
    if (r < 0) {
        e->n_rows = 0;
        e->n_views = 0;
        while (moved-- > 0) {
            rn_seq_unpush(entries[moved].seq, heads[moved]);
        }
    }
    return r;
}
