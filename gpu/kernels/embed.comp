// The residual stream's first values: each column's row of the embedding matrix, still quantised, as floats.
#version 460
#include "common.glsl"
#include "weights.glsl"

layout(push_constant, std430) uniform Push {
#include "fields/embed_push.glsl"
} push;

#include "constants/embed.glsl"

void main() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  uvec4 entry = ColumnsRef(push.parameters + 64u).v[column];
  uint token = entry.w == 0u ? entry.x : Words(push.chosen).v[(entry.w - 1u) * 2u];
  Matrix row = row_of(Matrix(push.quants, push.high, push.scales, push.supers), token, push.groups);
  FloatsOut result = FloatsOut(push.out_address + uint64_t(column) * push.stride * 4u);
  for (uint group = gl_LocalInvocationID.x; group < push.groups; group += kInvocations) {
    vec4 scale = group_scale(row, group);
    uvec3 high = group_high(row, group);
    [[dont_unroll]] for (uint quarter = 0; quarter < 4; quarter++) {
      [[unroll]] for (uint half_group = 0; half_group < 2; half_group++) {
        uint j = half_group * 4u + quarter;
        uvec4 quad = uvec4(0u);
        if (kPlanes != 0u) quad = Quads(row.quants).v[((j * kPlanes) / 8u) * push.groups + group];
        vec4 values = decode(words_of(quad, j), high, quarter, half_group != 0u, scale);
        [[unroll]] for (uint i = 0; i < 4; i++) {
          uint k = group * 32u + j * 4u + i;
          precise float value = values[i] * push.scale;
          if (k < push.width) result.v[k] = value;
          if (push.gain != 0ul) {
            precise float input_value = k < push.width ? value * Floats(push.gain).v[k] : 0.0;
            store_input(push.input_address, column, push.input_stride, k, input_value, kForm);
          }
        }
      }
    }
  }
}
