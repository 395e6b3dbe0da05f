/* Quantised weights: a group of 32 columns of two adjacent rows, read from the blocks of 16 rows of runtime/tensor/repack.h (which has the
 * layouts). -DTYPE_<type> selects the type. A vector's components are the two rows, 2 pair and 2 pair + 1 of the block.
 *
 * Codes come out signed, with their offset removed. That costs an operation or two per word and spares every dot product the sum of its
 * activations. For dot.glsl they are bytes, four columns to a word, or pairs. */

#if defined(TYPE_Q4_0)
#define BITS 4
#define OFFSET 8
#define SCALE_WORDS 8
#elif defined(TYPE_IQ4_NL)
#define BITS 4
#define OFFSET 128
#define SCALE_WORDS 8
#elif defined(TYPE_Q4_1)
#define BITS 4
#define SCALE_WORDS 16
#define HAS_MIN
#elif defined(TYPE_Q5_0)
#define BITS 5
#define OFFSET 16
#define SCALE_WORDS 8
#elif defined(TYPE_Q5_1)
#define BITS 5
#define SCALE_WORDS 16
#define HAS_MIN
#elif defined(TYPE_Q8_0)
#define BITS 8
#define OFFSET 128
#define SCALE_WORDS 8
#elif defined(TYPE_MXFP4)
#define BITS 4
#define OFFSET 128
#define SCALE_WORDS 4
#elif defined(TYPE_Q4_K)
#define BITS 4
#define SCALE_WORDS 8
#define SUPER_WORDS 16
#define HAS_MIN
#elif defined(TYPE_Q5_K)
#define BITS 5
#define SCALE_WORDS 8
#define SUPER_WORDS 16
#define HAS_MIN
#elif defined(TYPE_Q6_K)
#define BITS 6
#define OFFSET 32
#define SCALE_WORDS 8
#define SUPER_WORDS 8
#define HAS_SUBS
#else
#error no TYPE_
#endif

#ifndef OFFSET
#define OFFSET 0
#endif
#ifndef SUPER_WORDS
#define SUPER_WORDS 0
#endif

const uint CODE_WORDS = BITS * 16, GROUP_WORDS = CODE_WORDS + SCALE_WORDS, EIGHT_WORDS = 8 * GROUP_WORDS + SUPER_WORDS;

struct Group {
    ivec2 q[ACT_WORDS]; // as dot.glsl has them: bytes, word k: columns 4k .. 4k + 3; pairs, 2k: columns 4k and 4k + 2, 2k + 1: the others
    vec2 d, m;        // m with HAS_MIN
    ivec2 sub0, sub1; // with HAS_SUBS: factors of columns 0..15 and 16..31
};

/* Words of a block of 16 rows. */
uint block_words(uint n_groups)
{
    const uint rest = n_groups % 8;
    return n_groups / 8 * EIGHT_WORDS + rest * GROUP_WORDS + (rest > 0 ? SUPER_WORDS : 0);
}

uint eight_at(uint g)
{
    return g / 8 * EIGHT_WORDS;
}

/* ---- codes ------------------------------------------------------------------------------------------------------------------------------ */

/* Four codes to unsigned bytes: value + OFFSET. */
#if defined(TYPE_IQ4_NL)
/* rn_iq4_nl_values: a tree of choices by the bits of c. */
uvec2 choose(uvec2 mask, uvec2 zero, uvec2 one)
{
    return zero ^ (mask & (zero ^ one));
}

uvec2 choose_bytes(uvec2 mask, int zero, int one)
{
    return choose(mask, uvec2(uint(zero + 128) * 0x01010101u), uvec2(uint(one + 128) * 0x01010101u));
}

