// The decays of Kimi Delta Attention (Kimi team 2025, arXiv 2510.26692), in place of what they are made of:
// exp(rate of the head * softplus(x + bias)), for `width` entries of each column from `first` on. A workgroup computes
// a column.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(ChannelDecaysPush)
  uint64_t values;  // [column][stride]
  uint64_t rates;   // [head]
  uint64_t bias;    // [width]
  uint64_t parameters;
  uint first;
  uint width;
  uint size;  // entries of a head
  uint stride;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"
#include "softplus.glsl"

CONSTANTS(ChannelDecaysConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANTS_END

void decay() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  uint64_t at = push.values + (uint64_t(column) * push.stride + push.first) * 4u;
  for (uint i = gl_LocalInvocationID.x; i < push.width; i += kInvocations) {
    precise float biased = Floats(at).v[i] + Floats(push.bias).v[i];
    precise float grown = Floats(push.rates).v[i / push.size] * softplus(biased);
    FloatsOut(at).v[i] = exp(grown);
  }
}

void main() {
  decay();
  chain_arrive();
}
