// Shows how the device lays out the fragments that units.glsl fills by hand: each lane writes out what it holds of matrices
// of known entries, and of their product. One subgroup. (units_check.cpp says what is expected.)
#version 460
#include "common.glsl"
#extension GL_NV_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(push_constant, std430) uniform Push {
  uint64_t a;  // [16][16] halves
  uint64_t b;  // [16][8] halves
  uint64_t c;  // [16][8] floats
  uint64_t out_address;  // [lane][20]
} push;

layout(local_size_x = 32) in;

void main() {
  fcoopmatNV<16, gl_ScopeSubgroup, 16, 16> a;
  fcoopmatNV<16, gl_ScopeSubgroup, 16, 8> b;
  fcoopmatNV<32, gl_ScopeSubgroup, 16, 8> c;
  coopMatLoadNV(a, HalvesOut(push.a).v, 0, 16, false);
  coopMatLoadNV(b, HalvesOut(push.b).v, 0, 8, false);
  coopMatLoadNV(c, FloatsOut(push.c).v, 0, 8, false);
  fcoopmatNV<32, gl_ScopeSubgroup, 16, 8> product = coopMatMulAddNV(a, b, fcoopmatNV<32, gl_ScopeSubgroup, 16, 8>(0.0));
  FloatsOut result = FloatsOut(push.out_address + gl_SubgroupInvocationID * 80u);
  // A device with other lengths fails the check, too.
  bool usual = a.length() == 8 && b.length() == 4 && c.length() == 4;
  [[unroll]] for (int i = 0; i < 8; i++) result.v[i] = usual ? float(a[i]) : -1.0;
  [[unroll]] for (int i = 0; i < 4; i++) {
    result.v[8 + i] = usual ? float(b[i]) : -1.0;
    result.v[12 + i] = usual ? c[i] : -1.0;
    result.v[16 + i] = usual ? product[i] : -1.0;
  }
}
