// A matrix times some columns: out[column][row] (op)= sum over k of weight[row][k] * x[column][k].
// Both mappings use the same push constants (fields/matvec_push.glsl).
layout(push_constant, std430) uniform Push {
#include "fields/matvec_push.glsl"
#ifdef BULKHEAD_EXPERTS
#include "fields/expert_push.glsl"
#endif
#include "fields/chain_push.glsl"
} push;

#include "constants/matvec.glsl"
#include "constants/bias.glsl"
#include "experts.glsl"

#include "values/epilogue.glsl"
const uint kMatrixRows = kEpilogue == kGated ? 2 * kRows : kRows;

#ifdef BULKHEAD_ROWS_EPILOGUE
#include "fused_operands.glsl"
#include "gates.glsl"

// Returns the value to which kAdd adds.
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
  // The next matrix reads entries beyond the last row as part of its last group, so they are zero.
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
