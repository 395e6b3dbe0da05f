#include "session/rope_words.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/err.h"

static const char *const names[] = {[RN_ROPE_AS_TRAINED] = "none", [RN_ROPE_LINEAR] = "linear", [RN_ROPE_YARN] = "yarn"};

int rn_rope_parse(const char *text, struct rn_rope_scaling *ret, struct rn_err *err)
{
    size_t len = strcspn(text, ":");
    struct rn_rope_scaling rope = {0};
    bool known = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == len && memcmp(names[i], text, len) == 0) {
            rope.kind = (enum rn_rope_kind)i;
            known = true;
        }
    }
    if (known && text[len] && rope.kind != RN_ROPE_AS_TRAINED) {
        char *end;
        const char *number = text + len + 1;
        rope.factor = *number >= '0' && *number <= '9' ? strtof(number, &end) : 0; // strtof would take blanks, signs and "inf"
        known = rope.factor >= 1 && rope.factor <= RN_ROPE_FACTOR_MAX && *end == 0;
    } else if (text[len]) {
        known = false;
    }
    if (!known) {
        return rn_err_set(err, -EINVAL, "the RoPE scaling is '%.64s', expected none, linear or yarn, the last two perhaps with :FACTOR from 1 to %d",
                          text, RN_ROPE_FACTOR_MAX);
    }
    *ret = rope;
    return 0;
}

void rn_rope_format(const struct rn_rope_scaling *rope, char ret[RN_ROPE_WORDS])
{
    if (rope->kind == RN_ROPE_AS_TRAINED || rope->factor <= 0) {
        snprintf(ret, RN_ROPE_WORDS, "%s", names[rope->kind]);
    } else {
        snprintf(ret, RN_ROPE_WORDS, "%s:%.9g", names[rope->kind], (double)rope->factor);
    }
}

struct rn_rope_scaling rn_rope_for(struct rn_rope_scaling asked, uint32_t n, uint32_t n_ctx_train)
{
    if (asked.kind != RN_ROPE_AS_TRAINED && asked.factor <= 0 && n > n_ctx_train) {
        asked.factor = (float)((4 * (uint64_t)n + n_ctx_train - 1) / n_ctx_train) / 4;
    }
    return asked.kind != RN_ROPE_AS_TRAINED && asked.factor > 1 ? asked : (struct rn_rope_scaling){0};
}

uint32_t rn_rope_max_n(struct rn_rope_scaling asked, uint32_t n_ctx_train)
{
    double factor = asked.kind == RN_ROPE_AS_TRAINED ? 1 : asked.factor > 0 ? (double)asked.factor : RN_ROPE_FACTOR_MAX;
    return (uint32_t)fmin(floor(factor * n_ctx_train), UINT32_MAX);
}
