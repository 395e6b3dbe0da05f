/* gpu.h where the build has no Vulkan: there are no devices, and the backend does not load. */
#include "runtime/vulkan/gpu.h"

#include "runtime/base/err.h"

static int no_vulkan(struct rn_err *err)
{
    return rn_err_set(err, -ENOTSUP, "this build has no Vulkan (meson option 'vulkan')");
}

static int none_load(struct rn_backend **ret, const struct rn_program *program, const struct rn_backend_params *params, struct rn_err *err)
{
    (void)ret;
    (void)program;
    (void)params;
    return no_vulkan(err);
}

const struct rn_backend_ops rn_vulkan_backend = {.name = "vulkan", .load = none_load};

int rn_gpu_list(struct rn_gpu_info **ret, size_t *ret_n, const char *mask, struct rn_err *err)
{
    (void)ret;
    (void)ret_n;
    (void)mask;
    return no_vulkan(err);
}

void rn_gpu_list_free(struct rn_gpu_info *list)
{
    (void)list;
}

int rn_gpu_rights(struct rn_err *err)
{
    (void)err;
    return 0;
}
