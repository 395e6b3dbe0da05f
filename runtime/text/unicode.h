/* UTF-8 and the byte alphabet of byte-level BPE. Pure functions; thread: any. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RN_UNICODE_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

enum rn_unicode_state {
    RN_UNICODE_BAD,  /* the byte cannot follow */
    RN_UNICODE_MORE, /* a proper prefix of a character */
    RN_UNICODE_DONE, /* a whole character */
};

/* What `byte` makes of the n_held bytes before it, themselves a proper prefix of a character (0 = between characters). Well-formed
 * UTF-8 as in the Unicode Standard, table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF. */
enum rn_unicode_state rn_unicode_step(const unsigned char *held, unsigned n_held, unsigned char byte);

/* Length in bytes of the character at s, 0 if there is no whole well-formed one; *ret_cp is set unless 0. */
unsigned rn_unicode_decode(const char *s, size_t len, uint32_t *ret_cp);

/* Length of the longest well-formed prefix. */
size_t rn_unicode_valid_len(const char *s, size_t len);

/* Byte-level BPE writes each byte as a printable character; GPT-2 chose which. byte_of: -1 = not of that alphabet. */
uint32_t rn_unicode_of_byte(uint8_t byte);
int rn_unicode_byte_of(uint32_t cp);
