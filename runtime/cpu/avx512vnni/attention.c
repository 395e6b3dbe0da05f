/* Attention over KV pages with AVX-512 VNNI, the bits of plain/attention.c: writing, what comes after the scores, combining. The plan and
 * its invariants: attention_internal.h. */
#include "runtime/cpu/rows_internal.h"

#include <string.h>

#include "runtime/cpu/avx512vnni/attention_internal.h"
#include "runtime/cpu/avx512vnni/quant_internal.h"
#include "runtime/tensor/quant.h"

/* ---- Writing ------------------------------------------------------------------------------------------------------------------ */

void rn_kv_write_f16_avx512vnni(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    uint16_t *kt = (uint16_t *)(void *)kpart + (size_t)(slot / TILE) * TILE * head_dim + slot % TILE;
    uint16_t *vt = (uint16_t *)(void *)vpart + (size_t)slot * head_dim;
    for (uint32_t d = 0; d < head_dim; d += 16) {
        uint16_t half[16];
        _mm256_storeu_si256((void *)half, _mm512_cvtps_ph(_mm512_loadu_ps(k + d), _MM_FROUND_TO_NEAREST_INT));
        for (uint32_t i = 0; i < 16; i++) {
            kt[(size_t)(d + i) * TILE] = half[i];
        }
        _mm256_storeu_si256((void *)(vt + d), _mm512_cvtps_ph(_mm512_loadu_ps(v + d), _MM_FROUND_TO_NEAREST_INT));
    }
}

/* rn_quant_kv. */
static uint16_t quant_kv(const float *x, int8_t *q)
{
    __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
    uint16_t d16 = _cvtss_sh(rn_v_group_max(x0, x1) / 127.0f, _MM_FROUND_TO_NEAREST_INT);
    if (d16 == 0) {
        memset(q, 0, RN_GROUP);
        return 0;
    }
    __m512 d = _mm512_set1_ps(_cvtsh_ss(d16)), lo = _mm512_set1_ps(-127.0f), hi = _mm512_set1_ps(127.0f);
    x0 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x0, d), lo), hi);
    x1 = _mm512_min_ps(_mm512_max_ps(_mm512_div_ps(x1, d), lo), hi);
    rn_v_store_i8(q, _mm512_cvtps_epi32(x0), _mm512_cvtps_epi32(x1));
    return d16;
}

void rn_kv_write_q8_0_avx512vnni(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    uint32_t n_groups = head_dim / RN_GROUP;
    uint8_t *tile = kpart + (size_t)(slot / TILE) * TILE * (head_dim + n_groups * sizeof(uint16_t));
    uint16_t *kd = (uint16_t *)(void *)(tile + (size_t)TILE * head_dim);
    int8_t *vq = (int8_t *)vpart + (size_t)slot * head_dim;
    uint16_t *vd = (uint16_t *)(void *)(vpart + (size_t)RN_PAGE_TOKENS * head_dim) + (size_t)slot * n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        int8_t q[RN_GROUP];
        kd[g * TILE + slot % TILE] = quant_kv(k + g * RN_GROUP, q);
        __m256i biased = _mm256_xor_si256(_mm256_loadu_si256((const void *)q), _mm256_set1_epi8((char)0x80)); // q + 128
        _mm256_storeu_si256((void *)q, biased);
        for (uint32_t t = 0; t < RN_GROUP / 4; t++) {
            memcpy(tile + ((size_t)g * RN_GROUP / 4 + t) * TILE * 4 + slot % TILE * 4, q + 4 * t, 4);
        }
        vd[g] = quant_kv(v + g * RN_GROUP, vq + g * RN_GROUP);
    }
}

/* ---- Weights ------------------------------------------------------------------------------------------------------------------ */

/* Turns the scores of query i into weights, in place; sets m and l. Unseen tokens of the first and last tile have the weight exp(-inf) = 0,
 * which leaves a lane's sum as it is. */
static void softmax(const struct rn_attn_args *args, uint32_t i, __m512 max)
{
    float *p = args->scratch + i * RN_CHUNK_TOKENS;
    float m = _mm512_reduce_max_ps(max) + 0.0f; // -0 becomes +0, as in plain C
    __m512 lanes = _mm512_setzero_ps();
    for (uint32_t j = args->lo[i] / TILE * TILE; j < args->hi[i]; j += TILE) {
        __m512 w = rn_v_exp(_mm512_sub_ps(_mm512_loadu_ps(p + j), _mm512_set1_ps(m)));
        lanes = _mm512_add_ps(lanes, w);
        _mm512_storeu_ps(p + j, w);
    }
    args->m[i] = m;
    args->l[i] = rn_v_lane_sum(lanes);
}

void rn_attn_finish_avx512(const struct rn_attn_args *args, const __m512 *max, rn_attn_values_fn values)
{
    for (uint32_t i = 0; i < args->n_q; i++) {
        if (args->lo[i] < args->hi[i]) {
            softmax(args, i, max[i]);
        }
    }
    rn_attn_sum_values(args, values, BLOCK_V);
}

/* ---- Combining ---------------------------------------------------------------------------------------------------------------- */

void rn_attn_combine_avx512vnni(float *m, float *l, float *o, float m1, float l1, const float *o1, uint32_t head_dim)
{
    if (rn_attn_combine_trivial(m, l, o, m1, l1, o1, head_dim)) {
        return;
    }
    float top = m1 > *m ? m1 : *m;
    __m512 a = rn_v_exp(_mm512_set1_ps(*m - top)), b = rn_v_exp(_mm512_set1_ps(m1 - top));
    for (uint32_t d = 0; d < head_dim; d += 16) {
        __m512 add = _mm512_mul_ps(_mm512_loadu_ps(o1 + d), b);
        _mm512_storeu_ps(o + d, _mm512_fmadd_ps(_mm512_loadu_ps(o + d), a, add));
    }
    *l = fmaf(*l, _mm512_cvtss_f32(a), l1 * _mm512_cvtss_f32(b));
    *m = top;
}
