/* Command buffers of the plan, recorded once per bucket and replayed.
 *
 * Between two dispatches stands a barrier only where one reads or overwrites what the other wrote since the last barrier. Barriers hold
 * across the command buffers of a pass, which go to one queue in order. A piece writes a timestamp at its start and its end; while
 * profiling, after every dispatch too. */
#include "runtime/vulkan/plan_internal.h"

#include "runtime/base/err.h"
#include "runtime/base/mem.h"

/* ---- kernels and shapes ---------------------------------------------------------------------------------------------------------------- */

const struct rn_vk_kernel *rn_vk_task_kernel(const struct rn_vk *vk, const struct rn_vk_task *task, uint32_t n_rows)
{
    bool many = task->op == RN_VK_MATVEC && n_rows > RN_VK_FEW_ROWS;
    return rn_vk_kernel_find(vk->device, many ? RN_VK_MATMAT : task->op, task->type);
}

/* ---- recordings ------------------------------------------------------------------------------------------------------------------------ */

/* Timestamps of the part that makes logits end where those of the main part begin, so that one call reads both. */
static uint32_t max_queries(const struct rn_vk *vk, bool last)
{
    uint32_t n = last ? vk->n_tasks - vk->n_main : vk->n_main;
    return n + 2 * (last ? 1 : vk->n_borders);
}

int rn_vk_record_init(struct rn_vk *vk, struct rn_err *err)
{
    for (uint32_t i = 0; i < RN_VK_ROW_BUCKETS; i++) {
        vk->main[i].n_rows = 1u << i;
        vk->main[i].query0 = max_queries(vk, true);
    }
    for (uint32_t i = 0; i < RN_VK_WANTED_BUCKETS; i++) {
        vk->last[i].n_rows = 1u << i;
        vk->last[i].n_pieces = 1;
    }
    if (vk->device->ns_per_tick <= 0) {
        return 0;
    }
    vk->n_queries = max_queries(vk, true) + max_queries(vk, false);
    vk->ticks = rn_mem_alloc(vk->n_queries, sizeof *vk->ticks);
    if (!vk->ticks) {
        return rn_err_nomem(err, vk->n_queries * sizeof *vk->ticks, "timestamps");
    }
    VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                  .queryCount = vk->n_queries};
    return rn_vk_check(vk->device, vkCreateQueryPool(vk->device->device, &info, NULL, &vk->queries), "vkCreateQueryPool", err);
}

void rn_vk_record_drop(struct rn_vk *vk, struct rn_vk_recording *rec)
{
    if (rec->n_commands && !vk->device->abandoned) {
        vkFreeCommandBuffers(vk->device->device, vk->device->command_pool, rec->n_commands, rec->commands);
    }
    rn_mem_free(rec->commands);
    rn_mem_free(rec->marks);
    rec->commands = NULL;
    rec->marks = NULL;
    rec->n_commands = 0;
    rec->n_dispatches = 0;
    rec->n_queries = 0;
}

void rn_vk_record_drop_all(struct rn_vk *vk)
{
    for (uint32_t i = 0; i < RN_VK_ROW_BUCKETS; i++) {
        rn_vk_record_drop(vk, &vk->main[i]);
    }
    for (uint32_t i = 0; i < RN_VK_WANTED_BUCKETS; i++) {
        rn_vk_record_drop(vk, &vk->last[i]);
    }
    if (vk->refresh && !vk->device->abandoned) {
        vkFreeCommandBuffers(vk->device->device, vk->device->command_pool, 1, &vk->refresh);
    }
    vk->refresh = VK_NULL_HANDLE;
}

void rn_vk_record_finish(struct rn_vk *vk)
{
    rn_vk_record_drop_all(vk);
    if (vk->queries && !vk->device->abandoned) {
        vkDestroyQueryPool(vk->device->device, vk->queries, NULL);
    }
    vk->queries = VK_NULL_HANDLE;
    rn_mem_free(vk->ticks);
    vk->ticks = NULL;
}

/* ---- recording --------------------------------------------------------------------------------------------------------------------------- */

struct recorder {
    struct rn_vk *vk;
    struct rn_vk_recording *rec;
    VkCommandBuffer commands;
    uint32_t reads, writes; /* since the last barrier */
    struct rn_err *err;
};

static int begin(struct rn_vk *vk, VkCommandBuffer *ret, struct rn_err *err)
{
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = vk->device->command_pool,
                                        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    VkCommandBufferBeginInfo start = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    int r = rn_vk_check(vk->device, vkAllocateCommandBuffers(vk->device->device, &info, ret), "vkAllocateCommandBuffers", err);
    if (r < 0) {
        *ret = VK_NULL_HANDLE;
        return r;
    }
    return rn_vk_check(vk->device, vkBeginCommandBuffer(*ret, &start), "vkBeginCommandBuffer", err);
}

static void barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags wrote, VkPipelineStageFlags to, VkAccessFlags reads)
{
    VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = wrote, .dstAccessMask = reads};
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &all, 0, NULL, 0, NULL);
}

