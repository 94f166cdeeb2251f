// One draw for each output that asks for it, as worker/engine/sampler.hpp defines temperature, top-k, top-p and
// min-p. The token replaces the greedy choice in the results. It runs after greedy.comp, in passes
// (values/sample_pass.glsl), so that the whole device reads a row of logits. All but the last one read no results of
// greedy.comp's second pass, so they may run beside it.
//
// Weights are exp((logit - best) / temperature), by the CPU sampler's own polynomial and so with the same bits, and
// then integers in units of 2^-40. Integers give the same sum in any order, so nothing here depends on how the work
// is divided. The CPU's sums are rounded, so the two can differ if a draw or a border falls within about 1e-6 of a
// token's edge.
//
// Without top-k: a histogram of weights by distance to the best finds the bucket in which top-p ends. Its tokens, in
// order, give the last one that is included. Then chunks are searched in order of ids, and the tokens of the drawn
// chunk. With top-k the last pass sorts the best tokens (find_best). A bucket with too many tokens to sort (equal
// logits, extreme temperatures) is searched bit by bit instead.
#version 460
#include "common.glsl"
#include "sampling.glsl"
#include "values/adjusted_row.glsl"

const uint kPass = BULKHEAD_PASS;  // SamplePass

layout(buffer_reference, std430, buffer_reference_align = 8) buffer LongsOut { uint64_t v[]; };

shared uint64_t chunk_sums[kMostChunks];

const uint kCutKey = 2u * kSampleBuckets;  // a word of an output's cut

uint64_t drawn(uint64_t total, uvec4 fractions) {
  return times(total, fractions.y) + (times(total, fractions.z) >> 21);
}

uint draw_from_best(uint64_t partials, uint top_k, uvec4 fractions) {
  uint kept = find_best(partials, top_k, false);
  weigh_sorted();
  if (lane != 0u) return 0u;
  uint64_t whole = 0ul;
  for (uint i = 0u; i < kept; i++) whole += in_bucket(i);
  uint64_t total = whole;
  if (fractions.x != kNoToken) {
    uint64_t target = times(whole, fractions.x);
    total = 0ul;
    uint taken = 0u;
    while (taken < kept && total < target) total += in_bucket(taken++);
    kept = taken;
  }
  while (kept > 1u && distance_of(value_of(sorted_keys[kept - 1u])) < least)
    total -= in_bucket(--kept);
  uint64_t left = drawn(total, fractions);
  for (uint i = 0u; i < kept; i++) {
    uint64_t weight = in_bucket(i);
    if (left < weight) return sorted_ids[i];
    left -= weight;
  }
  return sorted_ids[0];
}

// Adds a weight to a bucket of two words, of which other invocations may add to the same. Sums of integers do not
// depend on the order of the additions.
#define ADD_TO_BUCKET(lower, upper, weight)                             \
  {                                                                     \
    uint part = uint(weight);                                           \
    uint before = atomicAdd(lower, part);                               \
    uint carried = uint((weight) >> 32) + (before + part < before ? 1u : 0u); \
    if (carried != 0u) atomicAdd(upper, carried);                       \
  }

void add_chunk(WordsOut cut, uint chunk) {
  clear_histogram();
  uint end = min((chunk + 1u) * kChunk, push.vocabulary);
  for (uint token = chunk * kChunk + lane; token < end; token += kAhead * kInvocations) {
    float logits[kAhead];
    load_logits(token, kInvocations, end, logits);
    for (uint i = 0u; i < kAhead; i++) {
      uint bucket = bucket_of(logits[i]);
      if (bucket >= kSampleBuckets) continue;
      uint64_t weight = weight_of(logits[i]);
      ADD_TO_BUCKET(low[bucket], high[bucket], weight)
    }
  }
  barrier();
  for (uint i = lane; i < kSampleBuckets; i += kInvocations) {
    uint64_t weight = in_bucket(i);
    if (weight != 0ul) ADD_TO_BUCKET(cut.v[i], cut.v[kSampleBuckets + i], weight)
  }
  barrier();
}

// Writes where top-p ends to answer_key and answer_id.
void find_last(uint64_t partials, WordsOut cut, uint top_p) {
  for (uint i = lane; i < kSampleBuckets; i += kInvocations) {
    low[i] = cut.v[i];
    high[i] = cut.v[kSampleBuckets + i];
  }
  barrier();
  uint64_t mine = 0ul;
  if (lane < kRun) groups[lane] = mine = in_group(lane);
  uint64_t target = times(sum_of_all(mine), top_p);
  find_bucket(target);
  bool fits = found_bucket < kSampleBuckets;
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
  weigh_sorted();
  if (lane < kRun) groups[lane] = in_group(lane);
  barrier();
  uint64_t before = answer_sum;
  barrier();
  find_bucket(target - before);
  if (lane == 0u) {
    uint i = min(found_bucket, found_count - 1u);
    answer_key = sorted_keys[i];
    answer_id = sorted_ids[i];
  }
  barrier();
}

