/* Characters, white space and letter case as Python's str has them. Strings are valid UTF-8 (I3 of jinja_value.h). */
#include "runtime/text/jinja_text.h"

#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

size_t rn_jinja_char_len(const char *s, size_t len)
{
    unsigned char c = (unsigned char)s[0];
    size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return n < len ? n : len;
}

static int32_t decode(const char *s, size_t len, size_t *ret_len)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, &c);
    if (n <= 0) { /* only if I3 were broken */
        *ret_len = 1;
        return 0xfffd;
    }
    *ret_len = (size_t)n;
    return c;
}

static bool is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t rn_jinja_space(const char *s, size_t len)
{
    if (len == 0) {
        return 0;
    }
    if ((unsigned char)s[0] < 0x80) {
        return is_space(s[0]) ? 1 : 0;
    }
    size_t n;
    return is_space(decode(s, len, &n)) ? n : 0;
}

size_t rn_jinja_lstrip(const char *s, size_t len)
{
    size_t pos = 0, n;
    while ((n = rn_jinja_space(s + pos, len - pos)) > 0) {
        pos += n;
    }
    return pos;
}

size_t rn_jinja_rstrip(const char *s, size_t len)
{
    while (len > 0) {
        size_t from = len - 1;
        while (from > 0 && len - from < 4 && ((unsigned char)s[from] & 0xc0) == 0x80) {
            from--;
        }
        if (rn_jinja_space(s + from, len - from) != len - from) {
            break;
        }
        len = from;
    }
    return len;
}

size_t rn_jinja_line_break(const char *s, size_t len)
{
    if (len == 0) {
        return 0;
    }
    if (s[0] == '\r') {
        return len > 1 && s[1] == '\n' ? 2 : 1;
    }
    if ((s[0] >= 10 && s[0] <= 12) || (s[0] >= 0x1c && s[0] <= 0x1e)) {
        return 1;
    }
    if ((unsigned char)s[0] < 0x80) {
        return 0;
    }
    size_t n;
    int32_t c = decode(s, len, &n);
    return c == 0x85 || c == 0x2028 || c == 0x2029 ? n : 0;
}

size_t rn_jinja_n_chars(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        n += ((unsigned char)s[i] & 0xc0) != 0x80;
    }
    return n;
}

size_t rn_jinja_char_at(const char *s, size_t len, size_t n)
{
    size_t pos = 0;
    while (n > 0 && pos < len) {
        pos += rn_jinja_char_len(s + pos, len - pos);
        n--;
    }
    return pos;
}

static bool is_cased(int32_t c)
{
    return utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
}

/* Case mappings that make several characters of one: Python follows SpecialCasing, utf8proc's simple mappings do not. */
static const char *special_case(int32_t c, bool upper)
{
    static const struct {
        int32_t c;
        bool upper;
        const char *to;
    } table[] = {
        {0xdf, true, "SS"}, {0x149, true, "\xca\xbcN"}, {0x1f0, true, "J\xcc\x8c"}, {0x130, false, "i\xcc\x87"},
        {0xfb00, true, "FF"}, {0xfb01, true, "FI"}, {0xfb02, true, "FL"}, {0xfb03, true, "FFI"}, {0xfb04, true, "FFL"},
        {0xfb05, true, "ST"}, {0xfb06, true, "ST"}, {0x587, true, "\xd4\xb5\xd5\x92"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].c == c && table[i].upper == upper) {
            return table[i].to;
        }
    }
    return NULL;
}

static int put_cased(struct rn_jinja_run *run, struct rn_jinja_sink *k, int32_t c, int to, bool own)
{
    const char *special = to == 0 ? NULL : special_case(c, to > 0);
    if (special) {
        return rn_jinja_put_str(run, k, special, own);
    }
    utf8proc_uint8_t bytes[4];
    int32_t mapped = to > 0 ? utf8proc_toupper(c) : to < 0 ? utf8proc_tolower(c) : c;
    size_t n = (size_t)utf8proc_encode_char(mapped, bytes);
    return rn_jinja_put(run, k, (const char *)bytes, n, own);
}

/* jinja's `title` starts a word after these; everything else goes on with it. */
static bool breaks_word(int32_t c)
{
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

int rn_jinja_change_case(struct rn_jinja_run *run, const struct rn_jinja_value *s, enum rn_jinja_case how, struct rn_jinja_value *ret)
{
    struct rn_jinja_sink k = {0};
    bool start = true;
    int r = 0;
    for (size_t pos = 0, n; r == 0 && pos < s->u.s.len; pos += n) {
        int32_t c = decode(s->u.s.data + pos, s->u.s.len - pos, &n);
        int to = how == RN_JINJA_UPPER ? 1 : how == RN_JINJA_LOWER ? -1 : start ? 1 : -1;
        if (how == RN_JINJA_SWAP) {
            to = !is_cased(c) ? 0 : utf8proc_tolower(c) != c ? -1 : 1;
        }
        start = (how == RN_JINJA_TITLE && breaks_word(c)) || (how == RN_JINJA_WORDS && !is_cased(c));
        bool own = s->own == RN_JINJA_OWN || (s->own == RN_JINJA_MIXED && s->u.s.mask[pos]);
        r = put_cased(run, &k, c, to, own);
    }
    if (r == 0) {
        *ret = rn_jinja_sink_value(&k);
        ret->markup = s->markup;
    }
    return r < 0 ? r : rn_jinja_step(run, s->u.s.len / 8);
}
