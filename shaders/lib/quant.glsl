/* rn_quant_act (runtime/tensor/quant.h): a group of 32 activations as int8. Maximum and sum are the same in any order. */

const float AMAX_MIN = 7.8886090522101181e-31; // 2^-100

float quant_largest(vec4 y)
{
    const vec4 a = abs(y);
    return max(max(a.x, a.y), max(a.z, a.w));
}

/* amax: of the whole group. */
ivec4 quant_codes(vec4 y, float amax)
{
    precise float inverse = 127.0 / amax;
    precise vec4 scaled = y * inverse;
    return amax < AMAX_MIN ? ivec4(0) : ivec4(roundEven(scaled));
}

uint quant_word(ivec4 q)
{
    return uint(q.x & 255 | (q.y & 255) << 8 | (q.z & 255) << 16 | q.w << 24);
}

int quant_total(ivec4 q)
{
    return q.x + q.y + q.z + q.w;
}

/* d of RN_ARGS_PRODUCT, from the sum of a group's codes. */
vec2 quant_scale(float amax, int total)
{
    precise float d = amax < AMAX_MIN ? 0.0 : amax / 127.0;
    precise float sum = float(total) * d;
    return vec2(d, sum);
}
