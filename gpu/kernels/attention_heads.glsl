// Attention of several query heads that share a KV head, by one subgroup. It has the same operations in the same
// order as attention.glsl, and so the same bits, but loads each key and value once for all of these heads. It works
// on two blocks at a time:
//   scores  a lane takes a position of each block, and all heads' entries, which are in shared memory
//   values  a lane takes eight entries of a row for some of the heads: if a row has fewer eights than the subgroup has
//           lanes, parts of the subgroup take different heads. Lanes exchange weights through shared memory.
//
// The includer has everything that attention.glsl needs, attention_sizes.glsl, kRoomsOfQ, and `room` of kSubgroups *
// kRoomOfWeights.
shared vec4 shared_q[kShare > 1u ? kRoomsOfQ * kQQuads : 1u];
shared vec4 wide_weights[kShare > 1u && kWideWeights ? kSubgroups * kWeightRows * kWeightQuads : 1u];

// The state of a split. A lane has its own sums until the split's end, and results[chunk][head of the part][entry].
float share_maxima[kShare];
float share_sums[kShare];
float share_results[kShareResults];

// Copies q of the group's heads into a room. `count` invocations share the work, and this is the `index`-th of them.
void keep_q(uint q_room, uint column, uint group, uint index, uint count) {
  uint64_t base = push.q + (uint64_t(column) * kHeads + first_head(group)) * (kHeadPadded * 4u);
  uint there = heads_of(group) * (kHeadPadded / 4u);
  for (uint at = index; at < kQQuads; at += count) {
    shared_q[q_room * kQQuads + at] = Vec4s(base).v[min(at, there - 1u)];
  }
}

// Eight entries of a key or a value, as stored, and as floats.
struct Raw {
  uvec4 words, more;  // more: only for floats
  float scale;
};
void floats_of(Raw raw, out float made[8]) {
  if (kKvFormat == kKvQ8) {
    vec4 a = bytes_of(raw.words.x), b = bytes_of(raw.words.y);
    [[unroll]] for (uint i = 0; i < 4; i++) {
      precise float first = a[i] * raw.scale, second = b[i] * raw.scale;
      made[i] = first;
      made[i + 4u] = second;
    }
  } else if (kKvFormat == kKvFloat) {
    [[unroll]] for (uint i = 0; i < 4; i++) {
      made[i] = uintBitsToFloat(raw.words[i]);
      made[i + 4u] = uintBitsToFloat(raw.more[i]);
    }
  } else {
    [[unroll]] for (uint i = 0; i < 4; i++) {
      vec2 two = unpackHalf2x16(raw.words[i]);
      made[i * 2u] = two.x;
      made[i * 2u + 1u] = two.y;
    }
  }
}

Raw key_chunk(uint64_t head_at, uint slot, uint chunk) {
  Raw raw;
  raw.words = raw.more = uvec4(0u);
  raw.scale = 1.0;
  uint64_t cells = head_at + slot * kCellBytes;
  if (kKvFormat == kKvQ8) {
    raw.words.xy = Pairs(cells).v[chunk * kPageTokens];
    raw.scale = scale_at(key_scale_at(head_at, slot, chunk / (kScaleBlock / 8u)));
  } else {
    raw.words = Quads(cells).v[chunk * kRawQuads * kPageTokens];
    if (kRawQuads > 1u) raw.more = Quads(cells).v[(chunk * kRawQuads + 1u) * kPageTokens];
  }
  return raw;
}

Raw value_chunk(uint64_t head_at, uint slot, uint chunk) {
  if (kValueEntries != 0u) return key_chunk(head_at, slot, chunk);
  Raw raw;
  raw.words = raw.more = uvec4(0u);
  raw.scale = 1.0;
  uint64_t at = head_at + (slot * kHeadPadded + chunk * 8u) * kEntryBytes;
  if (kKvFormat == kKvQ8) {
    raw.words.xy = Pairs(at).v[0];
    raw.scale = scale_at(value_scale_at(head_at, slot, chunk / (kScaleBlock / 8u)));
  } else {
    raw.words = Quads(at).v[0];
    if (kRawQuads > 1u) raw.more = Quads(at).v[1];
  }
  return raw;
}

