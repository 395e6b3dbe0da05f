#define _GNU_SOURCE // mallopt
/* What hostile text costs: tests/bench/hostile_text [-v] [-k KIND] [FILE.gguf ...]
 *
 * Every tokenizer takes every kind of text at two lengths, n and 4 n repetitions. A kind fails when a byte costs more than BOUND_NS, or
 * more than GROWTH times as much in the longer text: linear work has a growth of 1, quadratic work of 4, and what no longer fits into
 * the caches lies between. Besides the vocabularies of
 * the files given, each pre-tokenizer of the table is measured with a small vocabulary made here.
 *
 * The two lengths take turns. Of several tries the best time counts, and the median of the growths; a busy machine gets more of them
 * before a kind fails. One thread. Exit code 1: something failed. */
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/model/gguf.h"
#include "runtime/text.h"
#include "runtime/text/pretok.h"
#include "tests/unit/gguf_build.h"

#define REPEATS 100000 // n
#define TRIES 5
#define MOST_TRIES 25
#define BOUND_NS 3000.0 // per byte: ten times the worst that was measured on a busy machine
#define GROWTH 2.0

/* A text of `repeats` units, or one that `make` writes. */
struct kind {
    const char *name;
    const char *unit;
    void (*make)(struct rn_buf *out, size_t repeats);
};

static uint64_t rng;

static uint32_t draw(uint32_t below)
{
    rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % below;
}

static void add(struct rn_buf *out, const void *data, size_t len)
{
    if (rn_buf_add(out, data, len) < 0) {
        fprintf(stderr, "hostile_text: out of memory\n");
        exit(1);
    }
}

static void random_bytes(struct rn_buf *out, size_t repeats)
{
    for (size_t i = 0; i < repeats; i++) {
        add(out, &(unsigned char){(unsigned char)draw(256)}, 1);
    }
}

static void random_letters(struct rn_buf *out, size_t repeats)
{
    for (size_t i = 0; i < repeats; i++) {
        add(out, &(char){(char)('a' + draw(26))}, 1);
    }
}

static void mixed_scripts(struct rn_buf *out, size_t repeats)
{
    static const char *const units[] = {"a", "\u00E9", "\u0416", "\u05D0", "\u0639", "\u0939\u093F", "\u65E5", "\uAC00", "\u3042", "\U0001F600",
                                        "7", "\u0E01", " ",      "'s",     "\n",     "\u0301"};
    for (size_t i = 0; i < repeats; i++) {
        const char *u = units[draw(sizeof units / sizeof *units)];
        add(out, u, strlen(u));
    }
}

static void one_mark_after_another(struct rn_buf *out, size_t repeats) // classes that change places when a text is normalised
{
    add(out, "a", 1);
    for (size_t i = 0; i < repeats; i++) {
        add(out, i % 2 ? "\u0323" : "\u0301", 2);
    }
}

static const struct kind kinds[] = {
    {"one letter", "a", NULL},
    {"one capital", "A", NULL},
    {"newlines", "\n", NULL},
    {"spaces", " ", NULL},
    {"tabs and spaces", "\t ", NULL},
    {"space, newline", " \n", NULL},
    {"CR LF", "\r\n", NULL},
    {"combining marks", "\u0301", NULL},
    {"marks in wrong order", NULL, one_mark_after_another},
    {"letter and mark", "a\u0301", NULL},
    {"digits", "1", NULL},
    {"quotes", "'", NULL},
    {"exclamation marks", "!", NULL},
    {"slashes", "/", NULL},
    {"e acute", "\u00E9", NULL},
    {"CJK", "\u65E5", NULL},
    {"Hangul syllables", "\uAC00", NULL},
    {"Hangul parts", "\u1100\u1161", NULL},
    {"emoji", "\U0001F600", NULL},
    {"emoji family", "\U0001F469\u200D\U0001F467", NULL},
    {"U+2581", "\u2581", NULL},
    {"byte FF", "\xFF", NULL},
    {"half characters", "\xE2\x82", NULL},
    {"NUL bytes", NULL, NULL},
    {"begun control tokens", "<|", NULL},
    {"control tokens", "<|endoftext|>", NULL},
    {"bos and eos", "<s></s><bos>", NULL},
    {"camel case", "aA", NULL},
    {"words", "word ", NULL},
    {"random letters", NULL, random_letters},
    {"random bytes", NULL, random_bytes},
    {"mixed scripts", NULL, mixed_scripts},
};