static void mark(struct recorder *r, uint32_t what)
{
    struct rn_vk_recording *rec = r->rec;
    if (!r->vk->queries) {
        return;
    }
    rec->marks[rec->n_queries] = what;
    VkPipelineStageFlagBits stage = what == RN_VK_MARK_START ? VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT : VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT;
    vkCmdWriteTimestamp(r->commands, stage, r->vk->queries, rec->query0 + rec->n_queries++);
}

static void wait_for_writes(struct recorder *r, const struct rn_vk_task *t)
{
    if ((r->writes & (t->reads | t->writes)) || (r->reads & t->writes)) {
        barrier(r->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
        r->reads = r->writes = 0;
    }
    r->reads |= t->reads;
    r->writes |= t->writes;
}

static void dispatch_tables(struct recorder *r, const struct rn_vk_task *t, uint32_t which)
{
    vkCmdDispatchIndirect(r->commands, r->vk->step.buffer, r->vk->places.groups[t->group].indirect + 16 * which);
}

static int record_task(struct recorder *r, uint32_t index)
{
    struct rn_vk *vk = r->vk;
    const struct rn_vk_task *t = &vk->tasks[index];
    const uint32_t n_rows = r->rec->n_rows;
    const bool split = n_rows <= RN_VK_FEW_ROWS;
    if ((t->op == RN_VK_COMBINE && !split) || (t->many_only && split)) {
        return 0;
    }
    const struct rn_vk_kernel *k = rn_vk_task_kernel(vk, t, n_rows);
    if (!k) {
        return rn_err_set(r->err, -ENOTSUP, "no kernel of the GPU is left for operation '%s'", rn_op_kind_name(t->kind));
    }
    union rn_vk_args args = t->args;
    if (t->op == RN_VK_ATTEND && split) {
        args.attend.flags |= RN_ATTEND_SPLIT;
    }
    struct rn_vk_shape shape;
    rn_vk_shape_of(&shape, vk->device, vk->program, k, &args, n_rows);
    VkPipeline pipeline;
    int ret = rn_vk_pipeline(&pipeline, vk->device, k, shape.specs, shape.n_specs, r->err);
    if (ret < 0) {
        return ret;
    }
    wait_for_writes(r, t);
    vkCmdBindPipeline(r->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(r->commands, rn_vk_layout(vk->device), VK_SHADER_STAGE_COMPUTE_BIT, 0, k->args_bytes, &args);
    if (t->op == RN_VK_ATTEND || t->op == RN_VK_COMBINE) {
        dispatch_tables(r, t, t->op == RN_VK_COMBINE ? 2 : split ? 0 : 1);
    } else {
        vkCmdDispatch(r->commands, shape.groups[0], shape.groups[1], shape.groups[2]);
    }
    r->rec->n_dispatches++;
    if (vk->profiling) {
        mark(r, index);
    }
    return 0;
}

/* Brings what the host wrote for so many rows to the device. rows 0: the header alone. */
static void record_upload(struct recorder *r, uint32_t n_rows)
{
    struct rn_vk *vk = r->vk;
    const struct rn_vk_places *pl = &vk->places;
    VkBufferCopy copies[4] = {{.size = pl->header_bytes}};
    vkCmdCopyBuffer(r->commands, vk->upload.buffer, vk->step.buffer, 1, copies);
    for (uint32_t g = 0; n_rows && g < vk->program->n_groups; g++) {
        const struct rn_vk_group_place *at = &pl->groups[g];
        uint32_t n_chunks = n_rows <= RN_VK_FEW_ROWS ? pl->cap_split : pl->cap_chunks;
        copies[0] = (VkBufferCopy){at->tiles, at->tiles, n_rows * sizeof(struct rn_vk_tile)};
        copies[1] = (VkBufferCopy){at->cells, at->cells, n_rows * sizeof(struct rn_vk_cell)};
        copies[2] = (VkBufferCopy){at->chunks, at->chunks, n_chunks * sizeof(struct rn_vk_chunk)};
        vkCmdCopyBuffer(r->commands, vk->upload.buffer, vk->step.buffer, 3, copies);
    }
    size_t angles = (size_t)n_rows * vk->program->n_ropes * 2 * vk->angle_stride * sizeof(float);
    if (angles) {
        copies[0] = (VkBufferCopy){pl->angles, pl->angles, angles};
        vkCmdCopyBuffer(r->commands, vk->upload.buffer, vk->step.buffer, 1, copies);
    }
    if (n_rows && !vk->embeds) {
        copies[0] = (VkBufferCopy){pl->x_in, vk->work_x, (size_t)n_rows * vk->ld[RN_VAL_X] * sizeof(float)};
        vkCmdCopyBuffer(r->commands, vk->upload.buffer, vk->work.buffer, 1, copies);
    }
    barrier(r->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_INDIRECT_COMMAND_READ_BIT);
}

/* Brings a result to where the host reads it. */
static void record_readback(struct recorder *r, VkBuffer from, size_t at, size_t bytes)
{
    VkBufferCopy copy = {.srcOffset = at, .size = bytes};
    barrier(r->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_TRANSFER_READ_BIT);
    vkCmdCopyBuffer(r->commands, from, r->vk->readback.buffer, 1, &copy);
    barrier(r->commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
}

/* Command buffers and marks of an empty recording. */
static int make_room(struct rn_vk *vk, struct rn_vk_recording *rec, bool last, struct rn_err *err)
{
    rec->commands = rn_mem_alloc(rec->n_pieces, sizeof *rec->commands);
    rec->marks = rn_mem_alloc(max_queries(vk, last), sizeof *rec->marks);
    return rec->commands && rec->marks ? 0 : rn_err_nomem(err, max_queries(vk, last) * sizeof *rec->marks, "a recording");
}

static int piece_begin(struct recorder *r)
{
    int ret = begin(r->vk, &r->commands, r->err);
    if (r->commands) {
        r->rec->commands[r->rec->n_commands++] = r->commands;
    }
    return ret;
}

/* `most`: queries that the piece may write. */
static void piece_start(struct recorder *r, uint32_t most)
{
    if (r->vk->queries) {
        vkCmdResetQueryPool(r->commands, r->vk->queries, r->rec->query0 + r->rec->n_queries, most);
    }
    mark(r, RN_VK_MARK_START);
}

static int record_tasks(struct recorder *r, uint32_t from, uint32_t to)
{
    int ret = 0;
    for (uint32_t i = from; i < to && ret == 0; i++) {
        ret = record_task(r, i);
    }
    return ret;
}

static int piece_end(struct recorder *r)
{
    mark(r, RN_VK_MARK_END);
    return rn_vk_check(r->vk->device, vkEndCommandBuffer(r->commands), "vkEndCommandBuffer", r->err);
}

/* First task of a piece: pieces have the same number of layers, or nearly. */
static uint32_t piece_task(const struct rn_vk *vk, uint32_t piece, uint32_t n_pieces)
{
    return piece == n_pieces ? vk->n_main : vk->borders[(uint64_t)vk->n_borders * piece / n_pieces];
}

static int record_main_piece(struct recorder *r, uint32_t piece)
{
    struct rn_vk *vk = r->vk;
    const uint32_t n = r->rec->n_pieces, from = piece_task(vk, piece, n), to = piece_task(vk, piece + 1, n);
    int ret = piece_begin(r);
    if (ret < 0) {
        return ret;
    }
    piece_start(r, (vk->profiling ? to - from : 0) + 2);
    if (piece == 0) {
        record_upload(r, r->rec->n_rows);
    }
    ret = record_tasks(r, from, to);
    if (piece + 1 == n && !vk->makes_logits && ret == 0) {
        record_readback(r, vk->work.buffer, vk->work_x, (size_t)r->rec->n_rows * vk->ld[RN_VAL_X] * sizeof(float));
    }
    return ret < 0 ? ret : piece_end(r);
}

int rn_vk_record_main(struct rn_vk *vk, struct rn_vk_recording *rec, struct rn_err *err)
{
    if (rec->n_commands) {
        return 0;
    }
    struct recorder r = {.vk = vk, .rec = rec, .err = err};
    int ret = make_room(vk, rec, /*last=*/false, err);
    for (uint32_t piece = 0; piece < rec->n_pieces && ret == 0; piece++) {
        ret = record_main_piece(&r, piece);
    }
    if (ret < 0) {
        rn_vk_record_drop(vk, rec);
    }
    return ret;
}

static int record_last(struct recorder *r)
{
    struct rn_vk *vk = r->vk;
    int ret = piece_begin(r);
    if (ret < 0) {
        return ret;
    }
    const uint32_t n_queries = 2 + (vk->profiling ? vk->n_tasks - vk->n_main : 0);
    r->rec->query0 = max_queries(vk, true) - n_queries;
    piece_start(r, n_queries);
    r->writes = RN_VK_RES_ALL; // by the main part
    ret = record_tasks(r, vk->n_main, vk->n_tasks);
    record_readback(r, vk->logits.buffer, 0, (size_t)r->rec->n_rows * vk->ld_logits * sizeof(float));
    return ret < 0 ? ret : piece_end(r);
}

int rn_vk_record_last(struct rn_vk *vk, struct rn_vk_recording *rec, struct rn_err *err)
{
    if (rec->n_commands) {
        return 0;
    }
    struct recorder r = {.vk = vk, .rec = rec, .err = err};
    int ret = make_room(vk, rec, /*last=*/true, err);
    ret = ret < 0 ? ret : record_last(&r);
    if (ret < 0) {
        rn_vk_record_drop(vk, rec);
    }
    return ret;
}

int rn_vk_record_refresh(struct rn_vk *vk, struct rn_err *err)
{
    if (vk->refresh) {
        return 0;
    }
    struct recorder r = {.vk = vk, .err = err};
    int ret = begin(vk, &r.commands, err);
    if (ret == 0) {
        record_upload(&r, 0);
        ret = rn_vk_check(vk->device, vkEndCommandBuffer(r.commands), "vkEndCommandBuffer", err);
    }
    if (ret < 0 && r.commands) {
        vkFreeCommandBuffers(vk->device->device, vk->device->command_pool, 1, &r.commands);
        r.commands = VK_NULL_HANDLE;
    }
    vk->refresh = r.commands;
    return ret;
}
