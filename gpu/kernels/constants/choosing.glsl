// The constants of a product by matrix units that chooses a single column's experts itself. Their ids follow those of
// all products.
CONSTANTS(ChoosingConstants, 36)
CONSTANT(36, kChooses, chooses, 0u)         // ChoosesHere
CONSTANT(37, kExperts, experts, 1u)
CONSTANT(38, kUsed, used, 1u)
CONSTANT(39, kSharedGate, shared_gate, 0u)  // one more logit is that of the shared expert's gate
CONSTANT(40, kWeightScale, weight_scale, 0x3f800000u)  // a float's bits: factor of all weights
CONSTANT(41, kWeightsAt, weights_at, 0u)    // offset from the tiles in bytes
CONSTANT(42, kLogitsAt, logits_at, 0u)
CONSTANTS_END
