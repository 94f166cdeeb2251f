// The square of what is positive, and zero for the rest, laid out for the next product.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(SquaredReluPush)
  uint64_t in_address;   // [column][in_stride]
  uint64_t out_address;  // [column][out_stride], by store_input
  uint64_t parameters;
  uint width;
  uint in_stride;
  uint out_stride;
  uint padded_width;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(SquaredReluConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kForm, form, 0u)  // InputForm of the result
CONSTANTS_END

void square() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  Floats values = Floats(push.in_address + uint64_t(column) * push.in_stride * 4u);
  for (uint k = gl_LocalInvocationID.x; k < push.padded_width; k += kInvocations) {
    float positive = k < push.width ? max(values.v[k], 0.0) : 0.0;
    precise float squared = positive * positive;
    store_input(push.out_address, column, push.out_stride, k, squared, kForm);
  }
}

void main() {
  square();
  chain_arrive();
}
