/* Runs a fuzz target without libFuzzer: mutates inputs that it has, and keeps those that reach code not seen before.
 *
 *   fuzz_x --seconds N [--seed N] [--crash FILE] [PATH]...    PATH: more seeds, files; mutates for N seconds
 *   fuzz_x PATH...                                            runs each file once: what a crash left
 *
 * New code shows in a build with -fsanitize-coverage=trace-pc (gcc calls the hook below at each edge); without it all inputs stay seeds.
 * An input that crashes, aborts, takes more than HANG_S seconds of the processor or stands still for STILL_S is written to the file of
 * --crash. */
#define _XOPEN_SOURCE 700 // setitimer
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

// Of the processor: a busy machine makes no input slow. What a template may do within its bounds takes 2 s, instrumented ten times as long.
#define HANG_S 60
#define STILL_S 900 // by the clock
#define MAX_INPUT (1u << 16) // bytes that mutations may grow an input to
#define MAX_CORPUS 8192u
#define MAP_SIZE (1u << 16)
#define UNTRACED __attribute__((no_sanitize_coverage))

struct input {
    uint8_t *data;
    size_t len;
};

static struct input corpus[MAX_CORPUS];
static size_t n_corpus;
static struct input current; // the one that runs
static const char *crash_path = "crash";
static uint64_t random_state = 1;

/* ---- what was reached ---------------------------------------------------------------------------------------------------------------- */

static uint8_t reached[MAP_SIZE]; // by edge: ever
static uintptr_t edge_from;
static bool found_new;
static size_t n_edges;

void __sanitizer_cov_trace_pc(void);

UNTRACED void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    size_t edge = (size_t)((here ^ edge_from >> 1) * UINT64_C(0x9e3779b97f4a7c15) >> 48) % MAP_SIZE;
    edge_from = here;
    if (!reached[edge]) {
        reached[edge] = 1;
        found_new = true;
        n_edges++;
    }
}

/* ---- running ------------------------------------------------------------------------------------------------------------------------- */

UNTRACED static void on_signal(int number)
{
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd >= 0 && write(fd, current.data, current.len) >= 0) {
        (void)close(fd);
    }
    static const char hang[] = "an input takes too long\n", crash[] = "an input crashed; it is in the file of --crash\n";
    bool slow = number == SIGALRM || number == SIGPROF;
    (void)!write(2, slow ? hang : crash, slow ? sizeof hang - 1 : sizeof crash - 1);
    _exit(77);
}

UNTRACED static void watch(void)
{
    static const int numbers[] = {SIGABRT, SIGALRM, SIGPROF, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        signal(numbers[i], on_signal);
    }
}

UNTRACED static void set_limits(unsigned processor_s, unsigned clock_s)
{
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = processor_s}, NULL);
    alarm(clock_s);
}

/* True when it reached something new. The target gets a block of just that size, so that a sanitizer sees the first byte beyond. */
UNTRACED static bool run(const uint8_t *data, size_t len)
{
    current.data = malloc(len ? len : 1);
    current.len = len;
    if (!current.data) {
        abort();
    }
    memcpy(current.data, data, len);
    found_new = false;
    edge_from = 0;
    set_limits(HANG_S, STILL_S);
    LLVMFuzzerTestOneInput(current.data, len);
    set_limits(0, 0);
    free(current.data);
    return found_new;
}

UNTRACED static void keep(const uint8_t *data, size_t len)
{
    if (n_corpus == MAX_CORPUS || len > MAX_INPUT) {
        return;
    }
    struct input *in = &corpus[n_corpus];
    in->data = malloc(len ? len : 1);
    if (in->data) {
        memcpy(in->data, data, len);
        in->len = len;
        n_corpus++;
    }
}

UNTRACED static void add_seed(const void *data, size_t len)
{
    run(data, len);
    keep(data, len);
}

/* ---- mutations ----------------------------------------------------------------------------------------------------------------------- */

UNTRACED static uint64_t below(uint64_t n)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return n ? (z ^ z >> 31) % n : 0;
}

/* Room for n bytes at `at`; false when the input would be too long. */
UNTRACED static bool open_gap(uint8_t *x, size_t *len, size_t at, size_t n)
{
    if (*len + n > MAX_INPUT) {
        return false;
    }
    memmove(x + at + n, x + at, *len - at);
    *len += n;
    return true;
}

