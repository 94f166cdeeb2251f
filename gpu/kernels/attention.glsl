// Attention of one column's query heads over the pages of its sequence, with a running softmax over blocks of as many
// positions as a subgroup has lanes. Positions are divided into splits (split_size). Each split's result is combined
// into the column's, in rising order and by the same operations: by the subgroup that computed all splits; by the
// workgroup whose subgroups each computed one; by the last workgroup that finished some (attention_spread.glsl); or
// by attention_combine.comp.
//
// Scores are exponents of two: q was scaled by log2(e) / sqrt(head size).
//
// The includer has `push`, kInvocations, kSubgroups, and `shared float room[]`, where attend_together() needs room
// for a partial result for each subgroup. It also has SEVERAL_ROUNDS, which says whether there may be more splits
// than the workgroup has subgroups. Values are loaded together with the keys as long as there are registers.
const uint kBlockWords = kLanes * kLaneWords;
const uint kKeptWords = kRowsMapping == 0u && kBlockWords <= 64u ? kBlockWords : 1u;
const bool kKeepValues = kKeptWords > 1u;

// Whether each block of positions lies within one page. A block has as many positions as a subgroup has lanes, and it
// begins at a multiple of that number.
const bool kOnePage = kPageTokens % kLanes == 0u;

float maxima[kHeadsTogether];
float sums[kHeadsTogether];  // a lane's share
float results[kHeadsTogether * kLaneEntries];

float scores[kHeadsTogether];  // scores of the lane's position in a block

// About the column (attention_state.glsl: Sight).
uint hidden_positions = 0u;
bool sees(uint at, uint end) { return at < end && (kWindow == 0u || at >= hidden_positions); }

// Returns sixteen bytes. A CPU's driver loads eight at a time, in a loop over the lanes.
uvec4 key_quad(uint64_t keys, uint index) {
  if (kRowsMapping != 0u) return uvec4(long_at(keys, index * 2u), long_at(keys, index * 2u + 1u));
  return Quads(keys).v[index];
}

// Adds entries 8 * chunk ... of q times the lane's key to the scores. `head_at` is the KV head's part of the page.
void score_chunk(uint chunk, uint64_t keys, uint64_t head_at, uint slot, uint64_t q_base) {
  uint lane = gl_SubgroupInvocationID;
  float k[8];
  if (kKvFormat == kKvQ8) {
    uvec2 words = Pairs(keys).v[chunk * kPageTokens];
    float scale = scale_at(key_scale_at(head_at, slot, chunk / (kScaleBlock / 8u)));
    vec4 a = bytes_of(words.x), b = bytes_of(words.y);
    [[unroll]] for (uint i = 0; i < 4; i++) {
      precise float first = a[i] * scale, second = b[i] * scale;
      k[i] = first;
      k[i + 4u] = second;
    }
  } else if (kKvFormat == kKvFloat) {
    uvec4 a = key_quad(keys, chunk * 2u * kPageTokens);
    uvec4 b = key_quad(keys, (chunk * 2u + 1u) * kPageTokens);
    [[unroll]] for (uint i = 0; i < 4; i++) {
      k[i] = uintBitsToFloat(a[i]);
      k[i + 4u] = uintBitsToFloat(b[i]);
    }
  } else {
    uvec4 a = key_quad(keys, chunk * kPageTokens);
    [[unroll]] for (uint i = 0; i < 4; i++) {
      vec2 two = unpackHalf2x16(a[i]);
      k[i * 2u] = two.x;
      k[i * 2u + 1u] = two.y;
    }
  }
  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
    float q[8];
    uint64_t q_at = q_base + (h * kHeadPadded + chunk * 8u) * 4u;
    if (kRowsMapping != 0u) {
      // A load costs a CPU's driver a loop over the lanes, and a broadcast to four lanes nearly nothing.
      vec2 mine = uintBitsToFloat(long_at(q_at, lane & 3u));
      [[unroll]] for (uint i = 0; i < 4; i++) {
        q[i * 2u] = subgroupQuadBroadcast(mine.x, i);
        q[i * 2u + 1u] = subgroupQuadBroadcast(mine.y, i);
      }
    } else {
      vec4 a = Vec4s(q_at).v[0], b = Vec4s(q_at).v[1];
      [[unroll]] for (uint i = 0; i < 4; i++) {
        q[i] = a[i];
        q[i + 4u] = b[i];
      }
    }
    precise float score = scores[h];
    [[unroll]] for (uint i = 0; i < 8; i++) score = fma(q[i], k[i], score);
    scores[h] = score;
  }
}

