/* The engine's boundary: a loaded model (struct rn_engine, shared) and token timelines with their KV (struct rn_seq).
 *
 * Words as in the README: t absolute index, S pinned tokens, N capacity with the query's own token, base(t) first visible unpinned
 * index, E(t) = base(t) - S. One thread, the engine thread, makes all calls that take a struct rn_seq; rn_engine_info and
 * rn_engine_text may be called from any thread. Nothing here logs. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rn_err;
struct rn_engine;
struct rn_seq;
struct rn_text;

#define RN_SLACK 2048 /* tokens behind the window that drafts and rewinds may still need */

enum rn_evict { RN_EVICT_TURN, RN_EVICT_TOKEN };

struct rn_engine_params {
    const char *model;       /* path of a GGUF file */
    uint32_t n_threads;      /* 0 = physical cores */
    const char *cpu_mask;    /* kernel rows to hide; NULL = none */
    const char *device;      /* "auto", "cpu" (NULL), "vulkan", "vulkan:INDEX" or "vulkan:NAME"; what cannot be had is refused, never replaced */
    const char *gpu_mask;    /* optional features of the device to leave unused; NULL = none */
    const char *gpu_layers;  /* "auto" (NULL): as many of the last layers on the GPU as its memory takes; or their number */
    const char *cache_dir;   /* where compiled shaders are kept; NULL = nowhere */
    uint32_t submit_budget_ms; /* longest submit to the GPU, longer steps are cut at layer borders; 0 = 250 */
    const char *kv;          /* "q8_0" (NULL) or "f16"; a type this model cannot have is refused */
    uint64_t max_resident;   /* bytes of KV; 0 = min(4 GiB, a quarter of the RAM) */
    bool poison;             /* tests: NaN and 65504 in all cells that nothing may read */
    void (*progress)(void *user, double share); /* called while loading; may be NULL */
    void (*tell)(void *user, const char *line); /* what was decided, before it is done: which device, what goes where; may be NULL */
    void *user;
};

struct rn_kernel_row { const char *op, *row; };

struct rn_engine_info {
    const char *model_id;    /* general.name made an id: lower case, spaces to '-' ; or the file's stem */
    const char *arch;
    const char *device;      /* "cpu avx512vnni 2 threads" */
    bool on_cpu;             /* all of it: rn_engine_measure then says what bounds it */
    const char *note;        /* what device "auto" decided and why; "" where the device was named */
    const char *fingerprint; /* names build, backend, kernels, KV type: equal fingerprints give equal bits */
    const char *kv;
    uint32_t n_vocab, n_ctx_train, n_layers, n_threads;
    uint64_t n_params, model_fingerprint, tokenizer_fingerprint;
    size_t weight_bytes;     /* read once per decode step */
    double macs_per_token;   /* of the matrices, logits included, at depth 0 */
    double logits_macs;      /* the logits' part of it: not spent for rows without logits */
    double attention_macs;   /* per row and token that it sees */
    const struct rn_kernel_row *kernels;
    size_t n_kernels;
};

int rn_engine_create(struct rn_engine **ret, const struct rn_engine_params *params, struct rn_err *err);
void rn_engine_destroy(struct rn_engine *e); /* all its sequences must be gone */
const struct rn_engine_info *rn_engine_info(const struct rn_engine *e);
const struct rn_text *rn_engine_text(const struct rn_engine *e);

/* One real decode, on a sequence of its own: 0 means that this engine works now. -EIO: a number that is not finite, or the device is lost. */
int rn_engine_probe(struct rn_engine *e, struct rn_err *err);

/* After a step that failed with -EIO every step does until this succeeds. Loads the model again from its file onto the same device. All its sequences must be gone, as their pages are; text and info stay as they
 * are. 0; -ESTALE: the file, the device, its driver or its kernels are not those of before; -ENODEV, -EIO, -ENOMEM …: not now, may be tried
 * again. Takes as long as loading does. */
int rn_engine_rebuild(struct rn_engine *e, struct rn_err *err);

/* ---- Sequences --------------------------------------------------------------------------------------------------------------------- */

/* RoPE scaling that the user adds, on top of what the file declares, to go beyond the trained length. Zero: none. */
enum rn_rope_kind { RN_ROPE_AS_TRAINED, RN_ROPE_LINEAR, RN_ROPE_YARN };

#define RN_ROPE_FACTOR_MAX 1000

struct rn_rope_scaling {
    enum rn_rope_kind kind;
    float factor;            /* 1 .. RN_ROPE_FACTOR_MAX: how many times the trained length the angles are made for */
};

struct rn_seq_params {
    uint32_t n;              /* N, 16 .. n_ctx_train, with a scaling 16 .. n_ctx_train times its factor */
    uint32_t sinks;          /* S, 0 .. N/2 */
    enum rn_evict evict;
    uint64_t origin;         /* o >= S: index of the token after the pinned ones; 0 = S. base starts here */
    struct rn_rope_scaling rope; /* stays for the sequence's life, and its forks have it too */
    bool stored;             /* hold the pages that a crash would need: see rn_seq_hold. false: h = c */
};

