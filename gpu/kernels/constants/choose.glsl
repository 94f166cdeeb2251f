CONSTANTS(ChooseConstants, 0)
CONSTANT(0, kLanes, lanes, 8u)          // subgroup size
CONSTANT(1, kSubgroups, subgroups, 1u)  // each chooses for a column at a time
INVOCATIONS(2, kInvocations, invocations, 8u)  // kLanes * kSubgroups
CONSTANT(3, kPart, part, 0u)                   // ChoosePart
CONSTANT(4, kExperts, experts, 1u)
CONSTANT(5, kUsed, used, 1u)                 // of a column
CONSTANT(6, kSharedGate, shared_gate, 0u)    // a further logit is that of the shared expert's gate
CONSTANT(7, kRenormalise, renormalise, 0u)   // weights are shares of the chosen ones' sum, not of all
CONSTANT(8, kTileColumns, tile_columns, 1u)  // of the products that follow
CONSTANT(9, kSigmoid, sigmoid, 0u)   // scores are the logits' sigmoids, not their softmax
CONSTANT(10, kByScores, by_scores, 0u)  // experts are chosen by score, a bias and groups, not by logit
CONSTANT(11, kGroups, groups, 1u)            // groups of neighbouring experts, equally many experts in each; at most 32
CONSTANT(12, kGroupsUsed, groups_used, 1u)   // groups that a column takes experts from
CONSTANTS_END
