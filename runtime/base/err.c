#include "runtime/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int rn_err_set(struct rn_err *err, int code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        err->code = code;
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return code;
}

int rn_err_prefix(struct rn_err *err, const char *format, ...)
{
    if (!err) {
        return -EIO;
    }
    char story[RN_ERR_TEXT];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(story, sizeof story, format, args);
    va_end(args);
    if (n < 0 || (size_t)n + 3 > sizeof story) {
        n = (int)sizeof story - 3;
    }
    memcpy(story + n, ": ", 3);
    size_t room = sizeof story - (size_t)n - 3, len = strnlen(err->text, sizeof err->text);
    len = len < room ? len : room;
    memcpy(story + n + 2, err->text, len);
    story[(size_t)n + 2 + len] = 0;
    memcpy(err->text, story, sizeof story);
    return err->code ? err->code : -EIO;
}

int rn_err_nomem(struct rn_err *err, size_t bytes, const char *what)
{
    return rn_err_set(err, -ENOMEM, "out of memory (%zu bytes for %s)", bytes, what);
}
