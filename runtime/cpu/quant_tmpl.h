/* Activations to int8, and keys and values into their pages; included once per instruction set, with
 *   ROW              suffix of the function names: avx2
 *   LANES            floats that store_f16 takes
 *   rn_v_quant_act   rn_quant_act of one group, with the sums of both halves
 *   rn_v_quant_kv    rn_quant_kv of one group
 *   store_f16        LANES floats as halves, to nearest
 * The bits are those of plain C. Thread: any; pure. */
#include <string.h>

#include "runtime/tensor/backend.h"
#include "runtime/tensor/quant.h"

#define NAME(name) RN_ROW_NAME(name, ROW)

#define TILE 16 /* tokens per tile of K */

void NAME(rn_quant_act)(const float *x, const struct rn_acts *a, uint32_t m)
{
    const size_t mb = a->mb;
    size_t at = (size_t)(m / a->mb) * a->n_groups * mb + m % a->mb;
    for (uint32_t g = 0; g < a->n_groups; g++, x += RN_GROUP, at += mb) {
        a->d[at] = rn_v_quant_act(x, a->q + at * RN_GROUP, &a->sum[at]);
        a->sd[at] = (float)(a->sum[at].half[0] + a->sum[at].half[1]) * a->d[at];
    }
}

void NAME(rn_kv_write_f16)(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    uint16_t *kt = (uint16_t *)(void *)kpart + (size_t)(slot / TILE) * TILE * head_dim + slot % TILE;
    uint16_t *vt = (uint16_t *)(void *)vpart + (size_t)slot * head_dim;
    for (uint32_t d = 0; d < head_dim; d += LANES) {
        uint16_t half[LANES];
        store_f16(half, k + d);
        for (uint32_t i = 0; i < LANES; i++) {
            kt[(size_t)(d + i) * TILE] = half[i];
        }
        store_f16(vt + d, v + d);
    }
}

void NAME(rn_kv_write_q8_0)(const float *k, const float *v, uint32_t head_dim, uint8_t *kpart, uint8_t *vpart, uint32_t slot)
{
    uint32_t n_groups = head_dim / RN_GROUP;
    uint8_t *tile = kpart + (size_t)(slot / TILE) * TILE * (head_dim + n_groups * sizeof(uint16_t));
    uint16_t *kd = (uint16_t *)(void *)(tile + (size_t)TILE * head_dim);
    int8_t *vq = (int8_t *)vpart + (size_t)slot * head_dim;
    uint16_t *vd = (uint16_t *)(void *)(vpart + (size_t)RN_PAGE_TOKENS * head_dim) + (size_t)slot * n_groups;
    for (uint32_t g = 0; g < n_groups; g++) {
        int8_t q[RN_GROUP];
        kd[g * TILE + slot % TILE] = rn_v_quant_kv(k + g * RN_GROUP, q);
        for (uint32_t i = 0; i < RN_GROUP; i++) {
            q[i] = (int8_t)(q[i] ^ -0x80); // q + 128
        }
        for (uint32_t t = 0; t < RN_GROUP / 4; t++) {
            memcpy(tile + ((size_t)g * RN_GROUP / 4 + t) * TILE * 4 + slot % TILE * 4, q + 4 * t, 4);
        }
        vd[g] = rn_v_quant_kv(v + g * RN_GROUP, vq + g * RN_GROUP);
    }
}
