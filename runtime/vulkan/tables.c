/* The tables of a step: where each row's key and value go, and what its queries see.
 *
 * Tiles are adjacent rows of one view. A tile has the chunks that at least one of its rows sees (tensor/sight.h), pinned ones first, ascending;
 * one that no row sees is left out, which changes no bit, as such a chunk adds nothing.
 * Pure functions of their arguments. Thread: any. */
#include "runtime/tensor/sight.h"
#include "runtime/vulkan/vulkan_internal.h"

#define CHUNK_PAGES (RN_CHUNK_TOKENS / RN_PAGE_TOKENS)
#define WIDE_HEAD 256 // beyond it half as many queries fit the shared memory of a workgroup (attend.comp)

/* ---- how queries are cut ------------------------------------------------------------------------------------------------------------- */

static uint32_t max_queries(const struct rn_program *p)
{
    return p->head_dim > WIDE_HEAD ? RN_TILE_ROWS / 2 : RN_TILE_ROWS;
}

static uint32_t group_heads(const struct rn_program *p)
{
    return p->n_heads / p->n_kv_heads;
}

uint32_t rn_vk_head_slices(const struct rn_program *p)
{
    return (group_heads(p) + max_queries(p) - 1) / max_queries(p);
}

uint32_t rn_vk_slice_heads(const struct rn_program *p)
{
    uint32_t slices = rn_vk_head_slices(p);
    return (group_heads(p) + slices - 1) / slices; // slices of like size, the last may be smaller
}

uint32_t rn_vk_tile_rows(const struct rn_program *p)
{
    return max_queries(p) / rn_vk_slice_heads(p);
}

void rn_vk_attend_specs(uint32_t ret[RN_VK_ATTEND_SPECS], const struct rn_program *p, uint32_t n_rows, uint32_t flags)
{
    uint32_t rows = rn_vk_tile_rows(p);
    ret[0] = p->head_dim;
    ret[1] = rn_vk_slice_heads(p);
    ret[2] = n_rows < rows ? n_rows : rows;
    ret[3] = flags & (RN_ATTEND_Q8 | RN_ATTEND_SPLIT);
}

/* ---- tiles and chunks ------------------------------------------------------------------------------------------------------------------ */

/* A walk over the tiles of a step. */
struct tiles {
    const struct rn_program *p;
    const struct rn_step *step;
    uint32_t group, rows;        /* rows at most */
    uint32_t row0, n_rows;       /* the tile */
    struct rn_sight sight[RN_TILE_ROWS];
};

static bool next_tile(struct tiles *w)
{
    w->row0 += w->n_rows;
    w->n_rows = 0;
    for (uint32_t row = w->row0; row < w->step->n_rows && w->n_rows < w->rows; row++) {
        if (w->step->rows[row].view != w->step->rows[w->row0].view) {
            break;
        }
        w->sight[w->n_rows++] = rn_row_sight(w->p, w->group, w->step, &w->step->rows[row]);
    }
    return w->n_rows > 0;
}

static struct tiles tiles_of(const struct rn_program *p, uint32_t group, const struct rn_step *step)
{
    return (struct tiles){.p = p, .step = step, .group = group, .rows = rn_vk_tile_rows(p)};
}

static struct rn_range row_range(const struct tiles *w, uint32_t row, bool pinned)
{
    return pinned ? w->sight[row].pinned : w->sight[row].window;
}

/* Tokens of a stream between the first and the last that any row of the tile sees. */
static struct rn_range tile_range(const struct tiles *w, bool pinned)
{
    struct rn_range all = {.from = UINT64_MAX};
    for (uint32_t i = 0; i < w->n_rows; i++) {
        struct rn_range r = row_range(w, i, pinned);
        if (r.from < r.to) {
            all.from = r.from < all.from ? r.from : all.from;
            all.to = r.to > all.to ? r.to : all.to;
        }
    }
    return all.to ? all : (struct rn_range){0};
}

/* Fills a chunk's spans and pages. False: no row sees it. */
static bool see_chunk(struct rn_vk_chunk *ret, const struct tiles *w, bool pinned, uint64_t chunk)
{
    const struct rn_step_pages *pages = rn_row_pages(w->step, w->group, &w->step->rows[w->row0]);
    bool seen = false;
    *ret = (struct rn_vk_chunk){.pinned = pinned};
    for (uint32_t i = 0; i < w->n_rows; i++) {
        struct rn_range part = rn_range_in_chunk(row_range(w, i, pinned), chunk);
        uint32_t lo = (uint32_t)part.from, hi = (uint32_t)part.to;
        ret->span[i] = lo | hi << 16;
        for (uint32_t k = lo / RN_PAGE_TOKENS; lo < hi && k <= (hi - 1) / RN_PAGE_TOKENS; k++) {
            uint64_t number = chunk * CHUNK_PAGES + k;
            const void *page = pinned ? pages->pinned[number] : pages->window[number - pages->first_page];
            ret->pages[k] = (VkDeviceAddress)(uintptr_t)page;
            seen = true;
        }
    }
    return seen;
}

/* Adds the chunks of one stream, or only counts them. */
static void add_chunks(struct rn_vk_tables *t, uint32_t tile, const struct tiles *w, bool pinned)
{
    struct rn_range all = tile_range(w, pinned);
    for (uint64_t k = all.from / RN_CHUNK_TOKENS; k * RN_CHUNK_TOKENS < all.to; k++) {
        struct rn_vk_chunk chunk;
        if (see_chunk(&chunk, w, pinned, k)) {
            if (t->chunks) {
                chunk.tile = tile;
                t->chunks[t->n_chunks] = chunk;
            }
            t->n_chunks++;
        }
    }
}

static struct rn_vk_cell row_cell(uint32_t group, const struct rn_step *step, const struct rn_step_row *row)
{
    struct rn_place place = rn_row_place(step, group, row);
    return (struct rn_vk_cell){.page = (VkDeviceAddress)(uintptr_t)place.page, .slot = place.slot, .pinned = place.pinned};
}

uint32_t rn_vk_tables_count(const struct rn_program *p, uint32_t group, const struct rn_step *step)
{
    struct rn_vk_tables t = {0};
    for (struct tiles w = tiles_of(p, group, step); next_tile(&w);) {
        add_chunks(&t, 0, &w, true);
        add_chunks(&t, 0, &w, false);
    }
    return t.n_chunks;
}

void rn_vk_tables_fill(struct rn_vk_tables *t, const struct rn_program *p, uint32_t group, const struct rn_step *step)
{
    t->n_tiles = t->n_chunks = t->n_partials = 0;
    for (struct tiles w = tiles_of(p, group, step); next_tile(&w); t->n_tiles++) {
        struct rn_vk_tile *tile = &t->tiles[t->n_tiles];
        *tile = (struct rn_vk_tile){.row0 = w.row0, .n_rows = w.n_rows, .chunk0 = t->n_chunks, .partial0 = t->n_partials};
        add_chunks(t, t->n_tiles, &w, true);
        add_chunks(t, t->n_tiles, &w, false);
        tile->n_chunks = t->n_chunks - tile->chunk0;
        t->n_partials += tile->n_chunks * tile->n_rows;
    }
    for (uint32_t row = 0; row < step->n_rows; row++) {
        t->cells[row] = row_cell(group, step, &step->rows[row]);
    }
}
