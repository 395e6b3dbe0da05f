/* runneld: starts the parts in order and stops them in reverse.
 *
 *   main thread: settings -> listen -> socket loop ...................................... -> join -> service -> engine -> sockets
 *   loader thread:                \-> engine -> one real decode -> service -> ready -> ends
 *
 * The address is taken first, so that a second daemon fails at once and early clients hear "loading" instead of a refused connection. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/guard.h"
#include "daemon/net_loop.h"
#include "runtime/base/clock.h"
#include "runtime/base/err.h"
#include "runtime/base/log.h"
#include "runtime/base/mem.h"
#include "runtime/engine.h"
#include "session/rope_words.h"
#include "session/service.h"

#define DEFAULT_WINDOW 4096

struct daemon {
    struct rn_config config;
    struct rn_rope_scaling rope;
    struct rn_net *net;
    struct rn_engine *engine;
    struct rn_service *service;
    struct rn_net_model model;
    pthread_t loader;
    char address[64]; // we listen on; borrowed by the net
    uint64_t loading_since_ns;
    int last_percent;
    int exit_code; // written by the loader before it stops the loop
    struct rn_err err;
};

static int signal_pipe[2];
static volatile sig_atomic_t n_signals;

// The first asks for a clean stop, the second is for those who cannot wait.
static void on_signal(int number)
{
    int saved = errno;
    unsigned char byte = (unsigned char)number;
    n_signals = n_signals + 1;
    if (n_signals > 1 || write(signal_pipe[1], &byte, 1) != 1) {
        _exit(128 + number);
    }
    errno = saved;
}

// Until the model is served nothing is worth a clean stop: the default action of the signals ends the process.
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

/* ---- Loading (loader thread) ------------------------------------------------------------------------------------------------------- */

static void on_progress(void *user, double share)
{
    struct daemon *d = user;
    int percent = (int)(share * 100);
    if (rn_clock_ns() - d->loading_since_ns > 1000000000u && percent >= d->last_percent + 10) {
        d->last_percent = percent;
        rn_log(RN_LOG_INFO, "loading the model, %d %%", percent);
    }
}

static void on_tell(void *user, const char *line)
{
    (void)user;
    rn_log(RN_LOG_INFO, "%s", line);
}

static int load_engine(struct daemon *d)
{
    const struct rn_config *c = &d->config;
    struct rn_engine_params params = {.model = c->model,
                                      .n_threads = (uint32_t)c->threads,
                                      .cpu_mask = c->cpu_mask,
                                      .device = c->device,
                                      .gpu_layers = c->gpu_layers,
                                      .gpu_mask = c->gpu_mask,
                                      .cache_dir = c->cache_dir,
                                      .kv = c->kv,
                                      .progress = on_progress,
                                      .tell = on_tell,
                                      .user = d};
    int r = rn_engine_create(&d->engine, &params, &d->err);
    if (r < 0) {
        d->exit_code = r == -ENOMEM || r == -ENODEV ? RN_EXIT_UNAVAILABLE : RN_EXIT_NO_MODEL;
    }
    return r;
}

// Ready means that a real decode on the configured device worked.
static int try_decode(struct daemon *d)
{
    int r = rn_engine_probe(d->engine, &d->err);
    if (r < 0) {
        d->exit_code = RN_EXIT_UNAVAILABLE;
    }
    return r;
}

static void on_device(void *user, bool ready, const char *text)
{
    (void)user;
    rn_log(ready ? RN_LOG_INFO : RN_LOG_ERROR, "%s", text);
}

// The last directory is the service's to make, with its rights; those above it may be missing for a new user.
static int make_parents(const char *dir, struct rn_err *err)
{
    char path[4096];
    size_t len = strlen(dir);
    if (len >= sizeof path) {
        return rn_err_set(err, -ENAMETOOLONG, "'%.100s…' is too long a path", dir);
    }
    memcpy(path, dir, len + 1);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0700) < 0 && errno != EEXIST) {
            return rn_err_set(err, -errno, "making the directory '%s': %s", path, strerror(errno));
        }
        *slash = '/';
    }
    return 0;
}

static int start_service(struct daemon *d)
{
    const struct rn_config *c = &d->config;
    struct rn_service_params params = {
        .engine = d->engine,
        .state_dir = c->state_dir,
        .window = (uint32_t)c->window,
        .sinks = c->sinks,
        .evict = strcmp(c->evict, "token") == 0 ? RN_EVICT_TOKEN : RN_EVICT_TURN,
        .rope = d->rope,
        .max_concurrent = (uint32_t)c->max_concurrent,
        .reread_limit = (uint32_t)c->reread_limit,
        .on_event = rn_net_event,
        .on_device = on_device,
        .user = d->net,
    };
    int r = make_parents(c->state_dir, &d->err);
    if (r == 0) {
        r = rn_service_start(&d->service, &params, &d->err);
    }
    if (r < 0) {
        bool may_pass = r == -EBUSY || r == -EAGAIN || r == -ENOMEM || r == -EIO || r == -ENOSPC;
        d->exit_code = may_pass ? RN_EXIT_UNAVAILABLE : RN_EXIT_CONFIG;
    }
    return r;
}

