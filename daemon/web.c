#include "daemon/web.h"

#include <string.h>

const struct rn_web_file *rn_web_find(const char *path)
{
    size_t low = 0, high = rn_web_n_files;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int order = strcmp(path, rn_web_files[mid].path);
        if (order == 0) {
            return &rn_web_files[mid];
        }
        if (order < 0) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return NULL;
}
