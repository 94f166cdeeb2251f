// Shared by the kernels of gated delta nets and of Mamba-2 (gpu/kernels/delta.hpp): their push constants, and the
// places of what a slot holds.
layout(push_constant, std430) uniform Push {
#include "fields/delta_push.glsl"
#include "fields/chain_push.glsl"
} push;

#include "constants/delta.glsl"
#include "values/state_rule.glsl"
#include "runs.glsl"

const uint kKeyWidth = kKeyHeads * kSize, kValueWidth = kValueHeads * kValueSize;
const uint kChannels = 2u * kKeyWidth + kValueWidth;
// The first channels of q, k and v: a gated delta net's are in this order, Mamba-2's in the other.
const uint kQAt = kRule != kSumRule ? 0u : kValueWidth + kKeyWidth;
const uint kKAt = kRule != kSumRule ? kKeyWidth : kValueWidth;
const uint kVAt = kRule != kSumRule ? 2u * kKeyWidth : 0u;
const uint kStateFloats = kValueWidth * kSize;  // before the convolution's rows

// Returns rows of the convolution's inputs before the run; row kTaps - 2 is the last one.
float input_before(Run run, uint row, uint channel) {
  if (run.fresh) return 0.0;
  return FloatsOut(slot_at(run.from) + (kStateFloats + row * kChannels + channel) * 4ul).v[0];
}
