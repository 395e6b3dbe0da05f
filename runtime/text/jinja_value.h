/* Values of the template language, and the state of one parsing or rendering that owns them.
 *
 * I1. Everything of one rendering lives in one arena and goes with it; nothing is freed before. The arena has a limit.
 * I2. Lists and dicts do not change once the template can see them (as in Jinja's immutable sandbox), so values are copied freely and
 *     slices share memory. Only namespaces and scopes change.
 * I3. A string is valid UTF-8. For each byte it is known whether the template wrote it: `own` says all, none, or look into `mask`.
 * I4. Functions that can fail return 0 or a negative errno and have then said why through rn_jinja_fail.
 *
 * Thread: a struct rn_jinja_run belongs to one thread. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rn_err;
struct rn_jinja_node;
struct rn_jinja_scope;
struct rn_jinja_loop;
struct rn_jinja_function;

#define RN_JINJA_MAX_PARSE_MEMORY ((size_t)128 << 20)
#define RN_JINJA_MAX_RENDER_MEMORY ((size_t)512 << 20)
#define RN_JINJA_MAX_STEPS ((uint64_t)50000000) /* about two seconds; the longest conversations need under a million */
#define RN_JINJA_MAX_EVAL_DEPTH 1000            /* nested evaluations, macro calls included */
#define RN_JINJA_MAX_VALUE_DEPTH 100            /* nesting of lists and dicts that come in or are walked */
#define RN_JINJA_MAX_RANGE 100000               /* elements of range(), the sandbox's own limit */

/* ---- memory, errors, limits: jinja_run.c ---- */

struct rn_jinja_chunk;
struct rn_jinja_arena {
    struct rn_jinja_chunk *head;
    size_t used;  /* bytes asked for in all */
    size_t limit;
};

void rn_jinja_arena_finish(struct rn_jinja_arena *a);
/* Zeroed, aligned to 16; NULL: no memory or over the limit. */
void *rn_jinja_arena_alloc(struct rn_jinja_arena *a, size_t n, size_t size);

/* State of one parsing or rendering. */
struct rn_jinja_run {
    struct rn_jinja_arena arena;
    const char *source;  /* for line and column of errors; borrows */
    size_t source_len;
    size_t at;           /* offset in source of what is being worked on */
    uint64_t steps;
    unsigned depth;
    int64_t now;         /* seconds since 1970, for strftime_now */
    struct rn_err *err;
};

/* Sets "line L, column C: …"; returns code. */
int rn_jinja_fail(struct rn_jinja_run *run, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Memory of the run; on failure NULL, and the error is set (-ENOMEM or -E2BIG: rn_jinja_alloc_code). */
void *rn_jinja_alloc(struct rn_jinja_run *run, size_t n, size_t size);
int rn_jinja_alloc_code(const struct rn_jinja_run *run);
/* Counts work; -E2BIG past RN_JINJA_MAX_STEPS. */
int rn_jinja_step(struct rn_jinja_run *run, uint64_t n);
/* Enters one level of recursion over values or nodes; rn_jinja_leave goes back. */
int rn_jinja_enter(struct rn_jinja_run *run);
void rn_jinja_leave(struct rn_jinja_run *run);

/* ---- values: jinja_value.c, jinja_dict.c ---- */

enum rn_jinja_kind {
    RN_JINJA_MISSING,   /* an argument that was not given; the template never sees it */
    RN_JINJA_UNDEFINED,
    RN_JINJA_NONE,
    RN_JINJA_BOOL,
    RN_JINJA_INT,
    RN_JINJA_FLOAT,
    RN_JINJA_STRING,
    RN_JINJA_LIST,      /* list, tuple, range, view, generator: rn_jinja_list.flavour */
    RN_JINJA_DICT,
    RN_JINJA_NAMESPACE,
    RN_JINJA_MACRO,
    RN_JINJA_FUNCTION,  /* a row of a table, bound to `self` when it is a method */
    RN_JINJA_LOOP,
};

enum rn_jinja_own { RN_JINJA_DATA, RN_JINJA_OWN, RN_JINJA_MIXED };

enum rn_jinja_flavour { RN_JINJA_F_LIST, RN_JINJA_F_TUPLE, RN_JINJA_F_RANGE, RN_JINJA_F_VIEW, RN_JINJA_F_GENERATOR };

struct rn_jinja_text {
    const char *data;
    size_t len;
};

struct rn_jinja_value {
    uint8_t kind;
    uint8_t own;     /* STRING: see I3. Numbers, bool, none: RN_JINJA_OWN unless they come from the variables */
    bool markup;     /* STRING marked by `safe`: a plain string added to it is HTML-escaped, as Jinja does */
    bool unsafe;     /* UNDEFINED: an attribute that the sandbox refuses */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *data;
            const char *mask; /* 0 or 1 per byte; only with RN_JINJA_MIXED */
            size_t len;
            struct rn_jinja_sink *sink; /* a text that may be continued behind this string, or NULL: rn_jinja_append */
        } s;
        struct {
            const char *name;   /* what was looked for */
            const char *owner;  /* type it was looked for in, or NULL: a name */
            size_t len;
        } undef;
        struct rn_jinja_list *list;
        struct rn_jinja_dict *dict; /* also NAMESPACE */
        struct rn_jinja_macro *macro;
        struct {
            const struct rn_jinja_function *row;
            const struct rn_jinja_value *self; /* NULL: a global function */
        } fn;
        struct rn_jinja_loop *loop;
    } u;
};

