// Attention by matrix units (attention_units.glsl): how the work is divided among workgroups. No way of dividing
// changes a bit.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#extension GL_KHR_shader_subgroup_vote : require
#include "unit_fragments.glsl"
#include "kv_layout.glsl"
#include "attention_state.glsl"
#include "attention_push.glsl"
#include "attention_results.glsl"
#include "chain.glsl"

// kTiles and kSpreadTiles leave out columns without a neighbour, which kWhole or kTogether computes (kAlone).
#include "values/attention_mode.glsl"
#include "constants/attention.glsl"
#include "constants/attention_range.glsl"
// The constants of attention by matrix units. Their ids follow those of AttentionRangeConstants.
CONSTANTS(AttentionUnitsConstants, 23)
CONSTANT(23, kQueryTiles, query_tiles, 1u)  // a subgroup computes this many tiles of eight queries
CONSTANT(24, kAlone, alone, 0u)             // kWhole, kTogether: columns that have neighbours are skipped
CONSTANT(25, kValuesAhead, values_ahead, 0u)   // tiles of 16 values that are loaded before the scores are computed
CONSTANT(26, kEarlyKeys, early_keys, 0u)       // 1: keys are loaded one block ahead
// kTogether: heads that a workgroup computes for a column with few positions
CONSTANT(27, kShareTogether, share_together, 8u)
// kTogether: workgroups that each compute a part of the entries of their heads' results: one or two tiles of 16
// entries, or a multiple of four tiles
CONSTANT(28, kEntryParts, entry_parts, 1u)
CONSTANTS_END
#include "attention_blocks.glsl"
#include "attention_cells.glsl"

const uint kSubgroups = kInvocations / kLanes;
const bool kSpreads = kMode == kSpread || kMode == kSpreadTiles;
#include "attention_sizes.glsl"
// For columns that see few positions, a kTogether workgroup computes fewer heads than share their keys in other
// columns.
const uint kTogetherHeads = kShareTogether < kShare ? kShareTogether : kShare;
const uint kTogetherParts = (kShare + kTogetherHeads - 1u) / kTogetherHeads;
// A workgroup's room has an item for each split of a head: the entries of its part, in the order of tiles of results
// (place_of_result()), and then the split's numbers.
const uint kItemEntries = kEntryParts == 1u ? kHeadPadded : (kHeadPadded + 63u) / 64u * 64u / kEntryParts;
const uint kItemFloats = kItemEntries + 8u;
const uint kTogetherRoom = kSubgroups * kTogetherHeads * kItemFloats;
const uint kSharesRoom = kTogetherRoom > kRoomOfShares ? kTogetherRoom : kRoomOfShares;
shared float room[kMode == kTogether ? kSharesRoom : kSpreads ? kRoomOfShares : 1u];

const bool kSharedQueries = kMode == kTogether || kSpreads;
#include "attention_units.glsl"

// attention_spread.glsl needs these.
void take_share(uint column, uint columns, uint group) {
  take_queries(column, columns, first_head(group), heads_of(group));
  barrier();
}
void attend_share(uint column, uint group, uint start, uint end, uint page_table) {
  load_split(start, end, page_table, group / kGroupsOfKv);
  attend_split(start, end, page_table, group / kGroupsOfKv);
}
#include "attention_partials.glsl"
void leave_partial(uint64_t base, uint columns, uint heads, uint split) {
  [[EACH]] for (uint i = 0; i < kOwn; i++) {
    uint query = own_query(i), h = query % kShare;
    if (query / kShare >= columns || h >= heads) continue;
    uint64_t place = partial_at(base + query / kShare * column_partials(), h, split);
    PartialFloatRef partial = PartialFloatRef(place);
    [[EACH]] for (uint t = 0; t < kValueTiles; t++) {
      [[EACH]] for (uint r = 0; r < 2; r++) {
        uint entry = entry_of_result(t, r * 2u);
        if (entry < kHeadPadded) partial.v[entry] = results[i / 2u * kValueTiles + t][(i & 1u) + r * 2u];
      }
    }
    if (unit_lane < 4u) PartialRef(place).v[kHeadQuads] = vec4(tops[i], totals[i], 0.0, 0.0);
  }
}
#include "attention_spread.glsl"
const uint kTouchParts = kEntryParts;
#include "attention_near.glsl"

