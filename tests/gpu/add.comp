/* The tests' own kernel: adds a constant of the pipeline to each word. */
#version 450
#extension GL_EXT_buffer_reference : require

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint ADDEND = 1;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint v[]; };
layout(push_constant) uniform Args { Words words; uint n; };

void main()
{
    if (gl_GlobalInvocationID.x < n) {
        words.v[gl_GlobalInvocationID.x] += ADDEND;
    }
}
