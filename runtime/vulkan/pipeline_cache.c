/* Compiled pipelines over restarts: VkPipelineCache's data in a file of our own.
 *
 *   cache_dir/vulkan-<device UUID><driver UUID>.pipelines:  struct header, then `bytes` bytes for the driver
 *
 * A driver may crash on data that is not its own, so the file is read as any input is: magic, ids, sizes and a checksum are right, and the
 * driver's own header (Vulkan 1.2, table "Layout for pipeline cache header version one") names this device, or it is dropped. The
 * checksum of the SPIR-V drops what another build of Runnel left. Written to a temporary file and renamed: readers see a whole file.
 * owner: the thread that calls rn_backend_ops. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "runtime/base/err.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/vulkan/vulkan_internal.h"

#define MAX_BYTES ((uint64_t)256 << 20) /* a file larger than this is damaged: a cache has at most a few MiB */

struct header {
    char magic[8];
    uint8_t id[2 * VK_UUID_SIZE];
    uint64_t kernels;  /* checksum of all SPIR-V */
    uint64_t bytes;    /* after the header */
    uint64_t checksum; /* of those */
};

static const char magic[8] = {'r', 'n', '-', 'v', 'k', 'p', 'c', '1'};

static uint64_t kernels_checksum(void)
{
    size_t n;
    const struct rn_vk_kernel *rows = rn_vk_kernels(&n);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum = XXH64(rows[i].spirv, rows[i].spirv_bytes, sum);
    }
    return sum;
}

static char *path_in(const struct rn_vk_device *d, const char *dir)
{
    struct rn_buf path = {0};
    int r = rn_buf_printf(&path, "%s/vulkan-", dir);
    for (size_t i = 0; r == 0 && i < sizeof d->cache_id; i++) {
        r = rn_buf_printf(&path, "%02x", d->cache_id[i]);
    }
    if (r == 0) {
        r = rn_buf_add_str(&path, ".pipelines");
    }
    if (r != 0) {
        rn_buf_finish(&path);
    }
    return path.data;
}

/* ---- Reading ---------------------------------------------------------------------------------------------------------------------------- */

static int read_all(int fd, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, (char *)to + done, bytes - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return -EIO;
        }
        done += (size_t)n;
    }
    return 0;
}

/* Does the driver's header name this device? */
static bool is_for_device(const struct rn_vk_device *d, const void *data, uint64_t bytes)
{
    VkPipelineCacheHeaderVersionOne head;
    VkPhysicalDeviceProperties properties;
    if (bytes < sizeof head) {
        return false;
    }
    memcpy(&head, data, sizeof head);
    vkGetPhysicalDeviceProperties(d->physical, &properties);
    return head.headerSize == sizeof head && head.headerVersion == VK_PIPELINE_CACHE_HEADER_VERSION_ONE && head.vendorID == properties.vendorID &&
           head.deviceID == properties.deviceID && memcmp(head.pipelineCacheUUID, properties.pipelineCacheUUID, VK_UUID_SIZE) == 0;
}

/* What is wrong with the file, or NULL and its data. */
static const char *read_file(const struct rn_vk_device *d, int fd, void **ret, uint64_t *ret_bytes)
{
    struct header head;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || read_all(fd, &head, sizeof head) != 0 || memcmp(head.magic, magic, sizeof magic) != 0) {
        return "it is no cache of pipelines";
    }
    if (memcmp(head.id, d->cache_id, sizeof head.id) != 0) {
        return "it is of another device or driver";
    }
    if (head.kernels != kernels_checksum()) {
        return "it is of other kernels";
    }
    if (head.bytes > MAX_BYTES || head.bytes + sizeof head != (uint64_t)st.st_size) {
        return "its size is wrong";
    }
    void *data = rn_mem_alloc(1, head.bytes);
    if (!data) {
        return "there is no memory for it";
    }
    const char *wrong = NULL;
    if (read_all(fd, data, head.bytes) != 0 || XXH64(data, head.bytes, 0) != head.checksum) {
        wrong = "its checksum is wrong";
    } else if (!is_for_device(d, data, head.bytes)) {
        wrong = "the driver's part is of another device";
    }
    if (wrong) {
        rn_mem_free(data);
        return wrong;
    }
    *ret = data;
    *ret_bytes = head.bytes;
    return NULL;
}

static void load(struct rn_vk_device *d, void **ret, uint64_t *ret_bytes)
{
    int fd = open(d->cache_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return; // none yet
    }
    const char *wrong = read_file(d, fd, ret, ret_bytes);
    close(fd);
    if (wrong) {
        rn_log(RN_LOG_DEBUG, "dropped the cache of pipelines '%s': %s", d->cache_path, wrong);
    }
}

