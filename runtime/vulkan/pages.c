/* KV pages in device memory: copies of their first tokens, and poison for tests. The layout is told in vulkan_internal.h.
 * Thread: the one that calls rn_backend_ops; the device's queue is idle between steps. */
#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/vulkan/vulkan_internal.h"

#define POISON 0x7bff7e00u // two halves, a NaN and 65504: neither survives in a sum unnoticed

/* Between what earlier submits wrote, a transfer, and whatever reads it later. */
static void fence_transfer(VkCommandBuffer commands, bool before)
{
    const VkAccessFlags any = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
    const VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                 .srcAccessMask = before ? VK_ACCESS_MEMORY_WRITE_BIT : VK_ACCESS_TRANSFER_WRITE_BIT,
                                 .dstAccessMask = before ? VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT : any};
    VkPipelineStageFlags from = before ? VK_PIPELINE_STAGE_ALL_COMMANDS_BIT : VK_PIPELINE_STAGE_TRANSFER_BIT;
    VkPipelineStageFlags to = before ? VK_PIPELINE_STAGE_TRANSFER_BIT : VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &all, 0, NULL, 0, NULL);
}

/* ---- copies ---------------------------------------------------------------------------------------------------------------------------- */

/* Regions of one K and V pair: tokens are adjacent within a row of `stride` bytes. */
struct rows {
    size_t at, stride, token_bytes;
    uint32_t n;
};

#define PAIR_ROWS 4

static void pair_rows(struct rows ret[PAIR_ROWS], bool q8, uint32_t head_dim)
{
    const uint32_t unit = q8 ? 16 : 8; // dimensions of a K row, of 16 bytes per token
    size_t part = rn_kv_part_bytes(q8, head_dim), values = (size_t)RN_PAGE_TOKENS * head_dim, scales = q8 ? head_dim / 32 : 0;
    ret[0] = (struct rows){.at = 0, .stride = (size_t)RN_PAGE_TOKENS * 16, .token_bytes = 16, .n = head_dim / unit};
    ret[1] = (struct rows){.at = values, .stride = (size_t)RN_PAGE_TOKENS * 2, .token_bytes = 2, .n = (uint32_t)scales};
    ret[2] = (struct rows){.at = part, .stride = 0, .token_bytes = q8 ? head_dim : 2 * (size_t)head_dim, .n = 1};
    ret[3] = (struct rows){.at = part + values, .stride = 0, .token_bytes = 2 * scales, .n = scales ? 1 : 0};
}

static uint32_t pair_regions(VkBufferCopy *ret, const struct rows rows[PAIR_ROWS], size_t to_at, size_t from_at, uint32_t n_tokens)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < PAIR_ROWS; k++) {
        for (uint32_t i = 0; i < rows[k].n; i++) {
            size_t at = rows[k].at + i * rows[k].stride;
            ret[n++] = (VkBufferCopy){.srcOffset = from_at + at, .dstOffset = to_at + at, .size = n_tokens * rows[k].token_bytes};
        }
    }
    return n;
}

int rn_vk_page_copy(struct rn_vk_device *d, const struct rn_program *p, uint32_t group, bool q8, const struct rn_vk_buffer *to, size_t to_at,
                    const struct rn_vk_buffer *from, size_t from_at, uint32_t n_tokens, struct rn_err *err)
{
    if (n_tokens >= RN_PAGE_TOKENS) {
        return rn_vk_copy(d, to, to_at, from, from_at, rn_kv_parts_bytes(q8, p, group), err);
    }
    struct rows rows[PAIR_ROWS];
    pair_rows(rows, q8, p->head_dim);
    size_t pair = 2 * rn_kv_part_bytes(q8, p->head_dim), n_pairs = (size_t)p->groups[group].n_layers * p->n_kv_heads;
    size_t per_pair = (size_t)rows[0].n + rows[1].n + rows[2].n + rows[3].n;
    VkBufferCopy *regions = rn_mem_alloc(n_pairs * per_pair, sizeof *regions);
    if (!regions) {
        return rn_err_nomem(err, n_pairs * per_pair * sizeof *regions, "the copy of a page");
    }
    uint32_t n = 0;
    for (size_t i = 0; i < n_pairs && n_tokens > 0; i++) {
        n += pair_regions(regions + n, rows, to_at + i * pair, from_at + i * pair, n_tokens);
    }
    VkCommandBuffer commands;
    int r = n ? rn_vk_commands_begin(d, &commands, err) : 0;
    if (r == 0 && n) {
        fence_transfer(commands, true);
        vkCmdCopyBuffer(commands, from->buffer, to->buffer, n, regions);
        fence_transfer(commands, false);
        r = rn_vk_commands_run(d, commands, err);
    }
    rn_mem_free(regions);
    return r;
}

int rn_vk_page_poison(struct rn_vk_device *d, const struct rn_vk_buffer *b, size_t at, size_t bytes, struct rn_err *err)
{
    VkCommandBuffer commands;
    int r = rn_vk_commands_begin(d, &commands, err);
    if (r < 0) {
        return r;
    }
    fence_transfer(commands, true);
    vkCmdFillBuffer(commands, b->buffer, at, bytes, POISON);
    fence_transfer(commands, false);
    return rn_vk_commands_run(d, commands, err);
}
