// A slot of persistent_step.glsl: products by matrix units (units_product.glsl).
layout(constant_id = 30 + SLOT * 4) const uint kType = 8;
layout(constant_id = 31 + SLOT * 4) const uint kRows = 1;  // blocks of a subgroup
#define UNIT_TYPE kType
#define SEGMENTS push.split
#define SEGMENT_STAGES push.segment_stages
#include "units_product.glsl"
layout(constant_id = 33 + SLOT * 4) const uint kUsed = 0;

// All invocations; false: leave.
bool run_product(uint phases, uint count) {
  uint places = kSubgroups / SEGMENTS;
  uint place = gl_SubgroupID / SEGMENTS, segment = gl_SubgroupID % SEGMENTS;
  bool works = place < places;
  uint block_count = (push.written_rows + results_of_block() - 1u) / results_of_block();
  FusedRef fused = FusedRef(push.fused);
  if (!wait_for(phases)) return false;
  if (SCALING == kScaledHere) sum_stream_squares(fused, count);
  uint room = 0u;
  for (uint first = gl_WorkGroupID.x * places * kRows; first < block_count; first += step.workgroups * places * kRows) {
    uint block0 = first + place * kRows;
    take_place(block0, 0u);
    // What the first result takes is asked for before the weights.
    PairOperands early;
    uint early_column = result_column(segment / 2u % kColumnTiles, segment & 1u);
    if (works && segment < kTiles * 2u && early_column < count && block0 + segment / 2u / kColumnTiles < block_count) {
      early = pair_operands(early_column, block0 + segment / 2u / kColumnTiles, count, fused);
    }
    if (works) {
      multiply(segment * SEGMENT_STAGES * 4u, min((segment + 1u) * SEGMENT_STAGES * 4u, push.groups));
      [[unroll]] for (uint i = 0; i < kTiles * 4u; i++) {
        partials[room + (gl_SubgroupID * kTiles * 4u + i) * 32u + lane] = sums[i / 4u][i % 4u];
      }
    }
    barrier();
    // A lane finishes pairs i with i % SEGMENTS == segment.
    [[unroll]] for (uint i = 0; i < kTiles * 2u; i++) {
      uint t = i / 2u, e = i & 1u;
      uint block = block0 + t / kColumnTiles, column = result_column(t % kColumnTiles, e);
      if (works && i % SEGMENTS == segment && column < count && block < block_count) {
        uint from = room + (place * SEGMENTS * kTiles * 4u + t * 4u + e) * 32u + lane;
        precise float value = partials[from];
        precise float second = partials[from + 64u];
        for (uint s = 1; s < SEGMENTS; s++) {
          value = value + partials[from + s * (kTiles * 128u)];
          second = second + partials[from + s * (kTiles * 128u) + 64u];
        }
        float scale = 1.0;
        if (SCALING == kScaledHere) {
          precise float squares = norm_parts[column];
          [[unroll]] for (uint part = 1; part < kNormParts; part++) squares = squares + norm_parts[part * kColumns + column];
          scale = norm_scale(squares, fused.stream_width, fused.epsilon);
        }
        if (i != segment) early = pair_operands(column, block, count, fused);
        finish_pair(column, block, value, second, scale, early, fused);
      }
    }
    room = kRoom - room;
  }
  return true;
}
