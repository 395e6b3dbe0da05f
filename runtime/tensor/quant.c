/* Plain reference of the int8 quantisations; the kernel rows must give the same bits. Rounding is to nearest, ties to even (the
 * default mode, which nothing in the program changes). */
#include "runtime/tensor/quant.h"

#include <math.h>
#include <string.h>

#include "runtime/tensor/dtype.h"


static float group_amax(const float *x)
{
    float amax = 0.0f;
    for (int i = 0; i < RN_GROUP; i++) {
        float a = fabsf(x[i]);
        amax = a > amax ? a : amax;
    }
    return amax;
}

float rn_quant_act(const float *x, int8_t *q, int32_t *ret_sum)
{
    float amax = group_amax(x);
    int32_t sum = 0;
    if (amax < RN_AMAX_MIN) {
        memset(q, 0, RN_GROUP);
        *ret_sum = 0;
        return 0.0f;
    }
    float inverse = 127.0f / amax;
    for (int i = 0; i < RN_GROUP; i++) {
        q[i] = (int8_t)lrintf(x[i] * inverse);
        sum += q[i];
    }
    *ret_sum = sum;
    return amax / 127.0f;
}

uint16_t rn_quant_kv(const float *x, int8_t *q)
{
    uint16_t d16 = rn_f32_to_f16(group_amax(x) / 127.0f);
    if (d16 == 0) {
        memset(q, 0, RN_GROUP);
        return 0;
    }
    float d = rn_f16_to_f32(d16);
    for (int i = 0; i < RN_GROUP; i++) {
        // The rounded scale may be the smaller one (much smaller among subnormals), so the quotient is clamped; a NaN becomes -127.
        float v = x[i] / d;
        v = v > -127.0f ? v : -127.0f;
        v = v < 127.0f ? v : 127.0f;
        q[i] = (int8_t)lrintf(v);
    }
    return d16;
}