/* -EINVAL names the parameter and its bound. -EIO: the device is lost. */
int rn_seq_create(struct rn_seq **ret, struct rn_engine *e, const struct rn_seq_params *params, struct rn_err *err);
void rn_seq_destroy(struct rn_seq *s); /* NULL is fine */

/* Index of the next token to append. Tokens 0..S-1 come first; then the index is origin. */
uint64_t rn_seq_head(const struct rn_seq *s);
uint64_t rn_seq_origin(const struct rn_seq *s);
/* base(t) for any t < head that is not further back than the pages kept, and for t = head - 1 always. */
uint64_t rn_seq_base(const struct rn_seq *s, uint64_t t);
/* The same for the token that would come next at index head (no turn start there). */
uint64_t rn_seq_next_base(const struct rn_seq *s);

/* Marks tokens below `end` as accepted (c = end - 1) and frees the pages that no row can read any more. */
void rn_seq_accept(struct rn_seq *s, uint64_t end);
/* h: last token of the newest terminal response on disk; p: first token of its turn. Only with params.stored. */
void rn_seq_hold(struct rn_seq *s, uint64_t h, uint64_t p);

/* Forgets the tokens from `end` on (end <= head, end >= S and >= origin, or end <= S). 0; -ENODATA when a page that a later row could
 * read is gone: the caller re-reads. -ENOMEM: no page for a copy. Nothing is changed on failure. */
int rn_seq_rewind(struct rn_seq *s, uint64_t end, struct rn_err *err);

/* A new sequence equal to the first `at` tokens: same S, N, policy, turn starts below `at`, origin if at > origin else S. Whole pages are
 * shared, the partial one is copied. -ENODATA as above: the caller re-reads the fork from its own log. */
int rn_seq_fork(struct rn_seq **ret, const struct rn_seq *s, uint64_t at, struct rn_err *err);

/* Pages a sequence owns alone, and bytes. */
size_t rn_seq_bytes(const struct rn_seq *s);
/* Promises this sequence what it needs at once: pinned + N + 256 tokens + one prefill chunk. All promises together fit the pool, so a
 * running sequence gets its pages once idle ones have given up theirs and running ones what they keep beyond that. -EAGAIN: not now. */
int rn_seq_reserve(struct rn_seq *s, struct rn_err *err);
void rn_seq_unreserve(struct rn_seq *s);
/* Frees what a running sequence keeps beyond c - 16 (under memory pressure). */
void rn_seq_trim(struct rn_seq *s);

/* ---- Steps ------------------------------------------------------------------------------------------------------------------------- */

/* Tokens of one sequence in a step. Several entries of different sequences make one step; the result for each does not depend on the
 * others, on how tokens are cut into steps, or on threads: bit for bit. */
struct rn_step_entry {
    struct rn_seq *seq;
    const uint32_t *ids;         /* [n_ids], < n_vocab */
    uint32_t n_ids;              /* >= 1 */
    const uint64_t *turn_starts; /* ascending indices in [head, head + n_ids): tokens that open a turn; may be NULL */
    uint32_t n_turn_starts;
    uint32_t n_logits;           /* logits wanted for the last n_logits tokens */
    float *logits;               /* [n_logits, n_vocab]; caller's memory */
};

/* Appends and runs all entries; a sequence appears once. On failure no sequence has moved. -ENOMEM: no page: the caller frees idle
 * sequences, then trims running ones (rn_seq_trim), and tries again; with reservations kept, that ends well. -EINVAL: an id out of range;
 * -E2BIG: more than 256 entries; -EIO: the device is lost, see rn_engine_rebuild. */
int rn_engine_step(struct rn_engine *e, struct rn_step_entry *entries, uint32_t n_entries, struct rn_err *err);

/* Measures this machine for `runnel bench`: read bandwidth (GB/s) and int8 peak (tera operations per second). */
void rn_engine_measure(const struct rn_engine *e, double *ret_read_gb_per_s, double *ret_int8_tops);

/* Where the time of steps goes, by kind of operation. on: starts afresh to add up; off: stops. */
void rn_engine_profile(struct rn_engine *e, bool on);

struct rn_engine_cost {
    const char *op;              /* "matmul", "attention" … */
    double ms, bytes, macs;      /* bytes: weights and KV, once per pass */
};
#define RN_ENGINE_COSTS 16
/* The kinds that cost anything, at most RN_ENGINE_COSTS; returns how many. */
size_t rn_engine_costs(const struct rn_engine *e, struct rn_engine_cost ret[RN_ENGINE_COSTS]);

struct rn_engine_host_cost {
    uint64_t steps, calls;       /* calls of the device's driver, in all steps */
    uint64_t dispatches;         /* kernels that they started on the device */
    double ns;                   /* spent on them and around them, without the waiting */
};
/* What steps cost the host since load, or since rn_engine_profile(on). false: this device has no such cost. */
bool rn_engine_host_cost(const struct rn_engine *e, struct rn_engine_host_cost *ret);
