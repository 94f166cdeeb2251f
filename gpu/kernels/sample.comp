// One draw for each output that asks for it, as worker/engine/sampler.hpp defines temperature, top-k, top-p and min-p: the
// token takes the greedy choice's place in the results. A workgroup does an output; runs behind greedy.comp.
//
// Weights are exp((logit - best) / temperature), by the CPU sampler's own polynomial and so with its bits, then integers in
// units of 2^-40. Integers add up to the same in any order: nothing here depends on how the work is shared. The CPU's sums
// are rounded, so the two can part where a draw or a border falls within about 1e-6 of a token's edge.
//
// Without top-k: a histogram of weights by distance to the best finds the bucket that top-p ends in, its tokens in order
// give the last one that is in; then chunks in order of ids, and in the drawn chunk its tokens. With top-k the histogram
// counts tokens, and all tokens down to the bucket are put in order. A bucket with too many tokens to put in order
// (equal logits, extreme temperatures) is searched bit by bit instead.
#version 460
#include "common.glsl"

layout(push_constant, std430) uniform Push {
  uint64_t logits;      // [output][stride]
  uint64_t partials;    // greedy's: [output][chunks] of {largest, ...}
  uint64_t results;     // [output] of {id, log-probability}
  uint64_t parameters;
  uint64_t choices;     // [output], see below
  uint vocabulary;
  uint stride;
  uint chunks;
} push;

// Two quads for an output: {mode, top-k or 0, 1 / temperature, least (logit - best) / temperature}, {top-p in units of
// 2^-32, upper 32 bits of the draw, its lower 21, 0}. Mode: 0 none, 1 all tokens, 2 top-p or min-p cut some off.
layout(constant_id = 0) const uint kInvocations = 64;  // 32 or a multiple
layout(constant_id = 1) const uint kChunk = 2048;
layout(local_size_x_id = 0) in;

const uint kBuckets = 1024u;  // 32 for each factor of e; past the last a weight is 0
const uint kMost = 1024u;     // tokens that are put in order at once
const uint kMostChunks = 512u;
const uint kRun = 32u;
const uint kNoToken = 0xffffffffu;

shared uint low[kBuckets], high[kBuckets];
shared uint keys[kMost], ids[kMost];
shared uint sorted_keys[kMost], sorted_ids[kMost];
shared uint64_t sums[kInvocations];
shared uint64_t groups[kRun];
shared uint64_t chunk_sums[kMostChunks];
shared uint found_count, found_bucket, answer_key, answer_id;
shared uint64_t answer_sum;

uint64_t logits_base;
float best, scale, least;
uint lane;

float logit_of(uint token) { return Floats(logits_base).v[token]; }

// Larger logits have larger keys; -0 and 0 are equal.
uint key_of(float value) {
  uint bits = value == 0.0 ? 0u : floatBitsToUint(value);
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}
float value_of(uint key) { return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key); }

// sampler.cpp's exp_of_nonpositive
float exp_of_nonpositive(float x) {
  precise float clamped = x < -87.0 ? -87.0 : x;
  precise float scaled = clamped * 1.44269504;
  precise float shifted = scaled + 12582912.0;
  precise float n = shifted - 12582912.0;
  precise float nh = n * 0.693145752;
  precise float r0 = clamped - nh;
  precise float nl = n * 1.42860677e-6;
  precise float r = r0 - nl;
  precise float p = r * 1.38888889e-3;
  p = 8.33333333e-3 + p;
  p = r * p;
  p = 4.16666667e-2 + p;
  p = r * p;
  p = 1.66666667e-1 + p;
  p = r * p;
  p = 0.5 + p;
  p = r * p;
  p = 1.0 + p;
  p = r * p;
  p = 1.0 + p;
  uint exponent = (floatBitsToUint(shifted) + 127u) << 23;
  precise float value = p * uintBitsToFloat(exponent);
  return x < -87.0 ? 0.0 : value;
}

// (logit - best) / temperature, as the CPU rounds it.
float distance_of(float logit) {
  precise float difference = logit - best;
  precise float scaled = difference * scale;
  return scaled;
}
uint64_t weight_of(float logit) {
  precise float scaled = exp_of_nonpositive(distance_of(logit)) * 1048576.0;
  uint upper = uint(scaled);
  precise float rest = (scaled - float(upper)) * 1048576.0;
  return (uint64_t(upper) << 20) + uint64_t(uint(rest));
}
uint bucket_of(float logit) {
  return uint(min(-distance_of(logit) * 32.0, float(kBuckets)));  // kBuckets: in none
}

uint64_t times(uint64_t total, uint fraction) {
  return (total >> 32) * uint64_t(fraction) + (((total & 0xfffffffful) * uint64_t(fraction)) >> 32);
}

bool better(uint key, uint id, uint other_key, uint other_id) {
  return key > other_key || (key == other_key && id < other_id);
}

// Whether no token of the chunk is as good as the key.
bool skips(uint64_t partials, uint chunk, uint key) {
  return key_of(uintBitsToFloat(Quads(partials).v[chunk].x)) < key;
}

// The same for all.
uint64_t sum_of_all(uint64_t mine) {
  sums[lane] = mine;
  barrier();
  for (uint distance = kInvocations / 2u; distance > 0u; distance /= 2u) {
    if (lane < distance) sums[lane] += sums[lane + distance];
    barrier();
  }
  uint64_t total = sums[0];
  barrier();
  return total;
}

