// A workgroup chooses the experts of a single column: an invocation counts how many experts come before its own, and
// the count is its expert's place. Of equal experts the one with the lower index comes first. A NaN gets no place;
// then any expert will do.
//
// The includer has kInvocations, kExperts, kUsed, and kChosenRoom, the number of columns for whose chosen experts
// there is room.
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
  for (uint expert = thread; expert < kExperts; expert += kInvocations) {
    float own = one_column[expert];
    bool is_number = (floatBitsToUint(own) & 0x7fffffffu) <= 0x7f800000u;
    uint place = 0u;
    for (uint i = 0; i < kExperts; i++) {
      float other = one_column[i];
      if (other > own || (other == own && i < expert)) place++;
    }
    if (is_number && place < kUsed) {
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