int rn_vk_cache_open(struct rn_vk_device *d, const char *cache_dir, struct rn_err *err)
{
    void *data = NULL;
    uint64_t bytes = 0;
    if (cache_dir && cache_dir[0]) {
        d->cache_path = path_in(d, cache_dir);
        if (!d->cache_path) {
            return rn_err_nomem(err, strlen(cache_dir), "the path of the pipeline cache");
        }
        load(d, &data, &bytes);
    }
    VkPipelineCacheCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, .initialDataSize = (size_t)bytes, .pInitialData = data};
    VkResult result = vkCreatePipelineCache(d->device, &info, NULL, &d->pipeline_cache);
    if (result < 0 && data) { // the driver did not like it after all
        rn_log(RN_LOG_DEBUG, "dropped the cache of pipelines '%s': the driver refused it", d->cache_path);
        info.initialDataSize = 0;
        info.pInitialData = NULL;
        result = vkCreatePipelineCache(d->device, &info, NULL, &d->pipeline_cache);
    }
    d->cache_loaded = data && info.initialDataSize > 0;
    rn_mem_free(data);
    return rn_vk_check(d, result, "creating a pipeline cache", err);
}

/* ---- Writing ---------------------------------------------------------------------------------------------------------------------------- */

static int write_all(int fd, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *)from + done, bytes - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -errno;
        }
        done += (size_t)n;
    }
    return 0;
}

/* Opens the temporary file; makes the directory if it is not there yet. */
static int create_file(const struct rn_vk_device *d, const char *path)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    int fd = open(path, flags, 0600);
    if (fd < 0 && errno == ENOENT) {
        char *dir = rn_mem_strndup(d->cache_path, (size_t)(strrchr(d->cache_path, '/') - d->cache_path));
        fd = dir && mkdir(dir, 0700) == 0 ? open(path, flags, 0600) : -1;
        rn_mem_free(dir);
    }
    return fd < 0 ? (errno > 0 ? -errno : -EIO) : fd;
}

/* The temporary file's name has the process in it: two of them may write at once, and the later rename wins. */
static int write_file(const struct rn_vk_device *d, const struct header *head, const void *data)
{
    struct rn_buf path = {0};
    int r = rn_buf_printf(&path, "%s.%ld", d->cache_path, (long)getpid());
    if (r != 0) {
        return r;
    }
    int fd = create_file(d, path.data);
    r = fd < 0 ? fd : write_all(fd, head, sizeof *head);
    if (r == 0) {
        r = write_all(fd, data, head->bytes);
    }
    if (fd >= 0 && close(fd) != 0 && r == 0) {
        r = -errno;
    }
    if (r == 0 && rename(path.data, d->cache_path) != 0) {
        r = -errno;
    }
    if (r != 0 && fd >= 0) {
        (void)unlink(path.data); // what is left of it is of no use
    }
    rn_buf_finish(&path);
    return r;
}

/* The driver's data; NULL: none (some drivers have not even a header), or no memory. */
static void *get_data(struct rn_vk_device *d, size_t *ret_bytes)
{
    size_t bytes = 0;
    VkResult result = vkGetPipelineCacheData(d->device, d->pipeline_cache, &bytes, NULL);
    if (result != VK_SUCCESS || bytes == 0 || bytes > MAX_BYTES) {
        return NULL;
    }
    void *data = rn_mem_alloc(1, bytes);
    result = data ? vkGetPipelineCacheData(d->device, d->pipeline_cache, &bytes, data) : VK_ERROR_OUT_OF_HOST_MEMORY;
    if (result != VK_SUCCESS || bytes < sizeof(VkPipelineCacheHeaderVersionOne)) {
        rn_mem_free(data);
        return NULL;
    }
    *ret_bytes = bytes;
    return data;
}

void rn_vk_cache_save(struct rn_vk_device *d)
{
    if (!d->cache_path || !d->pipeline_cache || d->n_unsaved == 0 || d->lost) {
        return;
    }
    d->n_unsaved = 0;
    size_t bytes = 0;
    void *data = get_data(d, &bytes);
    if (!data) {
        rn_log(RN_LOG_DEBUG, "the driver gave no cache of pipelines");
        return;
    }
    struct header head = {.kernels = kernels_checksum(), .bytes = bytes, .checksum = XXH64(data, bytes, 0)};
    memcpy(head.magic, magic, sizeof magic);
    memcpy(head.id, d->cache_id, sizeof head.id);
    int r = write_file(d, &head, data);
    if (r != 0) {
        rn_log(RN_LOG_DEBUG, "could not write the cache of pipelines '%s': %s", d->cache_path, strerror(-r));
    }
    rn_mem_free(data);
}
