#include "daemon/json_text.h"

#include <errno.h>
#include <stdbool.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

// Looks only at brackets, commas and quotes: whatever it lets through still has to be JSON for the parser.
static int check_limits(const char *data, size_t len, struct rn_err *err)
{
    size_t depth = 0, values = 1;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = data[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            values++;
            if (++depth > RN_JSON_DEPTH) {
                return rn_err_set(err, -EINVAL, "the JSON is nested deeper than %d levels", RN_JSON_DEPTH);
            }
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == ',' && ++values > RN_JSON_VALUES) {
            return rn_err_set(err, -EINVAL, "the JSON has more than %d values", RN_JSON_VALUES);
        }
    }
    return 0;
}

int rn_json_parse(const char *data, size_t len, json_t **ret, struct rn_err *err)
{
    json_error_t why;
    int r = check_limits(data, len, err);
    if (r < 0) {
        return r;
    }
    json_t *v = json_loadb(data, len, 0, &why);
    if (!v) {
        bool no_memory = json_error_code(&why) == json_error_out_of_memory;
        // The parser quotes what it met; only its position and kind go on, so that no text of a user reaches a log or another reader.
        return no_memory ? rn_err_nomem(err, len, "JSON")
                         : rn_err_set(err, -EINVAL, "the message is not JSON: line %d, column %d", why.line, why.column);
    }
    if (!json_is_object(v)) {
        json_decref(v);
        return rn_err_set(err, -EINVAL, "the message is not a JSON object");
    }
    *ret = v;
    return 0;
}

int rn_json_add_string(struct rn_buf *b, const char *s, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    if (rn_buf_reserve(b, len + 2) < 0 || rn_buf_add_char(b, '"') < 0) {
        return -ENOMEM;
    }
    size_t from = 0;
    for (size_t i = 0; i <= len; i++) {
        unsigned char c = i < len ? (unsigned char)s[i] : '"';
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        if (rn_buf_add(b, s + from, i - from) < 0) {
            return -ENOMEM;
        }
        from = i + 1;
        char escape[7] = {'\\', (char)c, 0};
        if (c == '\n') {
            escape[1] = 'n';
        } else if (c == '\t') {
            escape[1] = 't';
        } else if (c == '\r') {
            escape[1] = 'r';
        } else if (c < 0x20) {
            escape[1] = 'u';
            escape[2] = escape[3] = '0';
            escape[4] = hex[c >> 4];
            escape[5] = hex[c & 15];
        }
        if (i < len && rn_buf_add_str(b, escape) < 0) {
            return -ENOMEM;
        }
    }
    return rn_buf_add_char(b, '"');
}

static int add_bytes(const char *data, size_t len, void *user)
{
    return rn_buf_add(user, data, len);
}

int rn_json_add(struct rn_buf *b, const json_t *v)
{
    // 15 digits: what people typed as 0.7 comes back as 0.7.
    return json_dump_callback(v, add_bytes, b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) < 0 ? -ENOMEM : 0;
}
