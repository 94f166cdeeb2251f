// gate function(gate) * up, where the two could not be made by one matrix-vector kernel because their types differ; or the
// function alone.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
#include "fields/gated_product_push.glsl"
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

#include "constants/gated_product.glsl"
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