// The scores of the lane's position in each of two blocks: [head][block].
void score_blocks(uint64_t head_at[2], uint slot[2], uint q_room, out float made[kShareScores]) {
  precise float sums_of[kShareScores];
  [[unroll]] for (uint i = 0; i < kShareScores; i++) sums_of[i] = 0.0;
  for (uint first = 0; first < kChunks; first += kAhead) {
    Raw raw[kAhead * 2u];
    [[unroll]] for (uint c = 0; c < kAhead; c++) {
      [[unroll]] for (uint b = 0; b < 2; b++)
        raw[c * 2u + b] = key_chunk(head_at[b], slot[b], min(first + c, kChunks - 1u));
    }
    [[unroll]] for (uint c = 0; c < kAhead; c++) {
      uint chunk = first + c;
      if (chunk < kChunks) {
        float k[2][8];
        [[unroll]] for (uint b = 0; b < 2; b++) floats_of(raw[c * 2u + b], k[b]);
        [[unroll]] for (uint h = 0; h < kShare; h++) {
          uint at = q_room * kQQuads + h * (kHeadPadded / 4u) + chunk * 2u;
          vec4 low = shared_q[at], high = shared_q[at + 1u];
          [[unroll]] for (uint e = 0; e < 8; e++) {
            float q = e < 4u ? low[e & 3u] : high[e & 3u];
            [[unroll]] for (uint b = 0; b < 2; b++) {
              precise float score = fma(q, k[b][e], sums_of[h * 2u + b]);
              sums_of[h * 2u + b] = score;
            }
          }
        }
      }
    }
  }
  [[unroll]] for (uint i = 0; i < kShareScores; i++) made[i] = sums_of[i];
}

// Loads the next rows of a block of values; the last visible position is loaded in place of those behind it.
void load_rows(uint start, uint end, uint page, uint kv_head, uint row, out Raw raw[kRowRaws]) {
  uint lane = gl_SubgroupInvocationID;
  [[unroll]] for (uint i = 0; i < kAhead; i++) {
    // A block that has no more positions than a page lies within one page.
    uint page_of_row = kLanes <= kPageTokens ? page : subgroupShuffle(page, row + i);
    uint64_t head_at = push.values + page_at(page_of_row) + kv_head * kHeadBytes;
    uint slot = min(start + row + i, end - 1u) % kPageTokens;
    [[unroll]] for (uint c = 0; c < kLaneChunks; c++) {
      raw[i * kLaneChunks + c] = value_chunk(head_at, slot, (c * kLanes + lane) % kChunks);
    }
  }
}

void write_weights(uint row, float of_heads[kShare]) {
  uint at = gl_SubgroupID * kWeightRows + row;
  if (kWideWeights) {
    vec4 quads[kWeightQuads];
    [[unroll]] for (uint i = 0; i < kWeightQuads; i++) quads[i] = vec4(0.0);
    [[unroll]] for (uint h = 0; h < kShare; h++) {
      quads[h / kPartHeads * kPartQuads + h % kPartHeads / 4u][h % kPartHeads & 3u] = of_heads[h];
    }
    [[unroll]] for (uint i = 0; i < kWeightQuads; i++) wide_weights[at * kWeightQuads + i] = quads[i];
  } else {
    [[unroll]] for (uint h = 0; h < kShare; h++) room[at * kWeightFloats + h] = of_heads[h];
  }
}
void read_weights(uint row, uint part, out float of_part[kPartHeads]) {
  uint at = gl_SubgroupID * kWeightRows + row;
  if (kWideWeights) {
    [[unroll]] for (uint i = 0; i < kPartQuads; i++) {
      vec4 quad = wide_weights[at * kWeightQuads + part * kPartQuads + i];
      [[unroll]] for (uint e = 0; e < 4; e++) {
        if (i * 4u + e < kPartHeads) of_part[i * 4u + e] = quad[e];
      }
    }
  } else {
    [[unroll]] for (uint h = 0; h < kPartHeads; h++) of_part[h] = room[at * kWeightFloats + part * kPartHeads + h];
  }
}

// Lanes beyond the last part repeat that part's work.
uint part_of_lane() { return min(gl_SubgroupInvocationID / kChunks, kPartsUsed - 1u); }
bool lane_counts() { return kParts == 1u || gl_SubgroupInvocationID / kChunks < kPartsUsed; }

