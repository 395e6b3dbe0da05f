#include "daemon/cli/daemon_url.h"

#include <stdlib.h>

#include "daemon/cli/cli.h"

const struct rn_option rn_url_options[1] = {
    {"--url", "URL", RN_OPTION_STRING, offsetof(struct rn_url_args, url), "where the daemon is (default: $RUNNEL_URL, " RN_CLIENT_URL ")"},
};

int rn_url_resolve(const struct rn_url_args *args, struct rn_client_address *ret, struct rn_err *err)
{
    const char *url = args->url ? args->url : getenv("RUNNEL_URL");
    return rn_client_parse_url(url && *url ? url : RN_CLIENT_URL, ret, err);
}

const char *rn_url_error_text(const json_t *body)
{
    return json_string_value(json_object_get(json_object_get(body, "error"), "message"));
}

int rn_url_exit_code(int status)
{
    switch (status) {
    case 401:
    case 403:
    case 421:
        return RN_CLI_DENIED;
    case 429:
    case 502:
    case 503:
    case 504:
        return RN_CLI_UNAVAILABLE;
    default:
        return RN_CLI_FAILED;
    }
}
