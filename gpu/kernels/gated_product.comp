// Computes gate function(gate) * up if one matrix-vector kernel could not compute the two because their types differ;
// or only the function.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(GatedProductPush)
  uint64_t gate;         // [column][in_stride]
  uint64_t up;           // [column][up_stride]; 0: all ones
  uint64_t out_address;  // [column][out_stride], by store_input
  uint64_t parameters;
  uint width;
  uint in_stride;
  uint out_stride;
  uint padded_width;
  uint up_stride;
  uint unused;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(GatedProductConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kForm, form, 0u)  // InputForm of the result
CONSTANT(2, kGate, gate, 0u)  // Gate
CONSTANT(3, kPerColumn, per_column, 1u)  // columns here per column of the step
CONSTANTS_END
#include "gates.glsl"

void multiply_gated() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0] * kPerColumn) return;
  if (!chain_wait()) return;
  Floats gates = Floats(push.gate + uint64_t(column) * push.in_stride * 4u);
  Floats ups = Floats(push.up + uint64_t(column) * push.up_stride * 4u);
  for (uint k = gl_LocalInvocationID.x; k < push.padded_width; k += kInvocations) {
    precise float value = 0.0;
    if (k < push.width) value = gated(kGate, gates.v[k], push.up != 0ul ? ups.v[k] : 1.0);
    store_input(push.out_address, column, push.out_stride, k, value, kForm);
  }
}

void main() {
  multiply_gated();
  chain_arrive();
}
