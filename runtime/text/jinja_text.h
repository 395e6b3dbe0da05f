/* Text as Python sees it: whitespace, letter case, and how values are written (str, repr, JSON). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "runtime/text/jinja_value.h"

/* Bytes of the white-space character (str.isspace) that s starts with, or 0. */
size_t rn_jinja_space(const char *s, size_t len);
/* Length of s without white space at its end; bytes of white space at its start. */
size_t rn_jinja_rstrip(const char *s, size_t len);
size_t rn_jinja_lstrip(const char *s, size_t len);
/* Bytes of the line break (str.splitlines) that s starts with, or 0; "\r\n" is one. */
size_t rn_jinja_line_break(const char *s, size_t len);
/* Bytes of the character that s starts with; len > 0. */
size_t rn_jinja_char_len(const char *s, size_t len);
/* Characters in s; byte offset of character number n (len when there are fewer). */
size_t rn_jinja_n_chars(const char *s, size_t len);
size_t rn_jinja_char_at(const char *s, size_t len, size_t n);

/* TITLE: words as the filter `title` cuts them; WORDS: as str.title does. */
enum rn_jinja_case { RN_JINJA_UPPER, RN_JINJA_LOWER, RN_JINJA_CAPITAL, RN_JINJA_TITLE, RN_JINJA_WORDS, RN_JINJA_SWAP };
int rn_jinja_change_case(struct rn_jinja_run *run, const struct rn_jinja_value *s, enum rn_jinja_case how, struct rn_jinja_value *ret);

/* Appends str(v), as {{ v }} shows it; undefined is nothing. */
int rn_jinja_put_text(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v);
/* Appends repr(v). */
int rn_jinja_put_repr(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v);
/* str(v) as a value; a string stays what it is. */
int rn_jinja_to_string(struct rn_jinja_run *run, const struct rn_jinja_value *v, struct rn_jinja_value *ret);
/* repr of a double as Python writes it; buf of at least 32 bytes. */
void rn_jinja_float_repr(double f, char *buf, size_t size);

/* How json.dumps writes. */
struct rn_jinja_json_style {
    bool ascii;                     /* ensure_ascii */
    bool pretty;                    /* an indent was given */
    bool sort_keys;
    struct rn_jinja_text indent;    /* of one level */
    struct rn_jinja_text item, key; /* separators */
};
int rn_jinja_put_json(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *v,
                      const struct rn_jinja_json_style *style);
/* Appends s with &, <, >, ' and " as HTML writes them. */
int rn_jinja_put_escaped(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *s);
