/* Elementary functions and sums with fixed sequences of operations: runtime/tensor/fmath.h has the formulas and their accuracy.
 *
 * precise: no compiler may contract or reorder them. Division and inversesqrt() may be off by 2.5 ulp on a GPU (always by the same), so
 * results agree with the CPU's closely, and with each other bit by bit. */

/* RN_EXP_* and RN_GELU_* of runtime/tensor/fmath.h */
const float EXP_MIN = -87.0, EXP_MAX = 88.0;
const float EXP_LOG2E = 1.44269504088896341, EXP_LN2_HI = 0.693359375, EXP_LN2_LO = -2.12194440e-4;
const float EXP_C6 = 1.38206617e-3, EXP_C5 = 8.36867467e-3, EXP_C4 = 4.16682661e-2, EXP_C3 = 1.66665211e-1, EXP_C2 = 0.49999994;
const float GELU_LINE = 1.5957691216057308, GELU_CUBE = 0.07135481627159604;

/* x is not a NaN. */
float rn_expf(float x)
{
    precise float t = min(x, EXP_MAX);
    t = max(t, EXP_MIN); // keeps n in range where the result is not used
    precise float n = roundEven(t * EXP_LOG2E);
    precise float r = fma(n, -EXP_LN2_HI, t);
    r = fma(n, -EXP_LN2_LO, r);
    precise float p = fma(EXP_C6, r, EXP_C5);
    p = fma(p, r, EXP_C4);
    p = fma(p, r, EXP_C3);
    p = fma(p, r, EXP_C2);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    p = p * uintBitsToFloat(uint(int(n) + 127) << 23);
    return x < EXP_MIN ? 0.0 : p;
}

float rn_siluf(float x)
{
    precise float y = x / (1.0 + rn_expf(-x));
    return y;
}

float rn_gelu_tanhf(float x)
{
    precise float square = x * x;
    precise float u = fma(GELU_CUBE, square, GELU_LINE);
    u = x * u;
    precise float y = x / (1.0 + rn_expf(-u));
    return y;
}

/* An f16 of either half of a word. unpackHalf2x16 may flush subnormal numbers, and scales are often subnormal. */
float rn_half_exact(uint h)
{
    const uint magnitude = h & 0x7fffu;
    const float normal = uintBitsToFloat((magnitude << 13) + (112u << 23)), subnormal = float(magnitude) * (1.0 / 16777216.0);
    const uint bits = floatBitsToUint(magnitude < 0x400u ? subnormal : normal);
    return uintBitsToFloat(bits | (h & 0x8000u) << 16);
}

vec2 rn_halves(uint word)
{
    return vec2(rn_half_exact(word & 0xffffu), rn_half_exact(word >> 16));
}

#ifdef LANE_SUMS
/* Sums of 32 virtual lanes by the tree 16-8-4-2-1, for LANE_SUMS vectors at a time (a vector's lanes are `lane` of `vector`). All invocations
 * of the workgroup call it; those with lane >= 32 hold nothing. The sum is returned to all who ask with their vector's number. */
shared vec4 lane_sums[LANE_SUMS][8]; // four lanes to a vector

float rn_lane_sum(uint vector, uint lane, float value)
{
    if (lane < 32u) {
        lane_sums[vector][lane / 4][lane % 4] = value;
    }
    barrier();
    if (lane == 0u) {
        precise vec4 t[4];
        [[unroll]] for (uint i = 0; i < 4; i++) {
            t[i] = lane_sums[vector][i] + lane_sums[vector][i + 4];
        }
        precise vec4 eight0 = t[0] + t[2], eight1 = t[1] + t[3];
        precise vec4 four = eight0 + eight1;
        precise vec2 two = four.xy + four.zw;
        precise float sum = two.x + two.y;
        lane_sums[vector][0].x = sum;
    }
    barrier();
    precise float sum = lane_sums[vector][0].x;
    barrier(); // the next sum writes the same places
    return sum;
}
#endif
