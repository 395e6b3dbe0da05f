/* Split files: a model in several GGUF files named STEM-00001-of-00003.gguf and so on, each with a header and data of its own.
 *
 *   split.no             number of this part, from 0
 *   split.count          number of parts; 0 or 1: the file is whole
 *   split.tensors.count  tensors of all parts together
 *
 * I1  Each part is parsed and checked like a file of its own before anything is taken from it.
 * I2  The whole has the keys of the first part and the tensors of all parts, in order; so it is the same model as the file before it was
 *     split, with the same fingerprint.
 * I3  Parts of different models are refused: they must agree on the number of parts and of tensors and on every key that they share with
 *     the first part. */
#include <stdio.h>
#include <string.h>

#include "runtime/base/err.h"
#include "runtime/base/mem.h"
#include "runtime/model/gguf_internal.h"

#define MAX_PARTS 4096u                    // the largest published models come in about 200
#define SUFFIX_BYTES sizeof("-00001-of-00003.gguf")

struct split { // what one part says about itself
    uint32_t no, n_parts, n_tensors;
    bool has_n_tensors;
};

static int read_split(const struct rn_gguf *g, struct split *ret, struct rn_err *err)
{
    *ret = (struct split){0};
    int r = rn_gguf_get_u32(g, "split.count", &ret->n_parts, err);
    r = r < 0 ? r : rn_gguf_get_u32(g, "split.no", &ret->no, err);
    r = r < 0 ? r : rn_gguf_get_u32(g, "split.tensors.count", &ret->n_tensors, err);
    if (r < 0) {
        return r;
    }
    ret->has_n_tensors = r > 0;
    if (ret->n_parts > MAX_PARTS) {
        return rn_err_set(err, -EINVAL, "%s: split.count is %u, at most %u parts are allowed", rn_gguf_name(g), ret->n_parts, MAX_PARTS);
    }
    if (ret->n_parts > 1 && ret->no >= ret->n_parts) {
        return rn_err_set(err, -EINVAL, "%s: split.no is %u, expected 0 to %u", rn_gguf_name(g), ret->no, ret->n_parts - 1);
    }
    return 0;
}

int rn_gguf_is_split(const struct rn_gguf *g, bool *ret, struct rn_err *err)
{
    struct split s;
    int r = read_split(g, &s, err);
    if (r == 0) {
        *ret = s.n_parts > 1;
    }
    return r;
}

static void suffix_of(char ret[SUFFIX_BYTES], uint32_t no, uint32_t n_parts)
{
    snprintf(ret, SUFFIX_BYTES, "-%05u-of-%05u.gguf", (no + 1) % 100000, n_parts % 100000); // both are at most MAX_PARTS
}

/* Length of the path before the suffix, which must be the one of this part. */
static int find_stem(const struct rn_gguf *g, const struct split *s, size_t *ret_len, struct rn_err *err)
{
    char suffix[SUFFIX_BYTES];
    const char *path = rn_gguf_name(g);
    size_t len = strlen(path), n = SUFFIX_BYTES - 1;
    suffix_of(suffix, s->no, s->n_parts);
    if (len < n || strcmp(path + len - n, suffix) != 0) {
        return rn_err_set(err, -EINVAL, "%s: part %u of %u, but its name does not end in '%s', so the others cannot be found", path,
                          s->no + 1, s->n_parts, suffix);
    }
    *ret_len = len - n;
    return 0;
}

// About the part itself: how it was cut and where its data lies.
static bool is_own_key(struct rn_gguf_str key)
{
    return rn_gguf_str_compare(key, (struct rn_gguf_str){"general.alignment", 17}) == 0 || (key.len > 6 && memcmp(key.data, "split.", 6) == 0);
}

// Any other key that both have must say the same.
static int check_keys(const struct rn_gguf *first, const struct rn_gguf *part, struct rn_err *err)
{
    for (size_t i = 0, k = 0; i < part->n_kvs; i++) {
        const struct rn_gguf_kv *kv = part->kv_index[i];
        while (k < first->n_kvs && rn_gguf_str_compare(first->kv_index[k]->key, kv->key) < 0) {
            k++;
        }
        if (k == first->n_kvs || rn_gguf_str_compare(first->kv_index[k]->key, kv->key) != 0) {
            continue;
        }
        const struct rn_gguf_kv *other = first->kv_index[k];
        bool is_same = kv->type == other->type && kv->elem == other->elem && kv->bytes == other->bytes &&
                       (kv->bytes == 0 || memcmp(kv->value, other->value, kv->bytes) == 0);
        if (!is_same && !is_own_key(kv->key)) {
            char quoted[RN_GGUF_QUOTE];
            return rn_err_set(err, -EINVAL, "%s: key '%s' is not what part 1 says: a part of another model", rn_gguf_name(part),
                              rn_gguf_quote(kv->key, quoted));
        }
    }
    return 0;
}