// Adds one of the two blocks: weights and sums of its positions, then its values.
void add_block(uint b, float scores_of[kShareScores], uint start, uint end, uint page, uint kv_head,
               Raw raw[kRowRaws]) {
  uint lane = gl_SubgroupInvocationID;
  bool visible = sees(start + lane, end);
  float weights[kShare], shrinks[kShare];
  [[unroll]] for (uint h = 0; h < kShare; h++) {
    float score = capped_score(b == 0u ? scores_of[h * 2u] : scores_of[h * 2u + 1u]);
    float maximum = max(share_maxima[h], subgroupMax(visible ? score : -1e30));
    precise float shrink = exp2(share_maxima[h] - maximum);
    precise float weight = visible ? exp2(score - maximum) : 0.0;
    precise float sum = fma(share_sums[h], shrink, weight);
    share_sums[h] = sum;
    share_maxima[h] = maximum;
    weights[h] = weight;
    shrinks[h] = shrink;
  }
  write_weights(lane, weights);
  if (lane == 0u) write_weights(kLanes, shrinks);
  subgroupMemoryBarrierShared();
  subgroupBarrier();
  uint part = part_of_lane();
  float of_part[kPartHeads];
  read_weights(kLanes, part, of_part);
  [[unroll]] for (uint i = 0; i < kShareResults; i++) {
    precise float result = share_results[i] * of_part[i / 8u % kPartHeads];
    share_results[i] = result;
  }
  for (uint row = 0; row < kLanes; row += kAhead) {
    Raw next[kRowRaws];
    bool more = row + kAhead < kLanes;
    if (more) load_rows(start, end, page, kv_head, row + kAhead, next);
    [[unroll]] for (uint i = 0; i < kAhead; i++) {
      read_weights(row + i, part, of_part);
      [[unroll]] for (uint c = 0; c < kLaneChunks; c++) {
        float v[8];
        floats_of(raw[i * kLaneChunks + c], v);
        [[unroll]] for (uint h = 0; h < kPartHeads; h++) {
          [[unroll]] for (uint e = 0; e < 8; e++) {
            uint at = (c * kPartHeads + h) * 8u + e;
            precise float result = fma(of_part[h], v[e], share_results[at]);
            share_results[at] = result;
          }
        }
      }
    }
    if (more) {
      [[unroll]] for (uint i = 0; i < kRowRaws; i++) raw[i] = next[i];
    }
  }
  // Must come before the next weights are written.
  subgroupMemoryBarrierShared();
  subgroupBarrier();
}

// For a whole subgroup; q is in its room.
void attend_heads(uint start, uint end, uint page_table, uint kv_head, uint q_room) {
  uint lane = gl_SubgroupInvocationID;
  [[unroll]] for (uint h = 0; h < kShare; h++) {
    share_maxima[h] = -1e30;
    share_sums[h] = 0.0;
  }
  [[unroll]] for (uint i = 0; i < kShareResults; i++) share_results[i] = 0.0;
  for (uint at = start; at < end; at += 2u * kLanes) {
    uint pages[2], slots[2];
    uint64_t heads_at[2];
    [[unroll]] for (uint b = 0; b < 2; b++) {
      uint position = min(at + b * kLanes + lane, end - 1u);
      pages[b] = Words(push.pages).v[page_table + position / kPageTokens];
      slots[b] = position % kPageTokens;
      heads_at[b] = push.keys + page_at(pages[b]) + kv_head * kHeadBytes;
    }
    float scores_of[kShareScores];
    score_blocks(heads_at, slots, q_room, scores_of);
    [[unroll]] for (uint b = 0; b < 2; b++) {
      uint first = at + b * kLanes;
      if (first < end) {
        Raw raw[kRowRaws];
        load_rows(first, end, pages[b], kv_head, 0u, raw);
        add_block(b, scores_of, first, end, pages[b], kv_head, raw);
      }
    }
  }
  [[unroll]] for (uint h = 0; h < kShare; h++) share_sums[h] = sum_over_lanes(share_sums[h]);
}

