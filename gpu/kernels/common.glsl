// What every kernel shares: references to plain memory, the step's parameters, the layout of activations.
//
// A kernel gets 64-bit addresses in its push constants and no descriptors. Most loads have four or sixteen bytes.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_quad : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_GOOGLE_include_directive : require
#include "constants/words.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Words { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { uvec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Pairs { uvec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Longs { uint64_t v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Floats { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Vec4s { vec4 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Vec2s { vec2 v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer FloatsOut { float v[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer WordsOut { uint v[]; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer HalvesOut { float16_t v[]; };

// The step's parameters begin with counts (forward/step_slots.cpp writes them); a push constant says which count
// applies to a kernel. The columns follow the counts. Each column has four words: the token; the position; the first
// word of the column's page table; and either 0, or 1 plus the row of results from which the kernel takes the token.
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer ColumnsRef { uvec4 v[]; };

// Loads two words at once.
uvec2 long_at(uint64_t base, uint index) { return unpack32(Longs(base).v[index]); }

#include "values/input_form.glsl"

uint input_index(uint k, uint form) {
  return form == kInputLanes ? ((k & ~1023u) | (((k >> 2) & 7u) << 7) | (((k >> 5) & 31u) << 2) | (k & 3u)) : k;
}

// Writes entry k of an input's column; `stride` is in entries, as input_stride() in kernels.hpp returns it.
void store_input(uint64_t base, uint column, uint stride, uint k, float value, uint form) {
  if (form == kInputUnits) {
    uint64_t block = (uint64_t(column >> 3) * (stride >> 5) + (k >> 5)) * 512ul;
    HalvesOut(base + block).v[(column & 7u) * 32u + (k & 31u)] = float16_t(clamp(value, -65504.0, 65504.0));
  } else {
    FloatsOut(base + uint64_t(column) * stride * 4u).v[input_index(k, form)] = value;
  }
}

layout(buffer_reference, std430, buffer_reference_align = 16) buffer InputQuadsOut { vec4 v; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer InputHalvesOut { f16vec4 v; };
// Writes the entries k to k + 3 like store_input(). k and `stride` must be multiples of four, and `base` of 16 bytes.
void store_input_quad(uint64_t base, uint column, uint stride, uint k, vec4 values, uint form) {
  if (form == kInputUnits) {
    uint64_t block = (uint64_t(column >> 3) * (stride >> 5) + (k >> 5)) * 512ul;
    InputHalvesOut(base + block + ((column & 7u) * 32u + (k & 31u)) * 2u).v = f16vec4(clamp(values, -65504.0, 65504.0));
  } else {
    InputQuadsOut(base + (uint64_t(column) * stride + input_index(k, form)) * 4u).v = values;
  }
}

// Converts a float to a half with round to nearest even, the same on every device (packHalf2x16 leaves the rounding
// open). What is beyond the largest half becomes that half: an infinite value would be a NaN in the sums of columns
// that do not see its position, too, because they weigh it with zero.
uint half_bits(float value) {
  uint bits = floatBitsToUint(value);
  uint sign = (bits >> 16) & 0x8000u;
  uint a = bits & 0x7fffffffu;
  uint h;
  if (a >= 0x47800000u) {
    h = a > 0x7f800000u ? 0x7e00u : 0x7bffu;
  } else if (a >= 0x38800000u) {
    uint r = a - 0x38000000u;
    h = min((r + 0xfffu + ((r >> 13) & 1u)) >> 13, 0x7bffu);
  } else {
    precise float aligned = uintBitsToFloat(a) + 0.5;
    h = floatBitsToUint(aligned) - 0x3f000000u;
  }
  return sign | h;
}