static void *load(void *user)
{
    struct daemon *d = user;
    if (load_engine(d) < 0 || try_decode(d) < 0 || start_service(d) < 0) {
        rn_net_stop(d->net);
        return NULL;
    }
    const struct rn_engine_info *info = rn_engine_info(d->engine);
    uint32_t window = d->config.window ? (uint32_t)d->config.window : DEFAULT_WINDOW < info->n_ctx_train ? DEFAULT_WINDOW : info->n_ctx_train;
    d->model = (struct rn_net_model){.service = d->service,
                                     .info = info,
                                     .window = window,
                                     .max_window = rn_rope_max_n(d->rope, info->n_ctx_train),
                                     .created = rn_clock_unix()};
    for (size_t i = 0; i < info->n_kernels; i++) {
        rn_log(RN_LOG_DEBUG, "kernel %s=%s", info->kernels[i].op, info->kernels[i].row);
    }
    rn_net_serve(d->net, &d->model);
    return NULL;
}

/* ---- Main thread ------------------------------------------------------------------------------------------------------------------- */

static enum rn_log_level log_level(const char *name)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            return (enum rn_log_level)i;
        }
    }
    return RN_LOG_INFO;
}

static int fail(int exit_code, const char *message)
{
    fprintf(stderr, "runneld: %s\n", message);
    return exit_code;
}

static int listen_exit_code(int r)
{
    return r == -EADDRNOTAVAIL || r == -EACCES ? RN_EXIT_CONFIG : RN_EXIT_UNAVAILABLE;
}

static int open_net(struct daemon *d)
{
    const struct rn_config *c = &d->config;
    uint16_t port;
    if (rn_config_listen(c->listen, d->address, sizeof d->address, &port, &d->err) < 0 ||
        rn_rope_parse(c->rope_scaling, &d->rope, &d->err) < 0) {
        return RN_EXIT_USAGE;
    }
    if (!rn_guard_loopback(d->address)) {
        rn_err_set(&d->err, -EPERM, "--listen is '%s', which is not a loopback address: without keys the daemon serves this machine only",
                   c->listen);
        return RN_EXIT_CONFIG;
    }
    if (pipe(signal_pipe) < 0) {
        rn_err_set(&d->err, -errno, "pipe: %s", strerror(errno));
        return RN_EXIT_UNAVAILABLE;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(signal_pipe[i], F_SETFD, FD_CLOEXEC);
        fcntl(signal_pipe[i], F_SETFL, O_NONBLOCK);
    }
    struct rn_net_params params = {.address = d->address,
                                   .port = port,
                                   .linger_ns = (uint64_t)c->linger_s * 1000000000u,
                                   .idle_timeout_ns = (uint64_t)c->idle_timeout_s * 1000000000u,
                                   .wake_fd = signal_pipe[0]};
    int r = rn_net_create(&d->net, &params, &d->err);
    return r < 0 ? listen_exit_code(r) : 0;
}

static int serve(struct daemon *d)
{
    int code = open_net(d);
    if (code) {
        return fail(code, d->err.text);
    }
    d->loading_since_ns = rn_clock_ns();
    int r = pthread_create(&d->loader, NULL, load, d);
    if (r) {
        rn_net_destroy(d->net);
        return fail(RN_EXIT_UNAVAILABLE, strerror(r));
    }
    struct rn_err loop_err = {0};
    r = rn_net_run(d->net, catch_signals, &loop_err);
    pthread_join(d->loader, NULL);
    rn_service_stop(d->service);
    rn_net_destroy(d->net); // after the service, whose last events it takes
    rn_engine_destroy(d->engine);
    if (r < 0) {
        return fail(RN_EXIT_UNAVAILABLE, loop_err.text);
    }
    return d->exit_code ? fail(d->exit_code, d->err.text) : RN_EXIT_OK;
}

int main(int argc, char **argv)
{
    struct daemon *d = rn_mem_alloc(1, sizeof *d);
    struct rn_err err = {0};
    if (!d) {
        return fail(RN_EXIT_UNAVAILABLE, "out of memory");
    }
    int code;
    if (rn_config_parse(&d->config, argc, argv, &err) < 0) {
        fprintf(stderr, "runneld: %s (see --help)\n", err.text);
        code = RN_EXIT_USAGE;
    } else if (d->config.help) {
        rn_config_help(stdout);
        code = RN_EXIT_OK;
    } else if (d->config.version) {
        printf("runneld %s\n", RN_VERSION);
        code = RN_EXIT_OK;
    } else if (!d->config.model) {
        code = fail(RN_EXIT_NO_MODEL, "no model: say which with --model FILE");
    } else {
        signal(SIGPIPE, SIG_IGN);
        rn_log_setup(log_level(d->config.log_level), /*journal=*/0);
        code = serve(d);
    }
    rn_mem_free(d);
    return code;
}
