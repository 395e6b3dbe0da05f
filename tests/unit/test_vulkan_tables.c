/* The tables of a step against visibility by brute force: for every row the list of cells that it sees, made of the rule alone, equals the one
 * that its tile's chunks tell. Pages are addresses that no one reads: each tells its stream and number. Needs no device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/vulkan/vulkan_internal.h"

#define MAX_VIEWS 4
#define MAX_GROUPS 2
#define MAX_PAGES 80
#define MAX_TOKENS (MAX_PAGES * RN_PAGE_TOKENS)

static uint64_t rng_state = 0x2545f4914f6cdd1du;

static uint32_t random_below(uint32_t n)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32) % n;
}

struct scene {
    struct rn_program p;
    struct rn_layer_group groups[MAX_GROUPS];
    struct rn_step step;
    struct rn_step_row rows[RN_STEP_ROWS];
    struct rn_step_view views[MAX_VIEWS];
    struct rn_step_pages pages[MAX_VIEWS][MAX_GROUPS];
    void *handles[MAX_VIEWS][MAX_GROUPS][2][MAX_PAGES];
};

static struct scene scene;

/* ---- scenes ---------------------------------------------------------------------------------------------------------------------------- */

/* The handle of page `number` of a stream; pages that must not be read have none. */
static uint64_t handle(uint32_t view, uint32_t group, bool pinned, uint64_t number)
{
    return (uint64_t)(view + 1) << 40 | (uint64_t)(group + 1) << 32 | (uint64_t)pinned << 31 | number << 8;
}

static void make_program(uint32_t n_groups, uint32_t group_heads, uint32_t head_dim)
{
    scene.p = (struct rn_program){.n_heads = 2 * group_heads, .n_kv_heads = 2, .head_dim = head_dim, .n_groups = n_groups, .groups = scene.groups};
    scene.groups[0] = (struct rn_layer_group){.n_layers = 1};
    scene.groups[1] = (struct rn_layer_group){.n_layers = 1, .window = 1 + random_below(700)};
}

/* Lowest index that any row of the view reads in the window stream of the group, by the rule. */
static uint64_t lowest(uint32_t view, uint32_t group, const struct rn_step_row *row)
{
    uint32_t w = scene.groups[group].window;
    uint64_t first = scene.views[view].first;
    if (!w) {
        return row->base;
    }
    first = first <= row->t ? first : 0;
    return row->t + 1 >= w && row->t + 1 - w > first ? row->t + 1 - w : first;
}

static void make_pages(uint32_t view, uint32_t group, uint64_t s, const struct rn_step_row *rows, uint32_t n_rows)
{
    struct rn_step_pages *pages = &scene.pages[view][group];
    uint64_t low = lowest(view, group, &rows[0]);
    *pages = (struct rn_step_pages){.n_pinned = s, .first_page = (low > s ? low - s : 0) / RN_PAGE_TOKENS};
    pages->pinned = scene.handles[view][group][1];
    pages->window = scene.handles[view][group][0];
    memset(scene.handles[view][group], 0, sizeof scene.handles[view][group]);
    for (uint64_t k = 0; k * RN_PAGE_TOKENS < s; k++) {
        scene.handles[view][group][1][k] = (void *)(uintptr_t)handle(view, group, true, k);
    }
    uint64_t t = rows[n_rows - 1].t;
    for (uint64_t k = pages->first_page; t >= s && k * RN_PAGE_TOKENS <= t - s; k++) {
        scene.handles[view][group][0][k - pages->first_page] = (void *)(uintptr_t)handle(view, group, false, k);
    }
}

