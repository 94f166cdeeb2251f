// Computes the residual stream's first values, and the first product's input, from an embedding matrix that is packed
// for matrix units: each column's row, by those of the subgroup's lanes that would hold it in a product.
//
// A product's weights are halves. Here an integer times its scale, plus its minimum, stays a float: a row that the
// stream begins with is in every later result, and rounding it to halves would cost more accuracy than any product.
#version 460
#include "common.glsl"
#include "units.glsl"
#include "embed_row.glsl"

// Returns a word's half that belongs to the even or to the odd row.
float half_of_row(uint word, bool odd) {
  f16vec2 both = unpackFloat2x16(word);
  return float(odd ? both.y : both.x);
}

// Returns eight weights of one group: those that the lane has of one of its two rows. All lanes of the subgroup must
// call this function together.
void float_weights(LaneWeights w, bool odd, out float weights[8]) {
  const uint one_and_one = 0x3c003c00u;  // halves
  float scale = 1.0, minimum = 0.0;
  if (kSuper) {
    // Of each row the lane has two scales; see prepare() and unpack_group().
    uint word = from_lane(w.scales[0], (unit_lane & 30u) | (w.first & 1u));
    uint stored = (word >> ((odd ? 16u : 0u) + (w.first & 2u) * 4u)) & 255u;
    precise float product = (float(stored) - 128.0) * half_of_row(w.d, odd);
    scale = product;
    w.scales[0] = w.scales[1] = one_and_one;
  } else if (kQuants != kHalves) {
    scale = half_of_row(w.scales[0], odd);
    w.scales[0] = one_and_one;
    if (kMinima) {
      minimum = half_of_row(w.minima[0], odd);
      w.minima[0] = 0u;
    }
  }
  f16vec2 even_row[4], odd_row[4];
  unpack_group(w, 0u, unit_lane, even_row, odd_row);
  [[unroll]] for (uint i = 0; i < 8; i++) {
    f16vec2 pair = odd ? odd_row[i / 2u] : even_row[i / 2u];
    precise float weight = fma(float(pair[i & 1u]), scale, minimum);
    weights[i] = weight;
  }
}

void main() {
  clear_chain();
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  uint token = token_of(column), lane = unit_lane;
  hide_constants(push.quants);
  uint64_t block = push.quants + (token >> 4) * unit_block_bytes(push.groups);
  // Several workgroups share a column's groups.
  const uint subgroups = kInvocations / 32u;
  for (uint group = gl_WorkGroupID.y * subgroups + unit_subgroup; group < push.groups;
       group += subgroups * gl_NumWorkGroups.y) {
    float weights[8];
    float_weights(load_weights(1u, block, group, lane), (token & 1u) != 0u, weights);
    if (lane >> 2 != (token & 15u) >> 1) continue;
    [[unroll]] for (uint i = 0; i < 8; i++) store_entry(column, group * 32u + (lane & 3u) * 8u + i, weights[i]);
  }
}
