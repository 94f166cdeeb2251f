// Computes attention (attention.glsl) and divides a column's heads and splits among workgroups. Every way of dividing
// gives the same bits.
//
// With BULKHEAD_ROWS the kernel is for the rows mapping of CPUs and leaves out the GPUs' ways of dividing. The
// smaller code halves the time that a CPU's driver takes to load this kernel from its cache.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "kv_layout.glsl"
#include "attention_state.glsl"

#include "attention_push.glsl"
#include "attention_results.glsl"
#include "chain.glsl"

#include "values/attention_mode.glsl"
#include "constants/attention.glsl"
#include "constants/attention_range.glsl"

const uint kSubgroups = kInvocations / kLanes;
#ifndef BULKHEAD_ROWS
#include "attention_sizes.glsl"
#define SEVERAL_ROUNDS (kSpreadFrom > kSubgroups * kMinimumSplit)
const uint kRoomsOfQ = kMode == kWhole ? kSubgroups : 1u;
const uint kWeightsRoom = kShare > 1u ? kSubgroups * kRoomOfWeights : 0u;
const uint kWholeRoom = kWeightsRoom > 1u ? kWeightsRoom : 1u;
const uint kSpreadRoom = kWeightsRoom > kRoomOfShares ? kWeightsRoom : kRoomOfShares;
const uint kSplitsRoom = kSubgroups * kPartialFloats;
const uint kTogetherRoom = kSpreadRoom > kSplitsRoom ? kSpreadRoom : kSplitsRoom;
shared float room[kMode == kTogether ? kTogetherRoom : kMode == kSpread ? kSpreadRoom : kWholeRoom];
#endif

#include "attention.glsl"
#ifndef BULKHEAD_ROWS
#include "attention_heads.glsl"
#include "attention_spread.glsl"
#endif

#ifndef BULKHEAD_ROWS
const uint kTouchParts = 1;
#include "attention_near.glsl"
#endif

// Stores the result of attend_split() for attention_combine.comp (kPartial).
void store_partials(uint column, uint head0, uint lane) {
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
}

// Computes the whole results of the heads from head0 on, whose queries begin at q_base. The subgroup takes the
// splits, of `size` positions each, one after the other.
void attend_in_order(uint column, uint head0, uint visible, uint size, uint page_table, uint kv_head, uint64_t q_base) {
  uint lane = gl_SubgroupInvocationID;
  float all_maxima[kHeadsTogether];
  precise float all_sums[kHeadsTogether];
  precise float all_results[kHeadsTogether * kLaneEntries];
  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
    all_maxima[h] = -1e30;
    all_sums[h] = 0.0;
  }
  [[unroll]] for (uint i = 0; i < kHeadsTogether * kLaneEntries; i++) all_results[i] = 0.0;
  for (uint start = 0; start < visible; start += size) {
    attend_split(start, min(start + size, visible), page_table, kv_head, q_base);
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
    float weights = with_sink(push.sinks, head0 + h, all_maxima[h], all_sums[h]);
    [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
      uint entry = entry_of(lane, i);
      precise float value = all_results[h * kLaneEntries + i] / weights;
      store_head(column, head0 + h, entry, value);
    }
  }
  pad_heads(column, head0, kHeadsTogether, lane, kLanes);
}

void attend() {
  // The workgroup has heads of several columns, and each subgroup computes one.
#ifdef BULKHEAD_ROWS
  uint column = gl_WorkGroupID.x;
#else
  bool several = kMode == kWhole && kShare > 1u;
  uint column = several ? gl_WorkGroupID.x * kSubgroups + gl_SubgroupID : gl_WorkGroupID.x;
#endif
  // The first column always exists, so it need not wait for the count.
  if (column != 0u && column >= Words(push.parameters).v[0]) return;
  uvec4 info = ColumnsRef(push.parameters + 64u).v[column];
  if (info.y < kFrom || info.y >= kUntil) return;
  Sight sight = sight_of(info);
  uint visible = sight.positions, page_table = sight.page_table;
  hidden_positions = sight.hidden;
#ifndef BULKHEAD_ROWS
  if (several) {
    attend_heads_whole(column, gl_WorkGroupID.y, visible, page_table);
    return;
  }
#endif
  uint lane = gl_SubgroupInvocationID;
  uint head0 = gl_WorkGroupID.y * kHeadsTogether;
  uint kv_head = head0 / (kHeads / kKvHeads);
  uint size = split_size(visible);

#ifndef BULKHEAD_ROWS
  Splits splits = Splits(0u, visible, size);
  if (kMode == kSpread || (kMode == kTogether && visible > kSpreadFrom)) {
    uint group = gl_WorkGroupID.y, member = gl_WorkGroupID.z, members = gl_NumWorkGroups.z;
    if (kMode == kTogether) {
      // The column's workgroups are distributed over the groups of heads.
      uint index = gl_WorkGroupID.z * kHeads + gl_WorkGroupID.y;
      group = index % kGroups;
      member = index / kGroups;
      members = (kHeads * gl_NumWorkGroups.z + kGroups - 1u - group) / kGroups;
    }
    if (member * size >= visible) return;
    if (!chain_wait()) return;
    attend_spread(column, 1u, group, member, members, splits, page_table);
    return;
  }
  if (kMode == kTogether) {  // one head
    if (gl_WorkGroupID.z != 0u) return;
#ifdef BULKHEAD_CHAINED
    // Meanwhile the subgroup loads older keys and values, from before this step, into nearer caches.
    uint touched[kTouchWords];
    if (kNearFirst != 0u) touch_split(page_table, splits, kv_head, 0u, touched);
#endif
    if (!chain_wait()) return;
#ifdef BULKHEAD_CHAINED
    if (kNearFirst != 0u) keep_touched(touched);
#endif
    attend_together(column, head0, visible, page_table);
    return;
  }
#endif

  if (!chain_wait()) return;
  uint64_t q_base = push.q + (uint64_t(column) * kHeads + head0) * (kHeadPadded * 4u);
  if (kMode == kPartial) {
    uint start = gl_WorkGroupID.z * size;
    if (start >= visible) return;
    attend_split(start, min(start + size, visible), page_table, kv_head, q_base);
    store_partials(column, head0, lane);
    return;
  }
  attend_in_order(column, head0, visible, size, page_table, kv_head, q_base);
}

void main() {
  attend();
  chain_arrive();
}
