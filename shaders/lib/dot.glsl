/* Dot products of groups of 32 bytes, exact in any form.
 *
 * DOT: the device has integer dot products, four bytes at a time. (glslang before 14 knows no GL_EXT_integer_dot_product, so the instruction
 * is spelled out: OpSDot, packed 4 x 8 bits.)
 * Else two columns at a time by an ordinary multiplication. A pair of columns (i, j) of weights is the number w_i + 2^16 w_j, of
 * activations 2^16 x_i + x_j; their product is w_i x_j + 2^16 (w_i x_i + w_j x_j) modulo 2^32. Some products may be added up before the
 * upper half is taken, as long as neither half leaves 16 bits; PAIRS_ROUND makes the lower half positive so that it borrows nothing.
 *
 * BYTES: dot4() and bytes without DOT. */
#ifdef DOT
#define BYTES
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int spirv_sdot(int a, int b, spirv_literal int format);

int dot4(int a, int b, int acc)
{
    return acc + spirv_sdot(a, b, 0);
}
#else
int dot4(int a, int b, int acc)
{
    [[unroll]] for (int i = 0; i < 32; i += 8) {
        acc += bitfieldExtract(a, i, 8) * bitfieldExtract(b, i, 8);
    }
    return acc;
}
#endif

ivec2 dot4(ivec2 a, int b, ivec2 acc)
{
    return ivec2(dot4(a.x, b, acc.x), dot4(a.y, b, acc.y));
}

#define PAIRS_ROUND 0x8000

#ifdef BYTES
#define ACT_WORDS 8
#else
#define ACT_WORDS 16
#endif

/* A group of 32 activations: 8 words of bytes, or 16 pairs: columns 4k and 4k + 2, then 4k + 1 and 4k + 3. */
struct Acts {
    int x[ACT_WORDS];
};

ivec2 word_pairs(int word)
{
    return ivec2((word << 24 >> 8) + (word << 8 >> 24), (word << 16 >> 24 << 16) + (word >> 24));
}

void acts_put(uint k, int word, inout Acts a)
{
#ifdef BYTES
    a.x[k] = word;
#else
    const ivec2 pairs = word_pairs(word);
    a.x[2 * k] = pairs.x;
    a.x[2 * k + 1] = pairs.y;
#endif
}

Acts acts_of(uvec4 first, uvec4 second)
{
    Acts a;
    [[unroll]] for (uint k = 0; k < 4; k++) {
        acts_put(k, int(first[k]), a);
        acts_put(k + 4, int(second[k]), a);
    }
    return a;
}
