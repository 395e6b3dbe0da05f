/* Why a GPU that is there cannot be seen: the rights to its device node. */
#include "runtime/vulkan/gpu.h"

#include <dirent.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/vulkan/device_internal.h"

static bool is_member(gid_t group)
{
    gid_t groups[256];
    int n = getgroups(sizeof groups / sizeof groups[0], groups);
    for (int i = 0; i < n; i++) {
        if (groups[i] == group) {
            return true;
        }
    }
    return getegid() == group;
}

static int refuse(const char *path, struct rn_err *err)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        return rn_err_set(err, -EACCES, "no rights to '%s'", path);
    }
    const struct group *group = getgrgid(st.st_gid);
    char name[64];
    if (group) {
        snprintf(name, sizeof name, "%s", group->gr_name);
    } else {
        snprintf(name, sizeof name, "%u", (unsigned)st.st_gid);
    }
    if (is_member(st.st_gid)) {
        return rn_err_set(err, -EACCES, "no rights to '%s', although this user is in its group '%s' (mode %04o)", path, name,
                          (unsigned)(st.st_mode & 07777));
    }
    return rn_err_set(err, -EACCES, "no rights to '%s': this user is not in the group '%s' (usermod -aG %s USER, then log in again)", path, name,
                      name);
}

int rn_vk_rights_in(const char *dir, struct rn_err *err)
{
    DIR *d = opendir(dir);
    if (!d) {
        return 0; // no GPU, or none with such a node
    }
    int r = 0;
    for (const struct dirent *entry; r == 0 && (entry = readdir(d));) {
        char path[512];
        if (strncmp(entry->d_name, "renderD", strlen("renderD")) != 0) {
            continue;
        }
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (access(path, R_OK | W_OK) != 0) {
            r = refuse(path, err);
        }
    }
    closedir(d);
    return r;
}

int rn_gpu_rights(struct rn_err *err)
{
    return rn_vk_rights_in("/dev/dri", err);
}