uvec2 code_bytes(uvec2 c)
{
    const uvec2 b0 = (c & 0x01010101u) * 255u, b1 = (c >> 1 & 0x01010101u) * 255u;
    const uvec2 b2 = (c >> 2 & 0x01010101u) * 255u, b3 = (c >> 3 & 0x01010101u) * 255u;
    const uvec2 v0 = choose(b1, choose_bytes(b0, -127, -104), choose_bytes(b0, -83, -65));
    const uvec2 v1 = choose(b1, choose_bytes(b0, -49, -35), choose_bytes(b0, -22, -10));
    const uvec2 v2 = choose(b1, choose_bytes(b0, 1, 13), choose_bytes(b0, 25, 38));
    const uvec2 v3 = choose(b1, choose_bytes(b0, 53, 69), choose_bytes(b0, 89, 113));
    return choose(b3, choose(b2, v0, v1), choose(b2, v2, v3));
}
#elif defined(TYPE_MXFP4)
/* rn_mxfp4_values: 0 1 2 3 4 6 8 12, then the same negative. From 4 on, c mod 4 + 2 (both low bits) is added. */
uvec2 code_bytes(uvec2 c)
{
    const uvec2 both = c >> 1 & c & 0x01010101u, from4 = (c >> 2 & 0x01010101u) * 7u, negative = (c >> 3 & 0x01010101u) * 255u;
    const uvec2 v = (c & 0x07070707u) + ((c & 0x03030303u) + 2u * both & from4);
    return (0x80808080u + v) & ~negative | (0x80808080u - v) & negative; // v <= 12: no byte borrows
}
#else
uvec2 code_bytes(uvec2 c)
{
    return c;
}
#endif

/* Word k of a group, from its codes. */
void put_codes(uvec2 c, uint k, inout ivec2 q[ACT_WORDS])
{
    const uvec2 bytes = code_bytes(c);
#ifdef BYTES
    // Adding 128 - OFFSET cannot carry into the next byte; the upper bit then becomes the sign.
    q[k] = ivec2(OFFSET == 0 ? bytes : bytes + uint(128 - OFFSET) * 0x01010101u ^ 0x80808080u);
#else
    q[2 * k] = ivec2((bytes & 0x00ff00ffu) - uint(OFFSET) * 0x00010001u);
    q[2 * k + 1] = ivec2((bytes >> 8 & 0x00ff00ffu) - uint(OFFSET) * 0x00010001u);
#endif
}

void read_codes(Words w, uint at, uint pair, out ivec2 q[ACT_WORDS])
{
    Words2 codes = Words2(w); // every group starts at a multiple of 8 bytes
    const uint at2 = at / 2 + pair;
#if BITS == 8
    [[unroll]] for (uint k = 0; k < 8; k++) {
        put_codes(codes.v[at2 + 8 * k], k, q);
    }
#else
#if BITS == 5
    const uvec2 high = codes.v[at2 + 32];
#elif BITS == 6
    const uvec2 high[2] = {codes.v[at2 + 32], codes.v[at2 + 40]};
#endif
    [[unroll]] for (uint t = 0; t < 4; t++) {
        const uvec2 both = codes.v[at2 + 8 * t];
        uvec2 even = both & 0x0f0f0f0fu, odd = both >> 4 & 0x0f0f0f0fu;
#if BITS == 5
        even |= (high >> 2 * t & 0x01010101u) << 4;
        odd |= (high >> 2 * t + 1 & 0x01010101u) << 4;
#elif BITS == 6
        even |= (high[t / 2] >> 4 * (t % 2) & 0x03030303u) << 4;
        odd |= (high[t / 2] >> 4 * (t % 2) + 2 & 0x03030303u) << 4;
#endif
        put_codes(even, 2 * t, q);
        put_codes(odd, 2 * t + 1, q);
    }
#endif
}

/* ---- scales ----------------------------------------------------------------------------------------------------------------------------- */

/* Bytes 2 pair and 2 pair + 1 of the 16 from word `at`. */
uvec2 read_bytes(Words w, uint at, uint pair)
{
    const uint word = w.v[at + pair / 2] >> 16 * (pair % 2);
    return uvec2(word & 255u, word >> 8 & 255u);
}

