// Reads memory and does almost nothing with it: measures the read speed of the device's memory, for benchmarks.
#version 460
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(ReadBandwidthPush)
  uint64_t source;
  uint64_t sink;        // four bytes
  uint quads;           // of 16 bytes, in all
  uint per_invocation;  // a multiple of four
  FIELDS_END
} push;

CONSTANTS(ReadBandwidthConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 256u)
CONSTANTS_END

void main() {
  uint first = gl_WorkGroupID.x * kInvocations * push.per_invocation + gl_LocalInvocationID.x;
  uvec4 all = uvec4(0);
  for (uint i = 0; i < push.per_invocation; i += 4u) {
    [[unroll]] for (uint j = 0; j < 4u; j++) {
      uint at = first + (i + j) * kInvocations;
      if (at < push.quads) all ^= Quads(push.source).v[at];
    }
  }
  if ((all.x ^ all.y ^ all.z ^ all.w) == 0x9e3779b9u) WordsOut(push.sink).v[0] = all.x;
}
