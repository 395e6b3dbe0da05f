/* Buffer references: how every shader reaches memory (no descriptors; the addresses come in push constants). An index counts elements.
 * shaders/args.h has what the push constants of each shader are, and the C side of the tables below.
 *
 * A 64-bit address inside a table is a uvec2 (no shader needs 64-bit integers): Words(page) makes a reference of it; uvec2(0) is none. */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_EXT_control_flow_attributes : require

#include "args.h"

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Words4 { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Floats4 { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pairs { vec2 v[]; };

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Step {
    uint n_rows, n_wanted, reserved0, reserved1;
    uint id[RN_STEP_ROWS];
    uint wanted[RN_STEP_ROWS];
};

struct Cell { uvec2 page; uint slot, pinned; };
struct Tile { uint row0, n_rows, chunk0, n_chunks, partial0, reserved0, reserved1, reserved2; };
struct Chunk { uvec2 pages[4]; uint tile, pinned, reserved0, reserved1; uint span[RN_TILE_ROWS]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Cells { Cell v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Tiles { Tile v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Chunks { Chunk v[]; };

/* RN_ARGS(RN_ARGS_PRODUCT): the push constants, as args.NAME. */
#define RN_GLSL_REF(type, name) type name;
#define RN_GLSL_UINT(name) uint name;
#define RN_GLSL_FLOAT(name) float name;
#define RN_ARGS(list) layout(push_constant, std430) uniform Args { list(RN_GLSL_REF, RN_GLSL_UINT, RN_GLSL_FLOAT) } args;
