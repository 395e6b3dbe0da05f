/* Compiled at configure time only: does this glslang know cooperative matrices of int8? */
#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

layout(local_size_x = 32) in;

shared uint tile[16 * 8];
shared int sums[16 * 16];

void main()
{
    coopmat<int8_t, gl_ScopeSubgroup, 16, 32, gl_MatrixUseA> a;
    coopmat<int8_t, gl_ScopeSubgroup, 32, 16, gl_MatrixUseB> b;
    coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> c = coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0);
    coopMatLoad(a, tile, 0, 8, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, tile, 0, 8, gl_CooperativeMatrixLayoutColumnMajor);
    c = coopMatMulAdd(a, b, c);
    coopMatStore(c, sums, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
}
