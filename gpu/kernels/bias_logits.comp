// Adds a bias to each logit in place. A workgroup takes kEntries of a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(BiasLogitsPush)
  uint64_t rows;  // [row][stride]
  uint64_t bias;  // [width]
  uint64_t parameters;
  uint width;
  uint stride;
  uint count_word;  // which of the parameters' counts is the number of rows
  uint unused;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(BiasLogitsConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kEntries, entries, 2048u)  // per workgroup
CONSTANTS_END

void add_bias() {
  uint row = gl_WorkGroupID.x;
  if (row >= Words(push.parameters).v[push.count_word]) return;
  if (!chain_wait()) return;
  FloatsOut values = FloatsOut(push.rows + uint64_t(row) * push.stride * 4u);
  uint first = gl_WorkGroupID.y * kEntries;
  uint end = min(first + kEntries, push.width);
  for (uint at = first + gl_LocalInvocationID.x; at < end; at += kInvocations) {
    precise float sum = values.v[at] + Floats(push.bias).v[at];
    values.v[at] = sum;
  }
}

void main() {
  add_bias();
  chain_arrive();
}
