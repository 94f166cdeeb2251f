// Fragments of matrix units (cooperative matrices, 16x8x16, halves in, float32 sums), filled entry by entry. Lane 4 *
// r + q holds rows r and r + 8 of a fragment of weights and column r of a fragment of inputs, in both for k = 2 * q,
// 2 * q + 1 and the same plus 8; of sums it holds rows r and r + 8 in columns 2 * q and 2 * q + 1.
// units_fragments.comp checks at the start that the device does so.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#ifdef BULKHEAD_EMULATED_UNITS
#include "units_emulated.glsl"
#else
#extension GL_NV_cooperative_matrix : require
#define WeightFragment fcoopmatNV<16, gl_ScopeSubgroup, 16, 16>
#define InputFragment fcoopmatNV<16, gl_ScopeSubgroup, 16, 8>
#define SumFragment fcoopmatNV<32, gl_ScopeSubgroup, 16, 8>
#define no_sums() SumFragment(0.0)
#define multiply_add coopMatMulAddNV
#define unit_lane gl_SubgroupInvocationID
#define unit_subgroup gl_SubgroupID
#define from_lane subgroupShuffle
#endif

// Returns the fragment of the j-th half of a group.
WeightFragment weight_fragment(f16vec2 low_row[4], f16vec2 high_row[4], const uint j) {
  WeightFragment a;
  a[0] = low_row[j * 2u].x;
  a[1] = low_row[j * 2u].y;
  a[2] = low_row[j * 2u + 1u].x;
  a[3] = low_row[j * 2u + 1u].y;
  a[4] = high_row[j * 2u].x;
  a[5] = high_row[j * 2u].y;
  a[6] = high_row[j * 2u + 1u].x;
  a[7] = high_row[j * 2u + 1u].y;
  return a;
}
InputFragment input_fragment(uvec4 x, const uint j) {
  InputFragment b;
  f16vec2 first = unpackFloat2x16(x[j * 2u]), second = unpackFloat2x16(x[j * 2u + 1u]);
  b[0] = first.x;
  b[1] = first.y;
  b[2] = second.x;
  b[3] = second.y;
  return b;
}
