// One product of a step by matrix units: units_product.glsl.
//
// A dispatch lasts a few microseconds, and much of that is waiting for memory. So the first tile doesn't wait for the
// count of columns (there is at least one), and the operands for finishing a result are loaded before the weights.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "units.glsl"
CONSTANTS(MatvecUnitsConstants, 14)
CONSTANT(14, kLanes, lanes, 32u)               // subgroup size
CONSTANT(15, kColumnTiles, column_tiles, 1u)   // tiles of 8 columns, per subgroup
CONSTANT(16, kSubgroups, subgroups, 4u)
INVOCATIONS(17, kInvocations, invocations, 128u)  // kLanes * kSubgroups
CONSTANT(18, kSegments, segments, 1u)
CONSTANT(19, kSegmentStages, segment_stages, 1u)
CONSTANT(20, kStepGroups, step_groups, 4u)     // groups per step of the loop: 1, 2 or a multiple of 4
CONSTANT(21, kSerial, serial, 0u)
CONSTANT(22, kColumnSubgroups, column_subgroups, 1u)  // kSerial: subgroups side by side over columns
// 1: weights are loaded a step ahead. 2: only a segment's first weights are, before the kernel waits for
// other kernels.
CONSTANT(23, kAhead, ahead, 0u)
CONSTANT(24, kPartialFloats, partial_floats, 1u)  // shared: kSubgroups * kPieceTiles * 128
CONSTANT(25, kScaling, scaling, 0u)               // Scaling
CONSTANT(26, kNormColumns, norm_columns, 1u)      // kScaledHere: columns
CONSTANT(27, kLocalTotals, local_totals, 0u)      // kSerial: totals lie in memory, not in registers
// Tiles of a subgroup whose segments are added at a time. It divides kRows * kColumnTiles.
CONSTANT(28, kPieceTiles, piece_tiles, 1u)
CONSTANTS_END
#ifdef BULKHEAD_EXPERTS
#define BULKHEAD_CHOOSES_HERE
#endif
#include "matvec_push.glsl"
#include "chain.glsl"

#define EPILOGUE kEpilogue
#define SCALING kScaling
#define OUT_FORM kOutForm
#define INPUT_FORM kInputUnits
#define SEGMENTS kSegments
#define SEGMENT_STAGES kSegmentStages
#include "page_tokens.glsl"
#include "epilogue.glsl"
#include "norm_scale.glsl"
#include "units_product.glsl"

shared float partials[kPartialFloats];
shared float norm_parts[kNormParts * kNormColumns];

// Sums the squares of the residual stream's columns, in the order of norm_scale.glsl.
void sum_squares(FusedRef fused) {
  for (uint part = unit_subgroup; part < kNormParts; part += kSubgroups) {
    [[dont_unroll]] for (uint c = 0; c < kNormColumns; c++) {
      precise float sum = 0.0;
      for (uint quad = part * kLanes + lane; quad * 4u < fused.stream_width; quad += kNormParts * kLanes) {
        vec4 v = Vec4s(fused.stream + uint64_t(c) * fused.stream_stride * 4u).v[quad];
        [[unroll]] for (uint i = 0; i < 4; i++) {
          float entry = quad * 4u + i < fused.stream_width ? v[i] : 0.0;
          sum = fma(entry, entry, sum);
        }
      }
      [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
        sum = sum + subgroupShuffleXor(sum, distance);
      }
      if (lane == 0u) norm_parts[part * kNormColumns + c] = sum;
    }
  }
}

#ifdef BULKHEAD_CHAINED
// A word of each sector of the first column for the subgroup's part of the norm; up to 8192 entries of all parts.
const uint kStreamTouches = 4;
void touch_stream(FusedRef fused, out uint touched[kStreamTouches]) {
  [[unroll]] for (uint i = 0; i < kStreamTouches; i++) {
    uint entry = ((i * 2u + lane / 16u) * kNormParts + unit_subgroup) * (kLanes * 4u) + lane % 16u * 8u;
    touched[i] = 0u;
    if (unit_subgroup < kNormParts && entry < fused.stream_width) touched[i] = Words(fused.stream + entry * 4u).v[0];
  }
}

// The compiler removes loads that nothing uses. So this function turns the words into one that nobody reads.
void keep_touched(uint touched[kStreamTouches]) {
  uint all = 0u;
  [[unroll]] for (uint i = 0; i < kStreamTouches; i++) all ^= touched[i];
  if (all == 0x9e3779b9u) WordsOut(push.chain_counts + push.chain_link * 128u).v[1] = all;
}
#endif

float column_scale(uint column, FusedRef fused) {
  precise float squares = norm_parts[column];
  [[unroll]] for (uint part = 1; part < kNormParts; part++)
    squares = squares + norm_parts[part * kNormColumns + column];
  return norm_scale(squares, fused.stream_width, fused.epsilon);
}

// Shared memory has room for the sums of a piece, which is all tiles of a subgroup or a part of them. Of a piece's
// pairs of results, a lane of a subgroup finishes the pairs i with i % kSegments == segment. If a row has one segment,
// a lane finishes its own sums, and shared memory has no room for any.
const uint kPieces = kTiles / kPieceTiles;
const uint kPairs = kPieceTiles * 2u;
const uint kOwnPairs = (kPairs + kSegments - 1u) / kSegments;
const bool kEarlyOperands = kPieces == 1u && kOwnPairs <= 2u;  // they are loaded before the weights

