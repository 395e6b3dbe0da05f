/* From new items to new tokens: what an append adds to a timeline (README, "Sessions").
 *
 * New tokens = render(H + new items + generation prompt) minus its prefix render(H), H = the stored items. The text of H's last answer is
 * replaced by a mark, so that the difference starts right behind that answer's content, whatever the template does to contents: it
 * holds the closing of the answer (end mark, newline), then the new items. Where a template rewrites history so that render(H) is no
 * prefix, H is a stand-in (leading block, one user message, one answer). No stored text is tokenised again. Of a long history only the leading
 * block and the newest items are rendered: they are context for the template, no token of theirs is taken. Thread: engine. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/mem.h"

struct rn_err;
struct rn_text;
struct rn_timeline;

#define RN_PLAN_MAX_ITEMS 512u /* new items of one request: each border between two costs a rendering */
#define RN_PLAN_HISTORY 256u   /* stored items that are rendered as context; a longer history is cut to half of it */

struct rn_plan_span {
    uint64_t first, end; /* of the item, counted from the first new token */
};

/* Zero is empty. */
struct rn_plan {
    struct rn_ids ids;          /* the new tokens */
    struct rn_plan_span *spans; /* one for each new item */
    size_t n_spans;
    uint64_t generation; /* where the generation prompt starts; ids.len without one */
    uint64_t lead;       /* B, if the log was empty */
};

void rn_plan_finish(struct rn_plan *p);

/* t: the timeline the items are for (its log may be empty). items: array of items. *ret must be empty.
 * Returns 0; -EINVAL: the template refuses (err says where); -ENOENT: the model has no template; -E2BIG: too many items; -ENOMEM. */
int rn_plan_make(struct rn_plan *ret, const struct rn_text *text, const char *instructions, const struct rn_timeline *t, json_t *items,
                 bool generate, struct rn_err *err);
