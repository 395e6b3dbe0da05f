/* Attention over KV pages with AVX-512 VNNI, the bits of plain/attention.c: what comes after the scores, combining. The plan and its
 * invariants: attention_internal.h. */
#include "runtime/cpu/rows_internal.h"

#include "runtime/cpu/avx512vnni/attention_internal.h"

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
