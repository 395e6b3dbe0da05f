/* Log lines for people: lower case, no full stop, values quoted '%s', then key=value pairs. Never a token or a prompt.
 * runtime/ and session/ log at debug only; daemon/ logs an error once, at the edge. Thread: any; one write(2) per line. */
#pragma once

enum rn_log_level { RN_LOG_ERROR, RN_LOG_WARN, RN_LOG_INFO, RN_LOG_DEBUG };

/* Lines above `level` are dropped; default RN_LOG_INFO. Set once at start. With `journal`, lines start with <3>..<7>. */
void rn_log_setup(enum rn_log_level level, int journal);

void rn_log(enum rn_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
