// Attention of a prompt's columns by matrix units: a workgroup computes neighbouring columns of one sequence. Keys
// and values pass through shared memory, a block of 64 positions at a time, so that the workgroup reads them once for
// all of its queries.
//
// A subgroup computes sixteen queries of one KV head: heads of neighbouring columns. The order of additions is that
// of attention_units.glsl, bit for bit; only the two factors of each multiplication are exchanged:
//
//   scores   the unit multiplies sixteen queries by eight keys. A lane holds rows r and r + 8 of the queries, and a
//            cell of eight entries of the keys (kv_layout.glsl), which is its part of a fragment for two
//            multiplications.
//   values   the unit multiplies the weights of sixteen queries by eight entries of 16 values. A lane's scores are
//            where the unit needs its weights: in columns 2 * q and 2 * q + 1 of two neighbouring octets of keys. These
//            must be positions 2 * q and 2 * q + 8, then 2 * q + 1 and 2 * q + 9 of 16, as in attention_units.glsl. So
//            the first octet has keys 0, 8, 2, 10, 4, 12, 6 and 14 of 16, and the second octet has the keys behind
//            them.
//
// With a window, the workgroup loads each block that at least one of its queries sees. A subgroup computes a block only
// if at least one of the subgroup's own queries sees it.
//
// While a block's weights are computed and its values are added, the next block's scores are computed, and the
// following values and keys are being loaded into registers. Two barriers per block enclose the moment in which these
// move to shared memory. Cells of bytes become halves before that (unpack_keys(), unpack_values()).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "common.glsl"
#extension GL_KHR_shader_subgroup_vote : require
#include "unit_fragments.glsl"
#include "kv_layout.glsl"
#include "attention_state.glsl"
#include "attention_push.glsl"
#include "constants/attention.glsl"
#include "constants/attention_range.glsl"
// The constants of attention in tiles. Their ids follow those of AttentionRangeConstants.
CONSTANTS(AttentionTilesConstants, 23)
// The workgroups with the same x take turns at the tiles that begin in one portion: this many neighbouring columns.
CONSTANT(23, kPortion, portion, 4u)
CONSTANTS_END
#include "attention_blocks.glsl"
#include "attention_cells.glsl"

const uint kSubgroups = kInvocations / kLanes;
#include "attention_sizes.glsl"

// These depend on a specialisation constant, so that glslc unrolls no loop over them before a driver does: in the
// copies that it makes, glslc's optimiser forgets which variables are precise.
const uint kOwnRows = kLanes / 16u, kKeyTiles = kLanes / 8u, kOctets = kLanes / 4u;
const uint kTileColumns = 16u / kShare;  // of a subgroup
const uint kGroupColumns = kTileColumns * kSubgroups;
const uint kEntryGroups = (kHeadPadded + 31u) / 32u;  // of a query or a key
const uint kValueSets = (kHeadPadded + 63u) / 64u;    // cells of a value that a lane takes
const uint kResultTiles = kValueSets * 8u;

// [row, row + 8][group of entries]
const uint kQueryCells = 2u * kEntryGroups;
uvec4 queries[kQueryCells];

// These arrays have an entry for the query in row r and one for the query in row r + 8.
uint seen[2];   // positions
uint sizes[2];  // of a split
float tops[2];
float totals[4];  // [row][positions 2 * q and 2 * q + 8 of 16, the positions behind them]
SumFragment results[kResultTiles];
const uint kScores = kOctets * 4u;
float scores[kScores];
float all_tops[2];
float all_totals[2];
float all_results[kResultTiles * 4u];

// A block's keys as fragments, [octet][group of entries][lane], where lanes of odd octets are exchanged in pairs of
// columns; and the block's values, [16 positions][set][pair of entries][lane].
const uint kKeyItems = kOctets * kEntryGroups, kValueItems = kKeyTiles * kValueSets;
shared uvec4 keys_here[kKeyItems * 32u];
shared uvec4 values_here[kValueItems * 4u * 32u];

// The part of a block that an invocation loads: cells of keys, and cells of values, four positions at a time.
const uint kKeyShare = (kKeyItems + kSubgroups - 1u) / kSubgroups;
const uint kValueShare = (kValueItems + kSubgroups - 1u) / kSubgroups;
uvec4 coming_keys[kKeyShare], coming_values[kValueShare * 4u];
uint pages[2];  // of the block that is being loaded

