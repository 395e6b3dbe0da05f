/* Unicode normalisation form C of any bytes: what some tokenizers do to plain text before anything else. Pure; thread: any. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/base/mem.h"

/* Code points that are put into order and composed together. A text has as many in a row only if someone piles up combining marks: such
 * a run is normalised in parts of this length, so that it needs no more memory than that. */
#define RN_NFC_MAX_RUN 4096

struct rn_nfc_scratch { /* zero is empty */
    int32_t *points;
    int32_t *sorted;
};

/* True: the text is in form C (a quick look; false says nothing). */
bool rn_nfc_is_normal(const char *text, size_t len);

/* Appends the form C of text to out. Bytes that are not part of well-formed UTF-8 stay as they are, and nothing composes across them.
 * Linear time; at most three bytes come out for one that goes in. Returns 0 or -ENOMEM. */
int rn_nfc_add(struct rn_nfc_scratch *scratch, const char *text, size_t len, struct rn_buf *out);
void rn_nfc_scratch_finish(struct rn_nfc_scratch *s);
