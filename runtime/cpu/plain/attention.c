/* Attention over KV pages in plain C: the specification of RN_CPU_KV_WRITE_*, RN_CPU_ATTN_* and RN_CPU_ATTN_COMBINE.
 *
 * Layout and order of summation: kernels.h. A maximum of zero is stored as +0, so that it does not depend on the order in which
 * scores are compared. Tokens that a query does not see are skipped, never multiplied by zero. Thread: any; pure. */
#include "runtime/cpu/rows_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/tensor/backend.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/fmath.h"
#include "runtime/tensor/quant.h"

#define TILE 16 /* tokens per tile of K */

/* Place of (token slot, dimension d) in the K part of a page, counted in elements; the caller gives the tile's first element. */
static size_t k_f16_index(uint32_t head_dim, uint32_t slot, uint32_t d)
{
    return (size_t)(slot / TILE) * head_dim * TILE + (size_t)d * TILE + slot % TILE;
}

static size_t k_q8_tile(uint32_t head_dim, uint32_t slot)
{
    return (size_t)(slot / TILE) * TILE * (head_dim + head_dim / RN_GROUP * sizeof(uint16_t));
}

static size_t k_q8_offset(uint32_t head_dim, uint32_t slot, uint32_t d)
{
    return k_q8_tile(head_dim, slot) + (size_t)(d / 4) * TILE * 4 + slot % TILE * 4 + d % 4;
}

static size_t k_q8_scale_offset(uint32_t head_dim, uint32_t slot, uint32_t group)
{
    return k_q8_tile(head_dim, slot) + (size_t)TILE * head_dim + ((size_t)group * TILE + slot % TILE) * sizeof(uint16_t);
}

static size_t v_q8_scale_offset(uint32_t head_dim, uint32_t slot, uint32_t group)
{
    return (size_t)RN_PAGE_TOKENS * head_dim + ((size_t)slot * (head_dim / RN_GROUP) + group) * sizeof(uint16_t);
}

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

void rn_kv_write_f16_c(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    for (uint32_t d = 0; d < head_dim; d++) {
        store_u16(kpart + k_f16_index(head_dim, slot, d) * sizeof(uint16_t), rn_f32_to_f16(k[d]));
        store_u16(vpart + ((size_t)slot * head_dim + d) * sizeof(uint16_t), rn_f32_to_f16(v[d]));
    }
}

void rn_kv_write_q8_0_c(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    int8_t q[RN_GROUP];
    for (uint32_t g = 0; g < head_dim / RN_GROUP; g++) {
        uint16_t scale = rn_quant_kv(k + g * RN_GROUP, q);
        for (uint32_t i = 0; i < RN_GROUP; i++) {
            kpart[k_q8_offset(head_dim, slot, g * RN_GROUP + i)] = (uint8_t)(q[i] + 128);
        }
        store_u16(kpart + k_q8_scale_offset(head_dim, slot, g), scale);

        scale = rn_quant_kv(v + g * RN_GROUP, q);
        memcpy(vpart + (size_t)slot * head_dim + g * RN_GROUP, q, RN_GROUP);
        store_u16(vpart + v_q8_scale_offset(head_dim, slot, g), scale);
    }
}

static bool sees(const struct rn_attn_args *args, uint32_t i, uint32_t j)
{
    return j >= args->lo[i] && j < args->hi[i];
}

static bool any_sees(const struct rn_attn_args *args, uint32_t j)
{
    for (uint32_t i = 0; i < args->n_q; i++) {
        if (sees(args, i, j)) {
            return true;
        }
    }
    return false;
}

/* Turns the scores of query i into weights p, in place; sets m and l. */
static void softmax(const struct rn_attn_args *args, uint32_t i, float *p)
{
    float m = -INFINITY, lanes[16] = {0};
    for (uint32_t j = args->lo[i]; j < args->hi[i]; j++) {
        m = p[j] > m ? p[j] : m;
    }
    m += 0.0f;
    for (uint32_t j = args->lo[i]; j < args->hi[i]; j++) {
        p[j] = rn_expf(p[j] - m);
        lanes[j % 16] += p[j];
    }
    args->m[i] = m;
    args->l[i] = rn_lane_sum(lanes);
}

