/* Pre-tokenizers at work: compiles a row's expressions and cuts text with them. The rows are in pretok_rows.c. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "runtime/text/pretok.h"

#include <pcre2.h>
#include <stdint.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/text/unicode.h"

struct rn_pretok {
    pcre2_general_context *general;
    pcre2_code *passes[RN_PRETOK_MAX_PASSES];
    unsigned n_passes;
    const char *name;
};

struct rn_pretok_run {
    const struct rn_pretok *pretok;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    // Of the split in progress:
    rn_pretok_fn fn;
    void *user;
    struct rn_err *err;
};

static void *pcre_alloc(PCRE2_SIZE bytes, void *user)
{
    (void)user;
    return rn_mem_alloc(bytes, 1);
}

static void pcre_free(void *p, void *user)
{
    (void)user;
    rn_mem_free(p);
}

static int compile_pass(struct rn_pretok *p, pcre2_compile_context *context, const char *pattern, bool bytes, struct rn_err *err)
{
    uint32_t options = PCRE2_NO_AUTO_CAPTURE | (bytes ? 0 : PCRE2_UTF | PCRE2_UCP);
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &at, context);
    if (re == NULL && code == PCRE2_ERROR_HEAP_FAILED) {
        return rn_err_nomem(err, strlen(pattern), "a pre-tokenizer's pattern");
    }
    if (re == NULL) {
        char text[120];
        (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof(text)); // a cut message is good enough
        return rn_err_set(err, -EINVAL, "pre-tokenizer '%s': pattern offset %zu: %s", p->name, (size_t)at, text);
    }
    // Without leave to make code executable, or without memory for it, the interpreter gives the same matches.
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
    p->passes[p->n_passes++] = re;
    return 0;
}

int rn_pretok_create(struct rn_pretok **ret, const struct rn_pretok_row *row, struct rn_err *err)
{
    struct rn_pretok *p = rn_mem_alloc(1, sizeof(*p));
    if (p == NULL) {
        return rn_err_nomem(err, sizeof(*p), "a pre-tokenizer");
    }
    p->name = row->names[0];
    p->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *context = p->general == NULL ? NULL : pcre2_compile_context_create(p->general);
    int r = context == NULL ? rn_err_nomem(err, sizeof(*p), "a pre-tokenizer") : 0;
    for (unsigned i = 0; r == 0 && i < RN_PRETOK_MAX_PASSES && row->passes[i] != NULL; i++) {
        r = compile_pass(p, context, row->passes[i], row->byte_pass > 0 && i >= row->byte_pass, err);
    }
    pcre2_compile_context_free(context);
    if (r < 0) {
        rn_pretok_destroy(p);
        return r;
    }
    *ret = p;
    return 0;
}

void rn_pretok_destroy(struct rn_pretok *p)
{
    if (p == NULL) {
        return;
    }
    for (unsigned i = 0; i < p->n_passes; i++) {
        pcre2_code_free(p->passes[i]);
    }
    pcre2_general_context_free(p->general);
    rn_mem_free(p);
}

int rn_pretok_run_create(struct rn_pretok_run **ret, const struct rn_pretok *p, struct rn_err *err)
{
    struct rn_pretok_run *run = rn_mem_alloc(1, sizeof(*run));
    if (run != NULL) {
        run->pretok = p;
        run->match = pcre2_match_data_create(1, p->general);
        run->limits = pcre2_match_context_create(p->general);
    }
    if (run == NULL || run->match == NULL || run->limits == NULL) {
        rn_pretok_run_destroy(run);
        return rn_err_nomem(err, sizeof(*run), "a pre-tokenizer's run");
    }
    *ret = run;
    return 0;
}

void rn_pretok_run_destroy(struct rn_pretok_run *run)
{
    if (run == NULL) {
        return;
    }
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->limits);
    rn_mem_free(run);
}

/* What went wrong in a match; rc is PCRE2's negative answer. */
static int match_error(const struct rn_pretok_run *run, int rc, size_t at)
{
    if (rc == PCRE2_ERROR_NOMEMORY) {
        return rn_err_nomem(run->err, 0, "a pre-tokenizer's match");
    }
    bool is_limit =
        rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT || rc == PCRE2_ERROR_JIT_STACKLIMIT;
    return rn_err_set(run->err, is_limit ? -E2BIG : -EINVAL, "pre-tokenizer '%s' %s at byte %zu of a text (PCRE2 code %d)",
                      run->pretok->name, is_limit ? "went over its limit" : "failed", at, rc);
}

/* Cuts bytes [from, to) of `subject` by the given pass and those after it. Recursion is as deep as there are passes. */
static int split_pass(struct rn_pretok_run *run, const char *subject, unsigned pass, size_t from, size_t to)
{
    if (from == to) {
        return 0;
    }
    if (pass == run->pretok->n_passes) {
        return run->fn(run->user, from, to - from);
    }
    int r = 0;
    for (size_t at = from; r == 0 && at < to;) {
        // The piece is the whole subject: what a pattern looks ahead at ends where the piece ends.
        int rc = pcre2_match(run->pretok->passes[pass], (PCRE2_SPTR)(subject + from), to - from, at - from,
                             PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, run->match, run->limits);
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
            return match_error(run, rc, at);
        }
        size_t begin = to;
        size_t end = to;
        if (rc != PCRE2_ERROR_NOMATCH) {
            const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(run->match);
            begin = from + ends[0];
            end = from + ends[1];
        }
        r = split_pass(run, subject, pass + 1, at, begin);
        if (r == 0) {
            r = split_pass(run, subject, pass + 1, begin, end);
        }
        at = end;
    }
    return r;
}

/* A copy in which each byte that is not part of a character is U+0001: one byte too, so that offsets stay. NULL: no memory. */
static char *repaired_copy(const char *text, size_t len)
{
    char *copy = rn_mem_alloc(len, 1);
    for (size_t at = 0; copy != NULL && at < len;) {
        size_t n = rn_unicode_valid_len(text + at, len - at);
        memcpy(copy + at, text + at, n);
        at += n;
        if (at < len) {
            copy[at++] = 1;
        }
    }
    return copy;
}

int rn_pretok_split(struct rn_pretok_run *run, const char *text, size_t len, rn_pretok_fn fn, void *user, struct rn_err *err)
{
    run->fn = fn;
    run->user = user;
    run->err = err;
    // The rows' patterns give back at most each character of a run once or twice per match; the limits leave room for eight times.
    uint32_t limit = len > (UINT32_MAX - 10000) / 8 ? UINT32_MAX : (uint32_t)len * 8 + 10000;
    pcre2_set_match_limit(run->limits, limit);
    pcre2_set_depth_limit(run->limits, 1000);
    pcre2_set_heap_limit(run->limits, 16 * 1024); // KiB
    if (rn_unicode_valid_len(text, len) == len) {
        return split_pass(run, text, 0, 0, len);
    }
    char *copy = repaired_copy(text, len);
    if (copy == NULL) {
        return rn_err_nomem(err, len, "a text that is not UTF-8");
    }
    int r = split_pass(run, copy, 0, 0, len);
    rn_mem_free(copy);
    return r;
}