// From here on, a workgroup computes the heads of a group, as many splits at a time as it has subgroups.

// The number of entries that one invocation finishes.
const uint kItems = (kTogetherHeads * kItemEntries + kInvocations - 1u) / kInvocations;

// Returns the place in a room's item of an entry that the lane has in a tile of results, and which entry lies there.
uint place_of_result(uint tile, uint r) {
  return kEntryParts == 1u ? entry_of_result(tile, r * 2u) : tile * 16u + (unit_lane >> 2) * 2u + r;
}
uint entry_of_place(uint place) {
  if (kEntryParts == 1u) return place;
  uint tile = entry_part * kValueTiles + place / 16u;
  return ((tile / 4u) * 8u + place % 16u / 2u) * 8u + (tile & 3u) * 2u + (place & 1u);
}

void leave_in_room(uint heads) {
  [[EACH]] for (uint i = 0; i < 2; i++) {
    uint h = own_query(i);
    if (h >= heads) continue;
    uint base = (unit_subgroup * kTogetherHeads + h) * kItemFloats;
    [[EACH]] for (uint t = 0; t < kValueTiles; t++) {
      [[EACH]] for (uint r = 0; r < 2; r++) {
        uint place = place_of_result(t, r);
        if (place < kItemEntries) room[base + place] = results[t][i + r * 2u];
      }
    }
    if (unit_lane < 4u) {
      room[base + kItemEntries] = tops[i];
      room[base + kItemEntries + 1u] = totals[i];
    }
  }
}

// These follow a split's maximum and sum in the room: the factor of the results so far, the factor of the split's
// results, and then its sum.
const uint kOldShareAt = kItemEntries + 2u, kNewShareAt = kItemEntries + 3u, kScaledAt = kItemEntries + 4u;
shared float tops_before[kMode == kTogether ? kTogetherHeads : 1u];  // of earlier rounds

// Computes the factors by which the splits of a round are combined, with one invocation for each split of a head.
void weigh_splits(uint heads, uint splits) {
  for (uint i = gl_LocalInvocationIndex; i < heads * splits; i += kInvocations) {
    uint h = i / splits, split = i % splits;
    float before = tops_before[h];
    [[EACH]] for (uint s = 0; s < kSubgroups; s++) {
      float other = room[(s * kTogetherHeads + h) * kItemFloats + kItemEntries];
      before = s < split ? max(before, other) : before;
    }
    uint base = (split * kTogetherHeads + h) * kItemFloats;
    float top = room[base + kItemEntries], maximum = max(before, top);
    precise float old_share = exp2(before - maximum);
    precise float new_share = exp2(top - maximum);
    precise float scaled = room[base + kItemEntries + 1u] * new_share;
    room[base + kOldShareAt] = old_share;
    room[base + kNewShareAt] = new_share;
    room[base + kScaledAt] = scaled;
    if (kSinks != 0u && split + 1u == splits) largest_scores[h] = maximum;
  }
}

