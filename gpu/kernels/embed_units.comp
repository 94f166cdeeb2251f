// Computes the residual stream's first values, and the first product's input, from an embedding matrix that is packed
// for matrix units: each column's row, by those of the subgroup's lanes that would hold it in a product.
#version 460
#include "common.glsl"
#include "units.glsl"

layout(push_constant, std430) uniform Push {
#include "fields/embed_push.glsl"
} push;

#include "constants/embed.glsl"

// as in epilogue.glsl
const float kInputShrink = 0.125;

void main() {
  uint column = gl_WorkGroupID.x;
  if (column == 0u && gl_WorkGroupID.y == 0u && push.chain_links != 0u) {
    for (uint link = gl_LocalInvocationIndex; link < push.chain_links; link += kInvocations) {
      WordsOut(push.chain_counts + link * 128u).v[0] = 0u;
    }
    if (gl_LocalInvocationIndex == 0u) WordsOut(push.chain_failed).v[0] = 0u;
  }
  if (column >= Words(push.parameters).v[0]) return;
  uvec4 entry = ColumnsRef(push.parameters + 64u).v[column];
  uint token = entry.w == 0u ? entry.x : Words(push.chosen).v[(entry.w - 1u) * 2u];
  uint lane = unit_lane;
  hide_constants(push.quants);
  uint64_t block = push.quants + (token >> 4) * unit_block_bytes(push.groups);
  FloatsOut result = FloatsOut(push.out_address + uint64_t(column) * push.stride * 4u);
  // Several workgroups share a column's groups.
  const uint subgroups = kInvocations / 32u;
  for (uint group = gl_WorkGroupID.y * subgroups + unit_subgroup; group < push.groups;
       group += subgroups * gl_NumWorkGroups.y) {
    LaneWeights weights = load_weights(1u, block, group, lane);
    prepare(weights);
    f16vec2 even_row[4], odd_row[4];
    unpack_group(weights, 0u, lane, even_row, odd_row);
    if (lane >> 2 != (token & 15u) >> 1) continue;
    [[unroll]] for (uint i = 0; i < 8; i++) {
      uint k = group * 32u + (lane & 3u) * 8u + i;
      f16vec2 pair = (token & 1u) != 0u ? odd_row[i / 2u] : even_row[i / 2u];
      precise float value = k < push.width ? float(pair[i & 1u]) * push.scale : 0.0;
      if (k < push.width) result.v[k] = value;
      if (push.gain != 0ul) {
        precise float input_value = k < push.width ? value * Floats(push.gain).v[k] * kInputShrink : 0.0;
        store_input(push.input_address, column, push.input_stride, k, input_value, kInputUnits);
      }
    }
  }
}
