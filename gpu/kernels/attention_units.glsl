// A subgroup's part of attention by matrix units: it computes queries that share a KV head, eight for each tile of
// the unit's columns, over the positions of one sequence. A query is a head of a column.
//
//   scores   the unit multiplies 16 keys by eight queries. Keys are stored in cells of eight entries (kv_layout.glsl),
//            which are a lane's part of a fragment of keys for two multiplications; the same holds for queries.
//   values   the unit multiplies 16 entries of 16 values by the weights of eight queries. A lane loads cells of the
//            four values whose weights it holds, so pairs of entries become its part of the fragment without shared
//            memory.
//
// With pages of bytes, the entries of keys and values are halves that are rounded once (attention_cells.glsl).
// Everything else is as with pages of halves.
//
// The order of a query's additions: the kernel takes blocks of 64 positions in rising order. Blocks begin at multiples
// of 64, so all columns have the same blocks. With a window, the first block is the one that holds the first position
// that the column sees. A score is one chain of multiply-adds over the head's entries, eight of each lane's share at a
// time (two such chains' steps cover a group of 32 entries). The weights of a block are halves, relative to the
// largest score so far; the earlier sum is scaled once for each block. An entry of a result is one chain of
// multiply-adds over a block's positions, 16 at a time. A split's sum of weights is first summed within a lane, in
// rising order, and then over lanes by distances of 4, 8 and 16. Splits begin at multiples of their size, which
// depends only on the column's position (size_of_splits). They are combined as in attention.glsl. Positions that a
// query does not see have a weight of zero, which changes no sum. So a result does not depend on the other queries of
// its tile.
//
// The includer has attention_state.glsl, attention_sizes.glsl, attention_blocks.glsl, attention_cells.glsl, and `push`.
const uint kKeyTiles = kBlockPositions / 16u;
const uint kOwn = kQueryTiles * 2u;                     // queries whose sums a lane holds: two of each tile
const uint kEntryGroups = (kHeadPadded + 31u) / 32u;    // of a query or a key
const uint kValueSets = (kHeadPadded + 63u) / 64u;      // cells of a value that a lane takes
// A subgroup computes all entries of its queries' results, or one of kEntryParts parts of these entries. For a part,
// the subgroup loads all keys, but of the values' cells only the words that the part needs.
const uint kValueTiles = kValueSets * 4u / kEntryParts;  // of 16 entries, for each tile of queries
const uint kPartSets = (kValueTiles + 3u) / 4u;
const uint kCellWords = kValueTiles < 4u ? kValueTiles : 4u;  // of a cell, in a part
uint entry_part = 0u;
const uint kResultTiles = kQueryTiles * kValueTiles;
const uint kKeysAhead = kAhead < kKeyTiles ? kAhead : kKeyTiles;
const bool kKeysEarly = kEarlyKeys != 0u;

// Halves of the subgroup's queries; with kSharedQueries, all subgroups of the workgroup have the same queries.
const uint kQueryCells = kQueryTiles * kEntryGroups;
uvec4 queries[kSharedQueries ? 1u : kQueryCells];
shared uvec4 shared_queries[kSharedQueries ? kQueryCells * 32u : 1u];
uvec4 query_cell(uint i) {
  return kSharedQueries ? shared_queries[i * 32u + unit_lane] : queries[kSharedQueries ? 0u : i];
}

uint seen[kOwn];                            // positions that a query sees; 0: there is no such query
// For a split: the largest score, the lane's share of the weights' sum, and the results.
float tops[kOwn];
float totals[kOwn];
SumFragment results[kResultTiles];

// Returns the number of the lane's i-th query among the subgroup's: its column is number `/ kShare`, its head in the
// group `% kShare`.
uint own_query(uint i) { return i / 2u * 8u + (unit_lane & 3u) * 2u + (i & 1u); }