UNTRACED static void close_gap(uint8_t *x, size_t *len, size_t at, size_t n)
{
    n = n < *len - at ? n : *len - at;
    memmove(x + at, x + at + n, *len - at - n);
    *len -= n;
}

UNTRACED static void insert(uint8_t *x, size_t *len, size_t at, const void *what, size_t n)
{
    uint8_t copy[256];
    n = n < sizeof copy ? n : sizeof copy;
    memcpy(copy, what, n); // it may lie in x itself
    if (open_gap(x, len, at, n)) {
        memcpy(x + at, copy, n);
    }
}

UNTRACED static void write_number(uint8_t *x, size_t len, size_t at)
{
    static const uint64_t numbers[] = {0, 1, 2, 31, 32, 255, 256, 0x7fff, 0x10000, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX, INT64_MAX, 1ull << 62, 1ull << 40};
    uint64_t v = numbers[below(sizeof numbers / sizeof *numbers)] + (below(4) ? 0 : below(5) - 2);
    size_t n = 1u << below(4);
    memcpy(x + at, &v, n < len - at ? n : len - at);
}

UNTRACED static void mutate(uint8_t *x, size_t *len)
{
    const struct input *other = &corpus[below(n_corpus)];
    size_t at = below(*len + 1), n_words = 0, from = below(other->len + 1);
    while (fuzz_words[n_words]) {
        n_words++;
    }
    const char *word = n_words ? fuzz_words[below(n_words)] : "";
    switch (below(9)) {
    case 0:
        x[at < *len ? at : 0] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        x[at < *len ? at : 0] = (uint8_t)below(256);
        break;
    case 2:
        close_gap(x, len, at, 1 + below(below(4) ? 8 : 1024));
        break;
    case 3:
        insert(x, len, at, (const uint8_t[]){(uint8_t)below(256), (uint8_t)below(256)}, 1 + below(2));
        break;
    case 4:
        write_number(x, *len, at);
        break;
    case 5: { // a piece of itself again
        size_t n = 1 + below(64), start = below(*len + 1);
        insert(x, len, at, x + start, n < *len - start ? n : *len - start);
        break;
    }
    case 6: { // a piece of another input
        size_t n = 1 + below(256);
        insert(x, len, at, other->data + from, n < other->len - from ? n : other->len - from);
        break;
    }
    case 7: { // the same many times: depth
        size_t n = 1 + below(300);
        while (n-- > 0) {
            insert(x, len, at, word, strlen(word));
        }
        break;
    }
    default:
        insert(x, len, at, word, strlen(word));
        break;
    }
}

UNTRACED static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

UNTRACED static void fuzz(double seconds)
{
    static uint8_t x[MAX_INPUT + 16];
    double end = now() + seconds;
    uint64_t n_runs = 0;
    while (now() < end) {
        const struct input *in = &corpus[below(2) && n_corpus > 64 ? n_corpus - 1 - below(64) : below(n_corpus)]; // the newest more often
        size_t len = in->len;
        memcpy(x, in->data, len);
        for (uint64_t i = 1 + below(below(3) ? 3 : 20); i > 0; i--) {
            mutate(x, &len);
        }
        if (run(x, len)) {
            keep(x, len);
        }
        n_runs++;
    }
    printf("%llu inputs, %zu kept, %zu edges reached, no crash\n", (unsigned long long)n_runs, n_corpus, n_edges);
}

/* ---- command line -------------------------------------------------------------------------------------------------------------------- */

UNTRACED static int with_file(const char *path, void (*use)(const void *, size_t))
{
    static uint8_t data[1 << 22];
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    size_t len = fread(data, 1, sizeof data, f);
    (void)fclose(f);
    use(data, len);
    return 0;
}

UNTRACED static void run_once(const void *data, size_t len)
{
    run(data, len);
}

UNTRACED int main(int argc, char **argv)
{
    double seconds = 0;
    int i = 1, failed = 0;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) {
            seconds = strtod(argv[i + 1], NULL);
        } else if (strcmp(argv[i], "--seed") == 0) {
            random_state = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--crash") == 0) {
            crash_path = argv[i + 1];
        } else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 64;
        }
    }
    watch();
    if (seconds > 0) {
        add_seed("", 0);
        fuzz_seeds(add_seed);
    }
    for (; i < argc; i++) {
        failed |= with_file(argv[i], seconds > 0 ? add_seed : run_once);
    }
    if (!failed && seconds > 0) {
        fuzz(seconds);
    }
    return failed;
}
