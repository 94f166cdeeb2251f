// Attention (attention.glsl): a workgroup makes a column's head or some heads, or one split of them.
#version 460
#include "common.glsl"
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "kv_layout.glsl"
#include "attention_state.glsl"

layout(push_constant, std430) uniform Push {
  uint64_t q;            // [column][head][kHeadPadded]
  uint64_t keys;
  uint64_t values;
  uint64_t parameters;
  uint64_t pages;
  uint64_t out_address;  // kPartial: [column][head][kMaximumSplits][kPartialFloats]; else [column][out_stride]
  uint out_stride;
  uint padded_width;
} push;

layout(constant_id = 9) const uint kPartial = 0;  // 1: a workgroup makes one split
layout(constant_id = 10) const uint kInvocations = 8;  // kLanes, or kLanes * kMaximumSplits: a subgroup makes a split
layout(local_size_x_id = 10) in;

#include "attention.glsl"

void main() {
  uint column = gl_WorkGroupID.x;
  if (column != 0u && column >= Words(push.parameters).v[0]) return;
  uint lane = gl_SubgroupInvocationID;
  uint head0 = gl_WorkGroupID.y * kHeadsTogether;
  uint kv_head = head0 / (kHeads / kKvHeads);
  uvec4 info = ColumnsRef(push.parameters + 64u).v[column];
  uint visible = info.y + 1u;
  uint size = split_size(visible);
  uint64_t q_base = push.q + (uint64_t(column) * kHeads + head0) * (kHeadPadded * 4u);

  if (kPartial != 0u) {
    uint start = gl_WorkGroupID.z * size;
    if (start >= visible) return;
    attend_split(start, min(start + size, visible), info.z, kv_head, q_base);
    [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
      FloatsOut partial = FloatsOut(push.out_address + ((uint64_t(column) * kHeads + head0 + h) * kMaximumSplits +
                                                        gl_WorkGroupID.z) * (kPartialFloats * 4u));
      [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
        uint entry = entry_of(lane, i);
        if (entry < kHeadPadded) partial.v[entry] = results[h * kLaneEntries + i];
      }
      if (lane == 0u) {
        partial.v[kHeadPadded] = maxima[h];
        partial.v[kHeadPadded + 1u] = sums[h];
      }
    }
    return;
  }

  if (kTogether) {  // one head
    attend_together(column, head0, visible, info.z);
    return;
  }

  float all_maxima[kHeadsTogether];
  precise float all_sums[kHeadsTogether];
  precise float all_results[kHeadsTogether * kLaneEntries];
  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
    all_maxima[h] = -1e30;
    all_sums[h] = 0.0;
  }
  [[unroll]] for (uint i = 0; i < kHeadsTogether * kLaneEntries; i++) all_results[i] = 0.0;
  for (uint start = 0; start < visible; start += size) {
    attend_split(start, min(start + size, visible), info.z, kv_head, q_base);
    [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
      float maximum = max(all_maxima[h], maxima[h]);
      precise float old_share = exp2(all_maxima[h] - maximum);
      precise float new_share = exp2(maxima[h] - maximum);
      precise float scaled = sums[h] * new_share;
      precise float sum = fma(all_sums[h], old_share, scaled);
      all_sums[h] = sum;
      all_maxima[h] = maximum;
      [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
        precise float part = results[h * kLaneEntries + i] * new_share;
        precise float result = fma(all_results[h * kLaneEntries + i], old_share, part);
        all_results[h * kLaneEntries + i] = result;
      }
    }
  }
  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
    [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
      uint entry = entry_of(lane, i);
      precise float value = all_results[h * kLaneEntries + i] / all_sums[h];
      if (entry < kHead) store_input(push.out_address, column, push.out_stride, (head0 + h) * kHead + entry, value, kOutForm);
    }
  }
  uint pad = kHeads * kHead + lane;
  if (head0 == 0u) {
    for (; pad < push.padded_width; pad += kLanes) store_input(push.out_address, column, push.out_stride, pad, 0.0, kOutForm);
  }
}
