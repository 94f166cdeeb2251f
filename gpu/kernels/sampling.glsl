// Shared by draws (sample.comp) and log-probabilities (logprobs.comp): weights, and finding the best tokens of a row,
// for which a workgroup handles one output.
layout(push_constant, std430) uniform Push {
#include "fields/sample_push.glsl"
} push;

// Two quads for each output: {mode, top-k or 0, 1 / temperature, least (logit - best) / temperature}, {top-p in units
// of 2^-32, upper 32 bits of the draw, its lower 21, 0 or 1 + the number of log-probabilities}. Mode: 0 nothing, 1
// all tokens, 2 top-p or min-p removes some.
#include "constants/sampling.glsl"
#include "excluded.glsl"

#include "values/sample_pass.glsl"
const uint kMost = kSampleBuckets;  // tokens that are sorted at once
const uint kMostChunks = 512u;
const uint kRun = 32u;
const uint kAhead = 8u;       // how many logits an invocation loads at once
const uint kNoToken = 0xffffffffu;

shared uint low[kSampleBuckets], high[kSampleBuckets];
shared uint keys[kMost], ids[kMost];
shared uint sorted_keys[kMost], sorted_ids[kMost];
shared uint64_t sums[kInvocations];
shared uint64_t groups[kRun];
shared uint found_count, found_bucket, answer_key, answer_id;
shared uint64_t answer_sum;

uint64_t logits_base;
float best, scale, least;
uint lane;

float logit_of(uint token) { return Floats(logits_base).v[token]; }

// Loads the logits of `token` and of the tokens that follow it `step` apart. From `end` on they are excluded.
void load_logits(uint token, uint step, uint end, out float logits[kAhead]) {
  [[unroll]] for (uint i = 0u; i < kAhead; i++) logits[i] = logit_of(min(token + i * step, end - 1u));
  [[unroll]] for (uint i = 0u; i < kAhead; i++) {
    if (token + i * step >= end) logits[i] = kExcluded;
  }
}

// Larger logits have larger keys; -0 and 0 are equal.
uint key_of(float value) {
  uint bits = value == 0.0 ? 0u : floatBitsToUint(value);
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}
float value_of(uint key) { return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key); }

// sampler.cpp's exp_of_nonpositive. Loops around it are not marked [[unroll]]: glslc then unrolls them itself, and its
// copies of the instructions are no longer `precise`.
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

// Returns (logit - best) / temperature, as the CPU rounds it.
float distance_of(float logit) {
  precise float difference = logit - best;
  precise float scaled = difference * scale;
  return scaled;
}
uint64_t weight_of(float logit) {
  if (logit <= kExcluded) return 0ul;
  precise float scaled = exp_of_nonpositive(distance_of(logit)) * 1048576.0;
  uint upper = uint(scaled);
  precise float rest = (scaled - float(upper)) * 1048576.0;
  return (uint64_t(upper) << 20) + uint64_t(uint(rest));
}
uint bucket_of(float logit) {
  if (logit <= kExcluded) return kSampleBuckets;
  return uint(min(-distance_of(logit) * 32.0, float(kSampleBuckets)));  // kSampleBuckets: no bucket
}

uint64_t times(uint64_t total, uint fraction) {
  return (total >> 32) * uint64_t(fraction) + (((total & 0xfffffffful) * uint64_t(fraction)) >> 32);
}

bool better(uint key, uint id, uint other_key, uint other_id) {
  return key > other_key || (key == other_key && id < other_id);
}

// Returns whether all tokens of the chunk are worse than the key, so that the chunk may be skipped.
bool skips(uint64_t partials, uint chunk, uint key) {
  return key_of(uintBitsToFloat(Quads(partials).v[chunk].x)) < key;
}

// Returns the best logit of the row, from those of the chunks.
float best_of(uint64_t partials) {
  if (lane == 0u) answer_key = 0u;
  barrier();
  uint mine = 0u;
  for (uint chunk = lane; chunk < push.chunks; chunk += kInvocations) {
    mine = max(mine, key_of(uintBitsToFloat(Quads(partials).v[chunk].x)));
  }
  atomicMax(answer_key, mine);
  barrier();
  float value = value_of(answer_key);
  barrier();
  return value;
}

