// Matrix-vector products where a subgroup computes rows together: for GPUs.
//
// A lane takes a group of 32 weights: sixteen-byte loads that lie side by side across the lanes, for kRows rows at
// once, so that every x loaded serves several rows. kSplit subgroups may share a row's groups.
//
// A column's order of additions: within a lane its groups in rising order, quarters in order, one fma each; then over
// the lanes by halving distances; then over the kSplit subgroups in order. kSplit comes from the matrix's shape alone;
// kColumns, kRows and kSubgroups don't enter the order.
//
// A dispatch lasts a few microseconds and much of that is waiting for memory: so the first tile doesn't wait for the count
// of columns (it has one), and what kAdd adds to is fetched first.
#version 460
#define BULKHEAD_WIDE_LOADS
#include "common.glsl"
#include "weights.glsl"
#include "matvec_push.glsl"

layout(constant_id = 6) const uint kSplit = 1;
layout(constant_id = 7) const uint kSubgroups = 4;
layout(constant_id = 8) const uint kInvocations = 32;  // kLanes * kSubgroups
layout(local_size_x_id = 8) in;

// Results that a lane finishes at most: result i is column i / kRows, row i % kRows.
const uint kResults = kRows * kColumns;
const uint kResultsOfLane = (kResults + kLanes - 1u) / kLanes;

shared float partials[kSubgroups * kMatrixRows * kColumns];

Matrix rows[kMatrixRows];
float sums[kMatrixRows * kColumns];

void multiply(uint group, uint64_t x_base) {
  uvec4 quads[kMatrixRows * kPlanes];
  vec4 scales[kMatrixRows];
  uvec2 high[kMatrixRows];
  [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
    [[unroll]] for (uint p = 0; p < kPlanes; p++) {
      quads[r * kPlanes + p] = Quads(rows[r].quants).v[p * push.groups + group];
    }
    high[r] = group_high(rows[r], group);
    scales[r] = group_scale(rows[r], group);
  }
  // In vec4: block of 32 groups, quarter, group within the block.
  uint64_t x_lane = x_base + uint64_t((group >> 5) * 256u + (group & 31u)) * 16u;
  uint64_t x_stride = uint64_t(push.x_stride) * 4u;
  [[unroll]] for (uint j = 0; j < 8; j++) {
    vec4 weights[kMatrixRows];
    [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
      uvec4 quad = quads[r * kPlanes + (j * kPlanes) / 8u];
      uvec4 words = kType == kF32                       ? quad
                    : (kType == kF16 || kType == kBF16) ? ((j & 1u) != 0u ? quad.zwzw : quad)
                                                        : uvec4(quad[j & 3u], 0u, 0u, 0u);
      weights[r] = decode(words, high[r], j & 3u, j >= 4u, scales[r]);
    }
    [[unroll]] for (uint c = 0; c < kColumns; c++) {
      vec4 x = Vec4s(x_lane + c * x_stride).v[j * 32u];
      [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
        precise float sum = sums[r * kColumns + c];
        [[unroll]] for (uint i = 0; i < 4; i++) sum = fma(weights[r][i], x[i], sum);
        sums[r * kColumns + c] = sum;
      }
    }
  }
}

void main() {
  uint column0 = gl_WorkGroupID.x * kColumns;
  if (column0 != 0u && column0 >= Words(push.parameters).v[push.count_word]) return;
  uint lane = gl_SubgroupInvocationID;
  uint part = gl_SubgroupID % kSplit;
  uint row0 = (gl_WorkGroupID.y * (kSubgroups / kSplit) + gl_SubgroupID / kSplit) * kRows;

  Matrix matrix = Matrix(push.quants, push.high, push.scales, push.supers);
  [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
    uint row = min(row0 + (r % kRows), push.rows - 1u);
    rows[r] = row_of(matrix, r >= kRows ? push.rows + row : row, push.groups);
  }
  [[unroll]] for (uint i = 0; i < kMatrixRows * kColumns; i++) sums[i] = 0.0;

  float before[kResultsOfLane];
  if (kEpilogue == kAdd) {
    [[unroll]] for (uint i = 0; i < kResultsOfLane; i++) {
      uint result = i * kLanes + lane;
      before[i] = 0.0;
      if (part == 0u && result < kResults) before[i] = held(column0 + result / kRows, row0 + result % kRows);
    }
  }

  uint64_t x_base = push.x + uint64_t(column0) * push.x_stride * 4u;
  for (uint group = part * kLanes + lane; group < push.groups; group += kLanes * kSplit) multiply(group, x_base);

  [[unroll]] for (uint i = 0; i < kMatrixRows * kColumns; i++) {
    precise float sum = sums[i];
    [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
      sum = sum + subgroupShuffleXor(sum, distance);
    }
    sums[i] = sum;
  }

  if (kSplit > 1u) {
    if (lane == 0u) {
      [[unroll]] for (uint i = 0; i < kMatrixRows * kColumns; i++) {
        partials[gl_SubgroupID * (kMatrixRows * kColumns) + i] = sums[i];
      }
    }
    barrier();
    if (part != 0u) return;
    [[unroll]] for (uint i = 0; i < kMatrixRows * kColumns; i++) {
      precise float sum = sums[i];
      [[unroll]] for (uint s = 1; s < kSplit; s++) {
        sum = sum + partials[(gl_SubgroupID + s) * (kMatrixRows * kColumns) + i];
      }
      sums[i] = sum;
    }
  }

  // Every lane has every sum; each finishes some.
  [[unroll]] for (uint i = 0; i < kResults; i++) {
    if (lane == i % kLanes) {
      uint c = i / kRows, r = i % kRows;
      finish(column0 + c, row0 + r, sums[r * kColumns + c],
             kEpilogue == kGated ? sums[(kMatrixRows - kRows + r) * kColumns + c] : before[i / kLanes]);
    }
  }
}
