/* Dot products of four signed bytes in a word, exact in any form. DOT: the device has integer dot products. (glslang before 14 knows no
 * GL_EXT_integer_dot_product, so the instruction is spelled out: OpSDot, packed 4 x 8 bits.) */
#ifdef DOT
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