void leave_piece(const uint piece) {
  [[unroll]] for (uint i = 0; i < kPieceTiles * 4u; i++) {
    partials[(unit_subgroup * kPieceTiles * 4u + i) * 32u + lane] = sums[piece * kPieceTiles + i / 4u][i % 4u];
  }
}

void split_product(uint block0, uint segment, uint first_subgroup, uint tile0) {
  take_place(block0, tile0);
  uint first_group = segment * kSegmentStages * 4u;
  uint last_group = min((segment + 1u) * kSegmentStages * 4u, push.groups);
  if (kAhead != 0u) load_step(kEarly, first_group, last_group);
  FusedRef fused = FusedRef(push.fused);
  uint block_count = (push.written_rows + results_of_block() - 1u) / results_of_block();
#ifdef BULKHEAD_EXPERTS
  uint count = tile_count;
#else
  uint count = Words(push.parameters).v[push.count_word];
  if (!chain_wait()) return;
#endif
  PairOperands operands[kOwnPairs];
  if (kEarlyOperands) {
    [[unroll]] for (uint p = 0; p < kOwnPairs; p++) {
      uint i = p * kSegments + segment;
      uint column = result_column(tile0 + i / 2u % kColumnTiles, i & 1u), block = block0 + i / 2u / kColumnTiles;
      if (i < kPairs && column < count && block < block_count)
        operands[p] = pair_operands(RESULT_COLUMN(column), block, count, fused);
    }
  }
#ifdef BULKHEAD_CHAINED
  // For one column, the squares are summed after the products, from values that are loaded into nearer caches
  // meanwhile.
  const bool late_squares = kScaling == kScaledHere && kNormColumns == 1u && kSubgroups >= kNormParts;
  uint touched[kStreamTouches];
  if (late_squares) touch_stream(fused, touched);
  if (kScaling == kScaledHere && !late_squares) sum_squares(fused);
#else
  if (kScaling == kScaledHere) sum_squares(fused);
#endif
  multiply(first_group, last_group);
  if (kSegments > 1u) leave_piece(0u);
#ifdef BULKHEAD_CHAINED
  if (late_squares) {
    keep_touched(touched);
    sum_squares(fused);
  }
#endif
  if (kSegments > 1u || kScaling == kScaledHere) barrier();
  [[unroll]] for (uint piece = 0; piece < kPieces; piece++) {
    if (kSegments > 1u && piece != 0u) {
      barrier();
      leave_piece(piece);
      barrier();
    }
    [[unroll]] for (uint p = 0; p < kOwnPairs; p++) {
      uint i = p * kSegments + segment;
      uint t = piece * kPieceTiles + i / 2u, e = i & 1u;
      uint column = result_column(tile0 + t % kColumnTiles, e), block = block0 + t / kColumnTiles;
      if (i < kPairs && column < count && block < block_count) {
        precise float first, second;
        if (kSegments > 1u) {
          uint at = (first_subgroup * kPieceTiles * 4u + i / 2u * 4u + e) * 32u + lane;
          first = partials[at];
          second = partials[at + 64u];
          [[unroll]] for (uint s = 1; s < kSegments; s++) {
            first = first + partials[at + s * (kPieceTiles * 128u)];
            second = second + partials[at + s * (kPieceTiles * 128u) + 64u];
          }
        } else {
          uint own = piece * kPieceTiles + p / 2u;
          first = sums[own][p & 1u];
          second = sums[own][(p & 1u) + 2u];
        }
        if (!kEarlyOperands) operands[p] = pair_operands(RESULT_COLUMN(column), block, count, fused);
        float scale = kScaling == kScaledHere ? column_scale(column, fused) : 1.0;
        finish_pair(RESULT_COLUMN(column), block, first, second, scale, operands[p], fused);
      }
    }
  }
}

#ifdef BULKHEAD_EXPERTS
#include "expert_sum.glsl"

// The wait decides which weights are to be loaded. Neighbouring subgroups only take different rows.
void multiply_tile() {
  if (kSumsExperts != 0u) {
    sum_experts();
    return;
  }
  if (!chain_wait() || !take_tile()) return;
  if (kSerial != 0u) {
    serial_product((gl_WorkGroupID.y * kSubgroups + unit_subgroup) * kRows, 0u, tile_count);
  } else {
    uint place = unit_subgroup / kSegments;
    uint block0 = (gl_WorkGroupID.y * (kSubgroups / kSegments) + place) * kRows;
    split_product(block0, unit_subgroup % kSegments, place * kSegments, 0u);
  }
}
#else
void multiply_tile() {
  uint column_subgroups = kSerial != 0u ? kColumnSubgroups : 1u;
  uint tile0 = gl_WorkGroupID.x * column_subgroups * kColumnTiles;
  if (gl_WorkGroupID.x != 0u && tile0 * 8u >= Words(push.parameters).v[push.count_word]) return;
  if (kSerial != 0u) {
    uint row_place = gl_WorkGroupID.y * (kSubgroups / kColumnSubgroups) + unit_subgroup / kColumnSubgroups;
    uint own_tile = tile0 + unit_subgroup % kColumnSubgroups * kColumnTiles;
    uint count = Words(push.parameters).v[push.count_word];
    if (own_tile * 8u < count) serial_product(row_place * kRows, own_tile, count);
  } else {
    uint place = unit_subgroup / kSegments;
    uint block0 = (gl_WorkGroupID.y * (kSubgroups / kSegments) + place) * kRows;
    split_product(block0, unit_subgroup % kSegments, place * kSegments, tile0);
  }
}
#endif

void main() {
  multiply_tile();
  chain_arrive();
}