static int check_part(const struct rn_gguf *part, const struct split *asked, uint32_t no, struct rn_err *err)
{
    struct split s;
    int r = read_split(part, &s, err);
    if (r < 0) {
        return r;
    }
    if (s.n_parts != asked->n_parts) {
        return rn_err_set(err, -EINVAL, "%s: split.count is %u, expected %u", rn_gguf_name(part), s.n_parts, asked->n_parts);
    }
    if (s.no != no) {
        return rn_err_set(err, -EINVAL, "%s: split.no is %u, expected %u", rn_gguf_name(part), s.no, no);
    }
    if (s.has_n_tensors != asked->has_n_tensors || s.n_tensors != asked->n_tensors) {
        return rn_err_set(err, -EINVAL, "%s: split.tensors.count is %u, expected %u: a part of another model", rn_gguf_name(part),
                          s.n_tensors, asked->n_tensors);
    }
    return 0;
}

/* Opens all parts but the one that is open already; on failure the caller closes what is in `parts`. */
static int open_parts(struct rn_gguf **parts, const struct rn_gguf *opened, const struct split *s, struct rn_err *err)
{
    size_t stem = 0;
    int r = find_stem(opened, s, &stem, err);
    char *path = r < 0 ? NULL : rn_mem_strdup(rn_gguf_name(opened));
    if (r == 0 && !path) {
        r = rn_err_nomem(err, stem, "a part's name");
    }
    for (uint32_t no = 0; r == 0 && no < s->n_parts; no++) {
        if (no == s->no) {
            continue;
        }
        suffix_of(path + stem, no, s->n_parts); // as long as the suffix that is there
        r = rn_gguf_open_one(&parts[no], path, err);
        if (r == -ENOENT) {
            r = rn_err_set(err, -ENOENT, "%s: part %u of %u is missing", path, no + 1, s->n_parts);
        }
        r = r < 0 ? r : check_part(parts[no], s, no, err);
    }
    for (uint32_t no = 1; r == 0 && no < s->n_parts; no++) {
        r = check_keys(parts[0], parts[no], err);
    }
    rn_mem_free(path);
    return r;
}

// The file that a tensor of the whole lies in.
static const char *part_of(const struct rn_gguf *whole, const struct rn_tensor *t)
{
    size_t before = (size_t)(t - whole->tensors), i = 0;
    while (before >= whole->parts[i]->n_tensors) {
        before -= whole->parts[i++]->n_tensors;
    }
    return rn_gguf_name(whole->parts[i]);
}

static int gather_tensors(struct rn_gguf *whole, const struct split *s, struct rn_err *err)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_parts; i++) {
        n += whole->parts[i]->n_tensors; // each is bounded by the parser, the number of parts by MAX_PARTS
    }
    if (s->has_n_tensors && n != s->n_tensors) {
        return rn_err_set(err, -EINVAL, "%s: the %u parts have %zu tensors, expected %u (split.tensors.count)", whole->name, s->n_parts, n,
                          s->n_tensors);
    }
    whole->tensors = rn_mem_alloc(n, sizeof *whole->tensors);
    whole->tensor_index = rn_mem_alloc(n, sizeof *whole->tensor_index);
    if (!whole->tensors || !whole->tensor_index) {
        return rn_err_nomem(err, n * sizeof *whole->tensors, "tensors");
    }
    for (uint32_t i = 0; i < s->n_parts; i++) {
        for (size_t k = 0; k < whole->parts[i]->n_tensors; k++) {
            whole->tensors[whole->n_tensors] = whole->parts[i]->tensors[k]; // its name and data stay in the part
            whole->tensor_index[whole->n_tensors] = &whole->tensors[whole->n_tensors];
            whole->n_tensors++;
        }
    }
    const struct rn_tensor *twin = rn_gguf_sort_tensors(whole);
    if (twin) {
        char quoted[RN_GGUF_QUOTE];
        return rn_err_set(err, -EINVAL, "%s: tensor '%s' is in another part too", part_of(whole, twin),
                          rn_gguf_quote((struct rn_gguf_str){twin->name, strlen(twin->name)}, quoted));
    }
    return 0;
}

int rn_gguf_join(struct rn_gguf **g, struct rn_err *err)
{
    struct split s;
    int r = read_split(*g, &s, err);
    if (r < 0 || s.n_parts <= 1) {
        return r;
    }
    struct rn_gguf *whole = rn_mem_alloc(1, sizeof *whole);
    if (!whole || !(whole->name = rn_mem_strdup(rn_gguf_name(*g))) || !(whole->parts = rn_mem_alloc(s.n_parts, sizeof *whole->parts))) {
        rn_gguf_close(whole);
        return rn_err_nomem(err, s.n_parts * sizeof(struct rn_gguf *), "the parts of a model");
    }
    whole->n_parts = s.n_parts;
    whole->parts[s.no] = *g;
    r = open_parts(whole->parts, *g, &s, err);
    r = r < 0 ? r : gather_tensors(whole, &s, err);
    if (r < 0) {
        whole->parts[s.no] = NULL; // stays the caller's
        rn_gguf_close(whole);
        return r;
    }
    struct rn_gguf *first = whole->parts[0];
    whole->kvs = first->kvs;
    whole->n_kvs = first->n_kvs;
    whole->kv_index = first->kv_index;
    first->kvs = NULL;
    first->n_kvs = 0;
    first->kv_index = NULL;
    *g = whole;
    return 0;
}
