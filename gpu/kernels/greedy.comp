// Finds the best token of each output column (of equal ones the lowest id) and its log-probability, in two passes:
// first over chunks of the vocabulary, then over the chunks' results.
//
// kAdjusted: the first pass of a step in which some outputs have a mask of the tokens that may come. It overwrites the
// logits of tokens that a mask excludes with kExcluded. Numbers that are not finite stay, so that the log-probability
// still shows them.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "chain_push.glsl"
#include "common.glsl"
#include "adjusted_rows.glsl"

layout(push_constant, std430) uniform Push {
  FIELDS(GreedyPush)
  uint64_t logits;    // [output][stride]
  uint64_t partials;  // [output][chunks] of {largest, its id, sum of exp2 of the distances to it, 0}
  uint64_t results;   // [output] of {id, log-probability}
  uint64_t parameters;
  uint vocabulary;
  uint stride;
  uint chunks;
  uint unused;
  // kAdjusted: as sample.comp's, and adjusted_rows.glsl, then from byte `mask_rows` on [row][mask_words], a bit for
  // each token. 0: there are none.
  uint64_t choices;
  uint64_t adjustments;
  uint mask_rows;
  uint mask_words;
  FIELDS_END
#include "fields/chain_push.glsl"
} push;
#include "chain.glsl"

CONSTANTS(GreedyConstants, 0)
INVOCATIONS(0, kInvocations, invocations, 8u)  // a power of two
CONSTANT(1, kSecondPass, second_pass, 0u)
CONSTANT(2, kChunk, chunk, 2048u)
CONSTANT(3, kAdjusted, adjusted, 0u)
CONSTANTS_END
#include "excluded.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) buffer QuadsOut { uvec4 v[]; };

const float kLog2E = 1.44269504088896340736;
const float kLn2 = 0.69314718055994530942;
const uint kNoToken = 0xffffffffu;

shared float maxima[kInvocations];
shared uint ids[kInvocations];
shared float sums[kInvocations];
const uint kMaskWords = kChunk / 32u;  // of a chunk
shared uint mask_words[kMaskWords];

// Combines (m, id, s) of two parts. The fixed tree below makes the order of additions depend only on the vocabulary.
void fold(inout float maximum, inout uint id, inout float sum, float m, uint i, float s) {
  bool second = m > maximum || (m == maximum && i < id);
  float best = second ? m : maximum;
  precise float ours = sum * (id == kNoToken ? 0.0 : exp2((maximum - best) * kLog2E));
  precise float theirs = s * (i == kNoToken ? 0.0 : exp2((m - best) * kLog2E));
  precise float total = ours + theirs;
  sum = total;
  id = second ? i : id;
  maximum = best;
}

float logit_at(Floats logits, bool masked, uint token) {
  float logit = logits.v[token];
  if (kAdjusted == 0u || !masked) return logit;
  if ((mask_words[token / 32u - gl_WorkGroupID.y * kMaskWords] >> (token % 32u) & 1u) != 0u) return logit;
  bool finite = (floatBitsToUint(logit) & 0x7f800000u) != 0x7f800000u;
  return finite ? kExcluded : logit;
}

void choose(uint output_index, bool masked) {
  uint lane = gl_LocalInvocationID.x;

  float maximum = -3.4e38;
  uint id = kNoToken;
  float sum = 0.0;
  if (kSecondPass == 0u) {
    Floats logits = Floats(push.logits + uint64_t(output_index) * push.stride * 4u);
    uint end = min((gl_WorkGroupID.y + 1u) * kChunk, push.vocabulary);
    uint start = gl_WorkGroupID.y * kChunk + lane;
    FloatsOut changed = FloatsOut(push.logits + uint64_t(output_index) * push.stride * 4u);
    for (uint token = start; token < end; token += kInvocations) {
      float logit = logit_at(logits, masked, token);
      if (kAdjusted != 0u && masked) changed.v[token] = logit;
      if (logit > maximum || id == kNoToken) {
        maximum = logit;
        id = token;
      }
    }
    for (uint token = start; token < end; token += kInvocations) {
      precise float total = sum + exp2((logit_at(logits, masked, token) - maximum) * kLog2E);
      sum = total;
    }
  } else {
    Quads partials = Quads(push.partials + uint64_t(output_index) * push.chunks * 16u);
    for (uint chunk = lane; chunk < push.chunks; chunk += kInvocations) {
      uvec4 part = partials.v[chunk];
      fold(maximum, id, sum, uintBitsToFloat(part.x), part.y, uintBitsToFloat(part.z));
    }
  }

  maxima[lane] = maximum;
  ids[lane] = id;
  sums[lane] = sum;
  barrier();
  [[unroll]] for (uint distance = kInvocations / 2u; distance > 0u; distance /= 2u) {
    if (lane < distance) {
      fold(maximum, id, sum, maxima[lane + distance], ids[lane + distance], sums[lane + distance]);
      maxima[lane] = maximum;
      ids[lane] = id;
      sums[lane] = sum;
    }
    barrier();
  }
  if (lane != 0u) return;
  if (kSecondPass == 0u) {
    QuadsOut(push.partials).v[output_index * push.chunks + gl_WorkGroupID.y] =
        uvec4(floatBitsToUint(maximum), id, floatBitsToUint(sum), 0u);
  } else {
    precise float log_probability = -kLn2 * log2(sum);
    WordsOut result = WordsOut(push.results + uint64_t(output_index) * 8u);
    result.v[0] = id == kNoToken ? 0u : id;
    result.v[1] = floatBitsToUint(log_probability);
  }
}

// Loads the words of an output's mask for the tokens of the workgroup's chunk. Returns false if the output has no mask.
// Masks lie in the host's memory, so each word is loaded once, and no load waits for another load.
bool load_mask(uint output_index) {
  if (push.adjustments == 0ul) return false;
  uint place = Quads(push.choices).v[output_index * 2u].x >> kAdjustedShift;
  if (place == 0u) return false;
  Words mask = Words(push.adjustments + push.mask_rows + uint64_t(place - 1u) * push.mask_words * 4u);
  uint masked = adjusted_row(push.adjustments, place - 1u).masked;
  for (uint i = gl_LocalInvocationID.x; i < kMaskWords; i += kInvocations) {
    mask_words[i] = mask.v[min(gl_WorkGroupID.y * kMaskWords + i, push.mask_words - 1u)];
  }
  return masked != 0u;
}

// The workgroups of this pass share the outputs.
void choose_adjusted() {
  uint outputs = Words(push.parameters).v[1];
  for (uint output_index = gl_WorkGroupID.x; output_index < outputs; output_index += gl_NumWorkGroups.x) {
    bool masked = load_mask(output_index);
    barrier();
    choose(output_index, masked);
    barrier();
  }
}

void main() {
  if (kAdjusted != 0u) {
    choose_adjusted();
    return;
  }
  uint output_index = gl_WorkGroupID.x;
  if (output_index < Words(push.parameters).v[1] && chain_wait()) choose(output_index, false);
  chain_arrive();
}
