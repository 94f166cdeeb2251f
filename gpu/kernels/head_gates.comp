// Multiplies each head's entries by the sigmoid of the head's gate, laid out for the next product.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(HeadGatesPush)
  uint64_t gates;        // [column][gate_stride]
  uint64_t values;       // [column][in_stride]
  uint64_t out_address;  // [column][out_stride], by store_input
  uint64_t parameters;
  uint width;
  uint gate_stride;
  uint in_stride;
  uint out_stride;
  uint padded_width;
  uint head_size;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(HeadGatesConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kForm, form, 0u)  // InputForm of the result
CONSTANTS_END

void multiply() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  Floats gates = Floats(push.gates + uint64_t(column) * push.gate_stride * 4u);
  Floats values = Floats(push.values + uint64_t(column) * push.in_stride * 4u);
  for (uint k = gl_LocalInvocationID.x; k < push.padded_width; k += kInvocations) {
    precise float made = 0.0;
    if (k < push.width) made = values.v[k] / (1.0 + exp(-gates.v[k / push.head_size]));
    store_input(push.out_address, column, push.out_stride, k, made, kForm);
  }
}

void main() {
  multiply();
  chain_arrive();
}
