#include "runtime/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static enum rn_log_level max_level = RN_LOG_INFO;  // written once, before any thread starts
static int with_priority;

void rn_log_setup(enum rn_log_level level, int journal)
{
    max_level = level;
    with_priority = journal;
}

void rn_log(enum rn_log_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    static const char *const priorities[] = {"<3>", "<4>", "<6>", "<7>"};
    if (level > max_level) {
        return;
    }
    char line[1024];
    int n = with_priority ? snprintf(line, sizeof line, "%s", priorities[level]) : snprintf(line, sizeof line, "runneld: %s: ", names[level]);
    va_list args;
    va_start(args, format);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, format, args);
    va_end(args);
    size_t len = strlen(line);
    (void)m;  // a longer line is cut: a log line has no reader who needs more
    line[len++] = '\n';
    ssize_t w = write(STDERR_FILENO, line, len);
    (void)w;  // nowhere to report it
}
