// Matrix-vector products where a lane computes whole rows: for devices whose lanes are a CPU's SIMD lanes.
//
// There a load costs one scalar load per lane, a broadcast costs nearly nothing, and barriers are dear: so a word of
// weights is loaded once for all columns, x is loaded spread over the lanes and broadcast.
//
// A column's order of additions: k in groups of 32, in a group quarters 0,4,1,5,2,6,3,7, one fma each. Nothing else
// enters it.
#version 460
#include "common.glsl"
#include "weights.glsl"
#include "matvec_push.glsl"

layout(local_size_x_id = 3) in;

void main() {
  uint count = Words(push.parameters).v[push.count_word];
  uint column0 = gl_WorkGroupID.x * kColumns;
  if (column0 >= count) return;
  uint lane = gl_SubgroupInvocationID;
  uint row0 = gl_WorkGroupID.y * (kLanes * kRows);

  Matrix matrix = Matrix(push.quants, push.high, push.scales, push.supers);
  Matrix rows[kMatrixRows];
  [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
    uint row = min(row0 + (r % kRows) * kLanes + lane, push.rows - 1u);
    rows[r] = row_of(matrix, r >= kRows ? push.rows + row : row, push.groups);
  }

  precise float sums[kMatrixRows * kColumns];
  [[unroll]] for (uint i = 0; i < kMatrixRows * kColumns; i++) sums[i] = 0.0;

  // Lane l of eight carries x entry l of an octet: quarter o in lanes 0..3, quarter o + 4 in lanes 4..7.
  uint x_lane = (lane & 3u) + ((lane & 4u) << 2);
  uint64_t x_base = push.x + uint64_t(column0) * push.x_stride * 4u + x_lane * 4u;

  for (uint group = 0; group < push.groups; group++) {
    vec4 scales[kMatrixRows];
    uvec2 high[kMatrixRows];
    [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
      scales[r] = group_scale(rows[r], group);
      high[r] = group_high(rows[r], group);
    }
    [[dont_unroll]] for (uint octet = 0; octet < 4; octet++) {
      vec4 low_weights[kMatrixRows], high_weights[kMatrixRows];
      [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
        uvec4 a = uvec4(0), b = uvec4(0);
        if (kType == kF32) {
          a = Quads(rows[r].quants).v[octet * push.groups + group];
          b = Quads(rows[r].quants).v[(octet + 4u) * push.groups + group];
        } else if (kType == kF16 || kType == kBF16) {
          a.xy = Pairs(rows[r].quants).v[((octet >> 1) * push.groups + group) * 2u + (octet & 1u)];
          b.xy = Pairs(rows[r].quants).v[(((octet >> 1) + 2u) * push.groups + group) * 2u + (octet & 1u)];
        } else {
          a.x = Words(rows[r].quants).v[group * 4u + octet];
          b.x = kIsByte ? Words(rows[r].quants).v[(push.groups + group) * 4u + octet] : a.x;
        }
        low_weights[r] = decode(a, high[r], octet, false, scales[r]);
        high_weights[r] = decode(b, high[r], octet, true, scales[r]);
      }
      [[unroll]] for (uint c = 0; c < kColumns; c++) {
        float x = Floats(x_base + uint64_t(c * push.x_stride) * 4u).v[group * 32u + octet * 4u];
        vec4 x_low = vec4(subgroupBroadcast(x, 0), subgroupBroadcast(x, 1), subgroupBroadcast(x, 2),
                          subgroupBroadcast(x, 3));
        vec4 x_high = vec4(subgroupBroadcast(x, 4), subgroupBroadcast(x, 5), subgroupBroadcast(x, 6),
                           subgroupBroadcast(x, 7));
        [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
          precise float sum = sums[r * kColumns + c];
          [[unroll]] for (uint i = 0; i < 4; i++) sum = fma(low_weights[r][i], x_low[i], sum);
          [[unroll]] for (uint i = 0; i < 4; i++) sum = fma(high_weights[r][i], x_high[i], sum);
          sums[r * kColumns + c] = sum;
        }
      }
    }
  }

  [[unroll]] for (uint c = 0; c < kColumns; c++) {
    [[unroll]] for (uint r = 0; r < kRows; r++) {
      finish(column0 + c, row0 + r * kLanes + lane, sums[r * kColumns + c],
             kEpilogue == kGated ? sums[(kMatrixRows - kRows + r) * kColumns + c] : 0.0);
    }
  }
}
