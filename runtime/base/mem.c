#define _GNU_SOURCE
#include "runtime/base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static atomic_uint_fast64_t n_allocs;
static atomic_uint_fast64_t fail_at;

/* Counts an allocation; true when a test wants this one to fail. */
static bool must_fail(void)
{
    uint64_t n = atomic_fetch_add_explicit(&n_allocs, 1, memory_order_relaxed) + 1;
    return n == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

void rn_mem_fail_at(uint64_t n)
{
    atomic_store(&n_allocs, 0);
    atomic_store(&fail_at, n);
}

uint64_t rn_mem_count(void)
{
    return atomic_load(&n_allocs);
}

bool rn_mem_array(size_t n, size_t size, size_t *ret_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) {
        return false;
    }
    *ret_bytes = bytes;
    return true;
}

void *rn_mem_alloc(size_t n, size_t size)
{
    size_t bytes;
    if (!rn_mem_array(n, size, &bytes) || must_fail()) {
        return NULL;
    }
    return calloc(bytes ? bytes : 1, 1);
}

void *rn_mem_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!rn_mem_array(n, size, &bytes) || must_fail()) {
        return NULL;
    }
    return realloc(p, bytes ? bytes : 1);
}

void *rn_mem_alloc64(size_t n, size_t size)
{
    size_t bytes;
    if (!rn_mem_array(n, size, &bytes) || bytes > SIZE_MAX - 64 || must_fail()) {
        return NULL;
    }
    bytes = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes ? bytes : 64);
    if (p) {
        memset(p, 0, bytes);
    }
    return p;
}

void rn_mem_free(void *p)
{
    free(p);
}

char *rn_mem_strndup(const char *s, size_t len)
{
    char *copy = len < SIZE_MAX ? rn_mem_alloc(len + 1, 1) : NULL;
    if (copy) {
        memcpy(copy, s, len);
    }
    return copy;
}

char *rn_mem_strdup(const char *s)
{
    return rn_mem_strndup(s, strlen(s));
}

/* What is mapped for a region: whole huge pages when it is larger than one, else whole small pages. */
static size_t region_bytes(size_t bytes)
{
    size_t unit = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
    return (bytes + unit - 1) / unit * unit;
}

void *rn_mem_region_alloc(size_t bytes)
{
    if (bytes == 0 || bytes > SIZE_MAX / 2 || must_fail()) {
        return NULL;
    }
    size_t want = region_bytes(bytes);
    size_t slack = want >= HUGE_PAGE ? HUGE_PAGE : 0;  // room to align by hand; cut off again below
    char *map = mmap(NULL, want + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    if (!slack) {
        return map;
    }
    size_t head = (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
    if (head) {
        munmap(map, head);
    }
    if (slack - head) {
        munmap(map + head + want, slack - head);
    }
    (void)madvise(map + head, want, MADV_HUGEPAGE);  // a wish: small pages work too, 15-20 % slower
    return map + head;
}

void rn_mem_region_free(void *p, size_t bytes)
{
    if (p) {
        munmap(p, region_bytes(bytes));
    }
}

void rn_buf_finish(struct rn_buf *b)
{
    rn_mem_free(b->data);
    *b = (struct rn_buf){0};
}

void rn_buf_clear(struct rn_buf *b)
{
    b->len = 0;
    if (b->data) {
        b->data[0] = 0;
    }
}

int rn_buf_reserve(struct rn_buf *b, size_t extra)
{
    if (extra >= SIZE_MAX / 2 - b->len) {
        return -ENOMEM;
    }
    size_t need = b->len + extra + 1;
    if (need <= b->cap) {
        return 0;
    }
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) {
        cap *= 2;
    }
    char *data = rn_mem_realloc(b->data, cap, 1);
    if (!data) {
        return -ENOMEM;
    }
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return 0;
}

int rn_buf_add(struct rn_buf *b, const void *data, size_t len)
{
    if (rn_buf_reserve(b, len) < 0) {
        return -ENOMEM;
    }
    if (len) {
        memcpy(b->data + b->len, data, len);
    }
    b->len += len;
    b->data[b->len] = 0;
    return 0;
}

int rn_buf_add_str(struct rn_buf *b, const char *s)
{
    return rn_buf_add(b, s, strlen(s));
}

int rn_buf_add_char(struct rn_buf *b, char c)
{
    return rn_buf_add(b, &c, 1);
}

int rn_buf_printf(struct rn_buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    int r = n < 0 ? -EINVAL : rn_buf_reserve(b, (size_t)n);
    if (r == 0) {
        vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return r;
}

void rn_ids_finish(struct rn_ids *ids)
{
    rn_mem_free(ids->data);
    *ids = (struct rn_ids){0};
}

int rn_ids_append(struct rn_ids *ids, const uint32_t *data, size_t len)
{
    if (len > SIZE_MAX / 8 - ids->len) {
        return -ENOMEM;
    }
    size_t need = ids->len + len;
    if (need > ids->cap) {
        size_t cap = ids->cap ? ids->cap : 32;
        while (cap < need) {
            cap *= 2;
        }
        uint32_t *grown = rn_mem_realloc(ids->data, cap, sizeof *grown);
        if (!grown) {
            return -ENOMEM;
        }
        ids->data = grown;
        ids->cap = cap;
    }
    if (len) {
        memcpy(ids->data + ids->len, data, len * sizeof *data);
    }
    ids->len = need;
    return 0;
}

int rn_ids_add(struct rn_ids *ids, uint32_t id)
{
    return rn_ids_append(ids, &id, 1);
}
