// The residual stream's first values: each column's row of the embedding matrix, still quantised, as floats.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#include "weights.glsl"
#include "embed_row.glsl"

void main() {
  clear_chain();
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  Matrix row = row_of(Matrix(push.quants, push.high, push.scales, push.supers), token_of(column), push.groups);
  // Inputs of matrix units have zeros up to a whole stage.
  uint groups = kForm == kInputUnits ? (push.groups + 3u) & ~3u : push.groups;
  // Several workgroups may share a column's groups. An invocation takes the same quarter of both halves of a group.
  uint stride = kInvocations * gl_NumWorkGroups.y;
  for (uint i = gl_WorkGroupID.y * kInvocations + gl_LocalInvocationIndex; i < groups * 4u; i += stride) {
    uint group = i >> 2, quarter = i & 3u;
    vec4 scale = vec4(0.0);
    uvec3 high = uvec3(0u);
    if (group < push.groups) {
      scale = group_scale(row, group);
      high = group_high(row, group);
    }
    [[unroll]] for (uint half_group = 0; half_group < 2; half_group++) {
      uint j = half_group * 4u + quarter;
      uvec4 quad = uvec4(0u);
      if (kPlanes != 0u && group < push.groups) quad = Quads(row.quants).v[((j * kPlanes) / 8u) * push.groups + group];
      vec4 values = decode(words_of(quad, j), high, quarter, half_group != 0u, scale);
      [[unroll]] for (uint e = 0; e < 4; e++) store_entry(column, group * 32u + j * 4u + e, values[e]);
    }
  }
}
