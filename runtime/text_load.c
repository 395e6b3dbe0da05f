/* The text side of a model file alone, without its weights. Also for files that have nothing but a vocabulary. */
#include "runtime/model/gguf.h"
#include "runtime/text.h"

int rn_text_load(struct rn_text **ret, const char *path, struct rn_err *err)
{
    struct rn_gguf *g;
    int r = rn_gguf_open(&g, path, err);
    if (r < 0) {
        return r;
    }
    r = rn_text_create(ret, g, err);
    rn_gguf_close(g);
    return r;
}
