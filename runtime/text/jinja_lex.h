/* Lexer of chat templates: source text to tokens, with the whitespace rules that Hugging Face sets (trim_blocks, lstrip_blocks; one
 * newline at the very end of the source is dropped). Pure; thread: any. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "runtime/text/jinja_value.h"

enum rn_jinja_token_kind {
    RN_JINJA_T_TEXT,
    RN_JINJA_T_BLOCK,     /* {% */
    RN_JINJA_T_BLOCK_END,
    RN_JINJA_T_PRINT,     /* {{ */
    RN_JINJA_T_PRINT_END,
    RN_JINJA_T_NAME,
    RN_JINJA_T_STRING,    /* with its quotes and escapes */
    RN_JINJA_T_INT,
    RN_JINJA_T_FLOAT,
    RN_JINJA_T_OP,        /* text is the operator */
    RN_JINJA_T_END,
};

struct rn_jinja_token {
    enum rn_jinja_token_kind kind;
    struct rn_jinja_text text; /* borrows from the source */
};

/* source: valid UTF-8, newlines already "\n". Appends all tokens, the last is RN_JINJA_T_END; they live in the run's arena.
 * Errors are set with run->at. */
int rn_jinja_lex(struct rn_jinja_run *run, const char *source, size_t len, struct rn_jinja_token **ret_tokens, size_t *ret_n);
