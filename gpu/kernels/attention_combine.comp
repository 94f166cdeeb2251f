// On a CPU: combines the splits' partial results of attention.comp, in the same order and by the same operations as
// attention.comp does. GPUs need no separate kernel for this (attention_spread.glsl).
#version 460
#include "common.glsl"
#include "kv_layout.glsl"
#include "attention_state.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(AttentionCombinePush)
  uint64_t partials;
  uint64_t parameters;
  uint64_t out_address;
  uint out_stride;
  uint padded_width;
  uint64_t sinks;  // [head], for kSinks
  FIELDS_END
} push;
#include "attention_results.glsl"

layout(local_size_x_id = 0) in;  // kLanes

void main() {
  uint column = gl_WorkGroupID.x;
  if (column != 0u && column >= Words(push.parameters).v[0]) return;
  uint lane = gl_LocalInvocationID.x;
  uint head = gl_WorkGroupID.y;
  uint visible = sight_of(ColumnsRef(push.parameters + 64u).v[column]).positions;
  uint size = split_size(visible);

  float all_maximum = -1e30;
  precise float all_sum = 0.0;
  precise float all_results[kLaneEntries];
  [[unroll]] for (uint i = 0; i < kLaneEntries; i++) all_results[i] = 0.0;
  uint split = 0;
  for (uint start = 0; start < visible; start += size, split++) {
    Floats partial = Floats(push.partials + ((uint64_t(column) * kHeads + head) * kMaximumSplits + split) *
                                                (kPartialFloats * 4u));
    float split_maximum = partial.v[kHeadPadded];
    float maximum = max(all_maximum, split_maximum);
    precise float old_share = exp2(all_maximum - maximum);
    precise float new_share = exp2(split_maximum - maximum);
    precise float scaled = partial.v[kHeadPadded + 1u] * new_share;
    precise float sum = fma(all_sum, old_share, scaled);
    all_sum = sum;
    all_maximum = maximum;
    [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
      precise float part = partial.v[min(entry_of(lane, i), kHeadPadded - 1u)] * new_share;
      precise float result = fma(all_results[i], old_share, part);
      all_results[i] = result;
    }
  }
  float weights = with_sink(push.sinks, head, all_maximum, all_sum);
  [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
    uint entry = entry_of(lane, i);
    precise float value = all_results[i] / weights;
    store_head(column, head, entry, value);
  }
  pad_heads(column, head, 1u, lane, kLanes);
}
