/* Lines that a person types, with editing and a history that is kept in memory only: what was asked stays off the disk. Thread: main. */
#pragma once

#include <signal.h>

struct rn_buf;
struct rn_err;
struct rn_line;

/* *interrupted is set by a signal handler that was installed without SA_RESTART; borrowed for the life of the reader. */
int rn_line_create(struct rn_line **ret, const char *prompt, const volatile sig_atomic_t *interrupted, struct rn_err *err);
void rn_line_destroy(struct rn_line *l); /* NULL is fine; gives the terminal back as it was */

/* The next line, without its end, appended to *ret. 1; 0 at the end of the input; -EINTR: *interrupted was set, the line is dropped. */
int rn_line_read(struct rn_line *l, struct rn_buf *ret);