#define N_KINDS (sizeof kinds / sizeof *kinds)

static void make_text(const struct kind *kind, size_t repeats, struct rn_buf *out)
{
    rng = 1;
    for (size_t i = 0; i < repeats && !kind->make; i++) {
        add(out, kind->unit ? kind->unit : "\0", kind->unit ? strlen(kind->unit) : 1);
    }
    if (kind->make) {
        kind->make(out, repeats);
    }
}

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* ns of this thread per byte. */
static double measure(const struct rn_text *t, const struct rn_buf *text)
{
    struct rn_ids ids = {0};
    struct rn_err err = {0};
    double start = cpu_ns();
    if (rn_text_tokenize(t, text->data, text->len, /*special=*/true, &ids, &err) < 0) {
        fprintf(stderr, "hostile_text: %s\n", err.text);
        exit(1);
    }
    double ns = (cpu_ns() - start) / (double)text->len;
    rn_ids_finish(&ids);
    return ns;
}

struct cost {
    double at_n, at_4n, growth;
    bool good;
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct cost cost_of(const struct rn_text *t, const struct rn_buf *small, const struct rn_buf *large)
{
    struct cost c = {.at_n = 1e300, .at_4n = 1e300};
    double growths[MOST_TRIES];
    for (size_t i = 0; i < TRIES || (i < MOST_TRIES && !c.good); i++) {
        double a = measure(t, small), b = measure(t, large);
        c.at_n = a < c.at_n ? a : c.at_n;
        c.at_4n = b < c.at_4n ? b : c.at_4n;
        growths[i] = b / a;
        qsort(growths, i + 1, sizeof *growths, ascending);
        c.growth = growths[i / 2];
        c.good = c.at_n <= BOUND_NS && c.at_4n <= BOUND_NS && c.growth <= GROWTH;
    }
    return c;
}

struct worst {
    double ns, growth;
    const char *ns_of, *growth_of;
};

/* Prints one row where it fails, or all with `verbose`. Returns whether it is within the bounds. */
static bool check_kind(const struct rn_text *t, const char *name, const struct kind *kind, bool verbose, struct worst *worst)
{
    struct rn_buf small = {0}, large = {0};
    make_text(kind, REPEATS, &small);
    make_text(kind, 4 * REPEATS, &large);
    struct cost c = cost_of(t, &small, &large);
    if (verbose || !c.good) {
        printf("%-28s %-22s %10zu %8.1f %8.1f %6.2f%s\n", name, kind->name, large.len, c.at_n, c.at_4n, c.growth, c.good ? "" : "  FAILED");
    }
    if (c.at_4n > worst->ns) {
        worst->ns = c.at_4n;
        worst->ns_of = kind->name;
    }
    if (c.growth > worst->growth) {
        worst->growth = c.growth;
        worst->growth_of = kind->name;
    }
    rn_buf_finish(&small);
    rn_buf_finish(&large);
    return c.good;
}

struct options {
    bool verbose;     // a row for every kind
    const char *only; // kinds with this in their name; NULL = all
};

static bool check_all(const struct rn_text *t, const char *name, const struct options *o)
{
    struct worst worst = {0};
    bool good = true;
    for (size_t i = 0; i < N_KINDS; i++) {
        if (!o->only || strstr(kinds[i].name, o->only)) {
            good &= check_kind(t, name, &kinds[i], o->verbose, &worst);
        }
    }
    if (worst.ns > 0) {
        printf("%-28s worst: %.1f ns per byte (%s), growth %.2f (%s)\n", name, worst.ns, worst.ns_of, worst.growth, worst.growth_of);
    }
    fflush(stdout);
    return good;
}

/* ---- Vocabularies made here -------------------------------------------------------------------------------------------------------- */

/* Byte-level BPE under a pre-tokenizer, with merges that runs of one character climb: 2, 4, 8, 16 of it. */
static void build_bpe(struct gguf_build *b, const char *pre)
{
    enum { STEPS = 4, LETTERS = 5 };
    static const char *const letters[LETTERS] = {"a", "\u0120", "\u010A", "1", "!"}; // the second and third are space and newline
    static char bytes[256][4], runs[STEPS][LETTERS][40], merges[STEPS][LETTERS][80];
    const char *tokens[256 + STEPS * LETTERS], *merge_list[STEPS * LETTERS];
    uint32_t n = 0, n_merges = 0, beyond = 0x100;
    for (unsigned byte = 0; byte < 256; byte++) { // GPT-2's characters: printable bytes stand for themselves, the others lie from U+0100
        bool plain = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        unsigned cp = plain ? byte : beyond++;
        if (cp < 0x80) {
            bytes[byte][0] = (char)cp;
        } else {
            bytes[byte][0] = (char)(0xC0 | cp >> 6);
            bytes[byte][1] = (char)(0x80 | (cp & 0x3F));
        }
        tokens[n++] = bytes[byte];
    }
    for (unsigned k = 0; k < STEPS; k++) {
        for (unsigned i = 0; i < LETTERS; i++) {
            const char *half = k ? runs[k - 1][i] : letters[i];
            snprintf(runs[k][i], sizeof runs[k][i], "%s%s", half, half);
            snprintf(merges[k][i], sizeof merges[k][i], "%s %s", half, half);
            tokens[n++] = runs[k][i];
            merge_list[n_merges++] = merges[k][i];
        }
    }
    gguf_build_str(b, "tokenizer.ggml.model", "gpt2");
    gguf_build_str(b, "tokenizer.ggml.pre", pre);
    gguf_build_strs(b, "tokenizer.ggml.tokens", tokens, n);
    gguf_build_strs(b, "tokenizer.ggml.merges", merge_list, n_merges);
}

static bool check_made(const struct options *o)
{
    const struct rn_pretok_row *row;
    bool good = true;
    for (size_t k = 0; (row = rn_pretok_row(k)) != NULL; k++) {
        struct gguf_build *b = gguf_build_create();
        struct rn_gguf *g = NULL;
        struct rn_text *t = NULL;
        struct rn_err err = {0};
        char name[64];
        gguf_build_str(b, "general.architecture", "llama");
        build_bpe(b, row->names[0]);
        struct gguf_bytes bytes = gguf_build_bytes(b);
        if (rn_gguf_parse(&g, bytes.data, bytes.len, "made", &err) < 0 || rn_text_create(&t, g, &err) < 0) {
            fprintf(stderr, "hostile_text: %s: %s\n", row->names[0], err.text);
            exit(1);
        }
        snprintf(name, sizeof name, "pre-tokenizer %s", row->names[0]);
        good &= check_all(t, name, o);
        rn_text_destroy(t);
        rn_gguf_close(g);
        gguf_build_destroy(b);
    }
    return good;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool check_files(int n, char **files, const struct options *o)
{
    bool good = true;
    for (int i = 0; i < n; i++) {
        struct rn_text *t = NULL;
        struct rn_err err = {0};
        if (rn_text_load(&t, files[i], &err) < 0) {
            fprintf(stderr, "hostile_text: %s\n", err.text);
            exit(66);
        }
        good &= check_all(t, base_name(files[i]), o);
        rn_text_destroy(t);
    }
    return good;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    for (int c; (c = getopt(argc, argv, "vk:")) != -1;) {
        switch (c) {
        case 'v':
            o.verbose = true;
            break;
        case 'k':
            o.only = optarg;
            break;
        default:
            fprintf(stderr, "usage: hostile_text [-v] [-k KIND] [FILE.gguf ...]\n"
                            "-v: a row for every kind of text; -k: only kinds with KIND in their name\n");
            return 64;
        }
    }
    // Memory comes from the same place each time: what the kernel's pages cost is not measured.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    printf("%-28s %-22s %10s %8s %8s %6s\n", "tokenizer", "text", "bytes", "ns/byte", "at 4 n", "growth");
    bool good = check_made(&o);
    good &= check_files(argc - optind, argv + optind, &o);
    printf("%s: the bounds are %.0f ns per byte and a growth of %.1f\n", good ? "good" : "FAILED", BOUND_NS, GROWTH);
    return good ? 0 : 1;
}
