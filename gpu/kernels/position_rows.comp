// Adds to each column the vector that all columns share, then the row of a table for the column's position. An address
// of 0 stands for zeros.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(PositionRowsPush)
  uint64_t values;      // [column][stride]
  uint64_t shared_row;  // [width]
  uint64_t table;       // [position][width]
  uint64_t parameters;
  uint width;
  uint stride;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(PositionRowsConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANTS_END

void add_rows() {
  uint column = gl_WorkGroupID.x;
  if (column >= Words(push.parameters).v[0]) return;
  if (!chain_wait()) return;
  uint64_t row = uint64_t(ColumnsRef(push.parameters + 64u).v[column].y) * push.width * 4ul;
  FloatsOut values = FloatsOut(push.values + uint64_t(column) * push.stride * 4u);
  for (uint k = gl_LocalInvocationID.x; k < push.width; k += kInvocations) {
    precise float sum = values.v[k];
    if (push.shared_row != 0ul) sum = sum + Floats(push.shared_row).v[k];
    if (push.table != 0ul) sum = sum + Floats(push.table + row).v[k];
    values.v[k] = sum;
  }
}

void main() {
  add_rows();
  chain_arrive();
}
