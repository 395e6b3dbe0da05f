/* KV pages and their pool: who owns which bytes. Private to runtime/.
 *
 * A page holds RN_PAGE_TOKENS tokens of one layer group, in one of two streams (pinned or window). Pages are shared by reference
 * count; one with a second reference is never written. The pool keeps device memory in slabs of one class (group and stream) and hands
 * out pages from them; bytes in use never exceed the limit, and what sequences have reserved never exceeds it either.
 * owner: engine thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/tensor/backend.h"

struct rn_err;
struct rn_kv_slab;

struct rn_kv_page {
    void *data;              /* device memory */
    uint32_t refs;
    struct rn_kv_slab *slab;
    struct rn_kv_page *next; /* in its class's free list */
};

struct rn_kv_class {         /* one per (group, stream) */
    size_t page_bytes;
    struct rn_kv_page *free;
    struct rn_backend *backend; /* borrowed: who has these pages */
    uint32_t group;             /* there */
};

struct rn_kv_pool {
    uint32_t n_groups;
    struct rn_kv_class *classes;     /* [n_groups][2], stream 1 = window */
    struct rn_kv_slab *slabs;        /* all, newest first */
    uint64_t limit, used, reserved;  /* bytes: of the pool, of pages handed out, promised to sequences */
};

int rn_kv_pool_init(struct rn_kv_pool *pool, struct rn_backend *backend, uint32_t n_groups, uint64_t limit, struct rn_err *err);
void rn_kv_pool_finish(struct rn_kv_pool *pool);

/* A page with one reference, or NULL: no memory within the limit. */
struct rn_kv_page *rn_kv_page_take(struct rn_kv_pool *pool, uint32_t group, bool window);
void rn_kv_page_share(struct rn_kv_page *page);
/* Copies the first n_tokens tokens of a page into another of the same kind. */
void rn_kv_page_copy(struct rn_kv_pool *pool, uint32_t group, bool window, void *dst, const void *src, uint32_t n_tokens);
/* NULL is fine. The last reference gives the page back to the pool. */
void rn_kv_page_drop(struct rn_kv_pool *pool, struct rn_kv_page *page);

size_t rn_kv_page_bytes(const struct rn_kv_pool *pool, uint32_t group, bool window);
