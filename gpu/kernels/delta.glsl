// Shared by the kernels of gated delta nets and of Mamba-2 (gpu/kernels/delta.hpp): their push constants, and the
// places of a sequence's columns and state.
layout(push_constant, std430) uniform Push {
#include "fields/delta_push.glsl"
#include "fields/chain_push.glsl"
} push;

#include "constants/delta.glsl"
#include "values/state_rule.glsl"

const uint kKeyWidth = kKeyHeads * kSize, kValueWidth = kValueHeads * kValueSize;
const uint kChannels = 2u * kKeyWidth + kValueWidth;
// The first channels of q, k and v: a gated delta net's are in this order, Mamba-2's in the other.
const uint kQAt = kRule == kDeltaRule ? 0u : kValueWidth + kKeyWidth;
const uint kKAt = kRule == kDeltaRule ? kKeyWidth : kValueWidth;
const uint kVAt = kRule == kDeltaRule ? 2u * kKeyWidth : 0u;
const uint kStateFloats = kValueWidth * kSize;  // before the convolution's rows

// A sequence's columns in the step.
struct Run {
  uint first, columns;     // columns of the step
  uint from, to;           // slots: read before the first column, and written after the last
  uint saved_after;        // after this many columns the state is also written to `saved`; 0: never
  uint saved;
  bool fresh;              // the sequence begins at position 0, so everything before it is zero
};

// The parameters' third count says how many runs there are.
uint run_count() { return Words(push.parameters).v[2]; }

Run run_at(uint index) {
  uvec4 a = Quads(push.runs).v[index * 2u], b = Quads(push.runs).v[index * 2u + 1u];
  Run run;
  run.first = a.x;
  run.columns = a.y;
  run.from = a.z;
  run.to = a.w;
  run.saved_after = b.x;
  run.saved = b.y;
  run.fresh = ColumnsRef(push.parameters + 64u).v[a.x].y == 0u;
  return run;
}

uint64_t slot_at(uint slot) { return push.states + uint64_t(slot) * push.slot_floats * 4u; }

// Returns rows of the convolution's inputs before the run; row kTaps - 2 is the last one.
float input_before(Run run, uint row, uint channel) {
  if (run.fresh) return 0.0;
  return FloatsOut(slot_at(run.from) + (kStateFloats + row * kChannels + channel) * 4ul).v[0];
}