// Computes all splits of a column with one subgroup, and the result.
void attend_heads_whole(uint column, uint group, uint visible, uint page_table) {
  uint lane = gl_SubgroupInvocationID;
  uint size = split_size(visible);
  uint part = part_of_lane();
  uint kv_head = group / kGroupsOfKv;
  uint q_room = gl_SubgroupID;
  keep_q(q_room, column, group, lane, kLanes);
  subgroupMemoryBarrierShared();
  subgroupBarrier();
  float all_maxima[kShare];
  precise float all_sums[kShare];
  precise float all_results[kShareResults];
  [[unroll]] for (uint h = 0; h < kShare; h++) {
    all_maxima[h] = -1e30;
    all_sums[h] = 0.0;
  }
  [[unroll]] for (uint i = 0; i < kShareResults; i++) all_results[i] = 0.0;
  for (uint start = 0; start < visible; start += size) {
    attend_heads(start, min(start + size, visible), page_table, kv_head, q_room);
    float old_shares[kShare], new_shares[kShare];
    [[unroll]] for (uint h = 0; h < kShare; h++) {
      float maximum = max(all_maxima[h], share_maxima[h]);
      precise float old_share = exp2(all_maxima[h] - maximum);
      precise float new_share = exp2(share_maxima[h] - maximum);
      precise float scaled = share_sums[h] * new_share;
      precise float sum = fma(all_sums[h], old_share, scaled);
      all_sums[h] = sum;
      all_maxima[h] = maximum;
      old_shares[h] = old_share;
      new_shares[h] = new_share;
    }
    if (lane == 0u) {
      write_weights(0u, old_shares);
      write_weights(1u, new_shares);
    }
    subgroupMemoryBarrierShared();
    subgroupBarrier();
    float old_of_part[kPartHeads], new_of_part[kPartHeads];
    read_weights(0u, part, old_of_part);
    read_weights(1u, part, new_of_part);
    [[unroll]] for (uint i = 0; i < kShareResults; i++) {
      precise float mine = share_results[i] * new_of_part[i / 8u % kPartHeads];
      precise float result = fma(all_results[i], old_of_part[i / 8u % kPartHeads], mine);
      all_results[i] = result;
    }
    subgroupMemoryBarrierShared();
    subgroupBarrier();
  }
  float totals[kShare], of_part[kPartHeads];
  [[unroll]] for (uint h = 0; h < kShare; h++) {
    uint head = min(first_head(group) + h, kHeads - 1u);
    totals[h] = with_sink(push.sinks, head, all_maxima[h], all_sums[h]);
  }
  if (lane == 0u) write_weights(0u, totals);
  subgroupMemoryBarrierShared();
  subgroupBarrier();
  read_weights(0u, part, of_part);
  [[unroll]] for (uint i = 0; i < kShareResults; i++) {
    uint h = part * kPartHeads + i / 8u % kPartHeads;
    uint entry = (i / (8u * kPartHeads) * kLanes + lane) % kChunks * 8u + i % 8u;
    bool there = lane_counts() && (kLaneChunks == 1u || i / (8u * kPartHeads) * kLanes + lane < kChunks);
    precise float value = all_results[i] / of_part[i / 8u % kPartHeads];
    if (there && h < heads_of(group)) store_head(column, first_head(group) + h, entry, value);
  }
  pad_heads(column, first_head(group), heads_of(group), lane, kLanes);
}

// What attention_spread.glsl needs of a subgroup: it loads q of a column's group of heads, and computes one split
// with its partial results.
#define unit_subgroup gl_SubgroupID
#include "attention_partials.glsl"
void take_share(uint column, uint columns, uint group) {
  if (kShare == 1u) return;
  keep_q(0u, column, group, gl_LocalInvocationIndex, kInvocations);
  barrier();
}
void attend_share(uint column, uint group, uint start, uint end, uint page_table) {
  uint kv_head = group / kGroupsOfKv;
  if (kShare > 1u) {
    attend_heads(start, end, page_table, kv_head, 0u);
  } else {
    attend_split(start, end, page_table, kv_head,
                 push.q + (uint64_t(column) * kHeads + first_head(group)) * (kHeadPadded * 4u));
  }
}
void leave_partial(uint64_t base, uint columns, uint heads, uint split) {
  uint lane = gl_SubgroupInvocationID;
  if (kShare == 1u) {
    PartialFloatRef partial = PartialFloatRef(partial_at(base, 0u, split));
    [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
      uint entry = entry_of(lane, i);
      if (entry < kHeadPadded) partial.v[entry] = results[i];
    }
    if (lane == 0u) PartialRef(partial_at(base, 0u, split)).v[kHeadQuads] = vec4(maxima[0], sums[0], 0.0, 0.0);
    return;
  }
  uint part = part_of_lane();
  [[unroll]] for (uint c = 0; c < kLaneChunks; c++) {
    [[unroll]] for (uint i = 0; i < kPartHeads; i++) {
      uint h = part * kPartHeads + i, chunk = c * kLanes + lane % kChunks, from = (c * kPartHeads + i) * 8u;
      if (kLaneChunks > 1u) chunk = c * kLanes + lane;
      if (lane_counts() && h < heads && chunk < kChunks) {
        PartialRef partial = PartialRef(partial_at(base, h, split));
        partial.v[chunk * 2u] = vec4(share_results[from], share_results[from + 1u], share_results[from + 2u],
                                     share_results[from + 3u]);
        partial.v[chunk * 2u + 1u] = vec4(share_results[from + 4u], share_results[from + 5u], share_results[from + 6u],
                                          share_results[from + 7u]);
      }
    }
  }
  if (lane == 0u) {
    [[unroll]] for (uint h = 0; h < kShare; h++) {
      if (h < heads)
        PartialRef(partial_at(base, h, split)).v[kHeadQuads] = vec4(share_maxima[h], share_sums[h], 0.0, 0.0);
    }
  }
}
