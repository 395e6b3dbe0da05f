#include "daemon/lanes.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/mem.h"

void rn_lanes_init(struct rn_lanes *l)
{
    *l = (struct rn_lanes){0};
}

void rn_lanes_finish(struct rn_lanes *l)
{
    for (uint32_t i = 0; i < l->n_named; i++) {
        rn_mem_free(l->named[i]);
    }
    *l = (struct rn_lanes){0};
}

bool rn_stream_id_valid(const char *id, size_t len)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    return len >= 1 && len < RN_STREAM_ID_BYTES && strspn(id, allowed) == len;
}

struct rn_lane *rn_lanes_find(struct rn_lanes *l, const char *id)
{
    if (!id) {
        return &l->first;
    }
    for (uint32_t i = 0; i < l->n_named; i++) {
        if (strcmp(l->named[i]->id, id) == 0) {
            return l->named[i];
        }
    }
    return NULL;
}

int rn_lanes_get(struct rn_lanes *l, const char *id, struct rn_lane **ret)
{
    struct rn_lane *lane = rn_lanes_find(l, id);
    if (!lane) {
        if (l->n_named == RN_LANES_NAMED) {
            return -E2BIG;
        }
        lane = rn_mem_alloc(1, sizeof *lane);
        if (!lane) {
            return -ENOMEM;
        }
        memcpy(lane->id, id, strlen(id) + 1);
        l->named[l->n_named++] = lane;
        lane->serial = l->n_named;
    }
    *ret = lane;
    return 0;
}

int rn_lanes_push(struct rn_lanes *l, struct rn_lane *lane, void *item, size_t bytes)
{
    if (lane->n_waiting == RN_LANE_QUEUE || bytes > RN_LANES_BYTES - l->bytes) {
        return -EAGAIN;
    }
    lane->waiting[(lane->head + lane->n_waiting++) % RN_LANE_QUEUE] =
        (struct rn_lane_item){.item = item, .order = l->order++, .bytes = bytes};
    l->bytes += bytes;
    return 0;
}

static void *take(struct rn_lanes *l, struct rn_lane *lane)
{
    struct rn_lane_item *at = &lane->waiting[lane->head];
    lane->head = (lane->head + 1) % RN_LANE_QUEUE;
    lane->n_waiting--;
    l->bytes -= at->bytes;
    return at->item;
}

void *rn_lanes_next(struct rn_lanes *l, struct rn_lane **ret_lane)
{
    struct rn_lane *best = NULL;
    if (l->n_active == RN_LANES_ACTIVE) { // keeps I2
        return NULL;
    }
    for (uint32_t i = 0; i <= l->n_named; i++) {
        struct rn_lane *lane = i ? l->named[i - 1] : &l->first;
        if (!lane->active && lane->n_waiting && (!best || lane->waiting[lane->head].order < best->waiting[best->head].order)) {
            best = lane;
        }
    }
    if (!best) {
        return NULL;
    }
    best->active = true;
    l->n_active++;
    *ret_lane = best;
    return take(l, best);
}

void rn_lanes_done(struct rn_lanes *l, struct rn_lane *lane)
{
    lane->active = false;
    l->n_active--;
}

void *rn_lanes_pop(struct rn_lanes *l)
{
    for (uint32_t i = 0; i <= l->n_named; i++) {
        struct rn_lane *lane = i ? l->named[i - 1] : &l->first;
        if (lane->n_waiting) {
            return take(l, lane);
        }
    }
    return NULL;
}

void *rn_lane_peek(const struct rn_lane *lane, uint32_t i)
{
    return i < lane->n_waiting ? lane->waiting[(lane->head + i) % RN_LANE_QUEUE].item : NULL;
}
