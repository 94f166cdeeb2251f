// Computes the log-probabilities that an output asks for: of the chosen token, and of the best tokens. It runs after
// greedy.comp and sample.comp, in two passes: first sums of weights for chunks of the vocabulary, of one output after
// the other, then one workgroup per output.
//
// The results are logits and the sum of all weights, in integers (sample.comp); the host computes the logarithm, in
// double. So they depend neither on how the work is divided nor on a driver's logarithm.
#version 460
#include "common.glsl"
#include "sampling.glsl"

const bool kSums = BULKHEAD_PASS == 0u;  // LogprobPass

// {sum of weights (two words), best logit, chosen token's logit}, {how many tokens follow, 0, 0, 0}, {id, logit} ...
#include "values/logprobs.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) buffer LongsOut { uint64_t v[]; };

void handle(uint output_index) {
  uint asked = Quads(push.choices).v[output_index * 2u + 1u].w;
  if (asked == 0u) return;
  logits_base = push.logits + uint64_t(output_index) * push.stride * 4u;
  uint64_t partials = push.partials + uint64_t(output_index) * push.chunks * 16u;
  uint64_t chunk_sums = push.chunk_sums + uint64_t(output_index) * push.chunks * 8u;
  best = best_of(partials);
  scale = 1.0;
  if (kSums) {
    uint chunk = gl_WorkGroupID.y;
    uint end = min((chunk + 1u) * kChunk, push.vocabulary);
    uint64_t mine = 0ul;
    for (uint token = chunk * kChunk + lane; token < end; token += kAhead * kInvocations) {
      float logits[kAhead];
      load_logits(token, kInvocations, end, logits);
      for (uint i = 0u; i < kAhead; i++) mine += weight_of(logits[i]);
    }
    uint64_t sum = sum_of_all(mine);
    if (lane == 0u) LongsOut(chunk_sums).v[chunk] = sum;
    return;
  }
  uint64_t mine = 0ul;
  for (uint chunk = lane; chunk < push.chunks; chunk += kInvocations) mine += Longs(chunk_sums).v[chunk];
  uint64_t sum = sum_of_all(mine);
  uint wanted = min(min(asked - 1u, kMostLogprobs), push.vocabulary);
  uint count = wanted != 0u ? find_best(partials, wanted, true) : 0u;
  uint64_t row = push.logprobs + uint64_t(output_index) * kLogprobBytes;
  if (lane == 0u) {
    uint chosen = min(Words(push.results + uint64_t(output_index) * 8u).v[0], push.vocabulary - 1u);
    LongsOut(row).v[0] = sum;
    FloatsOut(row).v[2] = best;
    FloatsOut(row).v[3] = logit_of(chosen);
    WordsOut(row).v[4] = count;
  }
  for (uint i = lane; i < count; i += kInvocations) {
    WordsOut(row).v[8u + 2u * i] = sorted_ids[i];
    FloatsOut(row).v[9u + 2u * i] = logit_of(sorted_ids[i]);
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