// Loads the queries of `heads` heads from `head0` on in `count` neighbouring columns of one sequence. If
// kSharedQueries is set, the caller calls barrier() before any lane reads the queries.
void take_queries(uint column, uint count, uint head0, uint heads) {
  [[EACH]] for (uint n = 0; n < kQueryTiles; n++) {
    uint query = n * 8u + (unit_lane >> 2);
    uint head = head0 + min(query % kShare, heads - 1u);
    uint64_t base = push.q + (uint64_t(column + min(query / kShare, count - 1u)) * kHeads + head) * (kHeadPadded * 4u);
    [[EACH]] for (uint i = 0; i < kEntryGroups; i++) {
      if (kSharedQueries && i % kSubgroups != unit_subgroup) continue;
      uint cell = i * 4u + (unit_lane & 3u);
      uvec4 words = uvec4(0u);
      if (cell < kChunks) {
        vec4 low = Vec4s(base).v[cell * 2u], high = Vec4s(base).v[cell * 2u + 1u];
        words = uvec4(halves_of(low.xy), halves_of(low.zw), halves_of(high.xy), halves_of(high.zw));
      }
      if (kSharedQueries) {
        shared_queries[(n * kEntryGroups + i) * 32u + unit_lane] = words;
      } else {
        queries[kSharedQueries ? 0u : n * kEntryGroups + i] = words;
      }
    }
  }
  [[EACH]] for (uint i = 0; i < kOwn; i++) {
    uint query = own_query(i);
    bool there = query / kShare < count && query % kShare < heads;
    seen[i] = there ? ColumnsRef(push.parameters + 64u).v[column + query / kShare].y + 1u : 0u;
  }
}

void begin_split() {
  [[EACH]] for (uint i = 0; i < kOwn; i++) {
    tops[i] = -1e30;
    totals[i] = 0.0;
  }
  [[EACH]] for (uint i = 0; i < kResultTiles; i++) results[i] = no_sums();
}

// Over the lanes that hold other positions of the same queries.
float largest_of_rows(float value) {
  [[EACH]] for (uint distance = 4; distance < 32u; distance *= 2u) {
    value = max(value, from_lane_float(value, unit_lane ^ distance));
  }
  return value;
}
float sum_of_rows(float value) {
  precise float sum = value;
  [[EACH]] for (uint distance = 4; distance < 32u; distance *= 2u) {
    sum = sum + from_lane_float(sum, unit_lane ^ distance);
  }
  return sum;
}

// The pages of two blocks: of the one that is being computed, and of the next one. A page number is known one block
// before its keys are loaded, so that these do not wait for it.
uint pages[4];
void find_pages(uint block, uint end, uint page_table) {
  uint first = Words(push.pages).v[page_table + min(block, end - 1u) / kPageTokens];
  uint second = Words(push.pages).v[page_table + min(block + kPageTokens, end - 1u) / kPageTokens];
  bool even = (block & kBlockPositions) == 0u;
  pages[0] = even ? first : pages[0];
  pages[1] = even ? second : pages[1];
  pages[2] = even ? pages[2] : first;
  pages[3] = even ? pages[3] : second;
}
// Returns where the page of a position in one of these blocks begins.
uint64_t tile_page(uint position) {
  bool even = (position & kBlockPositions) == 0u, low = (position & kPageTokens) == 0u;
  return page_at(low ? (even ? pages[0] : pages[2]) : (even ? pages[1] : pages[3]));
}

// Stored cells of some tiles of keys, rows `row` and `row + 8` of each. A split's first keys are loaded while the
// queries are being loaded. If there are enough registers (kKeysEarly), each block's keys are loaded while the block
// before is still being computed.
const uint kKeyCells = kKeysAhead * kEntryGroups;
uvec4 low_keys[kKeyCells], high_keys[kKeyCells];

void load_keys(uint first, uint end, uint kv_head) {
  [[EACH]] for (uint m = 0; m < kKeysAhead; m++) {
    uint tile = tile_start(first + m * 16u, end);
    uint64_t head_at = push.keys + tile_page(tile) + kv_head * kHeadBytes;
    uint slot = tile % kPageTokens + (unit_lane >> 2);
    uint64_t at = head_at + slot * kCellBytes;
    [[EACH]] for (uint i = 0; i < kEntryGroups; i++) {
      uint cell = min(i * 4u + (unit_lane & 3u), kChunks - 1u);
      load_cell(at, cell * kPageTokens, key_scale_at(head_at, slot, i), low_keys[m * kEntryGroups + i]);
      load_cell(at, cell * kPageTokens + 8u, key_scale_at(head_at, slot + 8u, i), high_keys[m * kEntryGroups + i]);
    }
  }
}

// [query of the lane][tile of keys][row, row + 8]
const uint kScores = kOwn * kKeyTiles * 2u;