// How much of the tokens down to (key, id) there is: their number, or their weight.
uint64_t measure(uint64_t partials, uint key, uint id, bool counts) {
  uint64_t mine = 0ul;
  for (uint chunk = 0u; chunk < push.chunks; chunk++) {
    if (skips(partials, chunk, key)) continue;
    uint end = min((chunk + 1u) * kChunk, push.vocabulary);
    for (uint token = chunk * kChunk + lane; token < end; token += kInvocations) {
      float logit = logit_of(token);
      uint mine_key = key_of(logit);
      if (mine_key > key || (mine_key == key && token <= id)) mine += counts ? 1ul : weight_of(logit);
    }
  }
  return sum_of_all(mine);
}

// The first (key, id), from the best on, down to which there is as much as `target`, bit by bit.
void search(uint64_t partials, uint64_t target, bool counts) {
  uint key = 0u;
  for (uint bit = 0x80000000u; bit != 0u; bit >>= 1) {
    if (measure(partials, key | bit, kNoToken, counts) >= target) key |= bit;
  }
  uint id = 0u;  // the least that is enough
  for (uint bit = 0x80000000u >> 4; bit != 0u; bit >>= 1) {
    if (measure(partials, key, id + bit - 1u, counts) < target) id += bit;
  }
  answer_key = key;
  answer_id = min(id, push.vocabulary - 1u);
  barrier();
}

// Fills the histogram and finds the bucket in which `target` is reached; found_bucket is kBuckets where none is.
// answer_sum: what lies before it. A target of 0: the fraction top_p of all weights, which it returns.
uint64_t find_bucket(uint64_t target, uint top_p, bool counts) {
  for (uint i = lane; i < kBuckets; i += kInvocations) low[i] = high[i] = 0u;
  barrier();
  uint64_t mine = 0ul;
  for (uint token = lane; token < push.vocabulary; token += kInvocations) {
    float logit = logit_of(token);
    uint bucket = bucket_of(logit);
    if (bucket >= kBuckets) continue;
    if (counts) {
      atomicAdd(low[bucket], 1u);
    } else {
      uint64_t weight = weight_of(logit);
      mine += weight;
      uint part = uint(weight);
      uint before = atomicAdd(low[bucket], part);
      uint carry = before + part < before ? 1u : 0u;
      uint upper = uint(weight >> 32) + carry;
      if (upper != 0u) atomicAdd(high[bucket], upper);
    }
  }
  barrier();
  if (!counts) target = times(sum_of_all(mine), top_p);
  if (lane < kRun) {
    uint64_t sum = 0ul;
    for (uint i = 0u; i < kBuckets / kRun; i++) {
      uint at = lane * (kBuckets / kRun) + i;
      sum += uint64_t(low[at]) + (uint64_t(high[at]) << 32);
    }
    groups[lane] = sum;
  }
  barrier();
  if (lane == 0u) {
    uint64_t before = 0ul;
    uint group = 0u;
    while (group < kRun && before + groups[group] < target) before += groups[group++];
    uint at = group * (kBuckets / kRun);
    for (; at < kBuckets; at++) {
      uint64_t here = uint64_t(low[at]) + (uint64_t(high[at]) << 32);
      if (before + here >= target) break;
      before += here;
    }
    found_bucket = at;
    answer_sum = before;
  }
  barrier();
  return target;
}

// Tokens of buckets [first, last] (or, with `by_answer`, down to the answer) into keys and ids; found_count may be more than
// what fits.
void gather(uint64_t partials, uint first, uint last, bool by_answer) {
  if (lane == 0u) found_count = 0u;
  barrier();
  for (uint chunk = 0u; chunk < push.chunks; chunk++) {
    float chunk_best = uintBitsToFloat(Quads(partials).v[chunk].x);
    if (by_answer ? key_of(chunk_best) < answer_key : bucket_of(chunk_best) > last) continue;
    uint end = min((chunk + 1u) * kChunk, push.vocabulary);
    for (uint token = chunk * kChunk + lane; token < end; token += kInvocations) {
      float logit = logit_of(token);
      uint key = key_of(logit);
      uint bucket = bucket_of(logit);
      bool wanted = by_answer ? !better(answer_key, answer_id, key, token) : bucket >= first && bucket <= last;
      if (!wanted) continue;
      uint at = atomicAdd(found_count, 1u);
      if (at < kMost) {
        keys[at] = key;
        ids[at] = token;
      }
    }
  }
  barrier();
}

// Best first.
void sort_found() {
  uint count = min(found_count, kMost);
  for (uint i = lane; i < count; i += kInvocations) {
    uint rank = 0u;
    for (uint j = 0u; j < count; j++) rank += better(keys[j], ids[j], keys[i], ids[i]) ? 1u : 0u;
    sorted_keys[rank] = keys[i];
    sorted_ids[rank] = ids[i];
  }
  barrier();
}

uint64_t drawn(uint64_t total, uvec4 fractions) {
  return times(total, fractions.y) + (times(total, fractions.z) >> 21);
}

uint draw_from_best(uint64_t partials, uint top_k, uvec4 fractions) {
  find_bucket(uint64_t(top_k), 0u, true);
  bool fits = found_bucket < kBuckets;
  if (fits) {
    gather(partials, 0u, found_bucket, false);
    fits = found_count <= kMost;
  }
  if (!fits) {
    barrier();
    search(partials, uint64_t(top_k), true);
    gather(partials, 0u, 0u, true);
  }
  sort_found();
  if (lane != 0u) return 0u;
  uint kept = min(top_k, min(found_count, kMost));
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

// Where top-p ends: into answer_key and answer_id.
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
  uint chunk = 0u;  // every lane the same walk
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
