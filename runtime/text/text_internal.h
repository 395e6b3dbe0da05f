/* What a struct rn_text is made of; for the files of this folder and their tests. */
#pragma once

#include "runtime/base/err.h"
#include "runtime/text.h"
#include "runtime/text/bpe.h"
#include "runtime/text/nfc.h"
#include "runtime/text/pretok.h"
#include "runtime/text/special.h"
#include "runtime/text/spm.h"
#include "runtime/text/template.h"
#include "runtime/text/vocab.h"

struct rn_text { /* immutable after rn_text_create */
    struct rn_vocab vocab;
    struct rn_special special; /* borrows vocab */
    bool by_score;             /* SentencePiece-style: spm does it all; else pretok and bpe */
    struct rn_spm spm;         /* borrows vocab */
    struct rn_bpe bpe;         /* borrows vocab */
    struct rn_pretok *pretok;
    bool nfc; /* plain text is normalised first */
    bool add_bos;
    uint64_t fingerprint;
    bool has_template;
    struct rn_template *tmpl; /* NULL: none, or template_err says why it does not parse */
    struct rn_err template_err;
    char *bos_token; /* NUL-terminated names; NULL = the model has none */
    char *eos_token;
};
