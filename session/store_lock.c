/* One process per state directory: STATE_DIR/runnel.lock is locked with flock for the life of the store and holds the owner's pid.
 * The lock goes with the process, however it ends; the file stays, for removing it would let two processes lock two files of one name. */
#define _DEFAULT_SOURCE // flock
#include "session/store_internal.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// Makes the directory and the missing ones above it, 0700 each.
static int make_directory(const char *path, struct rn_err *err)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof part) {
        return rn_err_set(err, -ENAMETOOLONG, "state directory: a path of %zu bytes, expected 1 to %zu", len, sizeof part - 1);
    }
    memcpy(part, path, len + 1);
    for (size_t i = 1; i <= len; i++) {
        if (part[i] != '/' && part[i] != 0) {
            continue;
        }
        char cut = part[i];
        part[i] = 0;
        if (mkdir(part, 0700) && errno != EEXIST) {
            int code = errno;
            return rn_err_set(err, -code, "making directory '%s': %s", part, strerror(code));
        }
        part[i] = cut;
    }
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
        return rn_err_set(err, -ENOTDIR, "state directory '%s' is not a directory", path);
    }
    return 0;
}

static int refuse(int fd, const char *state_dir, struct rn_err *err)
{
    char text[32] = {0};
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    if (pid > 0) {
        return rn_err_set(err, -EBUSY, "state directory '%s' is in use by process %ld", state_dir, pid);
    }
    return rn_err_set(err, -EBUSY, "state directory '%s' is in use by another process", state_dir);
}

int rn_store_lock(int *ret_fd, const char *state_dir, struct rn_err *err)
{
    int r = make_directory(state_dir, err);
    if (r) {
        return r;
    }
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/runnel.lock", state_dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        int code = errno;
        return rn_err_set(err, -code, "opening '%s': %s", path, strerror(code));
    }
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        int code = errno;
        r = code == EWOULDBLOCK ? refuse(fd, state_dir, err) : rn_err_set(err, -code, "locking '%s': %s", path, strerror(code));
        close(fd);
        return r;
    }
    char text[32];
    int len = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)len, 0) != len) {
        int code = errno ? errno : ENOSPC;
        close(fd);
        return rn_err_set(err, -code, "writing '%s': %s", path, strerror(code));
    }
    *ret_fd = fd;
    return 0;
}

void rn_store_unlock(int fd)
{
    if (fd >= 0) {
        (void)ftruncate(fd, 0); // only a courtesy to readers of the file: the lock is what counts
        close(fd);
    }
}
