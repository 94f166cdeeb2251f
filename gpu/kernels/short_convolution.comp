// A gated short convolution (Liquid AI 2025, arXiv 2511.23404). `in` is [b, c, x], each as wide as the result. The
// products b * x are convolved over the last kTaps positions, for each entry with taps of its own, and c multiplies the
// sums. A sequence carries the products of its last kTaps - 1 positions.
//
// A workgroup computes kInvocations entries of a column. The workgroup of a sequence's first column computes all
// columns that need the carried products, and then writes the products to be carried on. No other workgroup reads or
// writes them, so both may be in the same slot.
//
// Order of additions: taps from the oldest position on. The same products are made anew in each step that needs them,
// so it makes no difference how positions are divided into steps.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(ShortConvolutionPush)
  uint64_t in_address;   // [column][in_stride]: b, c, x
  uint64_t out_address;  // [column][out_stride], by store_input
  uint64_t taps;         // [entry][kTaps]
  uint64_t states;       // [slot][slot_floats]: [position][entry], the oldest position first
  uint64_t parameters;
  uint64_t runs;         // [run]: DeltaRun
  uint64_t column_runs;  // [column]: DeltaColumn
  uint width;
  uint in_stride;
  uint out_stride;
  uint padded_width;
  uint slot_floats;
  uint unused;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"
#include "runs.glsl"

CONSTANTS(ShortConvolutionConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kForm, form, 0u)  // InputForm of the result
CONSTANT(2, kTaps, taps, 3u)  // at least 2
CONSTANTS_END

const uint kCarried = kTaps - 1u;

// Returns an entry of the product at a position, counted from the oldest that the sequence carried when the step began.
float product_at(Run run, uint at, uint entry) {
  if (at < kCarried) {
    return run.fresh ? 0.0 : FloatsOut(slot_at(run.from) + (at * push.width + entry) * 4ul).v[0];
  }
  Floats row = Floats(push.in_address + uint64_t(run.first + at - kCarried) * push.in_stride * 4u);
  precise float product = row.v[entry] * row.v[2u * push.width + entry];
  return product;
}

void compute(Run run, uint at, uint entry) {
  uint column = run.first + at;
  precise float sum = 0.0;
  if (entry < push.width) {
    for (uint tap = 0u; tap < kTaps; tap++) {
      sum = fma(Floats(push.taps).v[entry * kTaps + tap], product_at(run, at + tap, entry), sum);
    }
    sum = sum * Floats(push.in_address + uint64_t(column) * push.in_stride * 4u).v[push.width + entry];
  }
  store_input(push.out_address, column, push.out_stride, entry, sum, kForm);
}

// Writes what the sequence carries after `columns` of its columns. The slot may be the one with which the run began:
// rows are written in rising order, and each depends only on later ones.
void carry(Run run, uint columns, uint slot, uint entry) {
  for (uint row = 0u; row < kCarried; row++) {
    FloatsOut(slot_at(slot) + (row * push.width + entry) * 4ul).v[0] = product_at(run, row + columns, entry);
  }
}

void convolve() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  Run run = run_of(column);
  uint at = column - run.first;
  uint entry = gl_WorkGroupID.y * kInvocations + gl_LocalInvocationID.x;
  if (entry >= push.padded_width) return;
  if (at >= kCarried) compute(run, at, entry);
  if (at != 0u) return;
  for (uint each = 0u; each < min(run.columns, kCarried); each++) compute(run, each, entry);
  if (entry >= push.width) return;
  if (run.saved_after != 0u) carry(run, run.saved_after, run.saved, entry);
  // `to` comes last, because it may be the slot from which the others are made.
  for (uint columns = run.columns; columns >= run.sure; columns--) carry(run, columns, slot_after(run, columns), entry);
}

void main() {
  convolve();
  chain_arrive();
}
