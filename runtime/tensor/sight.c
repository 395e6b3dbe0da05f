#include "runtime/tensor/sight.h"

const struct rn_step_pages *rn_row_pages(const struct rn_step *step, uint32_t group, const struct rn_step_row *row)
{
    return &step->views[row->view].groups[group];
}

/* First absolute index that the row reads in the window stream. */
static uint64_t window_low(const struct rn_program *p, uint32_t group, const struct rn_step *step, const struct rn_step_row *row)
{
    uint32_t sliding = p->groups[group].window;
    if (!sliding) {
        return row->base;
    }
    uint64_t first = step->views[row->view].first;
    first = row->t < first ? 0 : first; // a pinned token of a re-read sequence
    uint64_t low = row->t + 1 > sliding ? row->t + 1 - sliding : 0;
    return low > first ? low : first;
}

struct rn_sight rn_row_sight(const struct rn_program *p, uint32_t group, const struct rn_step *step, const struct rn_step_row *row)
{
    uint64_t s = rn_row_pages(step, group, row)->n_pinned;
    struct rn_sight sight = {.pinned.to = row->t + 1 < s ? row->t + 1 : s};
    if (row->t >= s) {
        uint64_t low = window_low(p, group, step, row);
        sight.window.from = low > s ? low - s : 0;
        sight.window.to = row->t + 1 - s;
    }
    return sight;
}

struct rn_place rn_row_place(const struct rn_step *step, uint32_t group, const struct rn_step_row *row)
{
    const struct rn_step_pages *pages = rn_row_pages(step, group, row);
    bool pinned = row->t < pages->n_pinned;
    uint64_t at = pinned ? row->t : row->t - pages->n_pinned;
    void *page = pinned ? pages->pinned[at / RN_PAGE_TOKENS] : pages->window[at / RN_PAGE_TOKENS - pages->first_page];
    return (struct rn_place){.page = page, .slot = (uint32_t)(at % RN_PAGE_TOKENS), .pinned = pinned};
}

struct rn_range rn_range_in_chunk(struct rn_range range, uint64_t chunk)
{
    uint64_t start = chunk * RN_CHUNK_TOKENS;
    uint64_t from = range.from > start ? range.from - start : 0, to = range.to > start ? range.to - start : 0;
    to = to < RN_CHUNK_TOKENS ? to : RN_CHUNK_TOKENS;
    return (struct rn_range){.from = from < to ? from : to, .to = to};
}