uint64_t kept_weight(float logit, uint token, uint key, uint id) {
  bool in_mass = !better(key, id, key_of(logit), token);
  return in_mass && distance_of(logit) >= least ? weight_of(logit) : 0ul;
}

void sum_chunk(uint64_t partials, uint64_t to, uint chunk, uint key, uint id) {
  uint64_t mine = 0ul;
  if (!skips(partials, chunk, key)) {
    uint end = min((chunk + 1u) * kChunk, push.vocabulary);
    for (uint token = chunk * kChunk + lane; token < end; token += kAhead * kInvocations) {
      float logits[kAhead];
      load_logits(token, kInvocations, end, logits);
      for (uint i = 0u; i < kAhead; i++)
        mine += kept_weight(logits[i], token + i * kInvocations, key, id);
    }
  }
  uint64_t sum = sum_of_all(mine);
  if (lane == 0u) LongsOut(to).v[chunk] = sum;
}

uint draw_from_all(uint64_t from, uint key, uint id, uvec4 fractions, uint fallback) {
  uint64_t mine = 0ul;
  for (uint chunk = lane; chunk < push.chunks; chunk += kInvocations) {
    chunk_sums[chunk] = Longs(from).v[chunk];
    mine += chunk_sums[chunk];
  }
  uint64_t left = drawn(sum_of_all(mine), fractions);
  uint chunk = 0u;  // every lane does the same walk
  while (chunk + 1u < push.chunks && left >= chunk_sums[chunk]) left -= chunk_sums[chunk++];
  uint per_lane = (kChunk + kInvocations - 1u) / kInvocations;
  uint start = chunk * kChunk + lane * per_lane;
  uint chunk_end = min((chunk + 1u) * kChunk, push.vocabulary);
  uint64_t sum = 0ul;
  for (uint token = start; token < min(start + per_lane, chunk_end); token++)
    sum += kept_weight(logit_of(token), token, key, id);
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
    uint64_t weight = kept_weight(logit_of(token), token, key, id);
    if (left < weight) return token;
    left -= weight;
  }
  return fallback;
}

void handle(uint output_index) {
  uvec4 choice = Quads(push.choices).v[output_index * 2u];
  choice.x &= (1u << kAdjustedShift) - 1u;
  uvec4 fractions = Quads(push.choices).v[output_index * 2u + 1u];
  bool ranks = choice.y != 0u, cuts = !ranks && choice.x == 2u && fractions.x != kNoToken;
  if (choice.x == 0u || (kPass < kPassSums && !cuts) || (kPass == kPassSums && ranks)) return;
  WordsOut cut = WordsOut(push.cuts + uint64_t(output_index) * kSampleCutBytes);
  if (kPass == kPassClear) {
    for (uint i = lane; i < kCutKey; i += kInvocations) cut.v[i] = 0u;
    return;
  }
  logits_base = push.logits + uint64_t(output_index) * push.stride * 4u;
  uint64_t partials = push.partials + uint64_t(output_index) * push.chunks * 16u;
  uint64_t sums_base = push.chunk_sums + uint64_t(output_index) * push.chunks * 8u;
  WordsOut result = WordsOut(push.results + uint64_t(output_index) * 8u);
  best = best_of(partials);
  scale = uintBitsToFloat(choice.z);
  least = uintBitsToFloat(choice.w);
  if (kPass == kPassHistogram) {
    add_chunk(cut, gl_WorkGroupID.y);
  } else if (kPass == kPassLast) {
    find_last(partials, cut, fractions.x);
    if (lane != 0u) return;
    cut.v[kCutKey] = answer_key;
    cut.v[kCutKey + 1u] = answer_id;
  } else {
    uint key = cuts ? cut.v[kCutKey] : 0u, id = cuts ? cut.v[kCutKey + 1u] : kNoToken;
    if (kPass == kPassSums) {
      sum_chunk(partials, sums_base, gl_WorkGroupID.y, key, id);
    } else {
      uint token = ranks ? draw_from_best(partials, choice.y, fractions)
                         : draw_from_all(sums_base, key, id, fractions, token_of(partials, best));
      if (lane == 0u) result.v[0] = min(token, push.vocabulary - 1u);
    }
  }
}

void main() {
  lane = gl_LocalInvocationID.x;
  uint outputs = Words(push.parameters).v[1];
  for (uint row = gl_WorkGroupID.x; row < outputs; row += gl_NumWorkGroups.x) {
    handle(row);
    barrier();
  }
}