void rn_attn_f16_c(const struct rn_attn_args *args)
{
    uint32_t head_dim = args->head_dim;
    float *p = args->scratch;                              // [n_q][256], scores, then weights
    float *row = p + RN_ATTN_MAX_Q * RN_CHUNK_TOKENS;      // [head_dim], one key or value

    for (uint32_t j = 0; j < RN_CHUNK_TOKENS; j++) {
        if (!any_sees(args, j)) {
            continue;
        }
        const uint8_t *k = args->k[j / RN_PAGE_TOKENS];
        for (uint32_t d = 0; d < head_dim; d++) {
            row[d] = rn_f16_to_f32(load_u16(k + k_f16_index(head_dim, j % RN_PAGE_TOKENS, d) * sizeof(uint16_t)));
        }
        for (uint32_t i = 0; i < args->n_q; i++) {
            if (sees(args, i, j)) {
                p[i * RN_CHUNK_TOKENS + j] = rn_lane_dot(args->q[i], row, head_dim) * args->scale;
            }
        }
    }
    for (uint32_t i = 0; i < args->n_q; i++) {
        softmax(args, i, p + i * RN_CHUNK_TOKENS);
    }

    memset(args->o, 0, (size_t)args->n_q * head_dim * sizeof *args->o);
    for (uint32_t j = 0; j < RN_CHUNK_TOKENS; j++) {
        if (!any_sees(args, j)) {
            continue;
        }
        const uint8_t *v = args->v[j / RN_PAGE_TOKENS] + (size_t)(j % RN_PAGE_TOKENS) * head_dim * sizeof(uint16_t);
        for (uint32_t d = 0; d < head_dim; d++) {
            row[d] = rn_f16_to_f32(load_u16(v + d * sizeof(uint16_t)));
        }
        for (uint32_t i = 0; i < args->n_q; i++) {
            float *o = args->o + (size_t)i * head_dim;
            for (uint32_t d = 0; sees(args, i, j) && d < head_dim; d++) {
                o[d] = fmaf(p[i * RN_CHUNK_TOKENS + j], row[d], o[d]);
            }
        }
    }
}

/* dot(q, k) of one token: q [head_dim] with scales dq per group. */
static float dot_q8(const int8_t *q, const float *dq, const uint8_t *kpart, uint32_t head_dim, uint32_t slot)
{
    float acc = 0.0f;
    for (uint32_t g = 0; g < head_dim / RN_GROUP; g++) {
        int32_t isum = 0;
        for (uint32_t d = g * RN_GROUP; d < (g + 1) * RN_GROUP; d++) {
            isum += (int32_t)q[d] * ((int32_t)kpart[k_q8_offset(head_dim, slot, d)] - 128);
        }
        acc = fmaf((float)isum, dq[g] * rn_f16_to_f32(load_u16(kpart + k_q8_scale_offset(head_dim, slot, g))), acc);
    }
    return acc;
}

static void add_value_q8(float *o, float p, const uint8_t *vpart, uint32_t head_dim, uint32_t slot)
{
    for (uint32_t g = 0; g < head_dim / RN_GROUP; g++) {
        float pd = p * rn_f16_to_f32(load_u16(vpart + v_q8_scale_offset(head_dim, slot, g)));
        for (uint32_t d = g * RN_GROUP; d < (g + 1) * RN_GROUP; d++) {
            o[d] = fmaf(pd, (float)(int8_t)vpart[(size_t)slot * head_dim + d], o[d]);
        }
    }
}

void rn_attn_q8_0_c(const struct rn_attn_args *args)
{
    uint32_t head_dim = args->head_dim, n_groups = head_dim / RN_GROUP;
    float *dq = args->scratch + RN_CHUNK_TOKENS;  // [n_groups], after the weights [256] of one query
    int8_t *q = (int8_t *)(dq + n_groups);        // [head_dim]

    memset(args->o, 0, (size_t)args->n_q * head_dim * sizeof *args->o);
    for (uint32_t i = 0; i < args->n_q; i++) {
        float *p = args->scratch;
        int32_t sum;
        for (uint32_t g = 0; g < n_groups; g++) {
            dq[g] = rn_quant_act(args->q[i] + g * RN_GROUP, q + g * RN_GROUP, &sum);
        }
        for (uint32_t j = args->lo[i]; j < args->hi[i]; j++) {
            p[j] = dot_q8(q, dq, args->k[j / RN_PAGE_TOKENS], head_dim, j % RN_PAGE_TOKENS) * args->scale;
        }
        softmax(args, i, p);
        for (uint32_t j = args->lo[i]; j < args->hi[i]; j++) {
            add_value_q8(args->o + (size_t)i * head_dim, p[j], args->v[j / RN_PAGE_TOKENS], head_dim, j % RN_PAGE_TOKENS);
        }
    }
}

void rn_attn_combine_c(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim)
{
    if (l1 == 0.0f) {
        return;
    }
    if (*l == 0.0f) {
        *m = m1;
        *l = l1;
        memcpy(o, o1, head_dim * sizeof *o);
        return;
    }
    float top = m1 > *m ? m1 : *m;
    float a = rn_expf(*m - top), b = rn_expf(m1 - top);
    *l = fmaf(*l, a, l1 * b);
    for (uint32_t d = 0; d < head_dim; d++) {
        o[d] = fmaf(o[d], a, o1[d] * b);
    }
    *m = top;
}
