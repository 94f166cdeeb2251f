// Computes the output of a gated delta net: each head's norm (root mean square) of what was read of the state, times
// a gain, times SiLU of its gate (kChannelRule: times the gate's sigmoid), in the layout of a product's input. With
// Mamba-2 (kSumRule) the head's own input times its skip is added to what was read, and SiLU of the gate multiplies the
// sum before the norm, which covers kNormed entries of several heads. Without kNorms there is no norm. A workgroup
// computes kNormed entries of a column.
//
// Order of additions: as in delta_inputs.comp.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "delta.glsl"
#include "chain.glsl"
#include "gates.glsl"

shared float sums[kInvocations];

// Returns an entry of the column before the norm.
float entry_at(uint column, uint entry) {
  precise float value = Floats(push.read + (uint64_t(column) * kValueWidth + entry) * 4u).v[0];
  if (kRule != kSumRule) return value;
  float own = Floats(push.convolved + (uint64_t(column) * kChannels + kVAt + entry) * 4u).v[0];
  precise float all = fma(Floats(push.bias).v[entry / kValueSize], own, value);
  return gated(kSilu, Floats(push.mixed + (uint64_t(column) * push.mixed_stride + kChannels + entry) * 4u).v[0], all);
}

// Returns what makes the mean square of the workgroup's entries 1.
float norm_factor(uint column, uint first) {
  uint id = gl_LocalInvocationID.x;
  precise float sum = 0.0;
  for (uint i = id; i < kNormed; i += kInvocations) {
    precise float value = entry_at(column, first + i);
    sum = fma(value, value, sum);
  }
  sums[id] = sum;
  barrier();
  [[unroll]] for (uint distance = kInvocations / 2u; distance > 0u; distance /= 2u) {
    if (id < distance) {
      precise float total = sums[id] + sums[id + distance];
      sums[id] = total;
    }
    barrier();
  }
  precise float mean = sums[0] / float(kNormed);
  precise float scale = 1.0 / sqrt(mean + push.epsilon);
  return scale;
}

void gate_entries() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  uint first = gl_WorkGroupID.y * kNormed;
  uint id = gl_LocalInvocationID.x;
  Floats gates = Floats(push.mixed + (uint64_t(column) * push.mixed_stride + kChannels + first) * 4u);

  float scale = 1.0;
  if (kNorms != 0u) scale = norm_factor(column, first);
  for (uint i = id; i < kNormed; i += kInvocations) {
    uint gain_at = kRule != kSumRule ? i : first + i;
    precise float normed = entry_at(column, first + i);
    if (kNorms != 0u) normed = normed * scale * Floats(push.weights).v[gain_at];
    float made = normed;
    if (kRule != kSumRule) made = gated(kRule == kChannelRule ? kSigmoid : kSilu, gates.v[i], normed);
    store_input(push.out_address, column, push.out_stride, first + i, made, kForm);
  }
  if (first + kNormed != kValueWidth) return;
  for (uint pad = kValueWidth + id; pad < push.padded_width; pad += kInvocations) {
    store_input(push.out_address, column, push.out_stride, pad, 0.0, kForm);
  }
}

void main() {
  gate_entries();
  chain_arrive();
}
