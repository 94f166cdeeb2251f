// A workgroup chooses the experts of a single column: some invocations together count how many experts come before
// their own, and the count is its expert's place. Of equal experts the one with the lower index comes first. A NaN gets
// no place; then any expert will do.
//
// The includer has kInvocations, kExperts, kUsed, and kChosenRoom, the number of columns for whose chosen experts
// there is room.
const uint kCountTogether = kInvocations >= kExperts * 4u ? 4u : kInvocations >= kExperts * 2u ? 2u : 1u;
const uint kCountAtOnce = 16u;  // experts that an invocation loads at once
shared float one_column[kExperts];  // the values that decide the choice
shared uint chosen_experts[kChosenRoom * kUsed];
shared float chosen_values[kChosenRoom * kUsed];

// All invocations call this once one_column is filled. Afterwards every invocation sees the chosen experts.
void take_by_counting() {
  uint thread = gl_LocalInvocationIndex;
  for (uint place = thread; place < kUsed; place += kInvocations) {
    chosen_values[place] = 0.0;
    chosen_experts[place] = place;
  }
  barrier();
  for (uint first = 0; first < kExperts * kCountTogether; first += kInvocations) {
    uint expert = (first + thread) / kCountTogether, part = (first + thread) % kCountTogether;
    float own = one_column[min(expert, kExperts - 1u)];
    bool is_number = (floatBitsToUint(own) & 0x7fffffffu) <= 0x7f800000u;
    uint place = 0u;
    for (uint at = part * kCountAtOnce; at < kExperts; at += kCountTogether * kCountAtOnce) {
      [[unroll]] for (uint i = 0; i < kCountAtOnce; i++) {
        bool exists = kExperts % kCountAtOnce == 0u || at + i < kExperts;
        float other = one_column[exists ? at + i : 0u];
        if (exists && (other > own || (other == own && at + i < expert))) place++;
      }
    }
    [[unroll]] for (uint distance = 1u; distance < kCountTogether; distance *= 2u)
      place += subgroupShuffleXor(place, distance);
    if (part == 0u && expert < kExperts && is_number && place < kUsed) {
      chosen_values[place] = own;
      chosen_experts[place] = expert;
    }
  }
  barrier();
}

float sigmoid(float logit) {
  precise float made = 1.0 / (1.0 + exp(-logit));
  return made;
}

// An expert's part of a softmax, before it is divided by the denominator.
float softmax_part(float logit, float largest) {
  precise float below = logit - largest;
  return exp(below);
}
