// One draw for each output that asks for it, as worker/engine/sampler.hpp defines temperature, top-k, top-p and
// min-p. The token replaces the greedy choice in the results. A workgroup handles one output; it runs after
// greedy.comp.
//
// Weights are exp((logit - best) / temperature), by the CPU sampler's own polynomial and so with the same bits, and
// then integers in units of 2^-40. Integers give the same sum in any order, so nothing here depends on how the work
// is divided. The CPU's sums are rounded, so the two can differ if a draw or a border falls within about 1e-6 of a
// token's edge.
//
// Without top-k: a histogram of weights by distance to the best finds the bucket in which top-p ends. Its tokens, in
// order, give the last one that is included. Then chunks are searched in order of ids, and the tokens of the drawn
// chunk. With top-k the histogram counts tokens, and all tokens down to the bucket are sorted. A bucket with too many
// tokens to sort (equal logits, extreme temperatures) is searched bit by bit instead.
#version 460
#include "common.glsl"
#include "sampling.glsl"

shared uint64_t chunk_sums[kMostChunks];

uint64_t drawn(uint64_t total, uvec4 fractions) {
  return times(total, fractions.y) + (times(total, fractions.z) >> 21);
}

uint draw_from_best(uint64_t partials, uint top_k, uvec4 fractions) {
  uint kept = sort_best(partials, top_k, false);
  if (lane != 0u) return 0u;
  uint64_t whole = 0ul;
  for (uint i = 0u; i < kept; i++) whole += weight_of(value_of(sorted_keys[i]));
  uint64_t total = whole;
  if (fractions.x != kNoToken) {
    uint64_t target = times(whole, fractions.x);
    total = 0ul;
    uint taken = 0u;
    while (taken < kept && total < target) total += weight_of(value_of(sorted_keys[taken++]));
    kept = taken;
  }
  while (kept > 1u && distance_of(value_of(sorted_keys[kept - 1u])) < least)
    total -= weight_of(value_of(sorted_keys[--kept]));
  uint64_t left = drawn(total, fractions);
  for (uint i = 0u; i < kept; i++) {
    uint64_t weight = weight_of(value_of(sorted_keys[i]));
    if (left < weight) return sorted_ids[i];
    left -= weight;
  }
  return sorted_ids[0];
}

// Writes where top-p ends to answer_key and answer_id.
void find_last(uint64_t partials, uint top_p) {
  uint64_t target = find_bucket(0ul, top_p, false);
  bool fits = found_bucket < kBuckets;
  if (fits) {
    gather(partials, found_bucket, found_bucket, false);
    fits = found_count <= kMost;
  }
  if (!fits) {
    barrier();
    search(partials, target, false);
    return;
  }
  sort_found();
  if (lane == 0u) {
    uint64_t sum = answer_sum;
    uint i = 0u;
    while (i < found_count) {
      sum += weight_of(value_of(sorted_keys[i]));
      if (sum >= target) break;
      i++;
    }
    i = min(i, found_count - 1u);
    answer_key = sorted_keys[i];
    answer_id = sorted_ids[i];
  }
  barrier();
}

uint64_t kept_weight(uint token, uint key, uint id) {
  float logit = logit_of(token);
  bool in_mass = !better(key, id, key_of(logit), token);
  return in_mass && distance_of(logit) >= least ? weight_of(logit) : 0ul;
}

uint draw_from_all(uint64_t partials, uint mode, uvec4 fractions, uint fallback) {
  if (lane == 0u) {
    answer_key = 0u;
    answer_id = kNoToken;
  }
  barrier();
  if (mode == 2u && fractions.x != kNoToken) find_last(partials, fractions.x);
  uint key = answer_key, id = answer_id;
  uint64_t mine = 0ul;
  for (uint chunk = gl_SubgroupID; chunk < push.chunks; chunk += gl_NumSubgroups) {
    uint64_t sum = 0ul;
    if (!skips(partials, chunk, key)) {
      uint end = min((chunk + 1u) * kChunk, push.vocabulary);
      for (uint token = chunk * kChunk + gl_SubgroupInvocationID; token < end; token += gl_SubgroupSize)
        sum += kept_weight(token, key, id);
    }
    for (uint distance = gl_SubgroupSize / 2u; distance > 0u; distance /= 2u) {
      uvec2 other = subgroupShuffleXor(unpack32(sum), distance);
      sum += pack64(other);
    }
    if (gl_SubgroupInvocationID == 0u) {
      chunk_sums[chunk] = sum;
      mine += sum;
    }
  }
  uint64_t left = drawn(sum_of_all(mine), fractions);
  uint chunk = 0u;  // every lane does the same walk
  while (chunk + 1u < push.chunks && left >= chunk_sums[chunk]) left -= chunk_sums[chunk++];
  uint per_lane = (kChunk + kInvocations - 1u) / kInvocations;
  uint start = chunk * kChunk + lane * per_lane;
  uint chunk_end = min((chunk + 1u) * kChunk, push.vocabulary);
  uint64_t sum = 0ul;
  for (uint token = start; token < min(start + per_lane, chunk_end); token++) sum += kept_weight(token, key, id);
  sums[lane] = sum;
  barrier();
  const uint per_group = kInvocations / kRun;
  if (lane < kRun) {
    uint64_t of_group = 0ul;
    for (uint i = 0u; i < per_group; i++) of_group += sums[lane * per_group + i];
    groups[lane] = of_group;
  }
  barrier();
  if (lane != 0u) return 0u;
  uint at = 0u;
  while (at + 1u < kRun && left >= groups[at]) left -= groups[at++];
  at *= per_group;
  uint last_of_group = at + per_group - 1u;
  while (at < last_of_group && left >= sums[at]) left -= sums[at++];
  start = chunk * kChunk + at * per_lane;
  for (uint token = start; token < min(start + per_lane, chunk_end); token++) {
    uint64_t weight = kept_weight(token, key, id);
    if (left < weight) return token;
    left -= weight;
  }
  return fallback;
}

void main() {
  uint output_index = gl_WorkGroupID.x;
  if (output_index >= Words(push.parameters).v[1]) return;
  uvec4 choice = Quads(push.choices).v[output_index * 2u];
  if (choice.x == 0u) return;
  uvec4 fractions = Quads(push.choices).v[output_index * 2u + 1u];
  lane = gl_LocalInvocationID.x;
  logits_base = push.logits + uint64_t(output_index) * push.stride * 4u;
  uint64_t partials = push.partials + uint64_t(output_index) * push.chunks * 16u;
  WordsOut result = WordsOut(push.results + uint64_t(output_index) * 8u);
  uint best_token = min(result.v[0], push.vocabulary - 1u);
  best = logit_of(best_token);
  scale = uintBitsToFloat(choice.z);
  least = uintBitsToFloat(choice.w);
  uint token = choice.y != 0u ? draw_from_best(partials, choice.y, fractions)
                              : draw_from_all(partials, choice.x, fractions, best_token);
  if (lane == 0u) result.v[0] = min(token, push.vocabulary - 1u);
}