// The first keys must be loading already.
void score_block(uint start, uint end, uint kv_head, out float scores[kScores]) {
  [[EACH]] for (uint first = 0; first < kKeyTiles; first += kKeysAhead) {
    if (first != 0u) load_keys(start + first * 16u, end, kv_head);
    [[EACH]] for (uint m = 0; m < kKeysAhead; m++) {
      SumFragment made[kQueryTiles];
      [[EACH]] for (uint n = 0; n < kQueryTiles; n++) made[n] = no_sums();
      [[EACH]] for (uint i = 0; i < kEntryGroups; i++) {
        f16vec2 low_row[4], high_row[4];
        uvec4 low = halves_of_cell(low_keys[m * kEntryGroups + i]);
        uvec4 high = halves_of_cell(high_keys[m * kEntryGroups + i]);
        [[EACH]] for (uint p = 0; p < 4; p++) {
          low_row[p] = unpackFloat2x16(low[p]);
          high_row[p] = unpackFloat2x16(high[p]);
        }
        [[EACH]] for (uint j = 0; j < 2; j++) {
          WeightFragment keys = weight_fragment(low_row, high_row, j);
          [[EACH]] for (uint n = 0; n < kQueryTiles; n++) {
            made[n] = multiply_add(keys, input_fragment(query_cell(n * kEntryGroups + i), j), made[n]);
          }
        }
      }
      [[EACH]] for (uint i = 0; i < kOwn; i++) {
        [[EACH]] for (uint r = 0; r < 2; r++) {
          scores[(i * kKeyTiles + first + m) * 2u + r] = made[i / 2u][(i & 1u) + r * 2u];
        }
      }
    }
  }
}

// Weights of a block, as words of two halves (row, row + 8): [query of the lane][tile of keys].
const uint kWeightWords = kOwn * kKeyTiles;

void weigh_block(uint start, float scores[kScores], out uint weights[kWeightWords]) {
  uint row = unit_lane >> 2;
  float shrinks[kOwn];
  bool moved = false;
  [[EACH]] for (uint i = 0; i < kOwn; i++) {
    float largest = -1e30;
    [[EACH]] for (uint m = 0; m < kKeyTiles * 2u; m++) {
      if (sees(start + m * 8u + row, seen[i])) largest = max(largest, scores[i * kKeyTiles * 2u + m]);
    }
    float top = max(tops[i], largest_of_rows(largest));
    precise float shrink = exp2(tops[i] - top);
    precise float total = totals[i] * shrink;
    [[EACH]] for (uint m = 0; m < kKeyTiles; m++) {
      f16vec2 pair;
      [[EACH]] for (uint r = 0; r < 2; r++) {
        bool visible = sees(start + m * 16u + r * 8u + row, seen[i]);
        precise float weight = visible ? exp2(scores[(i * kKeyTiles + m) * 2u + r] - top) : 0.0;
        pair[r] = float16_t(weight);
        total = total + float(pair[r]);
      }
      weights[i * kKeyTiles + m] = packFloat2x16(pair);
    }
    totals[i] = total;
    tops[i] = top;
    shrinks[i] = shrink;
    moved = moved || shrink != 1.0;
  }
  if (!any_lane(moved)) return;  // a factor of one changes nothing
  [[EACH]] for (uint i = 0; i < kResultTiles; i++) {
    [[EACH]] for (uint e = 0; e < 4; e++) {
      precise float scaled = results[i][e] * shrinks[i / kValueTiles * 2u + (e & 1u)];
      results[i][e] = scaled;
    }
  }
}

// Returns the lane's part of the weights of 16 positions: those of query `row`, which lanes of rows 2 * q and 2 * q +
// 1 hold.
InputFragment weights_of(uint even, uint odd) {
  uint row = unit_lane >> 2, from = (unit_lane & 3u) * 8u + (row >> 1);
  uint even_early = from_lane(even, from), odd_early = from_lane(odd, from);
  uint even_late = from_lane(even, from + 4u), odd_late = from_lane(odd, from + 4u);
  bool is_odd = (row & 1u) != 0u;
  return input_fragment(uvec4(is_odd ? odd_early : even_early, is_odd ? odd_late : even_late, 0u, 0u), 0u);
}

// Stored cells of the four values of 16 whose weights the lane holds (weights_of()): positions 2 * q, 2 * q + 8,
// 2 * q + 1, 2 * q + 9. A part's cells may have less than all of their words.
const uint kTileCells = 4u * kPartSets;
void load_values(uint first, uint end, uint kv_head, out uvec4 cells[kTileCells]) {
  uint tile = tile_start(first, end), pair = (unit_lane & 3u) * 2u;
  uint64_t head_at = push.values + tile_page(tile) + kv_head * kHeadBytes;
  [[EACH]] for (uint p = 0; p < 4; p++) {
    uint slot = min(tile + pair + (p >> 1) + (p & 1u) * 8u, end - 1u) % kPageTokens;
    uint64_t row_at = head_at + slot * (kHeadPadded * kEntryBytes);
    [[EACH]] for (uint s = 0; s < kPartSets; s++) {
      uint set = s + entry_part * kValueTiles / 4u;
      uint cell = min(set * 8u + (unit_lane >> 2), kChunks - 1u);
      if (kCellWords == 4u) {
        load_cell(row_at, cell, value_scale_at(head_at, slot, cell / (kScaleBlock / 8u)), cells[p * kPartSets + s]);
      } else {
        uint word = entry_part * kValueTiles % 4u;
        [[EACH]] for (uint i = 0; i < kCellWords; i++)
          cells[p * kPartSets + s][i] = Words(row_at).v[cell * 4u + word + i];
      }
    }
  }
}

