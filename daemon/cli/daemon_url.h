/* Options of the verbs that talk to a daemon, and what its refusals mean for the exit code. */
#pragma once

#include <jansson.h>

#include "daemon/cli/options.h"
#include "daemon/net_client.h"

struct rn_err;

struct rn_url_args {
    const char *url; /* NULL: $RUNNEL_URL, else the default */
};
extern const struct rn_option rn_url_options[1];

int rn_url_resolve(const struct rn_url_args *args, struct rn_client_address *ret, struct rn_err *err);

/* The sentence of an error body {"error": {"message", …}}; NULL when there is none. Borrowed from body. */
const char *rn_url_error_text(const json_t *body);
/* Exit code for an HTTP status that is an error. */
int rn_url_exit_code(int status);