uint64_t value_head(uint page, uint kv_head) {
  return push.values + page_at(page) + kv_head * kHeadBytes;
}
uint64_t value_row(uint page, uint slot, uint kv_head) {
  return value_head(page, kv_head) + slot * (kValueEntries == 0u ? kHeadPadded * kEntryBytes : kCellBytes);
}
// Returns a word of the row. If values are entries of their keys, the row has the layout of keys.
uint value_word(uint64_t row, uint word) {
  const uint kCellWords = kCellBytes / 4u;
  if (kValueEntries != 0u) word = word / kCellWords * (kPageTokens * kCellWords) + word % kCellWords;
  return Words(row).v[word];
}

// Returns the weight of the lane's position for the h-th head, from its score, and scales the split's results so far
// to the block's maximum. `visible`: the column sees the position.
float weigh(uint h, bool visible) {
  float score = capped_score(scores[h]);
  float maximum = max(maxima[h], subgroupMax(visible ? score : -1e30));
  precise float shrink = exp2(maxima[h] - maximum);
  precise float weight = visible ? exp2(score - maximum) : 0.0;
  precise float sum = fma(sums[h], shrink, weight);
  sums[h] = sum;
  [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
    precise float result = results[h * kLaneEntries + i] * shrink;
    results[h * kLaneEntries + i] = result;
  }
  maxima[h] = maximum;
  return weight;
}

// The weights of a block's positions for one head, to be read in any lane.
struct Weights {
  float own, other;  // of the lane's position, and of the one four lanes away (kRowsMapping)
};
Weights weights_of(float own) {
  return Weights(own, kRowsMapping != 0u && kLanes == 8u ? subgroupShuffleXor(own, 4u) : 0.0);
}
float weight_at(Weights weights, uint j) {
  if (kRowsMapping == 0u || kLanes != 8u) return subgroupBroadcast(weights.own, j);
  float same = subgroupQuadBroadcast(weights.own, j & 3u), across = subgroupQuadBroadcast(weights.other, j & 3u);
  return (gl_SubgroupInvocationID < 4u) == (j < 4u) ? same : across;
}

// Adds the positions [start, end) to the results. They are at most one block; each lane takes one
// position.
void attend_block(uint start, uint end, uint page_table, uint kv_head, uint64_t q_base) {
  uint lane = gl_SubgroupInvocationID;
  uint position = min(start + lane, end - 1u);
  bool visible = sees(start + lane, end);
  uint page = Words(push.pages).v[page_table + position / kPageTokens];
  uint page_slot = position % kPageTokens;
  uint first_slot = start % kPageTokens, last_slot = first_slot + (end - 1u - start);
  uint64_t head_at = push.keys + page_at(page) + kv_head * kHeadBytes;
  uint64_t keys = head_at + page_slot * kCellBytes;

  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) scores[h] = 0.0;
  // On a GPU all keys and values are loaded before the first is used.
  uint words[kKeptWords];
  if (kRowsMapping != 0u) {
    for (uint chunk = 0; chunk < kHeadPadded / 8u; chunk++) score_chunk(chunk, keys, head_at, page_slot, q_base);
  } else {
    if (kKeepValues) {
      [[unroll]] for (uint j = 0; j < kLanes; j++) {
        uint64_t row = kOnePage ? value_row(page, min(first_slot + j, last_slot), kv_head)
                                : value_row(subgroupBroadcast(page, j), subgroupBroadcast(page_slot, j), kv_head);
        [[unroll]] for (uint w = 0; w < kLaneWords; w++) {
          words[j * kLaneWords + w] = value_word(row, min(w * kLanes + lane, kRowWords - 1u));
        }
      }
    }
    [[unroll]] for (uint chunk = 0; chunk < kHeadPadded / 8u; chunk++)
      score_chunk(chunk, keys, head_at, page_slot, q_base);
  }

  Weights weights[kHeadsTogether];
  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) weights[h] = weights_of(weigh(h, visible));

  [[unroll]] for (uint j = 0; j < kLanes; j++) {
    uint64_t row = kOnePage ? value_row(page, min(first_slot + j, last_slot), kv_head)
                            : value_row(subgroupBroadcast(page, j), subgroupBroadcast(page_slot, j), kv_head);
    precise float weight[kHeadsTogether];
    [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) weight[h] = weight_at(weights[h], j);
    [[unroll]] for (uint w = 0; w < kLaneWords; w++) {
      uint word;
      if (kKeepValues) {
        word = words[j * kLaneWords + w];
      } else {
        word = value_word(row, min(w * kLanes + lane, kRowWords - 1u));
      }
      if (kWordEntries == 4u) {
        uint block = min(w * kLanes + lane, kRowWords - 1u) / (kScaleBlock / 4u);
        uint64_t head_of_row = value_head(subgroupBroadcast(page, j), kv_head);
        uint slot = subgroupBroadcast(page_slot, j);
        float scale = scale_at(kValueEntries == 0u ? value_scale_at(head_of_row, slot, block)
                                                   : key_scale_at(head_of_row, slot, block));
        vec4 four = bytes_of(word);
        [[unroll]] for (uint i = 0; i < 4; i++) {
          precise float value = four[i] * scale;
          [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
            uint at = h * kLaneEntries + w * 4u + i;
            precise float a = fma(weight[h], value, results[at]);
            results[at] = a;
          }
        }
      } else if (kWordEntries == 2u) {
        vec2 two = unpackHalf2x16(word);
        [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
          uint at = h * kLaneEntries + w * 2u;
          precise float a = fma(weight[h], two.x, results[at]);
          precise float b = fma(weight[h], two.y, results[at + 1u]);
          results[at] = a;
          results[at + 1u] = b;
        }
      } else {
        [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
          uint at = h * kLaneEntries + w;
          precise float a = fma(weight[h], uintBitsToFloat(word), results[at]);
          results[at] = a;
        }
      }
    }
  }
}

