/* See unicode.h. */
#include "runtime/text/unicode.h"

#include <string.h>

enum rn_unicode_state rn_unicode_step(const unsigned char *held, unsigned n_held, unsigned char byte)
{
    if (n_held == 0) {
        if (byte < 0x80) {
            return RN_UNICODE_DONE;
        }
        return byte >= 0xC2 && byte <= 0xF4 ? RN_UNICODE_MORE : RN_UNICODE_BAD;
    }
    unsigned char lead = held[0];
    unsigned char lowest = 0x80;
    unsigned char highest = 0xBF;
    if (n_held == 1) {
        // The second byte is narrower after four leads: overlong forms, surrogates, beyond U+10FFFF.
        lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    }
    if (byte < lowest || byte > highest) {
        return RN_UNICODE_BAD;
    }
    unsigned need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return n_held + 1 == need ? RN_UNICODE_DONE : RN_UNICODE_MORE;
}

unsigned rn_unicode_decode(const char *s, size_t len, uint32_t *ret_cp)
{
    const unsigned char *u = (const unsigned char *)s;
    enum rn_unicode_state state = RN_UNICODE_MORE;
    unsigned n = 0;
    while (n < len && state == RN_UNICODE_MORE) {
        state = rn_unicode_step(u, n, u[n]);
        n++;
    }
    if (state != RN_UNICODE_DONE) {
        return 0;
    }
    static const unsigned char lead_bits[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t cp = u[0] & lead_bits[n];
    for (unsigned i = 1; i < n; i++) {
        cp = cp << 6 | (u[i] & 0x3F);
    }
    *ret_cp = cp;
    return n;
}

size_t rn_unicode_valid_len(const char *s, size_t len)
{
    size_t at = 0;
    while (at < len) {
        uint64_t eight;
        while (len - at >= sizeof(eight)) {
            memcpy(&eight, s + at, sizeof(eight));
            if (eight & UINT64_C(0x8080808080808080)) {
                break;
            }
            at += sizeof(eight);
        }
        uint32_t cp;
        unsigned n = at < len ? rn_unicode_decode(s + at, len - at, &cp) : 0;
        if (n == 0) {
            break;
        }
        at += n;
    }
    return at;
}

// Printable Latin-1 stands for itself; the other bytes take U+0100 and up in ascending order: 0-32, 127-160, 173.
// Source: bytes_to_unicode of GPT-2's encoder.
uint32_t rn_unicode_of_byte(uint8_t byte)
{
    if (byte <= 32) {
        return 256u + byte;
    }
    if (byte >= 127 && byte <= 160) {
        return 256u + 33 + (byte - 127u);
    }
    return byte == 173 ? 256u + 33 + 34 : byte;
}

int rn_unicode_byte_of(uint32_t cp)
{
    if (cp < 256) {
        return cp <= 32 || (cp >= 127 && cp <= 160) || cp == 173 ? -1 : (int)cp;
    }
    if (cp < 256 + 33) {
        return (int)cp - 256;
    }
    if (cp < 256 + 33 + 34) {
        return (int)cp - (256 + 33) + 127;
    }
    return cp == 256 + 33 + 34 ? 173 : -1;
}