// Adds the weighted values of a block's tile m.
void add_values(uint m, uint weights[kWeightWords], uvec4 cells[kTileCells]) {
  [[EACH]] for (uint i = 0; i < kTileCells; i++) cells[i] = halves_of_cell(cells[i]);
  InputFragment of_queries[kQueryTiles];
  [[EACH]] for (uint n = 0; n < kQueryTiles; n++) {
    of_queries[n] = weights_of(weights[n * 2u * kKeyTiles + m], weights[(n * 2u + 1u) * kKeyTiles + m]);
  }
  [[EACH]] for (uint i = 0; i < kValueTiles; i++) {
    uint words[4];
    [[EACH]] for (uint p = 0; p < 4; p++) words[p] = cells[p * kPartSets + i / 4u][i & 3u];
    f16vec2 low_row[4], high_row[4];
    [[EACH]] for (uint p = 0; p < 2; p++) {
      low_row[p] = unpackFloat2x16((words[p * 2u] & 0xffffu) | (words[p * 2u + 1u] << 16));
      high_row[p] = unpackFloat2x16((words[p * 2u] >> 16) | (words[p * 2u + 1u] & 0xffff0000u));
      low_row[p + 2u] = high_row[p + 2u] = f16vec2(0.0);
    }
    WeightFragment entries = weight_fragment(low_row, high_row, 0u);
    [[EACH]] for (uint n = 0; n < kQueryTiles; n++) {
      results[n * kValueTiles + i] = multiply_add(entries, of_queries[n], results[n * kValueTiles + i]);
    }
  }
}

// The values of the block's first tiles are loaded before its scores are computed.
const uint kEarlyTiles = kValuesAhead < kKeyTiles ? kValuesAhead : kKeyTiles;
uvec4 early_values[kEarlyTiles > 0u ? kEarlyTiles * kTileCells : 1u];

void load_early_values(uint start, uint end, uint kv_head) {
  uvec4 cells[kTileCells];
  [[EACH]] for (uint m = 0; m < kEarlyTiles; m++) {
    load_values(start + m * 16u, end, kv_head, cells);
    [[EACH]] for (uint i = 0; i < kTileCells; i++) early_values[m * kTileCells + i] = cells[i];
  }
}

// The early values must be loading already, as must the first keys.
void add_block(uint start, uint end, uint page_table, uint kv_head) {
  bool more = start + kBlockPositions < end;
  if (more) find_pages(start + kBlockPositions, end, page_table);
  float scores[kScores];
  uint weights[kWeightWords];
  score_block(start, end, kv_head, scores);
  if (kSoftCap != 0u) {
    [[EACH]] for (uint i = 0; i < kScores; i++) scores[i] = capped_score(scores[i]);
  }
  if (kKeysEarly && more) load_keys(start + kBlockPositions, end, kv_head);
  weigh_block(start, scores, weights);
  uvec4 cells[kTileCells];
  [[EACH]] for (uint m = 0; m < kKeyTiles; m++) {
    if (m < kEarlyTiles) {
      [[EACH]] for (uint i = 0; i < kTileCells; i++) cells[i] = early_values[m * kTileCells + i];
    } else {
      load_values(start + m * 16u, end, kv_head, cells);
    }
    add_values(m, weights, cells);
  }
}

// Begins to load the first keys and the early values of a split.
void load_split(uint start, uint end, uint page_table, uint kv_head) {
  find_pages(start, end, page_table);
  load_keys(start, end, kv_head);
  load_early_values(start, end, kv_head);
}

// Sets tops, totals and results to those of a split of the queries. The split must be loading already (load_split()).
void attend_split(uint start, uint end, uint page_table, uint kv_head) {
  begin_split();
  [[dont_unroll]] for (uint at = start; at < end; at += kBlockPositions) {
    if (at != start) {
      if (!kKeysEarly) load_keys(at, end, kv_head);
      load_early_values(at, end, kv_head);
    }
    add_block(at, end, page_table, kv_head);
  }
  [[EACH]] for (uint i = 0; i < kOwn; i++) totals[i] = sum_of_rows(totals[i]);
}

