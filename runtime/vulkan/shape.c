/* How a kernel is dispatched: the heads of shaders/<op>.comp, in C. */
#include "runtime/vulkan/plan_internal.h"

#define MATVEC_PAIRS 8   // invocations for 16 rows of a matrix
#define MATVEC_SLICES 16 // at most

static uint32_t div_up(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

static void set_specs(struct rn_vk_shape *s, uint32_t a, uint32_t b)
{
    s->specs[0] = a;
    s->specs[1] = b;
    s->n_specs = 2;
}

/* Tiles of `rows` matrix rows over all parts. */
static uint32_t product_tiles(const struct rn_args_product *a, uint32_t rows)
{
    bool one = a->flags & (RN_PRODUCT_GATED | RN_PRODUCT_THEN_QUANT);
    return div_up(a->rows0, rows) + (one ? 0 : div_up(a->rows1, rows) + div_up(a->rows2, rows));
}

static void shape_matvec(struct rn_vk_shape *s, const struct rn_vk_device *d, const struct rn_vk_kernel *k, const struct rn_args_product *a,
                         uint32_t n_rows)
{
    uint32_t segments = rn_dtype_is_float(k->type) ? a->n_groups : div_up(a->n_groups, 4);
    uint32_t slices = d->is_cpu ? 1 : segments < MATVEC_SLICES ? segments : MATVEC_SLICES;
    uint32_t blocks = a->flags & RN_PRODUCT_THEN_QUANT ? 2 : 1;
    set_specs(s, n_rows, MATVEC_PAIRS * blocks * slices);
    s->specs[s->n_specs++] = blocks;
    s->groups[0] = product_tiles(a, 16 * blocks);
}

void rn_vk_coop_specs(uint32_t ret[RN_VK_COOP_SPECS], const struct rn_vk_device *d, uint32_t tokens)
{
    const uint32_t specs[RN_VK_COOP_SPECS] = {tokens, 64 / d->coop_m * d->subgroup_size, d->subgroup_size, d->coop_m, d->coop_n, d->coop_k};
    for (uint32_t i = 0; i < RN_VK_COOP_SPECS; i++) {
        ret[i] = specs[i];
    }
}

static void shape_matmat_coop(struct rn_vk_shape *s, const struct rn_vk_device *d, const struct rn_args_product *a, uint32_t n_rows)
{
    // Larger tiles read weights less often. Software gains nothing by that, and its compiler takes many times longer.
    uint32_t tokens = n_rows <= 16 || d->is_cpu ? 16 : n_rows <= 32 ? 32 : 64;
    rn_vk_coop_specs(s->specs, d, tokens);
    s->n_specs = RN_VK_COOP_SPECS;
    s->groups[0] = product_tiles(a, 64);
    s->groups[1] = div_up(n_rows, tokens);
}

static void shape_matmat(struct rn_vk_shape *s, const struct rn_vk_device *d, const struct rn_vk_kernel *k, const struct rn_args_product *a,
                         uint32_t n_rows)
{
    if (k->needs & RN_VK_COOPMAT) {
        shape_matmat_coop(s, d, a, n_rows);
        return;
    }
    uint32_t tokens = n_rows <= 16 ? 4 : 8;
    set_specs(s, tokens, 128);
    s->groups[0] = product_tiles(a, 64);
    s->groups[1] = div_up(n_rows, 4 * tokens);
}

/* Workgroups per row. */
static uint32_t prepare_shares(const struct rn_args_prepare *a)
{
    return a->flags & RN_PREPARE_NORM ? 1 : div_up(a->n_groups, 32);
}

void rn_vk_shape_of(struct rn_vk_shape *ret, const struct rn_vk_device *d, const struct rn_program *p, const struct rn_vk_kernel *k,
                    const union rn_vk_args *args, uint32_t n_rows)
{
    *ret = (struct rn_vk_shape){.groups = {1, 1, 1}};
    switch (k->op) {
    case RN_VK_EMBED:
        set_specs(ret, 0, 32);
        ret->groups[0] = div_up(div_up(args->embed.cols, 32), 32);
        ret->groups[1] = n_rows;
        break;
    case RN_VK_PREPARE:
        set_specs(ret, 0, 256);
        ret->groups[0] = n_rows;
        ret->groups[1] = prepare_shares(&args->prepare);
        break;
    case RN_VK_MATVEC:
        shape_matvec(ret, d, k, &args->product, n_rows);
        break;
    case RN_VK_MATMAT:
        shape_matmat(ret, d, k, &args->product, n_rows);
        break;
    case RN_VK_ROPE_KV:
        ret->groups[0] = n_rows;
        ret->groups[1] = div_up((args->rope_kv.heads & 0xffff) + 2 * (args->rope_kv.heads >> 16), 2);
        break;
    case RN_VK_ATTEND:
        rn_vk_attend_specs(ret->specs, p, n_rows, args->attend.flags);
        ret->n_specs = RN_VK_ATTEND_SPECS;
        break;
    default:
        break;
    }
}
