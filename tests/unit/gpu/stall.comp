#version 460
// Runs until the host writes something other than 0 to `flag`. NVIDIA's devices do not see that while they run, so a
// workgroup ends by itself after many rounds, which take seconds there.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

// Mesa's CPU driver computes whole vectors: a lane without an invocation would never leave the loop.
layout(local_size_x = 64) in;

layout(buffer_reference, scalar, buffer_reference_align = 4) volatile buffer Word {
  uint value;
};
layout(push_constant, scalar) uniform Push {
  uint64_t flag;
} push;

void main() {
  for (uint round = 0u; round < 1u << 22 && Word(push.flag).value == 0; ++round) {
  }
}