// Returns the entry of a head that a lane has in element `e` of a tile of results.
uint entry_of_result(uint tile, uint e) {
  tile += entry_part * kValueTiles;
  return ((tile / 4u) * 8u + (unit_lane >> 2)) * 8u + (tile & 3u) * 2u + (e >> 1);
}

// Computes all splits of the queries, and the results.
void attend_whole(uint column, uint count, uint group, uint end, uint page_table) {
  uint kv_head = group / kGroupsOfKv, begin = first_block(end - count + 1u);
  stored_from = first_page(end - count + 1u);
  load_split(begin, end, page_table, kv_head);
  take_queries(column, count, first_head(group), heads_of(group));
  uint sizes[kOwn];
  float all_tops[kOwn];
  precise float all_totals[kOwn];
  precise float all_results[kResultTiles * 4u];
  [[EACH]] for (uint i = 0; i < kOwn; i++) {
    sizes[i] = size_of_splits(seen[i]);
    all_tops[i] = -1e30;
    all_totals[i] = 0.0;
  }
  [[EACH]] for (uint i = 0; i < kResultTiles * 4u; i++) all_results[i] = 0.0;
  begin_split();
  [[dont_unroll]] for (uint at = begin; at < end; at += kBlockPositions) {
    if (at != begin) {
      if (!kKeysEarly) load_keys(at, end, kv_head);
      load_early_values(at, end, kv_head);
    }
    add_block(at, end, page_table, kv_head);
    uint next = at + kBlockPositions;
    bool ends[kOwn], some = false;
    [[EACH]] for (uint i = 0; i < kOwn; i++) {
      ends[i] = (next & (sizes[i] - 1u)) == 0u || next >= end;
      some = some || ends[i];
    }
    if (any_lane(some)) {
      bool folds[kOwn];
      float old_shares[kOwn], new_shares[kOwn];
      [[EACH]] for (uint i = 0; i < kOwn; i++) {
        // A split behind the positions that the query sees does not count. One before them changes nothing.
        folds[i] = ends[i] && (at & ~(sizes[i] - 1u)) < seen[i];
        float maximum = max(all_tops[i], tops[i]);
        precise float old_share = exp2(all_tops[i] - maximum);
        precise float new_share = exp2(tops[i] - maximum);
        precise float scaled = sum_of_rows(totals[i]) * new_share;
        precise float sum = fma(all_totals[i], old_share, scaled);
        if (folds[i]) {
          all_totals[i] = sum;
          all_tops[i] = maximum;
        }
        old_shares[i] = old_share;
        new_shares[i] = new_share;
        if (ends[i]) {
          tops[i] = -1e30;
          totals[i] = 0.0;
        }
      }
      [[EACH]] for (uint t = 0; t < kResultTiles; t++) {
        [[EACH]] for (uint e = 0; e < 4; e++) {
          uint i = t / kValueTiles * 2u + (e & 1u);
          precise float part = results[t][e] * new_shares[i];
          precise float folded = fma(all_results[t * 4u + e], old_shares[i], part);
          if (folds[i]) all_results[t * 4u + e] = folded;
          results[t][e] = ends[i] ? 0.0 : results[t][e];
        }
      }
    }
  }
  float sums[kOwn];
  [[EACH]] for (uint i = 0; i < kOwn; i++) {
    uint head = first_head(group) + min(own_query(i) % kShare, heads_of(group) - 1u);
    sums[i] = with_sink(push.sinks, head, all_tops[i], all_totals[i]);
  }
  [[EACH]] for (uint t = 0; t < kResultTiles; t++) {
    [[EACH]] for (uint e = 0; e < 4; e++) {
      uint i = t / kValueTiles * 2u + (e & 1u), query = own_query(i), entry = entry_of_result(t % kValueTiles, e);
      precise float value = all_results[t * 4u + e] / sums[i];
      if (seen[i] != 0u && entry < kHead) {
        store_input(push.out_address, column + query / kShare, push.out_stride,
                    (first_head(group) + query % kShare) * kHead + entry, value, kOutForm);
      }
    }
  }
  if (group == 0u) {
    for (uint c = 0; c < count; c++) {
      for (uint pad = kHeads * kHead + unit_lane; pad < push.padded_width; pad += kLanes) {
        store_input(push.out_address, column + c, push.out_stride, pad, 0.0, kOutForm);
      }
    }
  }
}
