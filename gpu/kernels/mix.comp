// What a column's experts made, put together: the sum of their results times their weights, in the order in which they
// were chosen, then the shared expert's; one fma each. Added to the residual stream, from which the next product's input
// is made as by a product's own epilogue (epilogue.glsl, kAdd); or stored.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
#include "fields/mix_push.glsl"
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

#include "constants/mix.glsl"

const float kInputShrink = kForm == kInputUnits ? 0.125 : 1.0;  // epilogue.glsl

void mix_column() {
  uint column = gl_WorkGroupID.x;
  uint k = gl_WorkGroupID.y * kInvocations + gl_LocalInvocationID.x;
  if (!chain_wait()) return;
  if (column >= Words(push.parameters).v[0] || k >= push.padded_width) return;
  if (k >= push.width) {
    if (push.next_gain != 0ul) store_input(push.next_input, column, push.next_stride, k, 0.0, kForm);
    return;
  }
  FloatsOut out_column = FloatsOut(push.out_address + uint64_t(column) * push.out_stride * 4u);
  float there = kAdds != 0u ? out_column.v[k] : 0.0;
  Floats weights = Floats(push.weights + uint64_t(column) * (kUsed + kSharedGate) * 4u);
  precise float sum = 0.0;
  [[unroll]] for (uint place = 0; place < kUsed; place++) {
    uint64_t result = push.results + (uint64_t(column) * kUsed + place) * push.results_stride * 4u;
    sum = fma(weights.v[place], Floats(result).v[k], sum);
  }
  if (push.shared_result != 0ul) {
    float own = Floats(push.shared_result + uint64_t(column) * push.shared_stride * 4u).v[k];
    sum = fma(kSharedGate != 0u ? weights.v[kUsed] : 1.0, own, sum);
  }
  precise float total = there + sum;
  out_column.v[k] = total;
  if (push.next_gain != 0ul) {
    precise float input_value = total * Floats(push.next_gain).v[k] * kInputShrink;
    store_input(push.next_input, column, push.next_stride, k, input_value, kForm);
  }
}

void main() {
  mix_column();
  chain_arrive();
}