struct rn_jinja_list {
    struct rn_jinja_value *items;
    size_t n;
    enum rn_jinja_flavour flavour;
    bool consumed;      /* a generator that was read once is empty */
    int64_t start, step; /* RANGE: how it prints */
    int64_t stop;
};

struct rn_jinja_pair {
    struct rn_jinja_value key;
    struct rn_jinja_value value;
    uint64_t hash;
};

/* In order of insertion; a hash index from the ninth pair on. */
struct rn_jinja_dict {
    struct rn_jinja_pair *pairs;
    size_t n, cap;
    uint32_t *index; /* n_index slots, 0 = free, else pair + 1 */
    size_t n_index;
};

struct rn_jinja_macro {
    const struct rn_jinja_node *node;
    struct rn_jinja_scope *scope; /* where it was defined */
};

struct rn_jinja_value rn_jinja_none(void);
struct rn_jinja_value rn_jinja_bool(bool b);
struct rn_jinja_value rn_jinja_int(int64_t i);
struct rn_jinja_value rn_jinja_float(double f);
struct rn_jinja_value rn_jinja_undefined(const char *owner, const char *name, size_t len);
/* Borrows data, which must outlive the run. */
struct rn_jinja_value rn_jinja_string(const char *data, size_t len, enum rn_jinja_own own);
struct rn_jinja_value rn_jinja_own_str(const char *s); /* of the template's or the program's own */

bool rn_jinja_is_undefined(const struct rn_jinja_value *v);
bool rn_jinja_is_text(const struct rn_jinja_value *v, const char *s); /* a string equal to s */
const char *rn_jinja_type_name(const struct rn_jinja_value *v);       /* as Python says it: "str object", "dict object", … */

/* Bytes [from, to) of a string; shares memory. */
struct rn_jinja_value rn_jinja_part(const struct rn_jinja_value *s, size_t from, size_t to);

int rn_jinja_list_new(struct rn_jinja_run *run, size_t n, enum rn_jinja_flavour flavour, struct rn_jinja_value *ret);
/* A tuple of two. */
int rn_jinja_pair_new(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, struct rn_jinja_value *ret);
int rn_jinja_dict_new(struct rn_jinja_run *run, enum rn_jinja_kind kind, struct rn_jinja_value *ret);
/* The value of a key, or NULL. A key of a kind that cannot be one is not found. */
struct rn_jinja_value *rn_jinja_dict_find(const struct rn_jinja_dict *d, const struct rn_jinja_value *key);
/* Adds or replaces; fails on a list or dict as key. */
int rn_jinja_dict_set(struct rn_jinja_run *run, struct rn_jinja_dict *d, const struct rn_jinja_value *key, const struct rn_jinja_value *value);

/* Converts; strings are borrowed from j. */
int rn_jinja_from_json(struct rn_jinja_run *run, const json_t *j, struct rn_jinja_value *ret);

/* A list of values that is being collected. Zero is empty. */
struct rn_jinja_items {
    struct rn_jinja_value *data;
    size_t n, cap;
};
int rn_jinja_items_add(struct rn_jinja_run *run, struct rn_jinja_items *items, const struct rn_jinja_value *v);
struct rn_jinja_value *rn_jinja_items_grow(struct rn_jinja_run *run, struct rn_jinja_items *items); /* room for one; NULL: failed */
int rn_jinja_items_list(struct rn_jinja_run *run, const struct rn_jinja_items *items, enum rn_jinja_flavour flavour,
                        struct rn_jinja_value *ret);

/* ---- text under construction: jinja_sink.c ---- */

struct rn_jinja_sink {
    char *data;
    char *mask;
    size_t len, cap;
};

int rn_jinja_put(struct rn_jinja_run *run, struct rn_jinja_sink *k, const char *data, size_t len, bool own);
int rn_jinja_put_str(struct rn_jinja_run *run, struct rn_jinja_sink *k, const char *s, bool own);
/* A string value with its marks. */
int rn_jinja_put_value(struct rn_jinja_run *run, struct rn_jinja_sink *k, const struct rn_jinja_value *s);
/* a + b. A template that adds to one text again and again gets it in time and memory proportional to the text: while a is all that is in
 * its sink, b goes behind it in place. Strings made before keep their bytes. */
int rn_jinja_append(struct rn_jinja_run *run, const struct rn_jinja_value *a, const struct rn_jinja_value *b, struct rn_jinja_value *ret);
/* The text so far as a value; the sink may not be used afterwards. */
struct rn_jinja_value rn_jinja_sink_value(const struct rn_jinja_sink *k);