// What a subgroup has loaded of its first split: nothing, the numbers of its pages, its first keys, too, or its early
// values, too.
const uint kLoadedNothing = 0, kLoadedPages = 1, kLoadedKeys = 2, kLoadedAll = 3;
void attend_together(uint column, uint head0, uint heads, Splits all, uint page_table, uint loaded) {
  uint size = all.size, visible = all.end, base = first_split(all), kv_head = head0 / (kHeads / kKvHeads);
  if (base + unit_subgroup * size < visible) {
    uint begin = split_begin(all, unit_subgroup), end = split_end(all, unit_subgroup);
    if (loaded == kLoadedNothing) find_pages(begin, end, page_table);
    if (loaded < kLoadedKeys) load_keys(begin, end, kv_head);
    if (loaded < kLoadedAll) load_early_values(begin, end, kv_head);
  }
  take_queries(column, 1u, head0, heads);
  barrier();
  if (gl_LocalInvocationIndex < heads) tops_before[gl_LocalInvocationIndex] = -1e30;
  precise float all_totals[kItems], all_results[kItems];
  [[EACH]] for (uint i = 0; i < kItems; i++) all_totals[i] = all_results[i] = 0.0;
  bool more = true;
  [[dont_unroll]] for (uint first = base; more; first += size * kSubgroups) {
    uint start = first + unit_subgroup * size;
    if (start < visible) {
      uint begin = max(start, all.begin), end = min(start + size, visible);
      if (first != base) load_split(begin, end, page_table, kv_head);
      attend_split(begin, end, page_table, kv_head);
      leave_in_room(heads);
    }
    barrier();
    uint splits = min((visible - first + size - 1u) / size, kSubgroups);
    weigh_splits(heads, splits);
    barrier();
    [[EACH]] for (uint i = 0; i < kItems; i++) {
      uint item = i * kInvocations + gl_LocalInvocationIndex;
      if (item < heads * kItemEntries) {
        [[EACH]] for (uint s = 0; s < kSubgroups; s++) {
          uint place = (s * kTogetherHeads + item / kItemEntries) * kItemFloats;
          float old_share = room[place + kOldShareAt];
          precise float sum = fma(all_totals[i], old_share, room[place + kScaledAt]);
          precise float part = room[place + item % kItemEntries] * room[place + kNewShareAt];
          precise float folded = fma(all_results[i], old_share, part);
          if (s < splits) {
            all_totals[i] = sum;
            all_results[i] = folded;
          }
        }
      }
    }
    more = (kWindow != 0u || kSpreadFrom > kSubgroups * kMinimumSplit) && first + size * kSubgroups < visible;
    if (more) {
      if (gl_LocalInvocationIndex < heads) {
        float top = tops_before[gl_LocalInvocationIndex];
        for (uint s = 0; s < splits; s++) {
          top = max(top, room[(s * kTogetherHeads + gl_LocalInvocationIndex) * kItemFloats + kItemEntries]);
        }
        tops_before[gl_LocalInvocationIndex] = top;
      }
      barrier();
    }
  }
  [[EACH]] for (uint i = 0; i < kItems; i++) {
    uint item = i * kInvocations + gl_LocalInvocationIndex, entry = entry_of_place(item % kItemEntries);
    if (item < heads * kItemEntries && entry < kHead) {
      uint h = item / kItemEntries;
      precise float value =
          all_results[i] / with_sink(push.sinks, head0 + h, largest_scores[kSinks != 0u ? h : 0u], all_totals[i]);
      store_input(push.out_address, column, push.out_stride, (head0 + h) * kHead + entry, value, kOutForm);
    }
  }
  if (head0 == 0u && entry_part == 0u) {
    for (uint pad = kHeads * kHead + gl_LocalInvocationIndex; pad < push.padded_width; pad += kInvocations) {
      store_input(push.out_address, column, push.out_stride, pad, 0.0, kOutForm);
    }
  }
}

// Workgroups take columns of one sequence, from kFrom on, up to the next position that is a multiple of the number of
// columns that a workgroup takes. The workgroup with the number of the first of these columns computes them, and the
// others have nothing to do.
const uint kTileColumns = kQueryTiles * 8u / kShare;  // per subgroup
const uint kGroupColumns = kTileColumns * kSubgroups;

void attend_tiles(uint column, uint group, uint count) {
  uvec4 info = column_entry(column);
  bool first = column == 0u || !are_neighbours(column - 1u, count);
  if (first && !are_neighbours(column, count)) return;
  if (info.y < kFrom || (!first && info.y % kGroupColumns != 0u && info.y != kFrom)) return;
  uint taken = min(kGroupColumns - info.y % kGroupColumns, count - column);
  while (column_entry(column + taken - 1u).z != info.z) taken--;
  uint own = unit_subgroup * kTileColumns;
  if (own >= taken) return;
  uint columns = min(kTileColumns, taken - own);
  attend_whole(column + own, columns, group, info.y + own + columns, info.z);
}

// kSpreadTiles: returns how many neighbours from `column` on a workgroup takes; 0: another column's workgroups take
// this one. Their positions have the same multiple of kTileColumns below them, and their splits have the same size.
uint columns_of_tile(uint column, uint count) {
  uvec4 info = column_entry(column);
  if (!has_neighbour(column, count) || info.y < kFrom) return 0u;
  bool first = column == 0u || !are_neighbours(column - 1u, count);
  uint size = size_of_splits(info.y + 1u);
  if (!first && info.y % kTileColumns != 0u && info.y != kFrom && size_of_splits(info.y) == size) return 0u;
  uint taken = min(kTileColumns - info.y % kTileColumns, count - column);
  while (column_entry(column + taken - 1u).z != info.z || size_of_splits(info.y + taken) != size) taken--;
  return taken;
}

