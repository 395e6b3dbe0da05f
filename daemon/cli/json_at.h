/* Members of a JSON object by name, for printing: what is absent or of another kind is NULL, "" or 0. Pure. */
#pragma once

#include <jansson.h>

static inline const json_t *at(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

static inline const char *text_at(const json_t *o, const char *key)
{
    const char *s = json_string_value(at(o, key));
    return s ? s : "";
}

static inline double number_at(const json_t *o, const char *key)
{
    return json_number_value(at(o, key));
}
