/* Plain reference of the int8 quantisations of the numerics contract. Thread: any; pure. */
#pragma once

#include <stdint.h>

#define RN_GROUP 32 /* elements that share one activation or KV scale */
#define RN_AMAX_MIN 0x1p-100f /* below it 127 / amax could overflow; such a group of activations is zero for every purpose */

/* Activations, one group: amax = max |x|; d = amax / 127; q = rint(x * (127 / amax)); amax < 2^-100: d = 0, all q = 0.
 *   x [32]; q [32]; returns d. *ret_sum = sum of q. NaN and infinities in x are not defined (a model that yields them is broken). */
float rn_quant_act(const float *x, int8_t *q, int32_t *ret_sum);

/* KV, one group: the scale is rounded to f16 first and q uses the rounded one: d16 = f16(amax / 127); q = rint(x / d), |q| <= 127;
 * d16 = 0: all q = 0. x [32]; q [32]; returns d16. */
uint16_t rn_quant_kv(const float *x, int8_t *q);
