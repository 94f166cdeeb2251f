// What the kernels of gated delta nets share (gpu/kernels/delta.hpp): their push constants, and where a sequence's columns
// and its state lie.
layout(push_constant, std430) uniform Push {
  uint64_t mixed;        // [column][mixed_stride]: q heads, k heads, v heads, gates, betas, alphas
  uint64_t convolved;    // [column][kChannels]: q heads, k heads, v heads
  uint64_t read;         // [column][value head][kSize]: what was read of the state
  uint64_t states;       // [slot][slot_floats]: [value head][value][key], then [tap][channel]
  uint64_t parameters;
  uint64_t runs;         // [run]: DeltaRun
  uint64_t column_runs;  // [column]: its run
  uint64_t weights;      // delta_inputs: [channel][kTaps]; delta_scan: [value head]; delta_output: [kSize]
  uint64_t bias;         // delta_scan: [value head]
  uint64_t out_address;  // delta_output: [column][out_stride], by store_input
  uint mixed_stride;
  uint slot_floats;
  uint out_stride;
  uint padded_width;
  float epsilon;
  uint unused;
} push;

#include "constants/delta.glsl"

const uint kChannels = (2u * kKeyHeads + kValueHeads) * kSize;
const uint kValueWidth = kValueHeads * kSize;
const uint kStateFloats = kValueWidth * kSize;  // in front of the convolution's rows

// A sequence's columns in the step.
struct Run {
  uint first, columns;     // of the step's
  uint from, to;           // slots: before the first column, and after the last
  uint saved_after;        // after so many columns `saved` gets the state, too; 0: never
  uint saved;
  bool fresh;              // it begins at position 0: all that came before is zeros
};

// Which run: the parameters' third count says how many there are.
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

// Rows of the convolution's inputs before the run: row kTaps - 2 is the last.
float input_before(Run run, uint row, uint channel) {
  if (run.fresh) return 0.0;
  return FloatsOut(slot_at(run.from) + (kStateFloats + row * kChannels + channel) * 4ul).v[0];
}