float sum_over_lanes(float value) {
  precise float sum = value;
  [[unroll]] for (uint distance = kLanes / 2u; distance > 0u; distance /= 2u) {
    sum = sum + subgroupShuffleXor(sum, distance);
  }
  return sum;
}

void attend_split(uint start, uint end, uint page_table, uint kv_head, uint64_t q_base) {
  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) {
    maxima[h] = -1e30;
    sums[h] = 0.0;
  }
  [[unroll]] for (uint i = 0; i < kHeadsTogether * kLaneEntries; i++) results[i] = 0.0;
  for (uint at = start; at < end; at += kLanes) attend_block(at, end, page_table, kv_head, q_base);
  [[unroll]] for (uint h = 0; h < kHeadsTogether; h++) sums[h] = sum_over_lanes(sums[h]);
}

#ifndef BULKHEAD_ROWS
const uint kItems = (kHeadPadded + kInvocations - 1u) / kInvocations;  // entries that an invocation finishes

// Computes a head's whole result with a workgroup, which computes as many splits at a time as it has subgroups.
void attend_together(uint column, uint head, uint visible, uint page_table) {
  uint lane = gl_SubgroupInvocationID;
  uint size = split_size(visible);
  uint kv_head = head / (kHeads / kKvHeads);
  uint64_t q_base = push.q + (uint64_t(column) * kHeads + head) * (kHeadPadded * 4u);
  float all_maximum = -1e30;
  precise float all_sum = 0.0;
  precise float all_results[kItems];
  [[unroll]] for (uint i = 0; i < kItems; i++) all_results[i] = 0.0;
  bool more = true;
  for (uint first = 0; more; first += size * kSubgroups) {
    uint start = first + gl_SubgroupID * size;
    if (start < visible) {
      attend_split(start, min(start + size, visible), page_table, kv_head, q_base);
      uint base = gl_SubgroupID * kPartialFloats;
      [[unroll]] for (uint i = 0; i < kLaneEntries; i++) {
        uint entry = entry_of(lane, i);
        if (entry < kHeadPadded) room[base + entry] = results[i];
      }
      if (lane == 0u) {
        room[base + kHeadPadded] = maxima[0];
        room[base + kHeadPadded + 1u] = sums[0];
      }
    }
    barrier();
    more = SEVERAL_ROUNDS && first + size * kSubgroups < visible;
    float maximum_before = all_maximum;
    precise float sum_before = all_sum;
    [[unroll]] for (uint i = 0; i < kItems; i++) {
      uint entry = min(i * kInvocations + gl_SubgroupID * kLanes + lane, kHeadPadded - 1u);
      all_maximum = maximum_before;
      all_sum = sum_before;
      for (uint base = 0, at = first; base < kSubgroups * kPartialFloats && at < visible;
           at += size, base += kPartialFloats) {
        float split_maximum = room[base + kHeadPadded];
        float maximum = max(all_maximum, split_maximum);
        precise float old_share = exp2(all_maximum - maximum);
        precise float new_share = exp2(split_maximum - maximum);
        precise float scaled = room[base + kHeadPadded + 1u] * new_share;
        precise float sum = fma(all_sum, old_share, scaled);
        precise float part = room[base + entry] * new_share;
        precise float folded = fma(all_results[i], old_share, part);
        all_sum = sum;
        all_results[i] = folded;
        all_maximum = maximum;
      }
    }
    if (more) barrier();
  }
  float weights = with_sink(push.sinks, head, all_maximum, all_sum);
  [[unroll]] for (uint i = 0; i < kItems; i++) {
    uint entry = i * kInvocations + gl_SubgroupID * kLanes + lane;
    precise float value = all_results[i] / weights;
    store_head(column, head, entry, value);
  }
  pad_heads(column, head, 1u, gl_SubgroupID * kLanes + lane, kInvocations);
}
#endif