/* n rows from `t` on, now and then with a gap, and a base that stays or jumps but never falls. */
static void make_view(uint32_t view, uint32_t n_rows, bool gaps)
{
    struct rn_step_row *rows = scene.rows + scene.step.n_rows;
    uint64_t s = random_below(3) ? random_below(random_below(2) ? 600 : 80) : 0;
    uint64_t t = random_below(4) ? random_below(2500) : random_below(8), base = s + (t > s ? random_below((uint32_t)(t - s) + 1) : 0);
    for (uint32_t i = 0; i < n_rows; i++, t++) {
        t += gaps && random_below(4) == 0 && t < 4000 ? random_below(random_below(3) ? 90 : 900) : 0; // a gap may leave out a chunk
        base += t > base && random_below(4) == 0 ? random_below((uint32_t)(t - base) + 1) : 0;
        rows[i] = (struct rn_step_row){.view = view, .t = t, .base = base};
    }
    scene.views[view] = (struct rn_step_view){.first = random_below(2) ? random_below((uint32_t)rows[0].t + 1) : rows[0].t + 5, .groups = scene.pages[view]};
    if (scene.views[view].first > rows[0].t) {
        scene.views[view].first = random_below(2) ? 0 : rows[n_rows - 1].t + 5; // beyond all rows: pinned tokens of a sequence that is read again
    }
    make_pages(view, 0, s, rows, n_rows);
    make_pages(view, 1, 0, rows, n_rows);
    scene.step.n_rows += n_rows;
}

static void make_scene(bool gaps)
{
    static const uint32_t heads[] = {1, 2, 3, 4, 7, 8, 16, 17, 20, 33};
    make_program(MAX_GROUPS, heads[random_below(sizeof heads / sizeof heads[0])], random_below(3) ? 64 : 512);
    scene.step = (struct rn_step){.rows = scene.rows, .views = scene.views, .n_views = 1 + random_below(MAX_VIEWS)};
    for (uint32_t v = 0; v < scene.step.n_views; v++) {
        make_view(v, 1 + random_below(random_below(2) ? 3 : 40), gaps);
    }
}

/* ---- checks ---------------------------------------------------------------------------------------------------------------------------- */

static struct rn_vk_tables filled(uint32_t group)
{
    static struct rn_vk_cell cells[RN_STEP_ROWS];
    static struct rn_vk_tile tiles[RN_STEP_ROWS];
    static struct rn_vk_chunk *chunks;
    uint32_t n = rn_vk_tables_count(&scene.p, group, &scene.step);
    free(chunks);
    chunks = malloc((n + 1) * sizeof *chunks);
    assert_non_null(chunks);
    struct rn_vk_tables t = {.cells = cells, .tiles = tiles, .chunks = chunks, .cap_chunks = n};
    memset(&chunks[n], 0x5a, sizeof *chunks);
    rn_vk_tables_fill(&t, &scene.p, group, &scene.step);
    assert_int_equal(t.n_chunks, n);
    const uint8_t *beyond = (const uint8_t *)&chunks[n];
    for (size_t i = 0; i < sizeof *chunks; i++) {
        assert_int_equal(beyond[i], 0x5a);
    }
    return t;
}

/* A row's cells in the order of the sum, each as its page's handle plus the slot. */
static size_t cells_by_rule(uint64_t *ret, uint32_t group, const struct rn_step_row *row)
{
    const struct rn_step_pages *pages = &scene.pages[row->view][group];
    size_t n = 0;
    for (uint64_t j = 0; j <= row->t; j++) {
        bool pinned = j < pages->n_pinned;
        if (!pinned && j < lowest(row->view, group, row)) {
            continue;
        }
        uint64_t at = pinned ? j : j - pages->n_pinned;
        ret[n++] = handle(row->view, group, pinned, at / RN_PAGE_TOKENS) + at % RN_PAGE_TOKENS;
    }
    return n;
}

static size_t cells_by_table(uint64_t *ret, const struct rn_vk_tables *t, const struct rn_vk_tile *tile, uint32_t row)
{
    size_t n = 0;
    for (uint32_t c = tile->chunk0; c < tile->chunk0 + tile->n_chunks; c++) {
        const struct rn_vk_chunk *chunk = &t->chunks[c];
        uint32_t lo = chunk->span[row] & 0xffff, hi = chunk->span[row] >> 16;
        assert_true(lo <= hi && hi <= RN_CHUNK_TOKENS);
        for (uint32_t j = lo; j < hi; j++) {
            uint64_t page = chunk->pages[j / RN_PAGE_TOKENS];
            assert_true(page != 0);
            assert_int_equal(page >> 31 & 1, chunk->pinned);
            assert_int_equal(((page & 0x7fffffff) >> 8) % (RN_CHUNK_TOKENS / RN_PAGE_TOKENS), j / RN_PAGE_TOKENS); // chunks count from the stream's start
            ret[n++] = page + j % RN_PAGE_TOKENS;
        }
    }
    return n;
}

