// Computes the output of a gated delta net: each head's norm (root mean square) of what was read of the state, times
// a gain, times SiLU of its gate, in the layout of a product's input. A workgroup computes a value head of a column.
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

void gate_head() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  uint head = gl_WorkGroupID.y;
  uint id = gl_LocalInvocationID.x;
  Floats values = Floats(push.read + (uint64_t(column) * kValueWidth + head * kSize) * 4u);
  Floats gates = Floats(push.mixed + (uint64_t(column) * push.mixed_stride + kChannels + head * kSize) * 4u);

  precise float sum = 0.0;
  for (uint i = id; i < kSize; i += kInvocations) {
    float value = values.v[i];
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
  precise float mean = sums[0] / float(kSize);
  precise float scale = 1.0 / sqrt(mean + push.epsilon);
  for (uint i = id; i < kSize; i += kInvocations) {
    precise float normed = values.v[i] * scale * Floats(push.weights).v[i];
    store_input(push.out_address, column, push.out_stride, head * kSize + i, gated(kSilu, gates.v[i], normed), kForm);
  }
  if (head + 1u != kValueHeads) return;
  for (uint pad = kValueWidth + id; pad < push.padded_width; pad += kInvocations) {
    store_input(push.out_address, column, push.out_stride, pad, 0.0, kForm);
  }
}

void main() {
  gate_head();
  chain_arrive();
}