void attend() {
  uint group = gl_WorkGroupID.y;
  uint column = kMode == kWhole ? gl_WorkGroupID.x * kSubgroups + unit_subgroup : gl_WorkGroupID.x;
  // The first column always exists, so it need not wait for the count.
  if (kMode == kWhole || kMode == kTiles) {
    uint count = Words(push.parameters).v[0];
    if (column >= count) return;
    if (kMode == kTiles) {
      attend_tiles(column, group, count);
      return;
    }
    if (kAlone != 0u && has_neighbour(column, count)) return;
    uvec4 info = column_entry(column);
    if (info.y < kFrom) return;
    attend_whole(column, 1u, group, info.y + 1u, info.z);
    return;
  }
  if (column != 0u && column >= Words(push.parameters).v[0]) return;
  uvec4 info = column_entry(column);
  if (info.y < kFrom || info.y >= kUntil) return;
  if (kMode == kTogether && kAlone != 0u && has_neighbour(column, Words(push.parameters).v[0])) return;
  uint columns = kMode == kSpreadTiles ? columns_of_tile(column, Words(push.parameters).v[0]) : 1u;
  if (columns == 0u) return;
  uint last = info.y + columns;  // what the last column sees
  stored_from = first_page(info.y + 1u);
  Splits splits = Splits(first_block(info.y + 1u), last, size_of_splits(last));
  if (kSpreads || (kWindow == 0u ? last : min(last, kWindow)) > kSpreadFrom) {
    uint member = gl_WorkGroupID.z, members = gl_NumWorkGroups.z;
    if (kMode == kTogether) {
      group /= kTogetherParts;  // kEntryParts is 1: parts compute no spread columns
      member = member * kTogetherParts + gl_WorkGroupID.y % kTogetherParts;
      members *= kTogetherParts;
    }
    if (first_split(splits) + member * splits.size >= last) return;
    if (!chain_wait()) return;
    attend_spread(column, columns, group, member, members, splits, info.z);
    return;
  }
  if (gl_WorkGroupID.z != 0u) return;
  entry_part = group % kEntryParts;
  group /= kEntryParts;
  uint skipped = group % kTogetherParts * kTogetherHeads;  // heads of the group
  group /= kTogetherParts;
  if (skipped >= heads_of(group)) return;
  uint loaded = kLoadedNothing;
#ifdef BULKHEAD_CHAINED
  // Meanwhile the subgroup loads older keys and values, from before this step, into nearer caches, and those with which
  // it begins into registers.
  uint touched[kTouchWords];
  if (kNearFirst != 0u) {
    uint kv_head = group / kGroupsOfKv;
    Splits stored = Splits(max(splits.begin, stored_from), last, splits.size);
    touch_split(info.z, stored, kv_head, entry_part, touched);
    uint begin = split_begin(splits, unit_subgroup), end = split_end(splits, unit_subgroup);
    if (begin < last) {
      // Each of the step's columns may have written a position of this sequence.
      uint older = last - min(last, Words(push.parameters).v[0]);
      find_pages(begin, end, info.z);
      loaded = kLoadedPages;
      if (begin + kKeysAhead * 16u <= older) {
        load_keys(begin, end, kv_head);
        loaded = kLoadedKeys;
        if (begin + kBlockPositions <= older) {
          load_early_values(begin, end, kv_head);
          loaded = kLoadedAll;
        }
      }
    }
  }
#endif
  if (!chain_wait()) return;
#ifdef BULKHEAD_CHAINED
  if (kNearFirst != 0u) keep_touched(touched);
#endif
  attend_together(column, first_head(group) + skipped, min(kTogetherHeads, heads_of(group) - skipped), splits, info.z,
                  loaded);
}

void main() {
  if (kKvFormat == kKvQ8) hide_constants(push.q);
  attend();
  chain_arrive();
}
