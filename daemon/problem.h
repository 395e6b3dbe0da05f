/* Why a request is refused, and how a client is told. Pure. Thread: any. */
#pragma once

struct rn_buf;

/* A refusal, for the error envelope of the WebSocket and the error body of HTTP. */
struct rn_problem {
    int status;       /* HTTP */
    const char *code; /* static */
    char param[96];   /* "" = none */
    char message[400];
};

void rn_problem_set(struct rn_problem *p, int status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
int rn_problem_no_memory(struct rn_problem *p);                                       /* -ENOMEM */
int rn_problem_unsupported(struct rn_problem *p, const char *path, const char *what); /* -EINVAL */

/* {"error": {"message", "type", "param", "code"}}. 0 or -ENOMEM. */
int rn_problem_body(const struct rn_problem *p, struct rn_buf *out);
/* {"type": "error", "status", "stream_id"?, "error": {…}}; stream_id NULL = connection level or default lane. */
int rn_problem_event(const struct rn_problem *p, const char *stream_id, struct rn_buf *out);
