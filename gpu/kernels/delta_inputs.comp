// Computes the inputs of gated delta nets and of Mamba-2: the convolution of each channel over the last kTaps
// positions, plus a bias if there is one, and SiLU of it. A gated delta net's heads of q and k are then scaled to
// length 1, and those of q divided by the root of their size. A workgroup computes kSize neighbouring channels of a
// column; a gated delta net's are a head of q, k or v.
//
// Order of additions: taps from the oldest position on, then the bias; squares of an invocation's entries k, k +
// kInvocations, ... in rising order, then invocations by halving distances.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "delta.glsl"
#include "chain.glsl"
#include "gates.glsl"

shared float entries[kSize];
shared float sums[kInvocations];

void convolve() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  uint head = gl_WorkGroupID.y;
  uint id = gl_LocalInvocationID.x;
  Run run = run_of(column);
  uint at = column - run.first;

  precise float sum = 0.0;
  for (uint i = id; i < kSize; i += kInvocations) {
    uint channel = head * kSize + i;
    if (channel >= kChannels) break;
    precise float value = 0.0;
    for (uint tap = 0; tap < kTaps; tap++) {
      uint back = kTaps - 1u - tap;
      float in_value;
      if (at >= back) {
        in_value = Floats(push.mixed + (uint64_t(column - back) * push.mixed_stride + channel) * 4u).v[0];
      } else {
        in_value = input_before(run, at + tap, channel);
      }
      value = fma(Floats(push.weights).v[channel * kTaps + tap], in_value, value);
    }
    if (push.bias != 0ul) value = value + Floats(push.bias).v[channel];
    precise float made = gated(kSilu, value, 1.0);
    entries[i] = made;
    sum = fma(made, made, sum);
  }
  precise float scale = 1.0;
  if (kRule != kSumRule && head < 2u * kKeyHeads) {
    sums[id] = sum;
    barrier();
    [[unroll]] for (uint distance = kInvocations / 2u; distance > 0u; distance /= 2u) {
      if (id < distance) {
        precise float total = sums[id] + sums[id + distance];
        sums[id] = total;
      }
      barrier();
    }
    scale = 1.0 / sqrt(sums[0] + push.epsilon);
    if (head < kKeyHeads) scale = scale / sqrt(float(kSize));
  }
  FloatsOut made_at = FloatsOut(push.convolved + (uint64_t(column) * kChannels + head * kSize) * 4u);
  for (uint i = id; i < kSize && head * kSize + i < kChannels; i += kInvocations) {
    precise float made = entries[i] * scale;
    made_at.v[i] = made;
  }
}

void main() {
  convolve();
  chain_arrive();
}
