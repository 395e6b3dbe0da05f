/* What a row of a step sees, and where its own key and value go: the same for all backends.
 *
 * A row sees the pinned stream up to itself, then the window stream from base(t), or in groups with a trained sliding window from the
 * later of view.first and t + 1 - window. Both streams are cut into chunks of RN_CHUNK_TOKENS from their own starts.
 * Pure. Thread: any. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "runtime/tensor/backend.h"

struct rn_range {
    uint64_t from, to; /* tokens of a stream, from <= to */
};

struct rn_sight {
    struct rn_range pinned, window; /* indices within each stream */
};

struct rn_place {  /* of one token */
    void *page;    /* as the backend's page_alloc names it */
    uint32_t slot; /* token in the page */
    bool pinned;
};

/* The pages of the row's sequence in a layer group. Borrowed from the step. */
const struct rn_step_pages *rn_row_pages(const struct rn_step *step, uint32_t group, const struct rn_step_row *row);
struct rn_sight rn_row_sight(const struct rn_program *p, uint32_t group, const struct rn_step *step, const struct rn_step_row *row);
struct rn_place rn_row_place(const struct rn_step *step, uint32_t group, const struct rn_step_row *row);

/* What of a chunk the range covers, counted from the chunk's start; from == to: nothing. */
struct rn_range rn_range_in_chunk(struct rn_range range, uint64_t chunk);
