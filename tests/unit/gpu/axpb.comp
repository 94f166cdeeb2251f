#version 460
// y[i] = a * x[i] + b, through buffer addresses.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(constant_id = 0) const uint kGroupSize = 64;
layout(local_size_x_id = 0) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats {
  float at[];
};
layout(push_constant, scalar) uniform Push {
  uint64_t x;
  uint64_t y;
  uint count;
  float a;
  float b;
  uint padding;
} push;

void main() {
  const uint i = gl_GlobalInvocationID.x;
  if (i >= push.count) return;
  Floats(push.y).at[i] = push.a * Floats(push.x).at[i] + push.b;
}