void find_pages(uint at, uint end, uint page_table) {
  [[unroll]] for (uint i = 0; i < 2; i++) {
    uint page = min(at / kPageTokens + i, (end - 1u) / kPageTokens);
    pages[i] = Words(push.pages).v[page_table + (kWindow == 0u ? page : max(page, stored_from / kPageTokens))];
  }
}
uint64_t head_in_page(uint half_block, uint kv_head) {
  return page_at(half_block == 0u ? pages[0] : pages[1]) + kv_head * kHeadBytes;
}
void ask_keys(uint at, uint end, uint kv_head) {
  uint row = unit_lane >> 2;
  [[EACH]] for (uint n = 0; n < kKeyShare; n++) {
    uint item = n * kSubgroups + unit_subgroup;
    if (kKeyItems % kSubgroups != 0u && item >= kKeyItems) continue;
    uint octet = item / kEntryGroups;
    uint slot = tile_start(at + octet / 2u * 16u, end) % kPageTokens + (octet & 1u) * 8u + row;
    uint cell = min(item % kEntryGroups * 4u + (unit_lane & 3u), kChunks - 1u);
    uint64_t head_at = push.keys + head_in_page(octet / 4u, kv_head);
    load_cell(head_at + (slot + cell * kPageTokens) * kCellBytes, 0u,
              key_scale_at(head_at, slot, item % kEntryGroups), coming_keys[n]);
  }
}
void unpack_keys() {
  [[EACH]] for (uint n = 0; n < kKeyShare; n++) coming_keys[n] = halves_of_cell(coming_keys[n]);
}
void keep_keys() {
  uint row = unit_lane >> 2, odd = row & 1u;
  [[EACH]] for (uint n = 0; n < kKeyShare; n++) {
    uint item = n * kSubgroups + unit_subgroup;
    if (kKeyItems % kSubgroups != 0u && item >= kKeyItems) continue;
    uint octet = item / kEntryGroups, group = item % kEntryGroups;
    uint place = ((row & 6u) | (octet & 1u)) * 4u + (unit_lane & 3u);
    keys_here[(((octet & 6u) + odd) * kEntryGroups + group) * 32u + (place ^ (odd * 4u))] = coming_keys[n];
  }
}

void ask_values(uint at, uint end, uint kv_head) {
  [[EACH]] for (uint n = 0; n < kValueShare; n++) {
    uint item = n * kSubgroups + unit_subgroup;
    if (kValueItems % kSubgroups != 0u && item >= kValueItems) continue;
    uint m = item / kValueSets, set = item % kValueSets;
    uint tile = tile_start(at + m * 16u, end), pair = (unit_lane & 3u) * 2u;
    uint cell = min(set * 8u + (unit_lane >> 2), kChunks - 1u);
    uint64_t head_at = push.values + head_in_page(m / 2u, kv_head);
    uint64_t base = head_at + cell * kCellBytes;
    [[unroll]] for (uint p = 0; p < 4; p++) {
      uint slot = min(tile + pair + (p >> 1) + (p & 1u) * 8u, end - 1u) % kPageTokens;
      load_cell(base + slot * (kHeadPadded * kEntryBytes), 0u,
                value_scale_at(head_at, slot, cell / (kScaleBlock / 8u)), coming_values[n * 4u + p]);
    }
  }
}
void unpack_values() {
  [[EACH]] for (uint n = 0; n < kValueShare * 4u; n++) coming_values[n] = halves_of_cell(coming_values[n]);
}
void keep_values() {
  [[EACH]] for (uint n = 0; n < kValueShare; n++) {
    uint item = n * kSubgroups + unit_subgroup;
    if (kValueItems % kSubgroups != 0u && item >= kValueItems) continue;
    [[unroll]] for (uint x = 0; x < 4; x++) {
      uint a = coming_values[n * 4u][x], b = coming_values[n * 4u + 1u][x];
      uint c = coming_values[n * 4u + 2u][x], d = coming_values[n * 4u + 3u][x];
      values_here[(item * 4u + x) * 32u + unit_lane] =
          uvec4((a & 0xffffu) | (b << 16), (c & 0xffffu) | (d << 16), (a >> 16) | (b & 0xffff0000u),
                (c >> 16) | (d & 0xffff0000u));
    }
  }
}

WeightFragment rows_of(uvec4 low, uvec4 high, const uint j) {
  f16vec2 low_row[4], high_row[4];
  [[unroll]] for (uint p = 0; p < 4; p++) {
    low_row[p] = unpackFloat2x16(low[p]);
    high_row[p] = unpackFloat2x16(high[p]);
  }
  return weight_fragment(low_row, high_row, j);
}