static void check_chunks(const struct rn_vk_tables *t, uint32_t index)
{
    const struct rn_vk_tile *tile = &t->tiles[index];
    uint64_t last = 0;
    for (uint32_t c = tile->chunk0; c < tile->chunk0 + tile->n_chunks; c++) {
        const struct rn_vk_chunk *chunk = &t->chunks[c];
        bool seen[4] = {false}, any = false;
        for (uint32_t i = 0; i < RN_TILE_ROWS; i++) {
            uint32_t lo = chunk->span[i] & 0xffff, hi = chunk->span[i] >> 16;
            assert_true(i < tile->n_rows || lo == hi);
            for (uint32_t j = lo; j < hi; j++) {
                seen[j / RN_PAGE_TOKENS] = any = true;
            }
        }
        assert_int_equal(chunk->tile, index);
        assert_true(any);
        uint64_t order = 0;
        for (uint32_t k = 0; k < 4; k++) {
            assert_int_equal(chunk->pages[k] != 0, seen[k]);
            order = chunk->pages[k] ? (uint64_t)!chunk->pinned << 32 | ((chunk->pages[k] & 0x7fffffff) >> 8) / 4 : order;
        }
        assert_true(c == tile->chunk0 || order > last); // pinned chunks first, ascending
        last = order;
    }
}

static void check_group(uint32_t group)
{
    static uint64_t want[MAX_TOKENS], got[MAX_TOKENS];
    struct rn_vk_tables t = filled(group);
    uint32_t row = 0, chunk = 0, partial = 0;
    for (uint32_t i = 0; i < t.n_tiles; i++) {
        const struct rn_vk_tile *tile = &t.tiles[i];
        assert_int_equal(tile->row0, row);
        assert_int_equal(tile->chunk0, chunk);
        assert_int_equal(tile->partial0, partial);
        assert_true(tile->n_rows >= 1 && tile->n_rows <= rn_vk_tile_rows(&scene.p));
        check_chunks(&t, i);
        for (uint32_t k = 0; k < tile->n_rows; k++) {
            assert_int_equal(scene.rows[row + k].view, scene.rows[row].view);
            size_t n = cells_by_rule(want, group, &scene.rows[row + k]);
            assert_int_equal(cells_by_table(got, &t, tile, k), n);
            assert_memory_equal(got, want, n * sizeof *want);
            struct rn_vk_cell cell = t.cells[row + k];
            assert_int_equal(cell.page + cell.slot, want[n - 1]); // a row sees itself last
            assert_int_equal(cell.pinned, cell.page >> 31 & 1);
        }
        row += tile->n_rows;
        chunk += tile->n_chunks;
        partial += tile->n_chunks * tile->n_rows;
    }
    assert_int_equal(row, scene.step.n_rows);
    assert_int_equal(chunk, t.n_chunks);
    assert_int_equal(partial, t.n_partials);
}

static void rows_see_what_the_rule_says(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        make_scene(i % 2);
        check_group(0);
        check_group(1);
    }
}

static void queries_fit_a_workgroup(void **state)
{
    (void)state;
    for (uint32_t heads = 1; heads <= 130; heads++) {
        for (uint32_t head_dim = 64; head_dim <= 512; head_dim *= 2) {
            make_program(1, heads, head_dim);
            uint32_t slices = rn_vk_head_slices(&scene.p), slice = rn_vk_slice_heads(&scene.p), rows = rn_vk_tile_rows(&scene.p);
            uint32_t specs[RN_VK_ATTEND_SPECS];
            assert_true(rows >= 1 && rows <= RN_TILE_ROWS);
            assert_true(slices * slice >= heads && (slices - 1) * slice < heads);
            assert_true(rows * slice <= (head_dim > 256 ? 8u : 16u));
            rn_vk_attend_specs(specs, &scene.p, 2, RN_ATTEND_Q8);
            assert_int_equal(specs[0], head_dim);
            assert_int_equal(specs[1], slice);
            assert_int_equal(specs[2], rows < 2 ? rows : 2);
            assert_int_equal(specs[3], RN_ATTEND_Q8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_see_what_the_rule_says),
        cmocka_unit_test(queries_fit_a_workgroup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
