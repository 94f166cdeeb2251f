// A matrix times some columns: out[column][row] (op)= sum over k of weight[row][k] * x[column][k].
// Both mappings take the same push constants (gpu/kernels/kernels.hpp: MatvecPush).
#ifndef CHAIN_PUSH
#define CHAIN_PUSH
#endif
layout(push_constant, std430) uniform Push {
  uint64_t quants, high, scales, supers;
  uint64_t x;
  uint64_t out_address;
  uint64_t parameters;
  uint rows;        // of a result; kGated: the matrix has twice as many, the gate's first
  uint groups;      // of 32 weights, in a row
  uint x_stride;    // floats between columns
  uint out_stride;
  uint written_rows;  // rows, and then zeros up to here
  uint count_word;  // which of the parameters' counts bounds the columns
  uint64_t fused;   // lanes mapping: epilogue.glsl's FusedRef, or 0
#ifdef BULKHEAD_EXPERTS
  uint64_t tiles, list;  // choose.comp's
#endif
  CHAIN_PUSH
} push;

#include "constants/matvec.glsl"
#include "constants/bias.glsl"
#include "experts.glsl"

const uint kMatrixRows = kEpilogue == 2 ? 2 * kRows : kRows;

#ifdef BULKHEAD_ROWS_EPILOGUE
#include "fused_operands.glsl"
#include "gates.glsl"
const uint kStore = 0, kAdd = 1, kGated = 2;

// What kAdd adds to.
float held(uint column, uint row) {
  if (row >= push.rows) return 0.0;
  return FloatsOut(push.out_address + uint64_t(column) * push.out_stride * 4u).v[row];
}

// `other`: kGated's up row; kAdd: held().
void finish(uint column, uint row, float value, float other) {
  if (row >= push.written_rows) return;
  if (kBiased != 0u && row < push.rows) {
    FusedRef fused = FusedRef(push.fused);
    precise float biased = value + Floats(fused.bias).v[BIAS_ROW(row)];
    value = biased;
    if (kEpilogue == kGated) {
      precise float up = other + Floats(fused.second_bias).v[BIAS_ROW(row)];
      other = up;
    }
  }
  // Entries past the last row are read by the next matrix as part of its last group: they are zero.
  if (row >= push.rows) {
    if (kEpilogue != kAdd) store_input(push.out_address, column, push.out_stride, row, 0.0, kOutForm);
  } else if (kEpilogue == kAdd) {
    precise float sum = other + value;
    store_input(push.out_address, column, push.out_stride, row, sum, kOutForm);
  } else {
    float result = kEpilogue == kGated ? gated(kGate, value, other) : value;
    store_input(push.out_address, column, push.out_stride, row, result, kOutForm);
  }
}
#endif
