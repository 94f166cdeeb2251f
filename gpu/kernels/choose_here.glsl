// Products of experts' matrices in steps of one column (experts.glsl) include this file. Each workgroup chooses the
// column's experts from the logits itself, which takes less time than waiting for a kernel that does nothing else.
// With kHereAndTells the product's first workgroup also writes what choose.comp would write: tiles for the products
// that follow, and weights for mix.comp. With kHere the product writes nothing, and the following products choose the
// experts themselves (expert_sum.glsl).
//
// This works for a router whose weights are divided by the chosen experts' sum, and which has no scores, biases for
// the choice, or experts' scales.
#include "constants/choosing.glsl"
#include "values/choosing.glsl"
const uint kChosenRoom = 1;
#include "choose_one.glsl"

layout(buffer_reference, std430, buffer_reference_align = 16) buffer TilesOut { uvec4 v[]; };

// Returns the sum of the chosen experts' softmax parts.
float sum_of_chosen() {
  precise float sum = 0.0;
  [[unroll]] for (uint place = 0; place < kUsed; place++)
    sum = sum + softmax_part(chosen_values[place], chosen_values[0]);
  return sum;
}
// Returns the weight of the expert at a place. `sum`: sum_of_chosen().
float chosen_weight(uint place, float sum) {
  precise float share = softmax_part(chosen_values[place], chosen_values[0]) / sum;
  precise float weight = share * uintBitsToFloat(kWeightScale);
  return weight;
}

// Writes the chosen experts and their weights, which the following kernels read. Every invocation of one workgroup
// calls this function.
void tell_chosen() {
  float sum = sum_of_chosen();
  FloatsOut weights = FloatsOut(push.tiles + kWeightsAt);
  for (uint place = gl_LocalInvocationIndex; place < kUsed; place += kInvocations) {
    weights.v[place] = chosen_weight(place, sum);
    TilesOut(push.tiles).v[1u + place] = uvec4(chosen_experts[place], place, 1u, place);
  }
  if (gl_LocalInvocationIndex != 0u) return;
  WordsOut(push.tiles).v[0] = kUsed;
  if (kSharedGate != 0u) weights.v[kUsed] = sigmoid(Floats(push.tiles + kLogitsAt).v[kExperts]);
}

// Chooses the column's experts. All invocations of the workgroup call it.
void choose_experts() {
  Floats logits = Floats(push.tiles + kLogitsAt);
  for (uint expert = gl_LocalInvocationIndex; expert < kExperts; expert += kInvocations)
    one_column[expert] = logits.v[expert];
  take_by_counting();
}

// Returns the expert at the column's place gl_WorkGroupID.x. All invocations of the workgroup call it.
uint choose_here() {
  choose_experts();
  if (kChooses == kHereAndTells && gl_WorkGroupID.x == 0u && gl_WorkGroupID.y == 0u) tell_chosen();
  return chosen_experts[gl_WorkGroupID.x];
}
