/* Memory: checked sizes, a growable buffer, huge-page regions, and a way to fail the Nth allocation in tests.
 *
 * Every allocation of runtime/, session/ and daemon/ goes through rn_mem_alloc and friends, so that a test can fail each of them
 * in turn (rn_mem_fail_at). Nothing here logs or exits: NULL means out of memory. Thread: any. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* n * size; returns false on overflow and leaves *ret_bytes alone. */
bool rn_mem_array(size_t n, size_t size, size_t *ret_bytes);

/* Zeroed memory for n elements of `size` bytes (at least one byte); NULL on overflow or no memory. Free with rn_mem_free. */
void *rn_mem_alloc(size_t n, size_t size);

/* Grows or shrinks; new bytes are not zeroed; the old block stays valid when NULL is returned. */
void *rn_mem_realloc(void *p, size_t n, size_t size);

/* Zeroed memory aligned to 64 bytes. Free with rn_mem_free. */
void *rn_mem_alloc64(size_t n, size_t size);

/* NULL is fine. */
void rn_mem_free(void *p);

/* Copy of len bytes plus a NUL; NULL on no memory. */
char *rn_mem_strndup(const char *s, size_t len);
char *rn_mem_strdup(const char *s);

/* Makes the n-th allocation from now on (1 = the next) fail, once; 0 = never. Tests only; per process. */
void rn_mem_fail_at(uint64_t n);
/* Allocations since rn_mem_fail_at was last called. */
uint64_t rn_mem_count(void);

/* A region of zeroed anonymous memory, aligned to 2 MiB when it is larger, with huge pages asked for (madvise).
 * bytes > 0. Returns NULL on failure. Release with rn_mem_region_free and the same size. */
void *rn_mem_region_alloc(size_t bytes);
void rn_mem_region_free(void *p, size_t bytes);

/* Growable byte buffer; zero is the empty buffer. data is NUL-terminated (the NUL is not counted) unless it is NULL. */
struct rn_buf {
    char *data;
    size_t len;
    size_t cap;
};

void rn_buf_finish(struct rn_buf *b);                            /* frees; leaves the empty buffer */
void rn_buf_clear(struct rn_buf *b);                             /* len = 0, keeps the memory */
int rn_buf_reserve(struct rn_buf *b, size_t extra);              /* 0 or -ENOMEM */
int rn_buf_add(struct rn_buf *b, const void *data, size_t len);  /* 0 or -ENOMEM */
int rn_buf_add_str(struct rn_buf *b, const char *s);
int rn_buf_add_char(struct rn_buf *b, char c);
int rn_buf_printf(struct rn_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Growable list of token ids; zero is the empty list. */
struct rn_ids {
    uint32_t *data;
    size_t len;
    size_t cap;
};

void rn_ids_finish(struct rn_ids *ids);
int rn_ids_add(struct rn_ids *ids, uint32_t id);                          /* 0 or -ENOMEM */
int rn_ids_append(struct rn_ids *ids, const uint32_t *data, size_t len);  /* 0 or -ENOMEM */
