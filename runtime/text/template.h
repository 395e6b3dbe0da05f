/* Chat templates: Jinja source in, a rendered conversation out, as Hugging Face's apply_chat_template does it.
 *
 * A template is parsed once (rn_template_create) and immutable afterwards: renderings may run on several threads at once. It is hostile
 * input like any other part of a model file: depth, steps, memory and output are bounded by the constants below, and what the
 * interpreter does not know is an error with line and column, never a different text. Strings know, byte by byte, whether the template
 * wrote them or whether they came from the variables (struct rn_rendered). */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "runtime/text.h"

struct rn_err;
struct rn_template;

#define RN_TEMPLATE_MAX_SOURCE (1u << 20)        /* bytes of a template */
#define RN_TEMPLATE_MAX_OUTPUT (64u << 20)       /* bytes of a rendering; the tokenizer's own limit */

/* source need not be NUL-terminated. -EINVAL: it does not parse ("line 3, column 7: …"); -E2BIG; -ENOMEM. */
int rn_template_create(struct rn_template **ret, const char *source, size_t len, struct rn_err *err);
void rn_template_destroy(struct rn_template *t); /* NULL is fine */

/* Renders with the members of `variables`, a JSON object, as the template's global names. bos_token and eos_token may be NULL (then
 * undefined); they count as the template's own text and win over members of that name, and so do the words of the known chat roles in
 * messages[].role. Absent: add_generation_prompt is false, tools and documents are none, as Hugging Face has it. A member "now" (seconds
 * since 1970, or a local time as ISO 8601 has it: "2026-11-29T10:15:00") sets the clock of strftime_now; the template does not see it.
 * Needs up to 1 MiB of stack.
 * *ret must be empty and is touched on success only. -EINVAL: the template refused or failed; -E2BIG: a limit; -ENOMEM. */
int rn_template_render(const struct rn_template *t, json_t *variables, const char *bos_token, const char *eos_token,
                       struct rn_rendered *ret, struct rn_err *err);
