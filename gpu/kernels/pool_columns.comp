// Writes to the last column of each sequence the mean of the sequence's columns, or its first column. A step has all
// columns of each sequence, in order. So a sequence begins p columns before its column of position p. An invocation
// computes one entry: llvmpipe ends an invocation's loops after 65,535 rounds in total.
//
// The order of additions: the columns from the first one on, for each entry by itself.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(PoolColumnsPush)
  uint64_t values;  // [column][stride]
  uint64_t parameters;
  uint width;
  uint stride;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(PoolColumnsConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)
CONSTANT(1, kMean, mean, 0u)  // 0: the first column
CONSTANTS_END

void pool_columns() {
  uint column = gl_WorkGroupID.x, count = Words(push.parameters).v[0];
  if (column >= count) return;
  uvec4 entry = ColumnsRef(push.parameters + 64u).v[column];
  // Only a sequence's last column continues. Each sequence has its own page table, so an equal table means that the
  // next column belongs to the same sequence.
  if (column + 1u < count && ColumnsRef(push.parameters + 64u).v[column + 1u].z == entry.z) return;
  if (!chain_wait()) return;
  uint first = column - min(entry.y, column);
  uint k = gl_WorkGroupID.y * kInvocations + gl_LocalInvocationID.x;
  if (k >= push.width) return;
  precise float made = Floats(push.values + uint64_t(first) * push.stride * 4u).v[k];
  if (kMean != 0u) {
    for (uint each = first + 1u; each <= column; each++) {
      made = made + Floats(push.values + uint64_t(each) * push.stride * 4u).v[k];
    }
    made = made / float(entry.y + 1u);
  }
  FloatsOut(push.values + uint64_t(column) * push.stride * 4u).v[k] = made;
}

void main() {
  pool_columns();
  chain_arrive();
}
