// Matrix-vector products in which a lane computes whole rows: for devices whose lanes are a CPU's SIMD lanes.
//
// On such a device a load costs a loop over the lanes, whatever its width. A broadcast to the subgroup does, too, but a
// broadcast to four lanes costs nearly nothing. Barriers are expensive. So loads have eight bytes, a word of weights is
// loaded once for all columns, and the lanes of each quad load the same part of x and broadcast it.
//
// The order of a column's additions: k in groups of 32; within a group the quarters 0,1,4,5,2,3,6,7; one fma each.
// Nothing else affects it.
#version 460
#include "common.glsl"
#include "weights.glsl"
#define BULKHEAD_ROWS_EPILOGUE
#include "matvec_push.glsl"
CONSTANTS(MatvecRowsConstants, 14)
INVOCATIONS(14, kLanes, lanes, 8u)  // subgroup size
CONSTANTS_END

Matrix rows[kMatrixRows];
vec4 group_scales[kMatrixRows];
uvec3 group_highs[kMatrixRows];
vec4 weights[kMatrixRows * 4];  // a stage's: four quarters of each row
float sums[kMatrixRows * kColumns];

// Decodes the weights of row r that belong to a stage of the group. Its scales and high bits must be loaded.
void decode_stage(uint r, uint group, uint stage) {
  uint64_t quants = rows[r].quants;
  if (kPlanes >= 4u) {
    [[unroll]] for (uint q = 0; q < 4; q++) {
      uint quarter = stage * 2u + (q & 1u) + (q & 2u) * 2u;
      uvec4 words = uvec4(0);
      if (kPlanes == 8u) {
        words.xy = long_at(quants, (quarter * push.groups + group) * 2u);
        words.zw = long_at(quants, (quarter * push.groups + group) * 2u + 1u);
      } else {
        words.xy = long_at(quants, ((quarter >> 1) * push.groups + group) * 2u + (quarter & 1u));
      }
      weights[r * 4u + q] = decode(words, uvec3(0u), quarter & 3u, q >= 2u, group_scales[r]);
    }
  } else {
    uvec2 low_words = uvec2(0u);
    if (kPlanes != 0u) low_words = long_at(quants, group * 2u + stage);
    uvec2 high_words = low_words;
    if (kPlanes == 2u) high_words = long_at(quants, (push.groups + group) * 2u + stage);
    weights[r * 4u] = decode(low_words.xxxx, group_highs[r], stage * 2u, false, group_scales[r]);
    weights[r * 4u + 1u] = decode(low_words.yyyy, group_highs[r], stage * 2u + 1u, false, group_scales[r]);
    weights[r * 4u + 2u] = decode(high_words.xxxx, group_highs[r], stage * 2u, true, group_scales[r]);
    weights[r * 4u + 3u] = decode(high_words.yyyy, group_highs[r], stage * 2u + 1u, true, group_scales[r]);
  }
}

void main() {
#ifdef BULKHEAD_EXPERTS
  if (!take_tile()) return;
  uint first_row = tile_expert * (kEpilogue == kGated ? 2u * push.rows : push.rows);
#else
  uint count = Words(push.parameters).v[push.count_word];
  uint column0 = gl_WorkGroupID.x * kColumns;
  if (column0 >= count) return;
  const uint first_row = 0u;
#endif
  uint lane = gl_SubgroupInvocationID;
  uint row0 = gl_WorkGroupID.y * (kLanes * kRows);

  Matrix matrix = Matrix(push.quants, push.high, push.scales, push.supers);
  [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
    uint row = min(row0 + (r % kRows) * kLanes + lane, push.rows - 1u);
    rows[r] = row_of(matrix, first_row + (r >= kRows ? push.rows + row : row), push.groups);
  }

  [[unroll]] for (uint i = 0; i < kMatrixRows * kColumns; i++) sums[i] = 0.0;

  // A stage is half a group: quarters 2t and 2t + 1, then 2t + 4 and 2t + 5. Lane l of a quad carries entries 2l and
  // 2l + 1 of each of these halves of a stage.
  uint x_lane = (lane & 3u) * 2u;
#ifdef BULKHEAD_EXPERTS
  uint64_t x_columns[kColumns];
  [[unroll]] for (uint c = 0; c < kColumns; c++) {
    x_columns[c] = push.x + uint64_t(INPUT_COLUMN(pair_at(c))) * push.x_stride * 4u + x_lane * 4u;
  }
#define X_COLUMN(c) x_columns[c]
#else
  uint64_t x_base = push.x + uint64_t(column0) * push.x_stride * 4u + x_lane * 4u;
#define X_COLUMN(c) (x_base + uint64_t(c * push.x_stride) * 4u)
#endif

  for (uint group = 0; group < push.groups; group++) {
    [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
      group_scales[r] = group_scale(rows[r], group);
      group_highs[r] = group_high(rows[r], group);
    }
    [[dont_unroll]] for (uint stage = 0; stage < 2; stage++) {
      [[unroll]] for (uint r = 0; r < kMatrixRows; r++) decode_stage(r, group, stage);
      [[unroll]] for (uint c = 0; c < kColumns; c++) {
        vec2 halves[2];
        [[unroll]] for (uint half_stage = 0; half_stage < 2; half_stage++) {
          halves[half_stage] = uintBitsToFloat(long_at(X_COLUMN(c), group * 16u + stage * 4u + half_stage * 8u));
        }
        [[unroll]] for (uint i = 0; i < 8; i++) {
          float even = subgroupQuadBroadcast(halves[i / 4u].x, i & 3u);
          float odd = subgroupQuadBroadcast(halves[i / 4u].y, i & 3u);
          [[unroll]] for (uint r = 0; r < kMatrixRows; r++) {
            precise float sum = fma(weights[r * 4u + i / 2u][(i & 1u) * 2u], even, sums[r * kColumns + c]);
            sum = fma(weights[r * 4u + i / 2u][(i & 1u) * 2u + 1u], odd, sum);
            sums[r * kColumns + c] = sum;
          }
        }
      }
    }
  }

  [[unroll]] for (uint c = 0; c < kColumns; c++) {
#ifdef BULKHEAD_EXPERTS
    if (c >= tile_count) break;
    uint column = pair_at(c);
#else
    uint column = column0 + c;
#endif
    [[unroll]] for (uint r = 0; r < kRows; r++) {
      uint row = row0 + r * kLanes + lane;
      finish(column, row, sums[r * kColumns + c],
             kEpilogue == kGated ? sums[(kMatrixRows - kRows + r) * kColumns + c]
             : kEpilogue == kAdd ? held(column, row)
                                 : 0.0);
    }
  }
}
