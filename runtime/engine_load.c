/* Bringing an engine up: the model's program, its backend, the pool of pages, what is told about it; and all of it again after a loss. */
#define _GNU_SOURCE
#include "runtime/engine_internal.h"

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
#include "runtime/split.h"
#include "runtime/text.h"

/* Raised whenever a change alters any bit of a result: part of the fingerprint and of a stored page's identity. */
#define NUMERICS_VERSION 1

static int find_kv(const char *name, enum rn_kv_type *ret, struct rn_err *err)
{
    for (int type = 0; type < RN_KV_COUNT; type++) {
        if (strcmp(rn_kv_name((enum rn_kv_type)type), name) == 0) {
            *ret = (enum rn_kv_type)type;
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

/* A GPU's results are those of its driver too. */
static void make_fingerprint(struct rn_engine *e, const char *kv, uint64_t model)
{
    char text[sizeof e->device_line + sizeof e->device.driver + 2], device[sizeof text] = "";
    if (e->ops != &rn_cpu_backend) {
        snprintf(text, sizeof text, "-%s-%s", e->device_line, e->device.driver);
        make_id(device, sizeof device, text);
    }
    snprintf(e->fingerprint, sizeof e->fingerprint, "rn%d-%s-%s-%016llx%s", NUMERICS_VERSION, e->ops->name, kv, (unsigned long long)model, device);
}

/* The backend's names go with it at a loss. */
static int copy_kernels(struct rn_engine *e, size_t *ret_n, struct rn_err *err)
{
    size_t n = 0, bytes = 1;
    const struct rn_kernel_choice *choice = e->ops->kernels(e->backend, &n);
    for (size_t i = 0; i < n; i++) {
        bytes += strlen(choice[i].op) + strlen(choice[i].row) + 2;
    }
    e->kernels = rn_mem_alloc(n, sizeof *e->kernels);
    e->kernel_names = rn_mem_alloc(bytes, 1);
    if (!e->kernels || !e->kernel_names) {
        return rn_err_nomem(err, n * sizeof *e->kernels + bytes, "kernel names");
    }
    char *at = e->kernel_names;
    for (size_t i = 0; i < n; i++) {
        e->kernels[i].op = strcpy(at, choice[i].op);
        at += strlen(at) + 1;
        e->kernels[i].row = strcpy(at, choice[i].row);
        at += strlen(at) + 1;
    }
    *ret_n = n;
    return 0;
}

static int fill_info(struct rn_engine *e, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    const char *kv = rn_kv_name(e->kv);
    size_t n = 0;
    int r = copy_kernels(e, &n, err);
    if (r < 0) {
        return r;
    }
    e->rope_base = hp->rope_base;
    make_id(e->model_id, sizeof e->model_id, hp->name);
    snprintf(e->arch, sizeof e->arch, "%s", hp->arch);
    uint64_t model = rn_weights_fingerprint(g);
    snprintf(e->device_line, sizeof e->device_line, "%s", e->ops->device(e->backend));
    make_fingerprint(e, kv, model);
    e->info = (struct rn_engine_info){
        .model_id = e->model_id, .arch = e->arch, .device = e->device_line, .note = e->device.note, .on_cpu = e->ops == &rn_cpu_backend, .fingerprint = e->fingerprint, .kv = kv,
        .n_vocab = hp->n_vocab, .n_ctx_train = hp->n_ctx_train, .n_layers = hp->n_layers, .n_threads = e->n_threads,
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
    size_t n_angles = RN_MAX_ROWS * (size_t)p->n_ropes * 2 * e->angle_stride;
    e->angles = rn_mem_alloc64(n_angles, sizeof *e->angles);
    e->pages = rn_mem_alloc(RN_MAX_ROWS * (size_t)p->n_groups, sizeof *e->pages);
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

static int read_program(struct rn_program **ret, struct rn_hparams *hp, const struct rn_gguf *g, struct rn_err *err)
{
    const struct rn_arch *arch = NULL;
    int r = find_arch(&arch, g, err); // before the rest: another family lacks keys that we would miss
    r = r < 0 ? r : rn_hparams_read(hp, g, err);
    return r < 0 ? r : arch->build(ret, g, hp, err);
}

int rn_engine_load_backend(struct rn_engine *e, struct rn_err *err)
{
    const struct rn_engine_params *p = &e->params;
    struct rn_backend_params params = {.n_threads = e->n_threads, .cpu_mask = p->cpu_mask, .gpu = e->device.index, .gpu_mask = p->gpu_mask,
                                       .cache_dir = p->cache_dir, .submit_budget_ms = p->submit_budget_ms, .kv = e->kv, .max_rows = RN_MAX_ROWS,
                                       .poison = p->poison, .progress = p->progress, .user = p->user};
    if (!e->n_first) {
        e->ops = e->device.ops;
        return e->ops->load(&e->backend, e->program, &params, err);
    }
    e->ops = &rn_split_backend;
    struct rn_split_params split = {.first = &rn_cpu_backend, .last = e->device.ops, .n_first = e->n_first};
    int r = rn_split_groups(e->program, e->n_first, err);
    return r < 0 ? r : rn_split_load(&e->backend, e->program, &split, &params, err);
}

static int make_pool(struct rn_engine *e, struct rn_err *err)
{
    uint64_t limit = e->params.max_resident ? e->params.max_resident : default_resident();
    uint64_t budget = e->ops->page_budget ? e->ops->page_budget(e->backend) : UINT64_MAX;
    return rn_kv_pool_init(&e->pool, e->backend, e->program->n_groups, limit < budget ? limit : budget, err);
}

/* Everything behind the backend. */
static int furnish(struct rn_engine *e, const struct rn_gguf *g, const struct rn_hparams *hp, struct rn_err *err)
{
    int r = make_pool(e, err);
    r = r < 0 ? r : plan_pass(e, err);
    return r < 0 ? r : fill_info(e, g, hp, err);
}

static void drop_backend(struct rn_engine *e)
{
    rn_kv_pool_finish(&e->pool);
    if (e->backend) {
        e->ops->destroy(e->backend);
        e->backend = NULL;
    }
}

static void drop_furniture(struct rn_engine *e)
{
    drop_backend(e);
    rn_mem_free(e->kernels);
    rn_mem_free(e->kernel_names);
    rn_mem_free(e->pages);
    rn_mem_free(e->angles);
    e->kernels = NULL;
    e->kernel_names = NULL;
    e->pages = NULL;
    e->angles = NULL;
}

static int load(struct rn_engine *e, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_hparams hp;
    int r = find_kv(e->params.kv ? e->params.kv : "q8_0", &e->kv, err);
    r = r < 0 ? r : rn_device_parse(e->params.device, err);
    r = r < 0 ? r : read_program(&e->program, &hp, g, err);
    r = r < 0 ? r : rn_text_create(&e->text, g, err);
    if (r < 0) {
        return r;
    }
    if (rn_text_n_vocab(e->text) > hp.n_vocab) {
        return rn_err_set(err, -EINVAL, "tokenizer.ggml.tokens has %u entries, token_embd.weight %u rows", rn_text_n_vocab(e->text), hp.n_vocab);
    }
    e->n_threads = e->params.n_threads ? e->params.n_threads : rn_cpu_threads_default();
    r = e->device.ops ? rn_engine_load_backend(e, err) : rn_engine_choose(e, hp.n_ctx_train, err);
    r = r < 0 ? r : furnish(e, g, &hp, err);
    if (r == 0 && rn_engine_prefers_cpu(e)) {
        drop_furniture(e);
        r = rn_engine_load_backend(e, err);
        r = r < 0 ? r : furnish(e, g, &hp, err);
    }
    return r;
}

/* The texts that a rebuild needs, as copies of our own. */
static int keep_params(struct rn_engine *e, const struct rn_engine_params *params, struct rn_err *err)
{
    e->params = *params;
    const char **texts[] = {&e->params.model, &e->params.cpu_mask, &e->params.device, &e->params.gpu_mask, &e->params.gpu_layers,
                            &e->params.cache_dir, &e->params.kv};
    bool ok = true;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const char *text = *texts[i];
        *texts[i] = text ? rn_mem_strdup(text) : NULL;
        ok = ok && (!text || *texts[i]);
    }
    return ok ? 0 : rn_err_nomem(err, sizeof *e, "engine");
}

static void drop_params(struct rn_engine *e)
{
    const char *texts[] = {e->params.model, e->params.cpu_mask, e->params.device, e->params.gpu_mask, e->params.gpu_layers,
                           e->params.cache_dir, e->params.kv};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        rn_mem_free((void *)(uintptr_t)texts[i]);
    }
}

static int create(struct rn_engine **ret, const struct rn_engine_params *params, uint32_t n_first, const struct rn_backend_ops *last,
                  struct rn_err *err)
{
    struct rn_gguf *g;
    int r = rn_gguf_open(&g, params->model, err);
    if (r < 0) {
        return r;
    }
    struct rn_engine *e = rn_mem_alloc(1, sizeof *e);
    r = e ? keep_params(e, params, err) : rn_err_nomem(err, sizeof *e, "engine");
    if (r == 0) {
        e->n_first = n_first;
        e->device.ops = last;
        r = load(e, g, err);
    }
    rn_gguf_close(g);
    if (r < 0) {
        rn_engine_destroy(e);
        return rn_err_prefix(err, "loading '%s'", params->model);
    }
    *ret = e;
    return 0;
}

int rn_engine_create(struct rn_engine **ret, const struct rn_engine_params *params, struct rn_err *err)
{
    return create(ret, params, 0, NULL, err);
}

int rn_engine_create_split(struct rn_engine **ret, const struct rn_engine_params *params, uint32_t n_first, const struct rn_backend_ops *last,
                           struct rn_err *err)
{
    return create(ret, params, n_first, last, err);
}

void rn_engine_destroy(struct rn_engine *e)
{
    if (!e) {
        return;
    }
    drop_furniture(e);
    rn_program_destroy(e->program);
    rn_text_destroy(e->text);
    drop_params(e);
    rn_mem_free(e);
}

/* ---- after a loss --------------------------------------------------------------------------------------------------------------------- */

/* The results after a rebuild must be those of before: same weights, device and kernels. (A driver is not replaced under a running process.) */
static int check_same(const struct rn_engine *e, const struct rn_gguf *g, struct rn_err *err)
{
    size_t n = 0;
    const struct rn_kernel_choice *choice = e->ops->kernels(e->backend, &n);
    bool same = n == e->info.n_kernels && strcmp(e->ops->device(e->backend), e->device_line) == 0;
    for (size_t i = 0; i < n && same; i++) {
        same = strcmp(choice[i].op, e->kernels[i].op) == 0 && strcmp(choice[i].row, e->kernels[i].row) == 0;
    }
    if (!same) {
        return rn_err_set(err, -ESTALE, "the device or the kernels that pass its test are not those of before: restart");
    }
    return rn_weights_fingerprint(g) == e->info.model_fingerprint ? 0 : rn_err_set(err, -ESTALE, "the file's contents have changed: restart");
}

static int bring_up(struct rn_engine *e, const struct rn_gguf *g, struct rn_err *err)
{
    struct rn_hparams hp;
    struct rn_program *program = NULL;
    int r = read_program(&program, &hp, g, err); // the old one's tensors went with the file
    if (r < 0) {
        return r;
    }
    rn_program_destroy(e->program);
    e->program = program;
    r = rn_engine_load_backend(e, err);
    r = r < 0 ? r : make_pool(e, err);
    return r < 0 ? r : check_same(e, g, err);
}

int rn_engine_rebuild(struct rn_engine *e, struct rn_err *err)
{
    struct rn_gguf *g;
    e->down = true;
    drop_backend(e);
    int r = rn_gguf_open(&g, e->params.model, err);
    if (r == 0) {
        r = bring_up(e, g, err);
        rn_gguf_close(g);
    }
    if (r < 0) {
        drop_backend(e);
        return rn_err_prefix(err, "loading '%s' again", e->params.model);
    }
    e->down = false;
    return 0;
}
