#include "runtime/kv_internal.h"

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

/* Pages per slab. 8: a slab of the default model is 6 MiB, so huge pages waste little and a small session costs little. */
#define SLAB_PAGES 8

struct rn_kv_slab {
    struct rn_kv_slab *next;
    void *data;
    size_t bytes;
    uint32_t class_index;
    uint32_t n_used;
    struct rn_kv_page pages[SLAB_PAGES];
};

static uint32_t class_of(uint32_t group, bool window)
{
    return group * 2 + (window ? 1 : 0);
}

int rn_kv_pool_init(struct rn_kv_pool *pool, struct rn_backend *backend, uint32_t n_groups, uint64_t limit, struct rn_err *err)
{
    const struct rn_backend_ops *ops = rn_ops_of(backend);
    *pool = (struct rn_kv_pool){.n_groups = n_groups, .limit = limit};
    pool->classes = rn_mem_alloc(2 * (size_t)n_groups, sizeof *pool->classes);
    if (!pool->classes) {
        return rn_err_nomem(err, 2 * (size_t)n_groups * sizeof *pool->classes, "page classes");
    }
    for (uint32_t c = 0; c < 2 * n_groups; c++) {
        struct rn_kv_class *class = &pool->classes[c];
        class->group = c / 2;
        class->backend = ops->part ? ops->part(backend, c / 2, &class->group) : backend;
        class->page_bytes = rn_ops_of(class->backend)->page_bytes(class->backend, class->group, c % 2 == 0);
    }
    return 0;
}

static void slab_free(struct rn_kv_pool *pool, struct rn_kv_slab *slab)
{
    struct rn_backend *backend = pool->classes[slab->class_index].backend;
    rn_ops_of(backend)->page_free(backend, slab->data, slab->bytes);
    rn_mem_free(slab);
}

void rn_kv_pool_finish(struct rn_kv_pool *pool)
{
    while (pool->slabs) {
        struct rn_kv_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        slab_free(pool, slab);
    }
    rn_mem_free(pool->classes);
    *pool = (struct rn_kv_pool){0};
}

size_t rn_kv_page_bytes(const struct rn_kv_pool *pool, uint32_t group, bool window)
{
    return pool->classes[class_of(group, window)].page_bytes;
}

/* Adds a slab of free pages; false when the device has no memory. */
static bool add_slab(struct rn_kv_pool *pool, uint32_t class_index)
{
    struct rn_kv_class *class = &pool->classes[class_index];
    struct rn_kv_slab *slab = rn_mem_alloc(1, sizeof *slab);
    if (!slab) {
        return false;
    }
    slab->bytes = class->page_bytes * SLAB_PAGES;
    slab->data = rn_ops_of(class->backend)->page_alloc(class->backend, slab->bytes);
    if (!slab->data) {
        rn_mem_free(slab);
        return false;
    }
    slab->class_index = class_index;
    for (uint32_t i = SLAB_PAGES; i-- > 0;) {
        struct rn_kv_page *page = &slab->pages[i];
        *page = (struct rn_kv_page){.data = (char *)slab->data + i * class->page_bytes, .slab = slab, .next = class->free};
        class->free = page;
    }
    slab->next = pool->slabs;
    pool->slabs = slab;
    return true;
}

/* Gives slabs without a used page back to the device, so that one class's leftovers do not count against another's need. */
static void release_idle_slabs(struct rn_kv_pool *pool)
{
    for (uint32_t c = 0; c < 2 * pool->n_groups; c++) {
        struct rn_kv_page **link = &pool->classes[c].free;
        while (*link) {
            if ((*link)->slab->n_used == 0) {
                *link = (*link)->next;
            } else {
                link = &(*link)->next;
            }
        }
    }
    for (struct rn_kv_slab **link = &pool->slabs; *link;) {
        struct rn_kv_slab *slab = *link;
        if (slab->n_used == 0) {
            *link = slab->next;
            slab_free(pool, slab);
        } else {
            link = &slab->next;
        }
    }
}

static uint64_t slab_total(const struct rn_kv_pool *pool)
{
    uint64_t bytes = 0;
    for (const struct rn_kv_slab *slab = pool->slabs; slab; slab = slab->next) {
        bytes += slab->bytes;
    }
    return bytes;
}

struct rn_kv_page *rn_kv_page_take(struct rn_kv_pool *pool, uint32_t group, bool window)
{
    struct rn_kv_class *class = &pool->classes[class_of(group, window)];
    if (pool->used + class->page_bytes > pool->limit) {
        return NULL;
    }
    if (!class->free) {
        if (slab_total(pool) + class->page_bytes * SLAB_PAGES > pool->limit) {
            release_idle_slabs(pool);
        }
        if (!add_slab(pool, class_of(group, window))) {
            return NULL;
        }
    }
    struct rn_kv_page *page = class->free;
    class->free = page->next;
    page->next = NULL;
    page->refs = 1;
    page->slab->n_used++;
    pool->used += class->page_bytes;
    return page;
}

void rn_kv_page_share(struct rn_kv_page *page)
{
    page->refs++;
}

void rn_kv_page_copy(struct rn_kv_pool *pool, uint32_t group, bool window, void *dst, const void *src, uint32_t n_tokens)
{
    const struct rn_kv_class *class = &pool->classes[class_of(group, window)];
    rn_ops_of(class->backend)->page_copy(class->backend, class->group, !window, dst, src, n_tokens);
}

void rn_kv_page_drop(struct rn_kv_pool *pool, struct rn_kv_page *page)
{
    if (!page || --page->refs > 0) {
        return;
    }
    struct rn_kv_class *class = &pool->classes[page->slab->class_index];
    page->slab->n_used--;
    pool->used -= class->page_bytes;
    rn_ops_of(class->backend)->page_clear(class->backend, page->data, class->page_bytes);
    page->next = class->free;
    class->free = page;
}
