// Shows whether the device lays out fragments as units.glsl fills them by hand: each lane fills its entries of two
// known matrices as if it did, and writes out its entries of the product likewise. One subgroup. (units_check.cpp knows
// the product.)
#version 460
#include "common.glsl"
#extension GL_NV_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(push_constant, std430) uniform Push {
  FIELDS(UnitsFragmentsPush)
  uint64_t a;            // [16][16] halves
  uint64_t b;            // [16][8] halves
  uint64_t c;            // [16][8] floats
  uint64_t out_address;  // [16][8] floats: a * b + c
  FIELDS_END
} push;

layout(local_size_x = 32) in;

void main() {
  uint lane = gl_SubgroupInvocationID;
  fcoopmatNV<16, gl_ScopeSubgroup, 16, 16> a;
  fcoopmatNV<16, gl_ScopeSubgroup, 16, 8> b;
  fcoopmatNV<32, gl_ScopeSubgroup, 16, 8> c;
  FloatsOut result = FloatsOut(push.out_address);
  // This does not ask for length(). It need not, because 32 lanes hold all entries, so a lane has no fewer than these.
  // And it must not, because NVIDIA's driver (580.159.04) crashes on such a constant (OpSpecConstantOp of
  // OpCooperativeMatrixLengthKHR).
  uint row = lane >> 2, pair = (lane & 3u) * 2u;
  [[unroll]] for (uint e = 0; e < 8; e++) {
    a[e] = HalvesOut(push.a).v[(row + (e & 4u) * 2u) * 16u + pair + (e & 1u) + (e & 2u) * 4u];
  }
  [[unroll]] for (uint e = 0; e < 4; e++) {
    b[e] = HalvesOut(push.b).v[(pair + (e & 1u) + (e & 2u) * 4u) * 8u + row];
    c[e] = FloatsOut(push.c).v[(row + (e & 2u) * 4u) * 8u + pair + (e & 1u)];
  }
  c = coopMatMulAddNV(a, b, c);
  [[unroll]] for (uint e = 0; e < 4; e++) result.v[(row + (e & 2u) * 4u) * 8u + pair + (e & 1u)] = c[e];
}
