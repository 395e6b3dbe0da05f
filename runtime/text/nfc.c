/* See nfc.h.
 *
 * The text is cut into runs before characters that begin anew: those that neither compose with what is before them nor are reordered.
 * Each run is decomposed, its marks are put into canonical order, and it is composed again (Unicode Standard, 3.11). Marks are ordered by
 * counting: the insertion sort that utf8proc_decompose has for them takes quadratic time on a pile of marks. */
#include "runtime/text/nfc.h"

#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/text/unicode.h"

#define MAX_DECOMPOSED 4 /* code points of the longest canonical decomposition */
#define FIRST_MARK 0x300 /* everything below is in form C and begins anew */

void rn_nfc_scratch_finish(struct rn_nfc_scratch *s)
{
    rn_mem_free(s->points);
    rn_mem_free(s->sorted);
    *s = (struct rn_nfc_scratch){0};
}

bool rn_nfc_is_normal(const char *text, size_t len)
{
    bool normal = true;
    for (size_t i = 0; normal && i < len; i++) {
        normal = (unsigned char)text[i] < 0xCC; // the first byte of U+0300, FIRST_MARK
    }
    return normal;
}

/* Whether nothing before a character can change it. Those that compose to the left are marks, vowels and finals of Hangul, and, in newer
 * versions of Unicode, vowel signs of Kirat Rai that are no marks. */
static bool begins_anew(uint32_t cp)
{
    if (cp < FIRST_MARK) {
        return true;
    }
    if ((cp >= 0x1160 && cp <= 0x11FF) || (cp >= 0x16D40 && cp <= 0x16D7F)) {
        return false;
    }
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    return p->combining_class == 0 && p->category != UTF8PROC_CATEGORY_MN && p->category != UTF8PROC_CATEGORY_MC &&
           p->category != UTF8PROC_CATEGORY_ME;
}

static unsigned combining_class(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class & 0xFFu;
}

/* Sorts marks by combining class; equal ones keep their order. */
static void order_marks(int32_t *marks, int32_t *sorted, size_t n)
{
    size_t first[257] = {0};
    for (size_t i = 0; i < n; i++) {
        first[combining_class(marks[i]) + 1]++;
    }
    for (unsigned c = 0; c < 256; c++) {
        first[c + 1] += first[c];
    }
    for (size_t i = 0; i < n; i++) {
        sorted[first[combining_class(marks[i])]++] = marks[i];
    }
    memcpy(marks, sorted, n * sizeof(*marks));
}

/* Canonical order: each series of characters whose class is not 0. */
static void order_all(struct rn_nfc_scratch *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t end = at;
        bool ordered = true;
        for (unsigned last = 0; end < n && combining_class(s->points[end]) != 0; end++) {
            ordered = ordered && combining_class(s->points[end]) >= last;
            last = combining_class(s->points[end]);
        }
        if (!ordered) {
            order_marks(s->points + at, s->sorted, end - at);
        }
        at = end + 1;
    }
}

/* Appends n decomposed code points, ordered and composed. */
static int put_run(struct rn_nfc_scratch *s, size_t n, struct rn_buf *out)
{
    order_all(s, n);
    utf8proc_ssize_t composed = utf8proc_normalize_utf32(s->points, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (composed < 0 || rn_buf_reserve(out, 4 * (size_t)composed) < 0) {
        return -ENOMEM; // utf8proc fails on options that exclude each other only
    }
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
        out->len += (size_t)utf8proc_encode_char(s->points[i], (utf8proc_uint8_t *)out->data + out->len);
    }
    out->data[out->len] = '\0';
    return 0;
}

static int reserve(struct rn_nfc_scratch *s)
{
    size_t n = RN_NFC_MAX_RUN + MAX_DECOMPOSED;
    s->points = s->points == NULL ? rn_mem_alloc(n, sizeof(*s->points)) : s->points;
    s->sorted = s->sorted == NULL ? rn_mem_alloc(n, sizeof(*s->sorted)) : s->sorted;
    return s->points == NULL || s->sorted == NULL ? -ENOMEM : 0;
}

int rn_nfc_add(struct rn_nfc_scratch *s, const char *text, size_t len, struct rn_buf *out)
{
    size_t n_points = 0; // of the run in progress
    int r = reserve(s);
    for (size_t at = 0; r == 0 && at < len;) {
        uint32_t cp = 0;
        unsigned n = rn_unicode_decode(text + at, len - at, &cp);
        if (n_points > 0 && (n == 0 || n_points >= RN_NFC_MAX_RUN || begins_anew(cp))) {
            r = put_run(s, n_points, out);
            n_points = 0;
        }
        if (r == 0 && n == 0) {
            r = rn_buf_add_char(out, text[at]);
        } else if (r == 0) {
            int boundary = 0;
            n_points += (size_t)utf8proc_decompose_char((utf8proc_int32_t)cp, s->points + n_points, MAX_DECOMPOSED,
                                                        UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        }
        at += n == 0 ? 1 : n;
    }
    return r == 0 && n_points > 0 ? put_run(s, n_points, out) : r;
}