// Loads the queries of `heads` heads from `head0` on in `count` columns from `column` on. Beyond the last one, that
// one is repeated and not stored.
void take_queries(uint column, uint count, uint head0, uint heads) {
  [[EACH]] for (uint n = 0; n < kOwnRows; n++) {
    uint query = n * 8u + (unit_lane >> 2), from = column + min(query / kShare, count - 1u);
    uint64_t base = push.q + (uint64_t(from) * kHeads + head0 + min(query % kShare, heads - 1u)) * (kHeadPadded * 4u);
    [[EACH]] for (uint i = 0; i < kEntryGroups; i++) {
      uint cell = i * 4u + (unit_lane & 3u);
      uvec4 words = uvec4(0u);
      if (cell < kChunks) {
        vec4 low = Vec4s(base).v[cell * 2u], high = Vec4s(base).v[cell * 2u + 1u];
        words = uvec4(halves_of(low.xy), halves_of(low.zw), halves_of(high.xy), halves_of(high.zw));
      }
      queries[n * kEntryGroups + i] = words;
    }
    seen[n] = ColumnsRef(push.parameters + 64u).v[from].y + 1u;
    sizes[n] = size_of_splits(seen[n]);
  }
}

// Computes the scores of the block whose keys are here.
void score_block() {
  SumFragment made[kOctets];
  [[EACH]] for (uint t = 0; t < kOctets; t++) made[t] = no_sums();
  [[EACH]] for (uint i = 0; i < kEntryGroups; i++) {
    WeightFragment early = rows_of(queries[i], queries[kEntryGroups + i], 0u);
    WeightFragment late = rows_of(queries[i], queries[kEntryGroups + i], 1u);
    [[EACH]] for (uint t = 0; t < kOctets; t++) {
      uvec4 cell = keys_here[(t * kEntryGroups + i) * 32u + (unit_lane ^ ((t & 1u) * 4u))];
      made[t] = multiply_add(early, input_fragment(cell, 0u), made[t]);
      made[t] = multiply_add(late, input_fragment(cell, 1u), made[t]);
    }
  }
  [[EACH]] for (uint t = 0; t < kOctets; t++) {
    [[unroll]] for (uint e = 0; e < kOwnRows * 2u; e++) scores[t * 4u + e] = made[t][e];
  }
}

uint weights[kOctets * 2u];  // of a block, two halves each: [octet][row]

// Turns the block's scores into weights. `masked`: some query sees only a part of the block.
void weigh_block(uint start, float now[kScores], bool masked) {
  if (masked) {
    [[EACH]] for (uint t = 0; t < kOctets; t++) {
      [[unroll]] for (uint e = 0; e < kOwnRows * 2u; e++) {
        uint position = start + t / 2u * 16u + (t & 1u) + (unit_lane & 3u) * 2u + (e & 1u) * 8u;
        if (!sees(position, seen[e >> 1])) now[t * 4u + e] = -1e30;
      }
    }
  }
  float shrinks[2];
  bool moved = false;
  [[EACH]] for (uint h = 0; h < kOwnRows; h++) {
    // With a window, a query may see nothing of a block. Its weights must then be zeros, so its maximum must be larger
    // than the scores that it does not see.
    float largest = kWindow == 0u ? -1e30 : -1e29;
    [[EACH]] for (uint t = 0; t < kOctets; t++) {
      largest = max(largest, max(now[t * 4u + h * 2u], now[t * 4u + h * 2u + 1u]));
    }
    largest = max(largest, from_lane_float(largest, unit_lane ^ 1u));
    largest = max(largest, from_lane_float(largest, unit_lane ^ 2u));
    float top = max(tops[h], largest);
    precise float shrink = exp2(tops[h] - top);
    precise float even = totals[h * 2u] * shrink, odd = totals[h * 2u + 1u] * shrink;
    [[EACH]] for (uint t = 0; t < kOctets; t++) {
      precise float first = exp2(now[t * 4u + h * 2u] - top), second = exp2(now[t * 4u + h * 2u + 1u] - top);
      f16vec2 pair = f16vec2(float16_t(first), float16_t(second));
      if ((t & 1u) == 0u) {
        even = even + float(pair.x);
        even = even + float(pair.y);
      } else {
        odd = odd + float(pair.x);
        odd = odd + float(pair.y);
      }
      weights[t * 2u + h] = packFloat2x16(pair);
    }
    totals[h * 2u] = even;
    totals[h * 2u + 1u] = odd;
    // Before a split's first block there is nothing to scale.
    moved = moved || (shrink != 1.0 && tops[h] > -1e30);
    tops[h] = top;
    shrinks[h] = shrink;
  }
  if (!any_lane(moved)) return;  // one changes nothing
  [[EACH]] for (uint t = 0; t < kResultTiles; t++) {
    [[unroll]] for (uint e = 0; e < kOwnRows * 2u; e++) {
      precise float scaled = results[t][e] * shrinks[e >> 1];
      results[t][e] = scaled;
    }
  }
}