/* What 8 groups share: .xy d, .zw dmin of the two rows. Nothing to read for most types. */
vec4 read_super(Words w, uint block, uint g, uint pair)
{
#if SUPER_WORDS == 16
    const uint at = block + eight_at(g) + pair;
    return vec4(rn_halves(w.v[at]), rn_halves(w.v[at + 8]));
#elif SUPER_WORDS == 8
    return vec4(rn_halves(w.v[block + eight_at(g) + pair]), 0, 0);
#else
    return vec4(0);
#endif
}

#if defined(TYPE_MXFP4)
float mxfp4_scale(uint e)
{
    return uintBitsToFloat(e < 2u ? 0x00200000u << e : e - 1u << 23);
}
#endif

void read_scales(Words w, uint at, vec4 super_, uint pair, inout Group ret)
{
#if defined(TYPE_MXFP4)
    const uvec2 e = read_bytes(w, at, pair);
    ret.d = vec2(mxfp4_scale(e.x), mxfp4_scale(e.y));
#elif SUPER_WORDS == 16
    ret.d = super_.xy * vec2(read_bytes(w, at, pair));
    ret.m = -(super_.zw * vec2(read_bytes(w, at + 4, pair)));
#elif defined(HAS_SUBS)
    ret.d = super_.xy;
    ret.sub0 = ivec2(read_bytes(w, at, pair)) << 24 >> 24;
    ret.sub1 = ivec2(read_bytes(w, at + 4, pair)) << 24 >> 24;
#else
    ret.d = rn_halves(w.v[at + pair]);
#ifdef HAS_MIN
    ret.m = rn_halves(w.v[at + 8 + pair]);
#endif
#endif
}

/* Group g of the block that starts at word `block`; super_ is read_super of any group of the same eight. */
void read_group(Words w, uint block, uint g, vec4 super_, uint pair, out Group ret)
{
    const uint at = block + eight_at(g) + SUPER_WORDS + g % 8 * GROUP_WORDS;
    read_codes(w, at, pair, ret.q);
    read_scales(w, at + CODE_WORDS, super_, pair, ret);
}

/* ---- a group times a group of activations ------------------------------------------------------------------------------------------------ */

/* Products of pairs that may be added up: 8 for values up to 15 (8 x 2 x 15 x 127 < 2^15), 4 up to 32, 1 up to 128. */
#if BITS == 8 || defined(TYPE_IQ4_NL)
#define SAFE_PAIRS 1
#elif BITS == 4
#define SAFE_PAIRS 8
#else
#define SAFE_PAIRS 4
#endif

ivec2 group_dot(Group w, Acts a)
{
    const uint half_ = ACT_WORDS / 2;
    ivec2 first = ivec2(0), second = ivec2(0);
#ifdef BYTES
    [[unroll]] for (uint k = 0; k < half_; k++) {
        first = dot4(w.q[k], a.x[k], first);
        second = dot4(w.q[k + half_], a.x[k + half_], second);
    }
#else
    ivec2 f = ivec2(PAIRS_ROUND), s = f;
    [[unroll]] for (uint k = 0; k < half_; k++) {
        f += w.q[k] * a.x[k];
        s += w.q[k + half_] * a.x[k + half_];
        if (k % SAFE_PAIRS == SAFE_PAIRS - 1) {
            first += f >> 16;
            second += s >> 16;
            f = s = ivec2(PAIRS_ROUND);
        }
    }
#endif
#ifdef HAS_SUBS
    return w.sub0 * first + w.sub1 * second;
#else
    return first + second;
#endif
}

/* The numerics contract: acc = fma(isum, d_w d_x, acc), then the minimum's part. x: d_x, d_x * sum of the activations. */
vec2 group_add(Group w, ivec2 isum, vec2 x, vec2 acc)
{
    precise vec2 scale = w.d * x.x;
    precise vec2 sum = fma(vec2(isum), scale, acc);
#ifdef HAS_MIN
    sum = fma(vec2(x.y), w.m, sum);
#endif
    return sum;
}
