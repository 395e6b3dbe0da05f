/* Text under construction, each byte with its mark of origin (I3 in the header). */
#include "runtime/text/jinja_value.h"

#include <errno.h>
#include <string.h>

#include "runtime/text/template.h"

#define APPEND_FROM 256 /* bytes; shorter texts are cheaper to copy */

static int sink_reserve(struct rn_jinja_run *run, struct rn_jinja_sink *k, size_t extra)
{
    if (extra <= k->cap - k->len) {
        return 0;
    }
    if (extra > RN_TEMPLATE_MAX_OUTPUT - k->len) {
        return rn_jinja_fail(run, -E2BIG, "a text of more than %u MiB", RN_TEMPLATE_MAX_OUTPUT >> 20);
    }
    size_t cap = k->cap ? k->cap * 2 : 64;
    cap = cap < k->len + extra ? k->len + extra : cap;
    char *data = rn_jinja_alloc(run, cap, 2);
    if (!data) {
        return rn_jinja_alloc_code(run);
    }
    if (k->len) {
        memcpy(data, k->data, k->len);
        memcpy(data + cap, k->mask, k->len);
    }
    k->data = data;
    k->mask = data + cap;
    k->cap = cap;
    return 0;
}

int rn_jinja_put(struct rn_jinja_run *run, struct rn_jinja_sink *k, const char *data, size_t len, bool own)
{
    int r = sink_reserve(run, k, len);
    if (r < 0 || len == 0) {
        return r;
    }
    memcpy(k->data + k->len, data, len);
    memset(k->mask + k->len, own, len);
    k->len += len;
    return rn_jinja_step(run, len / 64);
}

int rn_jinja_put_str(struct rn_jinja_run *run, struct rn_jinja_sink *k, const char *s, bool own)
{
    return rn_jinja_put(run, k, s, strlen(s), own);
}

int rn_jinja_put_value(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *s)
{
    size_t at = k->len;
    int r = rn_jinja_put(run, k, s->u.s.data, s->u.s.len, s->own == RN_JINJA_OWN);
    if (r == 0 && s->own == RN_JINJA_MIXED && s->u.s.len) {
        memcpy(k->mask + at, s->u.s.mask, s->u.s.len);
    }
    return r;
}

/* The sink that a can be continued in: its own, or a new one with a copy. NULL: failed. */
static struct rn_jinja_sink *sink_behind(struct rn_jinja_run *run, const struct rn_jinja_value *a)
{
    struct rn_jinja_sink *k = a->u.s.sink;
    if (k && k->data == a->u.s.data && k->len == a->u.s.len) {
        return k;
    }
    k = rn_jinja_alloc(run, 1, sizeof(*k));
    return k && rn_jinja_put_value(run, k, a) == 0 ? k : NULL;
}

int rn_jinja_append(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, struct rn_jinja_value *ret)
{
    struct rn_jinja_sink small = {0}, *k = &small;
    bool keep = a->u.s.len >= APPEND_FROM;
    if (keep) {
        k = sink_behind(run, a);
    }
    int r = !k ? rn_jinja_alloc_code(run) : keep ? 0 : rn_jinja_put_value(run, k, a);
    r = r < 0 ? r : rn_jinja_put_value(run, k, b);
    if (r < 0) {
        return r;
    }
    uint8_t own = b->u.s.len == 0 ? a->own : a->u.s.len == 0 || a->own == b->own ? b->own : (uint8_t)RN_JINJA_MIXED;
    *ret = rn_jinja_string(k->data ? k->data : "", k->len, (enum rn_jinja_own)own);
    ret->u.s.mask = k->mask;
    ret->u.s.sink = keep ? k : NULL;
    return 0;
}

struct rn_jinja_value rn_jinja_sink_value(const struct rn_jinja_sink *k)
{
    struct rn_jinja_value v = rn_jinja_string(k->data ? k->data : "", k->len, RN_JINJA_OWN);
    v.u.s.mask = k->mask;
    if (k->len && memchr(k->mask, 0, k->len)) {
        v.own = memchr(k->mask, 1, k->len) ? RN_JINJA_MIXED : RN_JINJA_DATA;
    }
    return v;
}