void add_values() {
  [[EACH]] for (uint m = 0; m < kKeyTiles; m++) {
    WeightFragment of_queries = rows_of(uvec4(weights[m * 4u], weights[m * 4u + 2u], 0u, 0u),
                                        uvec4(weights[m * 4u + 1u], weights[m * 4u + 3u], 0u, 0u), 0u);
    [[EACH]] for (uint i = 0; i < kValueSets * 4u; i++) {
      uvec4 entries = values_here[(m * kValueSets * 4u + i) * 32u + unit_lane];
      results[i * 2u] = multiply_add(of_queries, input_fragment(entries, 0u), results[i * 2u]);
      results[i * 2u + 1u] = multiply_add(of_queries, input_fragment(entries, 1u), results[i * 2u + 1u]);
    }
  }
}

// Adds a split's results to those of the splits before it, as attention.glsl does.
void fold_split(bool ends[2], bool folds[2]) {
  float old_shares[2], new_shares[2];
  [[unroll]] for (uint h = 0; h < kOwnRows; h++) {
    float maximum = max(all_tops[h], tops[h]);
    precise float old_share = exp2(all_tops[h] - maximum);
    precise float new_share = exp2(tops[h] - maximum);
    precise float sum = totals[h * 2u] + totals[h * 2u + 1u];
    sum = sum + from_lane_float(sum, unit_lane ^ 1u);
    sum = sum + from_lane_float(sum, unit_lane ^ 2u);
    precise float scaled = sum * new_share;
    precise float folded = fma(all_totals[h], old_share, scaled);
    if (folds[h]) {
      all_totals[h] = folded;
      all_tops[h] = maximum;
    }
    old_shares[h] = old_share;
    new_shares[h] = new_share;
    if (ends[h]) {
      tops[h] = -1e30;
      totals[h * 2u] = totals[h * 2u + 1u] = 0.0;
    }
  }
  if (all_lanes(folds[0] && folds[1])) {
    [[EACH]] for (uint t = 0; t < kResultTiles; t++) {
      [[unroll]] for (uint e = 0; e < kOwnRows * 2u; e++) {
        precise float part = results[t][e] * new_shares[e >> 1];
        precise float folded = fma(all_results[t * 4u + e], old_shares[e >> 1], part);
        all_results[t * 4u + e] = folded;
      }
      results[t] = no_sums();
    }
  } else {
    [[EACH]] for (uint t = 0; t < kResultTiles; t++) {
      [[unroll]] for (uint e = 0; e < kOwnRows * 2u; e++) {
        precise float part = results[t][e] * new_shares[e >> 1];
        precise float folded = fma(all_results[t * 4u + e], old_shares[e >> 1], part);
        if (folds[e >> 1]) all_results[t * 4u + e] = folded;
        results[t][e] = ends[e >> 1] ? 0.0 : results[t][e];
      }
    }
  }
}

void fold_block(uint at, uint end) {
  uint next = at + kBlockPositions;
  bool ends[2], folds[2];
  [[unroll]] for (uint h = 0; h < kOwnRows; h++) {
    ends[h] = (next & (sizes[h] - 1u)) == 0u || next >= end;
    // A split behind the positions that the query sees does not count. One before them changes nothing.
    folds[h] = ends[h] && (at & ~(sizes[h] - 1u)) < seen[h];
  }
  if (any_lane(ends[0] || ends[1])) fold_split(ends, folds);
}

void store_results(uint column, uint columns, uint head0, uint heads) {
  [[EACH]] for (uint h = 0; h < kOwnRows; h++) {
    uint query = h * 8u + (unit_lane >> 2), head = query % kShare;
    if (query / kShare >= columns || head >= heads) continue;
    float weight = with_sink(push.sinks, head0 + head, all_tops[h], all_totals[h]);
    [[EACH]] for (uint set = 0; set < kValueSets; set++) {
      [[unroll]] for (uint side = 0; side < 2; side++) {
        uint entry = set * 64u + ((unit_lane & 3u) * 2u + side) * 8u;
        [[unroll]] for (uint x = 0; x < 8; x++) {
          precise float value = all_results[(set * 8u + x) * 4u + h * 2u + side] / weight;
          if (entry + x < kHead) {
            store_input(push.out_address, column + query / kShare, push.out_stride, (head0 + head) * kHead + entry + x,
                        value, kOutForm);
          }
        }
      }
    }
  }
}

