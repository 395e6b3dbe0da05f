/* The page's files, embedded at build time from daemon/web/. Constant; any thread. */
#pragma once

#include <stddef.h>

struct rn_web_file {
    const char *path; /* as requested: "/" is index.html, else "/name" */
    const char *type; /* Content-Type */
    const char *etag; /* with quotes; the content's hash */
    const unsigned char *data;
    size_t len;
};

/* Scripts, styles and connections only from here; nothing from elsewhere, no frames, no forms, no inline code. */
#define RN_WEB_CSP                                                                                                                         \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "                 \
    "frame-ancestors 'none'; form-action 'none'"

/* NULL = there is no such file. */
const struct rn_web_file *rn_web_find(const char *path);

/* The generated table, sorted by path. */
extern const struct rn_web_file rn_web_files[];
extern const size_t rn_web_n_files;