// Returns the token with that logit; of equal ones the one with the lowest id.
uint token_of(uint64_t partials, float value) {
  if (lane == 0u) answer_id = kNoToken;
  barrier();
  for (uint chunk = lane; chunk < push.chunks; chunk += kInvocations) {
    uvec4 part = Quads(partials).v[chunk];
    if (key_of(uintBitsToFloat(part.x)) == key_of(value)) atomicMin(answer_id, part.y);
  }
  barrier();
  uint token = min(answer_id, push.vocabulary - 1u);
  barrier();
  return token;
}

// Returns the sum of `mine` over all invocations, to each of them.
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

// Returns what one token adds to the result of measure().
uint64_t measured(uint token, uint end, uint key, uint id, bool counts) {
  float logit = logit_of(min(token, end - 1u));
  uint mine_key = key_of(logit);
  bool down_to = mine_key > key || (mine_key == key && token <= id);
  if (token >= end || !down_to) return 0ul;
  return counts ? 1ul : weight_of(logit);
}

// Returns the number, or the weight, of the tokens down to (key, id).
//
// llvmpipe ends an invocation's loops after 65,535 rounds in total, and search() calls this sixty times. So a round has
// several tokens, and no loop that goes through them.
uint64_t measure(uint64_t partials, uint key, uint id, bool counts) {
  uint64_t mine = 0ul;
#define MEASURED(i) measured(token + i * kInvocations, end, key, id, counts)
  for (uint chunk = 0u; chunk < push.chunks; chunk++) {
    if (skips(partials, chunk, key)) continue;
    uint end = min((chunk + 1u) * kChunk, push.vocabulary);
    for (uint token = chunk * kChunk + lane; token < end; token += 8u * kInvocations) {
      mine += MEASURED(0u) + MEASURED(1u) + MEASURED(2u) + MEASURED(3u);
      mine += MEASURED(4u) + MEASURED(5u) + MEASURED(6u) + MEASURED(7u);
    }
  }
#undef MEASURED
  return sum_of_all(mine);
}

// Finds bit by bit the first (key, id), from the best on, down to which the measure reaches `target`.
void search(uint64_t partials, uint64_t target, bool counts) {
  const uint kKeyBits = 32u, kIdBits = 28u;
  uint key = 0u;
  uint id = 0u;  // the least that is enough
  for (uint i = 0u; i < kKeyBits + kIdBits; i++) {
    bool of_key = i < kKeyBits;
    uint bit = of_key ? 1u << (kKeyBits - 1u - i) : 1u << (kKeyBits + kIdBits - 1u - i);
    bool reached = measure(partials, of_key ? key | bit : key, of_key ? kNoToken : id + bit - 1u, counts) >= target;
    if (of_key && reached) key |= bit;
    if (!of_key && !reached) id += bit;
  }
  answer_key = key;
  answer_id = min(id, push.vocabulary - 1u);
  barrier();
}

void clear_histogram() {
  for (uint i = lane; i < kSampleBuckets; i += kInvocations) low[i] = high[i] = 0u;
  barrier();
}
uint64_t in_bucket(uint at) { return uint64_t(low[at]) + (uint64_t(high[at]) << 32); }
uint64_t in_group(uint group) {
  uint64_t sum = 0ul;
  for (uint i = 0u; i < kSampleBuckets / kRun; i++) sum += in_bucket(group * (kSampleBuckets / kRun) + i);
  return sum;
}

// Finds the bucket of the histogram in which `target` is reached; found_bucket is kSampleBuckets if there is none.
// answer_sum is the sum of the buckets before it. Expects the sums of groups of buckets in `groups`.
void find_bucket(uint64_t target) {
  if (lane == 0u) {
    uint64_t before = 0ul;
    uint group = 0u;
    while (group < kRun && before + groups[group] < target) before += groups[group++];
    uint at = group * (kSampleBuckets / kRun);
    for (; at < kSampleBuckets; at++) {
      uint64_t here = in_bucket(at);
      if (before + here >= target) break;
      before += here;
    }
    found_bucket = at;
    answer_sum = before;
  }
  barrier();
}

