// Layer norms of a column's heads in place, each with gains of its own: (x - mean) / sqrt(mean of (x - mean)^2 +
// epsilon) * gain. A workgroup norms one head.
//
// Order of additions: as in layer_norm.comp.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(HeadNormsPush)
  uint64_t values;  // [column][stride]
  uint64_t gains;   // [head][size]
  uint64_t parameters;
  uint first;  // the first head's first entry
  uint size;   // entries of a head
  uint stride;
  float epsilon;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(HeadNormsConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)  // a power of two
CONSTANTS_END

#include "invocation_sum.glsl"

void norm_head() {
  uint column = gl_WorkGroupID.x, head = gl_WorkGroupID.y;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  FloatsOut values = FloatsOut(push.values + (uint64_t(column) * push.stride + push.first + head * push.size) * 4u);
  Floats gains = Floats(push.gains + head * push.size * 4ul);
  uint id = gl_LocalInvocationID.x;
  precise float sum = 0.0;
  for (uint k = id; k < push.size; k += kInvocations) sum = sum + values.v[k];
  precise float mean = total(sum) / float(push.size);
  precise float squares = 0.0;
  for (uint k = id; k < push.size; k += kInvocations) {
    precise float apart = values.v[k] - mean;
    squares = fma(apart, apart, squares);
  }
  precise float variance = total(squares) / float(push.size);
  precise float scale = 1.0 / sqrt(variance + push.epsilon);
  for (uint k = id; k < push.size; k += kInvocations) {
    precise float made = (values.v[k] - mean) * scale * gains.v[k];
    values.v[k] = made;
  }
}

void main() {
  norm_head();
  chain_arrive();
}