void pad_columns(uint column, uint columns) {
  for (uint c = 0; c < columns; c++) {
    for (uint pad = kHeads * kHead + unit_lane; pad < push.padded_width; pad += kLanes) {
      store_input(push.out_address, column + c, push.out_stride, pad, 0.0, kOutForm);
    }
  }
}

// Starts to load the values of the block at position `at`, whose keys were loaded before, and the next block's keys.
void ask_block(uint at, uint end, uint page_table, uint kv_head) {
  ask_values(at, end, kv_head);
  find_pages(at + kBlockPositions, end, page_table);
  ask_keys(at + kBlockPositions, end, kv_head);
}

void begin_tile() {
  [[EACH]] for (uint h = 0; h < kOwnRows; h++) {
    tops[h] = all_tops[h] = -1e30;
    all_totals[h] = totals[h * 2u] = totals[h * 2u + 1u] = 0.0;
  }
  [[EACH]] for (uint i = 0; i < kResultTiles; i++) results[i] = no_sums();
  [[EACH]] for (uint i = 0; i < kResultTiles * 4u; i++) all_results[i] = 0.0;
}

// Computes attention for `taken` columns. The first one is `column`, at position `position`.
void attend_tile(uint column, uint taken, uint position, uint page_table, uint group) {
  uint kv_head = group / kGroupsOfKv, end = position + taken;
  uint own = unit_subgroup * kTileColumns;
  uint columns = own < taken ? min(kTileColumns, taken - own) : 0u;
  uint own_end = columns == 0u ? 0u : position + own + columns;
  uint begin = first_block(position + 1u), own_begin = first_block(position + own + 1u);
  stored_from = first_page(position + 1u);
  find_pages(begin, end, page_table);
  ask_keys(begin, end, kv_head);
  if (columns != 0u) take_queries(column + own, columns, first_head(group), heads_of(group));
  begin_tile();
  unpack_keys();
  keep_keys();
  barrier();
  ask_block(begin, end, page_table, kv_head);
  if (own_end != 0u && own_begin == begin) score_block();
  unpack_keys();
  unpack_values();
  barrier();
  keep_keys();
  [[dont_unroll]] for (uint at = begin; at < end; at += kBlockPositions) {
    uint next = at + kBlockPositions;
    keep_values();
    barrier();
    ask_block(next, end, page_table, kv_head);
    if (at < own_end && at >= own_begin) {
      float now[kScores];
      [[EACH]] for (uint i = 0; i < kScores; i++) now[i] = capped_score(scores[i]);
      weigh_block(at, now, next > position + own + 1u || (kWindow != 0u && at + kWindow < own_end));
      score_block();
      add_values();
      fold_block(at, own_end);
    } else if (kWindow != 0u && next == own_begin && own_end != 0u) {
      score_block();
    }
    unpack_keys();
    unpack_values();
    barrier();
    keep_keys();
  }
  barrier();
  if (columns != 0u) {
    store_results(column + own, columns, first_head(group), heads_of(group));
    if (group == 0u) pad_columns(column + own, columns);
  }
}

// A workgroup takes columns of one sequence from kFrom on, up to the next position that is a multiple of the number
// of columns that it takes. attention_alone() computes columns without a neighbour.
bool begins_tile(uint column, uint count) {
  if (column >= count) return false;
  uvec4 info = column_entry(column);
  if (!has_neighbour(column, count)) return false;
  bool first = column == 0u || !are_neighbours(column - 1u, count);
  return info.y >= kFrom && (first || info.y % kGroupColumns == 0u || info.y == kFrom);
}

void main() {
  if (kKvFormat == kKvQ8) hide_constants(push.q);
  uint count = Words(push.parameters).v[0];
  // The last columns see most positions, so the first workgroups take them.
  uint first = (gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x) * kPortion;
  if (first >= count) return;
  uint group = gl_WorkGroupID.y, begins = 0u, turn = gl_WorkGroupID.z;
  [[unroll]] for (uint i = 0; i < kPortion; i++) begins |= begins_tile(first + i, count) ? 1u << i : 0u;
  [[dont_unroll]] while (begins != 0u) {
    uint column = first + findLSB(begins);
    begins &= begins - 1u;
    // A sequence's first tile is often short, and then a second tile begins in the same portion.
    bool mine = turn == 0u;
    turn = mine ? gl_NumWorkGroups.z - 1u : turn - 1u;
    if (!mine) continue;
    uvec4 info = column_entry(column);
    uint taken = min(kGroupColumns - info.y % kGroupColumns, count - column);
    while (column_entry(column + taken - 1u).z != info.z) taken--;
    attend_tile(column, taken, info.y, info.z, group);
  }
}