// Finds the bucket of the count-th best token.
void find_bucket_of_rank(uint count) {
  clear_histogram();
  for (uint token = lane; token < push.vocabulary; token += kAhead * kInvocations) {
    float logits[kAhead];
    load_logits(token, kInvocations, push.vocabulary, logits);
    for (uint i = 0u; i < kAhead; i++) {
      uint bucket = bucket_of(logits[i]);
      if (bucket < kSampleBuckets) atomicAdd(low[bucket], 1u);
    }
  }
  barrier();
  if (lane < kRun) groups[lane] = in_group(lane);
  barrier();
  find_bucket(uint64_t(count));
}

// Collects the tokens of buckets [first, last] (or, with `by_answer`, down to the answer) in keys and ids;
// found_count may be more than fits.
void gather(uint64_t partials, uint first, uint last, bool by_answer) {
  if (lane == 0u) found_count = 0u;
  barrier();
  for (uint chunk = gl_SubgroupID; chunk < push.chunks; chunk += gl_NumSubgroups) {
    float chunk_best = uintBitsToFloat(Quads(partials).v[chunk].x);
    if (by_answer ? key_of(chunk_best) < answer_key : bucket_of(chunk_best) > last) continue;
    uint end = min((chunk + 1u) * kChunk, push.vocabulary);
    for (uint token = chunk * kChunk + gl_SubgroupInvocationID; token < end; token += kAhead * gl_SubgroupSize) {
      float logits[kAhead];
      load_logits(token, gl_SubgroupSize, end, logits);
      for (uint i = 0u; i < kAhead; i++) {
        uint id = token + i * gl_SubgroupSize;
        uint key = key_of(logits[i]);
        uint bucket = bucket_of(logits[i]);
        bool wanted = by_answer ? !better(answer_key, answer_id, key, id) : bucket >= first && bucket <= last;
        if (!wanted || id >= end) continue;
        uint at = atomicAdd(found_count, 1u);
        if (at < kMost) {
          keys[at] = key;
          ids[at] = id;
        }
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

// Makes the histogram one of the sorted tokens: a bucket for each, with its weight.
void weigh_sorted() {
  for (uint i = lane; i < kSampleBuckets; i += kInvocations) {
    uint64_t weight = i < found_count ? weight_of(value_of(sorted_keys[i])) : 0ul;
    low[i] = uint(weight);
    high[i] = uint(weight >> 32);
  }
  barrier();
}

// Sorts the `count` best tokens into sorted_keys and sorted_ids, best first; returns how many there are. With
// `weightless` false, tokens without weight may be missing.
uint sort_best(uint64_t partials, uint count, bool weightless) {
  find_bucket_of_rank(count);
  if (!weightless && found_bucket == kSampleBuckets) {
    barrier();
    if (lane == 0u) found_bucket = kSampleBuckets - 1u;
    barrier();
  }
  bool fits = found_bucket < kSampleBuckets;
  if (fits) {
    gather(partials, 0u, found_bucket, false);
    fits = found_count <= kMost;
  }
  if (!fits) {
    barrier();
    search(partials, uint64_t(count), true);
    gather(partials, 0u, 0u, true);
  }
  sort_found();
  return min(count, min(found_count, kMost));
}

// Does what sort_best() does, but reads the row only once if there are at least `count` chunks. Each chunk has a best
// token. The bound is the count-th best of these tokens. At least `count` tokens reach the bound, so the wanted tokens
// are among the tokens that reach it, and there are few of these.
uint find_best(uint64_t partials, uint count, bool weightless) {
  bool few = push.chunks >= count;
  if (few) {
    for (uint chunk = lane; chunk < push.chunks; chunk += kInvocations) {
      uint key = key_of(uintBitsToFloat(Quads(partials).v[chunk].x));
      uint rank = 0u;
      for (uint other = 0u; other < push.chunks; other++) {
        rank += better(key_of(uintBitsToFloat(Quads(partials).v[other].x)), other, key, chunk) ? 1u : 0u;
      }
      if (rank == count - 1u) {
        answer_key = key;
        answer_id = kNoToken;
      }
    }
    barrier();
    gather(partials, 0u, 0u, true);
    few = found_count <= kMost;
    barrier();
  }
  if (!few) return sort_best(partials, count, weightless);
  sort_found();
  return min(count, found_count);
}
