// Combines the results of a column's experts: the sum of their results times their weights, in the order in which the
// experts were chosen, then the shared expert's result; one fma each. The sum is added to the residual stream, and
// the next product's input is made as in a product's own epilogue (epilogue.glsl, kAdd); or the sum is stored.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(MixPush)
  uint64_t results;        // [column][kUsed][results_stride]
  uint64_t weights;        // [column][kUsed, then the shared expert's]
  uint64_t shared_result;  // [column][shared_stride], or 0
  uint64_t out_address;    // [column][out_stride]
  uint64_t parameters;
  uint64_t next_gain;      // 0: no product reads the result
  uint64_t next_input;
  uint width;
  uint padded_width;       // of the next input: zeros up to here
  uint results_stride;
  uint shared_stride;
  uint out_stride;
  uint next_stride;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(MixConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kUsed, used, 1u)               // experts of a column
CONSTANT(2, kSharedGate, shared_gate, 0u)  // the weights' last is the shared expert's
CONSTANT(3, kAdds, adds, 0u)               // adds to the present value
CONSTANT(4, kForm, form, 0u)               // InputForm of the next product's input
CONSTANTS_END

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
