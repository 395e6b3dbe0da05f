/* One parsing or rendering of a template: its memory, how its errors are said, and the work and depth that it may take. */
#include "runtime/text/jinja_value.h"

#include <stdarg.h>
#include <stdio.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

#define CHUNK_BYTES ((size_t)16 << 10)
#define CHUNK_MAX_BYTES ((size_t)4 << 20)

struct rn_jinja_chunk {
    struct rn_jinja_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

void rn_jinja_arena_finish(struct rn_jinja_arena *a)
{
    while (a->head) {
        struct rn_jinja_chunk *next = a->head->next;
        rn_mem_free(a->head);
        a->head = next;
    }
    a->used = 0;
}

void *rn_jinja_arena_alloc(struct rn_jinja_arena *a, size_t n, size_t size)
{
    size_t bytes;
    if (!rn_mem_array(n, size, &bytes) || bytes > a->limit - a->used) {
        return NULL;
    }
    bytes = (bytes + 15) & ~(size_t)15;
    struct rn_jinja_chunk *c = a->head;
    if (!c || c->cap - c->used < bytes) {
        /* Chunks grow with the arena, so that a small rendering is one small allocation and a large one few. */
        size_t cap = a->used < CHUNK_BYTES ? CHUNK_BYTES : a->used < CHUNK_MAX_BYTES ? a->used : CHUNK_MAX_BYTES;
        cap = bytes > cap ? bytes : cap;
        c = rn_mem_alloc(sizeof(*c) + cap, 1);
        if (!c) {
            return NULL;
        }
        c->cap = cap;
        c->next = a->head;
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += bytes;
    a->used = bytes > a->limit - a->used ? a->limit : a->used + bytes;
    return p;
}

/* Line and column (in characters) of an offset, both from 1. */
static void position(const struct rn_jinja_run *run, size_t *ret_line, size_t *ret_column)
{
    *ret_line = 1;
    *ret_column = 1;
    for (size_t i = 0; i < run->at && i < run->source_len; i++) {
        if (run->source[i] == '\n') {
            (*ret_line)++;
            *ret_column = 1;
        } else if (((unsigned char)run->source[i] & 0xc0) != 0x80) {
            (*ret_column)++;
        }
    }
}

int rn_jinja_fail(struct rn_jinja_run *run, int code, const char *format, ...)
{
    if (!run->err) {
        return code;
    }
    char text[RN_ERR_TEXT];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    size_t line, column;
    position(run, &line, &column);
    return rn_err_set(run->err, code, "line %zu, column %zu: %s", line, column, text);
}

void *rn_jinja_alloc(struct rn_jinja_run *run, size_t n, size_t size)
{
    void *p = rn_jinja_arena_alloc(&run->arena, n, size);
    if (!p) {
        size_t bytes;
        if (!rn_mem_array(n, size, &bytes) || bytes > run->arena.limit - run->arena.used) {
            run->arena.used = run->arena.limit; /* so that rn_jinja_alloc_code knows which of the two it was */
            rn_jinja_fail(run, -E2BIG, "the template needs more than %zu MiB of memory", run->arena.limit >> 20);
        } else {
            rn_err_nomem(run->err, bytes, "a chat template");
        }
    }
    return p;
}

int rn_jinja_alloc_code(const struct rn_jinja_run *run)
{
    return run->arena.used >= run->arena.limit ? -E2BIG : -ENOMEM;
}

int rn_jinja_step(struct rn_jinja_run *run, uint64_t n)
{
    run->steps += n;
    if (run->steps > RN_JINJA_MAX_STEPS) {
        return rn_jinja_fail(run, -E2BIG, "the template takes more than %llu steps", (unsigned long long)RN_JINJA_MAX_STEPS);
    }
    return 0;
}

int rn_jinja_enter(struct rn_jinja_run *run)
{
    if (run->depth >= RN_JINJA_MAX_EVAL_DEPTH) {
        return rn_jinja_fail(run, -E2BIG, "nested more than %d levels deep", RN_JINJA_MAX_EVAL_DEPTH);
    }
    run->depth++;
    return rn_jinja_step(run, 1);
}

void rn_jinja_leave(struct rn_jinja_run *run)
{
    run->depth--;
}
